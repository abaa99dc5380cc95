//! `qwen3next` (Qwen 3 Next), `qwen35` and `qwen35moe` (Qwen 3.5 and 3.6, text): gated delta nets, and
//! in every fourth layer attention whose output is gated.

use super::decoder::{Decoder, bare_block};
use super::experts::{Defaults, Mixture, shared_ff, softmax};
use super::hybrid::conv_width;
use super::{
    Activation, Attention, Block, DeltaNet, DeltaSteps, FeedForward, Linear, Mixer, Network,
    NormKind, Rope, RopePairing,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};

const INNER: &str = "ssm.inner_size";
const KEY_DIM: &str = "ssm.state_size";
const VALUE_HEADS: &str = "ssm.time_step_rank";
const KEY_HEADS: &str = "ssm.group_count";
const INTERVAL: &str = "full_attention_interval";
const RECURRENT: &str = "attention.recurrent_layers";

pub(super) fn next(file: &ModelFile) -> Result<Network> {
    network(file, "qwen3next")
}

pub(super) fn dense(file: &ModelFile) -> Result<Network> {
    network(file, "qwen35")
}

pub(super) fn experts(file: &ModelFile) -> Result<Network> {
    network(file, "qwen35moe")
}

fn network(file: &ModelFile, architecture: &'static str) -> Result<Network> {
    let mut d = Decoder::read(file, architecture, NormKind::Rms)?;
    d.set_predictors_apart()?;
    let rope = d.rope(RopePairing::Halves)?;
    let sizes = Sizes::read(&d)?;
    let recurrent = recurrent(&d)?;
    let experts = match architecture {
        "qwen35" => {
            d.refuse_experts()?;
            None
        }
        _ => {
            let experts = Defaults {
                shared_ff: shared_ff(&d)?,
                ..softmax(&d)?
            };
            Some(Mixture::new(&d, experts)?)
        }
    };
    d.network(|i| {
        let feed_forward: FeedForward = match &experts {
            Some(experts) => experts.layer(&d, i)?,
            None => d.gated(i, Activation::Silu)?,
        };
        // The head behind the layers attends.
        let mixer = match recurrent.get(i).is_some_and(|is| *is) {
            true => sizes.delta_net(&d, i)?.into(),
            false => Mixer::from(attention(&d, i, &rope)?),
        };
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: d.norm(i, "post_attention_norm")?,
            ..bare_block(mixer, feed_forward)
        })
    })
}

/// Which layers are recurrent: by a flag for each, or all but every so many-th.
pub(super) fn recurrent(d: &Decoder) -> Result<Vec<bool>> {
    let source = &d.source;
    let key = source.key(RECURRENT);
    if let Some(Value::Array(_)) = source.file.metadata.get(&key) {
        let flags: Vec<bool> = source.file.get(&key)?;
        if flags.len() < d.n_layers {
            let problem = format!(
                "has {} values, but there are {} layers",
                flags.len(),
                d.n_layers
            );
            return Err(source.invalid(RECURRENT, &problem));
        }
        return Ok(flags[..d.n_layers].to_vec());
    }
    let interval = source.find_size(INTERVAL)?.unwrap_or(4);
    let recurrent = |layer: usize| !(layer + 1).is_multiple_of(interval);
    Ok((0..d.n_layers).map(recurrent).collect())
}

/// Attention with a gate: of each head, the rows of the query, then those of the gate.
fn attention(d: &Decoder, layer: usize, rope: &Rope) -> Result<Attention> {
    let (q, kv) = (d.n_heads * d.head_dim, d.n_kv_heads * d.head_dim);
    let both = d.source.product("attention.head_count", q, 2)?;
    let matrices = d.qkv(layer, [both, kv, kv])?;
    Ok(Attention {
        gated: true,
        q_norm: d.norm_of(layer, "attn_q_norm", d.head_dim)?,
        k_norm: d.norm_of(layer, "attn_k_norm", d.head_dim)?,
        ..d.attention_with(layer, matrices, Some(rope))?
    })
}

/// Sizes of the delta nets of all layers.
pub(super) struct Sizes {
    n_key_heads: usize,
    n_value_heads: usize,
    tiled: bool,
    key_dim: usize,
    value_dim: usize,
    width: usize,
    /// Elements of all queries, of all values, and of both and the keys.
    keys: usize,
    values: usize,
    channels: usize,
}

impl Sizes {
    pub(super) fn read(d: &Decoder) -> Result<Sizes> {
        let source = &d.source;
        let n_key_heads = source.size(KEY_HEADS)?;
        let n_value_heads = source.size(VALUE_HEADS)?;
        if !n_value_heads.is_multiple_of(n_key_heads) {
            let problem = format!(
                "is {n_key_heads}, which does not divide {}, {n_value_heads}",
                source.key_name(VALUE_HEADS)
            );
            return Err(source.invalid(KEY_HEADS, &problem));
        }
        let values = source.size(INNER)?;
        if !values.is_multiple_of(n_value_heads) {
            let problem = format!(
                "is {values}, which is not a multiple of {}, {n_value_heads}",
                source.key_name(VALUE_HEADS)
            );
            return Err(source.invalid(INNER, &problem));
        }
        let key_dim = source.size(KEY_DIM)?;
        let width = conv_width(source, "ssm.conv_kernel")?;
        let keys = source.product(KEY_DIM, key_dim, n_key_heads)?;
        let Some(channels) = keys.checked_mul(2).and_then(|k| k.checked_add(values)) else {
            return Err(source.invalid(INNER, &format!("is {values}, which is too large")));
        };
        source.product(INNER, channels, width)?;
        source.product(INNER, values, key_dim)?;
        Ok(Sizes {
            n_key_heads,
            n_value_heads,
            // Converters order the heads so, but for the oldest of these architectures.
            tiled: !matches!(source.architecture(), "qwen3next" | "olmo_hybrid"),
            key_dim,
            value_dim: values / n_value_heads,
            width,
            keys,
            values,
            channels,
        })
    }

    pub(super) fn delta_net(&self, d: &Decoder, layer: usize) -> Result<DeltaNet> {
        let (source, hidden) = (&d.source, d.hidden);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let old = name("ssm_in");
        if source.has(&old) {
            fail!(
                Unsupported,
                "tensor {old}.weight: the file was written by an old converter; supported are {} and {}",
                name("attn_qkv.weight"),
                name("attn_gate.weight")
            );
        }
        let lens = [self.keys, self.keys, self.values];
        let [q, k, v]: [Linear; 3] = match source.architecture() {
            "olmo_hybrid" => d.qkv(layer, lens)?,
            _ => source.fused(&name("attn_qkv"), hidden, lens, None)?,
        };
        let heads = self.n_value_heads;
        let apart = ["ssm_beta", "ssm_alpha"].map(name);
        Ok(DeltaNet {
            n_key_heads: self.n_key_heads,
            n_value_heads: heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            tiled: self.tiled,
            q,
            k,
            v,
            z: source.linear(&name("attn_gate"), hidden, self.values)?,
            z_short: None,
            sigmoid_gate: false,
            steps: match name("ssm_ba") {
                both if !self.tiled && apart.iter().all(|part| !source.has(part)) => {
                    DeltaSteps::Together(source.linear(&both, hidden, 2 * heads)?)
                }
                _ => DeltaSteps::Apart {
                    b: source.linear(&apart[0], hidden, heads)?,
                    a: source.linear(&apart[1], hidden, heads)?,
                },
            },
            beta_scale: 1.0,
            conv: source.conv(&name("ssm_conv1d"), self.channels, self.width)?,
            decay: source.vector(&name("ssm_a"), heads)?,
            decay_floor: None,
            dt_bias: source.vector(&name("ssm_dt.bias"), heads)?,
            norm: source.norm(&name("ssm_norm"), self.value_dim, NormKind::Rms, d.eps)?,
            output: source.linear(&name("ssm_out"), self.values, hidden)?,
        })
    }
}
