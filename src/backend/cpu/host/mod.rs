//! What the operating system and the processor say about this machine.

#[cfg_attr(any(target_os = "linux", target_os = "android"), path = "linux.rs")]
#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(
    not(any(
        target_os = "linux",
        target_os = "android",
        target_os = "macos",
        windows
    )),
    path = "unknown.rs"
)]
mod system;

/// Main memory in bytes; 0 where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Installed.
    pub total: u64,
    /// To be had without swapping.
    pub free: u64,
}

/// Main memory at this moment.
pub fn memory() -> Memory {
    system::memory().unwrap_or_default()
}

/// Cores that this process may use, not counting a second hardware thread of a core. At least 1.
pub fn physical_cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    system::physical_cores()
        .unwrap_or(threads)
        .clamp(1, threads)
}

/// The name that the maker gave the processor, or else the architecture.
pub fn name() -> String {
    brand()
        .or_else(system::cpu_name)
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The brand string of an x86 processor.
#[cfg(target_arch = "x86_64")]
fn brand() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return None;
    }
    let mut bytes = Vec::with_capacity(48);
    for leaf in 0x8000_0002u32..=0x8000_0004 {
        let r = __cpuid(leaf);
        for word in [r.eax, r.ebx, r.ecx, r.edx] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim_matches(['\0', ' ']).to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
fn brand() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_name_cores_and_memory() {
        assert!(!name().is_empty());
        assert!(physical_cores() >= 1);
        let memory = memory();
        if cfg!(any(target_os = "linux", target_os = "macos", windows)) {
            assert!(memory.total > 0);
            assert!(memory.free > 0 && memory.free <= memory.total);
        }
    }
}
