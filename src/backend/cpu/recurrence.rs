//! Steps of recurrences, a head or a block of channels at a time. They give the same bits on every instruction set.

use super::elementwise::silu;
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
unsafe fn channel_delta_step_generic<L: Lanes>(
    state: &mut [f32],
    k: &[f32],
    q: &[f32],
    values: &mut [f32],
    gates: &[f32],
    beta: f32,
) {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        for (row, value) in state.chunks_exact_mut(k.len()).zip(values) {
            let found = update_and_dot::<L>(row, gates, k, |s, gate| s.mul(gate));
            let delta = L::splat(beta * (*value - found));
            *value = update_and_dot::<L>(row, k, q, |s, k| k.fma(delta, s));
        }
    }
}
simd_kernel! {
    /// The same step with a gate of each column.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn channel_delta_step(state: &mut [f32], k: &[f32], q: &[f32], values: &mut [f32], gates: &[f32], beta: f32) = channel_delta_step_generic
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

/// Of each of at most [`LANES`] channels.
pub struct Channel<'a> {
    /// Inputs.
    pub x: &'a [f32],
    /// Time steps before softplus.
    pub dt: &'a [f32],
    /// Factors of the inputs.
    pub skip: &'a [f32],
}

#[inline(always)]
unsafe fn channels_step_generic<L: Lanes>(
    state: &mut [f32],
    decay: &[f32],
    b: &[f32],
    c: &[f32],
    of: Channel,
    z: &mut [f32],
) {
    let n = z.len();
    assert!(n <= LANES && of.x.len() == n && of.dt.len() == n && of.skip.len() == n);
    // SAFETY: all slices have n elements, and the chunks have LANES; the features are the caller's promise.
    unsafe {
        let load = |row: &[f32]| match n {
            LANES => L::load(row.as_ptr()),
            _ => L::load_first(row.as_ptr(), n),
        };
        // Beyond the channels, x is 0, and with it the state.
        let (x, dt) = (load(of.x), softplus_lanes(load(of.dt)));
        let input = dt.mul(x);
        let mut sum = load(of.skip).mul(x);
        let rows = state.chunks_exact_mut(LANES).zip(decay.chunks_exact(LANES));
        for ((row, decay), (b, c)) in rows.zip(b.iter().zip(c)) {
            let gate = dt.mul(L::load(decay.as_ptr())).exp();
            let kept = L::load(row.as_ptr()).mul(gate);
            let new = L::splat(*b).fma(input, kept);
            new.store(row.as_mut_ptr());
            sum = new.fma(L::splat(*c), sum);
        }
        let gated = silu(load(z)).mul(sum);
        match n {
            LANES => gated.store(z.as_mut_ptr()),
            _ => gated.store_first(z.as_mut_ptr(), n),
        }
    }
}
simd_kernel! {
    /// A step of Mamba: each row `s` of the state of a block of channels, one for each element of `b`,
    /// becomes `exp(dt * decay) * s + dt * x * b`, with `dt` behind softplus, and `z` becomes `silu(z)` times
    /// the sum of `s * c` over the rows and of `skip * x`.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn channels_step(state: &mut [f32], decay: &[f32], b: &[f32], c: &[f32], of: Channel, z: &mut [f32]) = channels_step_generic
}

/// `ln(1 + exp(x))` of each lane: the part of `x` above 0, and `ln(1 + e)` with `e = exp(-|x|)`, which is
/// `2 artanh(e / (2 + e))`, by its series.
#[inline(always)]
unsafe fn softplus_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the features are the caller's promise.
    unsafe {
        let zero = L::splat(0.0);
        let e = x.min(zero.sub(x)).exp();
        let u = e.div(e.add(L::splat(2.0)));
        let square = u.mul(u);
        let mut sum = L::splat(1.0 / 15.0);
        for n in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
            sum = sum.fma(square, L::splat(1.0 / n));
        }
        u.add(u).fma(sum, x.max(zero))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::matmul::Isa;

    fn numbers(n: usize, from: f32, to: f32) -> Vec<f32> {
        let mut state = n as u64;
        (0..n)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                from + (to - from) * (state >> 40) as f32 / (1u64 << 24) as f32
            })
            .collect()
    }

    /// Whole blocks and parts of them, with time steps of all sizes.
    #[test]
    fn blocks_of_channels_agree_with_single_ones_in_double_precision() {
        for (n, states, scale) in [(16, 16, 1.0), (16, 5, 20.0), (1, 12, 90.0), (11, 1, 4.0)] {
            let (b, c) = (numbers(states, -1.0, 1.0), numbers(states + 1, -1.0, 1.0));
            let decay = numbers(states * LANES, -4.0, -0.01);
            let (x, skip) = (numbers(n, -2.0, 2.0), numbers(n + 40, -1.0, 1.0));
            let dt = numbers(n + 50, -scale, scale);
            let start = numbers(states * LANES + 3, -1.0, 1.0);
            let gates = numbers(n + 60, -6.0, 6.0);
            let of = || Channel {
                x: &x,
                dt: &dt[..n],
                skip: &skip[..n],
            };
            let mut state = start[..states * LANES].to_vec();
            let mut z = gates[..n].to_vec();
            // SAFETY: the processor has what was detected.
            unsafe {
                channels_step(
                    Isa::detect(),
                    &mut state,
                    &decay,
                    &b,
                    &c[..states],
                    of(),
                    &mut z,
                )
            };
            for channel in 0..n {
                let x = f64::from(x[channel]);
                let dt = f64::from(dt[channel]);
                let dt = dt.max(0.0) + (-dt.abs()).exp().ln_1p();
                let mut sum = f64::from(skip[channel]) * x;
                for row in 0..states {
                    let at = row * LANES + channel;
                    let gate = (dt * f64::from(decay[at])).exp();
                    let new = gate * f64::from(start[at]) + dt * x * f64::from(b[row]);
                    let difference = (f64::from(state[at]) - new).abs();
                    assert!(
                        difference <= 1e-6 * (1.0 + new.abs()),
                        "{n} {states}: {new}"
                    );
                    sum += new * f64::from(c[row]);
                }
                let gate = f64::from(gates[channel]);
                let expected = sum * gate / (1.0 + (-gate).exp());
                let difference = (f64::from(z[channel]) - expected).abs();
                let bound = 4e-6 * (1.0 + sum.abs()) * (1.0 + gate.abs());
                assert!(
                    difference <= bound,
                    "{n} {states}: {expected}, {}",
                    z[channel]
                );
            }
            let (mut other, mut z_other) = (start[..states * LANES].to_vec(), gates[..n].to_vec());
            // SAFETY: plain code runs everywhere.
            unsafe {
                let c = &c[..states];
                channels_step(Isa::Scalar, &mut other, &decay, &b, c, of(), &mut z_other);
            }
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&state), bits(&other));
            assert_eq!(bits(&z), bits(&z_other));
        }
    }
}
