//! Writes the inputs that fuzzing of the target `adapter` starts from: `cargo run --example adapters DIR`.

use emberlm::format::adapter::{AdapterFile, AdapterPair, BaseShape};
use emberlm::format::writer::Writer;
use emberlm::format::{Access, ModelFile};
use emberlm::quant::TensorType;
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("usage: adapters DIR"));
    };
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let folder = data.join("adapters/qwen2");
    let base = ModelFile::open_with(&data.join("families/qwen2/model.gguf"), Access::Read);
    let base = base.and_then(|file| BaseShape::of(&file)).expect("a model");
    let file = AdapterFile::open(&folder, &base).expect("an adapter");

    let config = fs::read(folder.join("adapter_config.json"))?;
    let weights = fs::read(folder.join("adapter_model.safetensors"))?;
    fs::write(dir.join("folder"), peft(&config, &weights))?;
    fs::write(dir.join("gguf"), gguf(&base, &file.pairs))?;

    // Small ones, of a single pair.
    let pair = file
        .pairs
        .iter()
        .min_by_key(|pair| pair.a.len() + pair.b.len());
    let pair = pair.expect("a pair");
    let config = format!(r#"{{"peft_type":"LORA","r":{},"lora_alpha":2}}"#, pair.rank);
    fs::write(
        dir.join("small-folder"),
        peft(config.as_bytes(), &safetensors(pair)),
    )?;
    fs::write(
        dir.join("small-gguf"),
        gguf(&base, std::slice::from_ref(pair)),
    )
}

fn peft(config: &[u8], weights: &[u8]) -> Vec<u8> {
    [b"\x01", config, b"\x00", weights].concat()
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
fn safetensors(pair: &AdapterPair) -> Vec<u8> {
    let (mut header, mut data) = (String::new(), Vec::new());
    for (name, (rows, cols, elements)) in pair.names.iter().zip(halves(pair)) {
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

fn gguf(base: &BaseShape, pairs: &[AdapterPair]) -> Vec<u8> {
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
            writer
                .tensor(&name, TensorType::F32, &[cols, rows])
                .expect("a valid shape");
            data.push(bytes(elements));
        }
    }
    let mut out = vec![0];
    let mut next = data.iter();
    writer
        .write(&mut out, |_, to| {
            to.write_all(next.next().expect("as many as tensors"))
        })
        .expect("writing to memory");
    out
}
