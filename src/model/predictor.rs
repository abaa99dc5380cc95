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
use std::sync::Arc;

/// What a head has in front of its layers.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Of the embedding of a token.
    pub token_norm: Norm,
    /// Of the hidden state.
    pub state_norm: Norm,
    /// `hidden` x `2 * hidden`; of a head with a [`Fusion`], `hidden` x three times the width of the model.
    pub projection: Linear,
    /// What is different in a head that reads several hidden states of each position.
    pub fusion: Option<Fusion>,
}

/// A head of EAGLE-3 (arXiv:2503.01840), which comes in a file of its own. With `s` the residual stream of the model at three places
/// and `t` the token of the next position, `h = projection(concat(s))`, and queries, keys and values of its one layer are made of
/// `concat(token_norm(embedding[t]), state_norm(h))`. What the layer adds is added to `h`, or to `state_norm(h)`. The residual stream
/// behind the layer is the `h` of the next position, if that is to be guessed, too.
#[derive(Clone, Debug)]
pub struct Fusion {
    /// The places: before the layer of that number, behind the last one for as many as there are. If a file does not say so, they are
    /// [`Fusion::places_in`].
    pub places: Option<[usize; 3]>,
    /// Whether the residual stream begins as `state_norm(h)`.
    pub normed_stream: bool,
    /// The tokens that it knows, by rows of its output matrix, ascending; all if there are none.
    pub ids: Option<Arc<[u32]>>,
    /// Whether it has an embedding of its own; if not, the network has another tensor in that place, and the model's is to take it.
    pub own_embedding: bool,
}

impl Network {
    /// What is different if it is a head of EAGLE-3; none for other networks.
    pub fn fusion(&self) -> Option<&Fusion> {
        self.entry.as_ref()?.fusion.as_ref()
    }
}

impl Fusion {
    /// The places in a model of so many layers; none if it has too few.
    pub fn places_in(&self, n_layers: usize) -> Option<[usize; 3]> {
        let usual = || Some([2, n_layers / 2, n_layers.checked_sub(3)?]);
        let places = self.places.or_else(usual)?;
        places
            .iter()
            .all(|place| *place <= n_layers)
            .then_some(places)
    }
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
        if network.positions.is_some()
            || network.embedding_norm.is_some()
            || network.per_layer.is_some()
            || network.streams.is_some()
        {
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
                fusion: None,
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
