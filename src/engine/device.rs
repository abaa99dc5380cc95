//! The list of devices: all backends' devices, the best first.

use crate::backend::{Backend, DeviceInfo, DeviceKind, KvType, cpu};
use crate::error::{Result, fail};
use crate::memory;
use std::sync::OnceLock;

/// A device in the list: its backend and its index there.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) backend: &'static dyn Backend,
    pub(crate) index: usize,
}

/// Every backend of this build.
fn backends() -> Vec<&'static dyn Backend> {
    vec![
        #[cfg(feature = "cuda")]
        &crate::backend::cuda::BACKEND,
        &cpu::BACKEND,
    ]
}

/// All devices. Made once, so that an index keeps its meaning for the life of the process.
///
/// Errors: `OutOfMemory`; nothing is kept then.
fn list() -> Result<&'static [Device]> {
    static LIST: OnceLock<Vec<Device>> = OnceLock::new();
    if let Some(list) = LIST.get() {
        return Ok(list);
    }
    let mut ranked = Vec::new();
    for backend in backends() {
        for index in 0..backend.device_count() {
            let info = backend.device_info(index);
            ranked.push((rank(&info), Device { backend, index }));
        }
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    let list = ranked.into_iter().map(|(_, device)| device).collect();
    memory::check()?;
    Ok(LIST.get_or_init(|| list))
}

/// Sort key: usable GPUs with much memory, usable GPUs with less, the CPU, unusable devices.
fn rank(info: &DeviceInfo) -> (bool, bool, std::cmp::Reverse<u64>) {
    (
        !info.usable,
        info.kind == DeviceKind::Cpu,
        std::cmp::Reverse(info.memory_total),
    )
}

/// Number of devices, at least one: the CPU. Errors: `OutOfMemory`.
pub fn count() -> Result<usize> {
    Ok(list()?.len())
}

/// Whether this build has devices of a kind.
pub fn is_compiled(kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Cpu => true,
        DeviceKind::Cuda => cfg!(feature = "cuda"),
    }
}

/// Whether this build has devices of a kind, and KV caches of an element type there.
pub fn takes_kv_type(kind: DeviceKind, kv_type: KvType) -> bool {
    match kind {
        DeviceKind::Cpu => cpu::BACKEND.takes_kv_type(kv_type),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => crate::backend::cuda::BACKEND.takes_kv_type(kv_type),
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => false,
    }
}

/// The device with this index. `NoDevice` if there is none.
pub(crate) fn get(index: usize) -> Result<Device> {
    let list = list()?;
    match list.get(index) {
        Some(device) => Ok(*device),
        None => fail!(
            NoDevice,
            "device {index} does not exist; there are {}, counted from 0",
            list.len()
        ),
    }
}

/// Describes the device with this index as it is now. `NoDevice` if there is none.
pub fn info(index: usize) -> Result<DeviceInfo> {
    let device = get(index)?;
    Ok(device.backend.device_info(device.index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    #[test]
    fn the_cpu_is_there_and_usable() {
        let infos: Vec<_> = (0..count().unwrap()).map(|i| info(i).unwrap()).collect();
        let cpu = infos.iter().find(|d| d.kind == DeviceKind::Cpu).unwrap();
        assert!(cpu.usable);
        assert!(cpu.cores >= 1);
        assert!(!cpu.name.is_empty());
        assert!(infos[0].usable, "the first device is the default");
        assert_eq!(info(count().unwrap()).unwrap_err().status, Status::NoDevice);
        assert_eq!(info(usize::MAX).unwrap_err().status, Status::NoDevice);
    }

    #[test]
    fn gpus_come_first_and_unusable_devices_last() {
        let device = |kind, usable, memory_total| DeviceInfo {
            kind,
            usable,
            reason: String::new(),
            name: String::new(),
            driver: String::new(),
            isa: String::new(),
            cores: 1,
            memory_total,
            memory_free: 0,
        };
        let order = [
            device(DeviceKind::Cuda, true, 80),
            device(DeviceKind::Cuda, true, 24),
            device(DeviceKind::Cpu, true, 512),
            device(DeviceKind::Cuda, false, 100),
        ];
        assert!(order.is_sorted_by_key(rank));
    }
}
