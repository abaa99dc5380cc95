//! Work on single rows against double precision, and the same bits on every instruction set.

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
fn layer_norm_matches_double_precision_on_every_length() {
    for n in [1, 15, 16, 17, 63, 64, 80, 96, 256, 1000] {
        let (mut x, w) = (numbers(n, 1), numbers(n, 2));
        // Far from 0, as in real residual streams.
        x.iter_mut().for_each(|x| *x += 20.0);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let square = |x: &f32| (f64::from(*x) - mean).powi(2);
        let variance = x.iter().map(square).sum::<f64>() / n as f64;
        let mut reference = vec![0.0; n];
        // SAFETY: the scalar set is everywhere.
        unsafe { layer_norm(Isa::Scalar, &x, &w, 1e-5, &mut reference) };
        for i in 0..n {
            let centred = f64::from(x[i]) - mean;
            let exact = centred / (variance + 1e-5).sqrt() * f64::from(w[i]);
            assert!((exact - f64::from(reference[i])).abs() <= 1e-5, "{n}");
        }
        for isa in Isa::available() {
            let mut out = vec![0.0; n];
            // SAFETY: this processor has it.
            unsafe { layer_norm(isa, &x, &w, 1e-5, &mut out) };
            assert_eq!(bits(&out), bits(&reference), "{isa:?} {n}");
        }
    }
}

/// erf by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn gelus_and_caps_match_double_precision_on_every_length() {
    type Kernel = unsafe fn(Isa, &mut [f32], Option<&[f32]>);
    type Case<'f> = (Kernel, &'f dyn Fn(f64) -> f64, bool);
    let by_tanh = |x: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x * (1.0 + u.tanh()) / 2.0
    };
    let by_erf = |x: f64| x * (1.0 + erf(x / 2f64.sqrt())) / 2.0;
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let cap = |x: f64| 1.5 * (x / 1.5).tanh();
    unsafe fn capped(isa: Isa, x: &mut [f32], _: Option<&[f32]>) {
        // SAFETY: by contract, the processor has `isa`.
        unsafe { soft_cap(isa, x, 1.5) }
    }
    unsafe fn ungated(isa: Isa, x: &mut [f32], _: Option<&[f32]>) {
        // SAFETY: by contract, the processor has `isa`.
        unsafe { silu_alone(isa, x) }
    }
    let kernels: [Case; 4] = [
        (gelu_tanh_mul, &by_tanh, true),
        (gelu_mul, &by_erf, true),
        (ungated, &silu, false),
        (capped, &cap, false),
    ];
    for (k, (kernel, exact, gated)) in kernels.into_iter().enumerate() {
        for n in [1, 15, 16, 33, 768] {
            let (x, y) = (numbers(n, 3), numbers(n, 4));
            for y in [Some(y.as_slice()), None] {
                let mut reference = x.clone();
                // SAFETY: the scalar set is everywhere.
                unsafe { kernel(Isa::Scalar, &mut reference, y) };
                for isa in Isa::available() {
                    let mut out = x.clone();
                    // SAFETY: this processor has it.
                    unsafe { kernel(isa, &mut out, y) };
                    assert_eq!(bits(&out), bits(&reference), "{k} {isa:?}");
                }
                for i in 0..n {
                    let factor = y.filter(|_| gated).map_or(1.0, |y| f64::from(y[i]));
                    let exact = exact(f64::from(x[i])) * factor;
                    let error = (exact - f64::from(reference[i])).abs();
                    assert!(error <= 2e-6, "{k}: {} gives {}", x[i], reference[i]);
                }
            }
        }
        let mut extreme = [1e30, -1e30, f32::NAN, 0.0];
        // SAFETY: this processor has it.
        unsafe { kernel(Isa::detect(), &mut extreme, None) };
        assert!(
            extreme[0] > 1.0 && extreme[1].abs() < 2.0,
            "{k}: {extreme:?}"
        );
        assert!(extreme[2].is_nan() && extreme[3] == 0.0, "{k}: {extreme:?}");
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
        extreme[0] == 1e30 && extreme[1].abs() < 1e-7 && extreme[2].is_nan() && extreme[3] == 0.0
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
        rope_table(&rope, 2000, 1000, &mut table);
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
