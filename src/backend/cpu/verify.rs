//! Drafts: tokens that were guessed are evaluated together, and the choices behind them made one by one, as long as they
//! are the guessed ones.

use super::adapters::Sets;
use super::batch::BatchSpace;
use super::chunk::{Chunk, Places};
use super::runner::{Core, Done};
use crate::backend::{MAX_BATCH, MAX_DRAFTS, MaskSource, Residual};
use crate::engine::sampling::Sampling;
use crate::error::{Result, fail};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

// The drafts and the token before them are a chunk of a batch's memory.
const _: () = assert!(MAX_DRAFTS < MAX_BATCH);

impl Core {
    /// Appends `tokens`, of which the last `drafts` are guesses, and chooses as [`Want::Verified`] says. `outcomes` gets
    /// a choice at least, and at the end the error of one that has failed behind others.
    ///
    /// Errors: those of the evaluation, and of the first choice. The state is as it was then, without logits if it had to
    /// be changed.
    ///
    /// [`Want::Verified`]: crate::backend::Want::Verified
    pub fn verify(
        &mut self,
        (tokens, drafts): (&[u32], usize),
        residual: Residual<'_>,
        sampling: &Sampling,
        mut mask: Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        if outcomes.try_reserve(drafts + 1).is_err() {
            fail!(OutOfMemory, "room for {} outcomes", drafts + 1);
        }
        let before = self.len;
        let known = tokens.len() - drafts;
        let first = self.verify_first(
            (tokens, drafts),
            residual,
            sampling,
            &mut mask,
            interrupt,
            outcomes,
        );
        if first.is_err() {
            self.forget(before, known > 0);
        }
        first
    }

    /// Goes back to `before` after a verification that came to nothing, and did away with the logits if it has `known` tokens.
    pub fn forget(&mut self, before: usize, known: bool) {
        if known {
            self.has_logits = false;
        }
        self.keep(before);
    }

    fn verify_first(
        &mut self,
        (tokens, drafts): (&[u32], usize),
        mut residual: Residual<'_>,
        sampling: &Sampling,
        mask: &mut Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        // The last of the known tokens goes with the drafts.
        let known = tokens.len() - drafts;
        let (earlier, together) = tokens.split_at(known.saturating_sub(1));
        if !earlier.is_empty() {
            let earlier_of = residual.split(earlier.len(), self.weights.hidden);
            self.extend(earlier, earlier_of, true, interrupt)?;
        }
        let end = self.check(together)?;
        self.kv.prepare(self.len, end)?;
        let weights = self.weights.clone();
        let turn = weights.pool.turn(interrupt)?;
        let mut space = weights.batch.lock().unwrap_or_else(|e| e.into_inner());
        let space = match &mut *space {
            Some(space) => space,
            none => none.insert(BatchSpace::new(&weights)?),
        };
        self.kv.fixed.part_rows(together.len())?;
        let place = Places::Run(&self.kv, self.len);
        let sets = self.adapters.as_deref().map(Sets::One);
        let chunk = Chunk::new(&weights, &mut space.chunk, together, place, sets)?;
        chunk.embed(&turn)?;
        let fused = chunk.enter(0, together.len(), residual.input)?;
        chunk.project_entry(&turn, fused)?;
        let (pass, all) = (chunk.pass(&turn), (0, together.len()));
        for index in 0..weights.layers.len() {
            if interrupt.load(Relaxed) {
                fail!(
                    Interrupted,
                    "interrupted at position {}, layer {index}",
                    self.len
                );
            }
            if let Some(states) = &self.states {
                pass.keep_before(index, states, self.len, all);
            }
            chunk.run_layer(&turn, index)?;
        }
        if let Some(states) = &self.states {
            pass.keep(states, self.len, all);
        }
        if !weights.ends.1 {
            fail!(Internal, "drafts are verified where logits are");
        }
        let logits = space.logits.span();
        chunk.all_logits(&turn, logits)?;
        // SAFETY: the batch's memory, which has a row for each token of `together`, and which nobody writes as long as
        // its lock is held.
        let logits = unsafe {
            std::slice::from_raw_parts(logits.base(), together.len() * self.logits.len())
        };
        self.kv.fixed.rows_done(self.len, together.len());
        self.choose_behind((together, drafts), logits, sampling, mask, outcomes)?;
        // Nothing is behind the tokens that were right.
        self.keep(self.len);
        Ok(())
    }

    /// Chooses behind a known token, or by the logits at hand if there is none, and behind `drafts` drafts as long as they are
    /// right. `logits` has a row for each of the tokens. Those that are right are in the state then, whatever comes next; the
    /// evaluated positions behind them are for the caller to forget.
    ///
    /// Errors: those of the first choice.
    pub fn choose_behind(
        &mut self,
        (tokens, drafts): (&[u32], usize),
        logits: &[f32],
        sampling: &Sampling,
        mask: &mut Option<&mut MaskSource<'_>>,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        let mut rows = logits.chunks_exact(self.logits.len());
        let (known, drafts) = tokens.split_at(tokens.len() - drafts);
        for token in known {
            self.take(*token, rows.next());
        }
        for next in drafts.iter().map(Some).chain([None]) {
            let chosen = self.prepare_mask(mask.as_mut().map(|m| &mut **m as &mut MaskSource<'_>));
            let chosen = chosen.and_then(|masked| self.choose(sampling, None, masked));
            let chosen = match chosen {
                Ok(chosen) => chosen,
                Err(e) if outcomes.is_empty() => return Err(e),
                Err(e) => {
                    outcomes.push_back(Err(e));
                    break;
                }
            };
            let token = chosen.token;
            outcomes.push_back(Ok(Done::Token(chosen)));
            if next != Some(&token) {
                break;
            }
            self.take(token, rows.next());
        }
        Ok(())
    }

    /// Notes that a token that was evaluated is part of the state, with its logits.
    fn take(&mut self, token: u32, logits: Option<&[f32]>) {
        self.kv.fixed.take_row(self.len + 1);
        self.append(&[token]);
        if let Some(logits) = logits {
            self.logits.copy_from_slice(logits);
        }
        self.mark(false);
    }
}
