//! A session under a grammar: which tokens of the context are the answer, and what may follow.

use super::Session;
use crate::budget::Interrupt;
use crate::error::{Result, fail, try_vec};
use crate::grammar::{Grammar, GrammarKind, GrammarOptions, Matcher};
use crate::text::Tokenizer;
use std::sync::atomic::Ordering;

/// Where a token of the context comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Was there before the grammar, or came by a prefill.
    Prompt,
    /// Was chosen.
    Chosen,
    /// Was forced, as the first of a run that was found at once.
    Forced,
    /// Was forced behind another of its run.
    ForcedNext,
}

/// The grammar of a session. The answer that it follows is the run of decoded tokens at the end of
/// the context.
pub(super) struct Constraint {
    grammar: Grammar,
    /// Stands behind the first `accepted` tokens of the context; none if it has to start again.
    matcher: Option<Matcher>,
    accepted: usize,
    /// Of each token of the context.
    origins: Vec<Origin>,
    /// Where the forced run begins that was found last.
    run_start: usize,
    /// The rest of a forced run that a rewind has cut, which comes next.
    pending: Vec<u32>,
}

impl Constraint {
    fn new(grammar: Grammar, position: usize, context: usize) -> Result<Constraint> {
        let mut origins = try_vec(context, Origin::Prompt, "token origins")?;
        origins.truncate(position);
        Ok(Constraint {
            grammar,
            matcher: None,
            accepted: 0,
            origins,
            run_start: usize::MAX,
            pending: Vec::new(),
        })
    }

    /// The same state for a fork of the session.
    pub fn duplicate(&self, context: usize) -> Result<Constraint> {
        let mut other = Constraint::new(self.grammar.duplicate(), 0, context)?;
        other.origins.extend_from_slice(&self.origins);
        other.pending.extend(self.rest_of_run());
        Ok(other)
    }

    /// Tokens were prefilled: the next answer begins behind them.
    pub fn prefilled(&mut self, count: usize) {
        let prompt = std::iter::repeat_n(Origin::Prompt, count);
        self.origins.extend(prompt);
        self.restart();
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
        let result = self.try_follow(tokens);
        if result.is_err() {
            self.pending = self.rest_of_run().collect();
            self.matcher = None;
        }
        result
    }

    fn try_follow(&mut self, tokens: &[u32]) -> Result<()> {
        if self.matcher.is_none() {
            let prompt = self.origins.iter().rposition(|o| *o == Origin::Prompt);
            self.accepted = prompt.map_or(0, |last| last + 1);
        }
        let is_new = self.matcher.is_none();
        let grammar = &self.grammar;
        let matcher = self.matcher.get_or_insert_with(|| grammar.matcher());
        for token in &tokens[self.accepted..] {
            matcher.accept(*token)?;
            self.accepted += 1;
        }
        if is_new {
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
            self.restart();
        }
        forced
    }

    /// Writes the mask of the next choice. The matcher stands at the end of the context.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        match &mut self.matcher {
            Some(matcher) => matcher.mask(words),
            None => fail!(Internal, "a grammar without a matcher"),
        }
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
        self.begin()?;
        let vocabulary = self.model.grammar_vocabulary()?;
        let (flag, asked) = (self.interrupt.clone(), options.interrupt.clone());
        let options = GrammarOptions {
            interrupt: Interrupt::new(move || flag.load(Ordering::Relaxed) || asked.is_asked()),
            ..options.clone()
        };
        let grammar = Grammar::compile(&vocabulary, kind, text, &options)?;
        let constraint = Constraint::new(grammar, self.position(), self.context())?;
        self.constraint = Some(Box::new(constraint));
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
