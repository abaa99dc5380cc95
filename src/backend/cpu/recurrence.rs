//! Steps of recurrences, a head at a time. They give the same bits on every instruction set.

use super::simd::{LANES, Lanes, simd_kernel};

/// `f` of each vector of `s` and of `x`, its results stored to `s`, and their product with `y`, summed as
/// [`super::elementwise`] sums.
#[inline(always)]
unsafe fn update_and_dot<L: Lanes>(
    s: &mut [f32],
    x: &[f32],
    y: &[f32],
    f: impl Fn(L, L) -> L,
) -> f32 {
    let n = s.len();
    assert!(x.len() == n && y.len() == n);
    // SAFETY: all offsets are below the length; by contract, the processor has the features.
    unsafe {
        let mut sums = [L::splat(0.0); 4];
        for i in 0..n / LANES {
            let at = s.as_mut_ptr().add(i * LANES);
            let new = f(L::load(at), L::load(x.as_ptr().add(i * LANES)));
            new.store(at);
            sums[i % 4] = new.fma(L::load(y.as_ptr().add(i * LANES)), sums[i % 4]);
        }
        let (whole, rest) = (n / LANES, n % LANES);
        if rest > 0 {
            let at = s.as_mut_ptr().add(whole * LANES);
            let x = L::load_first(x.as_ptr().add(whole * LANES), rest);
            let y = L::load_first(y.as_ptr().add(whole * LANES), rest);
            let new = f(L::load_first(at, rest), x);
            new.store_first(at, rest);
            sums[whole % 4] = new.fma(y, sums[whole % 4]);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

#[inline(always)]
unsafe fn delta_step_generic<L: Lanes>(
    state: &mut [f32],
    k: &[f32],
    q: &[f32],
    values: &mut [f32],
    gate: f32,
    beta: f32,
) {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        let gate = L::splat(gate);
        for (row, value) in state.chunks_exact_mut(k.len()).zip(values) {
            let found = update_and_dot::<L>(row, k, k, |s, _| s.mul(gate));
            let delta = L::splat(beta * (*value - found));
            *value = update_and_dot::<L>(row, k, q, |s, k| k.fma(delta, s));
        }
    }
}
simd_kernel! {
    /// A step of the gated delta rule: of a state of `values.len()` rows of `k.len()`, each row `s`
    /// becomes `s' = gate * s`, then `s' + beta * (value - s' . k) k`, and its value the product of
    /// that with `q`.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn delta_step(state: &mut [f32], k: &[f32], q: &[f32], values: &mut [f32], gate: f32, beta: f32) = delta_step_generic
}

#[inline(always)]
unsafe fn scan_step_generic<L: Lanes>(
    state: &mut [f32],
    b: &[f32],
    c: &[f32],
    x: &mut [f32],
    gate: f32,
    dt: f32,
    skip: f32,
) {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        let gate = L::splat(gate);
        for (row, x) in state.chunks_exact_mut(b.len()).zip(x) {
            let input = L::splat(dt * *x);
            let read = update_and_dot::<L>(row, b, c, |s, b| b.fma(input, s.mul(gate)));
            *x = skip.mul_add(*x, read);
        }
    }
}
simd_kernel! {
    /// A step of Mamba 2: of a state of `x.len()` rows of `b.len()`, each row `s` becomes
    /// `gate * s + dt * x * b`, and its `x` the product of that with `c`, plus `skip * x`.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn scan_step(state: &mut [f32], b: &[f32], c: &[f32], x: &mut [f32], gate: f32, dt: f32, skip: f32) = scan_step_generic
}

#[inline(always)]
unsafe fn unit_generic<L: Lanes>(x: &[f32], scale: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    // SAFETY: by contract, the processor has the features.
    let square = unsafe { update_and_dot::<L>(out, x, x, |s, _| s) };
    let factor = scale / (square + 1e-6).sqrt();
    out.iter_mut().for_each(|x| *x *= factor);
}
simd_kernel! {
    /// `out = scale * x / sqrt(sum(x^2) + 1e-6)`, of the same length.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn unit(x: &[f32], scale: f32, out: &mut [f32]) = unit_generic
}

/// `ln(1 + exp(x))`
pub fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
}

/// `1 / (1 + exp(-x))`
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}
