//! Several residual streams in place of one (AltUp), of which layers evaluate one and predict the others: their place in the plan,
//! and what a step and a chunk do with them.

use super::evaluation::Evaluation;
use super::jobs::Jobs;
use super::plan::Plan;
use super::prefill::ChunkOperations;
use super::rows::AllRows;
use super::step::StepOperations;
use super::walk::Operations;
use crate::backend::Work;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::kernel_id::KernelId;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::span::Span;
use crate::error::Result;
use crate::model::{LayerStreams, Linear, Streams};

/// How streams begin and end.
#[derive(Clone, Debug)]
pub struct StreamsPlan {
    /// How many.
    pub count: u32,
    /// Of the embedding, to each stream but the first.
    pub begin: Vec<Matrix>,
    /// Of each but the first.
    pub end: Vec<Matrix>,
}

impl StreamsPlan {
    /// Its matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.begin.iter().chain(&self.end)
    }
}

/// A layer's part in several residual streams. Addresses are those of f32.
#[derive(Clone, Debug)]
pub struct StreamLayerPlan {
    /// Streams.
    pub count: u32,
    /// The one that is evaluated.
    pub active: u32,
    /// Before the router.
    pub router_norm: args::Norm,
    /// `[count][hidden]`.
    pub router: u64,
    /// `[count][count][count]`.
    pub predict: u64,
    /// `[count][count]`.
    pub correct: u64,
    /// `[hidden]`.
    pub scale: u64,
    /// The thin matrices around attention,
    pub left: Matrix,
    /// the second one,
    pub right: Matrix,
    /// and the norm behind them.
    pub thin_norm: args::Norm,
}

/// What happens to the streams of tokens between a layer's products.
#[derive(Clone, Copy, Debug)]
pub enum StreamWork {
    /// All are predicted; the active one is the residual stream.
    Predict,
    /// `Branch`, what the thin matrices have left, becomes what attention is added to. With the norm of attention's input.
    Around(Option<args::Norm>),
    /// All are corrected by the residual stream, which then is the active one, scaled.
    Correct,
    /// What is in `Wide`, or its norm, is added to all but the first.
    Spread(Option<args::Norm>),
}

impl Jobs {
    /// Lays out how streams begin and end.
    pub(super) fn streams(&mut self, streams: &Streams) -> Result<StreamsPlan> {
        let mut all = |linears: &[Linear]| -> Result<Vec<Matrix>> {
            linears.iter().map(|linear| self.fuse(&[linear])).collect()
        };
        Ok(StreamsPlan {
            count: streams.count as u32,
            begin: all(&streams.begin)?,
            end: all(&streams.end)?,
        })
    }

    /// Lays out a layer's part.
    pub(super) fn stream_layer(&mut self, layer: &LayerStreams) -> Result<StreamLayerPlan> {
        Ok(StreamLayerPlan {
            count: layer.count as u32,
            active: layer.active as u32,
            router_norm: self.norm(&layer.router_norm)?,
            router: self.tensor(Some(&layer.router))?,
            predict: self.tensor(Some(&layer.predict))?,
            correct: self.tensor(Some(&layer.correct))?,
            scale: self.tensor(Some(&layer.output_scale))?,
            left: self.fuse(&[&layer.left])?,
            right: self.fuse(&[&layer.right])?,
            thin_norm: self.norm(&layer.thin_norm)?,
        })
    }
}

impl Plan {
    /// The arguments of the kernels of streams, but for what a layer has. 0 without streams.
    fn stream_args(&self, rows: &AllRows, y: Span) -> args::Streams {
        args::Streams {
            streams: rows.streams.address,
            x: rows.residual.address,
            y: y.address,
            count: self.n_streams(),
            len: self.hidden,
            stride: rows.residual.stride,
            y_stride: y.stride,
            ..Default::default()
        }
    }
}

impl AllRows {
    /// The rows of stream `i`.
    fn stream(&self, i: usize) -> Span {
        self.streams.from(i as u32 * self.residual.stride)
    }

    /// Where the product of stream `i`, which is not the first, is left at the end.
    fn ended(&self, i: usize) -> Span {
        self.wide.from((i as u32 - 1) * self.residual.stride)
    }
}

impl Evaluation<'_> {
    /// [`Operations::streams`] for `count` rows.
    ///
    /// # Safety
    /// *weights*, *workspace*, of which `at` names parts.
    pub(super) unsafe fn layer_streams(
        &self,
        at: &AllRows,
        layer: &StreamLayerPlan,
        work: StreamWork,
        count: u32,
    ) -> Result<()> {
        let all = |y: Span, norm: args::Norm| args::Streams {
            norm,
            thin_norm: layer.thin_norm,
            router: layer.router,
            scale: layer.scale,
            active: layer.active,
            ..self.plan.stream_args(at, y)
        };
        let (id, args) = match work {
            StreamWork::Predict => {
                let args = args::Streams {
                    coefficients: layer.predict,
                    ..all(at.branch, layer.router_norm)
                };
                (KernelId::StreamsPredict, args)
            }
            StreamWork::Around(norm) => {
                let args = all(at.branch, norm.unwrap_or_default());
                (KernelId::StreamsAround, args)
            }
            StreamWork::Correct => {
                let args = args::Streams {
                    coefficients: layer.correct,
                    ..all(at.branch, layer.router_norm)
                };
                (KernelId::StreamsCorrect, args)
            }
            StreamWork::Spread(norm) => {
                let args = all(at.wide, norm.unwrap_or_default());
                (KernelId::StreamsSpread, args)
            }
        };
        // SAFETY: by contract, addresses of the *weights* and the *workspace*.
        unsafe { self.kernels.streams(self.stream, id, &args, count) }
    }

    /// Enqueues a kernel with which streams begin or end.
    ///
    /// # Safety
    /// As [`Evaluation::layer_streams`].
    unsafe fn all_streams(&self, at: &AllRows, id: KernelId, count: u32) -> Result<()> {
        let args = self.plan.stream_args(at, at.wide);
        // SAFETY: by contract, addresses of the *workspace*.
        unsafe { self.kernels.streams(self.stream, id, &args, count) }
    }

    /// Makes most gates in `Wide` 0, if a feed-forward part has such.
    ///
    /// # Safety
    /// *workspace*, of which `at` names parts.
    pub(super) unsafe fn sparse_gates(
        &self,
        at: &AllRows,
        mlp: &MlpPlan,
        count: u32,
    ) -> Result<()> {
        let Some(cutoff) = mlp.cutoff else {
            return Ok(());
        };
        let args = args::SparseGates {
            x: at.wide.address,
            len: mlp.n_ff,
            stride: at.wide.stride,
            cutoff,
            padding: 0,
        };
        let threads = args.len.next_multiple_of(32).min(1024);
        // SAFETY: by contract, addresses of the *workspace*.
        unsafe {
            let (id, grid) = (KernelId::SparseGates, (count, 1, 1));
            self.kernels
                .launch(self.stream, id, grid, threads, 0, &args)
        }
    }
}

impl StepOperations<'_> {
    /// Makes the streams of tokens whose embeddings are the residual stream, where there are several.
    pub(super) fn begin_streams(&self) -> Result<()> {
        let (e, at) = (&self.eval, &self.buffers.at().rows);
        let Some(streams) = &e.plan.streams else {
            return Ok(());
        };
        for (i, matrix) in streams.begin.iter().enumerate() {
            self.normed(None, matrix, at.stream(i + 1))?;
        }
        // SAFETY: *workspace*, which `self` promises.
        unsafe { e.all_streams(at, KernelId::StreamsBegin, self.batch)? };
        let bytes = streams.begin.iter().map(Matrix::bytes).sum();
        self.mark(Work::Embed, bytes)
    }

    /// Makes one residual stream of all.
    pub(super) fn end_streams(&self) -> Result<()> {
        let (e, at) = (&self.eval, &self.buffers.at().rows);
        let Some(streams) = &e.plan.streams else {
            return Ok(());
        };
        for (i, matrix) in (1..).zip(&streams.end) {
            let input = self.row_input(at.stream(i), e.plan.hidden, None, matrix)?;
            self.product_of(matrix, &input, at.ended(i), 0)?;
        }
        // SAFETY: *workspace*, which `self` promises.
        unsafe { e.all_streams(at, KernelId::StreamsEnd, self.batch)? };
        let bytes = streams.end.iter().map(Matrix::bytes).sum();
        self.mark(Work::Head, bytes)
    }
}

impl ChunkOperations<'_> {
    /// As of a step.
    pub(in crate::backend::cuda) fn begin_streams(&self) -> Result<()> {
        let (e, at) = (&self.eval, &self.at().rows);
        let Some(streams) = &e.plan.streams else {
            return Ok(());
        };
        for (i, matrix) in (1..).zip(&streams.begin) {
            self.input_of(at.residual, e.plan.hidden, matrix)?;
            self.matmul(matrix, at.stream(i), 0)?;
        }
        // SAFETY: *workspace*, which `self` promises.
        unsafe { e.all_streams(at, KernelId::StreamsBegin, self.rows) }
    }

    /// As of a step.
    pub(in crate::backend::cuda) fn end_streams(&self) -> Result<()> {
        let (e, at) = (&self.eval, &self.at().rows);
        let Some(streams) = &e.plan.streams else {
            return Ok(());
        };
        for (i, matrix) in (1..).zip(&streams.end) {
            self.input_of(at.stream(i), e.plan.hidden, matrix)?;
            self.matmul(matrix, at.ended(i), 0)?;
        }
        // SAFETY: *workspace*, which `self` promises.
        unsafe { e.all_streams(at, KernelId::StreamsEnd, self.rows) }
    }
}
