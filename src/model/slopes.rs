//! Positions as slopes of attention's scores (ALiBi, arXiv:2108.12409).

use super::decoder::Decoder;
use crate::error::Result;
use std::sync::Arc;

/// The key with the exponent of the flattest slope, below 0. It is 0 in models with other positions.
pub(super) const MOST: &str = "attention.max_alibi_bias";

/// The slopes of each head that the key asks for. It must be there.
pub(super) fn read(d: &Decoder) -> Result<Option<Arc<[f32]>>> {
    Ok(match d.source.find::<f32>(MOST)? {
        Some(0.0) => None,
        _ => Some(slopes(d.n_heads, f64::from(d.source.positive(MOST)?))),
    })
}

/// The slopes of so many heads: for a power of two `n`, `2^(-most h / n)` with `h` from 1 on, where `most` is 8 mostly; what is
/// above the largest power of two gets every other one of those of twice as many heads.
pub(super) fn slopes(n_heads: usize, most: f64) -> Arc<[f32]> {
    let whole = 1usize << n_heads.ilog2();
    let slope = |h: usize, of: usize| (-most * h as f64 / of as f64).exp2() as f32;
    let first = (1..=whole).map(|h| slope(h, whole));
    let others = (0..n_heads - whole).map(|i| slope(2 * i + 1, 2 * whole));
    first.chain(others).collect()
}
