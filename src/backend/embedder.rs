//! Vectors and scores of whole texts: what a device does without a session.

use crate::error::{Result, fail};
use crate::model::{AdapterSet, Mixer, Network, Pooling};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a network has that is not there without a session, if it has that.
pub(super) fn without_texts(network: &Network) -> Option<&'static str> {
    network.blocks.iter().find_map(|block| match &block.mixer {
        Mixer::Attention(a) if a.shares.is_none() => None,
        Mixer::Attention(_) => Some("layers that read the keys and values of others"),
        mixer => Some(mixer.name()),
    })
}

/// `Unsupported` for networks that have no vectors of texts, by [`without_texts`].
pub(super) fn check_texts(without: Option<&'static str>) -> Result<()> {
    match without {
        None => Ok(()),
        Some(what) => fail!(
            Unsupported,
            "vectors of texts are not supported for models with {what}"
        ),
    }
}

/// What [`Weights::create_runner`](super::Weights::create_runner) says of an encoder.
pub(super) const NO_SESSIONS: &str =
    "the model is an encoder, which has no next token: it makes vectors of texts, but no sessions";

/// What embedders say that are to score by logits which there are not,
pub(super) const NO_JUDGE: &str = "an encoder has no logits to score texts by";
/// or whose rows adapters change,
pub(super) const ADAPTED_JUDGE: &str =
    "scores by the logits of two tokens do not go with an adapter of the head (output.weight)";
/// or that have nothing to score by.
pub(super) const NO_SCORES: &str = "the model has no layer that scores texts";

/// The probability of the first of some logits.
pub(super) fn share_of_first(logits: &[f32]) -> f32 {
    let first = f64::from(logits.first().copied().unwrap_or(0.0));
    let all = logits.iter().map(|x| (f64::from(*x) - first).exp());
    (1.0 / all.sum::<f64>()) as f32
}

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
