//! Rotary embedding, the KV cache, and attention of decode and prefill.

use crate::common::tiny::Random;
use crate::gpu::*;
use emberlm::backend::cuda::args::{self, KvLayout};
use emberlm::backend::cuda::driver::Buffer;

pub fn tests(tests: &mut Tests) {
    for q8 in [false, true] {
        let kv = if q8 { "q8_0" } else { "f16" };
        for (heads, kv_heads, dim) in [
            (4, 2, 64),
            (8, 1, 128),
            (12, 2, 128),
            (3, 3, 80),
            (16, 1, 32),
            (4, 4, 256),
            (14, 2, 64),
            (2, 1, 20),
        ] {
            let name = format!("attention::{kv}::{heads}_heads_{kv_heads}_kv_{dim}");
            tests.push((
                name,
                Box::new(move || attention_is_right(heads, kv_heads, dim, q8)),
            ));
        }
    }
}

/// A session with a cache for `positions` positions of two layers.
struct TestSession {
    layout: KvLayout,
    session: Buffer,
    table: Buffer,
    _cache: Buffer,
}

fn test_session(kv_heads: usize, dim: usize, q8: bool, positions: usize) -> TestSession {
    let row = if q8 {
        dim.next_multiple_of(32) + dim.div_ceil(32) * 2
    } else {
        dim * 2
    };
    let row_bytes = row.next_multiple_of(16) as u64;
    let layer_bytes = 2 * kv_heads as u64 * 64 * row_bytes;
    let layout = KvLayout {
        tile_bytes: 2 * layer_bytes,
        layer_bytes,
        tile: 64,
        row_bytes: row_bytes as u32,
        n_kv_heads: kv_heads as u32,
        head_dim: dim as u32,
        q8: u32::from(q8),
        padding: 0,
    };
    let cache = poisoned(positions.div_ceil(64) * layout.tile_bytes as usize);
    let session = upload(&[args::Session {
        kv: cache.address(),
        ..Default::default()
    }]);
    let table = upload(&[session.address()]);
    TestSession {
        layout,
        session,
        table,
        _cache: cache,
    }
}

impl TestSession {
    fn set_position(&self, position: usize) {
        let at = std::mem::offset_of!(args::Session, position);
        self.session.write(at, &[position as u32]).unwrap();
    }
}

/// Rounds as the cache does.
fn stored(row: &[f64], q8: bool) -> Vec<f64> {
    if !q8 {
        return row
            .iter()
            .map(|v| f64::from(half::f16::from_f32(*v as f32).to_f32()))
            .collect();
    }
    row.chunks(32)
        .flat_map(|g| {
            let largest = g.iter().fold(0f32, |m, v| m.max((*v as f32).abs()));
            let mut d = half::f16::from_f32(largest / 127.0);
            if d.to_f32() < largest / 127.0 {
                d = half::f16::from_bits(d.to_bits() + 1);
            }
            let d = f64::from(d.to_f32());
            g.iter().map(move |v| {
                if d > 0.0 {
                    (v / d).round_ties_even() * d
                } else {
                    0.0
                }
            })
        })
        .collect()
}

fn attention_is_right(heads: usize, kv_heads: usize, dim: usize, q8: bool) {
    let positions = 700;
    let stride = (heads + 2 * kv_heads) * dim;
    let mut random = Random::new(dim as u64, "attention");
    let qkv = random_floats(&mut random, positions * stride);
    let n_pairs = dim / 2 - usize::from(dim > 40);
    let inv_freq: Vec<f32> = (0..n_pairs)
        .map(|i| 10_000f32.powf(-(i as f32) / n_pairs as f32))
        .collect();
    let interleaved = heads.is_multiple_of(2);
    let magnitude = 1.1f32;
    // Large enough for a softmax that is not flat.
    let scale = 3.0 / (dim as f32).sqrt();

    // Reference: rotate, store, attend.
    let rotated: Vec<Vec<f64>> = qkv
        .chunks(stride)
        .enumerate()
        .map(|(p, row)| {
            let mut row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            for head in row[..(heads + kv_heads) * dim].chunks_mut(dim) {
                for (i, f) in inv_freq.iter().enumerate() {
                    let (a, b) = if interleaved {
                        (2 * i, 2 * i + 1)
                    } else {
                        (i, i + n_pairs)
                    };
                    let (sin, cos) = f64::from(p as f32 * f).sin_cos();
                    let (x, y) = (head[a], head[b]);
                    head[a] = (x * cos - y * sin) * f64::from(magnitude);
                    head[b] = (y * cos + x * sin) * f64::from(magnitude);
                }
            }
            row
        })
        .collect();
    let kept = |p: usize, part: usize| stored(&rotated[p][part * dim..(part + 1) * dim], q8);
    let keys: Vec<Vec<Vec<f64>>> = (0..kv_heads)
        .map(|h| (0..positions).map(|p| kept(p, heads + h)).collect())
        .collect();
    let values: Vec<Vec<Vec<f64>>> = (0..kv_heads)
        .map(|h| {
            (0..positions)
                .map(|p| kept(p, heads + kv_heads + h))
                .collect()
        })
        .collect();
    let want = |p: usize| -> Vec<f64> {
        let mut out = Vec::new();
        for h in 0..heads {
            let kv = h / (heads / kv_heads);
            let q = &rotated[p][h * dim..(h + 1) * dim];
            let scores: Vec<f64> = (0..=p)
                .map(|t| {
                    q.iter().zip(&keys[kv][t]).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale)
                })
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; dim];
            for (w, value) in weights.iter().zip(&values[kv]) {
                for (sum, v) in sums.iter_mut().zip(value) {
                    *sum += w * v;
                }
            }
            out.extend(sums.iter().map(|sum| sum / total));
        }
        out
    };

    let s = test_session(kv_heads, dim, q8, positions);
    let (input, freqs) = (upload(&qkv), upload(&inv_freq));
    let width = heads * dim;
    let q16 = poisoned(positions * width * 2);
    let q32 = poisoned(width * 4);
    let rope = args::Rope {
        sessions: s.table.address(),
        qkv: input.address(),
        inv_freq: freqs.address(),
        layout: s.layout,
        magnitude,
        q_scale: scale * std::f32::consts::LOG2_E,
        qkv_stride: stride as u32,
        n_heads: heads as u32,
        n_pairs: n_pairs as u32,
        interleaved: u32::from(interleaved),
        layer: 1,
        ..Default::default()
    };
    // Prefill in two chunks, the second from the middle of a tile on.
    let cut = 403;
    let out = poisoned(positions * width * 4);
    for (first, n) in [(0, cut), (cut, positions - cut)] {
        s.set_position(first);
        let rope = args::Rope {
            qkv: input.address() + (first * stride * 4) as u64,
            q_f16: q16.address(),
            prefill: 1,
            ..rope
        };
        let flash = args::Flash {
            sessions: s.table.address(),
            q: q16.address(),
            out: out.address() + (first * width * 4) as u64,
            layout: s.layout,
            rows: n as u32,
            n_heads: heads as u32,
            layer: 1,
            padding: 0,
        };
        with_stream(|stream| unsafe {
            kernels().rope_append(stream, &rope, n as u32).unwrap();
            kernels().flash(stream, &flash).unwrap();
        });
    }
    let got: Vec<f32> = download(&out, positions * width);
    for p in [0, 1, 15, 63, 64, 65, 200, 402, 403, 404, 500, 640, 699] {
        let error = relative_error(&got[p * width..(p + 1) * width], &want(p));
        assert!(error < 2e-3, "prefill, position {p}: error {error}");
    }

    // Decode at several depths; appending again must change nothing.
    let groups = width.div_ceil(32);
    let (q8_out, scale_out, f32_out) = (
        poisoned(groups * 32),
        poisoned(groups * 4),
        poisoned(groups * 32 * 4),
    );
    let tickets = upload(&vec![0u32; heads]);
    let n_chunks = 7;
    let parts = poisoned(heads * n_chunks * (dim + 2) * 4);
    for p in [0, 1, 31, 32, 63, 64, 65, 127, 300, 460, 699] {
        s.set_position(p);
        let attend = args::Attend {
            sessions: s.table.address(),
            q: q32.address(),
            parts: parts.address(),
            q8: q8_out.address(),
            q8_scale: scale_out.address(),
            f32: f32_out.address(),
            qkv: input.address() + (p * stride * 4) as u64,
            inv_freq: freqs.address(),
            tickets: tickets.address(),
            layout: s.layout,
            scale: scale * std::f32::consts::LOG2_E,
            magnitude,
            qkv_stride: stride as u32,
            n_pairs: n_pairs as u32,
            interleaved: u32::from(interleaved),
            n_heads: heads as u32,
            layer: 1,
            n_chunks: n_chunks as u32,
            ..Default::default()
        };
        with_stream(|stream| unsafe { kernels().attend(stream, &attend, 1).unwrap() });
        assert!(
            download::<u32>(&tickets, heads).iter().all(|t| *t == 0),
            "tickets"
        );
        let want = want(p);
        let plain: Vec<f32> = download(&f32_out, groups * 32);
        let error = relative_error(&plain[..width], &want);
        // Queries and weights are rounded to f16 on tensor cores.
        assert!(error < 2e-3, "decode, position {p}: error {error}");
        let q: Vec<i8> = download(&q8_out, groups * 32);
        let d: Vec<f32> = download(&scale_out, groups);
        let rounded: Vec<f32> = (0..width).map(|i| f32::from(q[i]) * d[i / 32]).collect();
        assert!(
            relative_error(&rounded, &want) < 0.01,
            "decode, position {p}: int8"
        );
        assert!(plain[width..].iter().all(|v| *v == 0.0) && q[width..].iter().all(|v| *v == 0));
    }
}
