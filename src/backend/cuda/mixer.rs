//! The parts of a network that mix positions, on the device: a file for each kind, with what it is, what
//! memory it needs between its kernels, and how a step and a chunk do it.

mod attention;
mod latent;
mod recurrent;

pub use attention::AttentionPlan;
pub(super) use attention::{ChunkAttention, StepAttention};
pub use latent::LatentPlan;
pub(super) use latent::{ChunkLatent, StepLatent};
pub use recurrent::RecurrentPlan;
pub(super) use recurrent::{ChunkRecurrent, StepRecurrent};

use super::matrix::Matrix;
use super::plan::Jobs;
use crate::error::{Result, fail};
use crate::model::{KvShape, Mixer, MixerState};

/// A mixer on the device.
#[derive(Clone, Debug)]
pub enum MixerPlan {
    /// Self-attention.
    Attention(Box<AttentionPlan>),
    /// Self-attention to latent vectors.
    Latent(Box<LatentPlan>),
    /// What keeps a state of fixed size.
    Recurrent(Box<RecurrentPlan>),
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
        if let Mixer::Latent(latent) = mixer
            && latent.temperature.is_some()
        {
            fail!(
                Unsupported,
                "layer {layer}: latent attention whose queries grow with their position is not supported on a GPU; it is on a CPU"
            );
        }
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
            (Mixer::ShortConv(conv), MixerState::Fixed(shape)) => Ok(MixerPlan::Recurrent(
                Box::new(self.short_conv(layer, conv, shape)?),
            )),
            (other, _) => fail!(
                Unsupported,
                "layer {layer} is {}, which is not supported on a GPU; it is on a CPU",
                other.name()
            ),
        }
    }
}

impl MixerPlan {
    /// The matrices that are products of whole rows.
    pub fn matrices(&self) -> Vec<&Matrix> {
        match self {
            MixerPlan::Attention(attention) => vec![&attention.qkv, &attention.output],
            MixerPlan::Latent(latent) => latent.matrices().collect(),
            MixerPlan::Recurrent(recurrent) => vec![&recurrent.input, &recurrent.output],
        }
    }

    /// Self-attention, where that is what it is.
    pub fn as_attention(&self) -> Option<&AttentionPlan> {
        match self {
            MixerPlan::Attention(attention) => Some(attention),
            MixerPlan::Latent(_) | MixerPlan::Recurrent(_) => None,
        }
    }

    /// The keys and values that it keeps.
    pub fn kv(&self) -> KvShape {
        match self {
            MixerPlan::Attention(attention) => attention.kv,
            MixerPlan::Latent(latent) => latent.kv,
            MixerPlan::Recurrent(_) => KvShape::NONE,
        }
    }
}
