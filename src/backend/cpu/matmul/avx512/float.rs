//! Products of float weights: a vector holds the 16 accumulators of a row and a token.

use crate::backend::cpu::matmul::Job;
use crate::quant::TensorType;
use std::arch::x86_64::*;

/// Rows unpacked at a time for many tokens.
const PANEL: usize = 32;
/// Rows of a block.
const ROWS: usize = 4;
/// Tokens of a block.
const TOKENS: usize = 6;

/// Loads 16 weights of a type.
trait Load {
    /// Bytes of an element.
    const BYTES: usize;

    /// The elements at `p` whose bit in `mask` is set, else zero.
    ///
    /// # Safety
    /// See [`super::unpack`]; those elements are readable.
    unsafe fn load(p: *const u8, mask: __mmask16) -> __m512;
}

struct F32;
struct F16;
struct BF16;

impl Load for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe { _mm512_maskz_loadu_ps(mask, p.cast()) }
    }
}

impl Load for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast())) }
    }
}

impl Load for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(p: *const u8, mask: __mmask16) -> __m512 {
        // SAFETY: by contract, the processor has the features, and the elements are readable.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

/// The product.
///
/// # Safety
/// `job` was checked; [`super::available`].
pub(super) unsafe fn mul(job: &Job) {
    // SAFETY: by contract, `job` was checked, and the processor has the features.
    unsafe {
        match job.ty {
            TensorType::F16 => typed::<F16>(job),
            TensorType::BF16 => typed::<BF16>(job),
            _ => typed::<F32>(job),
        }
    }
}

/// Where rows are: row `i` at `i * stride` bytes.
#[derive(Clone, Copy)]
struct Rows {
    at: *const u8,
    stride: usize,
}

/// # Safety
/// As of [`mul`], with weights of type `L`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn typed<L: Load>(job: &Job) {
    let mut r = job.rows.start;
    while r < job.rows.end {
        let n = PANEL.min(job.rows.end - r);
        // SAFETY: the rows are in range; the scratch memory holds 32 rows of f32, padded to 16.
        unsafe {
            let rows = Rows {
                at: job.weights.add(r * job.row_bytes),
                stride: job.row_bytes,
            };
            if L::BYTES == 4 || job.tokens.len() <= super::MATVEC_TOKENS {
                panel::<L>(job, rows, r, n);
            } else {
                let stride = job.cols.next_multiple_of(16) * 4;
                for i in 0..n {
                    let from = rows.at.add(i * rows.stride);
                    let to = job.scratch.add(i * stride);
                    for k in (0..job.cols).step_by(16) {
                        let v = L::load(from.add(k * L::BYTES), mask(job.cols - k));
                        _mm512_store_ps(to.add(k * 4).cast(), v);
                    }
                }
                let at = job.scratch.cast_const();
                panel::<F32>(job, Rows { at, stride }, r, n);
            }
        }
        r += PANEL;
    }
}

/// The first `left` of 16 lanes.
#[inline(always)]
fn mask(left: usize) -> __mmask16 {
    if left >= 16 { 0xffff } else { (1 << left) - 1 }
}

/// `n` rows, the first of which is row `r` of the product, with all tokens.
///
/// # Safety
/// As of [`typed`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn panel<L: Load>(job: &Job, rows: Rows, r: usize, n: usize) {
    let mut t = job.tokens.start;
    while t < job.tokens.end {
        let left = job.tokens.end - t;
        let tokens = left.div_ceil(left.div_ceil(TOKENS));
        // SAFETY: rows and tokens are in range.
        unsafe {
            match tokens {
                1 => blocks::<L, 1>(job, rows, r, n, t),
                2 => blocks::<L, 2>(job, rows, r, n, t),
                3 => blocks::<L, 3>(job, rows, r, n, t),
                4 => blocks::<L, 4>(job, rows, r, n, t),
                5 => blocks::<L, 5>(job, rows, r, n, t),
                _ => blocks::<L, 6>(job, rows, r, n, t),
            }
        }
        t += tokens;
    }
}

/// `n` rows, four at a time, with `T` tokens from `t` on.
///
/// # Safety
/// As of [`typed`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn blocks<L: Load, const T: usize>(job: &Job, rows: Rows, r: usize, n: usize, t: usize) {
    // SAFETY: rows and tokens are in range; the tokens' floats are padded to 16.
    unsafe {
        let (first, stride) = (job.x.float_row(t).cast_const(), job.x.float_stride());
        let x: [*const f32; T] = std::array::from_fn(|i| first.wrapping_add(i * stride));
        let whole = job.cols / 16 * 16;
        for i in (0..n).step_by(ROWS) {
            // Rows that lack are the last one again.
            let mut w = [rows.at.add(i * rows.stride); ROWS];
            for j in 1..ROWS {
                w[j] = rows.at.add((i + j).min(n - 1) * rows.stride);
            }
            let mut acc = [[_mm512_setzero_ps(); ROWS]; T];
            for k in (0..whole).step_by(16) {
                step::<L, T>(&w, &x, k, 0xffff, &mut acc);
            }
            if whole < job.cols {
                let mask = mask(job.cols - whole);
                step::<L, T>(&w, &x, whole, mask, &mut acc);
            }
            for token in 0..T {
                let out = job.out.add((t + token) * job.out_stride + r + i);
                let mask = if n - i >= ROWS {
                    15
                } else {
                    (1 << (n - i)) - 1
                };
                _mm_mask_storeu_ps(out, mask, trees(acc[token]));
            }
        }
    }
}

/// Adds the products of the 16 elements from `k` on. Each token has
/// a pointer, since checked arithmetic in the loop slows down builds with overflow checks.
///
/// # Safety
/// As of [`typed`].
#[inline(always)]
unsafe fn step<L: Load, const T: usize>(
    w: &[*const u8; ROWS],
    x: &[*const f32; T],
    k: usize,
    mask: __mmask16,
    acc: &mut [[__m512; ROWS]; T],
) {
    // SAFETY: by contract, `job` was checked, and the processor has the features.
    unsafe {
        let at = k * L::BYTES;
        let mut weights = [_mm512_setzero_ps(); ROWS];
        for i in 0..ROWS {
            weights[i] = L::load(w[i].wrapping_add(at), mask);
        }
        for t in 0..T {
            let x = _mm512_loadu_ps(x[t].wrapping_add(k));
            for i in 0..ROWS {
                acc[t][i] = _mm512_fmadd_ps(weights[i], x, acc[t][i]);
            }
        }
    }
}

/// The trees over the accumulators of four rows.
///
/// # Safety
/// See [`super::unpack`].
#[inline(always)]
unsafe fn trees(acc: [__m512; 4]) -> __m128 {
    // SAFETY: AVX-512F.
    unsafe {
        let [a, b, c, d] = acc;
        // Halves: 8 of `a` and 8 of `b`.
        let ab = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0x44>(a, b),
            _mm512_shuffle_f32x4::<0xEE>(a, b),
        );
        let cd = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0x44>(c, d),
            _mm512_shuffle_f32x4::<0xEE>(c, d),
        );
        // Quarters: 4 of each.
        let v = _mm512_add_ps(
            _mm512_shuffle_f32x4::<0x88>(ab, cd),
            _mm512_shuffle_f32x4::<0xDD>(ab, cd),
        );
        let v = _mm512_add_ps(v, _mm512_permute_ps::<0b11_10_11_10>(v));
        let v = _mm512_add_ps(v, _mm512_movehdup_ps(v));
        let first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castps512_ps128(_mm512_permutexvar_ps(first, v))
    }
}
