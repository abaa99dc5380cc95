//! Some layers of a network, as a network of its own: what a device runs where others run the rest.

use super::{Mixer, Network};
use crate::error::{Result, fail};
use std::ops::Range;

/// How many layers of the whole network are around those of a part. None are around a whole network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// In front of them. Where there are some, the residual stream comes from elsewhere, and tokens are not
    /// embedded.
    pub before: usize,
    /// Behind them. Where there are some, the residual stream goes elsewhere, and there are no logits.
    pub behind: usize,
}

impl Network {
    /// Whether it has the first layer.
    pub fn begins(&self) -> bool {
        self.around.before == 0
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
