//! Rotary embedding, the KV cache, and attention of decode and prefill.

use crate::common::tiny::Random;
use crate::gpu::*;
use crate::kernels_norm::norm;
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args::{self, KvLayout};
use emberlm::backend::cuda::launch::attention::RowsOf;
use emberlm::backend::cuda::launch::attention::{FMA_ROWS, KV_TILE, LONGEST_SHORT, part_stride};

/// What is unlike llama.
#[derive(Clone, Copy, Default)]
struct Variant {
    /// Positions seen, with a ring of so many tiles.
    window: Option<(usize, usize)>,
    cap: Option<f32>,
    sinks: bool,
    /// Norms of heads: `Some(true)` with mean and bias.
    norms: Option<bool>,
    no_rope: bool,
    /// The session's context is long, and has frequencies of its own.
    long: bool,
}

pub fn tests(tests: &mut Tests) {
    let plain = Variant::default();
    let window = Variant {
        window: Some((100, 8)),
        ..plain
    };
    let everything = Variant {
        cap: Some(5.0),
        sinks: true,
        norms: Some(true),
        long: true,
        ..window
    };
    let variants = [
        ("", plain),
        ("_window", window),
        (
            "_capped",
            Variant {
                cap: Some(1.5),
                ..plain
            },
        ),
        (
            "_sinks",
            Variant {
                sinks: true,
                ..plain
            },
        ),
        (
            "_norms",
            Variant {
                norms: Some(false),
                ..plain
            },
        ),
        (
            "_no_rope",
            Variant {
                no_rope: true,
                ..plain
            },
        ),
        ("_everything", everything),
    ];
    for q8 in [false, true] {
        let kv = if q8 { "q8_0" } else { "f16" };
        for (what, variant) in variants {
            let all = [
                (4, 2, 64),
                (8, 1, 128),
                (12, 2, 128),
                (3, 3, 80),
                (16, 1, 32),
                (4, 4, 256),
                (14, 2, 64),
                (2, 1, 20),
                (6, 2, 96),
                (3, 1, 15),
                (9, 3, 112),
                // More KV heads than `attend_wide` kernels are for.
                (16, 8, 64),
                (12, 6, 128),
                (5, 5, 20),
                // Long heads.
                (8, 2, 512),
                (20, 1, 512),
                (3, 1, 300),
                (2, 2, 259),
            ];
            let few = [
                (4, 2, 64),
                (10, 1, 256),
                (6, 3, 36),
                (12, 6, 80),
                (4, 2, 512),
            ];
            let shapes = if what.is_empty() { &all[..] } else { &few };
            for &(heads, kv_heads, dim) in shapes {
                let name = format!("attention::{kv}::{heads}_heads_{kv_heads}_kv_{dim}{what}");
                tests.push((
                    name,
                    Box::new(move || attention_is_right(heads, kv_heads, dim, q8, variant)),
                ));
            }
        }
    }
}

/// A session with a cache for `positions` positions of two layers.
pub struct TestSession {
    pub layout: KvLayout,
    pub session: Buffer,
    table: Buffer,
    pub cache: Buffer,
}

pub fn test_session(
    kv_heads: usize,
    dim: usize,
    q8: bool,
    positions: usize,
    window: Option<(usize, usize)>,
) -> TestSession {
    let row = if q8 {
        dim.next_multiple_of(32) + dim.div_ceil(32) * 2
    } else {
        dim * 2
    };
    let row_bytes = row.next_multiple_of(16) as u64;
    let layer_bytes = 2 * kv_heads as u64 * KV_TILE as u64 * row_bytes;
    let layout = KvLayout {
        tile_bytes: 2 * layer_bytes,
        layer_offset: layer_bytes,
        row_bytes: row_bytes as u32,
        n_kv_heads: kv_heads as u32,
        head_dim: dim as u32,
        q8: u32::from(q8),
        ring: window.map_or(0, |(_, tiles)| tiles as u32),
        window: window.map_or(args::NO_WINDOW, |(window, _)| window as u32),
    };
    let tiles = window.map_or(positions.div_ceil(KV_TILE), |(_, tiles)| tiles);
    let cache = poisoned(tiles * layout.tile_bytes as usize);
    // An address that is not to be used is a bad one.
    let (kv, kv_ring) = match window {
        None => (cache.address(), 16),
        Some(_) => (16, cache.address()),
    };
    let session = upload(&[args::Session {
        kv,
        kv_ring,
        context: 4097,
        ..Default::default()
    }]);
    let table = upload(&[session.address()]);
    TestSession {
        layout,
        session,
        table,
        cache,
    }
}

impl TestSession {
    pub fn set_position(&self, position: usize) {
        let at = std::mem::offset_of!(args::Session, position);
        self.session.write(at, &[position as u32]).unwrap();
    }
}

/// Rounds as the cache does.
pub fn stored(row: &[f64], q8: bool) -> Vec<f64> {
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

fn attention_is_right(heads: usize, kv_heads: usize, dim: usize, q8: bool, variant: Variant) {
    let positions = 700;
    // Rows of one session together.
    let many = 11;
    let stride = (heads + 2 * kv_heads) * dim;
    let mut random = Random::new(dim as u64, "attention");
    let qkv = random_floats(&mut random, positions * stride);
    let n_pairs = if variant.no_rope {
        0
    } else {
        dim / 2 - usize::from(dim > 40)
    };
    let inv_freq: Vec<f32> = (0..n_pairs)
        .map(|i| 10_000f32.powf(-(i as f32) / n_pairs as f32))
        .collect();
    let interleaved = heads.is_multiple_of(2);
    let magnitude = 1.1f32;
    // Large enough for a softmax that is not flat.
    let scale = if variant.norms.is_some() { 1.0 } else { 3.0 } / (dim as f32).sqrt();
    let sinks = random_floats(&mut random, heads);
    let norm_weights: Vec<Vec<f32>> = (0..2)
        .map(|_| {
            random_floats(&mut random, dim)
                .iter()
                .map(|w| 1.0 + w / 2.0)
                .collect()
        })
        .collect();
    let norm_bias = random_floats(&mut random, dim);
    let eps = 1e-5;

    // Reference: rotate, store, attend.
    let rotated: Vec<Vec<f64>> = qkv
        .chunks(stride)
        .enumerate()
        .map(|(p, row)| {
            let mut row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            for (h, head) in row[..(heads + kv_heads) * dim].chunks_mut(dim).enumerate() {
                if let Some(layer) = variant.norms {
                    let weight = &norm_weights[usize::from(h >= heads)];
                    let bias = layer.then_some(&norm_bias[..]);
                    head.copy_from_slice(&norm(head, weight, bias, layer, eps));
                }
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
            let first = variant.window.map_or(0, |(w, _)| (p + 1).saturating_sub(w));
            let scores: Vec<f64> = (first..=p)
                .map(|t| {
                    let score = q.iter().zip(&keys[kv][t]).map(|(q, k)| q * k).sum::<f64>()
                        * f64::from(scale);
                    match variant.cap.map(f64::from) {
                        Some(cap) => cap * (score / cap).tanh(),
                        None => score,
                    }
                })
                .collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let mut total: f64 = weights.iter().sum();
            if variant.sinks {
                total += (f64::from(sinks[h]) - top).exp();
            }
            let mut sums = vec![0.0; dim];
            for (w, row) in weights.iter().zip(&values[kv][first..]) {
                for (sum, v) in sums.iter_mut().zip(row) {
                    *sum += w / total * v;
                }
            }
            out.extend(sums);
        }
        out
    };

    let s = test_session(kv_heads, dim, q8, positions, variant.window);
    let (input, freqs) = (upload(&qkv), upload(&inv_freq));
    let wrong_freqs = upload(&vec![f32::NAN; n_pairs.max(1)]);
    let (sinks, norm_bias) = (upload(&sinks), upload(&norm_bias));
    let norm_weights: Vec<Buffer> = norm_weights.iter().map(|w| upload(w)).collect();
    let head_norm = |i: usize| args::Norm {
        weight: match variant.norms {
            Some(_) => norm_weights[i].address(),
            None => 0,
        },
        bias: match variant.norms {
            Some(true) => norm_bias.address(),
            _ => 0,
        },
        eps,
        layer: u32::from(variant.norms == Some(true)),
    };
    let (q_norm, k_norm) = (head_norm(0), head_norm(1));
    // The session's context is 4097.
    let rotation = args::Rotation {
        inv_freq: if variant.long { &wrong_freqs } else { &freqs }.address(),
        long_inv_freq: if variant.long { &freqs } else { &wrong_freqs }.address(),
        magnitude,
        n_pairs: n_pairs as u32,
        interleaved: u32::from(interleaved),
        long_above: if variant.long { 4096 } else { 4097 },
        ..Default::default()
    };
    let log2_e = std::f32::consts::LOG2_E;
    let scores = args::Scores {
        sinks: if variant.sinks { sinks.address() } else { 0 },
        scale: variant.cap.map_or(scale * log2_e, |cap| scale / cap),
        cap: variant.cap.map_or(0.0, |cap| cap * log2_e),
    };
    let width = heads * dim;
    let q16 = poisoned(positions * width * 2);
    let q32 = poisoned(many * width * 4);
    let rope = args::Rope {
        sessions: s.table.address(),
        qkv: input.address(),
        rotation,
        q_norm,
        k_norm,
        layout: s.layout,
        q_scale: scores.scale,
        qkv_stride: stride as u32,
        n_heads: heads as u32,
        value_head: (heads + kv_heads) as u32,
        ..Default::default()
    };
    // Prefill in two chunks, the second from the middle of a tile on and in two parts.
    let cut = 403;
    let out = poisoned(positions * width * 4);
    let many_parts = poisoned(FMA_ROWS as usize * heads * part_stride(dim as u32) as usize * 4);
    for (first, first_row, rows) in [(0, 0, cut), (cut, 0, 99), (cut, 99, positions - cut)] {
        s.set_position(first);
        let rope = args::Rope {
            qkv: input.address() + (first * stride * 4) as u64,
            q_f16: q16.address(),
            prefill: 1,
            first_row: first_row as u32,
            ..rope
        };
        let flash = args::Flash {
            sessions: s.table.address(),
            q: q16.address(),
            out: out.address() + (first * width * 4) as u64,
            layout: s.layout,
            scores,
            first_row: first_row as u32,
            rows: rows as u32,
            n_heads: heads as u32,
            value_dim: dim as u32,
            slopes: 0,
        };
        with_stream(|stream| unsafe {
            let count = (rows - first_row) as u32;
            kernels().rope_append(stream, &rope, count).unwrap();
            match dim > LONGEST_SHORT as usize {
                false => kernels().flash(stream, &flash).unwrap(),
                true => {
                    let room = many_parts.address();
                    kernels().flash_long(stream, &flash, room, false).unwrap();
                }
            }
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
        poisoned(many * groups * 32),
        poisoned(many * groups * 4),
        poisoned(many * groups * 32 * 4),
    );
    let tickets = upload(&vec![0u32; many * heads]);
    let n_chunks = 7;
    let parts = poisoned(many * heads * n_chunks * part_stride(dim as u32) as usize * 4);
    let attend = |p: usize| args::Attend {
        sessions: s.table.address(),
        q: q32.address(),
        q16: q16.address(),
        parts: parts.address(),
        q8: q8_out.address(),
        q8_scale: scale_out.address(),
        f32: f32_out.address(),
        qkv: input.address() + (p * stride * 4) as u64,
        tickets: tickets.address(),
        rotation,
        q_norm,
        k_norm,
        layout: s.layout,
        scores,
        qkv_stride: stride as u32,
        n_heads: heads as u32,
        n_chunks: n_chunks as u32,
        value_head: (heads + kv_heads) as u32,
        value_dim: dim as u32,
        ..Default::default()
    };
    for p in [0, 1, 31, 32, 63, 64, 65, 127, 300, 460, 699] {
        // What a ring still holds.
        if variant
            .window
            .is_some_and(|(w, tiles)| p + tiles * KV_TILE < positions + w)
        {
            continue;
        }
        s.set_position(p);
        let attend = attend(p);
        let want = want(p);
        // As devices do it that have the shared memory for tiles, and as the others do.
        for fma in [false, true] {
            with_stream(|stream| unsafe {
                match fma {
                    false => kernels()
                        .attend(stream, &attend, 1, RowsOf::Sessions)
                        .unwrap(),
                    true => kernels().attend_fma(stream, &attend, 1).unwrap(),
                }
            });
            let what = format!("decode, position {p}, fma {fma}");
            let tickets: Vec<u32> = download(&tickets, heads);
            assert!(tickets.iter().all(|t| *t == 0), "{what}: tickets");
            let plain: Vec<f32> = download(&f32_out, groups * 32);
            let error = relative_error(&plain[..width], &want);
            // Queries and weights are rounded to f16 on tensor cores.
            assert!(error < 2e-3, "{what}: error {error}");
            let q: Vec<i8> = download(&q8_out, groups * 32);
            let d: Vec<f32> = download(&scale_out, groups);
            let rounded: Vec<f32> = (0..width).map(|i| f32::from(q[i]) * d[i / 32]).collect();
            let error = relative_error(&rounded, &want);
            assert!(error < 0.01, "{what}: int8: error {error}");
            let padding = width..groups * 32;
            assert!(padding.into_iter().all(|i| plain[i] == 0.0 && q[i] == 0));
        }
    }

    // Rows of one session have the bits that they have alone, also beside others whose context has another chunk.
    let session = download::<args::Session>(&s.session, 1)[0];
    let most = [70, 129, 260, 462, 699];
    for last in most
        .into_iter()
        .filter(|p| variant.window.is_none() || *p > 400)
    {
        let first = last + 1 - many;
        let mut alone = Vec::new();
        for p in first..=last {
            s.set_position(p);
            let attend = attend(p);
            with_stream(|stream| unsafe {
                let rows = RowsOf::Sessions;
                kernels().attend(stream, &attend, 1, rows).unwrap();
            });
            alone.extend(download::<f32>(&f32_out, groups * 32));
        }
        let sessions: Vec<args::Session> = (first..=last)
            .map(|p| args::Session {
                position: p as u32,
                ..session
            })
            .collect();
        let sessions = upload(&sessions);
        let size = size_of::<args::Session>() as u64;
        let addresses = (0..many as u64).map(|i| sessions.address() + i * size);
        let table = upload(&addresses.collect::<Vec<u64>>());
        for rows in [RowsOf::Drafts, RowsOf::OneSession] {
            for count in [2, 5, many] {
                let attend = args::Attend {
                    sessions: table.address(),
                    ..attend(first)
                };
                f32_out
                    .write(0, &vec![f32::NAN; many * groups * 32])
                    .unwrap();
                with_stream(|stream| unsafe {
                    kernels()
                        .attend(stream, &attend, count as u32, rows)
                        .unwrap();
                });
                let got: Vec<f32> = download(&f32_out, count * groups * 32);
                let same = got
                    .iter()
                    .zip(&alone)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{count} rows up to {last}, {rows:?}");
                let tickets: Vec<u32> = download(&tickets, many * heads);
                assert!(tickets.iter().all(|t| *t == 0), "rows: tickets");
            }
        }
    }
}
