//! Writes the inputs that fuzzing of the target `adapter` starts from: `cargo run --example adapters DIR`.

use emberlm::format::adapter::{AdapterFile, AdapterPair, BaseShape};
use emberlm::format::writer::Writer;
use emberlm::format::{Access, ModelFile};
use emberlm::quant::TensorType;
use std::path::Path;
use std::{fs, io};

#[path = "../fuzz_targets/models/mod.rs"]
mod models;

fn main() -> io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("usage: adapters DIR"));
    };
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    let data = models::repository("tests/data");
    let plain = models::repository("tests/data/families/qwen2/model.gguf");
    let experts = models::unpacked("tests/data/families/deepseek_v3");
    for (flags, name, model) in [(0, "qwen2", plain), (2, "deepseek_v3", experts)] {
        let folder = data.join("adapters").join(name);
        let base = ModelFile::open_with(&model, Access::Read);
        let base = base.and_then(|file| BaseShape::of(&file)).expect("a model");
        let file = AdapterFile::open(&folder, &base).expect("an adapter");
        let put = |kind: &str, bytes: Vec<u8>| fs::write(dir.join(format!("{kind}-{name}")), bytes);

        let config = fs::read(folder.join("adapter_config.json"))?;
        let weights = fs::read(folder.join("adapter_model.safetensors"))?;
        put("folder", peft(flags, &config, &weights))?;
        put("gguf", gguf(flags, &base, &file.pairs))?;

        // Small ones, of a single pair.
        let pairs = file.pairs.iter();
        let pair = pairs.min_by_key(|pair| pair.a.len() + pair.b.len());
        let pair = pair.expect("a pair");
        put("small-gguf", gguf(flags, &base, std::slice::from_ref(pair)))?;
        let (config, weights) = match base.experts {
            None => {
                let config = format!(r#"{{"peft_type":"LORA","r":{},"lora_alpha":2}}"#, pair.rank);
                (config, safetensors(&pair.names, halves(pair)))
            }
            Some(experts) => {
                let config = r#"{"peft_type":"LORA","r":1,"lora_alpha":2,"target_parameters":["experts.down_proj"]}"#;
                let names = ["A", "B"].map(|half| {
                    format!("base_model.model.model.layers.1.mlp.experts.lora_{half}.weight")
                });
                let (a, b) = (experts.count * experts.inner, experts.width * experts.count);
                let (a, b) = (vec![0.5; a], vec![0.25; b]);
                let halves = [
                    (experts.count, experts.inner, &a[..]),
                    (experts.width, experts.count, &b[..]),
                ];
                (config.to_owned(), safetensors(&names, halves))
            }
        };
        put("small-folder", peft(flags, config.as_bytes(), &weights))?;
    }
    Ok(())
}

fn peft(flags: u8, config: &[u8], weights: &[u8]) -> Vec<u8> {
    [&[flags | 1], config, b"\x00", weights].concat()
}

fn halves(pair: &AdapterPair) -> [(usize, usize, &[f32]); 2] {
    [
        (pair.rank, pair.inputs, &pair.a),
        (pair.outputs, pair.rank, &pair.b),
    ]
}

fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A pair by the names that its file gives it.
fn safetensors(names: &[String; 2], halves: [(usize, usize, &[f32]); 2]) -> Vec<u8> {
    let (mut header, mut data) = (String::new(), Vec::new());
    for (name, (rows, cols, elements)) in names.iter().zip(halves) {
        let begin = data.len();
        data.extend(bytes(elements));
        let comma = if begin == 0 { '{' } else { ',' };
        let end = data.len();
        header += &format!(
            r#"{comma}"{name}":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[{begin},{end}]}}"#
        );
    }
    header.push('}');
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

fn gguf(flags: u8, base: &BaseShape, pairs: &[AdapterPair]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .set("general.architecture", &*base.architecture)
        .set("general.type", "adapter")
        .set("adapter.type", "lora")
        .set("adapter.lora.alpha", 2f32);
    let mut data = Vec::new();
    for pair in pairs {
        for (half, (rows, cols, elements)) in ["a", "b"].iter().zip(halves(pair)) {
            let name = format!("{}.lora_{half}", pair.target);
            let dims = if pair.stack > 1 { 3 } else { 2 };
            writer
                .tensor(&name, TensorType::F32, &[cols, rows, pair.stack][..dims])
                .expect("a valid shape");
            data.push(bytes(elements));
        }
    }
    let mut out = vec![flags];
    let mut next = data.iter();
    writer
        .write(&mut out, |_, to| {
            to.write_all(next.next().expect("as many as tensors"))
        })
        .expect("writing to memory");
    out
}
