//! Mamba, the first, in files: its hyperparameters and tensors; and `mamba`, the family with nothing else.

use super::decoder::{Decoder, bare_block};
use super::hybrid::conv_width;
use super::{Block, FeedForward, Linear, Mamba1, Network, Norm, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

const INNER: &str = "ssm.inner_size";
const STATE: &str = "ssm.state_size";
const RANK: &str = "ssm.time_step_rank";
/// Whether time steps, `B` and `C` have norms without weights.
const NORMED: &str = "ssm.dt_b_c_rms";
/// The epsilon of those norms, where it is not that of the others.
const NORMED_EPS: &str = "ssm.dt_b_c_rms_epsilon";

/// `mamba`: Mamba and Falcon Mamba. Their files say that there are no heads.
pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_without_heads(file, "mamba", NormKind::Rms)?;
    let norms = match d.source.find(NORMED)?.unwrap_or(false) {
        true => Norms::Plain(d.source.find_positive(NORMED_EPS)?.unwrap_or(d.eps)),
        false => Norms::None,
    };
    let sizes = Sizes::read(&d)?;
    d.network(|i| {
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            ..bare_block(sizes.layer(&d, i, norms)?, FeedForward::None)
        })
    })
}

/// Norms of a time step's short form, of `B` and of `C`.
#[derive(Clone, Copy)]
pub(super) enum Norms {
    /// There are none.
    None,
    /// They have no weights, and this epsilon.
    Plain(f32),
    /// Their weights are tensors.
    Weighted,
}

/// Sizes of all layers.
pub(super) struct Sizes {
    inner: usize,
    state_dim: usize,
    rank: usize,
    width: usize,
}

impl Sizes {
    pub(super) fn read(d: &Decoder) -> Result<Sizes> {
        let source = &d.source;
        let inner = source.size(INNER)?;
        source.product(INNER, inner, 2)?;
        let state_dim = source.size(STATE)?;
        let states = source.product(STATE, state_dim, 2)?;
        // Whole blocks of channels are kept.
        source.product(STATE, state_dim, inner.next_multiple_of(Mamba1::CHANNELS))?;
        let rank = source.size(RANK)?;
        source.product(RANK, rank.saturating_add(states), 1)?;
        let width = conv_width(source, "ssm.conv_kernel")?;
        source.product(INNER, inner, width)?;
        Ok(Sizes {
            inner,
            state_dim,
            rank,
            width,
        })
    }

    /// The mixer of a layer.
    pub(super) fn layer(&self, d: &Decoder, layer: usize, norms: Norms) -> Result<Mamba1> {
        let (source, hidden) = (&d.source, d.hidden);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (inner, state_dim, rank) = (self.inner, self.state_dim, self.rank);
        let [x, z]: [Linear; 2] = source.fused(&name("ssm_in"), hidden, [inner; 2], None)?;
        let decay = source.numbers(&name("ssm_a"), &[state_dim, inner])?;
        let short = source.linear(&name("ssm_x"), inner, rank + 2 * state_dim)?;
        let norm = |part: &str, len: usize| -> Result<Option<Norm>> {
            Ok(match norms {
                Norms::None => None,
                Norms::Plain(eps) => {
                    let weight = format!("{}.weight", name(part));
                    Some(Norm::plain(NormKind::Rms, &weight, len, eps)?)
                }
                Norms::Weighted => Some(source.norm(&name(part), len, NormKind::Rms, d.eps)?),
            })
        };
        Ok(Mamba1 {
            state_dim,
            x,
            z,
            conv: source.conv(&name("ssm_conv1d"), inner, self.width)?,
            short,
            dt_norm: norm("ssm_dt_norm", rank)?,
            b_norm: norm("ssm_b_norm", state_dim)?,
            c_norm: norm("ssm_c_norm", state_dim)?,
            dt: Linear {
                weight: source.matrix(&name("ssm_dt.weight"), rank, inner)?,
                bias: Some(source.vector(&name("ssm_dt.bias"), inner)?),
            },
            decay,
            skip: source.vector(&name("ssm_d"), inner)?,
            output: source.linear(&name("ssm_out"), inner, hidden)?,
        })
    }
}
