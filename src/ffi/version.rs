//! Versions.

use std::ffi::c_char;

/// The number of the ABI that this source implements (`EMBER_ABI_VERSION` in C). It changes only
/// when programs must be compiled anew; the name of the shared library carries it.
const ABI_VERSION: u32 = 1;

/// `EMBER_ABI_VERSION` of the library that is loaded. A program that finds another number than the one it was compiled with must not
/// call any other function. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ember_abi_version() -> u32 {
    ABI_VERSION
}

/// The version of the library, for example `"0.1.0"`, as a NUL-terminated string that is never freed. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ember_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `EMBER_VERSION_NUMBER` of the library that is loaded: 1000000 times the major, 1000 times the minor and once the patch version. Within
/// an ABI version, it grows with every release. A library whose number is at least `EMBER_VERSION_NUMBER` of the header has every
/// function, field and value of the header. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn ember_version_number() -> u32 {
    const NUMBER: u32 = 1_000_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
        + 1000 * number(env!("CARGO_PKG_VERSION_MINOR"))
        + number(env!("CARGO_PKG_VERSION_PATCH"));
    NUMBER
}

/// A part of a version, less than 1000.
const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) if number < 1000 => number,
        _ => panic!("a part of the version is no number, or too large"),
    }
}
