//! Networks that are rows of layers of Mamba 2, attention and feed-forward parts: Mamba 2 itself, Nemotron-H, and
//! Falcon-H1, whose layers have all three.

use super::{Fill, Hybrid, Mix, Plan, Shape, Tensors};
use emberlm::format::{Array, Value};

/// What they have that others don't.
#[derive(Debug)]
pub struct Layers {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// A letter for each layer: `M` for Mamba 2, `*` for attention, `-` for a feed-forward part, `H` for all of these.
    pub pattern: &'static [u8],
    /// Heads of Mamba 2.
    pub heads: usize,
    /// Groups of heads that share keys and queries.
    pub groups: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head's state, for each of its own.
    pub state: usize,
    /// Positions that a convolution sees.
    pub width: usize,
    /// Mamba 2 has a norm before its output.
    pub normed: bool,
    /// Feed-forward parts have gates.
    pub gated: bool,
}

pub(super) const MAMBA2_2_7B: Shape = Shape {
    name: "mamba2-2.7b",
    hidden: 2560,
    n_layers: 64,
    n_heads: 0,
    n_kv_heads: 0,
    head_dim: 0,
    n_ff: 0,
    n_vocab: 50_288,
    tied: true,
    qkv_bias: false,
    rope_theta: 1e4,
    norm_eps: 1e-5,
    context: 1 << 20,
    experts: None,
    hybrid: Some(Hybrid::Layers(&Layers {
        architecture: "mamba2",
        pattern: &[b'M'; 64],
        heads: 80,
        groups: 1,
        head_dim: 64,
        state: 128,
        width: 4,
        normed: true,
        gated: false,
    })),
};

pub(super) const NEMOTRON_NANO_9B: Shape = Shape {
    name: "nemotron-nano-9b-v2",
    hidden: 4480,
    n_layers: 56,
    n_heads: 40,
    n_kv_heads: 8,
    head_dim: 128,
    n_ff: 15_680,
    n_vocab: 131_072,
    tied: false,
    qkv_bias: false,
    rope_theta: 1e4,
    norm_eps: 1e-5,
    context: 131_072,
    experts: None,
    hybrid: Some(Hybrid::Layers(&Layers {
        architecture: "nemotron_h",
        pattern: b"M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        heads: 128,
        groups: 8,
        head_dim: 80,
        state: 128,
        width: 4,
        normed: true,
        gated: false,
    })),
};

pub(super) const FALCON_H1_1_5B: Shape = Shape {
    name: "falcon-h1-1.5b",
    hidden: 2048,
    n_layers: 24,
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 128,
    n_ff: 4096,
    n_vocab: 65_536,
    tied: false,
    qkv_bias: false,
    rope_theta: 1e11,
    norm_eps: 1e-5,
    context: 131_072,
    experts: None,
    hybrid: Some(Hybrid::Layers(&Layers {
        architecture: "falcon-h1",
        pattern: &[b'H'; 24],
        heads: 48,
        groups: 1,
        head_dim: 64,
        state: 256,
        width: 4,
        normed: false,
        gated: true,
    })),
};

impl Layers {
    pub(super) fn attends(&self, layer: usize) -> bool {
        matches!(self.pattern[layer], b'*' | b'H')
    }

    fn is_recurrent(&self, layer: usize) -> bool {
        matches!(self.pattern[layer], b'M' | b'H')
    }

    fn feeds(&self, layer: usize) -> bool {
        matches!(self.pattern[layer], b'-' | b'H')
    }

    pub(super) fn keys(&self, shape: &Shape) -> Vec<(&'static str, Value)> {
        let number = |n: usize| Value::U64(n as u64);
        let each = |n: usize, has: &dyn Fn(usize) -> bool| {
            let all = (0..shape.n_layers).map(|i| if has(i) { n as i64 } else { 0 });
            Value::Array(Array::I64(all.collect()))
        };
        let mut keys = vec![
            ("ssm.conv_kernel", number(self.width)),
            ("ssm.state_size", number(self.state)),
            ("ssm.group_count", number(self.groups)),
            ("ssm.time_step_rank", number(self.heads)),
            ("ssm.inner_size", number(self.heads * self.head_dim)),
        ];
        if self.architecture == "nemotron_h" {
            let kv_heads = each(shape.n_kv_heads, &|i| self.attends(i));
            keys.push(("attention.head_count_kv", kv_heads));
            let widths = each(shape.n_ff, &|i| self.feeds(i));
            keys.push(("feed_forward_length", widths));
            // llama.cpp needs it beside that of the other kind of norm.
            let eps = Value::F32(shape.norm_eps);
            keys.push(("attention.layer_norm_epsilon", eps));
        }
        keys
    }

    pub(super) fn tensors(&self, shape: &Shape, mix: Mix) -> Vec<Plan> {
        let mut t = Tensors { plans: Vec::new() };
        let (hidden, base) = (shape.hidden, mix.base());
        let (inner, heads) = (self.heads * self.head_dim, self.heads);
        let channels = inner + 2 * self.groups * self.state;
        let embedding = if shape.tied { mix.output() } else { base };
        t.matrix("token_embd", embedding, &[hidden, shape.n_vocab]);
        if !shape.tied {
            t.matrix("output", mix.output(), &[hidden, shape.n_vocab]);
        }
        t.constant("output_norm", hidden, 1.0);
        for i in 0..shape.n_layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            let sensitive = mix.sensitive(i, shape.n_layers);
            t.constant(&name("attn_norm"), hidden, 1.0);
            if self.attends(i) {
                let (q, kv) = (
                    shape.n_heads * shape.head_dim,
                    shape.n_kv_heads * shape.head_dim,
                );
                t.matrix(&name("attn_q"), base, &[hidden, q]);
                t.matrix(&name("attn_k"), base, &[hidden, kv]);
                t.matrix(&name("attn_v"), sensitive, &[hidden, kv]);
                t.matrix(&name("attn_output"), base, &[q, hidden]);
            }
            if self.is_recurrent(i) {
                t.matrix(&name("ssm_in"), base, &[hidden, inner + channels + heads]);
                t.matrix(&name("ssm_out"), base, &[inner, hidden]);
                let mut numbers =
                    |part: &str, dims: &[usize], fill: Fill| t.numbers(name(part), dims, fill);
                numbers("ssm_conv1d.weight", &[self.width, channels], Fill::Weights);
                numbers("ssm_conv1d.bias", &[channels], Fill::Bias);
                numbers("ssm_dt.bias", &[heads], Fill::Bias);
                numbers("ssm_a", &[1, heads], Fill::Constant(-0.1));
                numbers("ssm_d", &[1, heads], Fill::Constant(1.0));
                if self.normed {
                    let norm = [inner / self.groups, self.groups];
                    numbers("ssm_norm.weight", &norm, Fill::Constant(1.0));
                }
            }
            if self.feeds(i) {
                if self.pattern[i] == b'H' {
                    // Without an end, as llama.cpp reads it.
                    t.numbers(name("ffn_norm"), &[hidden], Fill::Constant(1.0));
                }
                if self.gated {
                    t.matrix(&name("ffn_gate"), base, &[hidden, shape.n_ff]);
                }
                t.matrix(&name("ffn_up"), base, &[hidden, shape.n_ff]);
                t.matrix(&name("ffn_down"), sensitive, &[shape.n_ff, hidden]);
            }
        }
        t.plans
    }
}
