//! `gemma3n` (text): Gemma 3n, whose layers evaluate one of several residual streams and predict the others.
//! Each layer adds something of the token itself, the last ones read keys and values of earlier ones, and in
//! the first ones most gates are 0.

use super::decoder::{Decoder, Windows, bare_block};
use super::{
    Activation, Attention, Block, FeedForward, LayerInput, LayerStreams, Linear, MAX_STREAMS, Mlp,
    Network, NormKind, RopePairing, Streams, gemma4,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};

const STREAMS: &str = "altup.num_inputs";
const ACTIVE: &str = "altup.active_idx";
const SPARSITY: &str = "activation_sparsity_scale";
const SHARED: &str = "attention.shared_kv_layers";
/// Cap of the logits where a file does not say it.
const LOGIT_CAP: f32 = 30.0;
/// Layers whose gates are mostly 0, and standard deviations above the mean that count, where a file does not
/// say it.
const SPARSE: (usize, f32) = (10, 1.644_853_6);

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read(file, "gemma3n", NormKind::Rms)?;
    d.refuse_experts()?;
    let (source, hidden) = (&d.source, d.hidden);
    let count = source.size(STREAMS)?;
    if !(2..=MAX_STREAMS).contains(&count) {
        let problem = format!("is {count}; it must be from 2 to {MAX_STREAMS}");
        return Err(source.invalid(STREAMS, &problem));
    }
    let active = source.find::<u64>(ACTIVE)?.unwrap_or(0);
    if active >= count as u64 {
        let problem = format!("is {active}, but there are {count} streams");
        return Err(source.invalid(ACTIVE, &problem));
    }
    let Some(per_layer) = gemma4::per_layer(&d)? else {
        fail!(
            InvalidModel,
            "{} is 0; layers of this architecture have inputs of their own",
            source.key_name("embedding_length_per_layer_input")
        );
    };
    let n_pl = per_layer.norm.weight.row_len();
    let n_ff = source.sizes("feed_forward_length", d.n_layers)?;
    let cutoffs = cutoffs(&d)?;
    let attention = Attentions::read(&d)?;
    let mut network = d.network(|i| {
        let name = |part: &str| format!("blk.{i}.{part}");
        let mlp = Mlp {
            gate: Some(source.linear(&name("ffn_gate"), hidden, n_ff[i])?),
            up: source.linear(&name("ffn_up"), hidden, n_ff[i])?,
            down: source.linear(&name("ffn_down"), n_ff[i], hidden)?,
            inner_norm: None,
            activation: Activation::GeluTanh,
        };
        let norm = |part: &str| source.norm(&name(part), hidden, NormKind::Rms, d.eps);
        let numbers =
            |part: &str, dims: &[usize]| source.numbers(&format!("{}.weight", name(part)), dims);
        let left = source
            .file
            .tensor(&format!("{}.weight", name("laurel_l")))?;
        let right = source.file.tensor(&format!("{}.weight", name("laurel_r")))?;
        let rank = left.rows();
        if right.row_len() != rank {
            fail!(
                ShapeMismatch,
                "tensor {} has {rank} rows, but those of tensor {} have {} elements; they must be as many",
                left.name,
                right.name,
                right.row_len()
            );
        }
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            mixer_post_norm: d.norm(i, "post_attention_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            feed_forward_post_norm: d.norm(i, "post_ffw_norm")?,
            per_layer: Some(Box::new(LayerInput {
                gate: source.linear(&name("inp_gate"), hidden, n_pl)?,
                activation: Activation::GeluTanh,
                projection: source.linear(&name("proj"), n_pl, hidden)?,
                post_norm: d.norm(i, "post_norm")?,
            })),
            streams: Some(Box::new(LayerStreams {
                count,
                active: active as usize,
                router_norm: norm("altup_router_norm")?,
                router: source
                    .widened(&format!("{}.weight", name("altup_router")), &[hidden, count])?,
                predict: numbers("altup_predict_coef", &[count, count * count])?,
                correct: numbers("altup_correct_coef", &[count, count])?,
                output_scale: numbers("altup_correct_scale", &[hidden])?,
                left: source.linear(&name("laurel_l"), hidden, rank)?,
                right: source.linear(&name("laurel_r"), rank, hidden)?,
                thin_norm: norm("laurel_post_norm")?,
                cutoff: cutoffs[i],
            })),
            ..bare_block(attention.layer(&d, i)?, FeedForward::Dense(Box::new(mlp)))
        })
    })?;
    let of_streams = |name: &str| -> Result<Vec<Linear>> {
        let all = source.stacked_linear(name, hidden, hidden, count - 1)?;
        let one = |i: usize| Linear {
            weight: all.weight.row_range(i * hidden..(i + 1) * hidden),
            bias: None,
        };
        Ok((0..count - 1).map(one).collect())
    };
    network.streams = Some(Streams {
        count,
        begin: of_streams("altup_proj")?,
        end: of_streams("altup_unembd_proj")?,
    });
    network.embedding_scale = (hidden as f64).sqrt() as f32;
    network.per_layer = Some(per_layer);
    network.logit_cap = network.logit_cap.or(Some(LOGIT_CAP));
    Ok(network)
}

/// From where gates of each layer count, in standard deviations above the mean.
fn cutoffs(d: &Decoder) -> Result<Vec<Option<f32>>> {
    let key = d.source.key(SPARSITY);
    if !matches!(d.source.file.metadata.get(&key), Some(Value::Array(_))) {
        let (first, cutoff) = match d.n_layers > SPARSE.0 {
            true => SPARSE,
            false => (0, 0.0),
        };
        return Ok((0..d.n_layers)
            .map(|i| (i < first).then_some(cutoff))
            .collect());
    }
    let given: Vec<f32> = d.source.file.get(&key)?;
    if given.len() != d.n_layers {
        let problem = format!(
            "has {} values, but there are {} layers",
            given.len(),
            d.n_layers
        );
        return Err(d.source.invalid(SPARSITY, &problem));
    }
    // All count where that is infinitely far below.
    let cutoff = |v: f32| match v {
        f32::NEG_INFINITY => Ok(None),
        v if v.is_finite() => Ok(Some(v)),
        v => Err(d.source.invalid(SPARSITY, &format!("has the value {v}"))),
    };
    given.into_iter().map(cutoff).collect()
}

/// What attention of the layers is.
struct Attentions {
    windows: Vec<Option<usize>>,
    local: super::Rope,
    global: super::Rope,
    first_shared: usize,
}

impl Attentions {
    fn read(d: &Decoder) -> Result<Attentions> {
        let source = &d.source;
        let windows = d.windows(Windows::ButEvery(5))?;
        let shared = source.find::<u64>(SHARED)?.unwrap_or(0);
        if shared >= d.n_layers as u64 {
            let problem = format!("is {shared}, but there are {} layers", d.n_layers);
            return Err(source.invalid(SHARED, &problem));
        }
        let all = Attentions {
            local: d.local_rope(RopePairing::Halves, 10_000.0)?,
            global: d.rope(RopePairing::Halves)?,
            first_shared: d.n_layers - shared as usize,
            windows,
        };
        for layer in all.first_shared..d.n_layers {
            if all.source_of(layer).is_none() {
                let problem = format!(
                    "is {shared}: layer {layer} would share keys and values with a layer of its kind, and none has any"
                );
                return Err(source.invalid(SHARED, &problem));
            }
        }
        Ok(all)
    }

    /// The layer whose keys and values a layer reads, if those are not its own.
    fn source_of(&self, layer: usize) -> Option<usize> {
        let is_local = |layer: usize| self.windows[layer].is_some();
        let same = |l: &usize| is_local(*l) == is_local(layer);
        match layer >= self.first_shared {
            true => (0..self.first_shared).rev().find(same),
            false => None,
        }
    }

    fn layer(&self, d: &Decoder, layer: usize) -> Result<Attention> {
        let shares = self.source_of(layer);
        let of = shares.unwrap_or(layer);
        let source = &d.source;
        let (q_len, kv_len) = (d.n_heads * d.head_dim, d.n_kv_heads * d.head_dim);
        let lens = [q_len, kv_len, kv_len];
        let apart = |layer: usize, part: &str, rows: usize| {
            source.linear(&format!("blk.{layer}.{part}"), d.hidden, rows)
        };
        let q = match d.fused_qkv(layer) {
            true => {
                let [q, _, _] = d.qkv(layer, lens)?;
                q
            }
            // Layers that read another's have nothing else.
            false => apart(layer, "attn_q", q_len)?,
        };
        let [k, v] = match d.fused_qkv(of) {
            true => {
                let [_, k, v] = d.qkv(of, lens)?;
                [k, v]
            }
            false => [apart(of, "attn_k", kv_len)?, apart(of, "attn_v", kv_len)?],
        };
        let rope = match self.windows[layer] {
            Some(_) => &self.local,
            None => &self.global,
        };
        Ok(Attention {
            q_norm: d.norm_of(layer, "attn_q_norm", d.head_dim)?,
            k_norm: match shares {
                None => d.norm_of(layer, "attn_k_norm", d.head_dim)?,
                Some(_) => None,
            },
            value_norm: Some(d.eps),
            shares,
            window: self.windows[layer],
            scale: source.find_positive("attention.scale")?.unwrap_or(1.0),
            ..d.attention_with(layer, [q, k, v], Some(rope))?
        })
    }
}
