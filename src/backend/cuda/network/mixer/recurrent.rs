//! Mixers with a state of fixed size: gated delta nets, Mamba 2 and gated short convolutions. Their plan, their
//! memory, and their kernels in a step and in a chunk.

use crate::backend::Work;
use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::args::{self, MAX_COLS};
use crate::backend::cuda::launch::matrix::{Inputs, Matrix};
use crate::backend::cuda::launch::product::RowInput;
use crate::backend::cuda::launch::recurrent::{MAX_CHANNELS, MAX_ROWS, MAX_WIDTH};
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::fixed_plan::FixedLayer;
use crate::backend::cuda::network::jobs::Jobs;
use crate::backend::cuda::network::linears::Piece;
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::ChunkOperations;
use crate::backend::cuda::network::step::StepOperations;
use crate::backend::cuda::network::walk::Operations;
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
        channels: Option<Box<Channels>>,
    },
    /// A gated short convolution.
    Convolution(args::ShortConv),
}

/// A delta net whose channels have steps of their own.
#[derive(Clone, Debug)]
struct Channels {
    /// Floats of a row of input before the channels of the convolution.
    first: u32,
    steps: Numbers,
    gates: Numbers,
}

/// Where numbers of a row come from.
#[derive(Clone, Debug)]
enum Numbers {
    /// They are in the row of input, from this float on.
    Input(u32),
    /// They are the product of a shorter vector there.
    Product { at: u32, len: u32, matrix: Matrix },
}

impl Numbers {
    fn matrix(&self) -> Option<&Matrix> {
        match self {
            Numbers::Input(_) => None,
            Numbers::Product { matrix, .. } => Some(matrix),
        }
    }
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
        if let DeltaSteps::Channels { .. } = m.steps {
            return self.channel_net(layer, m, shape);
        }
        if m.sigmoid_gate || m.z_short.is_some() {
            fail!(
                Unsupported,
                "layer {layer}: a delta net whose gates are sigmoids or come of a shorter vector is supported on a GPU only with steps of each channel; on a CPU it is"
            );
        }
        let group = m.n_value_heads / m.n_key_heads;
        let steps: Vec<Linear> = match &m.steps {
            DeltaSteps::Apart { b, a } => vec![b.clone(), a.clone()],
            DeltaSteps::Together(both) => {
                let of = |from| (0..m.n_key_heads).map(move |key| 2 * key * group + from);
                let all = of(0).chain(of(group));
                all.map(|row| rows(both, row..row + group)).collect()
            }
            DeltaSteps::Channels { .. } => unreachable!("done above"),
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
            DeltaSteps::Channels { .. } => unreachable!("done above"),
        }
        parts.extend(&steps);
        let channels = m.conv.channels() as u32;
        let (values, heads) = (m.z.weight.rows() as u32, m.n_value_heads as u32);
        let places = args::Recurrent {
            gate_at: channels,
            beta_at: channels + values,
            step_at: channels + values + heads,
            ..Default::default()
        };
        let input = self.fuse_pieces(&parts, &pieces)?;
        self.delta_plan(m, shape, input, places, None)
    }

    /// What all delta nets have alike; `places` says where the numbers of a row of input are.
    fn delta_plan(
        &mut self,
        m: &DeltaNet,
        shape: FixedShape,
        input: Matrix,
        places: args::Recurrent,
        channels: Option<Box<Channels>>,
    ) -> Result<RecurrentPlan> {
        let state = self.fixed.add(shape);
        let (keys, values) = (m.q.weight.rows() as u32, m.z.weight.rows() as u32);
        let norm = self.norm(&m.norm)?;
        let args = args::Recurrent {
            rate: self.tensor(Some(&m.decay))?,
            step_bias: self.tensor(Some(&m.dt_bias))?,
            norm: norm.weight,
            eps: norm.eps,
            heads: m.n_value_heads as u32,
            per_key: (m.n_value_heads / m.n_key_heads) as u32,
            tiled: u32::from(m.tiled),
            rows: m.value_dim as u32,
            cols: m.key_dim as u32,
            k_at: keys,
            v_at: 2 * keys,
            gate_at: places.gate_at,
            beta_at: places.beta_at,
            step_at: places.step_at,
            delta: 1,
            beta_scale: m.beta_scale,
            q_scale: (1.0 / (m.key_dim as f64).sqrt()) as f32,
            floor: m.decay_floor.unwrap_or(0.0),
            ..self.recurrence(&m.conv, state)?
        };
        Ok(RecurrentPlan {
            input,
            kind: Kind::Recurrence {
                args: Box::new(args),
                norm: args::GatedNorm {
                    weight: norm.weight,
                    len: values,
                    group: m.value_dim as u32,
                    same: 1,
                    sigmoid: u32::from(m.sigmoid_gate),
                    eps: norm.eps,
                    ..Default::default()
                },
                in_step: InStep::Step,
                channels,
            },
            len: values,
            state_bytes: shape.len() as u64 * 4,
            output: self.fuse(&[&m.output])?,
        })
    }

    /// Lays out a delta net of layer `layer` whose channels have steps of their own.
    fn channel_net(
        &mut self,
        layer: usize,
        m: &DeltaNet,
        shape: FixedShape,
    ) -> Result<RecurrentPlan> {
        let DeltaSteps::Channels { b, short, a } = &m.steps else {
            fail!(Internal, "layer {layer} has no steps of channels");
        };
        if !m.sigmoid_gate || m.key_dim > MAX_CHANNELS as usize {
            fail!(
                Unsupported,
                "layer {layer}: a delta net with steps of each channel has gates that are sigmoids, and {MAX_CHANNELS} columns at most, on a GPU; not on a CPU"
            );
        }
        for short in short.iter().chain(&m.z_short) {
            if !short.weight.rows().is_multiple_of(4) {
                fail!(
                    Unsupported,
                    "tensor {}: {} rows; on a GPU they must be a multiple of 4, not on a CPU",
                    short.weight.name,
                    short.weight.rows()
                );
            }
        }
        // Shorter vectors come first, what is not made of one last.
        let mut parts: Vec<&Linear> = short.iter().chain(&m.z_short).collect();
        let len = |parts: &[&Linear]| parts.iter().map(|p| p.weight.rows() as u32).sum::<u32>();
        let first = len(&parts);
        parts.extend([&m.q, &m.k, &m.v]);
        let mut at = 0;
        let mut numbers = Vec::new();
        for (short, linear) in [(short, a), (&m.z_short, &m.z)] {
            numbers.push(match short {
                Some(short) => {
                    let (begin, len) = (at, short.weight.rows() as u32);
                    at += len;
                    Numbers::Product {
                        at: begin,
                        len,
                        matrix: self.fuse(&[linear])?,
                    }
                }
                None => {
                    let at = len(&parts);
                    parts.push(linear);
                    Numbers::Input(at)
                }
            });
        }
        let places = args::Recurrent {
            beta_at: len(&parts) - first,
            ..Default::default()
        };
        parts.push(b);
        let [steps, gates] = numbers.try_into().expect("two were pushed");
        let channels = Channels {
            first,
            steps,
            gates,
        };
        let input = self.fuse(&parts)?;
        self.delta_plan(m, shape, input, places, Some(Box::new(channels)))
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
                channels: None,
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

    /// The matrices that are products of whole rows.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let channels = match &self.kind {
            Kind::Recurrence { channels, .. } => channels.as_deref(),
            Kind::Convolution(_) => None,
        };
        let others = channels.map(|c| [c.steps.matrix(), c.gates.matrix()]);
        let others = others.into_iter().flatten().flatten();
        [&self.input, &self.output].into_iter().chain(others)
    }

    /// Numbers of a row that come of shorter vectors, of each kind at most.
    fn numbers(&self) -> u32 {
        self.matrices().skip(2).map(|m| m.rows).max().unwrap_or(0)
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
    /// f32, `[rows][..]`: steps, and gates, that come of shorter vectors.
    numbers: [u64; 2],
}

impl StepRecurrent {
    /// For steps of `rows` sessions.
    pub fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Self {
        let len = plan.recurrent().map(|r| r.len).max().unwrap_or(0);
        StepRecurrent {
            out: arena.array::<f32>(u64::from(rows) * u64::from(len)),
            numbers: numbers(arena, plan, rows),
        }
    }
}

/// Memory of steps and of gates that come of shorter vectors.
fn numbers(arena: &mut Arena, plan: &Plan, rows: u32) -> [u64; 2] {
    let most = plan.recurrent().map(RecurrentPlan::numbers).max();
    let most = u64::from(rows) * u64::from(most.unwrap_or(0));
    [(); 2].map(|()| arena.array::<f32>(most))
}

/// The arguments completed for what each channel has: its steps and gates.
fn of_channels(args: args::Recurrent, first: u32, [steps, gates]: [Span; 2]) -> args::Recurrent {
    args::Recurrent {
        input: args.input + u64::from(first) * 4,
        steps: steps.address,
        steps_stride: steps.stride,
        gates: gates.address,
        gates_stride: gates.stride,
        ..args
    }
}

/// A row's numbers from float `at` on.
fn from(rows: Span, at: u32) -> Span {
    Span {
        address: rows.address + u64::from(at) * 4,
        ..rows
    }
}

impl StepOperations<'_> {
    /// Where such numbers are, which are made at `to` if they are not there.
    fn numbers(&self, numbers: &Numbers, to: u64) -> Result<Span> {
        let wide = self.buffers.at().rows.wide;
        match numbers {
            Numbers::Input(at) => Ok(from(wide, *at)),
            Numbers::Product { at, len, matrix } => {
                let span = Span {
                    address: to,
                    stride: matrix.rows,
                };
                let input = self.row_input(from(wide, *at), *len, None, matrix)?;
                self.product_of(matrix, &input, span, 0)?;
                self.mark(Work::Qkv, matrix.bytes())?;
                Ok(span)
            }
        }
    }

    /// Where a recurrence writes its outputs as the input of the last product, if it can.
    fn rounded_by(
        &self,
        args: &args::Recurrent,
        in_step: &InStep,
        output: &Matrix,
    ) -> Option<Inputs> {
        let forms = self.forms(output);
        let whole = matches!(in_step, InStep::Step) && args.heads * args.rows == output.groups * 32;
        let rows = (self.batch, self.share_caches());
        let rounds = whole && forms.is_q8() && self.eval.kernels.rounds_recurrence(args, rows);
        rounds.then(|| self.buffers.at().inputs.only(forms))
    }

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
                    channels,
                } => {
                    let mut args = args::Recurrent {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        in_stride: wide.stride,
                        ..**args
                    };
                    if let Some(c) = channels {
                        let [steps, gates] = at.recurrent.numbers;
                        let both = [
                            self.numbers(&c.steps, steps)?,
                            self.numbers(&c.gates, gates)?,
                        ];
                        args = of_channels(args, c.first, both);
                    }
                    let rows = (self.batch, self.share_caches());
                    let rounded = self.rounded_by(&args, in_step, &plan.output);
                    if let Some(inputs) = rounded {
                        args.q8 = inputs.q8;
                        args.q8_scale = inputs.q8_scale;
                    }
                    e.kernels.recurrent_step(e.stream, &args, rows)?;
                    if let Some(inputs) = rounded {
                        self.mark(Work::Attention, plan.state_bytes)?;
                        return Ok(RowInput::Rounded(inputs));
                    }
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
                        .short_conv(e.stream, &args, (self.batch, self.share_caches()))?;
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
    /// f32, `[rows][..]`: steps, and gates, that come of shorter vectors.
    numbers: [u64; 2],
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
            numbers: numbers(arena, plan, rows),
        }
    }
}

impl ChunkOperations<'_> {
    /// Where such numbers are, which are made at `to` if they are not there.
    fn numbers(&self, numbers: &Numbers, to: u64) -> Result<Span> {
        let wide = self.at().rows.wide;
        match numbers {
            Numbers::Input(at) => Ok(from(wide, *at)),
            Numbers::Product { at, len, matrix } => {
                let span = Span {
                    address: to,
                    stride: matrix.rows,
                };
                self.quantize_input(args::QuantizeInput {
                    x: from(wide, *at).address,
                    x_stride: wide.stride,
                    len: *len,
                    groups: matrix.groups,
                    source: args::Source::Copy as u32,
                    ..Default::default()
                })?;
                self.matmul(matrix, span, 0)?;
                Ok(span)
            }
        }
    }

    /// From the outputs of the first product to the input of the last.
    pub(in crate::backend::cuda) fn recurrence(&self, plan: &RecurrentPlan) -> Result<()> {
        let (e, at) = (&self.eval, self.at());
        let (out, wide) = (at.recurrent.out, at.rows.wide);
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            match &plan.kind {
                Kind::Recurrence {
                    args,
                    norm,
                    channels,
                    ..
                } => {
                    let mut args = args::Recurrent {
                        sessions: e.sessions,
                        input: wide.address,
                        out,
                        convolved: at.recurrent.convolved,
                        in_stride: wide.stride,
                        count: self.rows,
                        ..**args
                    };
                    let mut gates = from(wide, args.gate_at);
                    if let Some(c) = channels {
                        let to = at.recurrent.numbers;
                        let steps = self.numbers(&c.steps, to[0])?;
                        gates = self.numbers(&c.gates, to[1])?;
                        args = of_channels(args, c.first, [steps, gates]);
                    }
                    e.kernels.recurrent_chunk(e.stream, &args)?;
                    let norm = args::GatedNorm {
                        x: out,
                        gate: gates.address,
                        gate_stride: gates.stride,
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
