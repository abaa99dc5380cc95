//! Feed-forward parts, as the kernels take them.

#![expect(missing_docs, reason = "fields are named as those of the network")]

use super::args;
use super::matrix::Matrix;
use crate::error::{Result, fail};
use crate::model::Activation;

/// Numbers of activations, as `ActivationKind` of activation.cuh.
pub const SILU: u32 = 0;
pub const CLAMPED_SWIGLU: u32 = 3;

/// The kernels' number and constants of an activation. Errors: `Unsupported` for those that they lack.
pub fn activation(activation: Activation) -> Result<args::Activation> {
    let (kind, alpha, limit) = match activation {
        Activation::Silu => (SILU, 0.0, 0.0),
        Activation::GeluTanh => (1, 0.0, 0.0),
        Activation::Gelu => (2, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (CLAMPED_SWIGLU, alpha, limit),
        Activation::ReluSquared => (4, 0.0, 0.0),
        Activation::Xielu { alpha_p, alpha_n } => (5, alpha_p, alpha_n),
        Activation::LimitedSilu { limit } => (6, 0.0, limit),
        Activation::Relu => fail!(
            Unsupported,
            "ReLU in feed-forward parts is not supported on a GPU; it is on a CPU"
        ),
    };
    Ok(args::Activation { kind, alpha, limit })
}

/// A feed-forward part on the device.
#[derive(Clone, Debug)]
pub struct MlpPlan {
    /// Gate, then up; or up alone.
    pub up: Matrix,
    pub gated: bool,
    pub n_ff: u32,
    pub activation: args::Activation,
    /// From how many standard deviations above their mean gates count, if not all do as they are.
    pub cutoff: Option<f32>,
    /// Of what `down` reads.
    pub inner_norm: Option<args::Norm>,
    pub down: Matrix,
}

impl MlpPlan {
    /// How the input of `down` comes from the output of `up`.
    pub fn source(&self) -> args::Source {
        if self.gated {
            args::Source::Gated
        } else {
            args::Source::Activated
        }
    }
}
