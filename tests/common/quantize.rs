//! Simple quantizers for tests: every group is rounded to the nearest value of the simplest scale
//! that covers it, nothing is searched. Good enough to make a file of any type.

use emberlm::quant::{
    Codebook, E2M1_DOUBLED, IQ4_VALUES, TensorType, codebook, e8m0_half, ue4m3_half,
};
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
        TensorType::NVFP4 => nvfp4,
        TensorType::IQ2XXS => |x| {
            from_codebook::<codebook::IQ2XXS>(x, |b, i, entry, signs| {
                b[2 + 8 * (i / 4) + i % 4] = entry as u8;
                put_seven_bits(&mut b[2 + 8 * (i / 4) + 4..], i % 4, signs);
            })
        },
        TensorType::IQ2XS => |x| {
            from_codebook::<codebook::IQ2XS>(x, |b, i, entry, signs| {
                b[2 + 2 * i] = entry as u8;
                b[2 + 2 * i + 1] = (signs & 127) << 1;
            })
        },
        TensorType::IQ2S => |x| {
            from_codebook::<codebook::IQ2S>(x, |b, i, entry, signs| {
                b[2 + i] = entry as u8;
                b[34 + i] = signs;
            })
        },
        TensorType::IQ3XXS => |x| {
            from_codebook::<codebook::IQ3XXS>(x, |b, i, entry, signs| {
                b[2 + 2 * i] = entry as u8;
                b[2 + 2 * i + 1] = (entry >> 8) as u8;
                put_seven_bits(&mut b[66 + 4 * (i / 4)..], i % 4, signs);
            })
        },
        TensorType::IQ3S => |x| {
            from_codebook::<codebook::IQ3S>(x, |b, i, entry, signs| {
                b[2 + 2 * i] = entry as u8;
                b[2 + 2 * i + 1] = (entry >> 8) as u8;
                b[74 + i] = signs;
            })
        },
        TensorType::IQ1S => |x| {
            from_codebook::<codebook::IQ1S>(x, |b, i, entry, _| {
                b[2 + i] = entry as u8;
                let word = u16::from_le_bytes([b[34 + i / 4 * 2], b[35 + i / 4 * 2]]);
                let word = word | (entry as u16 >> 8) << (3 * (i % 4));
                b[34 + i / 4 * 2..][..2].copy_from_slice(&word.to_le_bytes());
            })
        },
        TensorType::IQ1M => |x| {
            from_codebook::<codebook::IQ1M>(x, |b, i, entry, _| {
                b[i] = entry as u8;
                b[32 + i / 2] |= ((entry >> 8) as u8) << (4 * (i % 2));
            })
        },
        TensorType::TQ1_0 => |x| ternary(x, 52),
        TensorType::TQ2_0 => |x| ternary(x, 64),
    };
    let blocks: Vec<u8> = row.chunks(n).flat_map(quantize).collect();
    assert_eq!(Some(blocks.len()), ty.row_bytes(row.len()), "{}", ty.name());
    blocks
}

/// Offsets of the f16 numbers in a block that has them whole.
pub fn f16_offsets(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::IQ4NL => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        TensorType::IQ4XS => &[0],
        TensorType::IQ2XXS | TensorType::IQ2XS | TensorType::IQ2S => &[0],
        TensorType::IQ3XXS | TensorType::IQ3S | TensorType::IQ1S => &[0],
        TensorType::TQ1_0 => &[52],
        TensorType::TQ2_0 => &[64],
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => &[],
        TensorType::MXFP4 | TensorType::NVFP4 | TensorType::IQ1M => &[],
    }
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

/// NVFP4: the smallest scale of each 16 that covers them.
fn nvfp4(x: &[f32]) -> Vec<u8> {
    let mut block = vec![0; 36];
    for (s, x) in x.chunks(16).enumerate() {
        let most = extreme(x).abs();
        let e = (0..127)
            .find(|e| ue4m3_half(*e) * 12.0 >= most)
            .unwrap_or(126);
        block[s] = e;
        for (i, v) in x.iter().enumerate() {
            let q = nearest_in(&E2M1_DOUBLED, *v, ue4m3_half(e));
            block[4 + 8 * s + i % 8] |= q << (4 * (i / 8));
        }
    }
    block
}

/// Bits `7 * at ..` of a word.
fn put_seven_bits(word: &mut [u8], at: usize, bits: u8) {
    let old = u32::from_le_bytes(word[..4].try_into().unwrap());
    let new = old | u32::from(bits & 127) << (7 * at);
    word[..4].copy_from_slice(&new.to_le_bytes());
}

/// A type with a codebook, of which 128 entries are tried (of those of four elements, 64 pairs), with one
/// scale. `put` writes the index of eight elements (of two entries, the second one in the upper byte)
/// and their signs.
fn from_codebook<C: Codebook>(x: &[f32], put: fn(&mut [u8], usize, usize, u8)) -> Vec<u8> {
    let entries: Vec<(usize, [i8; 8])> = (0..128)
        .map(|i| {
            let entry = match C::BYTES {
                // Two of four elements.
                98 | 110 => (i % 16 * 15) << 8 | (i / 16 * 31),
                50 | 56 => i * 16,
                _ => i * 2,
            };
            let mut b = vec![0; C::BYTES];
            put(&mut b, 0, entry, 0);
            (entry, C::eight(&b, 0).to_le_bytes().map(|v| v as i8))
        })
        .collect();
    let magnitudes = C::BYTES != 50 && C::BYTES != 56;
    let most = entries
        .iter()
        .flat_map(|(_, v)| v)
        .map(|v| v.abs())
        .max()
        .unwrap();
    let mut block = vec![0; C::BYTES];
    // A type of three values does better without the extremes.
    let share = if magnitudes { 1.0 } else { 0.45 };
    let d = rounded(share * extreme(x).abs() / f32::from(most) / C::FACTOR);
    C::set_scale_bits(&mut block, f16::from_f32(d).to_bits());
    for (i, x) in x.chunks(8).enumerate() {
        // An even number of signs suits every type: the smallest element gives way.
        let mut signs = 0u8;
        if magnitudes {
            signs = (0..8).map(|j| u8::from(x[j] < 0.0) << j).sum();
            if signs.count_ones() % 2 == 1 {
                let smallest = (0..8).min_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs()));
                signs ^= 1 << smallest.unwrap();
            }
        }
        let wanted: Vec<f32> = (0..8)
            .map(|j| if signs >> j & 1 == 1 { -x[j] } else { x[j] })
            .collect();
        let error = |values: &[i8; 8]| -> f32 {
            let scale = d * C::FACTOR;
            let square = |(v, x): (&i8, &f32)| (scale * f32::from(*v) - x).powi(2);
            values.iter().zip(&wanted).map(square).sum()
        };
        let best = entries
            .iter()
            .min_by(|(_, a), (_, b)| error(a).total_cmp(&error(b)))
            .unwrap();
        put(&mut block, i, best.0, signs);
    }
    block
}

/// TQ1_0 and TQ2_0.
fn ternary(x: &[f32], scale_at: usize) -> Vec<u8> {
    let d = rounded(extreme(x).abs() * 0.6);
    let q: Vec<u32> = x
        .iter()
        .map(|v| (nearest(*v, d, -1, 1) + 1) as u32)
        .collect();
    let mut block = vec![0; scale_at + 2];
    if scale_at == 64 {
        for (e, q) in q.iter().enumerate() {
            block[e / 128 * 32 + e % 32] |= (*q as u8) << (2 * (e / 32 % 4));
        }
    } else {
        for (at, bytes, digits, first) in [(0, 32, 5, 0), (32, 16, 5, 160), (48, 4, 4, 240)] {
            for j in 0..bytes {
                let number = (0..5).fold(0, |sum, n| {
                    sum * 3
                        + if n < digits {
                            q[first + j + bytes * n]
                        } else {
                            0
                        }
                });
                block[at + j] = (number * 256).div_ceil(243) as u8;
            }
        }
    }
    block[scale_at..].copy_from_slice(&half_bytes(d));
    block
}
