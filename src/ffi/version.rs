//! Versions.

use std::ffi::c_char;

/// The number of the ABI that this source implements (`EMBER_ABI_VERSION` in C). It changes only
/// when programs must be compiled anew; the name of the shared library carries it.
const ABI_VERSION: u32 = 0;

/// `EMBER_ABI_VERSION` of the library that is really loaded. A program that finds another number
/// than the one it was compiled with must not call anything else. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ember_abi_version() -> u32 {
    ABI_VERSION
}

/// The version of the library, for example `"0.1.0"`: NUL-ended, never freed. Any thread may call
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn ember_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
