//! A vocabulary, random choices, and answers made with both.

use crate::common::hamlet;
use emberlm::Result;
use emberlm::grammar::{Grammar, GrammarKind, GrammarOptions, GrammarVocabulary};
use emberlm::text::{DecodeOptions, EncodeOptions, Tokenizer};
use std::sync::{Arc, LazyLock};

/// A tokenizer and what grammars make of it.
pub struct Vocabulary {
    pub tokenizer: Tokenizer,
    pub tokens: Arc<GrammarVocabulary>,
}

impl Vocabulary {
    pub fn new(tokenizer: Tokenizer) -> Vocabulary {
        let tokens = Arc::new(GrammarVocabulary::new(&tokenizer).unwrap());
        Vocabulary { tokenizer, tokens }
    }

    pub fn grammar(&self, kind: GrammarKind, text: &str) -> Result<Grammar> {
        Grammar::compile(&self.tokens, kind, text, &GrammarOptions::default())
    }

    pub fn text(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        let options = DecodeOptions::default();
        self.tokenizer.decode(tokens, options, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

/// The byte-level BPE vocabulary of the model in the repository.
pub static HAMLET: LazyLock<Vocabulary> =
    LazyLock::new(|| Vocabulary::new(Tokenizer::from_file(&hamlet::q4_k_m()).unwrap()));

/// A generator of random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// The tokens that a mask allows.
pub fn allowed(mask: &[u32]) -> Vec<u32> {
    let bits = |(word, bits): (usize, &u32)| {
        let bits = *bits;
        (0..32)
            .filter(move |bit| bits >> bit & 1 == 1)
            .map(move |bit| word as u32 * 32 + bit)
    };
    mask.iter().enumerate().flat_map(bits).collect()
}

/// Makes an answer by random choices, of up to `limit` tokens: its text, or none if it did not come
/// to an end. The end is chosen more often than its share, and so is what closes something.
pub fn random_answer(
    vocabulary: &Vocabulary,
    grammar: &Grammar,
    random: &mut Random,
    limit: usize,
) -> Option<String> {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; vocabulary.tokens.mask_words()];
    let mut tokens = Vec::new();
    for _ in 0..limit {
        let forced = matcher.next_forced(&vocabulary.tokenizer).unwrap();
        matcher.mask(&mut mask).unwrap();
        let choices = allowed(&mask);
        let token = match forced {
            Some(token) => {
                assert_eq!(choices, [token], "a forced token is the only one");
                token
            }
            None => choose(vocabulary, &choices, random),
        };
        assert!(choices.contains(&token));
        matcher.accept(token).unwrap();
        if vocabulary.tokenizer.is_end(token) {
            return Some(vocabulary.text(&tokens));
        }
        tokens.push(token);
    }
    None
}

fn choose(vocabulary: &Vocabulary, choices: &[u32], random: &mut Random) -> u32 {
    let end = choices.iter().find(|t| vocabulary.tokenizer.is_end(**t));
    if let Some(end) = end.filter(|_| random.chance(30)) {
        return *end;
    }
    if random.chance(30) {
        let closes = |token: &&u32| {
            let bytes = vocabulary.tokenizer.token_bytes(**token).unwrap();
            bytes.ends_with(b"\"") || bytes.ends_with(b"}") || bytes.ends_with(b"]")
        };
        let closing: Vec<_> = choices.iter().filter(closes).collect();
        if !closing.is_empty() {
            return *closing[random.below(closing.len())];
        }
    }
    choices[random.below(choices.len())]
}

/// Whether a grammar lets a text through to its end, by the tokenizer's tokens and byte for byte.
pub fn accepts(kind: GrammarKind, grammar: &str, text: &str) -> bool {
    let compiled = HAMLET.grammar(kind, grammar).unwrap();
    let mut tokens = Vec::new();
    HAMLET
        .tokenizer
        .encode(text, EncodeOptions::default(), &mut tokens)
        .unwrap();
    let mut bytes = Vec::new();
    for byte in text.bytes() {
        let is_byte = |id: &u32| HAMLET.tokenizer.token_bytes(*id).unwrap() == [byte];
        bytes.push(
            (0..HAMLET.tokenizer.n_vocab() as u32)
                .find(is_byte)
                .unwrap(),
        );
    }
    let mut mask = vec![0; HAMLET.tokens.mask_words()];
    let mut run = |tokens: &[u32]| {
        let mut matcher = compiled.matcher();
        for token in tokens {
            matcher.mask(&mut mask).unwrap();
            if !allowed(&mask).contains(token) {
                return false;
            }
            matcher.accept(*token).unwrap();
        }
        matcher.mask(&mut mask).unwrap();
        let end = HAMLET.tokens.ends()[0];
        allowed(&mask).contains(&end)
    };
    let by_bytes = run(&bytes);
    assert_eq!(run(&tokens), by_bytes, "{grammar}: {text}");
    by_bytes
}
