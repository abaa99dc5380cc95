//! Positions as numbers that scores get by the distance of key and query (T5, arXiv:1910.10683).

use super::Distances;
use super::decoder::Decoder;
use super::source::Source;
use crate::error::Result;
use std::sync::Arc;

const BUCKETS: &str = "attention.relative_buckets_count";
/// From here on, all distances are in the last bucket. llama.cpp's files do without the key.
const FARTHEST: &str = "attention.relative_max_distance";
/// The most of either that are taken seriously.
const MOST: usize = 1 << 15;

/// The buckets of distances that the keys describe.
pub(super) fn buckets(source: &Source) -> Result<(usize, Arc<[u16]>)> {
    let count = source.size(BUCKETS)?;
    if !(4..=MOST).contains(&count) {
        let problem = format!("is {count}; it must be from 4 to {MOST}");
        return Err(source.invalid(BUCKETS, &problem));
    }
    let farthest = source.find_size(FARTHEST)?.unwrap_or(128);
    if !(count / 4 + 1..=MOST).contains(&farthest) {
        let problem = format!(
            "is {farthest}; with {count} buckets it must be from {} to {MOST}",
            count / 4 + 1
        );
        return Err(source.invalid(FARTHEST, &problem));
    }
    Ok((count, by_distance(count, farthest)))
}

/// The same numbers in every layer, which are in the tensor of that name.
pub(super) fn read(
    d: &Decoder,
    name: &str,
    (count, buckets): &(usize, Arc<[u16]>),
) -> Result<Distances> {
    Ok(Distances {
        weight: d.source.numbers(name, &[d.n_heads, *count])?,
        heads: 0..d.n_heads,
        buckets: buckets.clone(),
    })
}

/// The buckets of keys from far before the query to far behind it. Of either half of the buckets, a half has a distance each, and
/// the others share what is left in equal steps of its logarithm.
fn by_distance(count: usize, farthest: usize) -> Arc<[u16]> {
    let half = count / 2;
    let exact = half / 2;
    // In single precision, as the models were trained.
    let ln = |x: f32| f64::from(x).ln() as f32;
    let whole = (farthest as f64 / exact as f64).ln() as f32;
    let bucket = |distance: usize| {
        if distance < exact {
            return distance;
        }
        let share = ln(distance as f32 / exact as f32) / whole * (half - exact) as f32;
        (exact + share as usize).min(half - 1)
    };
    let last = bucket(farthest);
    let reach = (0..=farthest)
        .find(|d| bucket(*d) == last)
        .unwrap_or(farthest);
    let before = (1..=reach).rev().map(bucket);
    let behind = (1..=reach).map(|d| half + bucket(d));
    before
        .chain([0])
        .chain(behind)
        .map(|bucket| bucket as u16)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::by_distance;

    /// As T5's code in transformers has them.
    #[test]
    fn distances_share_buckets() {
        let all = by_distance(32, 128);
        let reach = all.len() / 2;
        assert_eq!(reach, 91);
        let at = |d: isize| all[(reach as isize + d) as usize];
        let far = [
            1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91,
        ];
        assert_eq!(
            far.map(at),
            [
                17, 23, 24, 24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 31
            ]
        );
        assert!(far.iter().all(|&d| at(-d) == at(d) - 16));
        assert_eq!(at(0), 0);
        assert_eq!(by_distance(4, 2)[..], [1, 0, 3]);
    }
}
