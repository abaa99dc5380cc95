//! Some layers of a network, as a network of its own: what a device runs where others run the rest.

use super::{Block, FeedForward, Mixer, Network};
use crate::error::{Result, fail};
use std::ops::Range;
use std::sync::Arc;

/// How many layers of the whole network are around those of a part. None are around a whole network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// In front of them. Where there are some, the residual stream comes from elsewhere, and tokens are not
    /// embedded.
    pub before: usize,
    /// Behind them. Where there are some, the residual stream goes elsewhere, and there are no logits.
    pub behind: usize,
}

impl Block {
    /// Whether its experts can be evaluated elsewhere: nothing but the residual stream goes there and comes back.
    fn has_separable_experts(&self) -> bool {
        let alone = !self.parallel && self.streams.is_none() && self.per_layer.is_none();
        alone && self.feed_forward.experts().is_some()
    }
}

impl Network {
    /// Layers of which the host can evaluate the experts for another device.
    pub fn separable_experts(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks.filter(|block| block.has_separable_experts()).count()
    }

    /// The network without the feed-forward parts of the first `count` layers whose experts can be apart, and a network of these
    /// parts alone.
    pub fn experts_apart(&self, count: usize) -> (Network, Arc<Network>) {
        let (mut rest, mut apart) = (self.clone(), self.clone());
        apart.blocks.clear();
        for block in &mut rest.blocks {
            if apart.blocks.len() == count {
                break;
            }
            if !block.has_separable_experts() {
                continue;
            }
            let index = apart.blocks.len();
            let feed_forward =
                std::mem::replace(&mut block.feed_forward, FeedForward::OnHost(index));
            apart.blocks.push(Block {
                mixer: Mixer::Absent,
                mixer_norm: None,
                mixer_post_norm: None,
                mixer_sum_norm: None,
                feed_forward_norm: block.feed_forward_norm.take(),
                feed_forward,
                feed_forward_post_norm: block.feed_forward_post_norm.take(),
                feed_forward_sum_norm: block.feed_forward_sum_norm.take(),
                ..block.clone()
            });
            block.output_scale = 1.0;
        }
        // Neither embeddings nor logits.
        apart.around = Surroundings {
            before: 1,
            behind: 1,
        };
        let apart = Arc::new(apart);
        rest.host = (count > 0).then(|| apart.clone());
        (rest, apart)
    }

    /// Whether it is of parts of layers that another device has evaluated ([`Network::experts_apart`]).
    pub fn is_apart(&self) -> bool {
        let mut mixers = self.blocks.iter().map(|block| &block.mixer);
        mixers.all(|mixer| matches!(mixer, Mixer::Absent))
    }

    /// Whether it has the first layer.
    pub fn begins(&self) -> bool {
        self.around.before == 0
    }

    /// Whether it looks up embeddings of tokens.
    pub fn embeds(&self) -> bool {
        self.begins() || self.entry.is_some()
    }

    /// Whether it has the last layer, and what comes behind that.
    pub fn ends(&self) -> bool {
        self.around.behind == 0
    }

    /// Elements of the logits that it makes: none where it does not end.
    pub fn logits_len(&self) -> usize {
        if self.ends() { self.n_vocab } else { 0 }
    }

    /// Whether what comes in front of layer `at` and the rest can be parts: nothing but the residual stream goes
    /// from one to the other.
    pub fn can_be_cut(&self, at: usize) -> bool {
        let shares = self.blocks[at.min(self.blocks.len())..].iter();
        let mut shares = shares.filter_map(|block| match &block.mixer {
            Mixer::Attention(attention) => attention.shares,
            _ => None,
        });
        let alone = self.encoder.is_none() && self.streams.is_none() && self.per_layer.is_none();
        alone && (1..self.blocks.len()).contains(&at) && !shares.any(|layer| layer < at)
    }

    /// Some of its layers. Errors: `Unsupported` where it cannot be cut there.
    pub fn part(&self, layers: Range<usize>) -> Result<Network> {
        let n = self.blocks.len();
        if layers.is_empty() || layers.end > n {
            fail!(Internal, "layers {layers:?} of {n}");
        }
        let inner = [layers.start, layers.end].into_iter();
        if let Some(at) = inner
            .filter(|at| (1..n).contains(at))
            .find(|at| !self.can_be_cut(*at))
        {
            fail!(
                Unsupported,
                "architecture {}: layers from {at} on need more of those before than the residual stream",
                self.architecture
            );
        }
        let mut part = self.clone();
        part.blocks = self.blocks[layers.clone()].to_vec();
        for block in &mut part.blocks {
            if let Mixer::Attention(attention) = &mut block.mixer
                && let Some(shares) = &mut attention.shares
            {
                *shares -= layers.start;
            }
        }
        part.around = Surroundings {
            before: self.around.before + layers.start,
            behind: self.around.behind + n - layers.end,
        };
        Ok(part)
    }
}
