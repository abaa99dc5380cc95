//! Falcon Mamba: the first Mamba in all layers, and nothing else.

use super::{Fill, Hybrid, Mix, Plan, Shape, Tensors};
use emberlm::format::Value;

/// What it has that others don't.
#[derive(Debug)]
pub struct Mamba {
    /// Channels of the recurrence.
    pub inner: usize,
    /// Numbers of a channel.
    pub state: usize,
    /// Elements of a time step's short form.
    pub rank: usize,
    /// Positions that a convolution sees.
    pub width: usize,
}

pub(super) const FALCON_MAMBA_7B: Shape = Shape {
    name: "falcon-mamba-7b",
    hidden: 4096,
    n_layers: 64,
    n_heads: 0,
    n_kv_heads: 0,
    head_dim: 0,
    n_ff: 0,
    n_vocab: 65_024,
    tied: false,
    qkv_bias: false,
    rope_theta: 1e4,
    norm_eps: 1e-5,
    context: 1 << 20,
    experts: None,
    hybrid: Some(Hybrid::Mamba(&Mamba {
        inner: 8192,
        state: 16,
        rank: 256,
        width: 4,
    })),
};

impl Mamba {
    pub(super) fn keys(&self) -> Vec<(&'static str, Value)> {
        let number = |n: usize| Value::U64(n as u64);
        vec![
            ("ssm.conv_kernel", number(self.width)),
            ("ssm.inner_size", number(self.inner)),
            ("ssm.state_size", number(self.state)),
            ("ssm.time_step_rank", number(self.rank)),
            ("ssm.dt_b_c_rms", Value::Bool(true)),
        ]
    }

    pub(super) fn tensors(&self, shape: &Shape, mix: Mix) -> Vec<Plan> {
        let mut t = Tensors { plans: Vec::new() };
        let (hidden, inner, base) = (shape.hidden, self.inner, mix.base());
        t.matrix("token_embd", base, &[hidden, shape.n_vocab]);
        t.matrix("output", mix.output(), &[hidden, shape.n_vocab]);
        t.constant("output_norm", hidden, 1.0);
        for i in 0..shape.n_layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            let sensitive = mix.sensitive(i, shape.n_layers);
            t.constant(&name("attn_norm"), hidden, 1.0);
            t.matrix(&name("ssm_in"), base, &[hidden, 2 * inner]);
            let short = self.rank + 2 * self.state;
            t.matrix(&name("ssm_x"), base, &[inner, short]);
            t.matrix(&name("ssm_dt"), base, &[self.rank, inner]);
            t.matrix(&name("ssm_out"), sensitive, &[inner, hidden]);
            let mut numbers =
                |part: &str, dims: &[usize], fill: Fill| t.numbers(name(part), dims, fill);
            numbers("ssm_conv1d.weight", &[self.width, inner], Fill::Weights);
            numbers("ssm_conv1d.bias", &[inner], Fill::Bias);
            numbers("ssm_dt.bias", &[inner], Fill::Bias);
            numbers("ssm_a", &[self.state, inner], Fill::Constant(-1.0));
            numbers("ssm_d", &[inner], Fill::Constant(1.0));
        }
        t.plans
    }
}
