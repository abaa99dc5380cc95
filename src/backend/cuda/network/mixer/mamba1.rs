//! The first Mamba: its plan, its memory, and its kernels in a step and in a chunk.
//!
//! Between its first product and its last there are two more, of what the convolution gives: to the short form of time
//! steps, `B` and `C`, and from that form to the time steps.

use crate::backend::Work;
use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::args::{self, MAX_STATES};
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::product::RowInput;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::jobs::{Jobs, floats};
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::ChunkOperations;
use crate::backend::cuda::network::step::StepOperations;
use crate::backend::cuda::network::walk::Operations;
use crate::error::{Result, fail, try_vec};
use crate::model::{FixedShape, Mamba1};
use std::f32::consts::LOG2_E;

/// The first Mamba of a layer on the device.
#[derive(Clone, Debug)]
pub struct Mamba1Plan {
    /// From the residual stream to channels and gates.
    pub input: Matrix,
    /// From the convolution's result to the short form of time steps, `B` and `C`.
    short: Matrix,
    /// The norm of that form.
    dt_norm: Option<args::Norm>,
    /// From there to the time steps.
    dt: Matrix,
    /// From the gated result to the residual stream.
    pub output: Matrix,
    /// The convolution.
    conv: Box<args::Recurrent>,
    /// The recurrence.
    scan: args::Selective,
    /// Elements of the short form.
    rank: u32,
    /// Bytes of its state.
    state_bytes: u64,
}

impl Jobs {
    /// Lays out the first Mamba of layer `layer`.
    pub(super) fn mamba1(
        &mut self,
        layer: usize,
        m: &Mamba1,
        shape: FixedShape,
    ) -> Result<Mamba1Plan> {
        Jobs::check_conv(layer, &m.conv)?;
        if m.state_dim > MAX_STATES as usize {
            fail!(
                Unsupported,
                "layer {layer}: a state of {} numbers a channel; the GPU's takes {MAX_STATES}",
                m.state_dim
            );
        }
        let state = self.fixed.add(shape);
        let rate = rates(m)?;
        let mut norms = [args::Norm::default(); 2];
        for (to, norm) in norms.iter_mut().zip([&m.b_norm, &m.c_norm]) {
            if let Some(norm) = norm {
                *to = self.norm(norm)?;
            }
        }
        Ok(Mamba1Plan {
            input: self.fuse(&[&m.x, &m.z])?,
            short: self.fuse(&[&m.short])?,
            dt_norm: m.dt_norm.as_ref().map(|n| self.norm(n)).transpose()?,
            dt: self.fuse(&[&m.dt])?,
            output: self.fuse(&[&m.output])?,
            conv: Box::new(self.recurrence(&m.conv, state)?),
            scan: args::Selective {
                rate: self.vector(rate),
                skip: self.tensor(Some(&m.skip))?,
                norms,
                matrix_offset: state.offset + state.matrices,
                channels: m.channels() as u32,
                state_dim: m.state_dim as u32,
                ..Default::default()
            },
            rank: m.rank() as u32,
            state_bytes: shape.len() as u64 * 4,
        })
    }
}

/// Exponents of two of the decay, laid out as the states, with zeros behind the last channel.
fn rates(m: &Mamba1) -> Result<Vec<f32>> {
    const BLOCK: usize = Mamba1::CHANNELS;
    let rows = floats(&m.decay)?;
    let blocks = m.channels().div_ceil(BLOCK);
    let mut rates = try_vec(blocks * m.state_dim * BLOCK, 0f32, "the decay of Mamba")?;
    for (channel, row) in rows.chunks_exact(m.state_dim).enumerate() {
        let (block, lane) = (channel / BLOCK, channel % BLOCK);
        for (n, value) in row.iter().enumerate() {
            rates[(block * m.state_dim + n) * BLOCK + lane] = value * LOG2_E;
        }
    }
    Ok(rates)
}

impl Mamba1Plan {
    /// The matrices, all of which are products of whole rows.
    pub fn matrices(&self) -> [&Matrix; 4] {
        [&self.input, &self.short, &self.dt, &self.output]
    }

    /// The arguments of the recurrence, but for the sessions and the number of rows.
    fn scan(&self, wide: Span, rows: &Rows) -> args::Selective {
        args::Selective {
            input: wide.address,
            convolved: rows.convolved.address,
            parts: rows.short.address + u64::from(self.rank) * 4,
            steps: rows.steps,
            out: rows.steps,
            in_stride: wide.stride,
            part_stride: rows.short.stride,
            ..self.scan
        }
    }

    /// Rows of channels, such as the time steps and the results, which take their place.
    fn channels(&self, address: u64) -> Span {
        Span {
            address,
            stride: self.scan.channels,
        }
    }
}

/// Memory of the first Mamba in a step or a chunk.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// f32, `[rows][channels]`: the result of the convolution.
    convolved: u64,
    /// f32, `[rows][short]`: the short form, `B` and `C`.
    short: u64,
    /// f32, `[rows][channels]`: time steps, and then the result.
    steps: u64,
}

/// The same with the strides of a layer.
struct Rows {
    convolved: Span,
    short: Span,
    steps: u64,
}

impl Places {
    fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Places {
        let most = |number: fn(&Mamba1Plan) -> u32| {
            let most = plan.mamba1().map(number).max().unwrap_or(0);
            u64::from(rows) * u64::from(most)
        };
        Places {
            convolved: arena.array::<f32>(most(|m| m.scan.channels)),
            short: arena.array::<f32>(most(|m| m.short.rows)),
            steps: arena.array::<f32>(most(|m| m.scan.channels)),
        }
    }

    fn of(&self, plan: &Mamba1Plan) -> Rows {
        Rows {
            convolved: plan.channels(self.convolved),
            short: Span {
                address: self.short,
                stride: plan.short.rows,
            },
            steps: self.steps,
        }
    }
}

/// Memory of the first Mamba in a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct StepMamba1(Places);

impl StepMamba1 {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        StepMamba1(Places::place(arena, plan, rows))
    }
}

impl StepOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn mamba1(&self, plan: &Mamba1Plan) -> Result<RowInput> {
        let (e, at) = (&self.eval, self.buffers.at());
        let (wide, rows) = (at.rows.wide, at.mamba1.0.of(plan));
        let conv = args::Recurrent {
            sessions: e.sessions,
            input: wide.address,
            convolved: rows.convolved.address,
            in_stride: wide.stride,
            ..*plan.conv
        };
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels
                .convolve(e.stream, &conv, Some((self.batch, self.share_caches())))?
        };
        let channels = plan.scan.channels;
        let input = self.row_input(rows.convolved, channels, None, &plan.short)?;
        self.product_of(&plan.short, &input, rows.short, 0)?;
        let input = self.row_input(rows.short, plan.rank, plan.dt_norm, &plan.dt)?;
        let steps = plan.channels(rows.steps);
        self.product_of(&plan.dt, &input, steps, 0)?;
        let before = [&plan.input, &plan.short, &plan.dt].map(Matrix::bytes);
        self.mark(Work::Qkv, before.iter().sum())?;
        let scan = args::Selective {
            sessions: e.sessions,
            ..plan.scan(wide, &rows)
        };
        // SAFETY: as above.
        unsafe {
            e.kernels
                .selective_step(e.stream, &scan, (self.batch, self.share_caches()))?
        };
        self.mark(Work::Attention, plan.state_bytes)?;
        self.row_input(steps, channels, None, &plan.output)
    }
}

/// Memory of the first Mamba in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ChunkMamba1(Places);

impl ChunkMamba1 {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        ChunkMamba1(Places::place(arena, plan, rows))
    }
}

impl ChunkOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn mamba1(&self, plan: &Mamba1Plan) -> Result<()> {
        let (e, at) = (&self.eval, self.at());
        let (wide, rows) = (at.rows.wide, at.mamba1.0.of(plan));
        let conv = args::Recurrent {
            sessions: e.sessions,
            input: wide.address,
            convolved: rows.convolved.address,
            in_stride: wide.stride,
            count: self.rows,
            ..*plan.conv
        };
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe { e.kernels.convolve(e.stream, &conv, None)? };
        let channels = plan.scan.channels;
        let copy = |rows: Span, len: u32, groups: u32| args::QuantizeInput {
            x: rows.address,
            x_stride: rows.stride,
            len,
            groups,
            source: args::Source::Copy as u32,
            ..Default::default()
        };
        self.quantize_input(copy(rows.convolved, channels, plan.short.groups))?;
        self.matmul(&plan.short, rows.short, 0)?;
        let steps = plan.channels(rows.steps);
        let form = copy(rows.short, plan.rank, plan.dt.groups);
        self.quantize_input(match plan.dt_norm {
            None => form,
            Some(norm) => args::QuantizeInput {
                norm,
                source: args::Source::Norm as u32,
                inverse_len: 1.0 / plan.rank as f32,
                ..form
            },
        })?;
        self.matmul(&plan.dt, steps, 0)?;
        let scan = args::Selective {
            sessions: e.sessions,
            count: self.rows,
            ..plan.scan(wide, &rows)
        };
        // SAFETY: as above.
        unsafe { e.kernels.selective_chunk(e.stream, &scan)? };
        self.quantize_input(copy(steps, channels, plan.output.groups))
    }
}
