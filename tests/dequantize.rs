//! Reference dequantization against the `gguf` Python package, bit for bit, on the random blocks
//! that `data/make_blocks.py` wrote.

use emberlm::quant::{TensorType, dequantize_row};
use std::path::{Path, PathBuf};

fn data(name: &str, ending: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/blocks")
        .join(format!("{name}.{ending}"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn equals_the_gguf_package() {
    for ty in TensorType::ALL {
        let blocks = data(ty.name(), "bin");
        let expected: Vec<u32> = data(ty.name(), "f32")
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
