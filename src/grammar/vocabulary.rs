//! The tokens of a model as a grammar sees them: a trie of their bytes.

use crate::error::{Error, Result, Status, fail, try_vec};
use crate::text::{TokenKind, Tokenizer};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// Longest token, in bytes, that an answer by a grammar can have.
const MAX_TOKEN_BYTES: usize = 512;
/// Most bytes of all tokens together; a limit of the trie's encoding.
const MAX_TOTAL_BYTES: usize = (1 << 22) - 2;
/// Most tokens; a limit of the trie's encoding.
const MAX_TOKENS: usize = (1 << 24) - 2;

/// Tokens as bytes, and which of them end an answer. Made once for a model and shared by all its
/// grammars.
pub struct GrammarVocabulary {
    pub(super) env: TokEnv,
    /// Knows which tokens fit into any JSON string, so that most masks are not made token by token.
    pub(super) slicer: SlicedBiasComputer,
    ends: Vec<TokenId>,
    /// Tokens that can go on a number.
    number_parts: Vec<TokenId>,
}

/// What llguidance asks for. It never gets to tokenize with it.
struct Env(TokTrie);

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl GrammarVocabulary {
    /// The tokens of `tokenizer` that are text. Control tokens, unknown and unused ones are none,
    /// nor are tokens of more than 512 bytes.
    ///
    /// Errors: `Unsupported` if no token ends an answer, or if there are too many tokens;
    /// `OutOfMemory`.
    pub fn new(tokenizer: &Tokenizer) -> Result<GrammarVocabulary> {
        let n_vocab = tokenizer.n_vocab();
        let mut words = try_vec(n_vocab, Vec::new(), "tokens of grammars")?;
        let mut ends = Vec::new();
        let mut total = 0;
        for (id, word) in (0..).zip(&mut words) {
            if tokenizer.is_end(id) {
                ends.push(id);
                continue;
            }
            let bytes = tokenizer.token_bytes(id)?;
            // The byte 0xff, which is in no text, marks special tokens in the trie.
            if is_text(tokenizer.kind(id)?)
                && bytes.len() <= MAX_TOKEN_BYTES
                && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
            {
                *word = bytes.to_vec();
                total += bytes.len();
            }
        }
        Self::from_words(&words, ends, total)
    }

    /// The bytes of each token (none if it is no text), and the tokens that end an answer.
    fn from_words(
        words: &[Vec<u8>],
        ends: Vec<TokenId>,
        total: usize,
    ) -> Result<GrammarVocabulary> {
        if ends.is_empty() {
            fail!(
                Unsupported,
                "grammars: the vocabulary has no token that ends an answer"
            );
        }
        if words.len() > MAX_TOKENS || total > MAX_TOTAL_BYTES {
            fail!(
                Unsupported,
                "grammars: {} tokens of {total} bytes are too many; up to {MAX_TOKENS} of \
                 {MAX_TOTAL_BYTES} bytes are supported",
                words.len()
            );
        }
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let env: TokEnv = Arc::new(Env(TokTrie::from(&info, words)));
        let slicer = SlicedBiasComputer::new(&env, &slices())
            .map_err(|e| Error::new(Status::Internal, format!("grammars: {e}")))?;
        let goes_on = |word: &Vec<u8>| word.first().is_some_and(|b| b"0123456789.eE+-".contains(b));
        let number_parts = (0..).zip(words).filter(|(_, word)| goes_on(word));
        Ok(GrammarVocabulary {
            env,
            slicer,
            ends,
            number_parts: number_parts.map(|(id, _)| id).collect(),
        })
    }

    /// Tokens that can go on a number.
    pub(super) fn number_parts(&self) -> &[u32] {
        &self.number_parts
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    /// The tokens that end an answer, at least one.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Number of 32-bit words of a mask.
    pub fn mask_words(&self) -> usize {
        self.trie().vocab_size().div_ceil(32)
    }
}

/// Sets of tokens that most masks of JSON allow or forbid together: white space, and text of strings
/// by its length, so that a limit to a string's length costs little before its end. Finer steps
/// take more memory and gain nothing.
fn slices() -> Vec<String> {
    let text = ["{1,5}", "{1,8}", "{1,12}", "{1,20}", "+"]
        .map(|length| format!(r#"[^"\\\x00-\x1F\x7F]{length}"#));
    let space = r"[\x20\x0A\x0D\x09]+".to_owned();
    std::iter::once(space).chain(text).collect()
}

fn is_text(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte
    )
}
