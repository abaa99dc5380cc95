//! Devices.

use super::boundary::{Out, OutStruct, Sized32, call};
use super::error::{copy_text, ember_error, ember_status};
use crate::backend::DeviceKind;
use crate::engine::device;
use std::ffi::c_char;

/// Values of `ember_device_details.kind`. Later versions may have more: a device that is `usable` can be used whatever its kind is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ember_device_kind {
    /// The processor that the program runs on.
    EMBER_DEVICE_CPU = 1,
    /// An NVIDIA GPU.
    EMBER_DEVICE_CUDA = 2,
}

/// A device. The caller sets `struct_size`, `ember_device_info` the rest. Text is UTF-8, ended by
/// a NUL, shortened to fit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ember_device_details {
    /// `sizeof(ember_device_details)`, set by the caller.
    pub struct_size: u32,
    /// A value of `enum ember_device_kind`.
    pub kind: u32,
    /// 1 if models can be loaded onto it, else 0.
    pub usable: u32,
    /// Physical cores of a CPU, multiprocessors of a GPU.
    pub cores: u32,
    /// Bytes of memory; 0 if unknown.
    pub memory_total: u64,
    /// Bytes of memory that are free now; 0 if unknown.
    pub memory_free: u64,
    /// Name of the device, as its vendor gives it.
    pub name: [c_char; 128],
    /// Version of the driver; empty for a CPU.
    pub driver: [c_char; 32],
    /// Instruction set or architecture that will be used, for example `avx2` or `sm_90`.
    pub isa: [c_char; 32],
    /// Why the device is not usable, or what limits it; else empty.
    pub reason: [c_char; 256],
}

// SAFETY: `repr(C)`; 4 * 4 + 2 * 8 + 448 bytes without padding; numbers only; the size comes first.
unsafe impl Sized32 for ember_device_details {
    const NAME: &'static str = "ember_device_details";
}

/// Writes the number of devices, which is at least 1: the CPU is one of them. The best usable
/// device has index 0; devices that cannot be used come last. Number and order stay the same for
/// the life of the process. The first call looks for GPUs and may take a moment. Any thread may
/// call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_device_count(
    count: *mut u32,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `count` is as the header demands.
        let count = unsafe { Out::new(count, "count") }?;
        count.set(device::count()? as u32);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}

/// Describes device `index`, counted from 0. A device that cannot be used is described as well;
/// `reason` says why. Any thread may call it.
///
/// Errors: `EMBER_NO_DEVICE` if there is no such index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ember_device_info(
    index: u32,
    out: *mut ember_device_details,
    err: *mut ember_error,
) -> ember_status {
    let work = || {
        // SAFETY: `out` is as the header demands.
        let out = unsafe { OutStruct::new(out) }?;
        let info = device::info(index as usize)?;
        let mut d = ember_device_details::zeroed();
        d.kind = match info.kind {
            DeviceKind::Cpu => ember_device_kind::EMBER_DEVICE_CPU,
            DeviceKind::Cuda => ember_device_kind::EMBER_DEVICE_CUDA,
        } as u32;
        d.usable = u32::from(info.usable);
        d.cores = info.cores;
        d.memory_total = info.memory_total;
        d.memory_free = info.memory_free;
        copy_text(&info.name, &mut d.name);
        copy_text(&info.driver, &mut d.driver);
        copy_text(&info.isa, &mut d.isa);
        copy_text(&info.reason, &mut d.reason);
        out.set(&d);
        Ok(())
    };
    // SAFETY: `err` is as the header demands.
    unsafe { call(err, work) }
}
