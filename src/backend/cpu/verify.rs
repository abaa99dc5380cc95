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
            (tokens, known),
            residual,
            sampling,
            &mut mask,
            interrupt,
            outcomes,
        );
        if first.is_err() {
            if known > 0 {
                self.has_logits = false;
            }
            self.keep(before);
        }
        first
    }

    fn verify_first(
        &mut self,
        (tokens, known): (&[u32], usize),
        mut residual: Residual<'_>,
        sampling: &Sampling,
        mask: &mut Option<&mut MaskSource<'_>>,
        interrupt: &AtomicBool,
        outcomes: &mut VecDeque<Result<Done>>,
    ) -> Result<()> {
        // The last of the known tokens goes with the drafts.
        let (earlier, together) = tokens.split_at(known.saturating_sub(1));
        if !earlier.is_empty() {
            let earlier_of = residual.split(earlier.len() * self.weights.hidden);
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
        let place = Places::Run(&self.kv, self.len);
        let sets = self.adapters.as_deref().map(Sets::One);
        let chunk = Chunk::new(&weights, &mut space.chunk, together, place, sets)?;
        chunk.embed(&turn)?;
        if let Some(input) = residual.input {
            chunk.enter(0, input);
        }
        for index in 0..weights.layers.len() {
            if interrupt.load(Relaxed) {
                fail!(
                    Interrupted,
                    "interrupted at position {}, layer {index}",
                    self.len
                );
            }
            chunk.run_layer(&turn, index)?;
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
        let mut rows = logits.chunks_exact(self.logits.len());
        let drafts = match known {
            0 => together,
            _ => {
                self.take(together[0], rows.next());
                &together[1..]
            }
        };
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
        // Nothing is behind the tokens that were right.
        self.keep(self.len);
        Ok(())
    }

    /// Notes that a token that was evaluated is part of the state, with its logits.
    fn take(&mut self, token: u32, logits: Option<&[f32]>) {
        self.append(&[token]);
        if let Some(logits) = logits {
            self.logits.copy_from_slice(logits);
        }
    }
}
