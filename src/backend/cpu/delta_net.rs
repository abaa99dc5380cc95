//! A gated delta net as a block's mixer: products, a convolution, and then the recurrence, in which
//! each head is one thread's, token by token.

use super::convolution::{Channels, Convolution, Runs, head_state};
use super::elementwise::{add_bias, mul_sigmoid, silu_mul};
use super::layer::{NormWeights, Product, floats, product, union};
use super::matmul::Isa;
use super::pass::{Pass, Post, Rows, Tokens};
use super::pool::Work;
use super::profile::product_bytes;
use super::recurrence::{channel_delta_step, delta_step, sigmoid, softplus, unit};
use super::weights::ThreadSpace;
use crate::backend::Work as Kind;
use crate::error::{Result, try_vec};
use crate::model::{DeltaNet, DeltaSteps};
use std::ops::Range;

/// The weights of a layer's delta net.
pub(super) struct DeltaNetLayer {
    /// The layer's place in a session's state.
    index: usize,
    n_value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    q: Product,
    k: Product,
    v: Product,
    z: Product,
    /// What gates come by way of.
    z_short: Option<Product>,
    sigmoid_gate: bool,
    steps: Vec<Product>,
    /// Whether steps are of channels,
    of_channels: bool,
    /// and what they come by way of.
    a_short: Option<Product>,
    /// The biases of the steps, one behind the other.
    step_bias: Vec<f32>,
    beta_scale: f32,
    /// Of each value head: its key head, and where its numbers are among those of `steps`.
    heads: Vec<Head>,
    conv: Convolution,
    decay: Vec<f32>,
    decay_floor: Option<f32>,
    dt_bias: Vec<f32>,
    norm: NormWeights,
    output: Product,
}

struct Head {
    key: usize,
    b: usize,
    a: usize,
}

impl DeltaNetLayer {
    /// Takes a layer's delta net over; reads only the small tensors.
    pub fn new((index, m): (usize, &DeltaNet), isa: Isa) -> Result<DeltaNetLayer> {
        let n = m.n_value_heads;
        let group = n / m.n_key_heads;
        let heads = (0..n).map(|head| {
            let (b, a) = match m.steps {
                DeltaSteps::Apart { .. } => (head, n + head),
                DeltaSteps::Channels { .. } => (head, n + head * m.key_dim),
                DeltaSteps::Together(_) => {
                    let b = head / group * 2 * group + head % group;
                    (b, b + group)
                }
            };
            Head {
                key: m.key_head(head),
                b,
                a,
            }
        });
        let (linears, a_short) = match &m.steps {
            DeltaSteps::Channels { b, short, a } => {
                let short = short.as_ref().map(|short| product(short, isa));
                (vec![b, a], short.transpose()?)
            }
            steps => (steps.linears().collect(), None),
        };
        let steps: Vec<Product> = linears
            .into_iter()
            .map(|linear| product(linear, isa))
            .collect::<Result<_>>()?;
        let rows = steps.iter().map(|step| step.matrix.rows()).sum();
        let mut step_bias = try_vec(rows, 0.0, "the biases of a delta net")?;
        let mut rest = &mut step_bias[..];
        for product in &steps {
            let (own, later) = rest.split_at_mut(product.matrix.rows());
            add_bias(own, product.bias.as_deref());
            rest = later;
        }
        Ok(DeltaNetLayer {
            index,
            n_value_heads: n,
            key_dim: m.key_dim,
            value_dim: m.value_dim,
            q: product(&m.q, isa)?,
            k: product(&m.k, isa)?,
            v: product(&m.v, isa)?,
            z: product(&m.z, isa)?,
            z_short: match &m.z_short {
                Some(short) => Some(product(short, isa)?),
                None => None,
            },
            sigmoid_gate: m.sigmoid_gate,
            steps,
            a_short,
            step_bias,
            beta_scale: m.beta_scale,
            heads: heads.collect(),
            conv: Convolution::new(&m.conv)?,
            of_channels: matches!(m.steps, DeltaSteps::Channels { .. }),
            decay: floats(&m.decay, "the decay of a delta net")?,
            decay_floor: m.decay_floor,
            dt_bias: floats(&m.dt_bias, "the bias of a delta net")?,
            norm: NormWeights::new(&m.norm)?,
            output: product(&m.output, isa)?,
        })
    }

    fn products(&self) -> impl Iterator<Item = &Product> {
        [&self.q, &self.k, &self.v, &self.z]
            .into_iter()
            .chain(&self.z_short)
            .chain(&self.a_short)
            .chain(&self.steps)
    }

    /// Rows of what gates, and steps of channels, come by way of.
    pub fn short_rows(m: &DeltaNet) -> [usize; 2] {
        let of_gates = m.z_short.as_ref().map_or(0, |short| short.weight.rows());
        match &m.steps {
            DeltaSteps::Channels {
                short: Some(short), ..
            } => [of_gates, short.weight.rows()],
            _ => [of_gates, 0],
        }
    }

    /// Floats of a token's steps, and of the shorter vectors behind them.
    pub fn step_floats(m: &DeltaNet) -> usize {
        let steps = match &m.steps {
            DeltaSteps::Channels { b, a, .. } => b.weight.rows() + a.weight.rows(),
            _ => 2 * m.n_value_heads,
        };
        steps + DeltaNetLayer::short_rows(m).into_iter().sum::<usize>()
    }

    /// Products of a net whose steps are of channels: those of the input, then those of shorter vectors.
    fn products_of_channels(&self, pass: &Pass, [q, k, v, z]: [Rows; 4]) -> Result<()> {
        let b = &pass.tokens.buffers;
        let [of_b, of_a] = &self.steps[..] else {
            unreachable!("two");
        };
        let place = |at, product| Rows::of(b.steps.from(at), product, b.sizes.steps);
        let steps = [place(0, of_b), place(of_b.matrix.rows(), of_a)];
        // What comes of the input itself, or the shorter vector in its place, behind the steps.
        let behind = self.step_bias.len();
        let (a, out_a) = match &self.a_short {
            None => (of_a, steps[1]),
            Some(short) => (short, place(behind, short)),
        };
        let behind = behind + self.a_short.as_ref().map_or(0, |short| short.matrix.rows());
        let (gate, out_z) = match &self.z_short {
            None => (&self.z, z),
            Some(short) => (short, place(behind, short)),
        };
        pass.products(
            [&self.q, &self.k, &self.v, of_b, a, gate],
            [q, k, v, steps[0], out_a, out_z],
        )?;
        if self.z_short.is_some() {
            pass.encode(None, out_z, self.z.matrix.encodings())?;
            pass.products([&self.z], [z])?;
        }
        if self.a_short.is_some() {
            pass.encode(None, out_a, of_a.matrix.encodings())?;
            pass.products([of_a], [steps[1]])?;
        }
        Ok(())
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let products = self.products().chain([&self.output]);
        let biases = products.map(Product::bias_len).sum::<usize>();
        let vectors = self.decay.len() + self.dt_bias.len() + self.norm.floats();
        biases + vectors + self.conv.floats()
    }

    /// Adds what the positions up to each token's say to it to the residual stream.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let b = &pass.tokens.buffers;
        pass.encode(norm, pass.input(), union(self.products()))?;
        pass.marks.end_norm(norm);
        let z = Rows::of(b.gate, &self.z, b.sizes.n_ff);
        let steps = |at| Rows::of(b.steps.from(at), &self.steps[0], b.sizes.steps);
        let (q, k) = (
            Rows::of(b.q, &self.q, b.sizes.q),
            Rows::of(b.k, &self.k, b.sizes.kv),
        );
        let v = Rows::of(b.v, &self.v, b.sizes.kv);
        match &self.steps[..] {
            _ if self.of_channels => self.products_of_channels(pass, [q, k, v, z])?,
            [both] => pass.products(
                [&self.q, &self.k, &self.v, &self.z, both],
                [q, k, v, z, steps(0)],
            )?,
            [of_b, of_a, ..] => pass.products(
                [&self.q, &self.k, &self.v, &self.z, of_b, of_a],
                [q, k, v, z, steps(0), steps(self.n_value_heads)],
            )?,
            [] => unreachable!("one or two"),
        }
        pass.marks.end(Kind::Qkv, || product_bytes(self.products()));
        let parts = [
            Channels::of(q, &self.q),
            Channels::of(k, &self.k),
            Channels::of(v, &self.v),
        ];
        self.conv.run(pass, self.index, &parts)?;
        let tokens = pass.tokens;
        let runs = Runs::of(tokens);
        let cost = (runs.longest() * self.key_dim * self.value_dim / 12) as u64 + 200;
        let heads = self.n_value_heads;
        pass.phase(Work::even(runs.len() * heads, cost), |me, tasks| {
            for task in tasks {
                let (run, head) = (task / heads, task % heads);
                // SAFETY: each head of a session is one thread's; queries and keys are only read.
                unsafe { self.head(tokens, head, runs.range(run), me) };
            }
        })?;
        let state = || (heads * self.key_dim * self.value_dim * size_of::<f32>()) as u64;
        pass.marks.end(Kind::Attention, state);
        pass.add_product(z, &self.output, post)?;
        pass.marks
            .end(Kind::Output, || product_bytes([&self.output]));
        Ok(())
    }

    /// The results of a value head for consecutive tokens of a session, in place of its `z`.
    ///
    /// # Safety
    /// Nobody else uses the head's values, `z` and state; nobody writes queries, keys and steps.
    unsafe fn head(&self, tokens: &Tokens, head: usize, run: Range<usize>, me: &mut ThreadSpace) {
        let (isa, b, s) = (tokens.isa(), &tokens.buffers, tokens.buffers.sizes);
        let (key_dim, value_dim) = (self.key_dim, self.value_dim);
        let (of, first) = (&self.heads[head], head * value_dim);
        let (cache, _) = tokens.places.at(run.start);
        let scale = (1.0 / (key_dim as f64).sqrt()) as f32;
        let (keys, scratch) = me.row.split_at_mut(key_dim);
        let (queries, scratch) = scratch.split_at_mut(key_dim);
        let (gates, normed) = scratch.split_at_mut(key_dim);
        // SAFETY: by contract, nobody else uses the head's values, `z` and state, or writes queries, keys and steps.
        unsafe {
            let (place, len) = ((self.index, &self.conv), key_dim * value_dim);
            for t in run.clone() {
                let state = head_state(cache, place, t - run.start, head, len);
                let q = &*b.q.part(t * s.q + of.key * key_dim, key_dim);
                let k = &*b.k.part(t * s.kv + of.key * key_dim, key_dim);
                let v = b.v.part(t * s.kv + first, value_dim);
                let z = b.gate.part(t * s.n_ff + first, value_dim);
                let steps = &*b.steps.part(t * s.steps, self.step_bias.len());
                unit(isa, q, scale, &mut queries[..key_dim]);
                unit(isa, k, 1.0, keys);
                let beta = self.beta_scale * sigmoid(steps[of.b] + self.step_bias[of.b]);
                let decay = self.decay[head];
                let gate = |at: usize, dt_bias: f32| {
                    let dt = steps[at] + self.step_bias[at] + dt_bias;
                    match self.decay_floor {
                        None => (decay * softplus(dt)).exp(),
                        Some(floor) => (floor * sigmoid(decay * dt)).exp(),
                    }
                };
                let queries = &queries[..key_dim];
                match self.of_channels {
                    false => {
                        let gate = gate(of.a, self.dt_bias[head]);
                        delta_step(isa, state, keys, queries, v, gate, beta);
                    }
                    true => {
                        for (i, out) in gates.iter_mut().enumerate() {
                            *out = gate(of.a + i, self.dt_bias[head * key_dim + i]);
                        }
                        channel_delta_step(isa, state, keys, queries, v, gates, beta);
                    }
                }
                let bias = self.z.bias.as_ref();
                add_bias(z, bias.map(|b| &b[first..first + value_dim]));
                match self.sigmoid_gate {
                    false => silu_mul(isa, z, self.norm.apply(isa, v, normed)),
                    true => {
                        self.norm.apply_in_place(isa, v, normed);
                        mul_sigmoid(isa, v, z);
                        z.copy_from_slice(v);
                    }
                }
            }
        }
    }
}
