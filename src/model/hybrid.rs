//! What networks have in common some of whose layers attend and some of which are recurrent.

use super::source::Source;
use crate::error::{Result, fail};
use crate::format::Value;

const KV_HEADS: &str = "attention.head_count_kv";
/// Positions that a convolution sees at most.
const MAX_WIDTH: usize = 64;

/// A number of each layer, such as its KV heads, where the file has one for each.
pub(super) fn per_layer(source: &Source, key: &str, n_layers: usize) -> Result<Option<Vec<u64>>> {
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
pub(super) fn kv_heads(source: &Source, key: &str, n_layers: usize) -> Result<Option<usize>> {
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

/// Which layers attend: those with KV heads, or, where one number stands for all, those without the
/// tensor `part` of the others.
pub(super) fn attending(source: &Source, n_layers: usize, part: &str) -> Result<Vec<bool>> {
    if let Some(heads) = per_layer(source, KV_HEADS, n_layers)? {
        return Ok(heads.iter().map(|n| *n > 0).collect());
    }
    let recurrent = |i: usize| source.has(&format!("blk.{i}.{part}"));
    Ok((0..n_layers).map(|i| !recurrent(i)).collect())
}

/// Positions that the convolutions see, by this key.
pub(super) fn conv_width(source: &Source, key: &str) -> Result<usize> {
    let width = source.size(key)?;
    if !(2..=MAX_WIDTH).contains(&width) {
        let problem = format!("is {width}; it must be from 2 to {MAX_WIDTH}");
        return Err(source.invalid(key, &problem));
    }
    Ok(width)
}
