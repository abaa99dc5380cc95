//! The oracle of the numeric tests: a network evaluated the plain, slow way, from the exact values
//! of its weights, all arithmetic in double precision, the KV cache unrounded.

use super::reference_experts::experts;
use emberlm::format::Tensor;
use emberlm::model::{Attention, FeedForward, Linear, Network, Norm, Rope, RopePairing};
use emberlm::quant::dequantize_row;

/// One vector per position.
pub type Rows = Vec<Vec<f64>>;

/// The logits after each of `tokens`, `n_vocab` per position.
pub fn logits(network: &Network, tokens: &[u32]) -> Rows {
    let mut row = vec![0.0; network.hidden];
    let mut x: Rows = tokens
        .iter()
        .map(|&t| {
            dequantize(&network.embedding, t as usize, &mut row);
            row.iter().map(|&v| f64::from(v)).collect()
        })
        .collect();
    for block in &network.blocks {
        let (attention_norm, rope, feed_forward_norm) = block.plain_frame().unwrap();
        let y = attention(&block.attention, rope, &norm(attention_norm, &x));
        add(&mut x, &y);
        let input = norm(feed_forward_norm, &x);
        let y = match &block.feed_forward {
            FeedForward::Dense(_) => feed_forward(block.feed_forward.plain().unwrap(), &input),
            FeedForward::Experts(e) => experts(e, &input),
        };
        add(&mut x, &y);
    }
    linear(&network.head, &norm(&network.final_norm, &x))
}

/// Kullback-Leibler divergence of the distributions that two sets of logits stand for, in nats:
/// the mean over positions of `sum p log(p / q)`, p from `reference`.
pub fn mean_divergence(reference: &Rows, logits: &[Vec<f32>]) -> f64 {
    assert_eq!(reference.len(), logits.len());
    let sum: f64 = reference
        .iter()
        .zip(logits)
        .map(|(p, q)| {
            let p = log_softmax(p);
            let q = log_softmax(&q.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
            p.iter()
                .zip(&q)
                .map(|(p, q)| p.exp() * (p - q))
                .sum::<f64>()
        })
        .sum();
    sum / reference.len() as f64
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = logits.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
    logits.iter().map(|v| v - max - log_sum).collect()
}

fn dequantize(tensor: &Tensor, row: usize, out: &mut [f32]) {
    let bytes = tensor.row_bytes();
    dequantize_row(tensor.ty, &tensor.bytes()[row * bytes..][..bytes], out);
}

/// A tensor's elements, row by row.
pub fn vector(tensor: &Tensor) -> Vec<f64> {
    let mut out = vec![0.0; tensor.row_len() * tensor.rows()];
    dequantize_row(tensor.ty, tensor.bytes(), &mut out);
    out.into_iter().map(f64::from).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += y;
    }
}

fn norm(norm: &Norm, x: &Rows) -> Rows {
    let weight = vector(&norm.weight);
    let scaled = |x: &Vec<f64>| {
        let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean_square + f64::from(norm.eps)).sqrt();
        x.iter().zip(&weight).map(|(v, w)| v * scale * w).collect()
    };
    x.iter().map(scaled).collect()
}

/// Each row of the weight is dequantized once, for all positions.
pub fn linear(linear: &Linear, x: &Rows) -> Rows {
    let weight = &linear.weight;
    let bias = linear.bias.as_ref().map(vector);
    let mut row = vec![0.0; weight.row_len()];
    let mut out = vec![vec![0.0; weight.rows()]; x.len()];
    for r in 0..weight.rows() {
        dequantize(weight, r, &mut row);
        for (x, y) in x.iter().zip(&mut out) {
            y[r] = dot(&row, x) + bias.as_ref().map_or(0.0, |b| b[r]);
        }
    }
    out
}

/// Eight partial sums, only so that it takes seconds and not minutes.
fn dot(w: &[f32], x: &[f64]) -> f64 {
    assert_eq!(w.len(), x.len());
    let mut sums = [0.0; 8];
    let ((w, w_rest), (x, x_rest)) = (w.as_chunks::<8>(), x.as_chunks::<8>());
    for (w, x) in w.iter().zip(x) {
        for i in 0..8 {
            sums[i] += f64::from(w[i]) * x[i];
        }
    }
    let rest: f64 = w_rest
        .iter()
        .zip(x_rest)
        .map(|(w, x)| f64::from(*w) * x)
        .sum();
    sums.iter().sum::<f64>() + rest
}

fn attention(a: &Attention, rope: &Rope, x: &Rows) -> Rows {
    let mut q = linear(&a.q, x);
    let mut k = linear(&a.k, x);
    let v = linear(&a.v, x);
    for (position, (q, k)) in q.iter_mut().zip(&mut k).enumerate() {
        for head in q.chunks_mut(a.head_dim).chain(k.chunks_mut(a.head_dim)) {
            rotate(rope, position, head);
        }
    }
    let group = a.n_heads / a.n_kv_heads;
    let mixed = (0..x.len()).map(|position| {
        let mut out = vec![0.0; a.n_heads * a.head_dim];
        for (h, out) in out.chunks_mut(a.head_dim).enumerate() {
            let kv = (h / group) * a.head_dim..(h / group + 1) * a.head_dim;
            let q = &q[position][h * a.head_dim..][..a.head_dim];
            let scores: Vec<f64> = k[..=position]
                .iter()
                .map(|k| {
                    q.iter()
                        .zip(&k[kv.clone()])
                        .map(|(q, k)| q * k)
                        .sum::<f64>()
                })
                .map(|s| s * f64::from(a.scale))
                .collect();
            for (p, v) in log_softmax(&scores).into_iter().map(f64::exp).zip(&v) {
                for (o, v) in out.iter_mut().zip(&v[kv.clone()]) {
                    *o += p * v;
                }
            }
        }
        out
    });
    linear(&a.output, &mixed.collect())
}

/// Rotates pair `i` of a head by `position * inv_freq[i]`.
fn rotate(rope: &Rope, position: usize, head: &mut [f64]) {
    let n_pairs = rope.inv_freq.len();
    for (i, &f) in rope.inv_freq.iter().enumerate() {
        let (a, b) = match rope.pairing {
            RopePairing::Interleaved => (2 * i, 2 * i + 1),
            RopePairing::Halves => (i, i + n_pairs),
        };
        let (sin, cos) = (position as f64 * f64::from(f)).sin_cos();
        let (x, y) = (head[a], head[b]);
        let magnitude = f64::from(rope.magnitude);
        head[a] = (x * cos - y * sin) * magnitude;
        head[b] = (x * sin + y * cos) * magnitude;
    }
}

fn feed_forward([gate, up, down]: [&Linear; 3], x: &Rows) -> Rows {
    let mut gate = linear(gate, x);
    let up = linear(up, x);
    for (g, u) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
        *g = *g / (1.0 + (-*g).exp()) * u;
    }
    linear(down, &gate)
}
