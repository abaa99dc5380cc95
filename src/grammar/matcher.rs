//! Follows one answer through a grammar.

use super::GrammarVocabulary;
use super::limits::{self, MAX_LEXER_BYTES};
use super::numbers::Numbers;
use crate::error::{Error, Result, Status, fail};
use crate::memory::{self, Room};
use crate::text::{EncodeOptions, Tokenizer};
use llguidance::derivre::NextByte;
use llguidance::earley::{Parser, ParserRecognizer};
use llguidance::toktrie::{INVALID_TOKEN, Recognizer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most bytes that are looked ahead for forced tokens.
const MAX_FORCED_BYTES: usize = 128;

/// The place in an answer that has come so far.
pub struct Matcher {
    vocabulary: Arc<GrammarVocabulary>,
    /// Behind all accepted and all `forced` tokens.
    parser: Parser,
    /// Tokens that must come next.
    forced: VecDeque<u32>,
    /// Whether it is known that nothing but `forced` is forced.
    searched: bool,
    /// The last token of the answer.
    previous: Option<u32>,
    /// The answer has its end token.
    ended: bool,
    /// Whether the answer may end here, if known.
    accepting: Option<bool>,
    /// Of an answer in JSON.
    numbers: Option<Numbers>,
    /// What the parser takes when memory runs out comes from here.
    room: Arc<Room>,
}

impl Matcher {
    pub(super) fn new(
        vocabulary: Arc<GrammarVocabulary>,
        parser: Parser,
        room: Arc<Room>,
        is_json: bool,
    ) -> Matcher {
        Matcher {
            vocabulary,
            parser,
            forced: VecDeque::new(),
            searched: false,
            previous: None,
            ended: false,
            accepting: None,
            numbers: is_json.then(Numbers::default),
            room,
        }
    }

    /// Another matcher at the same place, which shares the caches.
    ///
    /// Errors: `OutOfMemory`.
    pub fn fork(&self) -> Result<Matcher> {
        let parser = {
            let _in_room = self.room.enter();
            self.parser.clone()
        };
        memory::check()?;
        let mut other = Matcher::new(self.vocabulary.clone(), parser, self.room.clone(), false);
        other.forced = self.forced.clone();
        other.searched = self.searched;
        other.previous = self.previous;
        other.ended = self.ended;
        other.accepting = self.accepting;
        other.numbers = self.numbers;
        Ok(other)
    }

    /// Words of a mask.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.mask_words()
    }

    /// The token that must come next, if there is no choice: the one end token of a finished answer,
    /// or the tokens that `tokenizer` makes of text that the grammar leaves no choice about. [`mask`]
    /// allows nothing else then.
    ///
    /// The answer depends on nothing but the grammar and the tokens so far.
    ///
    /// Errors: `Grammar`, `OutOfMemory`.
    ///
    /// [`mask`]: Matcher::mask
    pub fn next_forced(&mut self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        self.in_room(|matcher| matcher.next_forced_here(tokenizer))
    }

    fn next_forced_here(&mut self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        if let Some(token) = self.forced.front() {
            return Ok(Some(*token));
        }
        if self.ended || self.is_finished() {
            return Ok(match self.vocabulary.ends() {
                [end] => Some(*end),
                _ => None,
            });
        }
        if !self.searched {
            self.searched = true;
            self.find_forced(tokenizer)?;
        }
        Ok(self.forced.front().copied())
    }

    /// The forced tokens that are known, behind the one that [`Matcher::next_forced`] gives.
    pub fn pending(&self) -> impl Iterator<Item = u32> + '_ {
        self.forced.iter().copied()
    }

    /// Writes which tokens may come next: bit `i % 32` of word `i / 32` for token i.
    ///
    /// Errors: `Grammar` if no token of the vocabulary goes on, or if a limit was reached;
    /// `Internal` if there are fewer words than [`GrammarVocabulary::mask_words`].
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        if words.len() < self.vocabulary.mask_words() {
            fail!(Internal, "a mask of {} words is too short", words.len());
        }
        self.in_room(|matcher| matcher.mask_here(words))
    }

    fn mask_here(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(0);
        if let Some(&token) = self.forced.front() {
            allow(words, token);
            return Ok(());
        }
        if self.ended || self.is_finished() {
            self.vocabulary.ends().iter().for_each(|e| allow(words, *e));
            return Ok(());
        }
        let accepting = self.is_accepting();
        let allowed = self.parser.compute_bias(&self.vocabulary.slicer, &[]);
        self.check_limits()?;
        let n_words = self.vocabulary.mask_words();
        words[..n_words].copy_from_slice(&allowed.as_slice()[..n_words]);
        if accepting {
            self.vocabulary.ends().iter().for_each(|e| allow(words, *e));
        } else if words.iter().all(|w| *w == 0) {
            fail!(
                Grammar,
                "grammar: no token of the vocabulary goes on from here, and the answer may not end"
            );
        }
        if let Some(numbers) = &self.numbers {
            numbers.restrict(&self.vocabulary, words);
        }
        Ok(())
    }

    /// Appends a token to the answer. After an error the matcher must not be used any more.
    ///
    /// Errors: `Grammar` if the token is not allowed, or if a limit was reached.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if self.forced.front() == Some(&token) {
            self.in_room(|matcher| {
                matcher.took(token);
                Ok(())
            })?;
            // After an error it is still among the pending ones.
            self.forced.pop_front();
            return Ok(());
        }
        self.in_room(|matcher| matcher.accept_here(token))
    }

    fn accept_here(&mut self, token: u32) -> Result<()> {
        let is_end = self.vocabulary.ends().contains(&token);
        if is_end && self.forced.is_empty() && (self.ended || self.is_accepting()) {
            self.ended = true;
            self.previous = Some(token);
            return Ok(());
        }
        let bytes = self.vocabulary.trie().token(token);
        if is_end || self.ended || !self.forced.is_empty() || bytes.is_empty() {
            fail!(Grammar, "grammar: token {token} is not allowed here");
        }
        self.parser
            .apply_token(bytes, token)
            .map_err(|e| Error::new(Status::Grammar, format!("grammar: {e}")))?;
        self.check_limits()?;
        self.took(token);
        self.moved();
        Ok(())
    }

    /// Accepts tokens that were found to be forced, which were not returned yet.
    pub fn restore_forced(&mut self, tokens: &[u32]) -> Result<()> {
        self.in_room(|matcher| matcher.restore_forced_here(tokens))
    }

    fn restore_forced_here(&mut self, tokens: &[u32]) -> Result<()> {
        for &token in tokens {
            let bytes = self.vocabulary.trie().token(token);
            self.parser
                .apply_token(bytes, token)
                .map_err(|e| Error::new(Status::Grammar, format!("grammar: {e}")))?;
        }
        self.moved();
        self.forced.clear();
        self.forced.extend(tokens);
        Ok(())
    }

    /// Does a step of the parser, whose allocations cannot fail. `OutOfMemory` if memory ran out.
    fn in_room<R>(&mut self, step: impl FnOnce(&mut Matcher) -> Result<R>) -> Result<R> {
        if !limits::room_is_enough(&self.room, &self.parser) {
            self.room = Arc::new(limits::room(&self.parser)?);
        }
        let room = self.room.clone();
        let _in_room = room.enter();
        let result = step(self)?;
        memory::check()?;
        Ok(result)
    }

    /// The answer has one more token of text.
    fn took(&mut self, token: u32) {
        self.previous = Some(token);
        if let Some(numbers) = &mut self.numbers {
            numbers.follow(self.vocabulary.trie().token(token));
        }
    }

    /// The parser stands elsewhere.
    fn moved(&mut self) {
        self.accepting = None;
        self.searched = false;
    }

    fn is_accepting(&mut self) -> bool {
        let parser = &mut self.parser;
        *self.accepting.get_or_insert_with(|| parser.is_accepting())
    }

    /// Whether nothing but the end can come.
    fn is_finished(&mut self) -> bool {
        self.forced.is_empty() && self.is_accepting() && !self.parser.can_advance()
    }

    fn check_limits(&self) -> Result<()> {
        if let Some(e) = self.parser.get_error() {
            fail!(Grammar, "grammar: too complex: {}", e.message());
        }
        let bytes = self.parser.lexer_stats().num_bytes;
        if bytes > MAX_LEXER_BYTES {
            fail!(
                Grammar,
                "grammar: too complex: its lexer has {bytes} bytes, {MAX_LEXER_BYTES} are allowed"
            );
        }
        Ok(())
    }

    /// Moves the parser over the text that has no alternative, as far as it is made of tokens that
    /// are the tokenizer's own for it whatever follows.
    fn find_forced(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        if !self.parser.grammar().lexer_spec().can_rollback() {
            return Ok(());
        }
        let mut text = Vec::new();
        while text.len() < MAX_FORCED_BYTES && !self.parser.is_accepting() {
            let Some(byte) = self.parser.with_recognizer(only_byte) else {
                break;
            };
            if self.parser.apply_token(&[byte], INVALID_TOKEN).is_err() {
                fail!(
                    Grammar,
                    "grammar: too complex: too many ways to read the answer"
                );
            }
            text.push(byte);
        }
        if text.is_empty() {
            return Ok(());
        }
        let mut tokens = self.tokenize(tokenizer, &text)?;
        let trie = self.vocabulary.trie();
        let length = |tokens: &[u32]| tokens.iter().map(|t| trie.token(*t).len()).sum::<usize>();
        if length(&tokens) == text.len() {
            // Leave what another token may reach over.
            let (chopped, _) = self
                .parser
                .with_recognizer(|r| trie.chop_tokens(r, &tokens));
            tokens.truncate(tokens.len() - chopped);
        } else {
            tokens.pop();
        }
        let back = text.len() - length(&tokens);
        self.parser
            .rollback(back)
            .map_err(|e| Error::new(Status::Grammar, format!("grammar: {e}")))?;
        self.parser.invalidate_bias_cache();
        if !tokens.is_empty() {
            self.moved();
            self.searched = false;
        }
        self.forced.extend(tokens);
        Ok(())
    }

    /// The tokens that `tokenizer` makes of `text` behind the previous token; only those whose bytes
    /// are those of the text.
    fn tokenize(&self, tokenizer: &Tokenizer, text: &[u8]) -> Result<Vec<u32>> {
        let trie = self.vocabulary.trie();
        let valid = match std::str::from_utf8(text) {
            Ok(_) => text,
            Err(e) => &text[..e.valid_up_to()],
        };
        let before = self.previous.map_or(&[][..], |token| trie.token(token));
        let mut tokens = Vec::new();
        let together = [before, valid].concat();
        if let Ok(together) = std::str::from_utf8(&together) {
            tokenizer.encode(together, EncodeOptions::default(), &mut tokens)?;
        }
        if before.is_empty() || tokens.first() != self.previous.as_ref() {
            tokens.clear();
            if let Ok(alone) = std::str::from_utf8(valid) {
                tokenizer.encode(alone, EncodeOptions::default(), &mut tokens)?;
            }
        } else {
            tokens.remove(0);
        }
        let mut rest = text;
        let same = tokens.iter().take_while(|token| {
            let bytes = trie.token(**token);
            match rest.strip_prefix(bytes) {
                Some(behind) if !bytes.is_empty() => {
                    rest = behind;
                    true
                }
                _ => false,
            }
        });
        let n = same.count();
        tokens.truncate(n);
        Ok(tokens)
    }
}

fn allow(words: &mut [u32], token: u32) {
    words[token as usize / 32] |= 1 << (token % 32);
}

/// The byte that has to come next, if there is just one.
fn only_byte(r: &mut ParserRecognizer<'_>) -> Option<u8> {
    let state = r.lexer_state();
    let hint = r.lexer_mut().next_byte(state);
    match hint {
        NextByte::ForcedByte(byte) => return Some(byte),
        NextByte::Dead | NextByte::ForcedEOI => {}
        _ => {}
    }
    r.trie_started("only_byte");
    let mut only = None;
    let hints = hint.some_bytes();
    let all = (0..=u8::MAX).filter(|b| !hints.contains(b));
    for byte in hints.iter().copied().chain(all) {
        if r.byte_allowed(byte) && only.replace(byte).is_some() {
            only = None;
            break;
        }
    }
    r.trie_finished();
    only
}
