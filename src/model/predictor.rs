//! Heads that guess further tokens (multi-token prediction): layers behind the last one, of which each, with what is around
//! it, is a network of its own.
//!
//! With `h` the model's hidden state of a position, behind the final norm, and `t` the token of the next position, the layers
//! of such a network begin with `projection(concat(token_norm(embedding[t]), state_norm(h)))` as the residual stream, and its
//! logits say what follows `t`. Its own state behind its final norm is the `h` of the next position, if that is to be guessed, too.
//! (That states come from behind the norms: vLLM's `qwen3_next_mtp.py` for the Qwen models, SGLang's `deepseek_nextn.py` for those
//! of DeepSeek and GLM.)

use super::decoder::Decoder;
use super::{Block, Linear, Network, Norm, Surroundings};
use crate::error::{Result, fail};

/// What a head has in front of its layers.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Of the embedding of a token.
    pub token_norm: Norm,
    /// Of the hidden state.
    pub state_norm: Norm,
    /// `hidden` x `2 * hidden`.
    pub projection: Linear,
}

impl Entry {
    /// Its norms.
    pub fn norms(&self) -> [&Norm; 2] {
        [&self.token_norm, &self.state_norm]
    }
}

impl Decoder<'_> {
    /// The head of a network that has these tensors at the place of layer `layer`, whose block is given.
    pub(super) fn predictor(
        &self,
        network: &Network,
        layer: usize,
        block: Block,
    ) -> Result<Network> {
        let (source, hidden) = (&self.source, self.hidden);
        let name = |part: &str| format!("blk.{layer}.nextn.{part}");
        let norm = |part: &str| match self.norm(layer, &format!("nextn.{part}"))? {
            Some(norm) => Ok(norm),
            None => fail!(Internal, "a norm that is nothing"),
        };
        if network.positions.is_some() || network.per_layer.is_some() || network.streams.is_some() {
            fail!(
                Unsupported,
                "architecture {}: a head of such a network is not supported",
                source.architecture()
            );
        }
        let own = |part: &str| source.has(&name(part));
        Ok(Network {
            embedding: match own("embed_tokens") {
                true => {
                    let name = format!("{}.weight", name("embed_tokens"));
                    source.matrix(&name, hidden, network.n_vocab)?
                }
                false => network.embedding.clone(),
            },
            entry: Some(Box::new(Entry {
                token_norm: norm("enorm")?,
                state_norm: norm("hnorm")?,
                projection: source.linear(&name("eh_proj"), 2 * hidden, hidden)?,
            })),
            blocks: vec![block],
            final_norm: match own("shared_head_norm") {
                true => norm("shared_head_norm")?,
                false => network.final_norm.clone(),
            },
            head: match own("shared_head_head") {
                true => source.linear(&name("shared_head_head"), hidden, network.n_vocab)?,
                false => network.head.clone(),
            },
            around: Surroundings {
                before: network.blocks.len(),
                behind: 0,
            },
            readout: Default::default(),
            ..network.clone()
        })
    }
}
