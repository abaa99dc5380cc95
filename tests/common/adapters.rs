//! Sessions with LoRA adapters, and random adapters of whatever a model's file has.

use super::TempDir;
use super::tiny::Random;
use emberlm::engine::{Adapter, Model, Session, WantedAdapter};
use emberlm::format::ModelFile;
use emberlm::format::writer::Writer;
use emberlm::quant::TensorType;
use half::{bf16, f16};
use std::path::Path;
use std::sync::Arc;

pub fn scaled(adapter: &Adapter, scale: f32) -> WantedAdapter<'_> {
    WantedAdapter { adapter, scale }
}

/// An empty session with these adapters and these tokens.
pub fn adapted(mut session: Session, adapters: &[WantedAdapter<'_>], tokens: &[u32]) -> Session {
    session.set_adapters(adapters, false).unwrap();
    session.prefill(tokens).unwrap();
    session
}

pub fn logits(session: &mut Session) -> Vec<f32> {
    let mut out = vec![0.0; session.model().details().n_vocab];
    session.logits(&mut out).unwrap();
    out
}

pub fn decode(session: &mut Session, count: usize) -> Vec<u32> {
    (0..count).map(|_| session.decode().unwrap()).collect()
}

/// The tokens of each session in so many steps of a batch.
pub fn decode_together(sessions: &mut [Session], count: usize) -> Vec<Vec<u32>> {
    let mut tokens = vec![Vec::new(); sessions.len()];
    for _ in 0..count {
        let mut all: Vec<&mut Session> = sessions.iter_mut().collect();
        let chosen = Session::decode_batch(&mut all).unwrap();
        for (list, token) in tokens.iter_mut().zip(chosen) {
            list.push(token.unwrap());
        }
    }
    tokens
}

const EMBEDDING: &str = "token_embd.weight";

/// An adapter of the model of a file, of a rank and type, with pairs for the token embedding and every matrix that can have one, those of
/// experts and heads among them. `size` is that of the numbers of `B`.
pub fn random_adapter(
    model: &Arc<Model>,
    path: &Path,
    (seed, rank, ty): (u64, usize, TensorType),
    size: f32,
) -> Adapter {
    let file = ModelFile::open(path).unwrap();
    let mut names: Vec<&str> = (file.tensors.iter())
        .filter(|(_, t)| (2..=3).contains(&t.dims.len()) && t.rows() > 1)
        .filter(|(name, _)| name.starts_with("blk."))
        .map(|(name, _)| &**name)
        .collect();
    names.sort_unstable();
    names.extend(["output.weight", EMBEDDING]);
    let dir = TempDir::new("random-adapter");
    loop {
        let mut writer = Writer::new();
        writer.set("general.type", "adapter");
        writer.set(
            "general.architecture",
            file.str("general.architecture").unwrap(),
        );
        writer.set("adapter.type", "lora");
        writer.set("adapter.lora.alpha", rank as f32);
        for name in &names {
            let tensor = match file.tensors.get(*name) {
                Some(tensor) => tensor,
                None => &file.tensors["token_embd.weight"],
            };
            let [a, b] = ["a", "b"].map(|half| format!("{name}.lora_{half}"));
            let stack = &tensor.dims[2..];
            let dims = |pair: [usize; 2]| [&pair, stack].concat();
            let (inputs, outputs) = (tensor.dims[0], tensor.dims[1]);
            if *name == EMBEDDING {
                // A row for each token, and one for each column.
                writer.tensor(&a, ty, &[rank, outputs]).unwrap();
                writer.tensor(&b, ty, &[rank, inputs]).unwrap();
                continue;
            }
            writer.tensor(&a, ty, &dims([inputs, rank])).unwrap();
            writer.tensor(&b, ty, &dims([rank, outputs])).unwrap();
        }
        let mut random = Random::new(seed, "adapter");
        let mut bytes = Vec::new();
        let written = writer.write(&mut bytes, |entry, out| {
            let scale = match entry.name.ends_with("_b") {
                true => size,
                false => 0.2,
            };
            for _ in 0..entry.size / ty.block_bytes() as u64 {
                let x = scale * random.signed_unit();
                match ty {
                    TensorType::F16 => out.write_all(&f16::from_f32(x).to_le_bytes())?,
                    TensorType::BF16 => out.write_all(&bf16::from_f32(x).to_le_bytes())?,
                    _ => out.write_all(&x.to_le_bytes())?,
                }
            }
            Ok(())
        });
        written.unwrap();
        match Adapter::load(model.clone(), &dir.file("adapter.gguf", &bytes)) {
            Ok(adapter) => return adapter,
            // Some matrices cannot have one; the message says which.
            Err(e) => {
                let before = names.len();
                names.retain(|name| !e.message.contains(&format!("{name}.lora_a")));
                assert!(names.len() < before && names.len() > 2, "{e}");
            }
        }
    }
}
