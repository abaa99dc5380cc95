//! The quantizers: how far what they write is from what they read.

use emberlm::quant::{TensorType, dequantize_row, encoder};

/// Numbers around 0, normally distributed, some groups larger than others, as weights are.
fn weights(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    let mut x = Vec::with_capacity(len);
    for group in 0..len / 32 {
        let size = 0.02 * (1.0 + (group % 5) as f32 / 4.0);
        for _ in 0..32 {
            let radius = (-2.0 * uniform().ln()).sqrt();
            x.push(size * radius * (std::f32::consts::TAU * uniform()).cos());
        }
    }
    x
}

/// Root mean square error relative to the root mean square of `x`.
fn error(ty: TensorType, x: &[f32], blocks: &[u8]) -> f64 {
    let mut back = vec![0.0; x.len()];
    dequantize_row(ty, blocks, &mut back);
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = x.iter().zip(&back).map(|(x, y)| square(x - y)).sum();
    let all: f64 = x.iter().map(|x| square(*x)).sum();
    (off / all).sqrt()
}

fn encoded(ty: TensorType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(x.len()).unwrap()];
    encoder(ty).unwrap()(x, &mut out);
    out
}

#[test]
fn errors_are_as_small_as_the_types_allow() {
    // The errors of llama.cpp's quantizers for these very numbers.
    let reference = [
        (TensorType::Q4_0, 0.086304),
        (TensorType::Q4_1, 0.078496),
        (TensorType::Q5_0, 0.042632),
        (TensorType::Q5_1, 0.037849),
        (TensorType::Q8_0, 0.005345),
        (TensorType::Q4K, 0.071996),
        (TensorType::Q5K, 0.036582),
        (TensorType::Q6K, 0.017764),
    ];
    let x = weights(256 * 64, 1);
    for (ty, reference) in reference {
        let found = error(ty, &x, &encoded(ty, &x));
        println!("{}: {found:.6}, reference {reference}", ty.name());
        assert!(found < 1.005 * reference, "{}: {found}", ty.name());
    }
    assert_eq!(
        error(TensorType::F32, &x, &encoded(TensorType::F32, &x)),
        0.0
    );
    for (ty, unit) in [
        (TensorType::F16, 2f64.powi(-11)),
        (TensorType::BF16, 2f64.powi(-8)),
    ] {
        assert!(error(ty, &x, &encoded(ty, &x)) < unit);
    }
}

#[test]
fn types_without_a_quantizer_are_told_apart() {
    let with = TensorType::ALL
        .into_iter()
        .filter(|ty| encoder(*ty).is_some())
        .map(TensorType::name);
    let names = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K";
    assert_eq!(with.collect::<Vec<_>>().join(" "), names);
}

#[test]
fn odd_groups_come_back() {
    let mut cases = vec![
        vec![0.0; 256],
        vec![1.5; 256],
        vec![-1.5; 256],
        vec![1e-30; 256],
        vec![60_000.0; 256],
    ];
    // One large element among small ones, at either end and of either sign.
    for (at, value) in [(0, 3.0), (255, -3.0)] {
        let mut x = vec![0.001; 256];
        x[at] = value;
        cases.push(x);
    }
    // Groups of nothing beside groups of something.
    cases.push(
        (0..256)
            .map(|i| if i / 32 % 2 == 0 { 0.0 } else { 0.1 })
            .collect(),
    );
    for x in cases {
        for ty in TensorType::ALL
            .into_iter()
            .filter(|ty| encoder(*ty).is_some())
        {
            let mut back = vec![f32::NAN; 256];
            dequantize_row(ty, &encoded(ty, &x), &mut back);
            let most = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (x, y) in x.iter().zip(&back) {
                let off = (x - y).abs();
                assert!(off <= 0.07 * most + 1e-7, "{}: {x} became {y}", ty.name());
            }
        }
    }
}

#[test]
fn blocks_do_not_depend_on_their_neighbours() {
    let x = weights(1024, 7);
    for ty in TensorType::ALL
        .into_iter()
        .filter(|ty| encoder(*ty).is_some())
    {
        let parts: Vec<u8> = x.chunks(256).flat_map(|x| encoded(ty, x)).collect();
        assert_eq!(encoded(ty, &x), parts, "{}", ty.name());
    }
}
