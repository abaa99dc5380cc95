//! Mixtures of experts: their place in the plan, and the memory that they work in.

mod places;

pub use places::{ChunkExperts, StepExperts};

use super::jobs::Jobs;
use crate::backend::cuda::launch::args::{MAX_EXPERTS, MAX_USED};
use crate::backend::cuda::launch::experts::{AdaptedExperts, ExpertsPlan, MAX_GROUPS, Router};
use crate::backend::cuda::launch::feed_forward::activation;
use crate::error::{Result, fail};
use crate::model::{Experts, Linear, Scoring};

impl Jobs {
    /// Lays a mixture out. `Unsupported` names what the kernels cannot do.
    pub fn experts(&mut self, e: &Experts) -> Result<ExpertsPlan> {
        if e.n_experts > MAX_EXPERTS as usize || e.n_used > MAX_USED as usize {
            fail!(
                Unsupported,
                "tensor {}: {} of {} experts; the GPU takes {MAX_USED} of {MAX_EXPERTS} at most",
                e.router.weight.name,
                e.n_used,
                e.n_experts
            );
        }
        if let Some(groups) = e.groups
            && groups.n_groups > MAX_GROUPS
        {
            fail!(
                Unsupported,
                "tensor {}: {} groups of experts; the GPU takes {MAX_GROUPS} at most",
                e.router.weight.name,
                groups.n_groups
            );
        }
        if e.weighs_inputs {
            // Factors come behind the products, where biases are in already.
            let parts = [Some(&e.up), e.gate.as_ref(), Some(&e.down)];
            if let Some(bias) = parts.into_iter().flatten().find_map(|p| p.bias.as_ref()) {
                fail!(
                    Unsupported,
                    "tensor {}: biases of experts whose weights are factors on what they read are not supported on a GPU; they are on a CPU",
                    bias.name
                );
            }
        }
        let mut scores = vec![&e.router];
        scores.extend(e.shared.as_ref().and_then(|s| s.gate.as_ref()));
        let (gate, up) = match e.fused {
            false => {
                let gate = e.gate.as_ref().map(|g| self.fuse(&[g])).transpose()?;
                (gate, self.fuse(&[&e.up])?)
            }
            true => {
                let gate = self.fuse(&part_of_each(e, 0).iter().collect::<Vec<_>>())?;
                let up = part_of_each(e, e.n_ff);
                (Some(gate), self.fuse(&up.iter().collect::<Vec<_>>())?)
            }
        };
        Ok(ExpertsPlan {
            n_experts: e.n_experts as u32,
            n_used: e.n_used as u32,
            own_width: None,
            router: self.router(&scores)?,
            router_norm: None,
            selection_bias: self.tensor(e.selection_bias.as_ref())?,
            expert_scales: self.tensor(e.expert_scales.as_ref())?,
            scoring: match e.scoring {
                Scoring::Softmax => 0,
                // SparseMixer leaves scores to the sigmoid.
                Scoring::Sigmoid | Scoring::SparseMixer { .. } => 1,
                Scoring::SoftmaxOfChosen => 2,
            },
            jitter: match e.scoring {
                Scoring::SparseMixer { jitter } => Some(jitter),
                _ => None,
            },
            groups: match e.groups {
                Some(g) => [g.n_groups as u8, g.n_used as u8, g.n_best as u8],
                None => [0; 3],
            },
            normalize: e.normalize,
            weight_scale: e.weight_scale,
            weighs_inputs: e.weighs_inputs,
            gate,
            up,
            down: self.fuse(&[&e.down])?,
            n_ff: e.n_ff as u32,
            activation: activation(e.activation)?,
            shared: match &e.shared {
                Some(shared) => Some(self.mlp(&shared.mlp)?),
                None => None,
            },
            sum_bias: self.tensor(e.sum_bias.as_ref())?,
            adapted: self.adapted_experts(e),
        })
    }

    fn adapted_experts(&mut self, e: &Experts) -> AdaptedExperts {
        let (linears, n_ff) = (&mut self.linears, e.n_ff);
        let mut row = |linear: &Linear| linears.find_apart(linear, 1, 0..linear.weight.rows());
        let shared = e.shared.as_ref().and_then(|shared| shared.gate.as_ref());
        let scores = [row(&e.router), shared.and_then(row)];
        let mut of = |linear: &Linear, rows| linears.find_apart(linear, e.n_experts, rows);
        let up = if e.fused { n_ff..2 * n_ff } else { 0..n_ff };
        AdaptedExperts {
            scores,
            gate: e.gate.as_ref().and_then(|gate| of(gate, 0..n_ff)),
            up: of(&e.up, up),
            down: of(&e.down, 0..e.down.weight.rows() / e.n_experts),
        }
    }

    /// Rows of scores, one below the other.
    fn router(&mut self, parts: &[&Linear]) -> Result<Router> {
        let width = parts[0].weight.row_len().next_multiple_of(32);
        let rows: usize = parts.iter().map(|p| p.weight.rows()).sum();
        Ok(Router {
            address: self.rows(parts.iter().map(|p| &p.weight), width),
            bias: self.biases(parts)?,
            rows: rows as u32,
            width: width as u32,
        })
    }
}

/// Of each expert's rows of a fused matrix `n_ff`, from `first` on.
fn part_of_each(e: &Experts, first: usize) -> Vec<Linear> {
    let starts = (0..e.n_experts).map(|expert| 2 * e.n_ff * expert + first);
    let part = |row: usize| Linear {
        weight: e.up.weight.row_range(row..row + e.n_ff),
        bias: None,
    };
    starts.map(part).collect()
}
