//! Mixers with a state of fixed size: gated delta nets, Mamba 2 and gated short convolutions. Their plan, their
//! memory, and their kernels in a step and in a chunk.

use crate::backend::Work;
use crate::backend::cuda::adapters::Piece;
use crate::backend::cuda::arena::Arena;
use crate::backend::cuda::args;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::plan::{Jobs, Plan};
use crate::backend::cuda::prefill::ChunkOperations;
use crate::backend::cuda::product::RowInput;
use crate::backend::cuda::recurrent::{MAX_COLS, MAX_ROWS, MAX_WIDTH};
use crate::backend::cuda::state::FixedLayer;
use crate::backend::cuda::step::StepOperations;
use crate::backend::cuda::walk::{Operations, Span};
use crate::error::{Result, fail};
use crate::model::{Conv, DeltaNet, DeltaSteps, FixedShape, Linear, Mamba2, ShortConv};
use std::ops::Range;

/// A layer's recurrence on the device.
#[derive(Clone, Debug)]
pub struct RecurrentPlan {
    /// From the residual stream to all that it works on.
    pub input: Matrix,
    /// What it does with that.
    kind: Kind,
    /// Elements of its result.
    len: u32,
    /// Bytes of its state.
    state_bytes: u64,
    /// From there to the residual stream.
    pub output: Matrix,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A delta net or Mamba 2, with a norm of its result and a gate.
    Recurrence {
        args: Box<args::Recurrent>,
        norm: args::GatedNorm,
        in_step: InStep,
    },
    /// A gated short convolution.
    Convolution(args::ShortConv),
}

/// What makes the norm of a result in a step.
#[derive(Clone, Copy, Debug)]
enum InStep {
    /// The step's kernel, with the gate.
    Step,
    /// The product that reads it; the step's kernel has the gate.
    Product(args::Norm),
    /// A kernel of its own, with the gate.
    Apart,
}

impl Jobs {
    pub(super) fn check_conv(layer: usize, conv: &Conv) -> Result<()> {
        if conv.width() > MAX_WIDTH as usize {
            fail!(
                Unsupported,
                "layer {layer}: a convolution over {} positions; the GPU's takes {MAX_WIDTH}",
                conv.width()
            );
        }
        Ok(())
    }

    fn check_state(layer: usize, shape: FixedShape) -> Result<()> {
        let (rows, columns) = (shape.rows, shape.columns);
        if columns > MAX_COLS as usize || rows > MAX_ROWS as usize {
            fail!(
                Unsupported,
                "layer {layer}: a state of {rows} x {columns} numbers a head; the GPU's takes {MAX_ROWS} x {MAX_COLS}"
            );
        }
        Ok(())
    }

    pub(super) fn recurrence(&mut self, conv: &Conv, state: FixedLayer) -> Result<args::Recurrent> {
        Ok(args::Recurrent {
            conv_weight: self.tensor(Some(&conv.weight))?,
            conv_bias: self.tensor(conv.bias.as_ref())?,
            state_offset: state.offset,
            matrix_offset: state.matrices,
            channels: conv.channels() as u32,
            width: conv.width() as u32,
            q_scale: 1.0,
            most: f32::INFINITY,
            ..Default::default()
        })
    }

    /// Lays out the delta net of layer `layer`.
    pub(super) fn delta_net(
        &mut self,
        layer: usize,
        m: &DeltaNet,
        shape: FixedShape,
    ) -> Result<RecurrentPlan> {
        Jobs::check_conv(layer, &m.conv)?;
        Jobs::check_state(layer, shape)?;
        let of_channels = matches!(m.steps, DeltaSteps::Channels { .. });
        if m.beta_scale != 1.0 || of_channels || m.sigmoid_gate || m.z_short.is_some() {
            fail!(
                Unsupported,
                "layer {layer}: a delta net with larger steps, or with steps of each channel, is not supported on a GPU; it is on a CPU"
            );
        }
        let state = self.fixed.add(shape);
        let group = m.n_value_heads / m.n_key_heads;
        let steps: Vec<Linear> = match &m.steps {
            DeltaSteps::Apart { b, a } => vec![b.clone(), a.clone()],
            DeltaSteps::Together(both) => {
                let of = |from| (0..m.n_key_heads).map(move |key| 2 * key * group + from);
                let all = of(0).chain(of(group));
                all.map(|row| rows(both, row..row + group)).collect()
            }
            DeltaSteps::Channels { .. } => unreachable!("refused above"),
        };
        let mut parts = vec![&m.q, &m.k, &m.v, &m.z];
        let mut pieces: Vec<Piece<'_>> = parts.iter().map(|l| Piece::whole(l)).collect();
        match &m.steps {
            DeltaSteps::Apart { b, a } => pieces.extend([b, a].map(Piece::whole)),
            DeltaSteps::Together(both) => pieces.extend([0, group].map(|first| Piece {
                linear: both,
                rows: m.n_value_heads,
                first,
                run: group,
                step: 2 * group,
            })),
            DeltaSteps::Channels { .. } => unreachable!("refused above"),
        }
        parts.extend(&steps);
        let (keys, values) = (m.q.weight.rows() as u32, m.z.weight.rows() as u32);
        let norm = self.norm(&m.norm)?;
        let recurrence = self.recurrence(&m.conv, state)?;
        let channels = recurrence.channels;
        let heads = m.n_value_heads as u32;
        let args = args::Recurrent {
            rate: self.tensor(Some(&m.decay))?,
            step_bias: self.tensor(Some(&m.dt_bias))?,
            norm: norm.weight,
            eps: norm.eps,
            heads,
            per_key: group as u32,
            tiled: u32::from(m.tiled),
            rows: m.value_dim as u32,
            cols: m.key_dim as u32,
            k_at: keys,
            v_at: 2 * keys,
            gate_at: channels,
            beta_at: channels + values,
            step_at: channels + values + heads,
            delta: 1,
            q_scale: (1.0 / (m.key_dim as f64).sqrt()) as f32,
            ..recurrence
        };
        Ok(RecurrentPlan {
            input: self.fuse_pieces(&parts, &pieces)?,
            kind: Kind::Recurrence {
                args: Box::new(args),
                norm: args::GatedNorm {
                    weight: norm.weight,
                    len: values,
                    group: m.value_dim as u32,
                    same: 1,
                    eps: norm.eps,
                    ..Default::default()
                },
                in_step: InStep::Step,
            },
            len: values,
            state_bytes: shape.len() as u64 * 4,
            output: self.fuse(&[&m.output])?,
        })
    }

    /// Lays out Mamba 2 of layer `layer`.
    pub(super) fn mamba2(
        &mut self,
        layer: usize,
        m: &Mamba2,
        shape: FixedShape,
    ) -> Result<RecurrentPlan> {
        Jobs::check_conv(layer, &m.conv)?;
        Jobs::check_state(layer, shape)?;
        let state = self.fixed.add(shape);
        let (inner, states) = (m.z.weight.rows() as u32, m.b.weight.rows() as u32);
        let recurrence = self.recurrence(&m.conv, state)?;
        let channels = recurrence.channels;
        let norm = match &m.norm {
            Some(norm) => Some(self.norm(norm)?),
            None => None,
        };
        let in_step = match norm {
            Some(norm) if m.norm_groups == 1 && !m.norm_before_gate => InStep::Product(norm),
            _ => InStep::Apart,
        };
        let norm = norm.unwrap_or_default();
        let args = args::Recurrent {
            rate: self.tensor(Some(&m.decay))?,
            step_bias: self.tensor(Some(&m.dt_bias))?,
            skip: self.tensor(Some(&m.skip))?,
            heads: m.n_heads as u32,
            per_key: (m.n_heads / m.n_groups) as u32,
            rows: m.head_dim as u32,
            cols: m.state_dim as u32,
            k_at: inner,
            q_at: inner + states,
            gate_at: channels,
            step_at: channels + inner,
            least: m.dt_min,
            gated: u32::from(matches!(in_step, InStep::Product(_))),
            most: m.dt_max,
            ..recurrence
        };
        Ok(RecurrentPlan {
            input: self.fuse(&[&m.x, &m.b, &m.c, &m.z, &m.dt])?,
            kind: Kind::Recurrence {
                args: Box::new(args),
                norm: args::GatedNorm {
                    weight: norm.weight,
                    len: inner,
                    group: inner / m.norm_groups as u32,
                    gate_first: u32::from(!m.norm_before_gate),
                    eps: norm.eps,
                    ..Default::default()
                },
                in_step,
            },
            len: inner,
            state_bytes: shape.len() as u64 * 4,
            output: self.fuse(&[&m.output])?,
        })
    }

    /// Lays out the short convolution of layer `layer`.
    pub(super) fn short_conv(
        &mut self,
        layer: usize,
        m: &ShortConv,
        shape: FixedShape,
    ) -> Result<RecurrentPlan> {
        Jobs::check_conv(layer, &m.conv)?;
        let state = self.fixed.add(shape);
        let channels = m.conv.channels() as u32;
        Ok(RecurrentPlan {
            input: self.fuse(&[&m.b, &m.c, &m.x])?,
            kind: Kind::Convolution(args::ShortConv {
                weight: self.tensor(Some(&m.conv.weight))?,
                bias: self.tensor(m.conv.bias.as_ref())?,
                state_offset: state.offset,
                channels,
                width: m.conv.width() as u32,
                ..Default::default()
            }),
            len: channels,
            state_bytes: shape.len() as u64 * 4,
            output: self.fuse(&[&m.output])?,
        })
    }
}

/// Some rows of a matrix, with their biases.
pub(super) fn rows(linear: &Linear, rows: Range<usize>) -> Linear {
    Linear {
        bias: linear.bias.as_ref().map(|b| b.elements(rows.clone())),
        weight: linear.weight.row_range(rows),
    }
}

impl RecurrentPlan {
    /// A convolution with these matrices, for tests of what goes around it.
    #[cfg(test)]
    pub fn of(input: Matrix, output: Matrix) -> RecurrentPlan {
        RecurrentPlan {
            input,
            kind: Kind::Convolution(args::ShortConv::default()),
            len: 0,
            state_bytes: 0,
            output,
        }
    }

    /// Channels of a convolution whose result a chunk keeps.
    fn convolved(&self) -> u32 {
        match &self.kind {
            Kind::Recurrence { args, .. } => args.channels,
            Kind::Convolution(_) => 0,
        }
    }
}

/// Memory of a recurrence in a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct StepRecurrent {
    /// f32, `[rows][len]`: the result.
    out: u64,
}

impl StepRecurrent {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        let len = plan.recurrent().map(|r| r.len).max().unwrap_or(0);
        StepRecurrent {
            out: arena.array::<f32>(u64::from(rows) * u64::from(len)),
        }
    }
}

impl StepOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn recurrence(&self, plan: &RecurrentPlan) -> Result<RowInput> {
        let (e, at) = (&self.eval, self.buffers.at());
        let (out, wide) = (at.recurrent.out, at.rows.wide);
        let mut by_product = None;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            match &plan.kind {
                Kind::Recurrence {
                    args,
                    norm,
                    in_step,
                } => {
                    let args = args::Recurrent {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        in_stride: wide.stride,
                        ..**args
                    };
                    e.kernels
                        .recurrent_step(e.stream, &args, (self.batch, self.share_caches))?;
                    if let InStep::Product(norm) = in_step {
                        by_product = Some(*norm);
                    }
                    if let InStep::Apart = in_step {
                        let norm = args::GatedNorm {
                            x: out,
                            gate: wide.address + u64::from(args.gate_at) * 4,
                            gate_stride: wide.stride,
                            ..*norm
                        };
                        e.kernels.gated_norm(e.stream, &norm, self.batch)?;
                    }
                }
                Kind::Convolution(args) => {
                    let args = args::ShortConv {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        in_stride: wide.stride,
                        ..*args
                    };
                    e.kernels
                        .short_conv(e.stream, &args, (self.batch, self.share_caches))?;
                }
            }
        }
        self.mark(Work::Attention, plan.state_bytes)?;
        let rows = Span {
            address: out,
            stride: plan.len,
        };
        self.row_input(rows, plan.len, by_product, &plan.output)
    }
}

/// Memory of a recurrence in a chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct ChunkRecurrent {
    /// f32, `[rows][channels]`: the result of the convolution.
    convolved: u64,
    /// f32, `[rows][len]`: the result.
    out: u64,
}

impl ChunkRecurrent {
    /// For chunks of `rows` tokens.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        let most = |number: fn(&RecurrentPlan) -> u32| {
            let most = plan.recurrent().map(number).max().unwrap_or(0);
            u64::from(rows) * u64::from(most)
        };
        ChunkRecurrent {
            convolved: arena.array::<f32>(most(RecurrentPlan::convolved)),
            out: arena.array::<f32>(most(|r| r.len)),
        }
    }
}

impl ChunkOperations<'_> {
    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn recurrence(&self, plan: &RecurrentPlan) -> Result<()> {
        let (e, at) = (&self.eval, self.at());
        let (out, wide) = (at.recurrent.out, at.rows.wide);
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            match &plan.kind {
                Kind::Recurrence { args, norm, .. } => {
                    let args = args::Recurrent {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        convolved: at.recurrent.convolved,
                        in_stride: wide.stride,
                        count: self.rows,
                        ..**args
                    };
                    e.kernels.recurrent_chunk(e.stream, &args)?;
                    let norm = args::GatedNorm {
                        x: out,
                        gate: wide.address + u64::from(args.gate_at) * 4,
                        gate_stride: wide.stride,
                        ..*norm
                    };
                    e.kernels.gated_norm(e.stream, &norm, self.rows)?;
                }
                Kind::Convolution(args) => {
                    let args = args::ShortConv {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        in_stride: wide.stride,
                        prefill: 1,
                        count: self.rows,
                        ..*args
                    };
                    e.kernels.short_conv(e.stream, &args, (1, false))?;
                }
            }
        }
        self.quantize_input(args::QuantizeInput {
            x: out,
            x_stride: plan.len,
            len: plan.len,
            groups: plan.output.groups,
            source: args::Source::Copy as u32,
            ..Default::default()
        })
    }
}
