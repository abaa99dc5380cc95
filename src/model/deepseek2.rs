//! `deepseek2`, `mistral4`, `minicpm3` and `plm`: DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash, Mistral Small 4, MiniCPM 3, PLM. What layers
//! keep of a position is one latent vector; keys and values of all heads are products of it.

use super::decoder::Decoder;
use super::experts::{Defaults, Mixture, shared_count_ff, softmax};
use super::granite;
use super::mistral3::temperature;
use super::rope::{self, Ramp};
use super::source::Source;
use super::{
    Activation, Block, LatentAttention, Linear, Mixer, Network, Norm, NormKind, Rope, RopePairing,
    Scoring, Temperature,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Tensor, keys_and_values};

/// Of the norms of latent vectors, whatever that of the others is.
const EPS: f32 = 1e-6;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    network(file, "deepseek2")
}

pub(super) fn mistral4(file: &ModelFile) -> Result<Network> {
    network(file, "mistral4")
}

/// With the factors of MiniCPM, and halves of what is rotated apart.
pub(super) fn minicpm3(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "minicpm3", NormKind::Rms)?;
    d.refuse_experts()?;
    let shape = Shape::read(&d)?;
    let usual = granite::of_minicpm(&d);
    let factor = |i: usize, key: &str| -> Result<f32> {
        Ok(d.source.find_positive(key)?.unwrap_or(usual[i]))
    };
    let residual_scale = factor(0, "residual_scale")?;
    let network = d.network(|i| {
        let attention = Mixer::Latent(Box::new(shape.attention(&d, i)?));
        Ok(Block {
            residual_scale,
            ..d.pre_norm_block(i, attention, d.gated(i, Activation::Silu)?)?
        })
    })?;
    Ok(Network {
        embedding_scale: factor(1, "embedding_scale")?,
        logit_scale: 1.0 / factor(2, "logit_scale")?,
        ..network
    })
}

/// With feed-forward parts without gates.
pub(super) fn plm(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_uneven(file, "plm", NormKind::Rms)?;
    d.refuse_experts()?;
    let shape = Shape::read(&d)?;
    d.network(|i| {
        let attention = Mixer::Latent(Box::new(shape.attention(&d, i)?));
        d.pre_norm_block(i, attention, d.plain(i, Activation::ReluSquared)?)
    })
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let mut d = Decoder::read_uneven(file, architecture, NormKind::Rms)?;
    d.set_predictors_apart()?;
    let shape = Shape::read(&d)?;
    let experts = Defaults {
        scoring: match is_glm_4_7_flash(&d)? {
            true => Scoring::Sigmoid,
            false => Scoring::Softmax,
        },
        normalize: false,
        shared_ff: shared_count_ff(&d)?,
        ..softmax(&d)?
    };
    let experts = Mixture::find(&d, experts)?;
    d.network(|i| {
        let feed_forward = match &experts {
            Some(experts) => experts.or_gated(&d, i)?,
            None => d.gated(i, Activation::Silu)?,
        };
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer: Mixer::Latent(Box::new(shape.attention(&d, i)?)),
            mixer_post_norm: None,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward,
            feed_forward_post_norm: None,
            parallel: false,
            residual_scale: 1.0,
            per_layer: None,
            streams: None,
            output_scale: 1.0,
            mixer_sum_norm: None,
            feed_forward_sum_norm: None,
        })
    })
}

/// Files of this model may not say how experts are chosen. Only its sizes tell it from DeepSeek V2.
fn is_glm_4_7_flash(d: &Decoder) -> Result<bool> {
    let n_vocab = d.source.file.tensor("token_embd.weight")?.rows();
    Ok([47, 48].contains(&d.n_layers) && n_vocab == 154_880)
}

/// Whether what keys and values of each head come from is in one matrix, as the models themselves have it.
fn has_both_in_one(source: &Source) -> bool {
    ["minicpm3", "plm"].contains(&source.architecture())
}

/// Sizes that all layers share.
pub(super) struct Shape {
    q_rank: Option<usize>,
    rank: usize,
    plain_dim: usize,
    value_dim: usize,
    rope: Rope,
    scale: f32,
    temperature: Option<Temperature>,
}

impl Shape {
    pub(super) fn read(d: &Decoder) -> Result<Shape> {
        const HEADS: &str = "attention.head_count";
        const RANK: &str = "attention.kv_lora_rank";
        const Q_RANK: &str = "attention.q_lora_rank";
        const ROTATED: &str = "rope.dimension_count";
        let source = &d.source;
        let of_minicpm = source.architecture() == "minicpm3";
        let in_one = has_both_in_one(source);
        let [keys, values] = match in_one {
            true => ["attention.key_length", "attention.value_length"],
            false => ["attention.key_length_mla", "attention.value_length_mla"],
        };
        if source.has("blk.0.attn_kv_b") && !in_one {
            fail!(
                Unsupported,
                "tensor blk.0.attn_kv_b.weight: the file is of an older converter; newer ones write attn_k_b and attn_v_b"
            );
        }
        let (rank, rotated) = (source.size(RANK)?, source.size(ROTATED)?);
        let (head_dim, value_dim) = match source.find_size(values)? {
            None if of_minicpm => (source.size(keys)?, d.hidden / d.n_heads),
            _ => (source.size(keys)?, source.size(values)?),
        };
        for (key, size) in [(RANK, rank), (keys, head_dim), (values, value_dim)] {
            if size > super::decoder::MAX_HEAD_DIM {
                return Err(source.invalid(key, &format!("is {size}, which is beyond all heads")));
            }
        }
        if rotated >= head_dim || !rotated.is_multiple_of(2) {
            let problem =
                format!("is {rotated}; it must be even and less than the head size {head_dim}");
            return Err(source.invalid(ROTATED, &problem));
        }
        for size in [head_dim, value_dim, rank + rotated] {
            source.product(HEADS, d.n_heads, size)?;
        }
        let q_rank = match source.find::<u64>(Q_RANK)? {
            None | Some(0) => None,
            Some(_) => Some(source.size(Q_RANK)?),
        };
        let pairing = match of_minicpm {
            true => RopePairing::Halves,
            false => RopePairing::Interleaved,
        };
        let mut rope =
            rope::from_source(source, rotated, d.context_length, pairing, Ramp::Rounded)?;
        if source.architecture() == "kimi-linear" {
            // What others rotate stands still.
            rope = Rope {
                inv_freq: rope.inv_freq.iter().map(|_| 0.0).collect(),
                magnitude: 1.0,
                pairing,
                long: None,
            };
        }
        let scale = 1.0 / (head_dim as f64).sqrt() * rope::latent_factor(source)?.powi(2);
        Ok(Shape {
            q_rank,
            rank,
            plain_dim: head_dim - rotated,
            value_dim,
            rope,
            scale: scale as f32,
            temperature: temperature(d)?,
        })
    }

    pub(super) fn attention(&self, d: &Decoder, layer: usize) -> Result<LatentAttention> {
        let (source, hidden, n_heads) = (&d.source, d.hidden, d.n_heads);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let rotated = 2 * self.rope.inv_freq.len();
        let plain = |part: &str, inputs, outputs| source.linear(&name(part), inputs, outputs);
        let norm = |part: &str, len| -> Result<Norm> {
            Ok(Norm {
                kind: NormKind::Rms,
                weight: source.vector(&format!("{}.weight", name(part)), len)?,
                bias: None,
                eps: EPS,
            })
        };
        let heads = |part: &str, inputs, outputs| {
            let mut heads = source.stacked_linear(&name(part), inputs, outputs, n_heads)?;
            heads.bias = None;
            Ok::<Linear, crate::Error>(heads)
        };
        let q_len = n_heads * (self.plain_dim + rotated);
        let (q_a, q_a_norm, q) = match self.q_rank {
            Some(rank) => (
                Some(plain("attn_q_a", hidden, rank)?),
                Some(norm("attn_q_a_norm", rank)?),
                plain("attn_q_b", rank, q_len)?,
            ),
            None => (None, None, plain("attn_q", hidden, q_len)?),
        };
        let both = name("attn_kv_b");
        let [to_latent, from_latent] = match has_both_in_one(source) {
            true => {
                let rows = n_heads * (self.plain_dim + self.value_dim);
                let both = source.matrix(&format!("{both}.weight"), self.rank, rows)?;
                let [keys, values] = keys_and_values(both, n_heads, self.plain_dim)?;
                let apart = |weight: Tensor| -> Result<Linear> {
                    Ok(Linear {
                        weight: weight.in_memory()?,
                        bias: None,
                    })
                };
                [apart(keys)?, apart(values)?]
            }
            false => [
                heads("attn_k_b", self.plain_dim, self.rank)?,
                heads("attn_v_b", self.rank, self.value_dim)?,
            ],
        };
        Ok(LatentAttention {
            n_heads,
            rank: self.rank,
            plain_dim: self.plain_dim,
            value_dim: self.value_dim,
            q_a,
            q_a_norm,
            q,
            kv: plain("attn_kv_a_mqa", hidden, self.rank + rotated)?,
            kv_norm: Some(norm("attn_kv_a_norm", self.rank)?),
            to_latent,
            from_latent,
            gate: None,
            output: plain("attn_output", n_heads * self.value_dim, hidden)?,
            rope: self.rope.clone(),
            scale: self.scale,
            temperature: self.temperature,
        })
    }
}
