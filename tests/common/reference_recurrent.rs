//! The oracle's mixers with states of fixed size, position by position, in double precision.

use super::reference_llama::{Rows, linear, norm_row, vector};
use emberlm::model::{Conv, DeltaNet, DeltaSteps, Mamba1, Mamba2, Norm, ShortConv};

/// A gated short convolution.
pub fn short_conv(m: &ShortConv, x: &Rows) -> Rows {
    let (b, c) = (linear(&m.b, x), linear(&m.c, x));
    let gated = product(&b, &linear(&m.x, x));
    linear(&m.output, &product(&c, &convolved(&m.conv, &gated)))
}

/// A gated delta net.
pub fn delta_net(m: &DeltaNet, x: &Rows) -> Rows {
    let mixed = beside(&[linear(&m.q, x), linear(&m.k, x), linear(&m.v, x)]);
    let mixed = map(convolved(&m.conv, &mixed), silu);
    let z = match &m.z_short {
        Some(short) => linear(&m.z, &linear(short, x)),
        None => linear(&m.z, x),
    };
    let (b, a) = delta_steps(m, x);
    let (decay, dt_bias) = (vector(&m.decay), vector(&m.dt_bias));
    let keys = m.n_key_heads * m.key_dim;
    let mut states = vec![vec![vec![0.0; m.key_dim]; m.value_dim]; m.n_value_heads];
    let mut out = Vec::new();
    for (p, mixed) in mixed.iter().enumerate() {
        let (q, rest) = mixed.split_at(keys);
        let (k, v) = rest.split_at(keys);
        let mut row = Vec::new();
        for (h, state) in states.iter_mut().enumerate() {
            let of_key = m.key_head(h) * m.key_dim..(m.key_head(h) + 1) * m.key_dim;
            let scale = (m.key_dim as f64).sqrt();
            let q: Vec<f64> = unit(&q[of_key.clone()]).iter().map(|q| q / scale).collect();
            let k = unit(&k[of_key]);
            let v = &v[h * m.value_dim..][..m.value_dim];
            // One for all columns, or one for each.
            let gates = a[p].len() / m.n_value_heads;
            let gate = |column: usize| {
                let at = h * gates + column % gates;
                let dt = a[p][at] + dt_bias[at];
                match m.decay_floor {
                    None => (decay[h] * softplus(dt)).exp(),
                    Some(floor) => (f64::from(floor) * sigmoid(decay[h] * dt)).exp(),
                }
            };
            let beta = f64::from(m.beta_scale) * sigmoid(b[p][h]);
            let mut o = Vec::new();
            for (s, v) in state.iter_mut().zip(v) {
                s.iter_mut().enumerate().for_each(|(i, s)| *s *= gate(i));
                let delta = beta * (v - dot(s, &k));
                s.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                o.push(dot(s, &q));
            }
            row.extend(norm_row(&m.norm, &o));
        }
        out.push(row);
    }
    let gate = if m.sigmoid_gate { sigmoid } else { silu };
    linear(&m.output, &product(&out, &map(z, gate)))
}

/// Two numbers for each value head.
fn delta_steps(m: &DeltaNet, x: &Rows) -> (Rows, Rows) {
    match &m.steps {
        DeltaSteps::Apart { b, a } => (linear(b, x), linear(a, x)),
        DeltaSteps::Channels { b, short, a } => {
            let of_a = match short {
                Some(short) => linear(a, &linear(short, x)),
                None => linear(a, x),
            };
            (linear(b, x), of_a)
        }
        DeltaSteps::Together(both) => {
            let group = m.n_value_heads / m.n_key_heads;
            let all = linear(both, x);
            let half = |from: usize| {
                let row = |all: &Vec<f64>| {
                    let groups = all.chunks(2 * group);
                    groups
                        .flat_map(|g| g[from..from + group].to_vec())
                        .collect()
                };
                all.iter().map(row).collect()
            };
            (half(0), half(group))
        }
    }
}

/// Mamba, the first.
pub fn mamba1(m: &Mamba1, x: &Rows) -> Rows {
    let inner = map(convolved(&m.conv, &linear(&m.x, x)), silu);
    let z = map(linear(&m.z, x), silu);
    let short = linear(&m.short, &inner);
    let part = |from: usize, len: usize, norm: &Option<Norm>| -> Rows {
        let row = |all: &Vec<f64>| match norm {
            Some(norm) => norm_row(norm, &all[from..from + len]),
            None => all[from..from + len].to_vec(),
        };
        short.iter().map(row).collect()
    };
    let (rank, states) = (m.rank(), m.state_dim);
    let dt = map(linear(&m.dt, &part(0, rank, &m.dt_norm)), softplus);
    let b = part(rank, states, &m.b_norm);
    let c = part(rank + states, states, &m.c_norm);
    let (decay, skip) = (vector(&m.decay), vector(&m.skip));
    let mut state = vec![vec![0.0; states]; m.channels()];
    let mut out = Vec::new();
    for (p, x) in inner.iter().enumerate() {
        let mut row = Vec::new();
        for (channel, state) in state.iter_mut().enumerate() {
            let (dt, x) = (dt[p][channel], x[channel]);
            for (n, s) in state.iter_mut().enumerate() {
                let gate = (dt * decay[channel * states + n]).exp();
                *s = gate * *s + dt * x * b[p][n];
            }
            row.push(dot(state, &c[p]) + skip[channel] * x);
        }
        out.push(row);
    }
    linear(&m.output, &product(&out, &z))
}

/// Mamba 2.
pub fn mamba2(m: &Mamba2, x: &Rows) -> Rows {
    let mixed = beside(&[linear(&m.x, x), linear(&m.b, x), linear(&m.c, x)]);
    let mixed = map(convolved(&m.conv, &mixed), silu);
    let (z, dt) = (linear(&m.z, x), linear(&m.dt, x));
    let (decay, dt_bias, skip) = (vector(&m.decay), vector(&m.dt_bias), vector(&m.skip));
    let mut states = vec![vec![vec![0.0; m.state_dim]; m.head_dim]; m.n_heads];
    let mut out = Vec::new();
    for (p, mixed) in mixed.iter().enumerate() {
        let (x, rest) = mixed.split_at(m.n_heads * m.head_dim);
        let (b, c) = rest.split_at(m.n_groups * m.state_dim);
        let mut row = Vec::new();
        for (h, state) in states.iter_mut().enumerate() {
            let of_group = h / (m.n_heads / m.n_groups) * m.state_dim;
            let (b, c) = (&b[of_group..][..m.state_dim], &c[of_group..][..m.state_dim]);
            let dt = softplus(dt[p][h] + dt_bias[h]);
            let dt = dt.clamp(f64::from(m.dt_min), f64::from(m.dt_max));
            let g = (dt * decay[h]).exp();
            for (s, x) in state.iter_mut().zip(&x[h * m.head_dim..]) {
                s.iter_mut()
                    .zip(b)
                    .for_each(|(s, b)| *s = g * *s + dt * x * b);
                row.push(dot(s, c) + skip[h] * x);
            }
        }
        out.push(row);
    }
    let z = map(z, silu);
    let out = match &m.norm {
        None => product(&out, &z),
        Some(_) if m.norm_before_gate => product(&normed(m, &out), &z),
        Some(_) => normed(m, &product(&out, &z)),
    };
    linear(&m.output, &out)
}

fn normed(m: &Mamba2, x: &Rows) -> Rows {
    let norm = m.norm.as_ref().unwrap();
    let weight = vector(&norm.weight);
    let len = weight.len() / m.norm_groups;
    let row = |x: &Vec<f64>| {
        let mut out = Vec::new();
        for (part, weight) in x.chunks(len).zip(weight.chunks(len)) {
            let mean = part.iter().map(|x| x * x).sum::<f64>() / len as f64;
            let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
            out.extend(part.iter().zip(weight).map(|(x, w)| x * scale * w));
        }
        out
    };
    x.iter().map(row).collect()
}

fn convolved(conv: &Conv, x: &Rows) -> Rows {
    let (weight, width) = (vector(&conv.weight), conv.width());
    let bias = conv.bias.as_ref().map(vector);
    let at = |p: usize, channel: usize| {
        let taps = weight[channel * width..][..width].iter().enumerate();
        let seen = taps.filter(|(i, _)| p + i + 1 >= width);
        let sum: f64 = seen.map(|(i, w)| w * x[p + i + 1 - width][channel]).sum();
        sum + bias.as_ref().map_or(0.0, |b| b[channel])
    };
    let row = |p| (0..conv.channels()).map(|channel| at(p, channel)).collect();
    (0..x.len()).map(row).collect()
}

fn beside(parts: &[Rows]) -> Rows {
    let row = |p: usize| parts.iter().flat_map(|part| part[p].clone()).collect();
    (0..parts[0].len()).map(row).collect()
}

fn product(x: &Rows, y: &Rows) -> Rows {
    let row = |(x, y): (&Vec<f64>, &Vec<f64>)| x.iter().zip(y).map(|(x, y)| x * y).collect();
    x.iter().zip(y).map(row).collect()
}

fn map(mut x: Rows, f: fn(f64) -> f64) -> Rows {
    x.iter_mut().flatten().for_each(|x| *x = f(*x));
    x
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
