//! Which experts a token goes through, and how much each counts.

use crate::model::{ExpertGroups, Scoring};

/// How scores become chosen experts and their weights.
pub(in super::super) struct Routing {
    pub n_experts: usize,
    pub n_used: usize,
    pub scoring: Scoring,
    /// Added while choosing only.
    pub selection_bias: Option<Vec<f32>>,
    pub groups: Option<ExpertGroups>,
    pub normalize: bool,
    pub weight_scale: f32,
    /// One more factor on the weight of each expert.
    pub expert_scales: Option<Vec<f32>>,
}

fn sigmoid(score: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(score)).exp())
}

impl Routing {
    /// Writes the `n_used` experts chosen by `scores`, in ascending order, and their weights.
    /// `keys` is scratch memory as long as the scores.
    ///
    /// Plain code in double precision, so that the bits are the same on every instruction set. A
    /// score that is not a number makes all weights so.
    pub fn choose(&self, scores: &[f32], keys: &mut [f32], ids: &mut [u32], weights: &mut [f32]) {
        let n = self.n_experts;
        assert!(scores.len() == n && keys.len() == n);
        assert!(ids.len() == self.n_used && weights.len() == self.n_used && self.n_used <= n);
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // A share of all, where one expert's score is so large that the others have none.
        let exp = |score: f32| {
            if score == largest {
                1.0
            } else {
                (f64::from(score) - f64::from(largest)).exp()
            }
        };
        let sum: f64 = match self.scoring {
            Scoring::Softmax => scores.iter().map(|s| exp(*s)).sum(),
            Scoring::Sigmoid | Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => 1.0,
        };
        let weight = |score: f32| match self.scoring {
            Scoring::Softmax => exp(score) / sum,
            Scoring::Sigmoid => sigmoid(score),
            Scoring::SoftmaxOfChosen | Scoring::SparseMixer { .. } => f64::from(score),
        };
        // The weights rise with the scores, so without a bias the scores do for choosing, unless sums
        // of them matter.
        let sums = self.groups.is_some_and(|groups| groups.n_best > 1);
        match &self.selection_bias {
            None if sums => {
                for (key, score) in keys.iter_mut().zip(scores) {
                    *key = weight(*score) as f32;
                }
            }
            None => keys.copy_from_slice(scores),
            Some(bias) => {
                for ((key, score), bias) in keys.iter_mut().zip(scores).zip(bias) {
                    *key = weight(*score) as f32 + bias;
                }
            }
        }
        if let Some(groups) = &self.groups {
            keep_best_groups(groups, keys);
        }
        best(keys, ids);
        ids.sort_unstable();
        let score = |id: u32| scores[id as usize];
        // Before the factor: of softmax over the chosen, or the weights as they are.
        let chosen = |id: u32| match self.scoring {
            Scoring::SoftmaxOfChosen => exp(score(id)),
            Scoring::SparseMixer { jitter } => {
                let before = ids.iter().copied().find(|other| {
                    score(*other) > score(id) || (score(*other) == score(id) && *other < id)
                });
                sparse_mixer(scores, before, jitter)
            }
            _ => weight(score(id)),
        };
        let total: f64 = match (self.scoring, self.normalize) {
            (Scoring::SoftmaxOfChosen, _) | (_, true) => ids.iter().map(|id| chosen(*id)).sum(),
            _ => 1.0,
        };
        // Weights that are all zero stay so.
        let total = if total == 0.0 { 1.0 } else { total };
        let factor = f64::from(self.weight_scale) / total;
        let broken = scores.iter().any(|s| s.is_nan());
        for (to, id) in weights.iter_mut().zip(ids.iter()) {
            *to = if broken {
                f32::NAN
            } else {
                let scales = self.expert_scales.as_ref();
                let own = scales.map_or(1.0, |scales| f64::from(scales[*id as usize]));
                (chosen(*id) * factor * own) as f32
            };
        }
    }
}

/// The softmax of the largest score over those near it, all without that of the expert `taken`.
fn sparse_mixer(scores: &[f32], taken: Option<u32>, jitter: f32) -> f64 {
    let others = scores.iter().zip(0..);
    let others = others.filter(|(_, id)| Some(*id) != taken).map(|(s, _)| *s);
    let largest = others.clone().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = others
        .map(|score| match (largest - score) / score.abs().max(largest) {
            _ if score == largest => 1.0,
            distance if distance > 2.0 * jitter => 0.0,
            _ => (f64::from(score) - f64::from(largest)).exp(),
        })
        .sum();
    1.0 / sum
}

/// Makes the keys of all groups but the best as small as can be; of equal groups, the first are
/// better.
fn keep_best_groups(groups: &ExpertGroups, keys: &mut [f32]) {
    let each = keys.len() / groups.n_groups;
    let number = |group: usize, keys: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for key in &keys[group * each..(group + 1) * each] {
            if *key > first {
                (first, second) = (*key, first);
            } else if *key > second {
                second = *key;
            }
        }
        match groups.n_best {
            1 => first,
            _ => first + second,
        }
    };
    // A group's place is the number of those that are better. Those before have lost their keys only
    // if so many are better than they are.
    for group in (0..groups.n_groups).rev() {
        let own = number(group, keys);
        let better = |other: usize| {
            let number = number(other, keys);
            number > own || (number == own && other < group)
        };
        let before = (0..groups.n_groups).filter(|o| *o != group && better(*o));
        if before.count() >= groups.n_used {
            keys[group * each..(group + 1) * each].fill(f32::NEG_INFINITY);
        }
    }
}

/// Indices of the largest keys, of equal ones the smaller first. Takes the keys apart.
fn best(keys: &mut [f32], ids: &mut [u32]) {
    for key in keys.iter_mut().filter(|k| k.is_nan()) {
        *key = f32::NEG_INFINITY;
    }
    for id in ids {
        let mut at: Option<usize> = None;
        for (i, key) in keys.iter().enumerate() {
            // Those taken are no numbers any more.
            if !key.is_nan() && at.is_none_or(|at| *key > keys[at]) {
                at = Some(i);
            }
        }
        let at = at.unwrap_or(0);
        keys[at] = f32::NAN;
        *id = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(scoring: Scoring, n_experts: usize, n_used: usize) -> Routing {
        Routing {
            n_experts,
            n_used,
            scoring,
            selection_bias: None,
            groups: None,
            normalize: false,
            weight_scale: 1.0,
            expert_scales: None,
        }
    }

    fn choose(routing: &Routing, scores: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let mut keys = vec![0.0; scores.len()];
        let mut ids = vec![u32::MAX; routing.n_used];
        let mut weights = vec![0.0; routing.n_used];
        routing.choose(scores, &mut keys, &mut ids, &mut weights);
        (ids, weights)
    }

    #[test]
    fn softmax_is_over_all_or_over_the_chosen() {
        let scores = [0.0, 3f32.ln(), 2f32.ln(), 4f32.ln()];
        let (ids, weights) = choose(&routing(Scoring::Softmax, 4, 2), &scores);
        assert_eq!(ids, [1, 3]);
        assert!((weights[0] - 0.3).abs() < 1e-6 && (weights[1] - 0.4).abs() < 1e-6);
        let normalized = Routing {
            normalize: true,
            weight_scale: 2.0,
            ..routing(Scoring::Softmax, 4, 2)
        };
        let (_, weights) = choose(&normalized, &scores);
        assert!((weights[0] - 6.0 / 7.0).abs() < 1e-6 && (weights[1] - 8.0 / 7.0).abs() < 1e-6);
        let (ids, weights) = choose(&routing(Scoring::SoftmaxOfChosen, 4, 3), &scores);
        assert_eq!(ids, [1, 2, 3]);
        assert!((weights[1] - 2.0 / 9.0).abs() < 1e-6);
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn sparse_mixers_share_among_near_scores() {
        let routing = routing(Scoring::SparseMixer { jitter: 0.05 }, 5, 2);
        let share = |near: &[f32]| 1.0 / near.iter().map(|d| (-d).exp()).sum::<f32>();
        let close = |found: Vec<f32>, expected: [f32; 2]| {
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
            assert!(
                found.iter().zip(&expected).all(near),
                "{found:?} {expected:?}"
            );
        };
        // Within a tenth of the largest are the second and the third; of the second, only the third.
        let (ids, weights) = choose(&routing, &[1.0, 10.0, 9.25, 9.5, -10.0]);
        assert_eq!(ids, [1, 3]);
        close(weights, [share(&[0.0, 0.75, 0.5]), share(&[0.0, 0.25])]);
        // Shares of what is below zero are of itself.
        let (ids, weights) = choose(&routing, &[-8.0, -1.0, -1.05, -4.0, -4.5]);
        assert_eq!(ids, [1, 2]);
        close(weights, [share(&[0.0, 0.05]), 1.0]);
        let (ids, weights) = choose(&routing, &[2.0, 2.0, 0.0, 2.0, 0.0]);
        assert_eq!(ids, [0, 1]);
        close(weights, [1.0 / 3.0, 0.5]);
    }

    #[test]
    fn of_equal_scores_the_smaller_index_wins() {
        let (ids, weights) = choose(&routing(Scoring::Sigmoid, 5, 3), &[0.0; 5]);
        assert_eq!((ids, weights), (vec![0, 1, 2], vec![0.5; 3]));
        let (ids, _) = choose(&routing(Scoring::Softmax, 4, 2), &[1.0, 2.0, 1.0, 1.0]);
        assert_eq!(ids, [0, 1]);
        let (ids, _) = choose(&routing(Scoring::Softmax, 1, 1), &[-7.0]);
        assert_eq!(ids, [0]);
    }

    #[test]
    fn a_selection_bias_changes_the_choice_and_not_the_weights() {
        let biased = Routing {
            selection_bias: Some(vec![0.0, 0.0, 0.9]),
            ..routing(Scoring::Sigmoid, 3, 1)
        };
        let (ids, weights) = choose(&biased, &[1.0, 0.5, -1.0]);
        assert_eq!(ids, [2]);
        assert!((weights[0] - (1.0 / (1.0 + 1f32.exp()))).abs() < 1e-6);
    }

    #[test]
    fn scores_beyond_all_bounds_give_valid_experts() {
        for scoring in [
            Scoring::Softmax,
            Scoring::Sigmoid,
            Scoring::SoftmaxOfChosen,
            Scoring::SparseMixer { jitter: 0.01 },
        ] {
            for normalize in [false, true] {
                let routing = Routing {
                    normalize,
                    ..routing(scoring, 4, 2)
                };
                let (ids, weights) = choose(&routing, &[f32::INFINITY, 1e30, -1e30, 0.0]);
                assert_eq!(ids, [0, 1], "{scoring:?}");
                assert!(weights.iter().all(|w| w.is_finite()), "{weights:?}");
                let (ids, weights) = choose(&routing, &[f32::NEG_INFINITY; 4]);
                assert_eq!(ids, [0, 1]);
                assert!(weights.iter().all(|w| w.is_finite()), "{weights:?}");
                let (ids, weights) = choose(&routing, &[f32::NAN, 1.0, 2.0, f32::NAN]);
                assert!(ids.iter().all(|id| *id < 4) && ids[0] < ids[1]);
                assert!(weights.iter().all(|w| w.is_nan()));
            }
        }
    }
}
