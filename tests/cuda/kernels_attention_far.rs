//! Attention of a step far into contexts, and of sessions at different places in theirs.

use crate::common::tiny::Random;
use crate::gpu::*;
use crate::kernels_attention::{TestSession, stored, test_session};
use emberlm::backend::cuda::driver::Buffer;
use emberlm::backend::cuda::launch::args;
use emberlm::backend::cuda::launch::attention::{KV_TILE, RowsOf, part_stride};

/// Where sessions of a batch are: within the first tile, at the ends of one, and after many chunks.
const POSITIONS: [usize; 6] = [8999, 0, 127, 4203, 128, 16390];
/// Different keys and values, a prime, so that neither those of a tile nor those of a head are the same.
const KINDS: usize = 997;
/// Queries, weights, and the values of a Q8_0 cache are rounded to f16, which has 11 bits.
const MOST_ERROR: f64 = 1e-3;

pub fn tests(tests: &mut Tests) {
    for q8 in [false, true] {
        let kv = if q8 { "q8_0" } else { "f16" };
        for (heads, kv_heads, dim) in [
            (8, 2, 64),
            (32, 8, 64),
            (12, 2, 128),
            (32, 8, 128),
            (24, 1, 128),
            (16, 8, 256),
            (4, 1, 256),
            // Heads that do not fill their tiles.
            (10, 5, 20),
            (10, 5, 80),
            (6, 6, 176),
        ] {
            let name = format!("attention::{kv}::far_{heads}_heads_{kv_heads}_kv_{dim}");
            tests.push((
                name,
                Box::new(move || far_is_right(heads, kv_heads, dim, q8)),
            ));
        }
    }
}

/// Keys and values as caches have them, and what they stand for.
struct Rows {
    stored: Vec<Vec<u8>>,
    values: Vec<Vec<f64>>,
}

impl Rows {
    fn random(random: &mut Random, dim: usize, q8: bool) -> Rows {
        let (mut all, mut values) = (Vec::new(), Vec::new());
        for _ in 0..KINDS {
            let row = random_floats(random, dim);
            if !q8 {
                let halves: Vec<half::f16> = row.into_iter().map(half::f16::from_f32).collect();
                all.push(halves.iter().flat_map(|h| h.to_le_bytes()).collect());
                values.push(halves.iter().map(|h| f64::from(h.to_f32())).collect());
                continue;
            }
            let groups = dim.div_ceil(32);
            let scales: Vec<half::f16> = random_floats(random, groups)
                .into_iter()
                .map(|scale| half::f16::from_f32(scale.abs() / 64.0))
                .collect();
            let mut bytes: Vec<u8> = row.iter().map(|v| (v * 127.0) as i8 as u8).collect();
            let one = |i: usize| f64::from(bytes[i] as i8) * f64::from(scales[i / 32].to_f32());
            values.push((0..dim).map(one).collect());
            bytes.resize(groups * 32, 0);
            bytes.extend(scales.iter().flat_map(|h| h.to_le_bytes()));
            all.push(bytes);
        }
        Rows {
            stored: all,
            values,
        }
    }

    /// That of a position.
    fn kind(position: usize, head: usize, value: bool) -> usize {
        (position + 131 * head + 499 * usize::from(value)) % KINDS
    }

    /// A session whose cache has them at all positions before `position`.
    fn session(&self, kv_heads: usize, dim: usize, q8: bool, position: usize) -> TestSession {
        let s = test_session(kv_heads, dim, q8, position + 1, None);
        let row_bytes = s.layout.row_bytes as usize;
        let mut cache = vec![0xffu8; s.cache.bytes()];
        for p in 0..position {
            let tile = p / KV_TILE * s.layout.tile_bytes as usize + s.layout.layer_offset as usize;
            for part in 0..2 * kv_heads {
                let (value, head) = (part >= kv_heads, part % kv_heads);
                let row = &self.stored[Self::kind(p, head, value)];
                let at = tile + (part * KV_TILE + p % KV_TILE) * row_bytes;
                cache[at..at + row.len()].copy_from_slice(row);
                // Only behind scales there may be anything.
                if !q8 {
                    cache[at + row.len()..at + row_bytes].fill(0);
                }
            }
        }
        s.cache.write(0, &cache).unwrap();
        s.set_position(position);
        s
    }
}

/// What a head makes of a context, whose last position has this key and this value.
fn attended(
    rows: &Rows,
    head: usize,
    position: usize,
    query: &[f64],
    key: &[f64],
    value: &[f64],
) -> Vec<f64> {
    let product = |key: &[f64]| -> f64 { query.iter().zip(key).map(|(q, k)| q * k).sum() };
    let scores: Vec<f64> = rows.values.iter().map(|key| product(key)).collect();
    let last = product(key);
    let seen = (0..position).map(|p| scores[Rows::kind(p, head, false)]);
    let top = seen.clone().fold(last, f64::max);
    let mut sums: Vec<f64> = value.iter().map(|v| v * (last - top).exp()).collect();
    let mut total = (last - top).exp();
    let mut weights = vec![0.0; KINDS];
    for (p, score) in seen.enumerate() {
        let weight = (score - top).exp();
        weights[Rows::kind(p, head, true)] += weight;
        total += weight;
    }
    for (weight, row) in weights.iter().zip(&rows.values) {
        for (sum, v) in sums.iter_mut().zip(row) {
            *sum += weight * v;
        }
    }
    sums.iter().map(|sum| sum / total).collect()
}

/// The tile with a session's current position.
fn last_tile(s: &TestSession, position: usize) -> Vec<u8> {
    let at = position / KV_TILE * s.layout.tile_bytes as usize + s.layout.layer_offset as usize;
    let mut tile = vec![0u8; s.layout.tile_bytes as usize / 2];
    s.cache.read(at, &mut tile).unwrap();
    tile
}

/// Close to what f64 makes of it; with the same bits in a batch as alone; what is appended is what `rope_append` appends; and what is no number
/// stays none.
fn far_is_right(heads: usize, kv_heads: usize, dim: usize, q8: bool) {
    let mut random = Random::new(dim as u64, "far");
    let rows = Rows::random(&mut random, dim, q8);
    let sessions = POSITIONS.map(|p| rows.session(kv_heads, dim, q8, p));
    let (width, stride) = (heads * dim, (heads + 2 * kv_heads) * dim);
    let mut qkv = random_floats(&mut random, POSITIONS.len() * stride);
    let scale = 3.0 / (dim as f32).sqrt();
    let want: Vec<Vec<f64>> = POSITIONS
        .iter()
        .zip(qkv.chunks(stride))
        .map(|(&position, row)| {
            let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            let part = |i: usize| &row[i * dim..(i + 1) * dim];
            let head = |h: usize| {
                let kv = h * kv_heads / heads;
                let query: Vec<f64> = part(h).iter().map(|q| q * f64::from(scale)).collect();
                let key = stored(part(heads + kv), q8);
                let value = stored(part(heads + kv_heads + kv), q8);
                attended(&rows, kv, position, &query, &key, &value)
            };
            (0..heads).flat_map(head).collect()
        })
        .collect();

    let n_chunks = args::MAX_PARTS as usize;
    let batch = POSITIONS.len();
    let out_stride = width.next_multiple_of(32);
    let out = poisoned(batch * out_stride * 4);
    let floats = |n: usize| poisoned(n * 4);
    let (q32, q16) = (floats(batch * width), floats(batch * width));
    let parts = floats(batch * heads * n_chunks * part_stride(dim as u32) as usize);
    let tickets = upload(&vec![0u32; batch * heads]);
    let input = upload(&qkv);
    let value_head = (heads + kv_heads) as u32;
    let run = |table: &Buffer, first: usize, count: usize| -> Vec<f32> {
        let attend = args::Attend {
            sessions: table.address(),
            q: q32.address(),
            q16: q16.address(),
            parts: parts.address(),
            f32: out.address(),
            qkv: input.address() + (first * stride * 4) as u64,
            tickets: tickets.address(),
            layout: sessions[0].layout,
            scores: args::Scores {
                scale: scale * std::f32::consts::LOG2_E,
                ..Default::default()
            },
            qkv_stride: stride as u32,
            n_heads: heads as u32,
            n_chunks: n_chunks as u32,
            value_head,
            value_dim: dim as u32,
            ..Default::default()
        };
        with_stream(|stream| unsafe {
            let rows = RowsOf::Sessions;
            kernels()
                .attend(stream, &attend, count as u32, rows)
                .unwrap();
        });
        let all: Vec<f32> = download(&out, count * out_stride);
        let rows = all.chunks(out_stride);
        rows.flat_map(|row| row[..width].to_vec()).collect()
    };
    let appended_is_right = |i: usize| {
        let (s, position) = (&sessions[i], POSITIONS[i]);
        let tile = last_tile(s, position);
        let table = upload(&[s.session.address()]);
        let rope = args::Rope {
            sessions: table.address(),
            qkv: input.address() + (i * stride * 4) as u64,
            layout: s.layout,
            qkv_stride: stride as u32,
            n_heads: heads as u32,
            value_head,
            ..Default::default()
        };
        with_stream(|stream| unsafe { kernels().rope_append(stream, &rope, 1).unwrap() });
        assert!(tile == last_tile(s, position), "position {position}: cache");
    };
    let mut alone = Vec::new();
    for (i, want) in want.iter().enumerate() {
        let table = upload(&[sessions[i].session.address()]);
        let got = run(&table, i, 1);
        let error = relative_error(&got, want);
        assert!(
            error < MOST_ERROR,
            "position {}: error {error}",
            POSITIONS[i]
        );
        alone.extend(got);
        appended_is_right(i);
    }
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    for count in [2, batch] {
        let table: Vec<u64> = sessions[..count]
            .iter()
            .map(|s| s.session.address())
            .collect();
        let got = run(&upload(&table), 0, count);
        assert_eq!(bits(&got), bits(&alone[..got.len()]), "{count} sessions");
    }

    qkv[heads * dim + dim - 1] = f32::NAN;
    input.write(0, &qkv).unwrap();
    let got = run(&upload(&[sessions[0].session.address()]), 0, 1);
    let (of_first, others) = got.split_at(width / kv_heads);
    assert!(of_first.iter().all(|v| v.is_nan()));
    assert!(others.iter().all(|v| v.is_finite()));
    appended_is_right(0);

    // Numbers of all sizes, also those whose scales are beyond the range of f16 or rounded to nothing.
    for (i, v) in qkv[heads * dim..stride].iter_mut().enumerate() {
        *v = random.signed_unit() * 10f32.powi(i as i32 / 32 * 3 % 84 - 45);
    }
    input.write(0, &qkv).unwrap();
    run(&upload(&[sessions[0].session.address()]), 0, 1);
    appended_is_right(0);
}
