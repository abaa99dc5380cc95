//! Random blocks of every tensor type, of a wanted standard deviation.
//!
//! All bits of a block are random but its scales: those are chosen so that the elements have mean
//! near 0 and the wanted deviation, and a network of such tensors neither explodes nor vanishes.

use emberlm::quant::codebook::IQ1M;
use emberlm::quant::{Codebook, TensorType, ue4m3_half};
use half::{bf16, f16};

/// A small, fast generator (SplitMix64); the same seed gives the same file everywhere.
pub struct Random(u64);

impl Random {
    /// A generator started at `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Where a block's scales are and what its elements deviate by when the scale is 1 and all other
/// bits are random.
struct Layout {
    /// Byte offset of the f16 scale.
    scale_at: usize,
    /// Byte offset of the f16 minimum and its ratio to the scale that centres the elements.
    minimum: Option<(usize, f32)>,
    /// Standard deviation of the elements per unit of scale.
    deviation: f32,
}

/// The deviations follow from uniform bits: for Q4_K, `scale * s * q - minimum * m` with 6-bit s
/// and m and 4-bit q has mean 0 if minimum = 7.5 scale, and deviates by 258 scale.
fn layout(ty: TensorType) -> Option<Layout> {
    let (scale_at, minimum, deviation) = match ty {
        TensorType::Q4_0 => (0, None, 4.64),
        TensorType::Q4_1 => (0, Some((2, -7.5)), 4.61),
        TensorType::Q5_0 => (0, None, 9.25),
        TensorType::Q5_1 => (0, Some((2, -15.5)), 9.23),
        TensorType::Q8_0 => (0, None, 73.9),
        TensorType::Q2K => (80, Some((82, 1.5)), 13.9),
        TensorType::Q3K => (108, None, 43.3),
        TensorType::Q4K => (0, Some((2, 7.5)), 258.0),
        TensorType::Q5K => (0, Some((2, 15.5)), 527.0),
        TensorType::Q6K => (208, None, 1366.0),
        TensorType::IQ4NL => (0, None, 70.0),
        TensorType::IQ4XS => (0, None, 1290.0),
        TensorType::IQ2XXS => (0, None, 53.37),
        TensorType::IQ2XS => (0, None, 55.85),
        TensorType::IQ2S => (0, None, 56.47),
        TensorType::IQ3XXS => (0, None, 142.5),
        TensorType::IQ3S => (0, None, 140.2),
        TensorType::IQ1S => (0, None, 7.21),
        TensorType::TQ1_0 => (52, None, 0.8175),
        TensorType::TQ2_0 => (64, None, std::f32::consts::FRAC_1_SQRT_2),
        _ => return None,
    };
    Some(Layout {
        scale_at,
        minimum,
        deviation,
    })
}

/// Fills `out`, whole blocks of `ty`, with elements that deviate by `sigma`.
pub fn fill(ty: TensorType, sigma: f32, random: &mut Random, out: &mut [u8]) {
    // A uniform variable in -1..1 deviates by 1 / sqrt(3).
    let uniform = sigma * 3f32.sqrt();
    let put_f16 = |block: &mut [u8], at: usize, value: f32| {
        block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    };
    match (ty, layout(ty)) {
        (TensorType::F32, _) => {
            for x in out.chunks_exact_mut(4) {
                x.copy_from_slice(&(uniform * random.signed()).to_le_bytes());
            }
        }
        (TensorType::F16, _) => {
            for x in out.chunks_exact_mut(2) {
                put_f16(x, 0, uniform * random.signed());
            }
        }
        (TensorType::BF16, _) => {
            for x in out.chunks_exact_mut(2) {
                x.copy_from_slice(&bf16::from_f32(uniform * random.signed()).to_le_bytes());
            }
        }
        (_, Some(layout)) => {
            random.bytes(out);
            let scale = sigma / layout.deviation;
            for block in out.chunks_exact_mut(ty.block_bytes()) {
                if ty == TensorType::TQ2_0 {
                    // The number 3, which stands for 2, is not written: 1 in its place.
                    block
                        .iter_mut()
                        .for_each(|b| *b ^= (*b & *b >> 1 & 0x55) << 1);
                }
                put_f16(block, layout.scale_at, scale);
                if let Some((at, ratio)) = layout.minimum {
                    put_f16(block, at, ratio * scale);
                }
            }
        }
        // Four parts of the scale.
        (TensorType::IQ1M, _) => {
            random.bytes(out);
            let bits = f16::from_f32(sigma / 7.2).to_bits();
            for block in out.chunks_exact_mut(ty.block_bytes()) {
                IQ1M::set_scale_bits(block, bits);
            }
        }
        // 8-bit floats.
        (TensorType::NVFP4, _) => {
            random.bytes(out);
            let off = |s: u8| (2.0 * ue4m3_half(s) - sigma / 2.93).abs();
            let scale = (1..127).min_by(|a, b| off(*a).total_cmp(&off(*b)));
            for block in out.chunks_exact_mut(ty.block_bytes()) {
                block[..4].fill(scale.unwrap_or(1));
            }
        }
        // MXFP4: one byte, a power of two with bias 127; the 4-bit floats deviate by 2.93.
        (_, None) => {
            random.bytes(out);
            let exponent = (127.0 + (sigma / 2.93).log2().round()).clamp(0.0, 254.0) as u8;
            for block in out.chunks_exact_mut(ty.block_bytes()) {
                block[0] = exponent;
            }
        }
    }
}
