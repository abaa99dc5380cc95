//! Work on the rows of single tokens: norm, rotary embedding, activation, sums.
//!
//! Each function handles one token's row and gives the same bits on every instruction set.

use super::simd::{LANES, Lanes, simd_kernel};
use crate::model::{Rope, RopePairing};

/// `out = x / sqrt(mean(x^2) + eps) * weight`, all of `weight.len()` elements.
///
/// The squares are summed in 64 partial sums, `i` taking the elements `k` with `k % 64 == i` in
/// ascending order: four vectors of lanes, added as `(0 + 1) + (2 + 3)`, then [`Lanes::sum`].
#[inline(always)]
unsafe fn rms_norm_generic<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    assert!(x.len() == n && out.len() == n);
    let whole = n / LANES;
    let rest = n % LANES;
    // SAFETY: all offsets are below n; the features are the caller's promise.
    unsafe {
        let at = |i: usize| x.as_ptr().add(i * LANES);
        let mut sums = [L::splat(0.0); 4];
        let mut i = 0;
        while i + 4 <= whole {
            for (k, sum) in sums.iter_mut().enumerate() {
                let v = L::load(at(i + k));
                *sum = v.fma(v, *sum);
            }
            i += 4;
        }
        while i < whole {
            let v = L::load(at(i));
            sums[i % 4] = v.fma(v, sums[i % 4]);
            i += 1;
        }
        if rest > 0 {
            let v = L::load_first(at(whole), rest);
            sums[whole % 4] = v.fma(v, sums[whole % 4]);
        }
        let square = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        let scale = 1.0 / (square / n as f32 + eps).sqrt();
        let factor = L::splat(scale);
        for i in 0..whole {
            let w = L::load(weight.as_ptr().add(i * LANES));
            L::load(at(i))
                .mul(factor)
                .mul(w)
                .store(out.as_mut_ptr().add(i * LANES));
        }
        for i in whole * LANES..n {
            out[i] = x[i] * scale * weight[i];
        }
    }
}
simd_kernel! {
    /// Root-mean-square norm of one row.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_generic
}

/// `gate = gate / (1 + exp(-gate)) * up`
#[inline(always)]
unsafe fn silu_mul_generic<L: Lanes>(gate: &mut [f32], up: &[f32]) {
    assert!(gate.len() == up.len());
    // SAFETY: all offsets are below the length; the features are the caller's promise.
    unsafe {
        let mut i = 0;
        while i < gate.len() {
            let n = (gate.len() - i).min(LANES);
            let g = gate.as_mut_ptr().add(i);
            let u = up.as_ptr().add(i);
            let (x, up) = if n == LANES {
                (L::load(g), L::load(u))
            } else {
                (L::load_first(g, n), L::load_first(u, n))
            };
            let e = L::splat(0.0).sub(x).exp();
            let y = x.div(L::splat(1.0).add(e)).mul(up);
            if n == LANES {
                y.store(g)
            } else {
                y.store_first(g, n)
            }
            i += LANES;
        }
    }
}
simd_kernel! {
    /// Gated SiLU of one row (or part of one), in place.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_generic
}

/// `gate = min(gate, limit) / (1 + exp(-alpha * min(gate, limit))) * (clamp(up, -limit, limit) + 1)`
#[inline(always)]
unsafe fn swiglu_clamped_generic<L: Lanes>(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    assert!(gate.len() == up.len());
    // A comparison with NaN is false, so NaN stays.
    let below = |x: f32| if x > limit { limit } else { x };
    let above = |x: f32| if x < -limit { -limit } else { x };
    let mut i = 0;
    while i < gate.len() {
        let n = (gate.len() - i).min(LANES);
        let (mut g, mut e, mut u) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for k in 0..n {
            g[k] = below(gate[i + k]);
            e[k] = -alpha * g[k];
            u[k] = above(below(up[i + k])) + 1.0;
        }
        // SAFETY: arrays of whole vectors; the features are the caller's promise.
        unsafe {
            let e = L::load(e.as_ptr()).exp();
            let y = L::load(g.as_ptr()).div(L::splat(1.0).add(e));
            y.mul(L::load(u.as_ptr())).store(g.as_mut_ptr());
        }
        gate[i..i + n].copy_from_slice(&g[..n]);
        i += LANES;
    }
}
simd_kernel! {
    /// Gated SiLU with limits, of one row (or part of one), in place.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn swiglu_clamped(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) = swiglu_clamped_generic
}

/// `x += y`, where `y` may come with a bias: `x + (y + bias)`.
pub fn add(x: &mut [f32], y: &[f32], bias: Option<&[f32]>) {
    match bias {
        None => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        Some(bias) => {
            for ((x, y), b) in x.iter_mut().zip(y).zip(bias) {
                *x += y + b;
            }
        }
    }
}

/// `x += bias`, if there is one.
pub fn add_bias(x: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        add(x, bias, None);
    }
}

/// Cosines, then sines, of one position, each times the magnitude: `2 * inv_freq.len()` elements.
/// Angles are computed in double precision.
pub fn rope_table(rope: &Rope, position: usize, out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(rope.inv_freq.len());
    for ((f, c), s) in rope.inv_freq.iter().zip(cos).zip(sin) {
        let (sine, cosine) = (position as f64 * f64::from(*f)).sin_cos();
        *c = cosine as f32 * rope.magnitude;
        *s = sine as f32 * rope.magnitude;
    }
}

/// Rotates one head in place with a row of [`rope_table`].
///
/// `L` only selects the instructions that this is compiled for: a pair becomes
/// `fma(a, cos, -(b * sin))` and `fma(a, sin, b * cos)`.
#[inline(always)]
unsafe fn rotate_generic<L: Lanes>(pairing: RopePairing, table: &[f32], head: &mut [f32]) {
    let pairs = table.len() / 2;
    let (cos, sin) = table.split_at(pairs);
    match pairing {
        RopePairing::Interleaved => {
            let (head, _) = head[..2 * pairs].as_chunks_mut::<2>();
            for ((pair, c), s) in head.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a.mul_add(*c, -(b * s)), a.mul_add(*s, b * c)];
            }
        }
        RopePairing::Halves => {
            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
            for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (a.mul_add(*c, -(*b * s)), a.mul_add(*s, *b * c));
            }
        }
    }
}
simd_kernel! {
    /// Rotates one head in place; `table` is a row of [`rope_table`].
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn rotate(pairing: RopePairing, table: &[f32], head: &mut [f32]) = rotate_generic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::matmul::Isa;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed.wrapping_mul(2654435761).wrapping_add(12345);
        (0..n)
            .map(|_| {
                s ^= s << 13;
                s ^= s >> 17;
                s ^= s << 5;
                s as f32 / u32::MAX as f32 * 8.0 - 4.0
            })
            .collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn norm_matches_double_precision_on_every_length() {
        for n in [1, 15, 16, 17, 63, 64, 80, 96, 256, 896, 1000, 2048] {
            let (x, w) = (numbers(n, 1), numbers(n, 2));
            let mut reference = vec![0.0; n];
            // SAFETY: the scalar set is everywhere.
            unsafe { rms_norm(Isa::Scalar, &x, &w, 1e-5, &mut reference) };
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
            for i in 0..n {
                let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
                assert!((exact - f64::from(reference[i])).abs() <= 1e-6 * exact.abs());
            }
            for isa in Isa::available() {
                let mut out = vec![0.0; n];
                // SAFETY: this processor has it.
                unsafe { rms_norm(isa, &x, &w, 1e-5, &mut out) };
                assert_eq!(bits(&out), bits(&reference), "{isa:?} {n}");
            }
        }
    }

    #[test]
    fn silu_matches_double_precision_on_every_length() {
        for n in [1, 15, 16, 33, 768] {
            let (gate, up) = (numbers(n, 3), numbers(n, 4));
            for isa in Isa::available() {
                let mut out = gate.clone();
                // SAFETY: this processor has it.
                unsafe { silu_mul(isa, &mut out, &up) };
                let mut reference = gate.clone();
                // SAFETY: the scalar set is everywhere.
                unsafe { silu_mul(Isa::Scalar, &mut reference, &up) };
                assert_eq!(bits(&out), bits(&reference));
                for i in 0..n {
                    let g = f64::from(gate[i]);
                    let exact = g / (1.0 + (-g).exp()) * f64::from(up[i]);
                    assert!((exact - f64::from(out[i])).abs() <= 1e-6 * exact.abs());
                }
            }
        }
        let mut extreme = [1e30, -1e30, f32::NAN, 0.0];
        // SAFETY: the scalar set is everywhere.
        unsafe { silu_mul(Isa::detect(), &mut extreme, &[1.0; 4]) };
        assert!(
            extreme[0] == 1e30
                && extreme[1].abs() < 1e-7
                && extreme[2].is_nan()
                && extreme[3] == 0.0
        );
    }

    #[test]
    fn rotation_turns_the_right_pairs() {
        for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
            let rope = Rope {
                inv_freq: vec![1.0, 0.1, 0.01].into(),
                magnitude: 1.5,
                pairing,
                long: None,
            };
            let mut table = [0.0; 6];
            rope_table(&rope, 1000, &mut table);
            let head = numbers(8, 5);
            for isa in Isa::available() {
                let mut out = head.clone();
                // SAFETY: this processor has it.
                unsafe { rotate(isa, pairing, &table, &mut out) };
                for i in 0..3 {
                    let (a, b) = match pairing {
                        RopePairing::Interleaved => (2 * i, 2 * i + 1),
                        RopePairing::Halves => (i, i + 3),
                    };
                    let (s, c) = (1000.0 * f64::from(rope.inv_freq[i])).sin_cos();
                    let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                    assert!((f64::from(out[a]) - 1.5 * (x * c - y * s)).abs() < 2e-6);
                    assert!((f64::from(out[b]) - 1.5 * (x * s + y * c)).abs() < 2e-6);
                }
                assert_eq!(
                    out[6..],
                    head[6..],
                    "elements beyond the pairs are left alone"
                );
            }
        }
    }
}
