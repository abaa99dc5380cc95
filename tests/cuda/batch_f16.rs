//! Products of batches in f16: the kernels of each type against f64, and batches of a model that has them.

use crate::common::expected::Expected;
use crate::common::hamlet;
use crate::common::reference_llama;
use crate::common::tiny::Random;
use crate::common::work::{Driven, Step, step_batch};
use crate::gpu::*;
use crate::kernels_weights::{TestMatrix, product, row_lengths, test_matrix};
use crate::model::{best, gpu, runner, together};
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::batch_f16::columns;
use emberlm::backend::cuda::launch::matrix::{Inputs, groups};
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{KvType, LoadOptions};
use emberlm::engine::sampling::Sampling;
use emberlm::model::Network;
use emberlm::quant::TensorType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Of the norm of a row's results, with inputs and weights rounded to f16. int8 inputs have 4e-3.
const BOUND: f64 = 1e-3;
const BATCHES: [usize; 4] = [17, 32, 33, 64];

pub fn tests(tests: &mut Tests) {
    for ty in TensorType::ALL {
        if !ty.is_float() {
            tests.push((
                format!("batch_f16::{}", ty.name()),
                Box::new(move || of_type(ty)),
            ));
        }
    }
    tests.push(("batch_f16::fused".into(), Box::new(fused_types)));
    tests.push(("batch_f16::gates".into(), Box::new(gates_let_through)));
    tests.push(("batch_f16::span".into(), Box::new(rows_that_span_much)));
    tests.push(("batch_f16::sizes".into(), Box::new(scales_of_any_size)));
    tests.push(("batch_f16::sessions".into(), Box::new(sessions_together)));
    tests.push(("batch_f16::choices".into(), Box::new(choices_are_right)));
}

/// Whether the device has such kernels; says so if not.
fn has_kernels() -> bool {
    let has = kernels().has_wgmma();
    if !has {
        println!("this GPU has no products in f16 for batches");
    }
    has
}

/// Rows of input in f16, for as many columns as they take.
struct F16Input {
    inputs: Inputs,
    _memory: [Buffer; 3],
}

fn f16_input(x: &[f32], rows: usize, row_len: usize) -> F16Input {
    let n_groups = groups(row_len);
    let columns = columns(rows as u32).unwrap();
    let width = (n_groups * 32).next_multiple_of(args::F16_BATCH_K) as usize;
    let device = upload(&x[..rows * row_len]);
    let f16 = poisoned(columns as usize * width * 2);
    let scale = poisoned(columns as usize * 4);
    let make = args::QuantizeInput {
        x: device.address(),
        f16: f16.address(),
        f16_scale: scale.address(),
        columns,
        x_stride: row_len as u32,
        len: row_len as u32,
        groups: n_groups,
        source: args::Source::Copy as u32,
        ..Default::default()
    };
    with_stream(|stream| unsafe {
        kernels()
            .quantize_input(stream, &make, rows as u32)
            .unwrap()
    });
    F16Input {
        inputs: Inputs {
            f16: f16.address(),
            f16_scale: scale.address(),
            ..Inputs::default()
        },
        _memory: [device, f16, scale],
    }
}

/// The product of some rows, with what is added, or without.
fn run(t: &TestMatrix, x: &[f32], batch: usize, residual: Option<&[f32]>) -> Vec<f32> {
    let rows = t.matrix.rows as usize;
    let input = f16_input(x, batch, t.values.len() / rows);
    // A stride of its own; what is between the rows must stay untouched.
    let stride = rows + 3;
    let padded = residual.map(|r| {
        let mut padded = vec![f32::NAN; batch * stride];
        for (to, from) in padded.chunks_mut(stride).zip(r.chunks(rows)) {
            to[..rows].copy_from_slice(from);
        }
        upload(&padded)
    });
    let other = poisoned(batch * stride * 4);
    let out = padded.as_ref().unwrap_or(&other);
    let residual = padded.as_ref().map_or(0, |p| p.address());
    let to = (out.address(), stride as u32, residual);
    with_stream(|stream| unsafe {
        let rows = batch as u32;
        (kernels().product_f16(stream, &t.matrix, &input.inputs, to, rows, None)).unwrap()
    });
    let got: Vec<f32> = download(out, batch * stride);
    let mut result = Vec::new();
    for row in got.chunks(stride) {
        let behind = &row[rows..];
        assert!(behind.iter().all(|v| v.is_nan()), "written beyond the row");
        result.extend(&row[..rows]);
    }
    result
}

/// The largest error of all numbers of rows, and that a row has the same bits in each.
fn check(t: &TestMatrix, biases: &[f32], x: &[f32], what: &str) -> f64 {
    let rows = t.matrix.rows as usize;
    let row_len = t.values.len() / rows;
    let most = x.len() / row_len;
    let want = product(&t.values, x, row_len, biases);
    let first = run(t, x, BATCHES[0], None);
    let mut worst = 0f64;
    for batch in BATCHES.into_iter().filter(|n| *n <= most) {
        let got = run(t, x, batch, None);
        assert_eq!(
            got[..first.len()],
            first,
            "{what}: bits depend on {batch} rows"
        );
        // Of a few results, some are the differences of large sums.
        let at_once = if rows < 50 { got.len() } else { rows };
        for (b, row) in got.chunks(at_once).enumerate() {
            let error = relative_error(row, &want[b * at_once..][..at_once]);
            assert!(
                error < BOUND,
                "{what}, row {b} of {batch}: error {error:.2e}"
            );
            worst = worst.max(error);
        }
    }
    let residual = random_floats(&mut Random::new(5, "residual"), first.len());
    let got = run(t, x, BATCHES[0], Some(&residual));
    for ((g, f), r) in got.iter().zip(&first).zip(&residual) {
        assert_eq!(*g, f + r, "{what}: residual");
    }
    worst
}

fn inputs(rows: usize, row_len: usize) -> Vec<f32> {
    random_floats(&mut Random::new(4, "input"), rows * row_len)
}

fn of_type(ty: TensorType) {
    if !has_kernels() {
        return;
    }
    let mut worst = 0f64;
    for (i, row_len) in row_lengths(ty).into_iter().enumerate() {
        let rows = [1, 63, 300, 1029][i % 4];
        let (t, biases) = test_matrix(&[(ty, rows)], row_len, i % 2 == 1, 3);
        let what = format!("{} {rows} x {row_len}", ty.name());
        worst = worst.max(check(&t, &biases, &inputs(64, row_len), &what));
    }
    // Blocks that go on to further rows.
    let (t, biases) = test_matrix(&[(ty, 35_003)], 256, true, 3);
    worst = worst.max(check(&t, &biases, &inputs(17, 256), ty.name()));
    println!("{}: {worst:.2e}", ty.name());
}

fn fused_types() {
    use TensorType as T;
    if !has_kernels() {
        return;
    }
    for (parts, row_len) in [
        (&[(T::Q4K, 96), (T::Q6K, 33)][..], 1024),
        (&[(T::Q4K, 1000), (T::Q6K, 300), (T::Q4K, 77)], 4096),
        (&[(T::Q6K, 9000), (T::Q4K, 30_000)], 256),
        (&[(T::Q8_0, 64), (T::Q5_1, 5), (T::Q4_0, 31)], 96),
    ] {
        let (t, biases) = test_matrix(parts, row_len, true, 3);
        check(
            &t,
            &biases,
            &inputs(33, row_len),
            &format!("{parts:?} {row_len}"),
        );
    }
}

/// One product does the gate, and keeps the largest result of each row.
fn gates_let_through() {
    if !has_kernels() {
        return;
    }
    for (ty, n_ff, row_len, kind) in [
        (TensorType::Q4K, 8, 256, 0),
        (TensorType::Q4K, 1000, 1024, 0),
        (TensorType::Q6K, 9000, 512, 1),
        (TensorType::Q8_0, 328, 96, 0),
    ] {
        let (t, biases) = test_matrix(&[(ty, 2 * n_ff)], row_len, true, 3);
        for batch in [17, 40] {
            let x: Vec<f32> = inputs(batch, row_len).iter().map(|x| x * 0.02).collect();
            let input = f16_input(&x, batch, row_len);
            let largest = upload(&vec![0f32; 64]);
            let out = poisoned(batch * n_ff * 4);
            let gate = args::Activation {
                kind,
                ..Default::default()
            };
            let inputs = Inputs {
                largest: largest.address(),
                ..input.inputs
            };
            let to = (out.address(), n_ff as u32, 0);
            with_stream(|stream| unsafe {
                let rows = batch as u32;
                (kernels().product_f16(stream, &t.matrix, &inputs, to, rows, Some(gate))).unwrap()
            });
            let got: Vec<f32> = download(&out, batch * n_ff);
            let kept: Vec<f32> = download(&largest, 64);
            let both = product(&t.values, &x, row_len, &biases);
            let mut want = Vec::new();
            for row in both.chunks(2 * n_ff) {
                for (gate, up) in row[..n_ff].iter().zip(&row[n_ff..]) {
                    let u = 0.7978845608 * (gate + 0.044715 * gate.powi(3));
                    let let_through = match kind {
                        0 => gate / (1.0 + (-gate).exp()),
                        _ => 0.5 * gate * (1.0 + u.tanh()),
                    };
                    want.push(let_through * up);
                }
            }
            let error = relative_error(&got, &want);
            assert!(
                error < 2.0 * BOUND,
                "{} {n_ff}: error {error:.2e}",
                ty.name()
            );
            for (row, largest) in got.chunks(n_ff).zip(&kept) {
                let most = row.iter().fold(0f32, |most, v| most.max(v.abs()));
                assert_eq!(most, *largest);
            }
            assert!(kept[batch..].iter().all(|v| *v == 0.0));
        }
    }
}

/// Rows whose elements are up to 2^24 times as large as others, and rows of all sizes that f32 has.
fn rows_that_span_much() {
    if !has_kernels() {
        return;
    }
    let row_len = 1024;
    let (t, biases) = test_matrix(&[(TensorType::Q4K, 300)], row_len, false, 3);
    let mut x = inputs(64, row_len);
    for (i, x) in x.iter_mut().enumerate() {
        let (row, at) = (i / row_len, i % row_len);
        *x *= 2f32.powi(-((at % 25) as i32) + (row as i32 - 32) * 3);
    }
    println!("{:.2e}", check(&t, &biases, &x, "2^24"));
}

/// Weights that f16 has no numbers for.
fn scales_of_any_size() {
    if !has_kernels() {
        return;
    }
    for exponent in [-60, 0, 60] {
        let row_len = 512;
        let (mut t, _) = test_matrix(&[(TensorType::MXFP4, 130)], row_len, false, 3);
        let mut raw = Vec::new();
        let mut random = Random::new(3, "sizes");
        for _ in 0..130 * row_len / 32 {
            raw.push((122 + exponent) as u8 + (random.bits() % 8) as u8);
            raw.extend((0..16).map(|_| (random.bits() >> 32) as u8));
        }
        t.fill(TensorType::MXFP4, &raw);
        let worst = check(&t, &[], &inputs(33, row_len), &format!("2^{exponent}"));
        println!("2^{exponent}: {worst:.2e}");
    }
}

fn load(network: &Network) -> Arc<CudaWeights> {
    let options = LoadOptions {
        f16_batches: true,
        ..LoadOptions::default()
    };
    CudaWeights::load(0, network, &options, &mut |_| Ok(())).unwrap()
}

/// Up to sixteen sessions have what each has alone; more have the same, however many they are.
fn sessions_together() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let (plain, weights) = (gpu(&network), load(&network));
    let drawn = |weights, n| together(weights, n, 40).1;
    assert_eq!(drawn(&weights, 16), drawn(&plain, 16));
    let few = drawn(&weights, 17);
    for n in [31, 32, 33, 64] {
        assert_eq!(drawn(&weights, n)[..17], few, "{n} sessions");
    }
}

/// Batches choose what an evaluation in double precision does, where that is clear.
fn choices_are_right() {
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let expected = Expected::read("hamlet_q4_k_m_logits");
    let reference = reference_llama::logits(&network, &expected.tokens);
    let weights = load(&network);
    let go = Arc::new(AtomicBool::new(false));
    let n = 20;
    let mut runners: Vec<Driven> = (0..n).map(|_| runner(&weights, 512, KvType::F16)).collect();
    let mut clear = 0;
    for (token, logits) in expected.tokens.iter().zip(&reference) {
        let step = Step {
            token: Some(*token),
            sampling: Sampling::GREEDY,
        };
        let mut refs: Vec<_> = runners.iter_mut().collect();
        let mut tokens = vec![u32::MAX; n];
        step_batch(&mut refs, &vec![step; n], &vec![&go; n], &mut tokens).unwrap();
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if sorted[0] - sorted[1] > 0.1 {
            clear += 1;
            let logits: Vec<f32> = logits.iter().map(|v| *v as f32).collect();
            assert_eq!(tokens, vec![best(&logits) as u32; n]);
        }
    }
    assert!(clear > expected.tokens.len() / 2);
}
