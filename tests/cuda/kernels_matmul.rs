//! Products of many rows on tensor cores.

use crate::common::tiny::Random;
use crate::gpu::*;
use crate::kernels_weights::test_matrix;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::matrix;
use emberlm::backend::cuda::launch::record::RecordType;
use emberlm::quant::TensorType;

pub fn tests(tests: &mut Tests) {
    tests.push(("matmul".into(), Box::new(matmul_is_right)));
    tests.push(("matmul::gated".into(), Box::new(gated_is_right)));
    tests.push(("unpack::spread".into(), Box::new(unpack_spreads)));
}

/// Rows of a gate and of what it lets through, 64 by turns.
fn by_turns<T: Copy>(gate: &[T], up: &[T], width: usize) -> Vec<T> {
    gate.chunks(64 * width)
        .zip(up.chunks(64 * width))
        .flat_map(|(g, u)| [g, u].concat())
        .collect()
}

fn gated_is_right() {
    if !kernels().has_gated() {
        return;
    }
    for (m, n, k) in [
        (1, 64, 32),
        (77, 192, 288),
        (300, 1024, 512),
        (513, 320, 1056),
    ] {
        let mut random = Random::new((m * n) as u64, "gated");
        let mut halves = |count: usize| -> Vec<u16> {
            let values = random_floats(&mut random, count);
            let bits = |v: &f32| half::f16::from_f32(*v).to_bits();
            values.iter().map(bits).collect()
        };
        let (x, gate, up) = (halves(m * k), halves(n * k), halves(n * k));
        let scale: Vec<f32> = (0..m).map(|i| [0.25, 0.125][i % 2]).collect();
        let value = |bits: u16| f64::from(half::f16::from_bits(bits).to_f32());
        let dot = |w: &[u16], i: usize, j: usize| -> f64 {
            let products = (0..k).map(|t| value(x[i * k + t]) * value(w[j * k + t]));
            products.sum::<f64>() * f64::from(scale[i])
        };
        let mut want = Vec::new();
        for i in 0..m {
            for j in 0..n {
                let g = dot(&gate, i, j);
                want.push(g / (1.0 + (-g).exp()) * dot(&up, i, j));
            }
        }
        let stride = n + 6;
        let (dx, ds) = (upload(&to_tiles(&x, k)), upload(&scale));
        let dw = upload(&to_tiles(&by_turns(&gate, &up, k), k));
        let out = poisoned(m * stride * 4);
        let largest = upload(&vec![0.0f32; m]);
        let product = args::GatedMatmul {
            product: args::Matmul {
                x: dx.address(),
                x_scale: ds.address(),
                w: dw.address(),
                bias: 0,
                residual: 0,
                out: out.address(),
                m: m as u32,
                n: 2 * n as u32,
                k: k as u32,
                out_stride: stride as u32,
            },
            largest: largest.address(),
        };
        with_stream(|stream| unsafe { kernels().matmul_gated(stream, &product).unwrap() });
        let got: Vec<f32> = download(&out, m * stride);
        let kept: Vec<f32> = got.chunks(stride).flat_map(|r| r[..n].to_vec()).collect();
        let error = relative_error(&kept, &want);
        assert!(error < 1e-5, "{m} x {n} x {k}: error {error}");
        let beyond = |r: &[f32]| r[n..].iter().all(|v| v.is_nan());
        assert!(got.chunks(stride).all(beyond), "written beyond the row");
        let most: Vec<f32> = kept
            .chunks(n)
            .map(|row| row.iter().fold(0.0f32, |a, v| a.max(v.abs())))
            .collect();
        assert_eq!(
            download::<f32>(&largest, m),
            most,
            "{m} x {n} x {k}: largest"
        );
    }
}

/// Rows that are spread over the places of a gate's or the other's lie where those do.
fn unpack_spreads() {
    for (row_len, rows) in [(256, 203), (1280, 64), (4096, 70)] {
        let (t, _) = test_matrix(&[(TensorType::Q4K, rows)], row_len, false, 7);
        let bytes = matrix::tiled_bytes(1024, t.matrix.groups) as usize;
        let run = |unpack: args::Unpack| {
            let out = poisoned(bytes);
            let unpack = args::Unpack {
                matrix: t.matrix.segments[0].address,
                out: out.address(),
                ty: RecordType::of(TensorType::Q4K).number(),
                groups: t.matrix.groups,
                matrix_rows: rows as u32,
                rows: rows as u32,
                ..unpack
            };
            with_stream(|stream| unsafe { kernels().unpack(stream, &unpack).unwrap() });
            download::<u16>(&out, bytes / 2)
        };
        let plain = from_tiles(&run(args::Unpack::default()), rows, row_len);
        let poison = download::<u16>(&poisoned(bytes), bytes / 2);
        for (spread, out_row) in [(1u32, 0), (2, 0), (1, 5), (2, 130)] {
            let out = run(args::Unpack {
                spread,
                out_row,
                ..Default::default()
            });
            let mut want = poison.clone();
            for r in 0..rows {
                let at = out_row as usize + r;
                let to = at + (at / 64 + spread as usize - 1) * 64;
                for i in 0..row_len {
                    want[tiled(to, i, row_len)] = plain[r * row_len + i];
                }
            }
            assert!(out == want, "spread {spread} from {out_row}, {row_len}");
        }
    }
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
