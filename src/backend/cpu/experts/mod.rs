//! Mixtures of experts: a router's scores choose the experts that a token goes through.
//!
//! A decode step reads the weights of the chosen experts alone. A chunk sorts its tokens by expert
//! and multiplies each expert's tokens together. Both give the same bits: a token's result is the
//! sum, from zero or the layer's bias on, of `weight * (output + bias)` over its experts by ascending index,
//! and then the shared expert's.

mod choose;
mod chunk;
mod decode;

use choose::Routing;
pub(super) use chunk::{ExpertChunk, ExpertChunkSpace};
pub(super) use decode::{ExpertBuffers, ExpertSpace};

use super::adapters::{StackAdapters, StackProduct};
use super::elementwise::{add_bias, scale_by};
use super::layer::{Product, activate, check_activation, find_floats, floats, product};
use super::matmul::{Encodings, Isa, Scratch, View};
use super::pass::{Pass, Tokens};
use crate::error::Result;
use crate::model::{Activation, Block, Experts, Linear, SharedExpert};
use arrayvec::ArrayVec;
use std::ops::Range;

/// Memory of a mixture, for one token or for many.
#[derive(Clone, Copy)]
pub(super) enum Mixture<'a> {
    One(ExpertBuffers<'a>),
    Many(ExpertChunk<'a>),
}

impl Mixture<'_> {
    /// Scores of all tokens; the pass has encoded what the router reads.
    pub fn score(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
        match self {
            Mixture::One(buffers) => buffers.score(pass, layer),
            Mixture::Many(chunk) => chunk.score(pass, layer),
        }
    }

    /// Writes the layer's output of all tokens to `y`, by their scores; the pass has encoded the normed input.
    pub fn run_scored(&self, pass: &Pass, layer: &ExpertLayer) -> Result<()> {
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
    /// Whether weights of the chosen are factors on what they read.
    weighs_inputs: bool,
    /// What the sum begins with, if not zero.
    pub sum_bias: Option<Vec<f32>>,
    /// Elements of an expert's input and output.
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

/// The matrices of one or more feed-forwards of the same shape.
pub(super) struct Products {
    /// Whose result is activated: the gate, or up where there is none.
    pub first: Product,
    /// Up, if there is a gate.
    pub up: Option<Product>,
    pub down: Product,
    /// Inner width of one of them.
    pub n_ff: usize,
    /// Whether the first and `up` are one matrix, with the rows of each one's first above those of its up.
    fused: bool,
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
        let hidden = experts.down.weight.rows() / experts.n_experts;
        let mut inputs = vec![&experts.router, &experts.up];
        inputs.extend(&experts.gate);
        let scales = experts.expert_scales.as_ref();
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
                expert_scales: scales
                    .map(|s| floats(s, "factors of experts"))
                    .transpose()?,
            },
            router: product(&experts.router, isa)?,
            experts: Products::new(
                [&experts.up, &experts.down],
                experts.gate.as_ref(),
                (experts.n_ff, experts.fused),
                experts.activation,
                isa,
            )?,
            shared: experts
                .shared
                .as_ref()
                .map(|s| Shared::new(s, isa))
                .transpose()?,
            weighs_inputs: experts.weighs_inputs,
            sum_bias: find_floats(&experts.sum_bias, "a bias")?,
            hidden,
            input_encodings,
        })
    }

    /// Makes rows of the sum what it begins with.
    fn begin_sum(&self, rows: Range<usize>, y: &mut [f32]) {
        match &self.sum_bias {
            None => y.fill(0.0),
            Some(bias) => y.copy_from_slice(&bias[rows]),
        }
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

    /// What a chosen expert's weight is to its input, and what to its output.
    fn factors(&self, weight: f32) -> (f32, f32) {
        match self.weighs_inputs {
            true => (weight, 1.0),
            false => (1.0, weight),
        }
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
        let mut gate_up: usize = self.experts.inputs().map(used).sum();
        if self.experts.fused {
            gate_up /= 2;
        }
        gate_up += self.scorers().map(bytes).sum::<usize>();
        let mut down = used(&self.experts.down);
        if let Some(shared) = &self.shared {
            gate_up += shared.products.inputs().map(bytes).sum::<usize>();
            down += bytes(&shared.products.down);
        }
        (gate_up as u64, down as u64)
    }

    /// Elements of all vectors that are held apart from the file.
    pub fn vector_len(&self) -> usize {
        let mut products = vec![&self.router];
        let shared = self.shared.as_ref();
        for p in std::iter::once(&self.experts).chain(shared.map(|s| &s.products)) {
            products.extend(p.inputs().chain([&p.down]));
        }
        products.extend(shared.and_then(|s| s.gate.as_ref()));
        let biases = products.iter().filter_map(|p| p.bias.as_ref());
        let selection = self.routing.selection_bias.as_ref();
        let scales = self.routing.expert_scales.as_ref();
        let vectors = selection.into_iter().chain(scales).chain(&self.sum_bias);
        biases.chain(vectors).map(Vec::len).sum()
    }
}

impl Shared {
    fn new(shared: &SharedExpert, isa: Isa) -> Result<Shared> {
        let mlp = &shared.mlp;
        let weigh = shared.gate.as_ref();
        Ok(Shared {
            products: Products::new(
                [&mlp.up, &mlp.down],
                mlp.gate.as_ref(),
                (mlp.up.weight.rows(), false),
                mlp.activation,
                isa,
            )?,
            gate: weigh.map(|g| product(g, isa)).transpose()?,
        })
    }
}

impl Products {
    /// Those of feed-forwards of this inner width, whose gate and up may be fused.
    fn new(
        [up, down]: [&Linear; 2],
        gate: Option<&Linear>,
        (n_ff, fused): (usize, bool),
        activation: Activation,
        isa: Isa,
    ) -> Result<Products> {
        check_activation(activation, gate.is_some())?;
        let (first, up) = match gate {
            None => (up, None),
            Some(gate) => (gate, Some(up)),
        };
        Ok(Products {
            first: product(first, isa)?,
            up: up.map(|up| product(up, isa)).transpose()?,
            down: product(down, isa)?,
            n_ff,
            fused,
            activation,
        })
    }

    /// Those that read the layer's input.
    fn inputs(&self) -> impl Iterator<Item = &Product> {
        std::iter::once(&self.first).chain(&self.up)
    }

    /// What the sessions' adapters have for matrices of those that a router chooses, if anything.
    fn adapters<'a>(&self, tokens: &Tokens<'a>) -> Option<StackAdapters<'a>> {
        let products: ArrayVec<&Product, 3> = self.inputs().chain([&self.down]).collect();
        tokens.adapters?.of_experts(&products)
    }

    /// Readies what the sessions' adapters add to those, of a feed-forward that every token goes through.
    fn lora_down_first(&self, pass: &Pass) -> Result<()> {
        match &self.up {
            Some(up) => pass.lora_down(&[&self.first, up]),
            None => pass.lora_down(&[&self.first]),
        }
    }

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
    First,
    Up,
    Down,
}

impl<'a> Expert<'a> {
    /// The product that one of the expert's matrices is of, and its first row among the expert's own there. Only those with a gate have
    /// [`Which::Up`].
    fn own(&self, which: Which) -> Option<(&'a Product, usize)> {
        let p = self.products;
        match which {
            Which::First => Some((&p.first, 0)),
            Which::Up => Some((p.up.as_ref()?, if p.fused { p.n_ff } else { 0 })),
            Which::Down => Some((&p.down, 0)),
        }
    }

    /// The same, and its first row among those of all experts.
    fn product(&self, which: Which) -> Option<(&'a Product, usize)> {
        let p = self.products;
        let each = if p.fused { 2 * p.n_ff } else { p.n_ff };
        let experts = p.first.matrix.rows() / each;
        let (product, first) = self.own(which)?;
        let each = product.matrix.rows() / experts;
        Some((product, self.index * each + first))
    }

    /// What adapters have for one of the expert's matrices: the product and the matrix of its tensor, and the first of its rows there.
    fn adapted(&self, which: Which) -> Option<(StackProduct<'a>, usize)> {
        let (product, first) = self.own(which)?;
        let product = StackProduct {
            index: usize::from(matches!(which, Which::Up)),
            product,
            matrix: self.index,
        };
        Some((product, first))
    }

    /// Works `A x` out of rows of inputs of one of the expert's matrices, if it has that one.
    ///
    /// # Safety
    /// As [`StackAdapters::lora_down`].
    unsafe fn lora_down_chosen(
        &self,
        adapters: &StackAdapters,
        which: Which,
        rows: Range<usize>,
        token: impl Fn(usize) -> usize,
        unpacked: &mut Scratch,
    ) {
        if let Some((product, _)) = self.adapted(which) {
            // SAFETY: by contract.
            unsafe { adapters.lora_down(self.isa, product, rows, token, unpacked) }
        }
    }

    /// Adds what a token's adapters have to rows of one of the expert's matrices, after [`lora_down_chosen`](Expert::lora_down_chosen)
    /// of a row.
    ///
    /// # Safety
    /// As [`StackAdapters::lora_up`].
    unsafe fn lora_up_chosen(
        &self,
        adapters: &StackAdapters,
        which: Which,
        row: (usize, usize),
        rows: Range<usize>,
        y: &mut [f32],
    ) {
        if let Some((product, first)) = self.adapted(which) {
            let rows = first + rows.start..first + rows.end;
            // SAFETY: by contract.
            unsafe { adapters.lora_up(self.isa, row, product, rows, y) }
        }
    }

    /// Some rows of one of the expert's matrices, as a matrix.
    fn rows(&self, which: Which, rows: Range<usize>) -> View<'a> {
        let Some((product, first)) = self.product(which) else {
            unreachable!("asked for where there is a gate");
        };
        let tensor = &product.tensor;
        let bytes = tensor.row_bytes();
        let bytes = &tensor.bytes()[(first + rows.start) * bytes..(first + rows.end) * bytes];
        match View::new(tensor.ty, rows.len(), tensor.row_len(), bytes, self.isa) {
            Some(view) => view,
            None => unreachable!("whole rows of a tensor"),
        }
    }

    /// The bias of some rows.
    fn bias(&self, which: Which, rows: Range<usize>) -> Option<&'a [f32]> {
        let (product, first) = self.product(which)?;
        let bias = product.bias.as_ref()?;
        Some(&bias[first + rows.start..first + rows.end])
    }

    /// Adds what the adapters of a token's session have to rows of the first products, after [`Products::lora_down_first`].
    ///
    /// # Safety
    /// As [`Tokens::lora_up`].
    unsafe fn lora_up(
        &self,
        tokens: &Tokens,
        token: usize,
        rows: Range<usize>,
        first: &mut [f32],
        up: Option<&mut [f32]>,
    ) {
        let products = self.products;
        // SAFETY: by contract.
        unsafe {
            tokens.lora_up(token, (0, &products.first), rows.clone(), || first);
            if let (Some(product), Some(up)) = (&products.up, up) {
                tokens.lora_up(token, (1, product), rows, || up);
            }
        }
    }

    /// `first = activation(first + bias) * (up + bias)` for the rows `rows`, where `input` is a factor on what both were products
    /// of.
    ///
    /// # Safety
    /// The processor has the expert's instruction set.
    unsafe fn activate(
        &self,
        rows: Range<usize>,
        input: f32,
        first: &mut [f32],
        mut up: Option<&mut [f32]>,
    ) {
        if input != 1.0 {
            scale_by(first, input);
            if let Some(up) = &mut up {
                scale_by(up, input);
            }
        }
        add_bias(first, self.bias(Which::First, rows.clone()));
        let up = up.map(|up| {
            add_bias(up, self.bias(Which::Up, rows));
            &*up
        });
        // SAFETY: by contract, the processor has the expert's instruction set; `Products::new` has
        // checked the activation.
        unsafe { activate(self.products.activation, self.isa, first, up) }
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
        let Some(e) = block.feed_forward.experts() else {
            return;
        };
        let n_ff = e.n_ff;
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
