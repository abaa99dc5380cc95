//! Activations in the encodings that the products read.

use super::Isa;
use super::buffer::Buffer;
use crate::error::{Result, fail};
use crate::quant::TensorType;

/// Which encodings of an activation are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encodings {
    /// Single precision: for F32, F16 and BF16 weights.
    pub float: bool,
    /// Bytes with a scale per 32 elements: for all quantized weights.
    pub q8: bool,
}

impl Encodings {
    /// What products with weights of this type read.
    pub fn for_type(ty: TensorType) -> Encodings {
        let float = ty.is_float();
        Encodings { float, q8: !float }
    }

    /// What either reads.
    pub fn union(self, other: Encodings) -> Encodings {
        Encodings {
            float: self.float || other.float,
            q8: self.q8 || other.q8,
        }
    }

    /// Whether `other` is contained.
    pub fn covers(self, other: Encodings) -> bool {
        (self.float || !other.float) && (self.q8 || !other.q8)
    }
}

/// Rows of activations, one per token, encoded for products.
///
/// The byte encoding of a row: groups of 32 elements `x`, the last filled up with zeros. With
/// `a` the largest absolute value of a group, `da = a / 127`, `i = 127 / a`, and element `q` is
/// `x * i` rounded to the nearest integer, ties to even. A group with `a < 2^-100` counts as all
/// zero (`da = 0`). A group with an infinity or a NaN has `da` NaN and `q` zero, so that whatever
/// it meets becomes NaN. Beside them are the sums of `q` over 32 and over 16 elements, negated,
/// and `f32(sum) * da`.
pub struct Activations {
    max_tokens: usize,
    max_cols: usize,
    encodings: Encodings,
    /// f32 rows, the last vector of 16 filled up with -0.
    floats: Buffer,
    /// Floats from one token's row to the next.
    float_stride: usize,
    bytes: Buffer,
    layout: Layout,
}

/// Where the parts of a token's byte encoding are, in bytes. The parts are padded to chunks of 256
/// elements.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// From one token to the next.
    pub stride: usize,
    /// f32 `da`, 8 per chunk. The `q` are at 0.
    pub scales: usize,
    /// i32, minus the sum over 32 elements, 8 per chunk.
    pub sums32: usize,
    /// f32, the sum times `da`, 8 per chunk.
    pub scaled32: usize,
    /// i32, minus the sum over 16 elements, 16 per chunk.
    pub sums16: usize,
    /// f32, the sum times `da`, 16 per chunk.
    pub scaled16: usize,
}

impl Layout {
    fn new(max_cols: usize) -> Layout {
        let chunks = max_cols.div_ceil(256);
        // 64 bytes apart from a power of two, lest tokens compete for the same cache sets.
        let scales = chunks * 256 + 64;
        let sums32 = scales + chunks * 32;
        let scaled32 = sums32 + chunks * 32;
        let sums16 = scaled32 + chunks * 32;
        let scaled16 = sums16 + chunks * 64;
        let end = (scaled16 + chunks * 64).next_multiple_of(64);
        Layout {
            stride: end + 64 * usize::from((end / 64).is_multiple_of(2)),
            scales,
            sums32,
            scaled32,
            sums16,
            scaled16,
        }
    }
}

impl Activations {
    /// Memory for `max_tokens` rows of up to `max_cols` elements in the encodings `enc`.
    pub fn new(max_tokens: usize, max_cols: usize, enc: Encodings) -> Result<Activations> {
        if max_cols > usize::MAX / 64 {
            fail!(OutOfMemory, "activations of {max_cols} columns");
        }
        let float_stride = max_cols.next_multiple_of(16) + 16;
        let layout = Layout::new(max_cols);
        let bytes = |wanted: bool, per_token: usize| {
            Buffer::new(
                if wanted {
                    max_tokens.saturating_mul(per_token)
                } else {
                    0
                },
                "activations",
            )
        };
        Ok(Activations {
            max_tokens,
            max_cols,
            encodings: enc,
            floats: bytes(enc.float, float_stride * size_of::<f32>())?,
            float_stride,
            bytes: bytes(enc.q8, layout.stride)?,
            layout,
        })
    }

    /// Bytes of [`Activations::new`].
    pub fn bytes_for(max_tokens: usize, max_cols: usize, enc: Encodings) -> usize {
        let floats = (max_cols.next_multiple_of(16) + 16) * size_of::<f32>();
        let per_token =
            usize::from(enc.float) * floats + usize::from(enc.q8) * Layout::new(max_cols).stride;
        max_tokens * per_token
    }

    /// Number of rows.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Longest row.
    pub fn max_cols(&self) -> usize {
        self.max_cols
    }

    /// The encodings that there is memory for.
    pub fn encodings(&self) -> Encodings {
        self.encodings
    }

    /// Encodes the row `x` of a token, in the encodings of `enc` that there is memory for.
    ///
    /// Panics if `token` or the length of `x` is out of range.
    ///
    /// # Safety
    /// No other thread reads or writes this token during the call. Different tokens may be set at
    /// the same time.
    pub unsafe fn set_row(&self, isa: Isa, token: usize, x: &[f32], enc: Encodings) {
        assert!(token < self.max_tokens && x.len() <= self.max_cols);
        if enc.float && self.encodings.float {
            let padded = x.len().next_multiple_of(16);
            // SAFETY: the token's row is `float_stride >= padded` long; by contract, nobody else uses it.
            let row = unsafe { std::slice::from_raw_parts_mut(self.float_row(token), padded) };
            row[..x.len()].copy_from_slice(x);
            // A weight of the padding is +0, so the products are -0.
            row[x.len()..].fill(-0.0);
        }
        if enc.q8 && self.encodings.q8 {
            // SAFETY: by contract, nobody else uses the token's record, whose parts hold
            // `max_cols` elements.
            unsafe { self.encode(isa, token, x) }
        }
    }

    /// Makes `token` the same as a token of `from`, which was set with a row of `len` elements in the
    /// encodings `enc`.
    ///
    /// Panics if a token or `len` is out of range, or either lacks memory for the encodings.
    ///
    /// # Safety
    /// No other thread reads or writes this token during the call, or writes the other.
    pub unsafe fn copy_row(
        &self,
        token: usize,
        from: &Activations,
        from_token: usize,
        len: usize,
        enc: Encodings,
    ) {
        assert!(token < self.max_tokens && from_token < from.max_tokens);
        assert!(len <= self.max_cols && len <= from.max_cols);
        assert!(self.encodings.covers(enc) && from.encodings.covers(enc));
        if enc.float {
            // SAFETY: both rows have room for the padded elements; they do not overlap, as no thread
            // writes the other.
            unsafe {
                let to = self.float_row(token);
                to.copy_from_nonoverlapping(from.float_row(from_token), len.next_multiple_of(16));
            }
        }
        if enc.q8 {
            // SAFETY: as above.
            unsafe {
                let to = self.parts(token, len);
                let from = from.parts(from_token, len);
                to.q.copy_from_slice(from.q);
                to.scales.copy_from_slice(from.scales);
                to.sums32.copy_from_slice(from.sums32);
                to.scaled32.copy_from_slice(from.scaled32);
                to.sums16.copy_from_slice(from.sums16);
                to.scaled16.copy_from_slice(from.scaled16);
            }
        }
    }

    /// First element of a token's floats.
    pub(super) fn float_row(&self, token: usize) -> *mut f32 {
        debug_assert!(token < self.max_tokens);
        self.floats
            .ptr()
            .cast::<f32>()
            .wrapping_add(token * self.float_stride)
    }

    /// Floats from one token's row to the next.
    pub(super) fn float_stride(&self) -> usize {
        self.float_stride
    }

    /// First byte of a token's byte encoding.
    pub(super) fn byte_row(&self, token: usize) -> *mut u8 {
        debug_assert!(token < self.max_tokens);
        self.bytes.ptr().wrapping_add(token * self.layout.stride)
    }

    /// Where the parts of a byte encoding are.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Encodes as bytes.
    ///
    /// # Safety
    /// The token's record is exclusive.
    unsafe fn encode(&self, isa: Isa, token: usize, x: &[f32]) {
        // SAFETY: by contract, nobody else uses the token's record.
        let parts = unsafe { self.parts(token, x.len()) };
        match isa {
            // SAFETY: the caller of `set_row` names an instruction set of this processor.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512Vnni => unsafe { encode_avx2(parts, x) },
            _ => encode_groups(parts, x),
        }
    }

    /// The parts of a token's record for a row of `len` elements, padded to whole chunks.
    ///
    /// # Safety
    /// The token's record is exclusive while the parts are used.
    unsafe fn parts(&self, token: usize, len: usize) -> Parts<'_> {
        let chunks = len.div_ceil(256);
        let base = self.byte_row(token);
        // SAFETY: the parts of a record do not overlap, each has room for the chunks of
        // `max_cols >= len` elements and is aligned to 32 bytes. All bit patterns are valid.
        unsafe {
            use std::slice::from_raw_parts_mut as part;
            let l = &self.layout;
            Parts {
                q: part(base.cast(), chunks * 256),
                scales: part(base.add(l.scales).cast(), chunks * 8),
                sums32: part(base.add(l.sums32).cast(), chunks * 8),
                scaled32: part(base.add(l.scaled32).cast(), chunks * 8),
                sums16: part(base.add(l.sums16).cast(), chunks * 16),
                scaled16: part(base.add(l.scaled16).cast(), chunks * 16),
            }
        }
    }
}

/// A token's record.
struct Parts<'a> {
    q: &'a mut [i8],
    scales: &'a mut [f32],
    sums32: &'a mut [i32],
    scaled32: &'a mut [f32],
    sums16: &'a mut [i32],
    scaled16: &'a mut [f32],
}

/// [`encode_groups`] compiled for AVX2.
///
/// Callable where the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(parts: Parts<'_>, x: &[f32]) {
    encode_groups(parts, x)
}

/// Encodes all groups and the padding.
#[inline(always)]
fn encode_groups(mut parts: Parts<'_>, x: &[f32]) {
    let (whole, rest) = x.as_chunks::<32>();
    for (g, x) in whole.iter().enumerate() {
        encode_group(&mut parts, g, x);
    }
    let mut groups = whole.len();
    if !rest.is_empty() {
        let mut x = [0.0; 32];
        x[..rest.len()].copy_from_slice(rest);
        encode_group(&mut parts, groups, &x);
        groups += 1;
    }
    // f32(0) * -0 = -0: neither scale nor minimum of the padding changes a sum.
    parts.q[groups * 32..].fill(0);
    parts.scales[groups..].fill(-0.0);
    parts.sums32[groups..].fill(0);
    parts.scaled32[groups..].fill(-0.0);
    parts.sums16[groups * 2..].fill(0);
    parts.scaled16[groups * 2..].fill(-0.0);
}

/// 1.5 * 2^23: added to a number of small magnitude it rounds that to an integer, ties to even,
/// and leaves the integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// 2^-100.
const TINY: f32 = f32::from_bits(27 << 23);

#[inline(always)]
fn encode_group(parts: &mut Parts<'_>, g: usize, x: &[f32; 32]) {
    // As integers, infinities and NaN are above all numbers.
    let largest = x.iter().fold(0, |a, v| a.max(v.to_bits() & 0x7fff_ffff));
    let a = f32::from_bits(largest);
    let (scale, inverse) = if largest >= f32::INFINITY.to_bits() {
        (f32::NAN, 0.0)
    } else if a < TINY {
        (0.0, 0.0)
    } else {
        (a / 127.0, 127.0 / a)
    };
    let mut ints = [0i32; 32];
    if inverse != 0.0 {
        for (i, v) in ints.iter_mut().zip(x) {
            *i = (v * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
        }
    }
    for (q, i) in parts.q[g * 32..][..32].iter_mut().zip(&ints) {
        *q = *i as i8;
    }
    let low: i32 = ints[..16].iter().sum();
    let high: i32 = ints[16..].iter().sum();
    parts.scales[g] = scale;
    parts.sums32[g] = -(low + high);
    parts.scaled32[g] = (low + high) as f32 * scale;
    parts.sums16[g * 2] = -low;
    parts.sums16[g * 2 + 1] = -high;
    parts.scaled16[g * 2] = low as f32 * scale;
    parts.scaled16[g * 2 + 1] = high as f32 * scale;
}
