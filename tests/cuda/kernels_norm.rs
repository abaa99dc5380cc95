//! Norms, activations, and what some networks do with a product's output.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::feed_forward;
use emberlm::backend::cuda::launch::matrix::{self, groups};
use emberlm::model::Activation;

pub fn tests(tests: &mut Tests) {
    tests.push(("quantize_input".into(), Box::new(quantize_input_is_right)));
    tests.push(("residual_add".into(), Box::new(residual_add_is_right)));
    tests.push(("norm_parts".into(), Box::new(norm_parts_are_right)));
    tests.push(("finish_logits".into(), Box::new(finish_logits_is_right)));
}

/// The norm of a row as network.rs defines it.
pub fn norm(x: &[f64], weight: &[f32], bias: Option<&[f32]>, layer: bool, eps: f32) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if layer {
        x.iter().sum::<f64>() / n
    } else {
        0.0
    };
    let square = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (square + f64::from(eps)).sqrt();
    (0..x.len())
        .map(|i| {
            (x[i] - mean) * scale * f64::from(weight[i]) + bias.map_or(0.0, |b| f64::from(b[i]))
        })
        .collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

/// An activation as network.rs defines it; `up` is the value that a gate lets through.
fn activated(activation: Activation, x: f64, up: Option<f64>) -> f64 {
    let swish = |x: f64, steepness: f64| x / (1.0 + (-steepness * x).exp());
    let y = match activation {
        Activation::Silu => swish(x, 1.0),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x * (1.0 + u.tanh()) / 2.0
        }
        // Gauss' integral by Simpson's rule.
        Activation::Gelu => {
            let n = 2000;
            let step = x / f64::from(n);
            let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let sum: f64 = (0..=n)
                .map(|i| {
                    let weight = match i {
                        _ if i == 0 || i == n => 1.0,
                        _ if i % 2 == 1 => 4.0,
                        _ => 2.0,
                    };
                    weight * density(f64::from(i) * step)
                })
                .sum();
            x * (0.5 + sum * step / 3.0)
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Xielu { alpha_p, alpha_n } => {
            let (alpha_p, alpha_n) = (f64::from(alpha_p), f64::from(alpha_n));
            let above = match x > 0.0 {
                true => alpha_p * x * x,
                false => alpha_n * (x.exp_m1() - x),
            };
            above + x / 2.0
        }
        // A GPU lacks it.
        Activation::LimitedSilu { .. } => unreachable!("no kernel has it"),
        Activation::ClampedSwiglu { alpha, limit } => {
            let limit = f64::from(limit);
            let up = up.map(|u| u.clamp(-limit, limit) + 1.0);
            return swish(x.min(limit), f64::from(alpha)) * up.unwrap_or(1.0);
        }
    };
    y * up.unwrap_or(1.0)
}

/// What a row of input is made by.
#[derive(Clone, Copy, Debug)]
enum Way {
    Copy,
    Norm {
        layer: bool,
        bias: bool,
    },
    Activation {
        activation: Activation,
        gated: bool,
    },
    /// Times the sigmoid of a gate, which is behind the values here.
    Sigmoid,
    /// The norm of gated values.
    NormOfGated,
}

fn quantize_input_is_right() {
    let mut random = Random::new(9, "quantize_input");
    let mut ways = vec![Way::Copy, Way::Sigmoid, Way::NormOfGated];
    for (layer, bias) in [(false, false), (false, true), (true, false), (true, true)] {
        ways.push(Way::Norm { layer, bias });
    }
    let clamped = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 0.7,
    };
    for activation in [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
        Activation::Xielu {
            alpha_p: 0.8,
            alpha_n: 1.3,
        },
        clamped,
    ] {
        for gated in [false, true] {
            ways.push(Way::Activation { activation, gated });
        }
    }
    for len in [1usize, 31, 32, 100, 896, 4096, 14336] {
        for way in ways.iter().copied() {
            let rows = 3;
            let stride = 2 * len + 1;
            let x: Vec<f32> = random_floats(&mut random, rows * stride)
                .iter()
                .map(|x| 3.0 * x + 0.5)
                .collect();
            let weight = random_floats(&mut random, len);
            let bias = random_floats(&mut random, len);
            let eps = 1e-5f32;
            let want: Vec<f64> = x
                .chunks(stride)
                .flat_map(|x| {
                    let x = wide(x);
                    match way {
                        Way::Copy => x[..len].to_vec(),
                        Way::Sigmoid => (0..len)
                            .map(|i| x[i] / (1.0 + (-x[len + i]).exp()))
                            .collect(),
                        Way::Norm { layer, bias: on } => {
                            norm(&x[..len], &weight, on.then_some(&bias[..]), layer, eps)
                        }
                        Way::Activation { activation, gated } => (0..len)
                            .map(|i| activated(activation, x[i], gated.then(|| x[len + i])))
                            .collect(),
                        Way::NormOfGated => {
                            let of = |i| activated(Activation::ReluSquared, x[i], Some(x[len + i]));
                            let inner: Vec<f64> = (0..len).map(of).collect();
                            norm(&inner, &weight, None, false, eps)
                        }
                    }
                })
                .collect();
            let n_groups = groups(len) as usize;
            let width = n_groups * 32;
            let (dx, dw, db) = (upload(&x), upload(&weight), upload(&bias));
            let q8 = poisoned(rows * width);
            let scale = poisoned(rows * n_groups * 4);
            let f32 = poisoned(rows * width * 4);
            let tile_bytes = matrix::tiled_bytes(rows as u32, n_groups as u32) as usize;
            let f16 = poisoned(tile_bytes);
            let f16_scale = poisoned(rows * 4);
            let quantize_input = args::QuantizeInput {
                x: dx.address(),
                norm: match way {
                    Way::Norm { layer, bias } => args::Norm {
                        weight: dw.address(),
                        bias: if bias { db.address() } else { 0 },
                        eps,
                        layer: u32::from(layer),
                    },
                    Way::NormOfGated => args::Norm {
                        weight: dw.address(),
                        eps,
                        ..Default::default()
                    },
                    _ => args::Norm::default(),
                },
                q8: q8.address(),
                q8_scale: scale.address(),
                f32: f32.address(),
                f16: f16.address(),
                f16_scale: f16_scale.address(),
                largest: 0,
                clear: 0,
                gate: dx.address() + len as u64 * 4,
                gate_stride: stride as u32,
                columns: 0,
                x_stride: stride as u32,
                len: len as u32,
                groups: n_groups as u32,
                source: match way {
                    Way::Copy => args::Source::Copy,
                    Way::Sigmoid => args::Source::Sigmoid,
                    Way::Norm { .. } => args::Source::Norm,
                    Way::NormOfGated | Way::Activation { gated: true, .. } => args::Source::Gated,
                    Way::Activation { .. } => args::Source::Activated,
                } as u32,
                inverse_len: 1.0 / len as f32,
                activation: match way {
                    Way::Activation { activation, .. } => {
                        feed_forward::activation(activation).unwrap()
                    }
                    Way::NormOfGated => feed_forward::activation(Activation::ReluSquared).unwrap(),
                    _ => args::Activation::default(),
                },
            };
            with_stream(|stream| unsafe {
                kernels()
                    .quantize_input(stream, &quantize_input, rows as u32)
                    .unwrap()
            });
            let q: Vec<i8> = download(&q8, rows * width);
            let d: Vec<f32> = download(&scale, rows * n_groups);
            let plain: Vec<f32> = download(&f32, rows * width);
            let halves = from_tiles(&download::<u16>(&f16, tile_bytes / 2), rows, width);
            let half_scale: Vec<f32> = download(&f16_scale, rows);
            let take = |form: &dyn Fn(usize) -> f32| -> Vec<f32> {
                (0..rows * width)
                    .filter(|i| i % width < len)
                    .map(form)
                    .collect()
            };
            let what = format!("{way:?} {len}");
            assert!(
                relative_error(&take(&|i| plain[i]), &want) < 1e-6,
                "{what}: f32"
            );
            assert!(
                relative_error(&take(&|i| f32::from(q[i]) * d[i / 32]), &want) < 0.01,
                "{what}: int8"
            );
            let half = |i: usize| half::f16::from_bits(halves[i]).to_f32() * half_scale[i / width];
            // Half a unit in the last place, for a single value.
            assert!(relative_error(&take(&half), &want) < 5e-4, "{what}: f16");
            for i in (0..rows * width).filter(|i| i % width >= len) {
                assert_eq!(
                    (plain[i], q[i], halves[i]),
                    (0.0, 0, 0),
                    "{what}: padding at {i}"
                );
            }
            // The same without the whole-row f16, which is cut into more blocks.
            let again = poisoned(rows * width);
            let quantize_input = args::QuantizeInput {
                q8: again.address(),
                f16: 0,
                ..quantize_input
            };
            with_stream(|stream| unsafe {
                kernels()
                    .quantize_input(stream, &quantize_input, rows as u32)
                    .unwrap()
            });
            // Its sums are in another order, which may turn a rounding.
            let again = download::<i8>(&again, rows * width);
            let apart = again.iter().zip(&q).filter(|(a, b)| a != b);
            let most = apart.clone().map(|(a, b)| a.abs_diff(*b)).max();
            assert!(most.unwrap_or(0) <= 1, "{what}: {most:?}");
            assert!(apart.count() <= 1 + again.len() / 10_000, "{what}");
            if len.is_multiple_of(4) {
                f16_alone(
                    &args::QuantizeInput {
                        f16: f16.address(),
                        ..quantize_input
                    },
                    rows,
                    &x,
                    &want,
                    &what,
                );
            }
        }
    }
}

/// Rows in f16 and f32 that the block reads once, as a prefill takes them.
fn f16_alone(
    quantize_input: &args::QuantizeInput,
    rows: usize,
    x: &[f32],
    want: &[f64],
    what: &str,
) {
    let (len, width) = (
        quantize_input.len as usize,
        quantize_input.groups as usize * 32,
    );
    let (from, stride) = (quantize_input.x_stride as usize, 2 * len + 4);
    let mut spread = vec![f32::NAN; rows * stride];
    for row in 0..rows {
        spread[row * stride..][..2 * len].copy_from_slice(&x[row * from..][..2 * len]);
    }
    let x = upload(&spread);
    let tile_bytes = matrix::tiled_bytes(rows as u32, quantize_input.groups) as usize;
    let (f16, f32) = (poisoned(tile_bytes), poisoned(rows * width * 4));
    let (scale, clear) = (poisoned(rows * 4), poisoned(rows * 4));
    let quantize_input = args::QuantizeInput {
        x: x.address(),
        gate: x.address() + len as u64 * 4,
        gate_stride: stride as u32,
        x_stride: stride as u32,
        q8: 0,
        q8_scale: 0,
        f32: f32.address(),
        f16: f16.address(),
        f16_scale: scale.address(),
        clear: clear.address(),
        ..*quantize_input
    };
    let run = |quantize_input: &args::QuantizeInput| {
        with_stream(|stream| unsafe {
            kernels()
                .quantize_input(stream, quantize_input, rows as u32)
                .unwrap()
        });
        (
            from_tiles(&download::<u16>(&f16, tile_bytes / 2), rows, width),
            download::<f32>(&scale, rows),
        )
    };
    let (halves, scales) = run(&quantize_input);
    let plain: Vec<f32> = download(&f32, rows * width);
    let inside = |form: &dyn Fn(usize) -> f32| -> Vec<f32> {
        let all = 0..rows * width;
        all.filter(|i| i % width < len).map(form).collect()
    };
    let half = |i: usize| half::f16::from_bits(halves[i]).to_f32() * scales[i / width];
    assert!(
        relative_error(&inside(&|i| plain[i]), want) < 1e-6,
        "{what}: f32 alone"
    );
    assert!(
        relative_error(&inside(&half), want) < 4e-4,
        "{what}: f16 alone"
    );
    for i in (0..rows * width).filter(|i| i % width >= len) {
        assert_eq!((plain[i], halves[i]), (0.0, 0), "{what}: padding at {i}");
    }
    assert_eq!(
        download::<f32>(&clear, rows),
        vec![0.0; rows],
        "{what}: cleared"
    );
    // The same from the largest values, which are then not looked for.
    let largest: Vec<f32> = plain
        .chunks(width)
        .map(|row| row.iter().fold(0.0f32, |a, v| a.max(v.abs())))
        .collect();
    let largest = upload(&largest);
    let known = args::QuantizeInput {
        largest: largest.address(),
        clear: 0,
        ..quantize_input
    };
    assert_eq!(run(&known), (halves, scales), "{what}: largest known");
}

fn residual_add_is_right() {
    let mut random = Random::new(10, "branch");
    for (len, beyond) in [
        (1usize, 2),
        (33, 2),
        (896, 2),
        (5000, 2),
        (36, 4),
        (2560, 4),
        (5000, 4),
    ] {
        for (with_norm, layer) in [(false, false), (true, false), (true, true)] {
            let (rows, x_stride, stride) = (3, len + 2 * beyond, len + beyond);
            let x = random_floats(&mut random, rows * x_stride);
            let base = random_floats(&mut random, rows * stride);
            let weight = random_floats(&mut random, len);
            let (eps, scale, out_scale) = (1e-6, 0.22, 0.7);
            let (dx, dw, out) = (upload(&x), upload(&weight), upload(&base));
            let add = args::ResidualAdd {
                x: dx.address(),
                base: out.address(),
                out: out.address(),
                norm: args::Norm {
                    weight: if with_norm { dw.address() } else { 0 },
                    bias: 0,
                    eps,
                    layer: u32::from(layer),
                },
                scale,
                len: len as u32,
                x_stride: x_stride as u32,
                stride: stride as u32,
                out_scale,
                padding: 0,
            };
            with_stream(|stream| unsafe {
                kernels().residual_add(stream, &add, rows as u32).unwrap()
            });
            let got: Vec<f32> = download(&out, rows * stride);
            for row in 0..rows {
                let x = wide(&x[row * x_stride..][..len]);
                let y = match with_norm {
                    true => norm(&x, &weight, None, layer, eps),
                    false => x,
                };
                let base = &base[row * stride..][..stride];
                let want: Vec<f64> = y
                    .iter()
                    .zip(base)
                    .map(|(y, b)| f64::from(out_scale) * (f64::from(*b) + f64::from(scale) * y))
                    .collect();
                let got = &got[row * stride..][..stride];
                let error = relative_error(&got[..len], &want);
                assert!(error < 1e-6, "{len}, norm {with_norm}: error {error}");
                assert_eq!(got[len..], base[len..], "{len}: beyond the row");
            }
        }
    }
}

fn norm_parts_are_right() {
    let mut random = Random::new(11, "parts");
    for lens in [[64usize, 32], [4096, 1024], [36, 0]] {
        let (rows, eps) = (4, 1e-5);
        let stride = lens[0] + 2 * lens[1] + 3;
        let x = random_floats(&mut random, rows * stride);
        let weights = lens.map(|len| random_floats(&mut random, len.max(1)));
        let device_weights = [upload(&weights[0]), upload(&weights[1])];
        let out = upload(&x);
        let parts = args::NormParts {
            x: out.address(),
            norms: [0, 1].map(|i| args::Norm {
                weight: device_weights[i].address(),
                bias: 0,
                eps,
                layer: 0,
            }),
            first: [0, lens[0] as u32],
            len: lens.map(|len| len as u32),
            stride: stride as u32,
            padding: 0,
        };
        with_stream(|stream| unsafe { kernels().norm_parts(stream, &parts, rows as u32).unwrap() });
        let got: Vec<f32> = download(&out, rows * stride);
        for (got, x) in got.chunks(stride).zip(x.chunks(stride)) {
            let (q, rest) = x.split_at(lens[0]);
            let (k, rest) = rest.split_at(lens[1]);
            let mut want = norm(&wide(q), &weights[0], None, false, eps);
            if !k.is_empty() {
                want.extend(norm(&wide(k), &weights[1], None, false, eps));
            }
            let error = relative_error(&got[..want.len()], &want);
            assert!(error < 1e-6, "{lens:?}: error {error}");
            assert_eq!(&got[want.len()..], rest, "{lens:?}: values");
        }
    }
}

fn finish_logits_is_right() {
    let mut random = Random::new(12, "logits");
    let (rows, n_vocab) = (3, 1001);
    let x: Vec<f32> = random_floats(&mut random, rows * n_vocab)
        .iter()
        .map(|x| 90.0 * x)
        .collect();
    for (scale, cap) in [(0.0625, 0.0), (1.0, 30.0), (2.0, 5.0)] {
        let out = upload(&x);
        let logits = args::Logits {
            logits: out.address(),
            n_vocab: n_vocab as u32,
            scale,
            cap,
            padding: 0,
        };
        with_stream(|stream| unsafe {
            kernels()
                .finish_logits(stream, &logits, rows as u32)
                .unwrap()
        });
        let got: Vec<f32> = download(&out, rows * n_vocab);
        let want: Vec<f64> = wide(&x)
            .iter()
            .map(|x| match f64::from(cap) {
                0.0 => x * f64::from(scale),
                cap => cap * (x * f64::from(scale) / cap).tanh(),
            })
            .collect();
        let error = relative_error(&got, &want);
        assert!(error < 1e-6, "scale {scale}, cap {cap}: error {error}");
    }
}
