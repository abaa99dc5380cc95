//! A session under a grammar: which tokens of the context are the answer, and what may follow.

use super::Session;
use crate::budget::Interrupt;
use crate::error::{Result, Status, fail, try_vec};
use crate::grammar::{Grammar, GrammarKind, GrammarOptions, JsonSpacing, Matcher};
use crate::memory;
use crate::text::Tokenizer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a token of the context comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Was there before the grammar, or came by a prefill.
    Prompt = 0,
    /// Was chosen.
    Chosen = 1,
    /// Was forced, as the first of a run that was found at once.
    Forced = 2,
    /// Was forced behind another of its run.
    ForcedNext = 3,
}

/// The grammar of a session. The answer that it follows is the run of decoded tokens at the end of
/// the context.
pub(super) struct Constraint {
    grammar: Grammar,
    /// What it was made of.
    source: Arc<GrammarSource>,
    /// Stands behind the first `accepted` tokens of the context; none if it has to start again.
    matcher: Option<Matcher>,
    accepted: usize,
    /// Stands before the first token of an answer, whose forced tokens or mask it has found, so that
    /// the first decode of the next answer asks for no memory.
    next: Option<Matcher>,
    /// Of each token of the context.
    origins: Vec<Origin>,
    /// Where the forced run begins that was found last.
    run_start: usize,
    /// The rest of a forced run that a rewind has cut, which comes next.
    pending: Vec<u32>,
}

/// What a grammar is made of.
pub(super) struct GrammarSource {
    pub kind: GrammarKind,
    pub spacing: JsonSpacing,
    pub text: String,
}

impl GrammarSource {
    fn options(&self) -> GrammarOptions {
        GrammarOptions {
            spacing: self.spacing,
            ..Default::default()
        }
    }
}

/// A constraint that is saved with its session.
pub(super) struct SavedGrammar {
    pub source: Arc<GrammarSource>,
    /// Runs of tokens of one origin ([`Origin`]), which make up the context.
    pub origins: Vec<(u32, usize)>,
    /// The rest of a forced run that was begun.
    pub pending: Vec<u32>,
}

impl SavedGrammar {
    /// As it was read from a file.
    pub fn new(
        kind: GrammarKind,
        spacing: JsonSpacing,
        text: String,
        origins: Vec<(u32, usize)>,
        pending: Vec<u32>,
    ) -> SavedGrammar {
        let source = GrammarSource {
            kind,
            spacing,
            text,
        };
        SavedGrammar {
            source: Arc::new(source),
            origins,
            pending,
        }
    }
}

impl Constraint {
    fn new(
        grammar: Grammar,
        source: Arc<GrammarSource>,
        position: usize,
        context: usize,
    ) -> Result<Constraint> {
        let mut origins = try_vec(context, Origin::Prompt, "token origins")?;
        origins.truncate(position);
        Ok(Constraint {
            grammar,
            source,
            matcher: None,
            accepted: 0,
            next: None,
            origins,
            run_start: usize::MAX,
            pending: Vec::new(),
        })
    }

    /// Readies the matcher of the next answer.
    ///
    /// Errors: `OutOfMemory`. What else may go wrong is left to the decode that needs it.
    pub fn ready_next(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        let mut matcher = self.grammar.matcher();
        let mut words = try_vec(matcher.mask_words(), 0u32, "mask of a choice")?;
        let first = matcher
            .next_forced(tokenizer)
            .and_then(|forced| match forced {
                Some(_) => Ok(()),
                None => matcher.mask(&mut words),
            });
        match first {
            Ok(()) => self.next = Some(matcher),
            Err(e) if e.status == Status::OutOfMemory => return Err(e),
            Err(_) => {}
        }
        Ok(())
    }

    /// Forgets the matcher of the next answer.
    pub fn drop_next(&mut self) {
        self.next = None;
    }

    /// The same state for a fork of the session.
    pub fn duplicate(&self, context: usize) -> Result<Constraint> {
        let grammar = self.grammar.duplicate()?;
        let mut other = Constraint::new(grammar, self.source.clone(), 0, context)?;
        other.origins.extend_from_slice(&self.origins);
        other.pending.extend(self.rest_of_run());
        Ok(other)
    }

    /// What is saved of it.
    pub fn saved(&self) -> SavedGrammar {
        let mut origins: Vec<(u32, usize)> = Vec::new();
        for origin in &self.origins {
            match origins.last_mut() {
                Some((number, count)) if *number == *origin as u32 => *count += 1,
                _ => origins.push((*origin as u32, 1)),
            }
        }
        SavedGrammar {
            source: self.source.clone(),
            origins,
            pending: self.rest_of_run().collect(),
        }
    }

    /// Whether some of the `count` tokens from `from` on belong to the answer that is being made.
    pub fn is_in_answer(&self, from: usize, count: usize) -> bool {
        let prompt = self.origins.iter().rposition(|o| *o == Origin::Prompt);
        from + count > prompt.map_or(0, |last| last + 1)
    }

    /// The `count` tokens from `from` on were taken out of the context.
    pub fn erased(&mut self, from: usize, count: usize) {
        let pending = self.rest_of_run().collect();
        self.restart();
        self.pending = pending;
        self.origins.drain(from..from + count);
    }

    /// Tokens were prefilled: the next answer begins behind them.
    pub fn prefilled(&mut self, count: usize) {
        let prompt = std::iter::repeat_n(Origin::Prompt, count);
        self.origins.extend(prompt);
        self.restart();
    }

    /// The context has `count` tokens now, which are all a prompt: the next answer begins behind them.
    pub fn all_prompt(&mut self, count: usize) {
        self.origins.clear();
        self.prefilled(count);
    }

    /// A token was decoded.
    pub fn decoded(&mut self, token: u32) {
        let position = self.origins.len();
        let is_forced = self.rest_of_run().next() == Some(token);
        self.origins.push(match is_forced {
            false => Origin::Chosen,
            true if position == self.run_start => Origin::Forced,
            true => Origin::ForcedNext,
        });
    }

    /// Whether the last token of the context was forced.
    pub fn is_last_forced(&self) -> bool {
        matches!(
            self.origins.last(),
            Some(Origin::Forced | Origin::ForcedNext)
        )
    }

    /// Only the first `position` of `tokens` are kept.
    pub fn rewind(&mut self, position: usize, tokens: &[u32]) {
        let cut = &self.origins[position..];
        if cut.is_empty() {
            return;
        }
        let of_run = cut.iter().take_while(|o| **o == Origin::ForcedNext).count();
        let mut pending = tokens[position..position + of_run].to_vec();
        if of_run == cut.len() {
            pending.extend(self.rest_of_run());
        }
        self.restart();
        self.pending = pending;
        self.origins.truncate(position);
    }

    /// Brings the matcher behind all of `tokens`, the context.
    ///
    /// Errors: `Grammar` if a limit was reached.
    pub fn follow(&mut self, tokens: &[u32]) -> Result<()> {
        let is_new = self.matcher.is_none();
        let result = self.try_follow(tokens);
        if result.is_err() {
            self.give_up_matcher(is_new);
        }
        result
    }

    fn try_follow(&mut self, tokens: &[u32]) -> Result<()> {
        if self.matcher.is_none() {
            let prompt = self.origins.iter().rposition(|o| *o == Origin::Prompt);
            self.accepted = prompt.map_or(0, |last| last + 1);
        }
        let is_new = self.matcher.is_none();
        // One that is ready has found what comes first: the rest of a cut run must not meet it.
        let at_start = self.accepted == tokens.len() && self.pending.is_empty();
        if is_new && at_start {
            self.matcher = self.next.take();
            self.run_start = tokens.len();
        }
        let grammar = &self.grammar;
        let matcher = self.matcher.get_or_insert_with(|| grammar.matcher());
        for token in &tokens[self.accepted..] {
            matcher.accept(*token)?;
            self.accepted += 1;
        }
        if !self.pending.is_empty() {
            matcher.restore_forced(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }

    /// The token that must come next, if there is no choice. The matcher stands at the end of the
    /// context.
    pub fn next_forced(&mut self, tokenizer: &Tokenizer) -> Result<Option<u32>> {
        let Some(matcher) = &mut self.matcher else {
            fail!(Internal, "a grammar without a matcher");
        };
        let known = matcher.pending().next().is_some();
        let forced = matcher.next_forced(tokenizer);
        if !known {
            self.run_start = self.origins.len();
        }
        if forced.is_err() {
            self.give_up_matcher(false);
        }
        forced
    }

    /// A matcher of its own at the end of the context, where this one stands.
    ///
    /// Errors: `OutOfMemory`.
    pub fn matcher_ahead(&self) -> Result<Matcher> {
        match &self.matcher {
            Some(matcher) => matcher.fork(),
            None => fail!(Internal, "a grammar without a matcher"),
        }
    }

    /// Writes the mask of the next choice. The matcher stands at the end of the context.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        match &mut self.matcher {
            Some(matcher) => matcher.mask(words),
            None => fail!(Internal, "a grammar without a matcher"),
        }
    }

    /// After an error: the matcher is made again by the next call. One that is new has taken over no
    /// pending tokens yet, whatever it holds.
    fn give_up_matcher(&mut self, is_new: bool) {
        if !is_new {
            self.pending = self.rest_of_run().collect();
        }
        self.matcher = None;
    }

    fn restart(&mut self) {
        self.matcher = None;
        self.pending.clear();
    }

    /// The forced tokens that are known behind the context.
    fn rest_of_run(&self) -> impl Iterator<Item = u32> + '_ {
        let of_matcher = self.matcher.iter().flat_map(|matcher| {
            // It may not have followed the last tokens, which are its first ones then.
            let behind = self.origins.len() - self.accepted;
            matcher.pending().skip(behind)
        });
        of_matcher.chain(self.pending.iter().copied())
    }
}

impl Session {
    /// Holds the answers to a grammar from the next decode on, in place of the grammar before. An
    /// answer is what decodes append behind the present end of the context, or behind a later
    /// prefill; each begins anew.
    ///
    /// Errors: `Grammar`, see [`Grammar::compile`]; `Interrupted`; `DecodePending`; `Unsupported` if the model's
    /// tokenizer is not supported or fits no grammar; `OutOfMemory`. The grammar is as before then.
    pub fn set_grammar(
        &mut self,
        kind: GrammarKind,
        text: &str,
        options: &GrammarOptions,
    ) -> Result<()> {
        let result = self.try_set_grammar(kind, text, options);
        self.answered(result)
    }

    fn try_set_grammar(
        &mut self,
        kind: GrammarKind,
        text: &str,
        options: &GrammarOptions,
    ) -> Result<()> {
        self.begin_work()?;
        let vocabulary = self.model.grammar_vocabulary()?;
        let source = Arc::new(GrammarSource {
            kind,
            spacing: options.spacing,
            text: text.to_owned(),
        });
        let (flag, asked) = (self.interrupts.work().clone(), options.interrupt.clone());
        let options = GrammarOptions {
            interrupt: Interrupt::new(move || flag.load(Ordering::Relaxed) || asked.is_asked()),
            ..options.clone()
        };
        let grammar = Grammar::compile(&vocabulary, kind, text, &options)?;
        let mut constraint = Constraint::new(grammar, source, self.position(), self.context())?;
        constraint.ready_next(self.model.tokenizer()?)?;
        let constraint = Box::new(constraint);
        // Nothing that is kept was made with memory of the reserve.
        memory::check()?;
        self.constraint = Some(constraint);
        Ok(())
    }

    /// Takes over a saved grammar. The tokens of the context are there.
    pub(super) fn restore_grammar(&mut self, saved: SavedGrammar) -> Result<()> {
        let vocabulary = self.model.grammar_vocabulary()?;
        let source = saved.source;
        let grammar = Grammar::compile(&vocabulary, source.kind, &source.text, &source.options())?;
        let mut constraint = Constraint::new(grammar, source, 0, self.context())?;
        for (origin, count) in saved.origins {
            let origin = match origin {
                0 => Origin::Prompt,
                1 => Origin::Chosen,
                2 => Origin::Forced,
                3 => Origin::ForcedNext,
                n => fail!(FileCorrupt, "the saved grammar has tokens of origin {n}"),
            };
            constraint
                .origins
                .extend(std::iter::repeat_n(origin, count));
        }
        constraint.pending = saved.pending;
        let constraint = Box::new(constraint);
        // As above.
        memory::check()?;
        self.constraint = Some(constraint);
        Ok(())
    }

    /// Lets decodes choose among all tokens again.
    ///
    /// Errors: `DecodePending`.
    pub fn clear_grammar(&mut self) -> Result<()> {
        self.begin()?;
        self.constraint = None;
        Ok(())
    }

    /// Brings the grammar, if there is one, to the end of the context. The token that has to come
    /// next by it, if that needs no look at the logits.
    pub(super) fn follow_grammar(&mut self) -> Result<Option<u32>> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(None);
        };
        constraint.follow(&self.tokens)?;
        let forced = constraint.next_forced(self.model.tokenizer()?)?;
        // A choice with log-probabilities, or one that the settings forbid, is made as any other,
        // among this one token.
        Ok(forced.filter(|token| self.sampling.logprobs == 0 && !self.is_banned(*token)))
    }

    fn is_banned(&self, token: u32) -> bool {
        let bias = self
            .rules
            .as_ref()
            .and_then(|r| r.bias().get(token as usize));
        bias == Some(&f32::NEG_INFINITY)
    }
}
