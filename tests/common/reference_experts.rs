//! The oracle's mixture of experts: every expert evaluated for every token, in double precision, and
//! then those counted that the token chose.

use super::reference_llama::{Rows, activated, feed_forward, inner, linear, vector};
use emberlm::model::{ExpertGroups, Experts, Scoring};

/// What a mixture makes of its inputs.
pub fn experts(e: &Experts, x: &Rows) -> Rows {
    experts_by(e, &linear(&e.router, x), x)
}

/// The same by the router's scores.
pub fn experts_by(e: &Experts, scores: &Rows, x: &Rows) -> Rows {
    let n_ff = e.n_ff;
    let inner_of = |x: &Rows| match e.fused {
        false => inner(e.activation, e.gate.as_ref(), &e.up, x),
        true => fused_inner(e, x),
    };
    let inner = inner_of(x);
    let hidden = e.down.weight.rows() / e.n_experts;
    let mut out = vec![vec![0.0; hidden]; x.len()];
    let shares: Vec<_> = scores.iter().map(|s| weights(e, s)).collect();
    for expert in 0..e.n_experts {
        // All experts' outputs for this expert's inner values; only its own rows are meant.
        let weighed: Rows = match e.weighs_inputs {
            true => {
                let rows = x.iter().zip(&shares);
                let weigh = |(x, share): (&Vec<f64>, &Vec<f64>)| {
                    x.iter().map(|v| v * share[expert]).collect()
                };
                inner_of(&rows.map(weigh).collect())
            }
            false => Rows::new(),
        };
        let mine: Rows = if e.weighs_inputs { &weighed } else { &inner }
            .iter()
            .map(|row| row[expert * n_ff..(expert + 1) * n_ff].to_vec())
            .collect();
        let y = linear(&e.down, &mine);
        for ((out, y), share) in out.iter_mut().zip(&y).zip(&shares) {
            for (out, y) in out.iter_mut().zip(&y[expert * hidden..]) {
                *out += if e.weighs_inputs {
                    *y
                } else {
                    share[expert] * y
                };
            }
        }
    }
    if let Some(shared) = &e.shared {
        let y = feed_forward(&shared.mlp, x);
        let share: Rows = match &shared.gate {
            Some(gate) => linear(gate, x),
            None => vec![vec![f64::INFINITY]; x.len()],
        };
        for ((out, y), share) in out.iter_mut().zip(&y).zip(&share) {
            for (out, y) in out.iter_mut().zip(y) {
                *out += y / (1.0 + (-share[0]).exp());
            }
        }
    }
    out
}

/// The inner values of all experts, whose gates lie above their ups in one matrix.
fn fused_inner(e: &Experts, x: &Rows) -> Rows {
    let row = |both: Vec<f64>| -> Vec<f64> {
        let of_expert = |both: &[f64]| -> Vec<f64> {
            let (gate, up) = both.split_at(e.n_ff);
            let pairs = gate.iter().zip(up);
            pairs
                .map(|(g, u)| activated(e.activation, *g) * u)
                .collect()
        };
        both.chunks(2 * e.n_ff).flat_map(of_expert).collect()
    };
    linear(&e.up, x).into_iter().map(row).collect()
}

/// The weight of every expert, zero for those that are not chosen.
pub fn weights(e: &Experts, scores: &[f64]) -> Vec<f64> {
    let softmax = |scores: &[f64]| -> Vec<f64> {
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        scores.iter().map(|s| s.exp() / sum).collect()
    };
    let all: Vec<f64> = match e.scoring {
        Scoring::Softmax => softmax(scores),
        Scoring::Sigmoid => scores.iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect(),
        Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => scores.to_vec(),
    };
    let bias = e.selection_bias.as_ref().map(vector);
    let keys: Vec<f64> = (0..all.len())
        .map(|i| all[i] + bias.as_ref().map_or(0.0, |b| b[i]))
        .collect();
    let keys = match e.groups {
        Some(groups) => in_best_groups(&groups, keys),
        None => keys,
    };
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));
    let chosen = &order[..e.n_used];
    let mut values: Vec<f64> = chosen.iter().map(|&i| all[i]).collect();
    match e.scoring {
        Scoring::SoftmaxOfChosen => values = softmax(&values),
        Scoring::SparseMixer { jitter } => {
            for (place, value) in values.iter_mut().enumerate() {
                let left = order[place..].iter().map(|i| scores[*i]);
                let largest = *value;
                let near = left
                    .filter(|s| (largest - s) / s.abs().max(largest) <= 2.0 * f64::from(jitter));
                *value = 1.0 / near.map(|s| (s - largest).exp()).sum::<f64>();
            }
        }
        Scoring::Softmax | Scoring::Sigmoid => {}
    }
    let sum: f64 = if e.normalize {
        values.iter().sum()
    } else {
        1.0
    };
    let mut out = vec![0.0; all.len()];
    for (&i, value) in chosen.iter().zip(values) {
        let own = e.expert_scales.as_ref().map_or(1.0, |s| vector(s)[i]);
        out[i] = value / sum * f64::from(e.weight_scale) * own;
    }
    out
}

/// The keys, those of other groups than the best being the smallest that there are.
fn in_best_groups(groups: &ExpertGroups, keys: Vec<f64>) -> Vec<f64> {
    let each = keys.len() / groups.n_groups;
    let number = |group: usize| -> f64 {
        let mut own = keys[group * each..(group + 1) * each].to_vec();
        own.sort_by(|a, b| b.total_cmp(a));
        own[..groups.n_best].iter().sum()
    };
    let mut order: Vec<usize> = (0..groups.n_groups).collect();
    order.sort_by(|&a, &b| number(b).total_cmp(&number(a)).then(a.cmp(&b)));
    let best = &order[..groups.n_used];
    let key = |(i, key): (usize, &f64)| match best.contains(&(i / each)) {
        true => *key,
        false => f64::NEG_INFINITY,
    };
    keys.iter().enumerate().map(key).collect()
}
