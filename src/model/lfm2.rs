//! `lfm2`: LFM 2, whose layers are short convolutions or attention.

use super::decoder::Decoder;
use super::source::Source;
use super::{Activation, Linear, Network, NormKind, RopePairing, ShortConv};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Value};

const WIDTH: &str = "shortconv.l_cache";
const KV_HEADS: &str = "attention.head_count_kv";
/// Positions that a convolution sees at most.
const MAX_WIDTH: usize = 64;

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "lfm2", NormKind::Rms, kv_heads)?;
    d.refuse_experts()?;
    let rope = d.rope(RopePairing::Halves)?;
    let attends = attending(&d.source, d.n_layers)?;
    d.network(|i| {
        let feed_forward = d.gated(i, Activation::Silu)?;
        if !attends[i] {
            return d.pre_norm_block(i, short_conv(&d, i)?, feed_forward);
        }
        let mut attention = d.attention(i, Some(&rope))?;
        attention.q_norm = d.norm_of(i, "attn_q_norm", d.head_dim)?;
        attention.k_norm = d.norm_of(i, "attn_k_norm", d.head_dim)?;
        d.pre_norm_block(i, attention, feed_forward)
    })
}

/// KV heads of each layer.
fn per_layer(source: &Source, key: &str, n_layers: usize) -> Result<Option<Vec<u64>>> {
    let full = source.key(key);
    if !matches!(source.file.metadata.get(&full), Some(Value::Array(_))) {
        return Ok(None);
    }
    let heads: Vec<u64> = source.file.get(&full)?;
    if heads.len() != n_layers {
        let problem = format!(
            "has {} values, but there are {n_layers} layers",
            heads.len()
        );
        return Err(source.invalid(key, &problem));
    }
    Ok(Some(heads))
}

/// KV heads of the layers that attend, which are those that have some.
fn kv_heads(source: &Source, key: &str, n_layers: usize) -> Result<Option<usize>> {
    let Some(heads) = per_layer(source, key, n_layers)? else {
        return source.find_size(key);
    };
    let mut some = heads.iter().filter(|n| **n > 0);
    let Some(first) = some.next() else {
        return Ok(Some(1));
    };
    if let Some(other) = some.find(|n| *n != first) {
        fail!(
            Unsupported,
            "{} differs between layers that attend: {first} and {other}",
            source.key_name(key)
        );
    }
    match usize::try_from(*first) {
        Ok(n) if n <= i32::MAX as usize => Ok(Some(n)),
        _ => Err(source.invalid(key, &format!("has {first}, which is too large"))),
    }
}

/// Which layers attend: those with KV heads, or, where one number stands for all, those without a
/// convolution.
fn attending(source: &Source, n_layers: usize) -> Result<Vec<bool>> {
    if let Some(heads) = per_layer(source, KV_HEADS, n_layers)? {
        return Ok(heads.iter().map(|n| *n > 0).collect());
    }
    let has_conv = |i: usize| source.has(&format!("blk.{i}.shortconv.in_proj"));
    Ok((0..n_layers).map(|i| !has_conv(i)).collect())
}

fn short_conv(d: &Decoder, layer: usize) -> Result<ShortConv> {
    let (source, hidden) = (&d.source, d.hidden);
    let width = source.size(WIDTH)?;
    if !(2..=MAX_WIDTH).contains(&width) {
        let problem = format!("is {width}; it must be from 2 to {MAX_WIDTH}");
        return Err(source.invalid(WIDTH, &problem));
    }
    source.product("embedding_length", hidden, 3)?;
    let name = |part: &str| format!("blk.{layer}.shortconv.{part}");
    let [b, c, x]: [Linear; 3] = source.fused(&name("in_proj"), hidden, [hidden; 3], None)?;
    Ok(ShortConv {
        b,
        c,
        x,
        conv: source.conv(&name("conv"), hidden, width)?,
        output: source.linear(&name("out_proj"), hidden, hidden)?,
    })
}
