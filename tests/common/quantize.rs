//! Simple quantizers for tests: every group is rounded to the nearest value of the simplest scale
//! that covers it, nothing is searched. Good enough to make a file of any type.

use emberlm::quant::{E2M1_DOUBLED, IQ4_VALUES, TensorType, e8m0_half};
use half::{bf16, f16};

/// The blocks of `row`, whose length is a whole number of blocks, in type `ty`.
pub fn quantize_row(ty: TensorType, row: &[f32]) -> Vec<u8> {
    let n = ty.block_len();
    assert_eq!(row.len() % n, 0, "{}: row of {}", ty.name(), row.len());
    let quantize: fn(&[f32]) -> Vec<u8> = match ty {
        TensorType::F32 => |x| x[0].to_le_bytes().into(),
        TensorType::F16 => |x| f16::from_f32(x[0]).to_le_bytes().into(),
        TensorType::BF16 => |x| bf16::from_f32(x[0]).to_le_bytes().into(),
        TensorType::Q4_0 => |x| symmetric(x, 4),
        TensorType::Q4_1 => |x| affine(x, 4),
        TensorType::Q5_0 => |x| symmetric(x, 5),
        TensorType::Q5_1 => |x| affine(x, 5),
        TensorType::Q8_0 => q8_0,
        TensorType::Q2K => q2_k,
        TensorType::Q3K => q3_k,
        TensorType::Q4K => |x| q4_or_5_k(x, 4),
        TensorType::Q5K => |x| q4_or_5_k(x, 5),
        TensorType::Q6K => q6_k,
        TensorType::IQ4NL => iq4_nl,
        TensorType::IQ4XS => iq4_xs,
        TensorType::MXFP4 => mxfp4,
    };
    let blocks: Vec<u8> = row.chunks(n).flat_map(quantize).collect();
    assert_eq!(Some(blocks.len()), ty.row_bytes(row.len()), "{}", ty.name());
    blocks
}

/// The element of largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

/// The number `q` of `low..=high` for which `q * scale` is nearest to `x`; 0 if all are the same.
fn nearest(x: f32, scale: f32, low: i32, high: i32) -> i32 {
    if scale == 0.0 {
        return 0.clamp(low, high);
    }
    ((x / scale).round() as i32).clamp(low, high)
}

/// Index of the value in `table` for which `value * scale` is nearest to `x`.
fn nearest_in(table: &[i8; 16], x: f32, scale: f32) -> u8 {
    let distance = |i: &u8| (f32::from(table[usize::from(*i)]) * scale - x).abs();
    (0..16)
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap()
}

fn half_bytes(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

/// What is left of a scale after it was stored as f16.
fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Low halves of elements `j` and `j + 16` in byte `j`, for 32 elements.
fn nibbles(q: &[u8]) -> impl Iterator<Item = u8> {
    (0..16).map(|j| q[j] & 15 | q[j + 16] << 4)
}

/// Bit 4 of each of 32 elements, as 4 bytes.
fn fifth_bits(q: &[u8]) -> [u8; 4] {
    let bit = |(j, q): (usize, &u8)| u32::from(q >> 4 & 1) << j;
    q.iter().enumerate().map(bit).sum::<u32>().to_le_bytes()
}

/// Q4_0 and Q5_0.
fn symmetric(x: &[f32], bits: u32) -> Vec<u8> {
    let half = 1 << (bits - 1);
    let d = extreme(x) / -(half as f32);
    let q: Vec<u8> = x
        .iter()
        .map(|&x| (nearest(x, rounded(d), -half, half - 1) + half) as u8)
        .collect();
    let mut b = half_bytes(d).to_vec();
    if bits == 5 {
        b.extend(fifth_bits(&q));
    }
    b.extend(nibbles(&q));
    b
}

/// Q4_1 and Q5_1.
fn affine(x: &[f32], bits: u32) -> Vec<u8> {
    let high = (1 << bits) - 1;
    let min = rounded(x.iter().copied().fold(f32::INFINITY, f32::min));
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / high as f32;
    let q: Vec<u8> = x
        .iter()
        .map(|&x| nearest(x - min, rounded(d), 0, high) as u8)
        .collect();
    let mut b = half_bytes(d).to_vec();
    b.extend(half_bytes(min));
    if bits == 5 {
        b.extend(fifth_bits(&q));
    }
    b.extend(nibbles(&q));
    b
}

fn q8_0(x: &[f32]) -> Vec<u8> {
    let d = extreme(x).abs() / 127.0;
    let mut b = half_bytes(d).to_vec();
    b.extend(x.iter().map(|&x| nearest(x, rounded(d), -127, 127) as u8));
    b
}

/// Signed scales of the groups of a block: f16 `d` and integers of `low..=-low - 1`, so that
/// `d * integer` times `-reach` is about the extreme of each group of `group` elements.
fn signed_scales(x: &[f32], group: usize, reach: f32, low: i32) -> (f32, Vec<i32>) {
    let wanted: Vec<f32> = x.chunks(group).map(|g| extreme(g) / -reach).collect();
    let d = rounded(extreme(&wanted) / low as f32);
    let scales = wanted.iter().map(|&s| nearest(s, d, low, -low - 1));
    (d, scales.collect())
}

/// Scales and minimums of the groups of a block: f16 factors `d` and `m` and integers up to
/// `top`, so that `d * s * q - m * t` covers each group for `q` from 0 to `high`.
struct Affine {
    d: f32,
    m: f32,
    scales: Vec<u8>,
    minimums: Vec<u8>,
}

impl Affine {
    fn of(x: &[f32], group: usize, high: i32, top: i32) -> Affine {
        let below: Vec<f32> = x
            .chunks(group)
            .map(|g| -g.iter().copied().fold(0.0, f32::min))
            .collect();
        let above = x
            .chunks(group)
            .map(|g| g.iter().copied().fold(0.0, f32::max));
        let steps: Vec<f32> = above
            .zip(&below)
            .map(|(a, b)| (a + b) / high as f32)
            .collect();
        let d = rounded(extreme(&steps) / top as f32);
        let m = rounded(extreme(&below) / top as f32);
        let ints = |v: &[f32], unit| v.iter().map(|&v| nearest(v, unit, 0, top) as u8).collect();
        Affine {
            d,
            m,
            scales: ints(&steps, d),
            minimums: ints(&below, m),
        }
    }

    /// The integer of element `e`, `x`.
    fn quantize(&self, group: usize, high: i32, e: usize, x: f32) -> u8 {
        let scale = self.d * f32::from(self.scales[e / group]);
        let minimum = self.m * f32::from(self.minimums[e / group]);
        nearest(x + minimum, scale, 0, high) as u8
    }
}

/// Bits `2 * (e / 32 % 4)` on of byte `32 * (e / 128) + e % 32`, for the two bits of each of 256.
fn two_bits(q: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 64];
    for (e, q) in q.iter().enumerate() {
        b[32 * (e / 128) + e % 32] |= (q & 3) << (2 * (e / 32 % 4));
    }
    b
}

fn q2_k(x: &[f32]) -> Vec<u8> {
    let a = Affine::of(x, 16, 3, 15);
    let q: Vec<u8> = x
        .iter()
        .enumerate()
        .map(|(e, &x)| a.quantize(16, 3, e, x))
        .collect();
    let mut b: Vec<u8> = a
        .scales
        .iter()
        .zip(&a.minimums)
        .map(|(s, t)| s | t << 4)
        .collect();
    b.extend(two_bits(&q));
    b.extend(half_bytes(a.d));
    b.extend(half_bytes(a.m));
    b
}

fn q3_k(x: &[f32]) -> Vec<u8> {
    let (d, scales) = signed_scales(x, 16, 4.0, -32);
    let q: Vec<u8> = x
        .iter()
        .enumerate()
        .map(|(e, &x)| (nearest(x, d * scales[e / 16] as f32, -4, 3) + 4) as u8)
        .collect();
    let mut b = vec![0; 32];
    for (e, q) in q.iter().enumerate() {
        b[e % 32] |= (q >> 2) << (e / 32);
    }
    b.extend(two_bits(&q));
    let mut packed = [0; 12];
    for (g, s) in scales.iter().enumerate() {
        let s = (s + 32) as u8;
        packed[g % 8] |= (s & 15) << (4 * (g / 8));
        packed[8 + g % 4] |= (s >> 4) << (2 * (g / 4));
    }
    b.extend(packed);
    b.extend(half_bytes(d));
    b
}

fn q4_or_5_k(x: &[f32], bits: u32) -> Vec<u8> {
    let high = (1 << bits) - 1;
    let a = Affine::of(x, 32, high, 63);
    let q: Vec<u8> = x
        .iter()
        .enumerate()
        .map(|(e, &x)| a.quantize(32, high, e, x))
        .collect();
    let mut b = half_bytes(a.d).to_vec();
    b.extend(half_bytes(a.m));
    let mut packed = [0; 12];
    for g in 0..4 {
        packed[g] = a.scales[g] | a.scales[g + 4] >> 4 << 6;
        packed[g + 4] = a.minimums[g] | a.minimums[g + 4] >> 4 << 6;
        packed[g + 8] = a.scales[g + 4] & 15 | a.minimums[g + 4] << 4;
    }
    b.extend(packed);
    if bits == 5 {
        let fifth = |j: usize| (0..8).map(|g| (q[32 * g + j] >> 4) << g).sum::<u8>();
        b.extend((0..32).map(fifth));
    }
    for run in q.chunks(64) {
        b.extend((0..32).map(|j| run[j] & 15 | run[j + 32] << 4));
    }
    b
}

fn q6_k(x: &[f32]) -> Vec<u8> {
    let (d, scales) = signed_scales(x, 16, 32.0, -128);
    let q: Vec<u8> = x
        .iter()
        .enumerate()
        .map(|(e, &x)| (nearest(x, d * scales[e / 16] as f32, -32, 31) + 32) as u8)
        .collect();
    let mut b = Vec::new();
    for run in q.chunks(128) {
        b.extend((0..64).map(|j| run[j] & 15 | run[j + 64] << 4));
    }
    b.extend(two_bits(&q.iter().map(|q| q >> 4).collect::<Vec<_>>()));
    b.extend(scales.iter().map(|&s| s as u8));
    b.extend(half_bytes(d));
    b
}

fn iq4_nl(x: &[f32]) -> Vec<u8> {
    let d = extreme(x) / -127.0;
    let q: Vec<u8> = x
        .iter()
        .map(|&x| nearest_in(&IQ4_VALUES, x, rounded(d)))
        .collect();
    let mut b = half_bytes(d).to_vec();
    b.extend(nibbles(&q));
    b
}

fn iq4_xs(x: &[f32]) -> Vec<u8> {
    let (d, scales) = signed_scales(x, 32, 127.0, -32);
    let mut b = half_bytes(d).to_vec();
    let stored: Vec<u8> = scales.iter().map(|s| (s + 32) as u8).collect();
    let high = |(g, s): (usize, &u8)| u16::from(s >> 4) << (2 * g);
    b.extend(
        stored
            .iter()
            .enumerate()
            .map(high)
            .sum::<u16>()
            .to_le_bytes(),
    );
    b.extend(stored.chunks(2).map(|s| s[0] & 15 | s[1] << 4));
    for (x, s) in x.chunks(32).zip(&scales) {
        let q: Vec<u8> = x
            .iter()
            .map(|&x| nearest_in(&IQ4_VALUES, x, d * *s as f32))
            .collect();
        b.extend(nibbles(&q));
    }
    b
}

fn mxfp4(x: &[f32]) -> Vec<u8> {
    // The largest code is 6 = 1.5 * 2^2.
    let e = match extreme(x).abs() {
        0.0 => 0,
        m => (m.log2().floor() as i32 - 2 + 127).clamp(0, 254) as u8,
    };
    let q: Vec<u8> = x
        .iter()
        .map(|&x| nearest_in(&E2M1_DOUBLED, x, e8m0_half(e)))
        .collect();
    let mut b = vec![e];
    b.extend(nibbles(&q));
    b
}
