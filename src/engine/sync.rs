//! Making the context what the caller wants it to be.

use super::Session;
use super::session::try_copy;
use crate::backend::When;
use crate::error::{Result, fail};

impl Session {
    /// Makes `tokens` the context: keeps what it has in common with the present one, forgets the rest and
    /// evaluates what is missing, so that there are logits. Returns how many tokens were kept. A grammar's answer
    /// begins behind them.
    ///
    /// Errors: `NoInput`, `InvalidToken`, `ContextFull`, `DecodePending` before anything is done;
    /// `Interrupted`; those of the backend. The context is as it was then, but the next call may have to
    /// evaluate tokens of it again.
    pub fn sync(&mut self, tokens: &[u32]) -> Result<usize> {
        let result = self.try_sync(tokens);
        self.answered(result)
    }

    fn try_sync(&mut self, tokens: &[u32]) -> Result<usize> {
        self.begin_work()?;
        if tokens.is_empty() {
            fail!(NoInput, "a context of no tokens; a rewind to 0 empties it");
        }
        if tokens.len() > self.context() {
            fail!(
                ContextFull,
                "{} tokens do not fit the context's {} positions",
                tokens.len(),
                self.context()
            );
        }
        self.model.check_tokens(tokens)?;
        self.resume()?;
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b);
        let kept = same.count();
        let runner = self.residence.runner()?;
        if kept == tokens.len() && runner.len() == kept && runner.has_logits() {
            // At most the token that the last decode chose is behind them.
            self.tokens.truncate(kept);
        } else {
            let forgotten = try_copy(&self.tokens[kept..])?;
            self.tokens.truncate(kept);
            // The last token is evaluated again where it was kept: its logits are gone.
            self.residence.roll_back_to(kept.min(tokens.len() - 1));
            // Within the capacity, here and below, so nothing is allocated.
            self.tokens.extend_from_slice(&tokens[kept..]);
            let result = self.evaluate(When::Now).and_then(|()| self.wait());
            if let Err(e) = result {
                self.tokens.truncate(kept);
                self.tokens.extend_from_slice(&forgotten);
                return Err(e);
            }
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.all_prompt(tokens.len());
        }
        Ok(kept)
    }
}
