//! Linux: the files under /proc and /sys.

use super::Memory;
use std::collections::HashSet;
use std::fs::read_to_string;

pub(super) fn memory() -> Option<Memory> {
    let text = read_to_string("/proc/meminfo").ok()?;
    Some(Memory {
        total: kib(&text, "MemTotal")? * 1024,
        free: kib(&text, "MemAvailable")
            .or_else(|| kib(&text, "MemFree"))
            .unwrap_or(0)
            * 1024,
    })
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Groups of hardware threads that share a core, among those that this process may run on.
pub(super) fn physical_cores() -> Option<usize> {
    let status = read_to_string("/proc/self/status").ok()?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = HashSet::new();
    for cpu in cpus(allowed) {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        cores.insert(read_to_string(path).ok()?);
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// The numbers of a list like `0-3,8,10-11`.
fn cpus(list: &str) -> impl Iterator<Item = usize> + '_ {
    list.trim().split(',').flat_map(|part| {
        let mut ends = part.splitn(2, '-').map(|n| n.trim().parse::<usize>());
        match (ends.next(), ends.next()) {
            (Some(Ok(first)), None) => first..first + 1,
            (Some(Ok(first)), Some(Ok(last))) if last < 1 << 20 => first..last + 1,
            _ => 0..0,
        }
    })
}

pub(super) fn cpu_name() -> Option<String> {
    let text = read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes_are_read() {
        assert_eq!(
            cpus("0-3,8,10-11\n").collect::<Vec<_>>(),
            [0, 1, 2, 3, 8, 10, 11]
        );
        assert_eq!(cpus("").count(), 0);
        assert_eq!(cpus("x,2-,5-4").count(), 0);
        let text = "MemTotal:       16 kB\nMemAvailable:   7 kB\n";
        assert_eq!(kib(text, "MemAvailable"), Some(7));
        assert_eq!(kib(text, "Mem"), None);
    }
}
