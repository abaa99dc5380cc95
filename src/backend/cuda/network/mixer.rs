//! The parts of a network that mix positions, on the device: a file for each kind, with what it is, what
//! memory it needs between its kernels, and how a step and a chunk do it.

mod attention;
mod heads;
mod latent;
mod mamba1;
mod recurrent;

pub use attention::AttentionPlan;
pub(super) use attention::{ChunkAttention, StepAttention};
pub use latent::LatentPlan;
pub(super) use latent::{ChunkLatent, StepLatent};
pub use mamba1::Mamba1Plan;
pub(super) use mamba1::{ChunkMamba1, StepMamba1};
pub use recurrent::RecurrentPlan;
pub(super) use recurrent::{ChunkRecurrent, StepRecurrent};

use super::jobs::Jobs;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::error::{Result, fail};
use crate::model::{KvShape, Mixer, MixerState};

/// A mixer on the device.
#[derive(Clone, Debug)]
pub enum MixerPlan {
    /// Self-attention.
    Attention(Box<AttentionPlan>),
    /// Self-attention to latent vectors.
    Latent(Box<LatentPlan>),
    /// What keeps a state of fixed size, but for the first Mamba.
    Recurrent(Box<RecurrentPlan>),
    /// The first Mamba.
    Mamba1(Box<Mamba1Plan>),
    /// Self-attention, and what keeps a state of fixed size: both read the same input, and their outputs are added.
    SideBySide(Box<SideBySidePlan>),
    /// None, as of a guest, which begins behind the mixer of a layer.
    Absent,
}

/// Two mixers of a layer on the device.
#[derive(Clone, Debug)]
pub struct SideBySidePlan {
    /// Whose output is added first.
    pub attention: AttentionPlan,
    /// The other one.
    pub recurrent: RecurrentPlan,
}

impl Jobs {
    /// Lays out the mixer of layer `layer`, which keeps `state`. `Unsupported` names what the kernels
    /// cannot do.
    pub(super) fn mixer(
        &mut self,
        layer: usize,
        mixer: &Mixer,
        state: MixerState,
    ) -> Result<MixerPlan> {
        match (mixer, state) {
            (Mixer::Attention(attention), MixerState::Kv(kv)) => {
                let plan = self.attention(layer, attention, kv)?;
                Ok(MixerPlan::Attention(Box::new(plan)))
            }
            (Mixer::Latent(latent), MixerState::Kv(kv)) => {
                let plan = self.latent(layer, latent, kv)?;
                Ok(MixerPlan::Latent(Box::new(plan)))
            }
            (Mixer::DeltaNet(net), MixerState::Fixed(shape)) => Ok(MixerPlan::Recurrent(Box::new(
                self.delta_net(layer, net, shape)?,
            ))),
            (Mixer::Mamba2(mamba), MixerState::Fixed(shape)) => Ok(MixerPlan::Recurrent(Box::new(
                self.mamba2(layer, mamba, shape)?,
            ))),
            (Mixer::Mamba1(mamba), MixerState::Fixed(shape)) => Ok(MixerPlan::Mamba1(Box::new(
                self.mamba1(layer, mamba, shape)?,
            ))),
            (Mixer::SideBySide(both), MixerState::Both(kv, shape)) => {
                let plan = SideBySidePlan {
                    attention: self.attention(layer, &both.attention, kv)?,
                    recurrent: self.mamba2(layer, &both.mamba, shape)?,
                };
                Ok(MixerPlan::SideBySide(Box::new(plan)))
            }
            (Mixer::ShortConv(conv), MixerState::Fixed(shape)) => Ok(MixerPlan::Recurrent(
                Box::new(self.short_conv(layer, conv, shape)?),
            )),
            (Mixer::Absent, _) => Ok(MixerPlan::Absent),
            (other, state) => fail!(Internal, "layer {layer} is {} with {state:?}", other.name()),
        }
    }
}

impl MixerPlan {
    /// The matrices that are products of whole rows.
    pub fn matrices(&self) -> Vec<&Matrix> {
        match self {
            MixerPlan::Attention(attention) => vec![&attention.qkv, &attention.output],
            MixerPlan::Latent(latent) => latent.matrices().collect(),
            MixerPlan::Recurrent(recurrent) => recurrent.matrices().collect(),
            MixerPlan::Mamba1(mamba) => mamba.matrices().into(),
            MixerPlan::SideBySide(both) => {
                let (a, r) = (&both.attention, &both.recurrent);
                vec![&a.qkv, &a.output, &r.input, &r.output]
            }
            MixerPlan::Absent => Vec::new(),
        }
    }

    /// Self-attention, where it is that or has that.
    pub fn as_attention(&self) -> Option<&AttentionPlan> {
        match self {
            MixerPlan::Attention(attention) => Some(attention),
            MixerPlan::SideBySide(both) => Some(&both.attention),
            MixerPlan::Latent(_)
            | MixerPlan::Recurrent(_)
            | MixerPlan::Mamba1(_)
            | MixerPlan::Absent => None,
        }
    }

    /// The keys and values that it keeps.
    pub fn kv(&self) -> KvShape {
        match self {
            MixerPlan::Attention(attention) => attention.kv,
            MixerPlan::Latent(latent) => latent.kv,
            MixerPlan::SideBySide(both) => both.attention.kv,
            MixerPlan::Recurrent(_) | MixerPlan::Mamba1(_) | MixerPlan::Absent => KvShape::NONE,
        }
    }
}
