//! What few networks do to heads, apart from the kernels of attention: before norms and rotation, and to the heads' results. Kernels
//! of their own (`kernels/heads.cu`) do it, so that attention's stay as they are.

use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::jobs::Jobs;
use crate::error::{Result, fail};
use crate::model::Attention;

/// What is done to the heads of a layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadsPlan {
    n_heads: u32,
    /// 0 where keys and values are another layer's.
    n_kv_heads: u32,
    head_dim: u32,
    /// Elements of a value, at most those of a key.
    value_dim: u32,
    /// Where values begin in a row of queries, keys and values,
    values: u32,
    /// and where attention finds them.
    padded_values: u32,
    /// Norms of queries and keys with weights of each head; weight 0: none.
    norms: [args::Norm; 2],
    /// Limit of queries, keys and values; 0: none.
    limit: f32,
    /// Factor on the values.
    value_scale: f32,
    /// Gates that attention's kernels do not apply.
    gates: Option<Gates>,
}

/// How gates of heads' results are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gates {
    /// Where they begin in a row of queries, keys and values.
    at: u32,
    /// One for each head, not for each element.
    per_head: bool,
    /// Factors by their softplus, not by their sigmoid.
    softplus: bool,
}

impl Jobs {
    /// Lays out what is done to the heads of layer `layer`, whose gates begin at `gate` of a row of `rows`
    /// elements, if there are some. `Unsupported` names what the kernels cannot do.
    pub(super) fn heads(
        &mut self,
        layer: usize,
        a: &Attention,
        (rows, gate): (u32, u32),
    ) -> Result<HeadsPlan> {
        let [n_heads, n_kv_heads, head_dim, value_dim] =
            [a.n_heads, a.n_kv_heads, a.head_dim, a.value_dim].map(|n| n as u32);
        let others = [
            (
                a.own_head_norms && a.norm_after_rope,
                "norms with weights of each head behind the rotation are",
            ),
            (
                a.value_norm.is_some() && (value_dim < head_dim || a.value_scale != 1.0),
                "a norm of values that are scaled or shorter than keys is",
            ),
            (
                a.k.weight.same_data(&a.v.weight)
                    && (a.own_head_norms || a.clip.is_some() || a.value_scale != 1.0),
                "a norm with weights of each head, a limit or a factor where keys are values is",
            ),
        ];
        if let Some((_, what)) = others.iter().find(|(is_there, _)| *is_there) {
            fail!(
                Unsupported,
                "layer {layer}: {what} not supported on a GPU, only on a CPU"
            );
        }
        let mut norms = [args::Norm::default(); 2];
        if a.own_head_norms {
            for (to, norm) in norms.iter_mut().zip([&a.q_norm, &a.k_norm]) {
                *to = self.find_norm(norm)?.unwrap_or_default();
            }
        }
        let values = (n_heads + n_kv_heads) * head_dim;
        let per_head = a
            .gate
            .as_ref()
            .is_some_and(|gate| gate.weight.rows() != a.n_heads * a.value_dim);
        // Attention's kernels apply sigmoids of gates of whole heads.
        let usual = !a.softplus_gate && !per_head && value_dim == head_dim;
        Ok(HeadsPlan {
            n_heads,
            n_kv_heads: match a.shares {
                None => n_kv_heads,
                Some(_) => 0,
            },
            head_dim,
            value_dim,
            values,
            padded_values: match value_dim < head_dim {
                // Attention counts in heads.
                true => rows.next_multiple_of(head_dim),
                false => values,
            },
            norms,
            limit: a.clip.unwrap_or(0.0),
            value_scale: a.value_scale,
            gates: (gate != 0 && !usual).then_some(Gates {
                at: gate,
                per_head,
                softplus: a.softplus_gate,
            }),
        })
    }
}

impl HeadsPlan {
    /// The head of a row of queries, keys and values that values begin with, if these do not follow the keys.
    pub fn value_head(&self) -> Option<u32> {
        self.pads().then(|| self.padded_values / self.head_dim)
    }

    /// Elements of a row of queries, keys and values.
    pub fn row_len(&self) -> u32 {
        match self.pads() {
            true => self.padded_values + self.n_kv_heads * self.head_dim,
            false => 0,
        }
    }

    /// Whether values are shorter than keys.
    fn pads(&self) -> bool {
        self.value_dim < self.head_dim
    }

    /// Whether attention's results go through [`Kernels::finish_heads`](crate::backend::cuda::launch::kernels::Kernels::finish_heads).
    pub fn finishes(&self) -> bool {
        self.pads() || self.gates.is_some()
    }

    /// Elements of the heads' results.
    pub fn result_len(&self) -> u32 {
        self.n_heads * self.value_dim
    }

    /// The arguments that make rows of queries, keys and values what attention's kernels take, if they are not.
    pub fn ready(&self, qkv: Span) -> Option<args::ReadyHeads> {
        let is_normed = self.norms.iter().any(|norm| norm.weight != 0);
        let has_values = self.n_kv_heads > 0 && (self.pads() || self.value_scale != 1.0);
        (is_normed || has_values || self.limit != 0.0).then(|| args::ReadyHeads {
            qkv: qkv.address,
            q_norm: self.norms[0],
            k_norm: self.norms[1],
            stride: qkv.stride,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            values: self.values,
            padded_values: self.padded_values,
            limit: self.limit,
            value_scale: self.value_scale,
            padding: 0,
        })
    }

    /// The arguments that make the output product's input of results at `x`, if these are not it: where the queries, which are done with,
    /// were.
    pub fn finish(&self, x: Span, qkv: Span) -> Option<args::FinishHeads> {
        self.finishes().then(|| args::FinishHeads {
            x: x.address,
            gate: self.gates.map_or(0, |gates| qkv.from(gates.at).address),
            out: qkv.address,
            x_stride: x.stride,
            gate_stride: qkv.stride,
            out_stride: qkv.stride,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            per_head: u32::from(self.gates.is_some_and(|gates| gates.per_head)),
            softplus: u32::from(self.gates.is_some_and(|gates| gates.softplus)),
        })
    }
}
