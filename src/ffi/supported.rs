//! What this build of the library can do.

use crate::backend::{DeviceKind, KvType};
use crate::engine::device::{is_compiled, takes_kv_type};

/// Capabilities that `ember_supported` knows. Later versions may have more.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
pub enum ember_capability {
    /// The library has a backend for processors.
    EMBER_CAN_CPU = 1,
    /// The library has a backend for NVIDIA GPUs, whether or not this machine has one.
    EMBER_CAN_CUDA = 2,
    /// GGUF files, also split ones.
    EMBER_CAN_GGUF = 16,
    /// Hugging Face folders with safetensors files.
    EMBER_CAN_SAFETENSORS = 17,
    /// KV caches in half precision on a CPU, `EMBER_KV_F16`.
    EMBER_CAN_CPU_KV_F16 = 32,
    /// KV caches in single precision on a CPU, `EMBER_KV_F32`.
    EMBER_CAN_CPU_KV_F32 = 33,
    /// KV caches of 8-bit values on a CPU, `EMBER_KV_Q8_0`.
    EMBER_CAN_CPU_KV_Q8_0 = 34,
    /// KV caches in half precision on a GPU.
    EMBER_CAN_CUDA_KV_F16 = 48,
    /// KV caches in single precision on a GPU.
    EMBER_CAN_CUDA_KV_F32 = 49,
    /// KV caches of 8-bit values on a GPU.
    EMBER_CAN_CUDA_KV_Q8_0 = 50,
}

/// Returns 1 if the loaded library has the capability, a value of `enum ember_capability`; 0 if it does not or does
/// not know the value. Capabilities are decided when the library is compiled. `ember_device_info` describes the
/// devices of this machine. Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ember_supported(capability: u32) -> u32 {
    use ember_capability as C;
    let can = match C::from_repr(capability) {
        None => false,
        Some(C::EMBER_CAN_CPU) => is_compiled(DeviceKind::Cpu),
        Some(C::EMBER_CAN_CUDA) => is_compiled(DeviceKind::Cuda),
        Some(C::EMBER_CAN_GGUF | C::EMBER_CAN_SAFETENSORS) => true,
        Some(C::EMBER_CAN_CPU_KV_F16) => takes_kv_type(DeviceKind::Cpu, KvType::F16),
        Some(C::EMBER_CAN_CPU_KV_F32) => takes_kv_type(DeviceKind::Cpu, KvType::F32),
        Some(C::EMBER_CAN_CPU_KV_Q8_0) => takes_kv_type(DeviceKind::Cpu, KvType::Q8_0),
        Some(C::EMBER_CAN_CUDA_KV_F16) => takes_kv_type(DeviceKind::Cuda, KvType::F16),
        Some(C::EMBER_CAN_CUDA_KV_F32) => takes_kv_type(DeviceKind::Cuda, KvType::F32),
        Some(C::EMBER_CAN_CUDA_KV_Q8_0) => takes_kv_type(DeviceKind::Cuda, KvType::Q8_0),
    };
    u32::from(can)
}
