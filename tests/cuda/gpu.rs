//! What the tests of kernels share: a context, buffers, random data, poison.

use crate::common::tiny::Random;
use emberlm::backend::cuda::driver::{self, Buffer, Context, Pod, Stream};
use emberlm::backend::cuda::kernels::Kernels;
use emberlm::quant::TensorType;
use std::sync::{Arc, OnceLock};

/// A test: its name and what it does.
pub type Tests = Vec<(String, Box<dyn FnOnce() + Send>)>;

/// Why no test can run, if so.
pub fn missing() -> Option<String> {
    match driver::device_count() {
        Ok(0) => Some("the driver shows no GPU".into()),
        Ok(_) => None,
        Err(e) => Some(e.message),
    }
}

/// The kernels on the first GPU, loaded once.
pub fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| Kernels::load(&context()).unwrap())
}

/// The context of the first GPU.
pub fn context() -> Arc<Context> {
    static CONTEXT: OnceLock<Arc<Context>> = OnceLock::new();
    CONTEXT.get_or_init(|| Context::new(0).unwrap()).clone()
}

/// A stream, and the context current while it lives.
pub fn with_stream<T>(run: impl FnOnce(&Stream) -> T) -> T {
    let context = context();
    let _current = context.enter().unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let result = run(&stream);
    stream.synchronize().unwrap();
    result
}

pub fn upload<T: Copy>(data: &[T]) -> Buffer {
    Buffer::from_slice(&context(), data, "test").unwrap()
}

/// Memory full of NaNs (0xff bytes), so that whatever is not written shows.
pub fn poisoned(bytes: usize) -> Buffer {
    upload(&vec![0xffu8; bytes])
}

pub fn download<T: Pod + Default>(buffer: &Buffer, n: usize) -> Vec<T> {
    let mut out = vec![T::default(); n];
    buffer.read(0, &mut out).unwrap();
    out
}

/// Numbers from -1 to 1.
pub fn random_floats(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.signed_unit()).collect()
}

/// Random blocks of a type: any bytes, but scales of moderate size.
pub fn random_blocks(random: &mut Random, ty: TensorType, rows: usize, row_len: usize) -> Vec<u8> {
    let row_bytes = ty.row_bytes(row_len).unwrap();
    let mut bytes: Vec<u8> = (0..rows * row_bytes)
        .map(|_| (random.bits() >> 32) as u8)
        .collect();
    let half = |random: &mut Random| half::f16::from_f32(random.signed_unit() * 0.1).to_le_bytes();
    use TensorType as T;
    // Where the f16 numbers of a block are.
    let halves: &[usize] = match ty {
        T::F32 | T::F16 | T::BF16 => {
            let values = random_floats(random, rows * row_len);
            return values
                .iter()
                .flat_map(|&v| match ty {
                    T::F32 => v.to_le_bytes().to_vec(),
                    T::F16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
                    _ => half::bf16::from_f32(v).to_le_bytes().to_vec(),
                })
                .collect();
        }
        T::Q4_0 | T::Q5_0 | T::Q8_0 | T::IQ4NL | T::IQ4XS => &[0],
        T::Q4_1 | T::Q5_1 | T::Q4K | T::Q5K => &[0, 2],
        T::Q2K => &[80, 82],
        T::Q3K => &[108],
        T::Q6K => &[208],
        T::MXFP4 => &[],
    };
    for block in bytes.chunks_mut(ty.block_bytes()) {
        for &at in halves {
            block[at..at + 2].copy_from_slice(&half(random));
        }
        if ty == T::MXFP4 {
            block[0] = 118 + block[0] % 8;
        }
    }
    bytes
}

/// ‖a - b‖ / ‖b‖; infinite if anything in `a` is not a number.
pub fn relative_error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut num, mut den) = (0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        if !a.is_finite() {
            return f64::INFINITY;
        }
        num += (f64::from(a) - b).powi(2);
        den += b * b;
    }
    if den == 0.0 {
        num.sqrt()
    } else {
        (num / den).sqrt()
    }
}
