//! Random LoRA adapters, for decodes with them.

use crate::random::Random;
use emberlm::engine::{Adapter, Model};
use emberlm::format::writer::Writer;
use emberlm::format::{Access, ModelFile};
use emberlm::quant::TensorType;
use emberlm::{Error, Status};
use half::{bf16, f16};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// The parts of a layer that get a pair.
const PARTS: [&str; 8] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];

/// Those of experts and of what chooses them.
const OF_EXPERTS: [&str; 4] = [
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

/// What random adapters are like.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub rank: usize,
    pub ty: TensorType,
    /// Whether they have pairs for experts, too.
    pub experts: bool,
}

/// So many adapters for the model that was loaded from a path, with pairs for all matrices of attention and feed-forward parts.
pub fn random(
    model: &Arc<Model>,
    path: &Path,
    count: usize,
    Kind { rank, ty, experts }: Kind,
) -> emberlm::Result<Vec<Adapter>> {
    let file = ModelFile::open_with(path, Access::Read)?;
    let mut writer = Writer::new();
    writer.set("general.type", "adapter");
    writer.set("general.architecture", file.str("general.architecture")?);
    writer.set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", rank as f32);
    let mut names: Vec<&str> = file.tensors.keys().map(|name| &**name).collect();
    names.sort_unstable();
    for name in names {
        let part = name.strip_prefix("blk.").and_then(|r| r.split_once('.'));
        let part = part.and_then(|(_, part)| part.strip_suffix(".weight"));
        let wanted = |part: &str| PARTS.contains(&part) || experts && OF_EXPERTS.contains(&part);
        if part.is_some_and(wanted) {
            let (matrix, stack) = file.tensors[name].dims.split_at(2);
            let dims = |a: usize, b: usize| [&[a, b], stack].concat();
            writer.tensor(&format!("{name}.lora_a"), ty, &dims(matrix[0], rank))?;
            writer.tensor(&format!("{name}.lora_b"), ty, &dims(rank, matrix[1]))?;
        }
    }
    let failed = |e: std::io::Error| Error::new(Status::Io, format!("an adapter: {e}"));
    let mut adapters = Vec::new();
    for seed in 0..count {
        let mut random = Random::new(seed as u64);
        let out = tempfile::Builder::new().suffix(".gguf").tempfile();
        let out = out.map_err(failed)?;
        let mut buffered = BufWriter::new(out.as_file());
        writer.write(&mut buffered, |entry, out| {
            for _ in 0..entry.size / ty.block_bytes() as u64 {
                // As small as what training leaves.
                let x: f32 = 0.01 * random.signed();
                match ty {
                    TensorType::F16 => out.write_all(&f16::from_f32(x).to_le_bytes())?,
                    TensorType::BF16 => out.write_all(&bf16::from_f32(x).to_le_bytes())?,
                    _ => out.write_all(&x.to_le_bytes())?,
                }
            }
            Ok(())
        })?;
        buffered.flush().map_err(failed)?;
        drop(buffered);
        adapters.push(Adapter::load(model.clone(), out.path())?);
    }
    Ok(adapters)
}
