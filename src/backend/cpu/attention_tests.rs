//! Attention against double precision, and the same bits however it is cut.

use super::*;
use crate::backend::KvType;
use crate::backend::cpu::kv::{Half, KvCache, Shape, put};
use crate::backend::cpu::matmul::Isa;
use crate::backend::cpu::rows::{DistanceTable, Rows, Scores, tokens_per_block};
use crate::backend::cpu::simd::LANES;
use crate::model::KvShape;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2654435761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            s as f32 / u32::MAX as f32 * 2.0 - 1.0
        })
        .collect()
}

struct Case {
    cache: KvCache,
    /// `[position][dim]`, as stored.
    keys: Vec<f32>,
    values: Vec<f32>,
    dim: usize,
}

fn case<E: Element>(kv_type: KvType, dim: usize, len: usize) -> Case {
    let layer = KvShape {
        n_kv_heads: 1,
        head_dim: dim,
        window: None,
    };
    let cache = KvCache::new(Shape::new([layer].into_iter(), kv_type).unwrap(), len).unwrap();
    let (keys, values) = (numbers(len * dim, 7), numbers(len * dim, 8));
    for p in 0..len {
        let (k, v) = (&keys[p * dim..][..dim], &values[p * dim..][..dim]);
        // SAFETY: one thread; this processor has the set.
        unsafe { put(Isa::detect(), cache.head::<E>(0, 0), p, k, v) };
    }
    let stored = |x: Vec<f32>| match kv_type {
        KvType::F32 | KvType::Q8_0 => x,
        KvType::F16 => x.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect(),
    };
    Case {
        cache,
        keys: stored(keys),
        values: stored(values),
        dim,
    }
}

const PLAIN: Scores = Scores {
    window: usize::MAX,
    chunk: usize::MAX,
    ahead: 0,
    len: usize::MAX,
    cap: None,
    sinks: None,
    slopes: None,
    distances: None,
};

/// One row in double precision: query head `h` of its group.
fn exact(case: &Case, query: &[f32], position: usize, scores: &Scores, h: usize) -> Vec<f64> {
    let dot = |p: usize| {
        let key = &case.keys[p * case.dim..][..case.dim];
        key.iter()
            .zip(query)
            .map(|(k, q)| f64::from(*k) * f64::from(*q))
            .sum::<f64>()
    };
    let capped = |score: f64| match scores.cap.map(f64::from) {
        Some(cap) => cap * (score / cap).tanh(),
        None => score,
    };
    let begin = position / scores.chunk * scores.chunk;
    let first = (position + 1).saturating_sub(scores.window).max(begin);
    let sink = scores.sinks.map(|sinks| f64::from(sinks[h]));
    let slope = scores.slopes.map_or(0.0, |slopes| f64::from(slopes[h]));
    let added = |p: usize| match scores.distances {
        Some(table) => {
            let width = DistanceTable::width(table.reach);
            let far = (position - p).min(table.reach);
            f64::from(table.added[h * width + width / 2 - far])
        }
        None => 0.0,
    };
    let score = |p: usize| capped(dot(p) - slope * (position - p) as f64 + added(p));
    let scores: Vec<f64> = (first..=position).map(score).collect();
    let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    (0..case.dim)
        .map(|d| {
            (first..=position)
                .map(|p| weights[p - first] * f64::from(case.values[p * case.dim + d]))
                .sum::<f64>()
                / sum
        })
        .collect()
}

fn run<E: Element>(isa: Isa, case: &Case, rows: &Rows) -> Vec<f32> {
    let mut scratch = AttentionScratch::new(rows.group, case.dim).unwrap();
    let mut out = vec![0.0; rows.tokens * rows.stride];
    // SAFETY: one thread; this processor has the set; the output is as long as the queries.
    unsafe {
        attend(
            isa,
            rows,
            case.cache.head::<E>(0, 0),
            out.as_mut_ptr(),
            &mut scratch,
        )
    };
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn check<E: Element>(kv_type: KvType, dim: usize, group: usize, len: usize) {
    check_scores::<E>(kv_type, dim, group, len, PLAIN);
}

fn check_scores<E: Element>(
    kv_type: KvType,
    dim: usize,
    group: usize,
    len: usize,
    scores: Scores<'_>,
) {
    let case = case::<E>(kv_type, dim, len);
    let stride = group * dim;
    let queries: Vec<f32> = numbers(len * stride, 9)
        .iter()
        .map(|q| q * 8.0 / (dim as f32).sqrt())
        .collect();
    let block = tokens_per_block(group);
    let first = len.saturating_sub(3 * block) / block * block;
    let mut start = first;
    while start < len {
        let tokens = block.min(len - start);
        let rows = |start: usize, tokens: usize| Rows {
            queries: queries[start * stride..].as_ptr(),
            stride,
            group,
            tokens,
            position: start,
            scores,
        };
        let together = run::<E>(Isa::detect(), &case, &rows(start, tokens));
        for isa in Isa::available() {
            assert_eq!(
                bits(&run::<E>(isa, &case, &rows(start, tokens))),
                bits(&together),
                "{isa:?}"
            );
        }
        for t in 0..tokens {
            let alone = run::<E>(Isa::detect(), &case, &rows(start + t, 1));
            let mine = &together[t * stride..][..stride];
            assert_eq!(
                bits(&alone),
                bits(mine),
                "dim {dim} group {group} position {}",
                start + t
            );
            assert_eq!(
                bits(&by_segments::<E>(&case, &rows(start + t, 1))),
                bits(mine)
            );
            for h in 0..group {
                let query = &queries[(start + t) * stride + h * dim..][..dim];
                for (a, b) in exact(&case, query, start + t, &scores, h)
                    .iter()
                    .zip(&mine[h * dim..])
                {
                    assert!((a - f64::from(*b)).abs() < 3e-6, "{a} {b}");
                }
            }
        }
        start += tokens;
    }
}

fn by_segments<E: Element>(case: &Case, rows: &Rows) -> Vec<f32> {
    let first = *rows.segments().start();
    let segments = rows.segments().count();
    let stride = partial_len(rows.group, case.dim);
    let mut scratch = AttentionScratch::new(rows.group, case.dim).unwrap();
    let mut partials = vec![0.0; segments * stride];
    let mut out = vec![0.0; rows.tokens * rows.stride];
    for s in (0..segments).rev() {
        // SAFETY: one thread; this processor has the set; the buffers have the stated lengths.
        unsafe {
            let to = partials.as_mut_ptr().add(s * stride);
            attend_segment(
                Isa::detect(),
                rows,
                case.cache.head::<E>(0, 0),
                first + s,
                to,
                &mut scratch,
            );
        }
    }
    for h in 0..rows.group {
        // SAFETY: as above.
        unsafe {
            let from = partials.as_mut_ptr().add(h * partial_len(1, case.dim));
            join_segments(
                Isa::detect(),
                from,
                stride,
                segments,
                case.dim,
                rows.sink(h),
                out.as_mut_ptr().add(h * case.dim),
            );
        }
    }
    out
}

#[test]
fn every_head_size() {
    for dim in [16, 20, 32, 64, 80, 96, 128, 256] {
        check::<Half>(KvType::F16, dim, 2, 40);
        check::<f32>(KvType::F32, dim, 1, 300);
    }
}

#[test]
fn every_group_size() {
    for group in [1, 2, 3, 4, 5, 7, 8, 16, 20] {
        check::<Half>(KvType::F16, 32, group, 270);
    }
}

#[test]
fn contexts_around_segments() {
    for len in [1, 15, 16, 17, 255, 256, 257, 512, 513, 1030] {
        check::<Half>(KvType::F16, 64, 3, len);
        check::<f32>(KvType::F32, 16, 4, len);
    }
}

#[test]
fn windows_of_every_length() {
    for window in [1, 2, 7, 15, 16, 17, 40, 255, 256, 257, 500] {
        for chunk in [usize::MAX, 7, 256, 300] {
            let scores = Scores {
                window,
                chunk,
                ..PLAIN
            };
            for len in [40, 300, 520, 790] {
                check_scores::<Half>(KvType::F16, 16, 3, len, scores);
                check_scores::<f32>(KvType::F32, 20, 1, len, scores);
            }
        }
    }
}

#[test]
fn caps_and_sinks() {
    let sinks = [2.0, -3.0, 0.0, 6.0];
    for window in [9, usize::MAX] {
        for cap in [Some(0.7), None] {
            for sinks in [Some(&sinks[..]), None] {
                let scores = Scores {
                    window,
                    cap,
                    sinks,
                    ..PLAIN
                };
                check_scores::<f32>(KvType::F32, 32, 4, 280, scores);
            }
        }
    }
}

#[test]
fn slopes_make_what_is_far_count_less() {
    let slopes = [0.5, 0.0, 0.003, 0.02];
    for window in [9, usize::MAX] {
        for cap in [Some(0.7), None] {
            let scores = Scores {
                window,
                cap,
                slopes: Some(&slopes),
                ..PLAIN
            };
            for len in [1, 40, 280, 530] {
                check_scores::<f32>(KvType::F32, 32, 4, len, scores);
            }
        }
    }
}

#[test]
fn numbers_by_distance_are_added() {
    for reach in [0, 3, 40, 300] {
        let width = DistanceTable::width(reach);
        let random = numbers(4 * width, 11);
        let added: Vec<f32> = (0..4 * width)
            .map(|i| {
                let (head, i) = (i / width, i % width);
                // The ends are repeated.
                let inner = i.clamp(LANES, width - 1 - LANES);
                random[head * width + inner]
            })
            .collect();
        let scores = Scores {
            distances: Some(DistanceTable {
                added: &added,
                reach,
            }),
            ..PLAIN
        };
        for len in [1, 40, 280, 530] {
            check_scores::<f32>(KvType::F32, 32, 4, len, scores);
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let case = case::<f32>(KvType::F32, 16, 600);
    let queries: Vec<f32> = numbers(16, 3).iter().map(|q| q * 300.0).collect();
    let rows = Rows {
        queries: queries.as_ptr(),
        stride: 16,
        group: 1,
        tokens: 1,
        position: 599,
        scores: PLAIN,
    };
    let out = run::<f32>(Isa::detect(), &case, &rows);
    for (a, b) in exact(&case, &queries, 599, &PLAIN, 0).iter().zip(&out) {
        assert!((a - f64::from(*b)).abs() < 1e-3, "{a} {b}");
    }
}

#[test]
fn blocks_are_powers_of_two() {
    let blocks: Vec<usize> = [1, 2, 3, 4, 5, 8, 16, 64].map(tokens_per_block).into();
    assert_eq!(blocks, [16, 8, 4, 4, 2, 2, 1, 1]);
}
