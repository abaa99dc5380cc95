//! Speed of the CPU's matrix products on one thread.
//!
//! `cargo bench --bench matmul [-- TYPE|ISA...]` prints, per instruction set and tensor type: GB/s of
//! weights streamed by one token through a matrix larger than the caches and through one that stays
//! in them, and 10^9 multiplications with additions per second
//! with 2, 8, 24 and 512 tokens. Names given select,
//! for example `-- Q4_K Avx2`.

use emberlm::backend::cpu::matmul::{Activations, Encodings, Isa, Matrix, Scratch, View};
use emberlm::quant::TensorType;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The shortest time of a run of `f`, over at least half a second of runs.
fn best(mut f: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut best = Duration::MAX;
    while start.elapsed() < Duration::from_millis(500) {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed());
    }
    best
}

/// Blocks with bytes that are neither infinite nor subnormal as scales.
fn weights(ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let len = rows * ty.row_bytes(cols).unwrap_or(0);
    (0..len as u64)
        .map(|i| 0x20 | (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u8)
        .collect()
}

/// Seconds of a product of a matrix with `tokens` tokens.
fn product(ty: TensorType, isa: Isa, rows: usize, cols: usize, tokens: usize) -> f64 {
    let bytes = weights(ty, rows, cols);
    let enc = Encodings::for_type(ty);
    let (Ok(x), Ok(mut scratch)) = (Activations::new(tokens, cols, enc), Scratch::new(cols)) else {
        return f64::NAN;
    };
    let row: Vec<f32> = (0..cols).map(|k| (k as f32).sin()).collect();
    for t in 0..tokens {
        // SAFETY: one thread.
        unsafe { x.set_row(isa, t, &row, enc) }
    }
    let Some(view) = View::new(ty, rows, cols, &bytes, isa) else {
        return f64::NAN;
    };
    let mut out = vec![0f32; rows * tokens];
    let time = best(|| {
        for r in (0..rows).step_by(Matrix::ROW_QUANTUM) {
            let range = r..(r + Matrix::ROW_QUANTUM).min(rows);
            // SAFETY: `out` holds all rows of all tokens; one thread.
            unsafe { view.mul(&x, 0..tokens, range, out.as_mut_ptr(), rows, &mut scratch) }
        }
        black_box(&out);
    });
    time.as_secs_f64()
}

fn main() {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let isas = Isa::available();
    let isa_names: Vec<String> = isas.iter().map(|i| format!("{i:?}")).collect();
    let any_isa = isa_names.iter().any(|n| names.contains(n));
    let any_type = TensorType::ALL
        .iter()
        .any(|t| names.iter().any(|n| n == t.name()));
    println!(
        "{:<12}{:<8}{:>16}{:>16}{:>10}{:>10}{:>10}{:>10}",
        "", "", "memory GB/s", "cache GB/s", "2 tok", "8 tok", "24 tok", "512 tok"
    );
    for (isa, isa_name) in isas.into_iter().zip(&isa_names) {
        if any_isa && !names.contains(isa_name) {
            continue;
        }
        for ty in TensorType::ALL {
            if any_type && !names.iter().any(|n| n == ty.name()) {
                continue;
            }
            let (rows, cols) = (16384, 8192);
            let stream = product(ty, isa, rows, cols, 1);
            let bytes = (rows * ty.row_bytes(cols).unwrap_or(0)) as f64;
            let (cached_rows, cached_cols) = (512, 768);
            let cached = product(ty, isa, cached_rows, cached_cols, 1);
            let cached_bytes = (cached_rows * ty.row_bytes(cached_cols).unwrap_or(0)) as f64;
            let gmacs = |tokens: usize| {
                let (rows, cols) = (256, 2048);
                let time = product(ty, isa, rows, cols, tokens);
                (rows * cols * tokens) as f64 / time / 1e9
            };
            println!(
                "{isa_name:<12}{:<8}{:>16.2}{:>16.2}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
                ty.name(),
                bytes / stream / 1e9,
                cached_bytes / cached / 1e9,
                gmacs(2),
                gmacs(8),
                gmacs(24),
                gmacs(512),
            );
        }
    }
}
