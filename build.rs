//! Compiles the GPU kernels, and gives the shared library the name that programs look for at run time. The number in it is the
//! ABI's and changes only when programs must be compiled anew.

/// Equals `EMBER_ABI_VERSION` (the Makefile's `check-symbols` compares them).
const SO_VERSION: u32 = 1;

#[cfg(feature = "cuda")]
#[path = "build/cuda.rs"]
mod cuda;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    cuda::compile();
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    match os.as_str() {
        "linux" | "android" | "freebsd" | "netbsd" | "openbsd" | "dragonfly" => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libemberlm.so.{SO_VERSION}");
        }
        "macos" => {
            let name = format!("@rpath/libemberlm.{SO_VERSION}.dylib");
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,{name}");
        }
        _ => {}
    }
}
