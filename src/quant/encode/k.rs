//! The K types: blocks of 256 elements. Layouts: `quant/k.rs`.

use super::search::{AffineSearch, affine, symmetric};
use super::{extreme, inverse, nearest, put_f16};

/// The largest group scale or minimum of Q4_K and Q5_K.
const TOP_SCALE: f32 = 63.0;

/// Q4_K.
pub(super) fn q4_k(x: &[f32; 256], b: &mut [u8; 144]) {
    let search = AffineSearch {
        top: 15.0,
        from: -1.0,
        by: 0.1,
        steps: 20,
    };
    let (head, values) = b.split_at_mut(16);
    let q = affine_codes(x, &search, head);
    put_halves(&q, values);
}

/// Q5_K.
pub(super) fn q5_k(x: &[f32; 256], b: &mut [u8; 176]) {
    let search = AffineSearch {
        top: 31.0,
        from: -0.5,
        by: 0.1,
        steps: 15,
    };
    let (head, values) = b.split_at_mut(16);
    let q = affine_codes(x, &search, head);
    let (fifth, halves) = values.split_at_mut(32);
    for (j, b) in fifth.iter_mut().enumerate() {
        *b = (0..8).map(|g| (q[32 * g + j] >> 4) << g).sum();
    }
    put_halves(&q, halves);
}

/// Writes the 16 bytes of scales and minimums of Q4_K and Q5_K, and returns the codes.
fn affine_codes(x: &[f32; 256], search: &AffineSearch, head: &mut [u8]) -> [u8; 256] {
    let groups = x.as_chunks::<32>().0;
    let (mut scales, mut minimums) = ([0.0; 8], [0.0; 8]);
    for (g, x) in groups.iter().enumerate() {
        (scales[g], minimums[g]) = affine(x, search);
    }
    let (scales, d) = integers(&scales, head, 0);
    let (minimums, m) = integers(&minimums, head, 2);
    for g in 0..4 {
        head[4 + g] = scales[g] | scales[g + 4] >> 4 << 6;
        head[8 + g] = minimums[g] | minimums[g + 4] >> 4 << 6;
        head[12 + g] = scales[g + 4] & 15 | minimums[g + 4] << 4;
    }
    let mut q = [0; 256];
    for (g, (x, q)) in groups.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let per_step = inverse(d * f32::from(scales[g]));
        let minimum = m * f32::from(minimums[g]);
        *q = x.map(|x| nearest(code(x + minimum, per_step, search.top)) as u8);
    }
    q
}

/// `x * per_step` within 0 and `top`.
fn code(x: f32, per_step: f32, top: f32) -> f32 {
    (x * per_step).max(0.0).min(top)
}

/// The numbers, at least 0, as integers up to 63 times a factor, which goes to byte `at` as f16
/// and is returned.
fn integers(numbers: &[f32; 8], head: &mut [u8], at: usize) -> ([u8; 8], f32) {
    let most = numbers.iter().copied().fold(0.0, f32::max);
    let per_unit = TOP_SCALE * inverse(most);
    let unit = put_f16(most / TOP_SCALE, head, at);
    let integers = numbers.map(|n| nearest(n * per_unit).min(TOP_SCALE) as u8);
    (integers, unit)
}

/// Of each run of 64 codes, the low halves of codes `j` and `j + 32` in byte `j`.
fn put_halves(q: &[u8; 256], out: &mut [u8]) {
    for (run, out) in q
        .as_chunks::<64>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<32>().0)
    {
        for (j, b) in out.iter_mut().enumerate() {
            *b = run[j] & 15 | run[j + 32] << 4;
        }
    }
}

/// Q6_K.
pub(super) fn q6_k(x: &[f32; 256], b: &mut [u8; 210]) {
    let groups = x.as_chunks::<16>().0;
    let mut scales = [0.0; 16];
    for (g, x) in groups.iter().enumerate() {
        scales[g] = symmetric(x, 32.0);
    }
    let most = extreme(&scales);
    let d = put_f16(most / -128.0, b, 208);
    let per_unit = -128.0 * inverse(most);
    let mut q = [0u8; 256];
    for (g, (x, q)) in groups.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        let scale = nearest(scales[g] * per_unit).min(127.0);
        b[192 + g] = scale as i8 as u8;
        let per_step = inverse(d * scale);
        *q = x.map(|x| nearest((x * per_step).clamp(-32.0, 31.0) + 32.0) as u8);
    }
    let (low, rest) = b.split_at_mut(128);
    for (run, (low, high)) in q.as_chunks::<128>().0.iter().zip(
        low.as_chunks_mut::<64>()
            .0
            .iter_mut()
            .zip(rest.as_chunks_mut::<32>().0),
    ) {
        for (j, b) in low.iter_mut().enumerate() {
            *b = run[j] & 15 | run[j + 64] << 4;
        }
        for (j, b) in high.iter_mut().enumerate() {
            *b = (0..4).map(|k| (run[32 * k + j] >> 4) << (2 * k)).sum();
        }
    }
}
