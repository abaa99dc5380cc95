//! What is made of the hidden states of a text: a vector, or scores.

use super::{Linear, Norm};
use crate::format::Tensor;

/// How the hidden states of a text's positions become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// They do not: each position has its own.
    None,
    /// Their mean.
    Mean,
    /// That of the first position.
    First,
    /// That of the last position.
    Last,
}

/// What makes a network an encoder: it reads a text as a whole, so there is no next token and no session.
/// Its head is the embedding, and nobody multiplies by it.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    /// A row of `hidden` per kind of token, added to its embedding. Of a pair of texts, the second is of
    /// kind 1, if there is one.
    pub token_types: Option<Tensor>,
    /// Norm of the sum of the embeddings.
    pub embedding_norm: Option<Norm>,
}

/// What follows the final norm where vectors or scores are wanted.
#[derive(Clone, Debug, Default)]
pub struct Readout {
    /// How the model was trained to be pooled, if the file says so.
    pub pooling: Option<Pooling>,
    /// Whether vectors get the length 1, if the file says so.
    pub normalized: Option<bool>,
    /// The longest text that the model was trained for, if it is shorter than its context.
    pub max_tokens: Option<usize>,
    /// Layers that the pooled vector goes through.
    pub projections: Vec<Dense>,
    /// Scores of a text or a pair of texts.
    pub scores: Option<Scores>,
}

/// A layer that scores pooled vectors.
#[derive(Clone, Debug)]
pub struct Scores {
    /// How the hidden states are pooled for it.
    pub pooling: Pooling,
    /// The layers, of which the last one has a row per score.
    pub layers: Vec<Dense>,
    /// Whether the scores are turned into probabilities, the first of which is the answer.
    pub softmax: bool,
}

/// `norm(activation(W x + b))`.
#[derive(Clone, Debug)]
pub struct Dense {
    /// W and b.
    pub linear: Linear,
    /// Nothing without.
    pub activation: Option<DenseActivation>,
    /// Nothing without.
    pub norm: Option<Norm>,
}

/// Activations of [`Dense`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseActivation {
    /// `tanh(x)`
    Tanh,
    /// See [`super::Activation::Gelu`].
    Gelu,
}

impl Encoder {
    /// Every tensor.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let norm = self.embedding_norm.iter().flat_map(norm_tensors);
        self.token_types.iter().chain(norm)
    }
}

impl Readout {
    /// All layers.
    pub fn layers(&self) -> impl Iterator<Item = &Dense> {
        let scores = self.scores.iter().flat_map(|scores| &scores.layers);
        self.projections.iter().chain(scores)
    }

    /// Every tensor.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers().flat_map(|dense| {
            let linear = std::iter::once(&dense.linear.weight).chain(&dense.linear.bias);
            linear.chain(dense.norm.iter().flat_map(norm_tensors))
        })
    }
}

fn norm_tensors(norm: &Norm) -> impl Iterator<Item = &Tensor> {
    std::iter::once(&norm.weight).chain(&norm.bias)
}
