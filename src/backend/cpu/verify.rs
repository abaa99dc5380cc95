//! Drafts: tokens that were guessed are evaluated together, and the choices behind them made one by one, as long as they
//! are the guessed ones.

use super::adapters::Sets;
use super::batch::BatchSpace;
use super::chunk::{Chunk, Places};
use super::runner::{Core, Done};
use crate::backend::{MAX_BATCH, MAX_DRAFTS, MaskSource, Residual};
use crate::engine::sampling::Sampling;
use crate::error::{Result, fail, try_vec};
use crate::memory::{Account, Charge};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

// The drafts and the token before them are a chunk of a batch's memory.
const _: () = assert!(MAX_DRAFTS < MAX_BATCH);

/// The logits of rows whose drafts were right, of a last part of a network: other parts may be unable to evaluate the last position again with the
/// bits that it had, so its logits must be there where the state goes back to a row.
#[derive(Default)]
pub(super) struct RowLogits {
    /// `[rows][n_vocab]`, within a capacity that is reserved.
    logits: Vec<f32>,
    /// Positions before the first row.
    first: usize,
    /// Whether the state may go back to a row, once.
    back: bool,
    _charge: Option<Charge>,
}

impl RowLogits {
    /// Reserves memory for so many rows. Errors: `OutOfMemory`.
    pub fn reserve(&mut self, rows: usize, n_vocab: usize, account: &Arc<Account>) -> Result<()> {
        let floats = rows.saturating_mul(n_vocab);
        if self.logits.capacity() >= floats {
            return Ok(());
        }
        let bytes = floats.saturating_mul(size_of::<f32>());
        let charge = account.charge(bytes, "logits of drafts")?;
        let mut logits = try_vec(floats, 0.0, "logits of drafts")?;
        logits.clear();
        (self.logits, self._charge) = (logits, Some(charge));
        Ok(())
    }

    /// Rows follow behind so many positions.
    fn begin(&mut self, first: usize) {
        self.logits.clear();
        (self.first, self.back) = (first, false);
    }

    /// The next row was right. Its logits are kept if memory is reserved.
    fn take(&mut self, logits: &[f32]) {
        if self.logits.capacity() - self.logits.len() >= logits.len() {
            self.logits.extend_from_slice(logits);
        }
    }

    /// Lets the state go back to a row.
    pub fn allow_back(&mut self) {
        self.back = true;
    }

    /// The logits of the row that the state of so many positions is, if it may go back there.
    pub fn go_back(&mut self, len: usize, n_vocab: usize) -> Option<&[f32]> {
        if !std::mem::take(&mut self.back) {
            return None;
        }
        let row = len.checked_sub(self.first + 1)?;
        self.logits.get(row * n_vocab..(row + 1) * n_vocab)
    }
}

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
        self.evaluate_together(together, residual, interrupt, |core, logits| {
            let Some(logits) = logits else {
                fail!(Internal, "drafts are verified where logits are");
            };
            core.choose_behind((together, drafts), logits, sampling, mask, outcomes)
        })?;
        // Nothing is behind the tokens that were right.
        self.keep(self.len);
        Ok(())
    }

    /// Evaluates tokens, each of which has a state of its own, as [`Want::Drafted`] says. The state is that behind all of them then, and
    /// can go back to behind any of them.
    ///
    /// Errors: those of the evaluation. The state is as it was then.
    ///
    /// [`Want::Drafted`]: crate::backend::Want::Drafted
    pub fn draft(
        &mut self,
        tokens: &[u32],
        residual: Residual<'_>,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let before = self.len;
        let evaluated = self.evaluate_together(tokens, residual, interrupt, |core, _| {
            for token in tokens {
                core.kv.fixed.take_row(core.len + 1);
                core.append(&[*token]);
            }
            core.has_logits = false;
            Ok(())
        });
        if evaluated.is_err() {
            self.keep(before);
        }
        evaluated
    }

    /// What becomes of the rows of the last pass: see [`Runner::settle_drafts`].
    ///
    /// [`Runner::settle_drafts`]: crate::backend::Runner::settle_drafts
    pub fn settle_drafts(&mut self, position: Option<usize>) {
        if let Some(position) = position.filter(|position| *position <= self.len) {
            // Where choices are made, the state is marked when they are.
            if !self.weights.ends.1 && self.kv.fixed.is_due(position) {
                self.kv.fixed.mark(position, None);
            }
            if position < self.len {
                return;
            }
        }
        self.kv.fixed.forget_rows();
    }

    /// Evaluates tokens behind the state, and has `end` take them, whose logits these are, `[tokens][n_vocab]`, if the layers end the
    /// network.
    fn evaluate_together(
        &mut self,
        together: &[u32],
        residual: Residual<'_>,
        interrupt: &AtomicBool,
        end: impl FnOnce(&mut Core, Option<&[f32]>) -> Result<()>,
    ) -> Result<()> {
        let behind = self.check(together)?;
        self.rows.begin(self.len);
        self.kv.prepare(self.len, behind)?;
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
        if let Some(output) = residual.output {
            chunk.leave(0, output);
        }
        let logits = match weights.ends.1 {
            true => {
                let logits = space.logits.span();
                chunk.all_logits(&turn, logits)?;
                // SAFETY: the batch's memory, which has a row for each token of `together`, and which nobody writes as long as
                // its lock is held.
                Some(unsafe {
                    std::slice::from_raw_parts(logits.base(), together.len() * self.logits.len())
                })
            }
            false => None,
        };
        self.kv.fixed.rows_done(self.len, together.len());
        end(self, logits)
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
            self.rows.take(logits);
        }
        self.mark(false);
    }
}
