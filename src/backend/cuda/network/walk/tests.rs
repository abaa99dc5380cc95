//! The order of operations, written down by operations that do nothing else.

use super::*;
use crate::backend::cuda::launch::experts::Router;
use crate::backend::cuda::launch::matrix::MatrixSegment;
use crate::backend::cuda::launch::record::RecordType;
use crate::backend::cuda::network::mixer::SideBySidePlan;
use crate::error::Error;
use crate::model::KvShape;
use std::cell::RefCell;

/// Writes down what is asked for; matrices and norms go by their names.
#[derive(Default)]
struct Recorder {
    lines: RefCell<Vec<String>>,
    /// The operation that fails, by its number.
    fails: Option<usize>,
    /// Whether the last product of experts comes with their sum.
    joins: bool,
    /// What of the shared expert comes beside the others.
    beside: Beside,
    /// Whether other ranks have shares of the layers.
    is_rank: bool,
    /// Whether a layer's own input is one operation.
    owns: bool,
}

const NAMES: [&str; 7] = [
    "qkv",
    "output",
    "up",
    "down",
    "gate",
    "shared up",
    "shared down",
];

/// The matrix of this name, as many bytes as its place in [`NAMES`] says.
fn matrix(name: &str) -> Matrix {
    let place = NAMES.iter().position(|n| *n == name).unwrap();
    Matrix {
        rows: place as u32,
        segments: vec![MatrixSegment {
            address: 0,
            ty: RecordType::F32,
            rows: 1,
            out_offset: 0,
            bytes: 100 * (place as u64 + 1),
            largest: 0,
        }],
        ..Matrix::default()
    }
}

fn name(matrix: &Matrix) -> &'static str {
    NAMES[matrix.rows as usize]
}

/// A norm that goes by a number.
fn norm(number: u64) -> Option<args::Norm> {
    Some(args::Norm {
        weight: number,
        ..args::Norm::default()
    })
}

fn normed(norm: Option<args::Norm>, what: &str) -> String {
    match norm {
        Some(norm) => format!("norm{}({what})", norm.weight),
        None => what.into(),
    }
}

impl Recorder {
    fn line(&self, line: String) -> Result<()> {
        let mut lines = self.lines.borrow_mut();
        if self.fails == Some(lines.len()) {
            return Err(Error::new(crate::error::Status::DeviceError, line));
        }
        lines.push(line);
        Ok(())
    }
}

impl Operations for Recorder {
    type Input = &'static str;

    fn project(&self, norm: Option<args::Norm>, matrix: &Matrix) -> Result<()> {
        let input = normed(norm, "Residual");
        self.line(format!("Wide = {} * {input}", name(matrix)))
    }

    fn project_entry(&self, matrix: &Matrix) -> Result<()> {
        self.line(format!("Wide = {} * entry", name(matrix)))
    }

    fn attend(&self, layer: usize, _: &AttentionPlan) -> Result<&'static str> {
        self.line(format!("attend in layer {layer}"))?;
        Ok("attended")
    }

    fn attend_latent(&self, layer: usize, _: &LatentPlan) -> Result<&'static str> {
        self.line(format!("attend to latent vectors in layer {layer}"))?;
        Ok("gathered")
    }

    fn recur(&self, _: &RecurrentPlan) -> Result<&'static str> {
        self.line("recur".into())?;
        Ok("recurred")
    }

    fn recur_mamba1(&self, _: &Mamba1Plan) -> Result<&'static str> {
        self.line("recur by channels".into())?;
        Ok("recurred by channels")
    }

    fn on_host(&self, layer: usize) -> Result<()> {
        self.line(format!("Residual = layer {layer} of the host"))
    }

    fn inner(&self, input: MlpInput, mlp: &MlpPlan) -> Result<&'static str> {
        let input = match input {
            MlpInput::Residual(norm) => normed(norm, "Residual"),
            MlpInput::OfExperts(norm) => format!("routed {}", normed(norm, "Residual")),
            MlpInput::Beside(at) => return self.line(format!("inner at {at}")).map(|()| "inner"),
        };
        self.line(format!("inner = {} * {input}", name(&mlp.up)))?;
        Ok("inner")
    }

    fn product(
        &self,
        matrix: &Matrix,
        input: &&'static str,
        to: Rows,
        residual: Option<Rows>,
    ) -> Result<()> {
        let residual = residual.map_or(String::new(), |r| format!("{r:?} + "));
        self.line(format!("{to:?} = {residual}{} * {input}", name(matrix)))
    }

    fn add(&self, a: &Addition) -> Result<()> {
        let (to, scale) = (a.to, a.scale);
        let branch = normed(a.norm, &format!("{:?}", a.from));
        let base = a.base.map_or("0".to_owned(), |base| format!("{base:?}"));
        let sum = format!("{base} + {scale} * {branch}");
        self.line(match a.out_scale {
            1.0 => format!("{to:?} = {sum}"),
            out => format!("{to:?} = {out} * ({sum})"),
        })
    }

    fn input_from(&self, rows: Rows, len: u32, matrix: &Matrix) -> Result<&'static str> {
        self.line(format!("{len} of {rows:?} for {}", name(matrix)))?;
        Ok("rows")
    }

    fn streams(&self, layer: &StreamLayerPlan, work: StreamWork) -> Result<()> {
        let what = match work {
            StreamWork::Predict => "predicted: Residual".into(),
            StreamWork::Around(norm) => {
                format!("Branch = Residual + {} + thin", normed(norm, "Residual"))
            }
            StreamWork::Correct => "corrected by Residual".into(),
            StreamWork::Spread(norm) => format!("+ {}", normed(norm, "Wide")),
        };
        self.line(format!("{} streams: {what}", layer.count))
    }

    fn own_part(&self, layer: usize, own: &LayerInputPlan, a: &Addition) -> Result<bool> {
        if self.owns {
            let (gate, projection) = (name(&own.gate), name(&own.projection));
            let sum = normed(a.norm, "made");
            self.line(format!(
                "own part of {layer} by {gate} and {projection}: {} * ({:?} + {sum})",
                a.out_scale, a.to
            ))?;
        }
        Ok(self.owns)
    }

    fn own_input(&self, layer: usize, own: &LayerInputPlan) -> Result<&'static str> {
        self.line(format!("own input of {layer} by {}", name(&own.gate)))?;
        Ok("let through")
    }

    fn route(&self, norm: Option<args::Norm>, _: &ExpertsPlan) -> Result<()> {
        self.line(format!("routed = {}", normed(norm, "Residual")))
    }

    fn experts_up(&self, _: Option<args::Norm>, e: &ExpertsPlan) -> Result<()> {
        let first: Vec<_> = e.first_matrices().into_iter().map(name).collect();
        self.line(format!("experts' {}", first.join(" and ")))
    }

    fn experts_down(&self, e: &ExpertsPlan) -> Result<()> {
        self.line(format!("experts' {}", name(&e.down)))
    }

    fn joins(&self, _: Option<args::Norm>, _: &ExpertsPlan) -> bool {
        self.joins
    }

    fn beside(&self, _: Option<args::Norm>, _: &ExpertsPlan) -> Beside {
        self.beside
    }

    fn is_rank(&self) -> bool {
        self.is_rank
    }

    fn sum_ranks(&self, from: Rows, base: Option<Rows>, to: Rows) -> Result<()> {
        let base = base.map(|base| format!("{base:?} + ")).unwrap_or_default();
        self.line(format!("{to:?} = {base}{from:?} of all ranks"))
    }

    fn combine(&self, _: Option<args::Norm>, e: &ExpertsPlan, sum: &ExpertSum) -> Result<()> {
        let (to, scale) = (sum.to, sum.scale);
        let what = match self.joins {
            true => format!("sum of {}", name(&e.down)),
            false => "sum".into(),
        };
        self.line(match sum.base {
            Some(base) => format!("{to:?} = {base:?} + {scale} * {what}"),
            None => format!("{to:?} = {what}"),
        })
    }

    fn mark(&self, work: Work, bytes: u64) -> Result<()> {
        self.line(format!("[{} {bytes}]", work.name()))
    }
}

fn mlp(up: &str, down: &str) -> MlpPlan {
    MlpPlan {
        up: matrix(up),
        gated: true,
        n_ff: 1,
        activation: args::Activation::default(),
        cutoff: None,
        inner_norm: None,
        down: matrix(down),
    }
}

/// A plain sequential block: norm 1 before attention, norm 2 before the feed-forward part.
fn block() -> LayerPlan {
    LayerPlan {
        mixer_norm: norm(1),
        mixer: MixerPlan::Attention(Box::new(AttentionPlan {
            gate: 0,
            keys_of: 3,
            value_head: 2,
            value_norm: Default::default(),
            qkv: matrix("qkv"),
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            head_norms: Default::default(),
            row_norms: Default::default(),
            heads: Default::default(),
            rotation: Default::default(),
            scores: Default::default(),
            kv: KvShape {
                n_kv_heads: 1,
                head_dim: 1,
                window: None,
            },
            causal: true,
            chunk: None,
            slopes: 0,
            output_norm: None,
            output: matrix("output"),
        })),
        mixer_post_norm: None,
        feed_forward_norm: norm(2),
        feed_forward: FeedForwardPlan::Dense(mlp("up", "down")),
        feed_forward_post_norm: None,
        parallel: false,
        residual_scale: 1.0,
        input: None,
        streams: None,
        output_scale: 1.0,
        mixer_sum_norm: None,
        feed_forward_sum_norm: None,
        reads_entry: false,
    }
}

/// Four experts, of which a token goes through two.
fn experts(shared: bool) -> FeedForwardPlan {
    FeedForwardPlan::Experts(Box::new(experts_plan(shared)))
}

fn experts_plan(shared: bool) -> ExpertsPlan {
    ExpertsPlan {
        n_experts: 4,
        n_used: 2,
        own_width: None,
        router: Router {
            address: 0,
            bias: 0,
            rows: 4,
            width: 32,
        },
        router_norm: None,
        selection_bias: 0,
        expert_scales: 0,
        scoring: 0,
        jitter: None,
        groups: [0; 3],
        normalize: false,
        weighs_inputs: false,
        weight_scale: 1.0,
        gate: Some(matrix("gate")),
        up: matrix("up"),
        down: matrix("down"),
        n_ff: 1,
        activation: args::Activation::default(),
        shared: shared.then(|| mlp("shared up", "shared down")),
        sum_bias: 0,
        adapted: Default::default(),
    }
}

fn recorded(block: &LayerPlan) -> Vec<String> {
    let recorder = Recorder::default();
    walk(&recorder, 3, block).unwrap();
    recorder.lines.into_inner()
}

/// The lines that are no marks.
fn operations(block: &LayerPlan) -> Vec<String> {
    let mut lines = recorded(block);
    lines.retain(|line| !line.starts_with('['));
    lines
}

#[test]
fn a_sequential_block_adds_one_part_after_the_other() {
    let want = [
        "Wide = qkv * norm1(Residual)",
        "[qkv 100]",
        "attend in layer 3",
        "Residual = Residual + output * attended",
        "[output 200]",
        "inner = up * norm2(Residual)",
        "Residual = Residual + down * inner",
        "[down 400]",
    ];
    assert_eq!(recorded(&block()), want);
}

#[test]
fn the_layer_of_a_head_reads_what_was_joined() {
    let block = LayerPlan {
        mixer_norm: None,
        reads_entry: true,
        ..block()
    };
    let want = [
        "Wide = qkv * entry",
        "attend in layer 3",
        "Residual = Residual + output * attended",
        "inner = up * norm2(Residual)",
        "Residual = Residual + down * inner",
    ];
    assert_eq!(operations(&block), want);
}

#[test]
fn norms_of_the_stream_come_behind_both_parts() {
    let block = LayerPlan {
        mixer_sum_norm: norm(7),
        feed_forward_sum_norm: norm(8),
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Residual = Residual + output * attended",
        "Residual = 0 + 1 * norm7(Residual)",
        "inner = up * norm2(Residual)",
        "Residual = Residual + down * inner",
        "Residual = 0 + 1 * norm8(Residual)",
    ];
    assert_eq!(operations(&block), want);
}

#[test]
fn a_parallel_block_keeps_the_stream_until_both_parts_have_read_it() {
    let block = LayerPlan {
        parallel: true,
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Branch = Residual + output * attended",
        "inner = up * norm2(Residual)",
        "Residual = Branch + down * inner",
    ];
    assert_eq!(operations(&block), want);
}

#[test]
fn mixers_side_by_side_read_the_same_stream() {
    let MixerPlan::Attention(attention) = block().mixer else {
        unreachable!()
    };
    let both = SideBySidePlan {
        attention: *attention,
        recurrent: RecurrentPlan::of(matrix("gate"), matrix("shared down")),
    };
    let block = LayerPlan {
        mixer: MixerPlan::SideBySide(Box::new(both)),
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Branch = Residual + output * attended",
        "Wide = gate * norm1(Residual)",
        "recur",
        "Residual = Branch + shared down * recurred",
        "inner = up * norm2(Residual)",
        "Residual = Residual + down * inner",
    ];
    assert_eq!(operations(&block), want);
}

#[test]
fn a_block_without_norms_reads_the_stream_as_it_is() {
    let block = LayerPlan {
        mixer_norm: None,
        feed_forward_norm: None,
        ..block()
    };
    let lines = operations(&block);
    assert_eq!(lines[0], "Wide = qkv * Residual");
    assert_eq!(lines[3], "inner = up * Residual");
}

#[test]
fn post_norms_and_scales_take_a_product_of_its_own() {
    let normed = LayerPlan {
        mixer_post_norm: norm(5),
        feed_forward_post_norm: norm(6),
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Part = output * attended",
        "Residual = Residual + 1 * norm5(Part)",
        "inner = up * norm2(Residual)",
        "Part = down * inner",
        "Residual = Residual + 1 * norm6(Part)",
    ];
    assert_eq!(operations(&normed), want);
    let scaled = LayerPlan {
        parallel: true,
        residual_scale: 0.5,
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Part = output * attended",
        "Branch = Residual + 0.5 * Part",
        "inner = up * norm2(Residual)",
        "Part = down * inner",
        "Residual = Branch + 0.5 * Part",
    ];
    assert_eq!(operations(&scaled), want);
}

#[test]
fn experts_are_chosen_multiplied_and_summed() {
    let block = LayerPlan {
        feed_forward: experts(false),
        residual_scale: 0.5,
        ..block()
    };
    let want = [
        "Residual = Residual + 0.5 * Part",
        "[output 200]",
        "routed = norm2(Residual)",
        "experts' gate and up",
        // The router, and half of the experts' gates and ups.
        "[gate_up 912]",
        "experts' down",
        "[down 200]",
        "Residual = Residual + 0.5 * sum",
        "[norm 0]",
    ];
    assert_eq!(recorded(&block)[4..], want);
}

#[test]
fn a_shared_expert_reads_what_the_others_read() {
    let block = LayerPlan {
        feed_forward: experts(true),
        parallel: true,
        ..block()
    };
    let want = [
        "routed = norm2(Residual)",
        "experts' gate and up",
        "experts' down",
        "inner = shared up * routed norm2(Residual)",
        "SharedExpert = shared down * inner",
        "Residual = Branch + 1 * sum",
    ];
    assert_eq!(operations(&block)[3..], want);
}

#[test]
fn experts_of_another_width_have_a_product_before_and_behind_them() {
    let block = LayerPlan {
        feed_forward: FeedForwardPlan::Latent(Box::new(LatentExpertsPlan {
            enter: matrix("shared up"),
            experts: ExpertsPlan {
                own_width: Some(5),
                ..experts_plan(false)
            },
            leave: matrix("shared down"),
            mlp: mlp("up", "down"),
        })),
        ..block()
    };
    let want = [
        "routed = norm2(Residual)",
        "Wide = shared up * norm2(Residual)",
        "experts' gate and up",
        "experts' down",
        "SharedExpert = sum",
        "5 of SharedExpert for shared down",
        "Branch = Residual + shared down * rows",
        "inner = up * norm2(Residual)",
        "Residual = Branch + down * inner",
    ];
    assert_eq!(operations(&block)[3..], want);
}

#[test]
fn the_last_product_of_experts_may_come_with_their_sum() {
    let block = LayerPlan {
        feed_forward: experts(true),
        ..block()
    };
    let recorder = Recorder {
        joins: true,
        ..Recorder::default()
    };
    walk(&recorder, 3, &block).unwrap();
    let want = [
        "routed = norm2(Residual)",
        "experts' gate and up",
        "[gate_up 912]",
        "inner = shared up * routed norm2(Residual)",
        "SharedExpert = shared down * inner",
        "[down 700]",
        "Residual = Residual + 1 * sum of down",
        "[down 200]",
    ];
    assert_eq!(recorder.lines.into_inner()[5..], want);
}

#[test]
fn the_shared_expert_may_be_made_beside_the_others() {
    let block = LayerPlan {
        feed_forward: experts(true),
        ..block()
    };
    let lines = |beside| {
        let recorder = Recorder {
            joins: true,
            beside,
            ..Recorder::default()
        };
        walk(&recorder, 3, &block).unwrap();
        recorder.lines.into_inner()[5..].to_vec()
    };
    let mut want = vec![
        "routed = norm2(Residual)",
        "experts' gate and up",
        "[gate_up 1512]",
        "Residual = Residual + 1 * sum of down",
        "[down 900]",
    ];
    assert_eq!(lines(Beside::Whole), want);
    want[4] = "[down 200]";
    want.splice(
        3..3,
        [
            "inner at 2",
            "SharedExpert = shared down * inner",
            "[down 700]",
        ],
    );
    assert_eq!(lines(Beside::Inner), want);
}

#[test]
fn ranks_sum_what_their_shares_of_experts_make() {
    let ranked = |block: &LayerPlan| {
        let recorder = Recorder {
            is_rank: true,
            ..Recorder::default()
        };
        walk(&recorder, 3, block).unwrap();
        let mut lines = recorder.lines.into_inner();
        lines.retain(|line| !line.starts_with('['));
        lines
    };
    let plain = LayerPlan {
        feed_forward: experts(false),
        ..block()
    };
    let want = [
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Part = output * attended",
        "Residual = Residual + Part of all ranks",
        "routed = norm2(Residual)",
        "experts' gate and up",
        "experts' down",
        "Part = sum",
        "Residual = Residual + Part of all ranks",
    ];
    assert_eq!(ranked(&plain), want);
    let normed = LayerPlan {
        feed_forward: experts(false),
        feed_forward_post_norm: norm(6),
        ..block()
    };
    let want = [
        "Part = sum",
        "Part = Part of all ranks",
        "Residual = Residual + 1 * norm6(Part)",
    ];
    assert_eq!(ranked(&normed)[7..], want);
    let scaled = LayerPlan {
        feed_forward: experts(false),
        residual_scale: 0.5,
        ..block()
    };
    let want = [
        "Part = sum",
        "Part = Part of all ranks",
        "Residual = Residual + 0.5 * Part",
    ];
    assert_eq!(ranked(&scaled)[8..], want);
}

#[test]
fn a_feed_forward_part_and_experts_add_up_beside_the_residual_stream() {
    let norm_of = |number| norm(number).unwrap_or_default();
    let block = LayerPlan {
        feed_forward: FeedForwardPlan::Both(Box::new(BothPlan {
            mlp: mlp("up", "down"),
            mlp_post_norm: norm_of(7),
            experts_norm: norm_of(8),
            experts: experts_plan(false),
            experts_post_norm: norm_of(9),
        })),
        feed_forward_post_norm: norm(6),
        output_scale: 0.25,
        ..block()
    };
    let want = [
        "inner = up * norm2(Residual)",
        "Part = down * inner",
        "Branch = 0 + 1 * norm7(Part)",
        "routed = norm8(Residual)",
        "experts' gate and up",
        "experts' down",
        "Part = sum",
        "Branch = Branch + 1 * norm9(Part)",
        "Residual = 0.25 * (Residual + 1 * norm6(Branch))",
    ];
    assert_eq!(operations(&block)[3..], want);
}

#[test]
fn a_post_norm_of_experts_is_that_of_their_sum() {
    let block = LayerPlan {
        feed_forward: experts(false),
        feed_forward_post_norm: norm(6),
        residual_scale: 0.5,
        ..block()
    };
    let lines = operations(&block);
    let want = ["Part = sum", "Residual = Residual + 0.5 * norm6(Part)"];
    assert_eq!(lines[lines.len() - 2..], want);
}

#[test]
fn what_is_added_last_scales_the_sum() {
    let scaled = LayerPlan {
        output_scale: 0.25,
        ..block()
    };
    let want = [
        "Part = down * inner",
        "Residual = 0.25 * (Residual + 1 * Part)",
    ];
    let lines = operations(&scaled);
    assert_eq!(lines[lines.len() - 2..], want);
    let with_input = LayerPlan {
        input: Some(LayerInputPlan {
            gate: matrix("gate"),
            activation: args::Activation::default(),
            projection: matrix("output"),
            post_norm: norm(7),
        }),
        ..scaled.clone()
    };
    let want = [
        "Residual = Residual + down * inner",
        "own input of 3 by gate",
        "Part = output * let through",
        "Residual = 0.25 * (Residual + 1 * norm7(Part))",
    ];
    let lines = operations(&with_input);
    assert_eq!(lines[lines.len() - 4..], want);
    let recorder = Recorder {
        owns: true,
        ..Recorder::default()
    };
    walk(&recorder, 3, &with_input).unwrap();
    let want = [
        "own part of 3 by gate and output: 0.25 * (Residual + norm7(made))",
        "[down 700]",
    ];
    let lines = recorder.lines.into_inner();
    assert_eq!(lines[lines.len() - 2..], want);
    let mixer_alone = LayerPlan {
        feed_forward: FeedForwardPlan::None,
        ..scaled
    };
    let lines = operations(&mixer_alone);
    assert_eq!(
        lines[lines.len() - 1],
        "Residual = 0.25 * (Residual + 1 * Part)"
    );
}

#[test]
fn several_streams_are_predicted_and_corrected_around_a_layer() {
    let block = LayerPlan {
        mixer_post_norm: norm(5),
        feed_forward_post_norm: norm(6),
        input: Some(LayerInputPlan {
            gate: matrix("gate"),
            activation: args::Activation::default(),
            projection: matrix("output"),
            post_norm: norm(7),
        }),
        streams: Some(Box::new(StreamLayerPlan {
            count: 4,
            active: 0,
            router_norm: Default::default(),
            router: 0,
            predict: 0,
            correct: 0,
            scale: 0,
            left: matrix("shared up"),
            right: matrix("shared down"),
            thin_norm: Default::default(),
        })),
        ..block()
    };
    let want = [
        "4 streams: predicted: Residual",
        "Wide = shared up * norm1(Residual)",
        "5 of Wide for shared down",
        "Branch = shared down * rows",
        "4 streams: Branch = Residual + norm1(Residual) + thin",
        "Wide = qkv * norm1(Residual)",
        "attend in layer 3",
        "Part = output * attended",
        "Residual = 0.70710677 * (Branch + 1 * norm5(Part))",
        "inner = up * norm2(Residual)",
        "Part = down * inner",
        "Residual = Residual + 1 * norm6(Part)",
        "4 streams: corrected by Residual",
        "own input of 3 by gate",
        "Wide = output * let through",
        "4 streams: + norm7(Wide)",
    ];
    assert_eq!(operations(&block), want);
}

#[test]
fn nothing_follows_an_operation_that_fails() {
    let block = LayerPlan {
        feed_forward: experts(true),
        mixer_post_norm: norm(5),
        feed_forward_post_norm: norm(6),
        ..block()
    };
    let all = recorded(&block);
    for fails in 0..all.len() {
        let recorder = Recorder {
            fails: Some(fails),
            ..Recorder::default()
        };
        let error = walk(&recorder, 3, &block).unwrap_err();
        assert_eq!(error.message, all[fails]);
        assert_eq!(recorder.lines.into_inner(), all[..fails]);
    }
}
