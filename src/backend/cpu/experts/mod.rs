//! Mixtures of experts: a router's scores choose the experts that a token goes through.
//!
//! A decode step reads the weights of the chosen experts alone. A chunk sorts its tokens by expert
//! and multiplies each expert's tokens together. Both give the same bits: a token's result is the
//! sum, from zero on, of `weight * (output + bias)` over its experts by ascending index, and then the
//! shared expert's.

mod choose;
mod chunk;
mod decode;

use choose::Routing;
pub(super) use chunk::{ExpertChunk, ExpertChunkSpace};
pub(super) use decode::{ExpertBuffers, ExpertSpace};

use super::elementwise::{add_bias, silu_mul, swiglu_clamped};
use super::layer::{Product, floats, product};
use super::matmul::{Encodings, Isa, View};
use super::pass::Pass;
use crate::error::{Result, fail};
use crate::model::{Activation, Block, Experts, FeedForward, Mlp, SharedExpert};
use std::ops::Range;

/// Memory of a mixture, for one token or for many.
#[derive(Clone, Copy)]
pub(super) enum Mixture<'a> {
    One(ExpertBuffers<'a>),
    Many(ExpertChunk<'a>),
}

impl Mixture<'_> {
    /// Writes the layer's output of all tokens to `y`; the pass has encoded the normed input.
    pub fn run(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        match self {
            Mixture::One(buffers) => buffers.run(pass, layer),
            Mixture::Many(chunk) => chunk.run(pass, layer),
        }
    }
}

/// A feed-forward part that is a mixture of experts.
pub(super) struct ExpertLayer {
    pub routing: Routing,
    pub router: Product,
    /// Of all experts, one below the other.
    pub experts: Products,
    pub shared: Option<Shared>,
    pub hidden: usize,
    /// What the products of the layer's input read.
    pub input_encodings: Encodings,
}

/// An expert for all tokens.
pub(super) struct Shared {
    pub products: Products,
    /// One row, whose sigmoid weighs the output.
    pub gate: Option<Product>,
}

/// The matrices of one or more gated feed-forwards of the same shape.
pub(super) struct Products {
    pub gate: Product,
    pub up: Product,
    pub down: Product,
    /// Inner width of one of them.
    pub n_ff: usize,
    pub activation: Activation,
}

/// One of [`Products`].
#[derive(Clone, Copy)]
pub(super) struct Expert<'a> {
    products: &'a Products,
    index: usize,
    isa: Isa,
}

impl ExpertLayer {
    /// Takes a mixture over; reads only the small tensors.
    pub fn new(experts: &Experts, isa: Isa) -> Result<ExpertLayer> {
        let bias = experts.selection_bias.as_ref();
        let hidden = experts.router.weight.row_len();
        let mut inputs = vec![&experts.router, &experts.gate, &experts.up];
        if let Some(shared) = &experts.shared {
            inputs.extend(shared.mlp.gate.iter().chain([&shared.mlp.up]));
            inputs.extend(&shared.gate);
        }
        let encodings = inputs.iter().map(|l| Encodings::for_type(l.weight.ty));
        let input_encodings = encodings.fold(Encodings::default(), Encodings::union);
        Ok(ExpertLayer {
            routing: Routing {
                n_experts: experts.n_experts,
                n_used: experts.n_used,
                scoring: experts.scoring,
                selection_bias: bias.map(|b| floats(b, "a bias")).transpose()?,
                groups: experts.groups,
                normalize: experts.normalize,
                weight_scale: experts.weight_scale,
            },
            router: product(&experts.router, isa)?,
            experts: Products {
                gate: product(&experts.gate, isa)?,
                up: product(&experts.up, isa)?,
                down: product(&experts.down, isa)?,
                n_ff: experts.gate.weight.rows() / experts.n_experts,
                activation: activation(experts.activation)?,
            },
            shared: experts
                .shared
                .as_ref()
                .map(|s| Shared::new(s, isa))
                .transpose()?,
            hidden,
            input_encodings,
        })
    }

    /// The products whose rows are a token's scores, one below the other.
    fn scorers(&self) -> impl Iterator<Item = &Product> {
        let shared = self.shared.as_ref().and_then(|s| s.gate.as_ref());
        std::iter::once(&self.router).chain(shared)
    }

    /// Scores of a token: of the experts, then of the shared one.
    fn n_scores(&self) -> usize {
        self.scorers().map(|p| p.matrix.rows()).sum()
    }

    /// The shared expert's weight, by a token's scores.
    fn shared_weight(&self, scores: &[f32]) -> f32 {
        match scores.get(self.routing.n_experts) {
            Some(score) => (1.0 / (1.0 + (-f64::from(*score)).exp())) as f32,
            None => 1.0,
        }
    }

    /// Bytes of weights that a token's step reads for scores, gates and ups, and for downs.
    pub fn bytes_per_token(&self) -> (u64, u64) {
        let bytes = |p: &Product| p.tensor.bytes().len();
        let used = |p: &Product| bytes(p) / self.routing.n_experts * self.routing.n_used;
        let mut gate_up = used(&self.experts.gate) + used(&self.experts.up);
        gate_up += self.scorers().map(bytes).sum::<usize>();
        let mut down = used(&self.experts.down);
        if let Some(shared) = &self.shared {
            gate_up += bytes(&shared.products.gate) + bytes(&shared.products.up);
            down += bytes(&shared.products.down);
        }
        (gate_up as u64, down as u64)
    }

    /// Elements of all vectors that are held apart from the file.
    pub fn vector_len(&self) -> usize {
        let mut products = vec![&self.router];
        let shared = self.shared.as_ref();
        for p in std::iter::once(&self.experts).chain(shared.map(|s| &s.products)) {
            products.extend([&p.gate, &p.up, &p.down]);
        }
        products.extend(shared.and_then(|s| s.gate.as_ref()));
        let biases = products.iter().filter_map(|p| p.bias.as_ref());
        let selection = self.routing.selection_bias.as_ref();
        biases.map(Vec::len).sum::<usize>() + selection.map_or(0, Vec::len)
    }
}

impl Shared {
    fn new(shared: &SharedExpert, isa: Isa) -> Result<Shared> {
        let Mlp { gate, up, down, .. } = &shared.mlp;
        let Some(gate) = gate else {
            fail!(
                Unsupported,
                "tensor {}: a shared expert without a gate",
                up.weight.name
            );
        };
        let weigh = shared.gate.as_ref();
        Ok(Shared {
            products: Products {
                gate: product(gate, isa)?,
                up: product(up, isa)?,
                down: product(down, isa)?,
                n_ff: up.weight.rows(),
                activation: activation(shared.mlp.activation)?,
            },
            gate: weigh.map(|g| product(g, isa)).transpose()?,
        })
    }
}

/// The activation, if experts can have it here.
fn activation(activation: Activation) -> Result<Activation> {
    match activation {
        Activation::Silu | Activation::ClampedSwiglu { .. } => Ok(activation),
        other => fail!(Unsupported, "experts with the activation {other:?}"),
    }
}

impl Products {
    /// One of the feed-forwards.
    fn expert(&self, index: usize, isa: Isa) -> Expert<'_> {
        Expert {
            products: self,
            index,
            isa,
        }
    }
}

/// Which matrix of an expert.
#[derive(Clone, Copy)]
enum Which {
    Gate,
    Up,
    Down,
}

impl<'a> Expert<'a> {
    fn product(&self, which: Which) -> (&'a Product, usize) {
        let p = self.products;
        match which {
            Which::Gate => (&p.gate, p.n_ff),
            Which::Up => (&p.up, p.n_ff),
            Which::Down => (
                &p.down,
                p.down.matrix.rows() / (p.gate.matrix.rows() / p.n_ff),
            ),
        }
    }

    /// Some rows of one of the expert's matrices, as a matrix.
    fn rows(&self, which: Which, rows: Range<usize>) -> View<'a> {
        let (product, each) = self.product(which);
        let tensor = &product.tensor;
        let bytes = tensor.row_bytes();
        let first = self.index * each;
        let bytes = &tensor.bytes()[(first + rows.start) * bytes..(first + rows.end) * bytes];
        match View::new(tensor.ty, rows.len(), tensor.row_len(), bytes, self.isa) {
            Some(view) => view,
            None => unreachable!("whole rows of a tensor"),
        }
    }

    /// The bias of some rows.
    fn bias(&self, which: Which, rows: Range<usize>) -> Option<&'a [f32]> {
        let (product, each) = self.product(which);
        let first = self.index * each;
        let bias = product.bias.as_ref()?;
        Some(&bias[first + rows.start..first + rows.end])
    }

    /// `gate = activation(gate + bias, up + bias)` for the rows `rows`.
    ///
    /// # Safety
    /// The processor has the expert's instruction set.
    unsafe fn activate(&self, rows: Range<usize>, gate: &mut [f32], up: &mut [f32]) {
        add_bias(gate, self.bias(Which::Gate, rows.clone()));
        add_bias(up, self.bias(Which::Up, rows));
        // SAFETY: the caller's promise.
        unsafe {
            match self.products.activation {
                Activation::Silu => silu_mul(self.isa, gate, up),
                Activation::ClampedSwiglu { alpha, limit } => {
                    swiglu_clamped(self.isa, gate, up, alpha, limit)
                }
                other => unreachable!("{other:?} is refused at load"),
            }
        }
    }

    /// `y += weight * (out + bias)` for the rows `rows` of the output.
    fn add_output(&self, rows: Range<usize>, weight: f32, out: &[f32], y: &mut [f32]) {
        match self.bias(Which::Down, rows) {
            None => {
                for (y, out) in y.iter_mut().zip(out) {
                    *y += weight * out;
                }
            }
            Some(bias) => {
                for ((y, out), bias) in y.iter_mut().zip(out).zip(bias) {
                    *y += weight * (out + bias);
                }
            }
        }
    }
}

/// Largest extents over all mixtures of a network; zeros if it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpertSizes {
    /// Scores of a token.
    pub scores: usize,
    pub n_experts: usize,
    pub n_used: usize,
    /// Feed-forwards that a token goes through, a shared one included.
    pub parts: usize,
    /// Inner width of one of them.
    pub n_ff: usize,
    /// Inner widths of all of a token's together.
    pub inner: usize,
    pub hidden: usize,
    pub encodings: Encodings,
}

impl ExpertSizes {
    /// Takes a block's mixture in, if it has one.
    pub fn include(&mut self, block: &Block) {
        let FeedForward::Experts(e) = &block.feed_forward else {
            return;
        };
        let n_ff = e.gate.weight.rows() / e.n_experts;
        let shared_ff = e.shared.as_ref().map_or(0, |s| s.mlp.up.weight.rows());
        self.scores = self.scores.max(e.n_experts + 1);
        self.n_experts = self.n_experts.max(e.n_experts);
        self.n_used = self.n_used.max(e.n_used);
        self.parts = self.parts.max(e.n_used + usize::from(e.shared.is_some()));
        self.n_ff = self.n_ff.max(n_ff).max(shared_ff);
        self.inner = self.inner.max(e.n_used * n_ff + shared_ff);
        self.hidden = self.hidden.max(e.router.weight.row_len());
        for linear in block.linears() {
            let encodings = Encodings::for_type(linear.weight.ty);
            self.encodings = self.encodings.union(encodings);
        }
    }
}
