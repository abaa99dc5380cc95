//! A LoRA adapter: an error that says what is wrong with it, or an adapter that a session can use, and that leaves no trace
//! when the session uses it no more; never a panic. The input is a byte and the adapter: if the byte is even, a GGUF file, else
//! `adapter_config.json`, a zero byte, and the safetensors file. Bit 1 of the byte says for which model: one without experts, or one
//! with experts and latent attention.
#![no_main]

mod models;

use emberlm::Status;
use emberlm::engine::{Adapter, Model, Session, SessionOptions, WantedAdapter};
use libfuzzer_sys::fuzz_target;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

const PROMPT: [u32; 3] = [1, 5, 2];

/// Models, and what they say without adapters.
static MODELS: [LazyLock<(Arc<Model>, Vec<f32>)>; 2] = [
    LazyLock::new(|| said(&models::repository("tests/data/families/qwen2/model.gguf"))),
    LazyLock::new(|| said(&models::unpacked("tests/data/families/deepseek_v3"))),
];

fn said(path: &Path) -> (Arc<Model>, Vec<f32>) {
    let model = models::load(path);
    let logits = logits(&mut session(&model));
    (model, logits)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, file)) = bytes.split_first() else {
        return;
    };
    let (model, plain) = &*MODELS[usize::from(flags >> 1 & 1)];
    let path = match flags & 1 {
        0 => gguf(file),
        _ => match file.iter().position(|b| *b == 0) {
            Some(end) => folder(&file[..end], &file[end + 1..]),
            None => return,
        },
    };
    let adapter = match Adapter::load(model.clone(), &path) {
        Ok(adapter) => adapter,
        Err(error) => {
            let expected = [
                Status::FileEmpty,
                Status::FileTruncated,
                Status::FileCorrupt,
                Status::UnknownFormat,
                Status::MissingKey,
                Status::MissingTensor,
                Status::ShapeMismatch,
                Status::InvalidModel,
                Status::Unsupported,
                Status::OutOfMemory,
            ];
            assert!(
                expected.contains(&error.status),
                "{:?} {error}",
                error.status
            );
            return;
        }
    };
    let again = Adapter::load(model.clone(), &path).expect("what was loaded loads again");
    assert_eq!(adapter.data().fingerprint, again.data().fingerprint);
    let mut session = session(model);
    let wanted = WantedAdapter {
        adapter: &adapter,
        scale: 0.5,
    };
    session
        .set_adapters(&[wanted], false)
        .expect("an adapter that was loaded can be used");
    drop((adapter, again));
    // Large numbers may leave nothing to choose from, which is an error.
    let _ = session.decode();
    session
        .set_adapters(&[], false)
        .expect("none can always be used");
    session.rewind(PROMPT.len()).expect("the prompt is kept");
    let after = logits(&mut session);
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&after), bits(plain));
});

fn session(model: &Arc<Model>) -> Session {
    let mut session =
        Session::create(model.clone(), &SessionOptions::default()).expect("a session");
    session.prefill(&PROMPT).expect("a prompt");
    session
}

fn logits(session: &mut Session) -> Vec<f32> {
    let mut logits = vec![0.0; session.model().details().n_vocab];
    session.logits(&mut logits).expect("logits");
    logits
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("emberlm-fuzz-{name}-{}", std::process::id()))
}

fn gguf(file: &[u8]) -> PathBuf {
    let path = place("adapter");
    std::fs::write(&path, file).expect("a temporary file");
    path
}

fn folder(config: &[u8], weights: &[u8]) -> PathBuf {
    let path = place("adapters");
    std::fs::create_dir_all(&path).expect("a temporary folder");
    std::fs::write(path.join("adapter_config.json"), config).expect("a temporary file");
    std::fs::write(path.join("adapter_model.safetensors"), weights).expect("a temporary file");
    path
}
