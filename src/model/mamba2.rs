//! Mamba 2 in files: its hyperparameters and tensors, whose names all families share; and `mamba2`, the family with
//! nothing else.

use super::decoder::{Decoder, bare_block};
use super::hybrid::conv_width;
use super::{Block, FeedForward, Linear, Mamba2, Network, Norm, NormKind};
use crate::error::Result;
use crate::format::ModelFile;

const INNER: &str = "ssm.inner_size";
const STATE: &str = "ssm.state_size";
const HEADS: &str = "ssm.time_step_rank";
const GROUPS: &str = "ssm.group_count";

/// `mamba2`: Mamba 2 and Codestral Mamba. Their files say that there are no heads.
pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_without_heads(file, "mamba2", NormKind::Rms)?;
    let sizes = Sizes::read(&d)?;
    d.network(|i| {
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            ..bare_block(sizes.layer(&d, i)?, FeedForward::None)
        })
    })
}

/// Sizes of all layers.
pub(super) struct Sizes {
    inner: usize,
    n_heads: usize,
    n_groups: usize,
    state_dim: usize,
    width: usize,
}

impl Sizes {
    pub(super) fn read(d: &Decoder) -> Result<Sizes> {
        let source = &d.source;
        let (inner, n_heads) = (source.size(INNER)?, source.size(HEADS)?);
        if !inner.is_multiple_of(n_heads) {
            let problem = format!(
                "is {inner}, which is not a multiple of {}, {n_heads}",
                source.key_name(HEADS)
            );
            return Err(source.invalid(INNER, &problem));
        }
        let n_groups = source.size(GROUPS)?;
        if !n_heads.is_multiple_of(n_groups) {
            let problem = format!(
                "is {n_groups}, which does not divide {}, {n_heads}",
                source.key_name(HEADS)
            );
            return Err(source.invalid(GROUPS, &problem));
        }
        let state_dim = source.size(STATE)?;
        let states = source.product(STATE, state_dim, n_groups)?;
        source.product(INNER, inner, state_dim)?;
        source.product(STATE, states, 4)?;
        let width = conv_width(source, "ssm.conv_kernel")?;
        source.product(INNER, 2 * inner + 2 * states + n_heads, width)?;
        Ok(Sizes {
            inner,
            n_heads,
            n_groups,
            state_dim,
            width,
        })
    }

    /// The mixer of a layer.
    pub(super) fn layer(&self, d: &Decoder, layer: usize) -> Result<Mamba2> {
        self.layer_with(d, layer, true)
    }

    /// The same, with a norm or without.
    pub(super) fn layer_with(&self, d: &Decoder, layer: usize, normed: bool) -> Result<Mamba2> {
        let (source, hidden) = (&d.source, d.hidden);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (inner, heads) = (self.inner, self.n_heads);
        let states = self.n_groups * self.state_dim;
        let lens = [inner, inner, states, states, heads];
        let [z, x, b, c, dt]: [Linear; 5] = source.fused(&name("ssm_in"), hidden, lens, None)?;
        Ok(Mamba2 {
            n_heads: heads,
            head_dim: inner / heads,
            n_groups: self.n_groups,
            state_dim: self.state_dim,
            z,
            x,
            b,
            c,
            dt,
            conv: source.conv(&name("ssm_conv1d"), inner + 2 * states, self.width)?,
            decay: source.vector_in_rows(&name("ssm_a"), 1, heads)?,
            dt_bias: source.vector(&name("ssm_dt.bias"), heads)?,
            dt_min: 0.0,
            dt_max: f32::INFINITY,
            skip: source.vector_in_rows(&name("ssm_d"), 1, heads)?,
            norm: match normed {
                true => Some(Norm {
                    kind: NormKind::Rms,
                    weight: source.vector_in_rows(
                        &name("ssm_norm.weight"),
                        inner / self.n_groups,
                        self.n_groups,
                    )?,
                    bias: None,
                    eps: d.eps,
                }),
                false => None,
            },
            norm_groups: self.n_groups,
            // No other program's files have it.
            norm_before_gate: source.find("ssm.norm_before_gate")?.unwrap_or(false),
            output: source.linear(&name("ssm_out"), inner, hidden)?,
        })
    }
}
