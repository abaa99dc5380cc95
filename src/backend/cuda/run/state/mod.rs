//! What a session keeps on a GPU.
//!
//! | file | holds |
//! |---|---|
//! | `fixed` | what layers keep of fixed size, and copies to go back to |
//! | `stream` | a state to a stream of no device, and back |

mod fixed;
mod stream;

pub use fixed::FixedState;
pub use stream::Staging;

use crate::backend::cuda::driver::{Context, Range, Stream};
use crate::backend::cuda::launch::attention::KV_TILE;
use crate::backend::cuda::network::kv_plan::KvPlan;
use crate::backend::state::{WindowState, keeps};
use crate::error::{Result, fail};
use std::sync::Arc;

const CACHE: &str = "KV cache";

/// The keys and values of a session: a cache that grows with the context, of the layers that see all
/// of it, and a ring, of the layers with a window.
pub struct State {
    plan: KvPlan,
    /// Positions that fit.
    context: usize,
    /// The cache that grows, whose full pages forks share, and the ring.
    caches: [Range; 2],
    /// What the layers with windows hold.
    windows: Vec<WindowState>,
    /// What layers keep of fixed size.
    pub fixed: FixedState,
}

impl State {
    /// Reserves addresses for `context` positions, and memory for the first one.
    pub fn new(
        device: &Arc<Context>,
        plan: KvPlan,
        fixed: FixedState,
        context: usize,
    ) -> Result<State> {
        let mut state = State::unbacked(device, plan, fixed, context)?;
        state.back(state.plan.bytes(context.min(1))?)?;
        Ok(state)
    }

    /// The same without memory. A page is a tile of the cache, or several, so that full ones can be
    /// shared.
    fn unbacked(
        device: &Arc<Context>,
        plan: KvPlan,
        fixed: FixedState,
        context: usize,
    ) -> Result<State> {
        let [all, ring] = plan.bytes(context)?;
        let [tile, _] = plan.tile_bytes();
        Ok(State {
            caches: [
                Range::reserve(device, all, tile)?,
                Range::reserve(device, ring, 1)?,
            ],
            windows: plan.windows(),
            plan,
            fixed,
            context,
        })
    }

    /// Where everything lies.
    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The addresses of the cache that grows and of the ring.
    pub fn addresses(&self) -> [u64; 2] {
        [self.caches[0].address(), self.caches[1].address()]
    }

    /// What the layers with windows hold.
    pub fn windows(&self) -> &[WindowState] {
        &self.windows
    }

    /// Whether the first `len` positions can be gone on with: whether windows still reach back to
    /// what comes after them sees, and states of fixed size are there.
    fn keeps(&self, len: usize) -> bool {
        keeps(&self.windows, len) && self.fixed.keeps(len)
    }

    /// The most positions up to `len` that can be gone on with.
    pub fn reachable(&self, len: usize) -> usize {
        if self.keeps(len) {
            return len;
        }
        let mut marks = self.fixed.marked().rev();
        marks.find(|p| *p <= len && self.keeps(*p)).unwrap_or(0)
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.windows = self.plan.windows();
        self.fixed.clear();
    }

    fn back(&mut self, bytes: [usize; 2]) -> Result<()> {
        for (cache, bytes) in self.caches.iter_mut().zip(bytes) {
            cache.grow(bytes, CACHE)?;
        }
        Ok(())
    }

    /// Backs the positions up to `end`, and readies those from `len` on for writing. Waits for
    /// `stream` where a page is shared with a fork.
    ///
    /// Errors: `ContextFull`; `OutOfMemory`. No position has changed then.
    pub fn prepare(&mut self, len: usize, end: usize, stream: &Stream) -> Result<()> {
        if end > self.context {
            fail!(
                ContextFull,
                "{end} positions do not fit a context of {}",
                self.context
            );
        }
        self.back(self.plan.bytes(end)?)?;
        if len < end {
            let [tile, _] = self.plan.tile_bytes();
            let (from, to) = (len / KV_TILE * tile, end.div_ceil(KV_TILE) * tile);
            self.caches[0].own(from, to, stream)?;
        }
        let oldest = self.plan.oldest(end);
        for state in &mut self.windows {
            state.from = state.from.max(oldest);
        }
        Ok(())
    }

    /// The same first `len` positions for another session: full pages are shared, the rest is copied
    /// on `stream`, which is waited for.
    pub fn fork(&self, device: &Arc<Context>, len: usize, stream: &Stream) -> Result<State> {
        let fixed = self.fixed.fork(device, stream)?;
        let mut other = State::unbacked(device, self.plan.clone(), fixed, self.context)?;
        other.windows = self.windows.clone();
        let [tile, _] = self.plan.tile_bytes();
        let full = len / KV_TILE * tile;
        let shared = other.caches[0].share(&self.caches[0], full)?;
        let [all, _] = self.plan.bytes(len)?;
        other.back(self.plan.bytes(len.max(self.context.min(1)))?)?;
        // The ring may hold positions from behind the last one that a rewind has left.
        let ring = self.caches[1].backed();
        other.caches[1].grow(ring, CACHE)?;
        let parts = [(0, shared, all.saturating_sub(shared)), (1, 0, ring)];
        let copied = parts
            .into_iter()
            .filter(|(.., bytes)| *bytes > 0)
            .try_for_each(|(cache, from, bytes)| {
                let at = |state: &State| state.caches[cache].address() + from as u64;
                // SAFETY: both ranges are backed that far and different; the copies are awaited below.
                unsafe { stream.copy(at(&other), at(self), bytes) }
            });
        let idle = stream.synchronize();
        copied.and(idle)?;
        Ok(other)
    }
}
