//! The order of a block's parts, for every way to evaluate one.
//!
//! [`walk`] knows which part of a block follows which, and where each is added to the residual
//! stream. How a part is done is left to [`Operations`], of which there are two: those of a step (one
//! token of each of several sessions) and those of a chunk (many tokens of one session).

use super::mixer::{AttentionPlan, LatentPlan, Mamba1Plan, MixerPlan, RecurrentPlan};
use super::plan::{BothPlan, FeedForwardPlan, LatentExpertsPlan, LayerPlan};
use super::rows::Rows;
use super::streams::{StreamLayerPlan, StreamWork};
use crate::backend::Work;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::{Beside, ExpertsPlan};
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::error::Result;
use std::f32::consts::FRAC_1_SQRT_2;

/// What the first product of a feed-forward part reads.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) enum MlpInput {
    /// The residual stream, or the norm of it.
    Residual(Option<args::Norm>),
    /// What the experts read: the residual stream or the norm of it, which [`Operations::route`] may have left.
    OfExperts(Option<args::Norm>),
    /// Nothing: its inner values are there, so many floats behind the first of the experts'.
    Beside(u32),
}

/// How the outputs of a part are added: `to = out_scale * (base + scale * norm(from))`, with zeros where there is no
/// base.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct Addition {
    pub from: Rows,
    pub norm: Option<args::Norm>,
    pub scale: f32,
    pub base: Option<Rows>,
    pub to: Rows,
    pub out_scale: f32,
}

impl Addition {
    /// The residual stream's norm in place of it.
    pub fn norm_of_residual(norm: Option<args::Norm>) -> Addition {
        Addition {
            from: Rows::Residual,
            norm,
            scale: 1.0,
            base: None,
            to: Rows::Residual,
            out_scale: 1.0,
        }
    }

    /// Whether at most a factor of the outputs is added.
    fn is_plain(&self) -> bool {
        self.norm.is_none() && self.out_scale == 1.0
    }

    /// Whether the outputs are added as they are.
    pub fn is_as_it_is(&self) -> bool {
        self.is_plain() && self.scale == 1.0
    }

    /// Whether this adds the last part's outputs to the residual stream.
    pub fn is_of_residual(&self) -> bool {
        (self.from, self.base, self.to) == (Rows::Part, Some(Rows::Residual), Rows::Residual)
    }
}

/// What becomes of the weighted sum of the experts' outputs: `to = base + scale * sum`, or without a base
/// the sum alone.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ExpertSum {
    pub scale: f32,
    pub base: Option<Rows>,
    pub to: Rows,
}

/// What a block is made of. Each operation goes on from what those before it have left.
pub(in crate::backend::cuda) trait Operations {
    /// Where the input of a part's last product is.
    type Input;

    /// `Wide = matrix * norm(Residual)`.
    fn project(&self, norm: Option<args::Norm>, matrix: &Matrix) -> Result<()>;

    /// `Wide = matrix * entry`, of embeddings and hidden states side by side.
    fn project_entry(&self, matrix: &Matrix) -> Result<()>;

    /// Appends the keys and values in `Wide` to the cache of layer `layer`, and attends with the
    /// queries there.
    fn attend(&self, layer: usize, attention: &AttentionPlan) -> Result<Self::Input>;

    /// Appends what keys and values come from in `Wide` to the cache of layer `layer`, and attends with the queries there.
    fn attend_latent(&self, layer: usize, latent: &LatentPlan) -> Result<Self::Input>;

    /// Changes the state of a recurrence by what is in `Wide`.
    fn recur(&self, recurrent: &RecurrentPlan) -> Result<Self::Input>;

    /// The same of the first Mamba.
    fn recur_mamba1(&self, mamba: &Mamba1Plan) -> Result<Self::Input>;

    /// The inner values of a feed-forward part: its activation.
    fn inner(&self, input: MlpInput, mlp: &MlpPlan) -> Result<Self::Input>;

    /// The first `len` floats of rows, as what `matrix` reads.
    fn input_from(&self, rows: Rows, len: u32, matrix: &Matrix) -> Result<Self::Input>;

    /// What becomes of several residual streams between products.
    fn streams(&self, layer: &StreamLayerPlan, work: StreamWork) -> Result<()>;

    /// The activation of what the gate lets through of the layer's own input: `activation(gate * Residual) * own`.
    fn own_input(&self, layer: usize, own: &LayerInputPlan) -> Result<Self::Input>;

    /// All of the part of a layer with an input of its own, if one operation does that. Whether it does is the answer.
    fn own_part(&self, layer: usize, own: &LayerInputPlan, addition: &Addition) -> Result<bool> {
        let _ = (layer, own, addition);
        Ok(false)
    }

    /// `to = matrix * input`, plus `residual` if there is one.
    fn product(
        &self,
        matrix: &Matrix,
        input: &Self::Input,
        to: Rows,
        residual: Option<Rows>,
    ) -> Result<()>;

    /// Whether other ranks have shares of the same layers, so that what a part's last product makes is a share of a sum.
    fn is_rank(&self) -> bool {
        false
    }

    /// The last product of a part and the sum over ranks of what it makes, if one operation does that. Whether it does is the answer.
    fn output_of_rank(
        &self,
        matrix: &Matrix,
        input: &Self::Input,
        addition: &Addition,
    ) -> Result<bool> {
        let _ = (matrix, input, addition);
        Ok(false)
    }

    /// `to = base + from`, with what `from` is on all ranks together.
    fn sum_ranks(&self, from: Rows, base: Option<Rows>, to: Rows) -> Result<()> {
        let _ = (from, base, to);
        Ok(())
    }

    /// Adds rows.
    fn add(&self, addition: &Addition) -> Result<()>;

    /// Writes `norm(Residual)` as experts read it, and chooses each token's experts.
    fn route(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()>;

    /// The gates and ups of the chosen experts, or ups alone.
    fn experts_up(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Result<()>;

    /// From there their activations and outputs.
    fn experts_down(&self, experts: &ExpertsPlan) -> Result<()>;

    /// Whether [`Operations::combine`] does what [`Operations::experts_down`] is for.
    fn joins(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> bool {
        let _ = (norm, experts);
        false
    }

    /// What of the shared expert [`Operations::route`] and [`Operations::combine`] make.
    fn beside(&self, norm: Option<args::Norm>, experts: &ExpertsPlan) -> Beside {
        let _ = (norm, experts);
        Beside::Nothing
    }

    /// Sums the outputs of the chosen experts and those of the shared one by their weights.
    fn combine(
        &self,
        norm: Option<args::Norm>,
        experts: &ExpertsPlan,
        sum: &ExpertSum,
    ) -> Result<()>;

    /// Has the host bring the residual stream behind its layer of this number.
    fn on_host(&self, layer: usize) -> Result<()>;

    /// Notes the end of `work`, which has read `bytes` of weights or cache.
    fn mark(&self, work: Work, bytes: u64) -> Result<()> {
        let _ = (work, bytes);
        Ok(())
    }
}

/// Evaluates layer `index`, which `block` describes.
pub(in crate::backend::cuda) fn walk<O: Operations>(
    ops: &O,
    index: usize,
    block: &LayerPlan,
) -> Result<()> {
    let between = match block.parallel {
        true => Rows::Branch,
        false => Rows::Residual,
    };
    // What is added last scales the sum.
    let out_scale = |is_last| if is_last { block.output_scale } else { 1.0 };
    let is_fed = !matches!(block.feed_forward, FeedForwardPlan::None);
    let mixed = Addition {
        from: Rows::Part,
        norm: block.mixer_post_norm,
        scale: block.residual_scale,
        base: Some(Rows::Residual),
        to: between,
        out_scale: out_scale(!is_fed && block.input.is_none()),
    };
    // What goes around attention is there, with the residual stream in it.
    let mixed = match &block.streams {
        Some(_) => Addition {
            base: Some(Rows::Branch),
            out_scale: FRAC_1_SQRT_2,
            ..mixed
        },
        None => mixed,
    };
    let fed = Addition {
        from: Rows::Part,
        norm: block.feed_forward_post_norm,
        scale: block.residual_scale,
        base: Some(between),
        to: Rows::Residual,
        out_scale: out_scale(block.input.is_none()),
    };
    if let Some(streams) = &block.streams {
        ops.streams(streams, StreamWork::Predict)?;
        ops.project(block.mixer_norm, &streams.left)?;
        let input = ops.input_from(Rows::Wide, streams.left.rows, &streams.right)?;
        ops.product(&streams.right, &input, Rows::Branch, None)?;
        ops.streams(streams, StreamWork::Around(block.mixer_norm))?;
        ops.mark(Work::Qkv, streams.left.bytes() + streams.right.bytes())?;
    }
    match &block.mixer {
        MixerPlan::Attention(attention) => {
            match block.reads_entry {
                true => ops.project_entry(&attention.qkv)?,
                false => ops.project(block.mixer_norm, &attention.qkv)?,
            }
            ops.mark(Work::Qkv, attention.qkv.bytes())?;
            let input = ops.attend(index, attention)?;
            output(ops, &attention.output, &input, &mixed)?;
            ops.mark(Work::Output, attention.output.bytes())?;
        }
        MixerPlan::Latent(latent) => {
            ops.project(block.mixer_norm, &latent.input)?;
            let input = ops.attend_latent(index, latent)?;
            output(ops, &latent.output, &input, &mixed)?;
            ops.mark(Work::Output, latent.output.bytes())?;
        }
        MixerPlan::Recurrent(recurrent) => {
            ops.project(block.mixer_norm, &recurrent.input)?;
            ops.mark(Work::Qkv, recurrent.input.bytes())?;
            let input = ops.recur(recurrent)?;
            output(ops, &recurrent.output, &input, &mixed)?;
            ops.mark(Work::Output, recurrent.output.bytes())?;
        }
        MixerPlan::Mamba1(mamba) => {
            ops.project(block.mixer_norm, &mamba.input)?;
            let input = ops.recur_mamba1(mamba)?;
            output(ops, &mamba.output, &input, &mixed)?;
            ops.mark(Work::Output, mamba.output.bytes())?;
        }
        MixerPlan::SideBySide(both) => {
            let (attention, recurrent) = (&both.attention, &both.recurrent);
            // The residual stream stays as it is until both have read it.
            let first = Addition {
                to: Rows::Branch,
                out_scale: 1.0,
                ..mixed
            };
            let second = Addition {
                base: Some(Rows::Branch),
                ..mixed
            };
            ops.project(block.mixer_norm, &attention.qkv)?;
            ops.mark(Work::Qkv, attention.qkv.bytes())?;
            let input = ops.attend(index, attention)?;
            output(ops, &attention.output, &input, &first)?;
            ops.mark(Work::Output, attention.output.bytes())?;
            ops.project(block.mixer_norm, &recurrent.input)?;
            ops.mark(Work::Qkv, recurrent.input.bytes())?;
            let input = ops.recur(recurrent)?;
            output(ops, &recurrent.output, &input, &second)?;
            ops.mark(Work::Output, recurrent.output.bytes())?;
        }
        MixerPlan::Absent => {}
    }
    norm_residual(ops, block.mixer_sum_norm)?;
    let norm = block.feed_forward_norm;
    match &block.feed_forward {
        FeedForwardPlan::Dense(mlp) => {
            let input = ops.inner(MlpInput::Residual(norm), mlp)?;
            output(ops, &mlp.down, &input, &fed)?;
            ops.mark(Work::Down, mlp.down.bytes())?;
        }
        FeedForwardPlan::Experts(experts) => walk_experts(ops, norm, experts, &fed)?,
        FeedForwardPlan::Both(both) => walk_both(ops, norm, both, &fed)?,
        FeedForwardPlan::Latent(latent) => walk_latent(ops, norm, latent, &fed)?,
        FeedForwardPlan::OnHost(layer) => {
            ops.on_host(*layer)?;
            ops.mark(Work::Down, 0)?;
        }
        FeedForwardPlan::None => {}
    }
    norm_residual(ops, block.feed_forward_sum_norm)?;
    if let Some(streams) = &block.streams {
        ops.streams(streams, StreamWork::Correct)?;
        ops.mark(Work::Norm, 0)?;
    }
    let Some(own) = &block.input else {
        return Ok(());
    };
    if let Some(streams) = &block.streams {
        let input = ops.own_input(index, own)?;
        ops.product(&own.projection, &input, Rows::Wide, None)?;
        ops.streams(streams, StreamWork::Spread(own.post_norm))?;
        return ops.mark(Work::Down, own.gate.bytes() + own.projection.bytes());
    }
    let added = Addition {
        from: Rows::Part,
        norm: own.post_norm,
        scale: 1.0,
        base: Some(Rows::Residual),
        to: Rows::Residual,
        out_scale: block.output_scale,
    };
    if !ops.own_part(index, own, &added)? {
        let input = ops.own_input(index, own)?;
        output(ops, &own.projection, &input, &added)?;
    }
    ops.mark(Work::Down, own.gate.bytes() + own.projection.bytes())
}

/// Norms the residual stream.
fn norm_residual<O: Operations>(ops: &O, norm: Option<args::Norm>) -> Result<()> {
    if norm.is_none() {
        return Ok(());
    }
    ops.add(&Addition::norm_of_residual(norm))?;
    ops.mark(Work::Norm, 0)
}

/// The last product of a part, which is added so.
fn output<O: Operations>(
    ops: &O,
    matrix: &Matrix,
    input: &O::Input,
    addition: &Addition,
) -> Result<()> {
    let made = addition.from;
    if ops.is_rank() {
        if ops.output_of_rank(matrix, input, addition)? {
            return Ok(());
        }
        ops.product(matrix, input, made, None)?;
        return add_ranks(ops, addition);
    }
    if addition.is_as_it_is() {
        // The product adds.
        return ops.product(matrix, input, addition.to, addition.base);
    }
    ops.product(matrix, input, made, None)?;
    ops.add(addition)
}

/// Adds what all ranks have made.
fn add_ranks<O: Operations>(ops: &O, addition: &Addition) -> Result<()> {
    let made = addition.from;
    if addition.is_as_it_is() {
        // The sum adds.
        return ops.sum_ranks(made, addition.base, addition.to);
    }
    ops.sum_ranks(made, None, made)?;
    ops.add(addition)
}

/// The sum of both parts, each of which has a norm, comes together in `Branch`.
fn walk_both<O: Operations>(
    ops: &O,
    norm: Option<args::Norm>,
    both: &BothPlan,
    addition: &Addition,
) -> Result<()> {
    let own = |norm: args::Norm, base: Option<Rows>| Addition {
        from: Rows::Part,
        norm: Some(norm),
        scale: 1.0,
        base,
        to: Rows::Branch,
        out_scale: 1.0,
    };
    let input = ops.inner(MlpInput::Residual(norm), &both.mlp)?;
    output(ops, &both.mlp.down, &input, &own(both.mlp_post_norm, None))?;
    ops.mark(Work::Down, both.mlp.down.bytes())?;
    let sum = own(both.experts_post_norm, Some(Rows::Branch));
    walk_experts(ops, Some(both.experts_norm), &both.experts, &sum)?;
    ops.add(&Addition {
        from: Rows::Branch,
        ..*addition
    })?;
    ops.mark(Work::Norm, 0)
}

/// What the experts make is added in `Branch`, for the other part still reads the residual stream.
fn walk_latent<O: Operations>(
    ops: &O,
    norm: Option<args::Norm>,
    latent: &LatentExpertsPlan,
    addition: &Addition,
) -> Result<()> {
    let experts = &latent.experts;
    let first = experts.first_matrices();
    ops.route(norm, experts)?;
    ops.project(norm, &latent.enter)?;
    ops.experts_up(norm, experts)?;
    let bytes = experts.router.bytes() + latent.enter.bytes() + experts.used_bytes(&first);
    ops.mark(Work::GateUp, bytes)?;
    ops.experts_down(experts)?;
    ops.mark(Work::Down, experts.used_bytes(&[&experts.down]))?;
    let sum = ExpertSum {
        scale: 1.0,
        base: None,
        to: Rows::SharedExpert,
    };
    ops.combine(norm, experts, &sum)?;
    let input = ops.input_from(Rows::SharedExpert, latent.enter.rows, &latent.leave)?;
    let branch = Addition {
        to: Rows::Branch,
        out_scale: 1.0,
        ..*addition
    };
    output(ops, &latent.leave, &input, &branch)?;
    ops.mark(Work::Down, latent.leave.bytes())?;
    let mlp = &latent.mlp;
    let input = ops.inner(MlpInput::Residual(norm), mlp)?;
    let rest = Addition {
        base: Some(Rows::Branch),
        ..*addition
    };
    output(ops, &mlp.down, &input, &rest)?;
    ops.mark(Work::Down, mlp.down.bytes())
}

fn walk_experts<O: Operations>(
    ops: &O,
    norm: Option<args::Norm>,
    experts: &ExpertsPlan,
    addition: &Addition,
) -> Result<()> {
    let first = experts.first_matrices();
    ops.route(norm, experts)?;
    ops.experts_up(norm, experts)?;
    let (joins, beside) = (ops.joins(norm, experts), ops.beside(norm, experts));
    let mut bytes = experts.router.bytes() + experts.used_bytes(&first);
    let mut last = experts.used_bytes(&[&experts.down]);
    let mut input = MlpInput::OfExperts(norm);
    if let Some(shared) = &experts.shared
        && beside != Beside::Nothing
    {
        bytes += shared.up.bytes();
        input = MlpInput::Beside(experts.one_row_inner());
        if beside == Beside::Whole {
            last += shared.down.bytes();
        }
    }
    ops.mark(Work::GateUp, bytes)?;
    if !joins {
        ops.experts_down(experts)?;
        ops.mark(Work::Down, last)?;
    }
    if let Some(shared) = &experts.shared
        && beside != Beside::Whole
    {
        let input = ops.inner(input, shared)?;
        ops.product(&shared.down, &input, Rows::SharedExpert, None)?;
        ops.mark(Work::Down, shared.down.bytes())?;
    }
    let sum = ExpertSum {
        scale: addition.scale,
        base: addition.base,
        to: addition.to,
    };
    let alone = ExpertSum {
        base: None,
        to: addition.from,
        ..sum
    };
    match ops.is_rank() {
        // The sum of the experts adds.
        false if addition.is_plain() => ops.combine(norm, experts, &sum)?,
        false => {
            ops.combine(norm, experts, &alone)?;
            ops.add(addition)?;
        }
        true => {
            ops.combine(norm, experts, &alone)?;
            add_ranks(ops, addition)?;
        }
    }
    match joins {
        true => ops.mark(Work::Down, last),
        false => ops.mark(Work::Norm, 0),
    }
}

#[cfg(test)]
mod tests;
