//! Reference dequantization against the `gguf` Python package, bit for bit, on the random blocks
//! that `data/make_blocks.py` wrote.

use crate::common::quantize::quantize_row;
use crate::common::xz;
use emberlm::quant::{TensorType, dequantize_row};
use std::path::{Path, PathBuf};

fn data(name: &str, ending: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/blocks")
        .join(format!("{name}.{ending}"));
    let data = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    match ending.ends_with(".xz") {
        true => xz::unpacked(&data),
        false => data,
    }
}

#[test]
fn equals_the_gguf_package() {
    for ty in TensorType::ALL {
        let blocks = data(ty.name(), "bin");
        let expected: Vec<u32> = data(ty.name(), "f32.xz")
            .as_chunks()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect();
        let n_blocks = blocks.len() / ty.block_bytes();
        assert!(n_blocks >= 26, "{}: {n_blocks} blocks", ty.name());
        assert_eq!(expected.len(), n_blocks * ty.block_len(), "{}", ty.name());
        let mut row = vec![f32::NAN; expected.len()];
        dequantize_row(ty, &blocks, &mut row);
        for (i, (y, bits)) in row.iter().zip(&expected).enumerate() {
            assert_eq!(
                y.to_bits(),
                *bits,
                "{} block {} element {}: {y:e}, expected {:e}",
                ty.name(),
                i / ty.block_len(),
                i % ty.block_len(),
                f32::from_bits(*bits)
            );
        }
    }
}

#[test]
fn an_empty_row_is_fine() {
    for ty in TensorType::ALL {
        dequantize_row(ty, &[], &mut []);
    }
}

#[test]
#[should_panic(expected = "Q4_K: bytes of 256 elements")]
fn a_row_of_another_length_is_refused() {
    dequantize_row(TensorType::Q4K, &[0; 143], &mut [0.0; 256]);
}

/// Relative root-mean-square error that the tests' simple quantizers may make on random values.
fn tolerated(ty: TensorType) -> f64 {
    match ty {
        TensorType::F32 => 0.0,
        TensorType::F16 => 3e-4,
        TensorType::BF16 => 2.5e-3,
        TensorType::Q8_0 => 0.008,
        TensorType::Q6K => 0.025,
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => 0.045,
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => 0.095,
        TensorType::IQ4NL | TensorType::IQ4XS => 0.095,
        TensorType::MXFP4 => 0.13,
        TensorType::NVFP4 => 0.13,
        TensorType::Q3K => 0.2,
        TensorType::IQ3XXS | TensorType::IQ3S => 0.6,
        TensorType::IQ2XXS | TensorType::IQ2XS | TensorType::IQ2S => 0.7,
        TensorType::IQ1S | TensorType::IQ1M => 0.9,
        TensorType::TQ1_0 | TensorType::TQ2_0 => 0.8,
        TensorType::Q2K => 0.35,
    }
}

#[test]
fn undoes_the_quantizers_of_the_tests() {
    // A sum of four uniform numbers is near enough to a normal one.
    let mut state = 1_u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut x: Vec<f32> = (0..8192).map(|_| (0..4).map(|_| uniform()).sum()).collect();
    x[..256].fill(0.0);
    for ty in TensorType::ALL {
        let mut y = vec![f32::NAN; x.len()];
        dequantize_row(ty, &quantize_row(ty, &x), &mut y);
        assert!(y[..256].iter().all(|v| *v == 0.0), "{}: zeros", ty.name());
        let square = |v: f32| f64::from(v) * f64::from(v);
        let error: f64 = x.iter().zip(&y).map(|(x, y)| square(x - y)).sum();
        let relative = (error / x.iter().map(|x| square(*x)).sum::<f64>()).sqrt();
        assert!(
            relative <= tolerated(ty),
            "{}: relative error {relative}",
            ty.name()
        );
    }
}

/// A new type must not be forgotten anywhere: where types are told apart, the compiler asks for it, and
/// these files alone tell many apart.
#[test]
fn no_other_file_lists_the_types() {
    const LISTS: [&str; 11] = [
        "quant/mod.rs",
        "quant/codebook.rs",
        "quant/encode/mod.rs",
        "format/convert.rs",
        "backend/cuda/launch/record.rs",
        "backend/cpu/matmul/types.rs",
        "backend/cpu/matmul/avx2/unpack.rs",
        "backend/cpu/matmul/avx512/unpack.rs",
        "backend/cpu/matmul/neon/unpack.rs",
        "bin/ember-bench/random.rs",
        "bin/ember-bench/shapes.rs",
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![source.clone()];
    let mut n_files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let within = path.strip_prefix(&source).unwrap();
            let name = within.to_str().unwrap().replace('\\', "/");
            if LISTS.contains(&&name[..]) {
                continue;
            }
            n_files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            let quantized = TensorType::ALL.into_iter().filter(|ty| !ty.is_float());
            let named: Vec<String> = quantized
                .map(|ty| format!("{ty:?}"))
                .filter(|ty| text.contains(&format!("::{ty}")))
                .collect();
            assert!(named.len() < 5, "{name} lists {named:?}");
        }
    }
    assert!(n_files > 100);
}
