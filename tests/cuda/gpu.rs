//! What the tests of kernels share: a context, buffers, random data, poison.

use crate::common::families::with_context;
use crate::common::quantize::f16_offsets;
use crate::common::states::{bits, session};
use crate::common::tiny::Random;
use crate::common::{TempDir, repository_file};
use emberlm::backend::cuda::driver::{self, Buffer, Context, Pod, Stream};
use emberlm::backend::cuda::launch::kernels::Kernels;
use emberlm::backend::cuda::launch::matrix;
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, Session, device};
use emberlm::quant::codebook::IQ1M;
use emberlm::quant::{Codebook, TensorType};
use std::path::{Path, PathBuf};
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

/// Whether the driver computes no network, so that no head is right but by chance.
pub fn is_stand_in() -> bool {
    std::env::var_os("STAND_IN_KERNELS").is_some()
}

/// A model on the first device of a kind.
pub fn load_on(path: &Path, kind: DeviceKind, options: &LoadOptions) -> Arc<Model> {
    let is_it = |i: &usize| device::info(*i).unwrap().kind == kind;
    let index = (0..device::count().unwrap()).find(is_it).unwrap();
    Arc::new(Model::load(path, index, options, &mut |_| Ok(())).unwrap())
}

/// The n-th usable device of a kind, or the last one.
pub fn nth(kind: DeviceKind, n: usize) -> usize {
    let is_there = |i: &usize| {
        let info = device::info(*i).unwrap();
        info.kind == kind && info.usable
    };
    let mut all = (0..device::count().unwrap()).filter(is_there);
    let first = all.next().unwrap();
    all.nth(n.wrapping_sub(1))
        .filter(|_| n > 0)
        .unwrap_or(first)
}

/// The file of a family's tiny model.
pub fn path_of(name: &str) -> PathBuf {
    repository_file(&format!("tests/data/families/{name}/model.gguf"))
}

/// The same with a context of 4096 positions.
pub fn long_path_of(name: &str, dir: &TempDir) -> PathBuf {
    let bytes = with_context(name, 4096).bytes();
    dir.file(&format!("{name}.gguf"), &bytes)
}

/// The numbers that these are the bits of.
pub fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

/// The largest difference of finite numbers, and the largest number of the second.
pub fn apart(a: &[u32], b: &[u32]) -> (f32, f32) {
    let (a, b) = (floats(a), floats(b));
    assert_eq!(a.len(), b.len());
    let difference = a
        .iter()
        .zip(&b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(a.iter().all(|x| x.is_finite()));
    (difference, b.iter().fold(0.0, |most, x| x.abs().max(most)))
}

/// Logits behind a prompt, behind further tokens of it one by one, and behind a rewind and a fork.
pub fn logits(model: &Arc<Model>) -> Vec<Vec<u32>> {
    logits_of(session(model))
}

pub fn logits_of(mut session: Session) -> Vec<Vec<u32>> {
    let n_vocab = session.model().details().n_vocab as u32;
    let n = (session.context() * 2 / 3).min(700) as u32;
    let text: Vec<u32> = (0..n).map(|i| i * 37 % n_vocab.min(500)).collect();
    let (first, rest) = text.split_at(text.len() - 5);
    let mut all = Vec::new();
    session.prefill(first).unwrap();
    all.push(bits(&mut session));
    for token in rest {
        session.prefill(&[*token]).unwrap();
        all.push(bits(&mut session));
    }
    session.rewind(first.len() - 3).unwrap();
    session.prefill(&text[first.len() - 3..]).unwrap();
    all.push(bits(&mut session));
    let mut fork = session.fork().unwrap();
    for session in [&mut session, &mut fork] {
        session.prefill(&[3, 4]).unwrap();
        all.push(bits(session));
    }
    all
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
    if ty.is_float() {
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
    for block in bytes.chunks_mut(ty.block_bytes()) {
        for &at in f16_offsets(ty) {
            block[at..at + 2].copy_from_slice(&half(random));
        }
        if ty == T::MXFP4 {
            block[0] = 118 + block[0] % 8;
        }
        if ty == T::NVFP4 {
            for scale in &mut block[..4] {
                *scale %= 48;
            }
        }
        if ty == T::IQ1M {
            IQ1M::set_scale_bits(block, u16::from_le_bytes(half(random)));
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

/// Where element `i` of row `row` lies in the tiles that products of many rows read, `width`
/// elements a row.
pub fn tiled(row: usize, i: usize, width: usize) -> usize {
    let tile = row / 128 * width.div_ceil(64) + i / 64;
    let piece = (i / 8 % 8) ^ (row % 8);
    tile * 128 * 64 + row % 128 * 64 + piece * 8 + i % 8
}

/// Rows of `width` elements as tiles. What is in no row is not a number.
pub fn to_tiles(rows: &[u16], width: usize) -> Vec<u16> {
    let count = rows.len() / width;
    let bytes = matrix::tiled_bytes(count as u32, width.div_ceil(32) as u32);
    let mut tiles = vec![0x7e00; bytes as usize / 2];
    for row in 0..count {
        for i in 0..width.next_multiple_of(64) {
            let value = if i < width { rows[row * width + i] } else { 0 };
            tiles[tiled(row, i, width)] = value;
        }
    }
    tiles
}

/// `count` rows of `width` elements from tiles; the rest of each row's last tile must be zeros.
pub fn from_tiles(tiles: &[u16], count: usize, width: usize) -> Vec<u16> {
    let mut rows = Vec::new();
    for row in 0..count {
        rows.extend((0..width).map(|i| tiles[tiled(row, i, width)]));
        for i in width..width.next_multiple_of(64) {
            assert_eq!(tiles[tiled(row, i, width)], 0, "row {row} element {i}");
        }
    }
    rows
}
