//! What a network has for vectors and scores of texts, on the device.

use super::jobs::Jobs;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::texts::DensePlan;
use crate::error::Result;
use crate::model::{self, DenseActivation, Linear, Pooling};

/// What an encoder has beside the layers.
#[derive(Clone, Debug, Default)]
pub struct EncoderPlan {
    /// A row per kind of token.
    pub token_types: Option<Matrix>,
    /// Norm of the sum of the embeddings.
    pub embedding_norm: Option<args::Norm>,
}

/// Scores of texts.
#[derive(Clone, Debug)]
pub struct ScoresPlan {
    /// How hidden states are pooled for them.
    pub pooling: Pooling,
    /// The last one has a row per score.
    pub layers: Vec<DensePlan>,
    /// Whether the first one's share is the answer.
    pub softmax: bool,
}

/// What follows the final norm.
#[derive(Clone, Debug, Default)]
pub struct ReadoutPlan {
    /// Layers that a pooled vector goes through.
    pub projections: Vec<DensePlan>,
    /// Of the network's own.
    pub scores: Option<ScoresPlan>,
}

impl ReadoutPlan {
    /// Elements of the longest vector that a layer makes.
    pub fn widest(&self) -> u32 {
        let scores = self.scores.iter().flat_map(|scores| &scores.layers);
        let all = self.projections.iter().chain(scores);
        all.map(|dense| dense.outputs).max().unwrap_or(0)
    }
}

impl Jobs {
    /// Lays out what an encoder has.
    pub fn encoder(&mut self, encoder: &model::Encoder) -> Result<EncoderPlan> {
        let table = |weight| Linear { weight, bias: None };
        let kinds = encoder.token_types.clone().map(table);
        Ok(EncoderPlan {
            token_types: kinds.map(|kinds| self.fuse(&[&kinds])).transpose()?,
            embedding_norm: self.find_norm(&encoder.embedding_norm)?,
        })
    }

    /// Lays out what follows the final norm.
    pub fn readout(&mut self, readout: &model::Readout) -> Result<ReadoutPlan> {
        Ok(ReadoutPlan {
            projections: self.dense_layers(&readout.projections)?,
            scores: match &readout.scores {
                None => None,
                Some(scores) => Some(ScoresPlan {
                    pooling: scores.pooling,
                    layers: self.dense_layers(&scores.layers)?,
                    softmax: scores.softmax,
                }),
            },
        })
    }

    fn dense_layers(&mut self, layers: &[model::Dense]) -> Result<Vec<DensePlan>> {
        layers.iter().map(|dense| self.dense(dense)).collect()
    }

    fn dense(&mut self, dense: &model::Dense) -> Result<DensePlan> {
        let weight = &dense.linear.weight;
        let activation = match dense.activation {
            None => args::DenseKind::Plain,
            Some(DenseActivation::Tanh) => args::DenseKind::Tanh,
            Some(DenseActivation::Gelu) => args::DenseKind::Gelu,
        };
        Ok(DensePlan {
            w: self.rows([weight].into_iter(), weight.row_len()),
            bias: self.tensor(dense.linear.bias.as_ref())?,
            inputs: weight.row_len() as u32,
            outputs: weight.rows() as u32,
            activation: activation as u32,
            norm: self.find_norm(&dense.norm)?,
        })
    }
}
