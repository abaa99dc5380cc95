//! Gemma 4 with inputs of layers.

use super::{Hybrid, Mix, Plan, Shape, Tensors};
use emberlm::format::{Array, Value};

/// What it has that others don't.
#[derive(Debug)]
pub struct Gemma4 {
    /// Elements of a head of layers without a window, which every `interval`-th is.
    pub global_dim: usize,
    /// Layers from one without a window to the next.
    pub interval: usize,
    /// The window of the others.
    pub window: usize,
    /// Last layers, which read keys and values of earlier ones.
    pub shared: usize,
    /// Elements of a layer's own input.
    pub input: usize,
}

pub(super) const E4B: Shape = Shape {
    name: "gemma-4-e4b",
    hidden: 2560,
    n_layers: 42,
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 256,
    n_ff: 10_240,
    n_vocab: 262_144,
    tied: true,
    qkv_bias: false,
    rope_theta: 1e6,
    norm_eps: 1e-6,
    context: 131_072,
    experts: None,
    hybrid: Some(Hybrid::Gemma4(&Gemma4 {
        global_dim: 512,
        interval: 6,
        window: 512,
        shared: 18,
        input: 256,
    })),
};

impl Gemma4 {
    fn is_global(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.interval)
    }

    pub(super) fn keys(&self, shape: &Shape) -> Vec<(&'static str, Value)> {
        let number = |n: usize| Value::U64(n as u64);
        let windowed = (0..shape.n_layers).map(|i| !self.is_global(i));
        vec![
            ("attention.key_length", number(self.global_dim)),
            ("attention.value_length", number(self.global_dim)),
            ("attention.key_length_swa", number(shape.head_dim)),
            ("attention.value_length_swa", number(shape.head_dim)),
            ("attention.sliding_window", number(self.window)),
            (
                "attention.sliding_window_pattern",
                Value::Array(Array::Bool(windowed.collect())),
            ),
            ("attention.shared_kv_layers", number(self.shared)),
            ("embedding_length_per_layer_input", number(self.input)),
            ("rope.dimension_count", number(self.global_dim)),
            ("rope.dimension_count_swa", number(shape.head_dim)),
            ("rope.freq_base_swa", Value::F32(1e4)),
            ("final_logit_softcapping", Value::F32(30.0)),
        ]
    }

    pub(super) fn tensors(&self, shape: &Shape, mix: Mix) -> Vec<Plan> {
        let mut t = Tensors { plans: Vec::new() };
        let (hidden, n_layers, n_vocab) = (shape.hidden, shape.n_layers, shape.n_vocab);
        let (base, all) = (mix.base(), n_layers * self.input);
        t.matrix("token_embd", mix.output(), &[hidden, n_vocab]);
        t.matrix("per_layer_token_embd", base, &[all, n_vocab]);
        t.matrix("per_layer_model_proj", base, &[hidden, all]);
        t.constant("per_layer_proj_norm", self.input, 1.0);
        t.constant("rope_freqs", self.global_dim / 2, 1.0);
        t.constant("output_norm", hidden, 1.0);
        for i in 0..n_layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            let sensitive = mix.sensitive(i, n_layers);
            let dim = match self.is_global(i) {
                true => self.global_dim,
                false => shape.head_dim,
            };
            let (q, kv) = (shape.n_heads * dim, shape.n_kv_heads * dim);
            t.matrix(&name("attn_q"), base, &[hidden, q]);
            t.constant(&name("attn_q_norm"), dim, 1.0);
            if i < n_layers - self.shared {
                t.matrix(&name("attn_k"), base, &[hidden, kv]);
                t.matrix(&name("attn_v"), sensitive, &[hidden, kv]);
                t.constant(&name("attn_k_norm"), dim, 1.0);
            }
            t.matrix(&name("attn_output"), base, &[q, hidden]);
            t.matrix(&name("ffn_gate"), base, &[hidden, shape.n_ff]);
            t.matrix(&name("ffn_up"), base, &[hidden, shape.n_ff]);
            t.matrix(&name("ffn_down"), sensitive, &[shape.n_ff, hidden]);
            t.matrix(&name("inp_gate"), base, &[hidden, self.input]);
            t.matrix(&name("proj"), base, &[self.input, hidden]);
            let norms = [
                "attn_norm",
                "post_attention_norm",
                "ffn_norm",
                "post_ffw_norm",
                "post_norm",
            ];
            for norm in norms {
                t.constant(&name(norm), hidden, 1.0);
            }
            t.constant(&name("layer_output_scale"), 1, 0.5);
        }
        t.plans
    }
}
