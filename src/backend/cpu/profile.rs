//! Where the time of a decode step goes.

use super::kv::KvCache;
use super::layer::{NormWeights, Product};
use super::weights::CpuWeights;
use crate::backend::{Profile, Work};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Takes the time at the ends of phases, on the thread that leads: waiting for the others is part of
/// a phase.
pub(super) struct Clock(Mutex<(Instant, Profile)>);

impl Clock {
    /// Starts now.
    pub fn start() -> Clock {
        Clock(Mutex::new((Instant::now(), Profile::default())))
    }

    fn state(&self) -> MutexGuard<'_, (Instant, Profile)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a phase that read `bytes`, and starts the next.
    pub fn end(&self, work: Work, bytes: u64) {
        let now = Instant::now();
        let mut state = self.state();
        let microseconds = now.duration_since(state.0).as_secs_f64() * 1e6;
        state.1.add(work, microseconds, bytes);
        state.0 = now;
    }

    /// What was taken.
    pub fn profile(self) -> Profile {
        self.state().1
    }
}

/// A clock or none.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a>(pub Option<&'a Clock>);

impl Marks<'_> {
    /// See [`Clock::end`]; `bytes` is asked for only if there is a clock.
    pub fn end(&self, work: Work, bytes: impl FnOnce() -> u64) {
        if let Some(clock) = self.0 {
            clock.end(work, bytes());
        }
    }

    /// Ends a norm and what encodes its result.
    pub fn end_norm(&self, norm: Option<&NormWeights>) {
        self.end(Work::Norm, || norm_bytes(norm));
    }
}

/// Bytes that products read of their weights.
pub(super) fn product_bytes<'p>(products: impl IntoIterator<Item = &'p Product>) -> u64 {
    let bytes = |p: &Product| {
        let bias = p.bias.as_ref().map_or(0, |b| size_of_val(b.as_slice()));
        (p.tensor.bytes().len() + bias) as u64
    };
    products.into_iter().map(bytes).sum()
}

/// Bytes that a norm reads of its weights.
pub(super) fn norm_bytes<'n>(norms: impl IntoIterator<Item = &'n NormWeights>) -> u64 {
    let bytes = |norm: &NormWeights| (norm.floats() * size_of::<f32>()) as u64;
    norms.into_iter().map(bytes).sum()
}

/// Bytes of keys and values that attention at `position` reads in a layer.
pub(super) fn attention_bytes(kv: &KvCache, layer: usize, position: usize) -> u64 {
    kv.seen_bytes(layer, position)
}

/// Bytes of a token's embedding.
pub(super) fn embedding_bytes(weights: &CpuWeights) -> u64 {
    (weights.embedding.bytes() / weights.embedding.rows().max(1)) as u64
}
