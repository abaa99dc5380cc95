//! DeepSeek V2: latent attention, and experts in all layers but the first.

use super::{Experts, Hybrid, Mix, Plan, Shape, Tensors};
use emberlm::format::Value;
use emberlm::quant::TensorType;

/// What it has that others don't.
#[derive(Debug)]
pub struct Latent {
    /// Elements of a latent vector.
    pub rank: usize,
    /// Elements of a head's plain part of queries, and of the rotated one.
    pub plain: usize,
    /// As said.
    pub rotated: usize,
    /// Elements of a head's values.
    pub value: usize,
    /// First layers, without experts.
    pub dense: usize,
    /// Experts that all tokens go through.
    pub shared: usize,
}

pub(super) const DEEPSEEK_V2_LITE: Shape = Shape {
    name: "deepseek-v2-lite",
    hidden: 2048,
    n_layers: 27,
    n_heads: 16,
    n_kv_heads: 1,
    head_dim: 576,
    n_ff: 10_944,
    n_vocab: 102_400,
    tied: false,
    qkv_bias: false,
    rope_theta: 1e4,
    norm_eps: 1e-6,
    context: 163_840,
    experts: Some(Experts {
        architecture: "deepseek2",
        count: 64,
        used: 6,
        n_ff: 1408,
        shared_ff: 0,
    }),
    hybrid: Some(Hybrid::Latent(&Latent {
        rank: 512,
        plain: 128,
        rotated: 64,
        value: 128,
        dense: 1,
        shared: 2,
    })),
};

impl Latent {
    pub(super) fn keys(&self, shape: &Shape) -> Vec<(&'static str, Value)> {
        let number = |n: usize| Value::U64(n as u64);
        let head = self.plain + self.rotated;
        let values = self.rank;
        debug_assert_eq!(shape.head_dim, self.rank + self.rotated);
        vec![
            ("attention.kv_lora_rank", number(self.rank)),
            ("attention.value_length", number(values)),
            ("attention.key_length_mla", number(head)),
            ("attention.value_length_mla", number(self.value)),
            ("rope.dimension_count", number(self.rotated)),
            ("leading_dense_block_count", number(self.dense)),
            ("expert_shared_count", number(self.shared)),
            ("expert_weights_scale", Value::F32(1.0)),
        ]
    }

    pub(super) fn tensors(&self, shape: &Shape, mix: Mix) -> Vec<Plan> {
        let mut t = Tensors { plans: Vec::new() };
        let (hidden, n_layers, n_heads) = (shape.hidden, shape.n_layers, shape.n_heads);
        let base = mix.base();
        let (count, n_ff) = shape.experts.as_ref().map_or((0, 0), |e| (e.count, e.n_ff));
        t.matrix("token_embd", base, &[hidden, shape.n_vocab]);
        t.matrix("output", mix.output(), &[hidden, shape.n_vocab]);
        t.constant("output_norm", hidden, 1.0);
        for i in 0..n_layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            let sensitive = mix.sensitive(i, n_layers);
            let key = self.rank + self.rotated;
            let q = n_heads * (self.plain + self.rotated);
            t.matrix(&name("attn_q"), base, &[hidden, q]);
            t.matrix(&name("attn_kv_a_mqa"), base, &[hidden, key]);
            t.constant(&name("attn_kv_a_norm"), self.rank, 1.0);
            t.matrix(&name("attn_k_b"), base, &[self.plain, self.rank, n_heads]);
            t.matrix(&name("attn_v_b"), base, &[self.rank, self.value, n_heads]);
            t.matrix(&name("attn_output"), base, &[n_heads * self.value, hidden]);
            t.constant(&name("attn_norm"), hidden, 1.0);
            t.constant(&name("ffn_norm"), hidden, 1.0);
            if i < self.dense {
                t.matrix(&name("ffn_gate"), base, &[hidden, shape.n_ff]);
                t.matrix(&name("ffn_up"), base, &[hidden, shape.n_ff]);
                t.matrix(&name("ffn_down"), sensitive, &[shape.n_ff, hidden]);
                continue;
            }
            let shared = self.shared * n_ff;
            t.matrix(&name("ffn_gate_inp"), TensorType::F32, &[hidden, count]);
            t.matrix(&name("ffn_gate_exps"), base, &[hidden, n_ff, count]);
            t.matrix(&name("ffn_up_exps"), base, &[hidden, n_ff, count]);
            t.matrix(&name("ffn_down_exps"), sensitive, &[n_ff, hidden, count]);
            t.matrix(&name("ffn_gate_shexp"), base, &[hidden, shared]);
            t.matrix(&name("ffn_up_shexp"), base, &[hidden, shared]);
            t.matrix(&name("ffn_down_shexp"), sensitive, &[shared, hidden]);
        }
        t.plans
    }
}
