//! A grammar for the tokens of the model in models/: an error that is the grammar's, or answers that it lets
//! through, token by token; never a panic that leaves the library, or a stall. The input is a byte for
//! the language, some that choose tokens, a zero byte, and the grammar.
#![no_main]

use emberlm::Status;
use emberlm::format::ModelFile;
use emberlm::grammar::{Grammar, GrammarKind, GrammarOptions, GrammarVocabulary};
use emberlm::text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

static MODEL: &[u8] = include_bytes!("../../models/hamlet-7m-Q4_K_M.gguf");

static VOCABULARY: LazyLock<Arc<GrammarVocabulary>> = LazyLock::new(|| {
    // Panics of the parser's crate are caught; what counts is that they stay inside.
    std::panic::set_hook(Box::new(|_| {}));
    let file = ModelFile::from_bytes(MODEL).expect("a model file");
    let tokenizer = Tokenizer::from_file(&file).expect("a tokenizer");
    Arc::new(GrammarVocabulary::new(&tokenizer).expect("a vocabulary"))
});

fuzz_target!(|bytes: &[u8]| {
    let vocabulary = &*VOCABULARY;
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let kind = match kind % 4 {
        0 => GrammarKind::JsonSchema,
        1 => GrammarKind::Regex,
        2 => GrammarKind::Lark,
        _ => GrammarKind::Gbnf,
    };
    let Some(end) = rest.iter().position(|b| *b == 0) else {
        return;
    };
    let Ok(text) = std::str::from_utf8(&rest[end + 1..]) else {
        return;
    };
    let grammar = match Grammar::compile(vocabulary, kind, text, &GrammarOptions::default()) {
        Ok(grammar) => grammar,
        Err(error) => {
            if error.status != Status::Grammar && error.status != Status::Internal {
                eprintln!("{error}");
                std::process::abort();
            }
            return;
        }
    };
    let mut matcher = grammar.matcher();
    let mut words = vec![0u32; vocabulary.mask_words()];
    for choice in &rest[..end] {
        if matcher.mask(&mut words).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..words.len() as u32 * 32)
            .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        let Some(token) = allowed.get(usize::from(*choice) % allowed.len().max(1)) else {
            return;
        };
        if vocabulary.ends().contains(token) {
            return;
        }
        if let Err(error) = matcher.accept(*token) {
            eprintln!("a token of the mask is refused: {error}");
            std::process::abort();
        }
    }
});
