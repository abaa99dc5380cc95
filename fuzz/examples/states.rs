//! Writes the inputs that fuzzing of the target `state` starts from: `cargo run --example states DIR`.

use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::sampling::{Breakers, Dry, Sampling, TokenRules};
use emberlm::engine::state::Kind;
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::grammar::{GrammarKind, GrammarOptions};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// Longer files are more than the target reads.
const MAX_BYTES: usize = 1 << 15;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: states DIR")?;
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (number, path) in [
        "tests/data/families/qwen2/model.gguf",
        "models/hamlet-7m-Q4_K_M.gguf",
    ]
    .into_iter()
    .enumerate()
    {
        let n = device::count()?;
        let is_cpu = |i: &usize| device::info(*i).is_ok_and(|d| d.kind == DeviceKind::Cpu);
        let cpu = (0..n).find(is_cpu).ok_or("no CPU")?;
        let options = LoadOptions::default();
        let model = Model::load(&root.join(path), cpu, &options, &mut |_| Ok(()))?;
        let model = Arc::new(model);
        for (name, mut session) in sessions(&model)? {
            for (kind, kind_name) in [(Kind::Everything, "everything"), (Kind::Tokens, "tokens")] {
                let mut input = vec![number as u8];
                let mut write = |part: &[u8]| {
                    input.extend_from_slice(part);
                    Ok(())
                };
                session.save_to(&mut write, kind)?;
                if input.len() <= MAX_BYTES {
                    std::fs::write(dir.join(format!("{number}-{name}-{kind_name}")), input)?;
                }
            }
        }
    }
    Ok(())
}

/// Sessions with every kind of setting.
fn sessions(model: &Arc<Model>) -> emberlm::Result<Vec<(String, Session)>> {
    let create = || {
        let options = SessionOptions {
            context: 32,
            ..Default::default()
        };
        Session::create(model.clone(), &options)
    };
    let n_vocab = model.details().n_vocab;
    let mut all = vec![("empty".to_owned(), create()?)];
    let mut prompted = create()?;
    prompted.prefill(&[1, 2, 3])?;
    prompted.decode()?;
    all.push(("rules".to_owned(), prompted.fork()?));
    all.push(("plain".to_owned(), prompted));
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        repeat_penalty: 1.1,
        logprobs: 3,
        dry: Dry {
            multiplier: 0.8,
            ..Dry::OFF
        },
        ..Sampling::GREEDY
    };
    let breakers = Breakers::new(n_vocab, [&[3u32][..], &[4, 5]].into_iter())?;
    let bias = [(7u32, 1.5f32)].into_iter();
    let rules = TokenRules::new(n_vocab, bias, &[9], &[], breakers)?;
    all[1].1.set_sampling(sampling, Some(Arc::new(rules)))?;
    if model.tokenizer().is_err() {
        return Ok(all);
    }
    for (kind, text) in [
        (GrammarKind::JsonSchema, "{\"enum\": [\"red hat\", 7]}"),
        (GrammarKind::Regex, "[a-f]{3}(-[0-9]+)?"),
        (
            GrammarKind::Lark,
            "start: WORD (\" \" WORD)*\nWORD: /[a-z]+/",
        ),
        (GrammarKind::Gbnf, "root ::= item+\nitem ::= \"- \" [a-z]+"),
    ] {
        let mut session = create()?;
        session.prefill(&[1, 2])?;
        session.set_grammar(kind, text, &GrammarOptions::default())?;
        session.decode()?;
        session.decode()?;
        all.push((format!("{kind:?}").to_lowercase(), session));
    }
    Ok(all)
}
