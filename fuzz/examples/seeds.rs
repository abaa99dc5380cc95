//! Writes the files that fuzzing of the target `gguf` starts from: `cargo run --example seeds DIR`.

#[allow(dead_code)]
#[path = "../../tests/common/tiny.rs"]
mod tiny;

use emberlm::format::{Array, Value};
use emberlm::quant::TensorType;
use std::path::Path;
use tiny::Tiny;

fn main() -> std::io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        return Err(std::io::Error::other("usage: seeds DIR"));
    };
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;

    // Small, so that the header is a good part of the file.
    let base = Tiny {
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        hidden: 8,
        ff: 8,
        vocab: 8,
        ty: TensorType::F16,
        ..Tiny::default()
    };
    let plain = base.bytes();
    let mut version_2 = plain.clone();
    version_2[4] = 2;
    let biases = Tiny {
        biases: true,
        tied: true,
        ..base.clone()
    };
    let scaled = Tiny {
        rope_factors: Some(vec![1.0, 8.0]),
        rope_scaling: Some(("yarn", 4.0)),
        ..base.clone()
    };

    let mut writer = base.writer();
    let n_tensors = writer.tensors().len();
    writer
        .set("general.alignment", 64u32)
        .set("split.no", 0u32)
        .set("split.count", 1u32)
        .set("split.tensors.count", n_tensors)
        .set("llama.attention.head_count_kv", vec![1u64])
        .set("test.i64", -(1i64 << 40))
        .set("test.u64", 1u64 << 40)
        .set("test.f64", 0.5f64)
        .set("test.bool", true)
        .set("test.bools", Array::Bool(vec![true, false]))
        .set("test.f64s", Array::F64(vec![1.0, 2.0]))
        .set("test.nested", nested(3));
    let every_type = base.write(&writer);

    let mut quantized = emberlm::format::writer::Writer::new();
    for ty in TensorType::ALL {
        quantized
            .tensor(ty.name(), ty, &[256])
            .expect("a valid shape");
    }
    let mut types = Vec::new();
    quantized
        .write(&mut types, |tensor, out| {
            out.write_all(&vec![0; tensor.size as usize])
        })
        .expect("writing to memory");

    for (name, bytes) in [
        ("plain", plain),
        ("version-2", version_2),
        ("biases", biases.bytes()),
        ("scaled", scaled.bytes()),
        ("every-value", every_type),
        ("every-tensor-type", types),
    ] {
        std::fs::write(dir.join(format!("{name}.gguf")), bytes)?;
    }
    Ok(())
}

fn nested(depth: usize) -> Value {
    let mut array = Array::I64(vec![-1, 2]);
    for _ in 1..depth {
        array = Array::Array(vec![array.clone(), array]);
    }
    Value::Array(array)
}
