//! The most memory that this process had resident.

/// Bytes, or `None` where the system does not say.
#[cfg(target_os = "linux")]
pub fn peak_resident_bytes() -> Option<u64> {
    // Not getrusage: its peak survives exec, so it may be that of the shell.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Bytes, or `None` where the system does not say.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn peak_resident_bytes() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let peak = u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()?;
    // macOS counts bytes, the BSDs kibibytes.
    let unit = if cfg!(target_vendor = "apple") {
        1
    } else {
        1024
    };
    Some(peak * unit)
}

/// Bytes, or `None` where the system does not say.
#[cfg(windows)]
pub fn peak_resident_bytes() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(unix)]
    fn grows_with_what_is_touched() {
        let before = super::peak_resident_bytes().expect("this system says");
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = super::peak_resident_bytes().expect("this system says");
        assert!(block[12345] == 1 && after >= 64 << 20 && after >= before);
    }
}
