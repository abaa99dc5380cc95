//! The products in plain Rust: the meaning of all others, and the way where there is no vector
//! unit that the library knows.

use super::Job;
use super::types::{Format, with_format};
use crate::quant::dequantize_row;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The product.
///
/// # Safety
/// `job` was checked by [`super::View::mul`].
pub(super) unsafe fn mul(job: &Job) {
    // SAFETY: by contract, `View::mul` has checked `job`.
    unsafe { with_format!(job.ty, F => quantized::<F>(job), _ => float(job)) }
}

/// # Safety
/// As of [`mul`].
unsafe fn quantized<F: Format>(job: &Job) {
    let layout = job.x.layout();
    let groups = job.cols / F::GROUP;
    // SAFETY: the scratch memory has 128 bytes per column, of which the codes take one, scales and
    // minimums at most 4 / 16 each; it is aligned, exclusive, and any bits are valid.
    let (codes, scales, minimums) = unsafe {
        let floats: *mut f32 = job.scratch.add(job.cols).cast();
        (
            from_raw_parts_mut(job.scratch, job.cols),
            from_raw_parts_mut(floats, groups),
            from_raw_parts_mut(floats.add(groups), groups),
        )
    };
    let block_groups = F::BLOCK_LEN / F::GROUP;
    for r in job.rows.clone() {
        // SAFETY: the row is in the matrix.
        let row = unsafe { from_raw_parts(job.weights.add(r * job.row_bytes), job.row_bytes) };
        for (i, block) in row.chunks_exact(F::BLOCK_BYTES).enumerate() {
            F::decode_codes(block, &mut codes[i * F::BLOCK_LEN..][..F::BLOCK_LEN]);
            F::decode_scales(
                block,
                &mut scales[i * block_groups..][..block_groups],
                &mut minimums[i * block_groups..][..block_groups],
            );
        }
        for t in job.tokens.clone() {
            // SAFETY: the token's record has all parts for `cols` elements; nobody writes it now.
            let (x, da, negated, scaled) = unsafe {
                let base = job.x.byte_row(t);
                let (negated, scaled) = if F::GROUP == 32 {
                    (layout.sums32, layout.scaled32)
                } else {
                    (layout.sums16, layout.scaled16)
                };
                (
                    from_raw_parts(base.cast::<i8>(), job.cols),
                    from_raw_parts(base.add(layout.scales).cast::<f32>(), job.cols / 32),
                    from_raw_parts(base.add(negated).cast::<i32>(), groups),
                    from_raw_parts(base.add(scaled).cast::<f32>(), groups),
                )
            };
            let mut acc = [0f32; 16];
            for g in 0..groups {
                let w = &codes[g * F::GROUP..][..F::GROUP];
                let x = &x[g * F::GROUP..][..F::GROUP];
                let mut n: i32 = w
                    .iter()
                    .zip(x)
                    .map(|(w, x)| i32::from(*w) * i32::from(*x))
                    .sum();
                if let Some(shift) = F::ZERO_LOG2 {
                    n += negated[g] << shift;
                }
                let a = &mut acc[g % F::LANES];
                *a = (n as f32 * da[g * F::GROUP / 32]).mul_add(scales[g], *a);
                if F::MINIMUM {
                    *a = scaled[g].mul_add(minimums[g], *a);
                }
            }
            // SAFETY: by contract, `View::mul` has checked `job`, which has this token and row.
            unsafe { *job.out.add(t * job.out_stride + r) = tree(&mut acc[..F::LANES]) };
        }
    }
}

/// # Safety
/// As of [`mul`].
unsafe fn float(job: &Job) {
    // SAFETY: the scratch memory has 128 bytes per column, aligned and exclusive.
    let w = unsafe { from_raw_parts_mut(job.scratch.cast::<f32>(), job.cols) };
    for r in job.rows.clone() {
        // SAFETY: the row is in the matrix.
        let row = unsafe { from_raw_parts(job.weights.add(r * job.row_bytes), job.row_bytes) };
        dequantize_row(job.ty, row, w);
        for t in job.tokens.clone() {
            // SAFETY: a token's floats are `cols` long; nobody writes them now.
            let x = unsafe { from_raw_parts(job.x.float_row(t).cast_const(), job.cols) };
            let mut acc = [0f32; 16];
            for (k, (w, x)) in w.iter().zip(x).enumerate() {
                acc[k % 16] = w.mul_add(*x, acc[k % 16]);
            }
            // SAFETY: by contract, `View::mul` has checked `job`, which has this token and row.
            unsafe { *job.out.add(t * job.out_stride + r) = tree(&mut acc) };
        }
    }
}

/// The sum over the accumulators (8 or 16 of them): halves are added until one is left.
fn tree(acc: &mut [f32]) -> f32 {
    let mut n = acc.len() / 2;
    while n > 0 {
        for i in 0..n {
            acc[i] += acc[i + n];
        }
        n /= 2;
    }
    acc[0]
}
