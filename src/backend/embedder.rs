//! Vectors and scores of whole texts: what a device does without a session.

use crate::error::Result;
use crate::model::{AdapterSet, Pooling};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What an embedder is made with.
#[derive(Clone)]
pub struct EmbedderOptions {
    /// Tokens of the longest text.
    pub max_tokens: usize,
    /// Tokens of all texts that are evaluated together, at least `max_tokens`.
    pub batch_tokens: usize,
    /// Logits of the last position that become the score, that of the second against that of the
    /// first: ids of tokens, for models without a layer for it.
    pub judged_by: Option<[u32; 2]>,
    /// What is added to products.
    pub adapters: Option<Arc<AdapterSet>>,
}

/// What is made of the hidden states of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Vectors: one, or without pooling one for each position.
    Vectors(Pooling),
    /// Scores.
    Scores,
}

/// A text.
#[derive(Clone, Copy, Debug)]
pub struct TextTokens<'a> {
    /// Its tokens, from 1 to the most that the embedder is for.
    pub tokens: &'a [u32],
    /// Where the second text of a pair begins; the number of tokens if there is none.
    pub second: usize,
}

/// Makes vectors or scores of texts on a device, with memory of its own. Its results depend neither on
/// which texts are evaluated together, nor on who else uses the device.
pub trait Embedder: Send {
    /// Bytes of its memory.
    fn bytes(&self) -> u64;

    /// Elements of an output: of each position, without pooling.
    fn width(&self, output: Output) -> usize;

    /// Evaluates as many of the first texts together as there is room for, at least one, and writes
    /// their outputs to `out`, one behind the other. Returns how many texts it were.
    ///
    /// Errors: `Interrupted`; `OutOfMemory`; those of the device.
    fn run(
        &mut self,
        texts: &[TextTokens<'_>],
        output: Output,
        out: &mut [f32],
        interrupt: &AtomicBool,
    ) -> Result<usize>;
}
