//! Work on the rows of single tokens: norm, rotary embedding, activation, sums.
//!
//! Each function handles one token's row and gives the same bits on every instruction set.

use super::simd::{LANES, Lanes, Number, simd_kernel};
use crate::model::{Rope, RopePairing};

/// The sum of `f(element, sum so far)` over all elements, in 64 partial sums, `i` taking the elements
/// `k` with `k % 64 == i` in ascending order: four vectors of lanes, added as `(0 + 1) + (2 + 3)`,
/// then [`Lanes::sum`]. The last vector is filled with `padding`.
#[inline(always)]
unsafe fn sum_of<L: Lanes>(x: &[f32], padding: f32, f: impl Fn(L, L) -> L) -> f32 {
    let whole = x.len() / LANES;
    let rest = x.len() % LANES;
    // SAFETY: all offsets are below the length; by contract, the processor has the features.
    unsafe {
        let at = |i: usize| x.as_ptr().add(i * LANES);
        let mut sums = [L::splat(0.0); 4];
        let mut i = 0;
        while i + 4 <= whole {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = f(L::load(at(i + k)), *sum);
            }
            i += 4;
        }
        while i < whole {
            sums[i % 4] = f(L::load(at(i)), sums[i % 4]);
            i += 1;
        }
        if rest > 0 {
            let v = L::load_first(at(whole), rest).first(rest, L::splat(padding));
            sums[whole % 4] = f(v, sums[whole % 4]);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`, all of `weight.len()` elements; the mean by
/// [`sum_of`].
#[inline(always)]
unsafe fn rms_norm_generic<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    assert!(x.len() == n && out.len() == n);
    let whole = n / LANES;
    // SAFETY: all offsets are below n; by contract, the processor has the features.
    unsafe {
        let at = |i: usize| x.as_ptr().add(i * LANES);
        let square = sum_of::<L>(x, 0.0, |v, sum| v.fma(v, sum));
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

/// `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight`, all of `weight.len()` elements; mean and
/// variance by [`sum_of`].
#[inline(always)]
unsafe fn layer_norm_generic<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    assert!(x.len() == n && out.len() == n);
    // SAFETY: by contract, the processor has the features.
    let (mean, variance) = unsafe {
        let mean = sum_of::<L>(x, 0.0, |v, sum| sum.add(v)) / n as f32;
        let square = |v: L, sum: L| {
            let d = v.sub(L::splat(mean));
            d.fma(d, sum)
        };
        (mean, sum_of::<L>(x, mean, square) / n as f32)
    };
    let scale = 1.0 / (variance + eps).sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * scale * w;
    }
}
simd_kernel! {
    /// Layer norm of one row, without its bias.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn layer_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = layer_norm_generic
}

/// `y[i] += scale * thin[k] * b[k * stride + i]`, for the rows `k` of `b` in ascending order, each rounded
/// once; `scale * thin[k]` is rounded first.
#[inline(always)]
unsafe fn add_low_rank_generic<L: Lanes, N: Number>(
    y: &mut [f32],
    thin: &[f32],
    scale: f32,
    b: &[N],
    stride: usize,
) {
    let n = y.len();
    let Some(last) = thin.len().checked_sub(1) else {
        return;
    };
    assert!(last * stride + n <= b.len());
    let (whole, rest) = (n / LANES * LANES, n % LANES);
    // SAFETY: all offsets were checked above; by contract, the processor has the features.
    unsafe {
        let at = |k: usize, i: usize| b.as_ptr().add(k * stride + i);
        for i in (0..whole).step_by(LANES) {
            let out = y.as_mut_ptr().add(i);
            let mut sum = L::load(out);
            for (k, t) in thin.iter().enumerate() {
                sum = L::splat(scale * t).fma(N::load::<L>(at(k, i)), sum);
            }
            sum.store(out);
        }
        if rest > 0 {
            let out = y.as_mut_ptr().add(whole);
            let mut sum = L::load_first(out, rest);
            for (k, t) in thin.iter().enumerate() {
                let mut last = [N::default(); LANES];
                std::ptr::copy_nonoverlapping(at(k, whole), last.as_mut_ptr(), rest);
                sum = L::splat(scale * t).fma(N::load::<L>(last.as_ptr()), sum);
            }
            sum.store_first(out, rest);
        }
    }
}
simd_kernel! {
    /// Adds a product with a thin matrix, whose rows are `stride` apart, to one row.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn add_low_rank[N: Number](y: &mut [f32], thin: &[f32], scale: f32, b: &[N], stride: usize) = add_low_rank_generic
}

/// `x / (1 + exp(-x))`
#[inline(always)]
pub(super) unsafe fn silu<L: Lanes>(x: L) -> L {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        let e = L::splat(0.0).sub(x).exp();
        x.div(L::splat(1.0).add(e))
    }
}

/// `x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`
#[inline(always)]
unsafe fn gelu_tanh<L: Lanes>(x: L) -> L {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        // -2 sqrt(2 / pi)
        let cubic = x.mul(x).fma(L::splat(0.044_715), L::splat(1.0)).mul(x);
        let e = cubic.mul(L::splat(-1.595_769)).exp();
        x.div(L::splat(1.0).add(e))
    }
}

/// `x (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2`, within `1e-7 |x|`: erfc by
/// formula 7.1.26 of Abramowitz and Stegun.
#[inline(always)]
unsafe fn gelu<L: Lanes>(x: L) -> L {
    // SAFETY: by contract, the processor has the features.
    unsafe {
        let zero = L::splat(0.0);
        // A NaN in the second operand survives.
        let size = zero.sub(x).max(x);
        let z = size.mul(L::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = L::splat(1.0).div(z.fma(L::splat(0.327_591_1), L::splat(1.0)));
        let mut p = L::splat(1.061_405_4);
        for c in [-1.453_152_1, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = p.fma(t, L::splat(c));
        }
        let tail = p.mul(t).mul(zero.sub(z.mul(z)).exp());
        zero.max(x).sub(size.mul(L::splat(0.5)).mul(tail))
    }
}

/// `x = f(x) * y` over a row, or `f(x)` without `y`.
#[inline(always)]
unsafe fn map<L: Lanes>(x: &mut [f32], y: Option<&[f32]>, f: impl Fn(L) -> L) {
    assert!(y.is_none_or(|y| y.len() == x.len()));
    for i in (0..x.len()).step_by(LANES) {
        let n = (x.len() - i).min(LANES);
        // SAFETY: all offsets are below the length; by contract, the processor has the features.
        unsafe {
            let at = x.as_mut_ptr().add(i);
            let load = |p: *const f32| match n {
                LANES => L::load(p),
                n => L::load_first(p, n),
            };
            let mut out = f(load(at));
            if let Some(y) = y {
                out = out.mul(load(y.as_ptr().add(i)));
            }
            match n {
                LANES => out.store(at),
                n => out.store_first(at, n),
            }
        }
    }
}

#[inline(always)]
unsafe fn gelu_tanh_generic<L: Lanes>(x: &mut [f32], y: Option<&[f32]>) {
    // SAFETY: by contract, the processor has `isa`.
    unsafe { map::<L>(x, y, |x| gelu_tanh(x)) }
}
simd_kernel! {
    /// GELU by tanh of one row (or part of one), in place, times `y` if there is one.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn gelu_tanh_mul(x: &mut [f32], y: Option<&[f32]>) = gelu_tanh_generic
}

#[inline(always)]
unsafe fn gelu_generic<L: Lanes>(x: &mut [f32], y: Option<&[f32]>) {
    // SAFETY: by contract, the processor has `isa`.
    unsafe { map::<L>(x, y, |x| gelu(x)) }
}
simd_kernel! {
    /// GELU by erf of one row (or part of one), in place, times `y` if there is one.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn gelu_mul(x: &mut [f32], y: Option<&[f32]>) = gelu_generic
}

#[inline(always)]
unsafe fn silu_generic<L: Lanes>(x: &mut [f32]) {
    // SAFETY: by contract, the processor has `isa`.
    unsafe { map::<L>(x, None, |x| silu(x)) }
}
simd_kernel! {
    /// SiLU of one row (or part of one), in place.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn silu_alone(x: &mut [f32]) = silu_generic
}

/// `max(x, 0)`
#[inline(always)]
unsafe fn relu_generic<L: Lanes>(x: &mut [f32], y: Option<&[f32]>) {
    // SAFETY: by contract, the processor has `isa`. A NaN in the second operand survives.
    unsafe { map::<L>(x, y, |x| L::splat(0.0).max(x)) }
}
simd_kernel! {
    /// Positive part of one row (or part of one), in place, times `y` if there is one.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn relu_mul(x: &mut [f32], y: Option<&[f32]>) = relu_generic
}

/// `max(x, 0)^2`
#[inline(always)]
unsafe fn relu_squared_generic<L: Lanes>(x: &mut [f32], y: Option<&[f32]>) {
    // SAFETY: by contract, the processor has `isa`. A NaN in the second operand survives.
    unsafe {
        map::<L>(x, y, |x| {
            let positive = L::splat(0.0).max(x);
            positive.mul(positive)
        })
    }
}
simd_kernel! {
    /// Square of the positive part of one row (or part of one), in place, times `y` if there is one.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn relu_squared_mul(x: &mut [f32], y: Option<&[f32]>) = relu_squared_generic
}

/// `alpha_p p^2 + alpha_n (exp(n) - 1 - n) + x / 2` of the positive part p and the negative part n of x.
#[inline(always)]
unsafe fn xielu_generic<L: Lanes>(x: &mut [f32], alpha_p: f32, alpha_n: f32) {
    // SAFETY: by contract, the processor has `isa`. A NaN in the second operand survives.
    unsafe {
        let (zero, one) = (L::splat(0.0), L::splat(1.0));
        let (alpha_p, alpha_n) = (L::splat(alpha_p), L::splat(alpha_n));
        map::<L>(x, None, |x| {
            let (p, n) = (zero.max(x), zero.min(x));
            let below = n.exp().sub(one).sub(n);
            let linear = x.mul(L::splat(0.5));
            below.fma(alpha_n, p.mul(p).fma(alpha_p, linear))
        })
    }
}
simd_kernel! {
    /// xIELU of one row (or part of one), in place.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn xielu(x: &mut [f32], alpha_p: f32, alpha_n: f32) = xielu_generic
}

#[inline(always)]
unsafe fn cap_generic<L: Lanes>(x: &mut [f32], cap: f32) {
    // SAFETY: by contract, the processor has `isa`.
    unsafe {
        let (cap, inverse) = (L::splat(cap), L::splat(1.0 / cap));
        map::<L>(x, None, |x| x.mul(inverse).tanh().mul(cap));
    }
}
simd_kernel! {
    /// Soft cap of a row, in place: `cap * tanh(x * (1 / cap))`.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn soft_cap(x: &mut [f32], cap: f32) = cap_generic
}

/// `gate = gate / (1 + exp(-gate)) * up`
#[inline(always)]
unsafe fn silu_mul_generic<L: Lanes>(gate: &mut [f32], up: &[f32]) {
    assert!(gate.len() == up.len());
    // SAFETY: all offsets are below the length; by contract, the processor has the features.
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
            let y = silu(x).mul(up);
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

/// The smaller one. A comparison with NaN is false, so NaN stays.
#[inline(always)]
fn below(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// `x` within limits on both sides, or NaN.
#[inline(always)]
fn within(x: f32, limit: f32) -> f32 {
    let x = below(x, limit);
    if x < -limit { -limit } else { x }
}

/// `gate = min(gate / (1 + exp(-gate)), limit) * clamp(up, -limit, limit)`
#[inline(always)]
unsafe fn silu_limited_generic<L: Lanes>(gate: &mut [f32], up: &[f32], limit: f32) {
    assert!(gate.len() == up.len());
    let mut i = 0;
    while i < gate.len() {
        let n = (gate.len() - i).min(LANES);
        let mut g = [0.0; LANES];
        g[..n].copy_from_slice(&gate[i..i + n]);
        // SAFETY: an array of a whole vector; by contract, the processor has the features.
        unsafe { silu(L::load(g.as_ptr())).store(g.as_mut_ptr()) };
        for k in 0..n {
            gate[i + k] = below(g[k], limit) * within(up[i + k], limit);
        }
        i += LANES;
    }
}
simd_kernel! {
    /// Gated SiLU with limits of both factors, of one row (or part of one), in place.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn silu_limited(gate: &mut [f32], up: &[f32], limit: f32) = silu_limited_generic
}

/// `x *= 1 / (1 + exp(-gate))`
#[inline(always)]
unsafe fn mul_sigmoid_generic<L: Lanes>(x: &mut [f32], gate: &[f32]) {
    assert!(x.len() == gate.len());
    // SAFETY: all offsets are below the length; by contract, the processor has the features.
    unsafe {
        let mut i = 0;
        while i < x.len() {
            let n = (x.len() - i).min(LANES);
            let (x, gate) = (x.as_mut_ptr().add(i), gate.as_ptr().add(i));
            let e = L::splat(0.0).sub(L::load_first(gate, n)).exp();
            let y = L::load_first(x, n).div(L::splat(1.0).add(e));
            y.store_first(x, n);
            i += LANES;
        }
    }
}
simd_kernel! {
    /// A row (or part of one) times the sigmoid of another.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub fn mul_sigmoid(x: &mut [f32], gate: &[f32]) = mul_sigmoid_generic
}

/// `gate = min(gate, limit) / (1 + exp(-alpha * min(gate, limit))) * (clamp(up, -limit, limit) + 1)`
#[inline(always)]
unsafe fn swiglu_clamped_generic<L: Lanes>(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    assert!(gate.len() == up.len());
    let mut i = 0;
    while i < gate.len() {
        let n = (gate.len() - i).min(LANES);
        let (mut g, mut e, mut u) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for k in 0..n {
            g[k] = below(gate[i + k], limit);
            e[k] = -alpha * g[k];
            u[k] = within(up[i + k], limit) + 1.0;
        }
        // SAFETY: arrays of whole vectors; by contract, the processor has the features.
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

/// `x += scale * y`, where `y` may come with a bias: `x + scale * (y + bias)`.
pub fn add_scaled(x: &mut [f32], y: &[f32], bias: Option<&[f32]>, scale: f32) {
    if scale == 1.0 {
        return add(x, y, bias);
    }
    match bias {
        None => x.iter_mut().zip(y).for_each(|(x, y)| *x += scale * y),
        Some(bias) => {
            for ((x, y), b) in x.iter_mut().zip(y).zip(bias) {
                *x += scale * (y + b);
            }
        }
    }
}

/// `x *= scale`
pub fn scale_by(x: &mut [f32], scale: f32) {
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

/// `x += bias`, if there is one.
pub fn add_bias(x: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        add(x, bias, None);
    }
}

/// Cosines, then sines, of one position of a session with that context, each times the magnitude:
/// `2 * inv_freq.len()` elements. Angles are computed in double precision.
pub fn rope_table(rope: &Rope, context: usize, position: usize, out: &mut [f32]) {
    let frequencies = rope.frequencies(context);
    let (cos, sin) = out.split_at_mut(frequencies.len());
    for ((f, c), s) in frequencies.iter().zip(cos).zip(sin) {
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
#[path = "elementwise_tests.rs"]
mod tests;
