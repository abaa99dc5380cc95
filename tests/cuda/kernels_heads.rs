//! What few networks do to heads before and behind attention.

use crate::common::tiny::Random;
use crate::gpu::*;
use crate::kernels_norm::norm;
use emberlm::backend::cuda::launch::args;

pub fn tests(tests: &mut Tests) {
    tests.push(("ready_heads".into(), Box::new(ready_heads_are_right)));
    tests.push(("finish_heads".into(), Box::new(finished_heads_are_right)));
}

const ROWS: usize = 5;

fn ready_heads_are_right() {
    let mut random = Random::new(31, "ready heads");
    // Heads of queries and of keys, elements of keys and of values; whether there is a norm and which; limit and factor.
    let cases = [
        (
            96usize,
            8usize,
            128usize,
            128usize,
            Some(true),
            0.0f32,
            1.0f32,
        ),
        (3, 1, 16, 16, Some(false), 0.7, 1.0),
        (8, 4, 192, 128, None, 0.0, 0.7),
        (3, 3, 17, 5, Some(true), 0.5, 2.0),
        (2, 2, 512, 512, None, 0.3, 1.0),
    ];
    for (n_heads, n_kv, head_dim, value_dim, normed, limit, factor) in cases {
        let (queries, before) = (n_heads * head_dim, (n_heads + n_kv) * head_dim);
        let rows = before + n_kv * value_dim + 3;
        let padded = match value_dim < head_dim {
            true => rows.next_multiple_of(head_dim),
            false => before,
        };
        let stride = rows.max(padded + n_kv * head_dim) + 1;
        let x = random_floats(&mut random, ROWS * stride);
        let lens = [queries, before - queries];
        let weights = lens.map(|len| random_floats(&mut random, len));
        let biases = lens.map(|len| random_floats(&mut random, len));
        let (out, eps) = (upload(&x), 1e-5);
        let device = [&weights[0], &weights[1], &biases[0], &biases[1]].map(|v| upload(v));
        let norms = [0, 1].map(|i| match normed {
            Some(layer) => args::Norm {
                weight: device[i].address(),
                bias: device[2 + i].address(),
                eps,
                layer: u32::from(layer),
            },
            None => args::Norm::default(),
        });
        let ready = args::ReadyHeads {
            qkv: out.address(),
            q_norm: norms[0],
            k_norm: norms[1],
            stride: stride as u32,
            n_heads: n_heads as u32,
            n_kv_heads: n_kv as u32,
            head_dim: head_dim as u32,
            value_dim: value_dim as u32,
            values: before as u32,
            padded_values: padded as u32,
            limit,
            value_scale: factor,
            padding: 0,
        };
        with_stream(|stream| unsafe {
            kernels().ready_heads(stream, &ready, ROWS as u32).unwrap()
        });
        let got: Vec<f32> = download(&out, ROWS * stride);
        let limited = |v: &f32| match limit {
            0.0 => f64::from(*v),
            _ => f64::from(v.clamp(-limit, limit)),
        };
        let what = format!("{n_heads} heads of {head_dim} and {value_dim}");
        for (got, x) in got.chunks(stride).zip(x.chunks(stride)) {
            let mut want = Vec::new();
            for (i, head) in x[..before].chunks(head_dim).enumerate() {
                let head: Vec<f64> = head.iter().map(limited).collect();
                let (of, first) = match i < n_heads {
                    true => (0, i * head_dim),
                    false => (1, (i - n_heads) * head_dim),
                };
                let part = first..first + head_dim;
                want.extend(match normed {
                    Some(layer) => {
                        let bias = &biases[of][part.clone()];
                        norm(&head, &weights[of][part], Some(bias), layer, eps)
                    }
                    None => head,
                });
            }
            for value in x[before..].chunks(value_dim).take(n_kv) {
                let value = value.iter().map(|v| limited(v) * f64::from(factor));
                want.extend(value.chain(std::iter::repeat_n(0.0, head_dim - value_dim)));
            }
            let values = &got[padded..padded + n_kv * head_dim];
            let all = [&got[..before], values].concat();
            let error = relative_error(&all, &want);
            assert!(error < 1e-6, "{what}: error {error}");
            if padded > before {
                assert_eq!(got[before..padded], x[before..padded], "{what}: between");
            }
            assert_eq!(got[stride - 1], x[stride - 1], "{what}: behind");
        }
    }
}

fn finished_heads_are_right() {
    let mut random = Random::new(32, "finished heads");
    for (n_heads, head_dim, value_dim, gates, softplus) in [
        (64usize, 128usize, 128usize, 64usize, true),
        (64, 192, 128, 0, false),
        (3, 16, 10, 30, true),
        (5, 7, 7, 35, true),
        (5, 48, 33, 5, false),
    ] {
        let len = n_heads * value_dim;
        let (x_stride, at) = (n_heads * head_dim + 3, n_heads * head_dim);
        let stride = at + gates + 1;
        let x = random_floats(&mut random, ROWS * x_stride);
        let mut row = random_floats(&mut random, ROWS * stride);
        row.iter_mut().for_each(|v| *v *= 20.0);
        let (dx, out) = (upload(&x), upload(&row));
        let finish = args::FinishHeads {
            x: dx.address(),
            gate: match gates {
                0 => 0,
                _ => out.address() + at as u64 * 4,
            },
            out: out.address(),
            x_stride: x_stride as u32,
            gate_stride: stride as u32,
            out_stride: stride as u32,
            n_heads: n_heads as u32,
            head_dim: head_dim as u32,
            value_dim: value_dim as u32,
            per_head: u32::from(gates == n_heads),
            softplus: u32::from(softplus),
        };
        with_stream(|stream| unsafe {
            kernels()
                .finish_heads(stream, &finish, ROWS as u32)
                .unwrap()
        });
        let got: Vec<f32> = download(&out, ROWS * stride);
        let rows = got.chunks(stride).zip(row.chunks(stride));
        for ((got, before), x) in rows.zip(x.chunks(x_stride)) {
            let factor = |e: usize| {
                let gate = match (gates, gates == n_heads) {
                    (0, _) => return 1.0,
                    (_, true) => f64::from(before[at + e / value_dim]),
                    (_, false) => f64::from(before[at + e]),
                };
                match softplus {
                    true => gate.max(0.0) + (-gate.abs()).exp().ln_1p(),
                    false => 1.0 / (1.0 + (-gate).exp()),
                }
            };
            let element = |e: usize| x[e / value_dim * head_dim + e % value_dim];
            let want: Vec<f64> = (0..len)
                .map(|e| f64::from(element(e)) * factor(e))
                .collect();
            let error = relative_error(&got[..len], &want);
            assert!(
                error < 1e-6,
                "{n_heads} heads of {value_dim}: error {error}"
            );
            assert_eq!(got[len..], before[len..], "{n_heads} heads of {value_dim}");
        }
    }
}
