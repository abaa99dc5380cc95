//! Choosing tokens on the device: what a session keeps there for it.

use crate::backend::cuda::driver::arena::{Arena, Placed};
use crate::backend::cuda::driver::{Buffer, Context, Pinned, Stream};
use crate::backend::cuda::launch::args::{self, LogprobEntry};
use crate::backend::{MaskSource, fill_mask};
use crate::engine::sampling::{Breakers, Logprobs, Sampling, TokenRules, dry_longest};
use crate::error::{Result, try_vec};
use crate::panics::catch;
use std::sync::Arc;

/// A session's memory for its choices.
pub struct SamplingState {
    memory: Placed<Buffer, Places>,
    pinned: Pinned,
    /// Where a ring of [`LogprobEntry`] is in `pinned`, behind the place where the host writes a mask
    /// that is copied to the device's.
    ring: usize,
    /// Shared with forks.
    rules: Option<Arc<Rules>>,
    n_vocab: usize,
}

/// Addresses of the parts of a session's memory for its choices.
#[derive(Clone, Copy)]
struct Places {
    /// The tokens in the cache.
    history: u64,
    adjusted: u64,
    counts: u64,
    lengths: u64,
    mask: u64,
}

impl Places {
    /// For a vocabulary and a context.
    fn place(arena: &mut Arena, n_vocab: usize, positions: usize) -> Places {
        let n_vocab = n_vocab as u64;
        Places {
            history: arena.array::<u32>(positions as u64),
            adjusted: arena.array::<f32>(n_vocab),
            counts: arena.array::<u32>(n_vocab),
            lengths: arena.array::<u32>(n_vocab),
            mask: arena.array::<u32>(n_vocab.div_ceil(32)),
        }
    }
}

/// Rules on the device; no buffer for what they do not say.
struct Rules {
    bias: Option<Buffer>,
    single_breakers: Option<Buffer>,
    breakers: Option<Buffer>,
}

impl SamplingState {
    /// Bytes of device memory for a session.
    pub fn bytes(n_vocab: usize, context: usize) -> u64 {
        Arena::count(|arena| Places::place(arena, n_vocab, context))
    }

    /// Memory for a context of so many positions and a ring of so many results.
    pub fn new(
        context: &Arc<Context>,
        n_vocab: usize,
        positions: usize,
        slots: usize,
    ) -> Result<SamplingState> {
        let what = "memory of sampling";
        let memory = Placed::new(
            |arena| Places::place(arena, n_vocab, positions),
            |bytes| Buffer::new(context, bytes, what),
        )?;
        // Counts and lengths are zeros between any two steps.
        for at in [memory.at().counts, memory.at().lengths] {
            let offset = (at - memory.memory().address()) as usize;
            memory.memory().clear(offset, n_vocab * 4)?;
        }
        let ring = (n_vocab.div_ceil(32) * 4).next_multiple_of(256);
        let pinned_bytes = ring + slots * size_of::<LogprobEntry>();
        Ok(SamplingState {
            memory,
            pinned: Pinned::new(context, pinned_bytes, what)?,
            ring,
            rules: None,
            n_vocab,
        })
    }

    /// Writes the addresses into the device-side state.
    pub fn enter(&self, state: &mut args::Session) {
        let at = self.memory.at();
        state.history = at.history;
        state.adjusted = at.adjusted;
        state.counts = at.counts;
        state.lengths = at.lengths;
        state.mask = if self.reads_host_mask() {
            self.pinned.address()
        } else {
            at.mask
        };
        state.logprobs = self.pinned.address() + self.ring as u64;
    }

    /// Takes over the rules of another session and its first `len` tokens.
    ///
    /// # Safety
    /// Both sessions' memory must be valid until the work is done.
    pub unsafe fn follow(
        &mut self,
        stream: &Stream,
        other: &SamplingState,
        len: usize,
    ) -> Result<()> {
        self.rules.clone_from(&other.rules);
        // SAFETY: by contract, both sessions' memory stays valid until the work is done.
        unsafe { stream.copy(self.history(), other.history(), len * 4) }
    }

    /// The address of the tokens in the cache.
    fn history(&self) -> u64 {
        self.memory.at().history
    }

    /// Takes over rules. The old ones' memory goes, so no step may be under way.
    pub fn set_rules(&mut self, context: &Arc<Context>, rules: Option<&TokenRules>) -> Result<()> {
        self.rules = match rules {
            Some(rules) => Some(Arc::new(Rules {
                bias: buffer(context, rules.bias())?,
                single_breakers: buffer(context, rules.breakers().single())?,
                breakers: buffer(context, &packed(rules.breakers())?)?,
            })),
            None => None,
        };
        Ok(())
    }

    /// The device's form of settings that have passed [`Sampling::check`].
    pub fn settings(&self, s: &Sampling, masked: bool) -> args::Settings {
        let address = |of: fn(&Rules) -> &Option<Buffer>| {
            let buffer = self.rules.as_ref().and_then(|rules| of(rules).as_ref());
            buffer.map_or(0, Buffer::address)
        };
        let dries = s.dries();
        args::Settings {
            seed: s.seed,
            bias: address(|r| &r.bias),
            single_breakers: address(|r| &r.single_breakers),
            breakers: address(|r| &r.breakers),
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            typical_p: s.typical_p,
            penalty_window: if s.penalizes() { s.penalty_window } else { 0 },
            repeat_penalty: s.repeat_penalty,
            presence_penalty: s.presence_penalty,
            frequency_penalty: s.frequency_penalty,
            dry_multiplier: if dries { s.dry.multiplier } else { 0.0 },
            dry_base: s.dry.base,
            dry_allowed_length: s.dry.allowed_length,
            dry_window: s.dry.window,
            dry_longest: if dries { dry_longest(&s.dry) } else { 0 },
            logprobs: s.logprobs,
            masked: u32::from(masked),
        }
    }

    /// Enqueues the copy of tokens that are evaluated from position `at` on.
    ///
    /// # Safety
    /// The memory must live until the work is done.
    pub unsafe fn remember(&self, stream: &Stream, at: usize, tokens: &[u32]) -> Result<()> {
        let to = self.history() + at as u64 * 4;
        // SAFETY: the caller has checked that they fit the context; the source is read before this
        // returns, as it is not pinned.
        unsafe { stream.copy_in(to, tokens.as_ptr().cast(), size_of_val(tokens)) }
    }

    /// Asks for a mask and enqueues its copy. No earlier copy may be under way.
    ///
    /// # Safety
    /// The memory must live until the work is done.
    pub unsafe fn mask(&mut self, stream: &Stream, source: &mut MaskSource<'_>) -> Result<()> {
        let (words, pointer) = (self.n_vocab.div_ceil(32), self.pinned.pointer());
        // SAFETY: pinned memory of so many words, which only this function and the copies that it
        // enqueues use.
        let host = unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u32>(), words) };
        // A panic would leave the device at work on what the caller holds to be idle.
        catch(|| fill_mask(source, self.n_vocab, host))?;
        if self.reads_host_mask() {
            return Ok(());
        }
        // SAFETY: both ranges are of this size, and live until the work is done, as the caller promises.
        unsafe { stream.copy_in(self.memory.at().mask, pointer, words * 4) }
    }

    /// Whether the kernels read the mask where the host writes it: a copy of its own takes longer than
    /// what few loads over the bus add.
    pub fn reads_host_mask(&self) -> bool {
        self.n_vocab <= 1 << 15
    }

    /// What the device reported in this entry of the ring.
    pub fn logprobs(&self, slot: usize) -> Logprobs {
        let ring = self.pinned.pointer().wrapping_add(self.ring);
        let ring = ring.cast::<LogprobEntry>();
        // SAFETY: the ring has this entry, which the device has written before the result that came
        // with it; any bytes are a value.
        let entry = unsafe { ring.add(slot).read_volatile() };
        let n = (entry.count as usize).min(entry.ids.len());
        let top = entry.ids.into_iter().zip(entry.logits).take(n);
        Logprobs::from_parts(entry.best, entry.sum, entry.chosen, top)
    }
}

fn buffer<T: Copy>(context: &Arc<Context>, data: &[T]) -> Result<Option<Buffer>> {
    match data {
        [] => Ok(None),
        data => Buffer::from_slice(context, data, "rules of sampling").map(Some),
    }
}

/// Sequences as the kernels read them: the length of the longest, a bit per token that one of them
/// starts with, then each as its length and its tokens, then 0. Empty for none.
fn packed(breakers: &Breakers) -> Result<Vec<u32>> {
    let (heads, sequences) = (breakers.heads(), breakers.sequences());
    let Some(longest) = sequences.iter().map(|s| s.len()).max() else {
        return Ok(Vec::new());
    };
    let words = 2 + heads.len() + sequences.iter().map(|s| 1 + s.len()).sum::<usize>();
    let mut packed = try_vec(words, 0u32, "sequence breakers")?;
    packed.clear();
    packed.push(longest as u32);
    packed.extend_from_slice(heads);
    for sequence in sequences {
        packed.push(sequence.len() as u32);
        packed.extend_from_slice(sequence);
    }
    packed.push(0);
    Ok(packed)
}
