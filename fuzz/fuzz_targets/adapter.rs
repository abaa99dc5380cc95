//! A LoRA adapter: an error that says what is wrong with it, or an adapter that a session can use, and that leaves no trace
//! when the session uses it no more; never a panic. The input is a byte and the adapter: if the byte is even, a GGUF file, else
//! `adapter_config.json`, a zero byte, and the safetensors file.
#![no_main]

mod models;

use emberlm::Status;
use emberlm::engine::{Adapter, Model, Session, SessionOptions, WantedAdapter};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

const PROMPT: [u32; 3] = [1, 5, 2];

/// A model, and what it says without adapters.
static MODEL: LazyLock<(Arc<Model>, Vec<f32>)> = LazyLock::new(|| {
    let model = models::load("tests/data/families/qwen2/model.gguf");
    let mut session = session(&model);
    let logits = logits(&mut session);
    (model, logits)
});

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, file)) = bytes.split_first() else {
        return;
    };
    let (model, plain) = &*MODEL;
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
