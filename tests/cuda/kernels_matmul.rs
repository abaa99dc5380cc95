//! Products of many rows on tensor cores.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::args;

pub fn tests(tests: &mut Tests) {
    tests.push(("matmul".into(), Box::new(matmul_is_right)));
}

fn matmul_is_right() {
    for (m, n, k) in [
        (1, 1, 32),
        (3, 65, 96),
        (64, 128, 64),
        (129, 200, 288),
        (200, 333, 1056),
        (300, 512, 4096),
        (513, 300, 160),
    ] {
        for full in [false, true] {
            let mut random = Random::new((m * n) as u64, "matmul");
            let x: Vec<u16> = random_floats(&mut random, m * k)
                .iter()
                .map(|v| half::f16::from_f32(*v).to_bits())
                .collect();
            let w: Vec<u16> = random_floats(&mut random, n * k)
                .iter()
                .map(|v| half::f16::from_f32(*v).to_bits())
                .collect();
            let scale: Vec<f32> = (0..m).map(|i| [0.25, 1.0, 8.0][i % 3]).collect();
            let bias = random_floats(&mut random, n);
            let stride = n + 5;
            let residual = random_floats(&mut random, m * stride);
            let value = |bits: u16| f64::from(half::f16::from_bits(bits).to_f32());
            let mut want = Vec::new();
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 = (0..k)
                        .map(|t| value(x[i * k + t]) * value(w[j * k + t]))
                        .sum();
                    let more = if full {
                        f64::from(bias[j]) + f64::from(residual[i * stride + j])
                    } else {
                        0.0
                    };
                    want.push(sum * f64::from(scale[i]) + more);
                }
            }
            let (dw, ds, db) = (upload(&to_tiles(&w, k)), upload(&scale), upload(&bias));
            let out = if full {
                upload(&residual)
            } else {
                poisoned(m * stride * 4)
            };
            let run = |m: usize, skip: usize| {
                let dx = upload(&to_tiles(&x[skip * k..], k));
                let args = args::Matmul {
                    x: dx.address(),
                    x_scale: ds.address() + (skip * 4) as u64,
                    w: dw.address(),
                    bias: if full { db.address() } else { 0 },
                    residual: if full {
                        out.address() + (skip * stride * 4) as u64
                    } else {
                        0
                    },
                    out: out.address() + (skip * stride * 4) as u64,
                    m: m as u32,
                    n: n as u32,
                    k: k as u32,
                    out_stride: stride as u32,
                };
                with_stream(|stream| unsafe { kernels().matmul(stream, &args).unwrap() });
            };
            run(m, 0);
            let got: Vec<f32> = download(&out, m * stride);
            let kept: Vec<f32> = got.chunks(stride).flat_map(|r| r[..n].to_vec()).collect();
            let error = relative_error(&kept, &want);
            // Tensor cores cut off, not round, when they add products of different size.
            assert!(error < 1e-5, "{m} x {n} x {k}: error {error}");
            if !full {
                assert!(
                    got.chunks(stride)
                        .all(|r| r[n..].iter().all(|v| v.is_nan())),
                    "written beyond the row"
                );
                // The last rows alone give the same bits.
                let skip = m / 2;
                out.write(0, &vec![f32::NAN; m * stride]).unwrap();
                run(m - skip, skip);
                let again: Vec<f32> = download(&out, m * stride);
                for i in skip..m {
                    assert_eq!(
                        again[i * stride..i * stride + n],
                        got[i * stride..i * stride + n],
                        "row {i}"
                    );
                }
            }
        }
    }
}
