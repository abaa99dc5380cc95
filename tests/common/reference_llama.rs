//! The oracle of the numeric tests: a network evaluated the plain, slow way, from the exact values
//! of its weights, all arithmetic in double precision, the KV cache unrounded.

use super::reference_experts::{experts, experts_by};
use super::reference_recurrent::{delta_net, mamba1, mamba2, short_conv};
use emberlm::format::Tensor;
use emberlm::model::{
    Activation, Attention, Block, FeedForward, LatentAttention, LayerStreams, Linear, Mixer, Mlp,
    Network, Norm, NormKind, Rope, RopePairing, Streams,
};
use emberlm::quant::dequantize_row;

/// One vector per position.
pub type Rows = Vec<Vec<f64>>;

/// The logits after each of `tokens`, `n_vocab` per position, in a session of just that context.
pub fn logits(network: &Network, tokens: &[u32]) -> Rows {
    let x = residual(network, embedded(network, tokens), tokens);
    head(network, &x)
}

/// What the layers begin with.
pub fn embedded(network: &Network, tokens: &[u32]) -> Rows {
    let mut x: Rows = tokens
        .iter()
        .map(|&t| row(&network.embedding, t as usize))
        .collect();
    x.iter_mut()
        .flatten()
        .for_each(|v| *v *= f64::from(network.embedding_scale));
    if let Some(positions) = &network.positions {
        let positions = (0..x.len()).map(|p| row(positions, p)).collect();
        add(&mut x, &positions, 1.0);
    }
    norm(network.embedding_norm.as_ref(), &x)
}

/// The residual stream behind the layers.
pub fn residual(network: &Network, mut x: Rows, tokens: &[u32]) -> Rows {
    let inputs = network.per_layer.as_ref().map(|p| {
        let mut all = linear(&p.projection, &x);
        for (all, token) in all.iter_mut().zip(tokens) {
            let embedding = row(&p.embedding, *token as usize);
            let len = p.norm.weight.row_len();
            for (own, embedding) in all.chunks_mut(len).zip(embedding.chunks(len)) {
                let scaled: Vec<f64> = own
                    .iter()
                    .map(|v| v * f64::from(p.projection_scale))
                    .collect();
                let normed = norm_row(&p.norm, &scaled);
                for (i, own) in own.iter_mut().enumerate() {
                    let sum = normed[i] + embedding[i] * f64::from(p.embedding_scale);
                    *own = sum * f64::from(p.scale);
                }
            }
        }
        all
    });
    let mut streams = network.streams.as_ref().map(|s| begun(s, &x));
    // Keys and values of the layers so far.
    let mut kept = Vec::new();
    for (layer, b) in network.blocks.iter().enumerate() {
        let scale = f64::from(b.residual_scale);
        if let (Some(layer), Some(streams)) = (&b.streams, &mut streams) {
            let predicted = predicted(layer, streams);
            x = predicted[layer.active].clone();
            let y = norm(b.mixer_norm.as_ref(), &x);
            let thin = linear(&layer.right, &linear(&layer.left, &y));
            let attended = attention_part(b, &y, &mut kept);
            add(&mut x, &attended, 1.0);
            add(&mut x, &y, 1.0);
            add(&mut x, &norm(Some(&layer.thin_norm), &thin), 1.0);
            x.iter_mut().flatten().for_each(|v| *v /= 2f64.sqrt());
            let FeedForward::Dense(mlp) = &b.feed_forward else {
                panic!("experts beside residual streams");
            };
            let input = norm(b.feed_forward_norm.as_ref(), &x);
            let fed = sparse(mlp, layer.cutoff, &input);
            add(&mut x, &norm(b.feed_forward_post_norm.as_ref(), &fed), 1.0);
            *streams = corrected(layer, predicted, &x);
            let scales = vector(&layer.output_scale);
            x = streams[layer.active].clone();
            for row in &mut x {
                row.iter_mut().zip(&scales).for_each(|(v, s)| *v *= s);
            }
        } else if b.parallel {
            let input = norm(b.mixer_norm.as_ref(), &x);
            let other = b.feed_forward_norm.as_ref().map(|n| norm(Some(n), &x));
            let y = attention_part(b, &input, &mut kept);
            let z = feed_forward_part(b, other.as_ref().unwrap_or(&input), &x);
            add(&mut x, &y, scale);
            add(&mut x, &z, scale);
        } else {
            let y = attention_part(b, &norm(b.mixer_norm.as_ref(), &x), &mut kept);
            add(&mut x, &y, scale);
            x = norm(b.mixer_sum_norm.as_ref(), &x);
            add_feed_forward(b, &mut x);
            x = norm(b.feed_forward_sum_norm.as_ref(), &x);
        }
        if let (Some(input), Some(all)) = (&b.per_layer, &inputs) {
            let mut gate = linear(&input.gate, &x);
            for (gate, all) in gate.iter_mut().zip(all) {
                let len = gate.len();
                for (g, v) in gate.iter_mut().zip(&all[layer * len..]) {
                    *g = activated(input.activation, *g) * v;
                }
            }
            let y = norm(input.post_norm.as_ref(), &linear(&input.projection, &gate));
            match &mut streams {
                None => add(&mut x, &y, 1.0),
                Some(streams) => streams[1..].iter_mut().for_each(|s| add(s, &y, 1.0)),
            }
        }
        x.iter_mut()
            .flatten()
            .for_each(|v| *v *= f64::from(b.output_scale));
    }
    if let (Some(all), Some(streams)) = (&network.streams, &streams) {
        x = streams[0].clone();
        for (matrix, stream) in all.end.iter().zip(&streams[1..]) {
            let y = as_large(linear(matrix, stream), &streams[0]);
            add(&mut x, &y, 1.0);
        }
        x.iter_mut().flatten().for_each(|v| *v /= all.count as f64);
    }
    x
}

/// The logits of that.
pub fn head(network: &Network, x: &Rows) -> Rows {
    let mut logits = linear(&network.head, &norm(Some(&network.final_norm), x));
    for logit in logits.iter_mut().flatten() {
        *logit = capped(*logit * f64::from(network.logit_scale), network.logit_cap);
    }
    logits
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64
}

fn as_large(mut x: Rows, other: &Rows) -> Rows {
    for (x, other) in x.iter_mut().zip(other) {
        let factor = (mean_square(other) / mean_square(x).max(1e-5)).sqrt();
        x.iter_mut().for_each(|v| *v *= factor);
    }
    x
}

fn begun(streams: &Streams, x: &Rows) -> Vec<Rows> {
    let others = streams.begin.iter().map(|m| as_large(linear(m, x), x));
    std::iter::once(x.clone()).chain(others).collect()
}

/// How much each stream counts for each row.
fn modalities(layer: &LayerStreams, x: &Rows) -> Rows {
    let router = Linear {
        weight: layer.router.clone(),
        bias: None,
    };
    let mut all = linear(&router, &norm(Some(&layer.router_norm), x));
    for v in all.iter_mut().flatten() {
        *v = (*v / x[0].len() as f64).tanh();
    }
    all
}

fn predicted(layer: &LayerStreams, streams: &[Rows]) -> Vec<Rows> {
    let (n, coefficients) = (layer.count, vector(&layer.predict));
    let modalities = modalities(layer, &streams[layer.active]);
    let mut out = streams.to_vec();
    for (t, m) in modalities.iter().enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            for (j, stream) in streams.iter().enumerate() {
                let row = &coefficients[(i * n + j) * n..][..n];
                let c: f64 = row.iter().zip(m).map(|(c, m)| c * m).sum();
                out[t]
                    .iter_mut()
                    .zip(&stream[t])
                    .for_each(|(o, s)| *o += c * s);
            }
        }
    }
    out
}

fn corrected(layer: &LayerStreams, mut predicted: Vec<Rows>, x: &Rows) -> Vec<Rows> {
    let (n, coefficients) = (layer.count, vector(&layer.correct));
    let modalities = modalities(layer, x);
    let active = predicted[layer.active].clone();
    for (i, stream) in predicted.iter_mut().enumerate() {
        for (t, m) in modalities.iter().enumerate() {
            let row = &coefficients[i * n..][..n];
            let c: f64 = 1.0 + row.iter().zip(m).map(|(c, m)| c * m).sum::<f64>();
            for (e, s) in stream[t].iter_mut().enumerate() {
                *s += c * (x[t][e] - active[t][e]);
            }
        }
    }
    predicted
}

/// A feed-forward part of whose gates only the largest count.
fn sparse(mlp: &Mlp, cutoff: Option<f32>, x: &Rows) -> Rows {
    let Some(cutoff) = cutoff else {
        return feed_forward(mlp, x);
    };
    let mut gates = linear(mlp.gate.as_ref().unwrap(), x);
    for (gate, up) in gates.iter_mut().zip(linear(&mlp.up, x)) {
        let mean = gate.iter().sum::<f64>() / gate.len() as f64;
        let variance = gate.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gate.len() as f64;
        let least = mean + variance.sqrt() * f64::from(cutoff);
        for (g, up) in gate.iter_mut().zip(up) {
            *g = activated(mlp.activation, (*g - least).max(0.0)) * up;
        }
    }
    linear(&mlp.down, &gates)
}

/// What a block's mixer makes of its normed input. Keys and values of layers go to `kept`.
pub fn attention_part(block: &Block, x: &Rows, kept: &mut Vec<(Rows, Rows)>) -> Rows {
    let y = match &block.mixer {
        Mixer::Attention(a) => attention(a, x, kept),
        Mixer::Latent(a) => latent_attention(a, x),
        Mixer::ShortConv(m) => short_conv(m, x),
        Mixer::DeltaNet(m) => delta_net(m, x),
        Mixer::Mamba1(m) => mamba1(m, x),
        Mixer::Mamba2(m) => mamba2(m, x),
        Mixer::SideBySide(both) => {
            let mut y = attention(&both.attention, x, kept);
            add(&mut y, &mamba2(&both.mamba, x), 1.0);
            y
        }
        // The oracle has whole networks.
        Mixer::Absent => x.iter().map(|row| vec![0.0; row.len()]).collect(),
    };
    norm(block.mixer_post_norm.as_ref(), &y)
}

/// Of the normed residual stream `x`, and of the stream itself.
fn feed_forward_part(block: &Block, x: &Rows, stream: &Rows) -> Rows {
    let y = match &block.feed_forward {
        FeedForward::Dense(mlp) => feed_forward(mlp, x),
        FeedForward::Experts(e) => experts(e, x),
        FeedForward::Both(both) => {
            let mut y = norm(Some(&both.mlp_post_norm), &feed_forward(&both.mlp, x));
            let [router, input] = [&both.router_norm, &both.experts_norm];
            let scores = linear(&both.experts.router, &norm(Some(router), stream));
            let z = experts_by(&both.experts, &scores, &norm(Some(input), stream));
            add(&mut y, &norm(Some(&both.experts_post_norm), &z), 1.0);
            y
        }
        FeedForward::Latent(latent) => {
            let mut y = feed_forward(&latent.mlp, x);
            let scores = linear(&latent.experts.router, x);
            let z = experts_by(&latent.experts, &scores, &linear(&latent.enter, x));
            add(&mut y, &linear(&latent.leave, &z), 1.0);
            y
        }
        FeedForward::None => x.iter().map(|row| vec![0.0; row.len()]).collect(),
        FeedForward::OnHost(_) => unreachable!("the oracle has whole networks"),
    };
    norm(block.feed_forward_post_norm.as_ref(), &y)
}

/// Adds the feed-forward part of a sequential block to the residual stream.
pub fn add_feed_forward(block: &Block, x: &mut Rows) {
    let y = feed_forward_part(block, &norm(block.feed_forward_norm.as_ref(), x), x);
    add(x, &y, f64::from(block.residual_scale));
}

fn capped(x: f64, cap: Option<f32>) -> f64 {
    match cap.map(f64::from) {
        Some(cap) => cap * (x / cap).tanh(),
        None => x,
    }
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
    // A rank's share of a matrix is yet to be made.
    let mut bytes = vec![0; tensor.row_bytes()];
    tensor.read_rows(row, &mut bytes).unwrap();
    dequantize_row(tensor.ty, &bytes, out);
}

fn row(tensor: &Tensor, index: usize) -> Vec<f64> {
    let mut out = vec![0.0; tensor.row_len()];
    dequantize(tensor, index, &mut out);
    out.into_iter().map(f64::from).collect()
}

/// A tensor's elements, row by row.
pub fn vector(tensor: &Tensor) -> Vec<f64> {
    // Plain ones may be computed from another tensor.
    let out = tensor.to_f32().unwrap().unwrap_or_else(|| {
        let mut out = vec![0.0; tensor.row_len() * tensor.rows()];
        dequantize_row(tensor.ty, tensor.bytes(), &mut out);
        out
    });
    out.into_iter().map(f64::from).collect()
}

fn add(x: &mut Rows, y: &Rows, scale: f64) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += scale * y;
    }
}

fn norm(norm: Option<&Norm>, x: &Rows) -> Rows {
    match norm {
        Some(norm) => x.iter().map(|x| norm_row(norm, x)).collect(),
        None => x.clone(),
    }
}

/// The norm of one row.
pub fn norm_row(norm: &Norm, x: &[f64]) -> Vec<f64> {
    let weight = vector(&norm.weight);
    let bias = norm.bias.as_ref().map(vector);
    let mean = match norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().sum::<f64>() / x.len() as f64,
    };
    let square = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (square + f64::from(norm.eps)).sqrt();
    (0..x.len())
        .map(|i| (x[i] - mean) * scale * weight[i] + bias.as_ref().map_or(0.0, |b| b[i]))
        .collect()
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

/// Norms of a position's queries or keys, over each head or all of them.
fn norm_heads(a: &Attention, norm: &Option<Norm>, x: &mut [f64]) {
    if let Some(norm) = norm
        && a.own_head_norms
    {
        for (h, head) in x.chunks_mut(a.head_dim).enumerate() {
            let range = h * a.head_dim..(h + 1) * a.head_dim;
            let weight = norm.weight.elements(range);
            let own = Norm {
                weight,
                ..norm.clone()
            };
            head.copy_from_slice(&norm_row(&own, head));
        }
    } else if let Some(norm) = norm {
        for part in x.chunks_mut(norm.weight.row_len()) {
            let normed = norm_row(norm, part);
            part.copy_from_slice(&normed);
        }
    }
}

/// Norms and rotates queries or keys.
fn ready(a: &Attention, norm: &Option<Norm>, x: &mut Rows) {
    let context = x.len();
    for (position, x) in x.iter_mut().enumerate() {
        if !a.norm_after_rope {
            norm_heads(a, norm, x);
        }
        if let Some(rope) = &a.rope {
            for head in x.chunks_mut(a.head_dim) {
                rotate(rope, context, position, head);
            }
        }
        if a.norm_after_rope {
            norm_heads(a, norm, x);
        }
    }
}

/// Brings queries, keys or values within their limit.
fn clip(a: &Attention, x: &mut Rows) {
    if let Some(limit) = a.clip.map(f64::from) {
        let values = x.iter_mut().flatten();
        values.for_each(|v| *v = v.clamp(-limit, limit));
    }
}

/// Takes the second half of each head out.
fn apart(q: &mut Rows, head_dim: usize) -> Rows {
    let half = |row: &Vec<f64>, from: usize| {
        let heads = row.chunks(2 * head_dim);
        heads
            .flat_map(|head| head[from..from + head_dim].to_vec())
            .collect()
    };
    let gates = q.iter().map(|row| half(row, head_dim)).collect();
    q.iter_mut().for_each(|row| *row = half(row, 0));
    gates
}

fn attention(a: &Attention, x: &Rows, kept: &mut Vec<(Rows, Rows)>) -> Rows {
    let (k, v) = match a.shares {
        Some(layer) => kept[layer].clone(),
        None => {
            let (mut k, mut v) = (linear(&a.k, x), linear(&a.v, x));
            clip(a, &mut k);
            clip(a, &mut v);
            ready(a, &a.k_norm, &mut k);
            let scale = f64::from(a.value_scale);
            v.iter_mut().flatten().for_each(|v| *v *= scale);
            if let Some(eps) = a.value_norm {
                for head in v.iter_mut().flat_map(|v| v.chunks_mut(a.value_dim)) {
                    let square = head.iter().map(|v| v * v).sum::<f64>() / head.len() as f64;
                    let scale = 1.0 / (square + f64::from(eps)).sqrt();
                    head.iter_mut().for_each(|v| *v *= scale);
                }
            }
            (k, v)
        }
    };
    kept.push((k.clone(), v.clone()));
    let mut q = linear(&a.q, x);
    let gates = match &a.gate {
        Some(gate) => Some(linear(gate, x)),
        None => a.gated.then(|| apart(&mut q, a.head_dim)),
    };
    clip(a, &mut q);
    ready(a, &a.q_norm, &mut q);
    let sinks = a.sinks.as_ref().map(vector);
    for (position, q) in q.iter_mut().enumerate() {
        if let Some(t) = a.temperature {
            let steps = ((position + t.offset) as f64 / f64::from(t.length)).floor();
            let factor = 1.0 + f64::from(t.scale) * (1.0 + steps).ln();
            q.iter_mut().for_each(|q| *q *= factor);
        }
    }
    let group = a.n_heads / a.n_kv_heads;
    let mixed = (0..x.len()).map(|position| {
        let mut out = vec![0.0; a.n_heads * a.value_dim];
        let first = a.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let first = first.max(a.chunk.map_or(0, |chunk| position / chunk * chunk));
        for (h, out) in out.chunks_mut(a.value_dim).enumerate() {
            let of = |each: usize| (h / group) * each..(h / group + 1) * each;
            let (keys, values) = (of(a.head_dim), of(a.value_dim));
            let q = &q[position][h * a.head_dim..][..a.head_dim];
            let mut scores: Vec<f64> = k[first..=position]
                .iter()
                .map(|k| {
                    q.iter()
                        .zip(&k[keys.clone()])
                        .map(|(q, k)| q * k)
                        .sum::<f64>()
                })
                .zip(first..)
                .map(|(s, at)| {
                    let slope = a.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[h]));
                    let far = (position - at) as f64;
                    capped(s * f64::from(a.scale) - slope * far, a.score_cap)
                })
                .collect();
            // A sink has a share, but no value.
            scores.extend(sinks.as_ref().map(|sinks| sinks[h]));
            let weights = log_softmax(&scores).into_iter().map(f64::exp);
            for (p, v) in weights.zip(&v[first..=position]) {
                for (o, v) in out.iter_mut().zip(&v[values.clone()]) {
                    *o += p * v;
                }
            }
        }
        out
    });
    let mut mixed: Rows = mixed.collect();
    if let Some(gates) = gates {
        for (x, gates) in mixed.iter_mut().zip(&gates) {
            let each = x.len() / gates.len();
            for (x, gate) in x.chunks_mut(each).zip(gates) {
                let factor = match a.softplus_gate {
                    true => gate.exp().ln_1p(),
                    false => 1.0 / (1.0 + (-gate).exp()),
                };
                x.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
    linear(&a.output, &norm(a.output_norm.as_ref(), &mixed))
}

/// With keys and values of every head, as the definition has them.
fn latent_attention(a: &LatentAttention, x: &Rows) -> Rows {
    let q = match &a.q_a {
        Some(q_a) => linear(&a.q, &norm(a.q_a_norm.as_ref(), &linear(q_a, x))),
        None => linear(&a.q, x),
    };
    let (mut latents, mut rotated): (Rows, Rows) = linear(&a.kv, x)
        .into_iter()
        .map(|row| (row[..a.rank].to_vec(), row[a.rank..].to_vec()))
        .unzip();
    latents = norm(a.kv_norm.as_ref(), &latents);
    let context = x.len();
    for (position, r) in rotated.iter_mut().enumerate() {
        rotate(&a.rope, context, position, r);
    }
    let (k, v) = (vector(&a.to_latent.weight), vector(&a.from_latent.weight));
    let mixed = q.iter().enumerate().map(|(position, q)| {
        let factor = a.temperature.map_or(1.0, |t| f64::from(t.factor(position)));
        let q: Vec<f64> = q.iter().map(|q| q * factor).collect();
        let mut out = Vec::new();
        for (h, q) in q.chunks(a.plain_dim + a.rotated()).enumerate() {
            let (plain, s) = q.split_at(a.plain_dim);
            let mut s = s.to_vec();
            rotate(&a.rope, context, position, &mut s);
            let k = &k[h * a.rank * a.plain_dim..];
            let scores: Vec<f64> = (0..=position)
                .map(|p| {
                    let key = |d: usize| -> f64 {
                        let element = |(r, c): (usize, &f64)| k[r * a.plain_dim + d] * c;
                        latents[p].iter().enumerate().map(element).sum()
                    };
                    let plain: f64 = plain.iter().enumerate().map(|(d, q)| q * key(d)).sum();
                    let turned: f64 = s.iter().zip(&rotated[p]).map(|(s, r)| s * r).sum();
                    (plain + turned) * f64::from(a.scale)
                })
                .collect();
            let weights: Vec<f64> = log_softmax(&scores).into_iter().map(f64::exp).collect();
            for d in 0..a.value_dim {
                let v = &v[(h * a.value_dim + d) * a.rank..][..a.rank];
                let value =
                    |p: usize| -> f64 { v.iter().zip(&latents[p]).map(|(v, c)| v * c).sum() };
                out.push((0..=position).map(|p| weights[p] * value(p)).sum());
            }
        }
        out
    });
    let mut mixed: Rows = mixed.collect();
    if let Some(gate) = &a.gate {
        for (out, gates) in mixed.iter_mut().zip(linear(gate, x)) {
            for (out, gate) in out.chunks_mut(a.value_dim).zip(gates) {
                let factor = 1.0 / (1.0 + (-gate).exp());
                out.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
    linear(&a.output, &mixed)
}

/// Rotates pair `i` of a head by `position * inv_freq[i]`.
fn rotate(rope: &Rope, context: usize, position: usize, head: &mut [f64]) {
    let frequencies = rope.frequencies(context);
    let n_pairs = frequencies.len();
    for (i, &f) in frequencies.iter().enumerate() {
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

pub fn feed_forward(mlp: &Mlp, x: &Rows) -> Rows {
    let inner = inner(mlp.activation, mlp.gate.as_ref(), &mlp.up, x);
    linear(&mlp.down, &norm(mlp.inner_norm.as_ref(), &inner))
}

/// The input of a feed-forward part's last product.
pub fn inner(activation: Activation, gate: Option<&Linear>, up: &Linear, x: &Rows) -> Rows {
    let mut up = linear(up, x);
    match gate {
        Some(gate) => {
            let gate = linear(gate, x);
            for (u, g) in up.iter_mut().flatten().zip(gate.iter().flatten()) {
                match activation {
                    Activation::ClampedSwiglu { limit, .. } => {
                        let limit = f64::from(limit);
                        *u = u.clamp(-limit, limit) + 1.0;
                    }
                    Activation::LimitedSilu { limit } => {
                        let limit = f64::from(limit);
                        *u = u.clamp(-limit, limit);
                    }
                    _ => {}
                }
                *u *= activated(activation, *g);
            }
        }
        None => {
            for u in up.iter_mut().flatten() {
                *u = activated(activation, *u);
            }
        }
    }
    up
}

/// By the series whose terms all have the same sign; beyond 6 it is 1 to the last bit.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 2.0;
        term *= 2.0 * x * x / n;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

pub fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * (1.0 + erf(x / std::f64::consts::SQRT_2)) / 2.0,
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x * (1.0 + u.tanh()) / 2.0
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Xielu { alpha_p, alpha_n } => {
            let (alpha_p, alpha_n) = (f64::from(alpha_p), f64::from(alpha_n));
            let above = match x > 0.0 {
                true => alpha_p * x * x,
                false => alpha_n * (x.exp_m1() - x),
            };
            above + x / 2.0
        }
        Activation::LimitedSilu { limit } => (x / (1.0 + (-x).exp())).min(f64::from(limit)),
        Activation::ClampedSwiglu { alpha, limit } => {
            let x = x.min(f64::from(limit));
            x / (1.0 + (-f64::from(alpha) * x).exp())
        }
    }
}
