//! What drafts cost and save in conversations whose steps, drafts and readings of prompts take times that are made up.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Seconds: of a step, what each draft adds to one, of asking for drafts, of making each, and of reading a token of a prompt.
#[derive(Clone, Copy, Debug)]
struct Costs {
    step: f32,
    row: f32,
    ask: f32,
    draft: f32,
    reading: f32,
}

/// A model small enough for its draft model to be hardly faster, and one that is much slower than its own.
const SMALL: Costs = Costs {
    step: 1e-3,
    row: 0.3e-3,
    ask: 0.0,
    draft: 0.5e-3,
    reading: 0.05e-3,
};
const LARGE: Costs = Costs {
    step: 1.0,
    row: 0.05,
    ask: 0.02,
    draft: 0.05,
    reading: 0.005,
};

/// The demo model and its draft model on a GPU.
const DEMO: Costs = Costs {
    step: 0.14e-3,
    row: 0.015e-3,
    ask: 0.07e-3,
    draft: 0.05e-3,
    reading: 0.02e-3,
};

/// Lacks as many tokens as it is told.
struct Reader(Arc<AtomicUsize>);

impl DraftSource for Reader {
    fn lacks(&self, _: &DraftContext<'_>) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn look(&mut self, _: &DraftContext<'_>) -> Result<Option<usize>> {
        Ok(Some(0))
    }

    fn draft(&mut self, _: &DraftContext<'_>, _: &mut [u32]) -> Result<usize> {
        fail!(Internal, "its drafts are made up")
    }

    fn fork(&mut self, _: &Session) -> Result<Box<dyn DraftSource>> {
        fail!(Internal, "it has no forks")
    }
}

/// Times are noisy: a step takes so much of its time on average.
const NOISE: f32 = 1.05;
/// What the first drafts take besides, in steps.
const FIRST_DRAFTS: f32 = 30.0;

/// Time of answers of so many tokens to prompts of so many, over that without drafts. A draft is right with a probability; the
/// one that ends the answer always is if the source knows the `ends` of answers. The first drafts, which make something ready, and
/// the first two readings, which show what a reading takes, take no time here.
fn slowdown(costs: Costs, prompt: usize, answers: &[usize], right: f32, ends: bool) -> f32 {
    let lacks = Arc::new(AtomicUsize::new(0));
    let source = Box::new(Reader(lacks.clone()));
    let mut speculation = Speculation::new(
        source,
        [].into(),
        DraftOptions {
            most: 16,
            always: false,
        },
    );
    let context = DraftContext {
        tokens: &[],
        sampling: &Sampling::GREEDY,
        ends: &[],
    };
    let mut random = 1u32;
    let mut draw = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as f32 / (1 << 24) as f32
    };
    let (mut time, mut without) = (0.0, 0.0);
    for answer in answers {
        speculation.prompted();
        lacks.store(prompt, Ordering::Relaxed);
        // The first token comes from the prompt's logits.
        assert_eq!(speculation.choose(&context, 0).unwrap().0, 0);
        speculation.polled(Some(0));
        let mut left = answer - 1;
        without += costs.step * left as f32;
        while left > 0 {
            let (mut count, class) = speculation.choose(&context, MAX_DRAFTS).unwrap();
            if count > 0 {
                if ends {
                    count = count.min(left);
                }
                let lacked = lacks.swap(1, Ordering::Relaxed);
                let reading = match lacked > MOST_OF_STEP {
                    true => costs.reading * lacked as f32,
                    false => 0.0,
                };
                let drafting = costs.ask + costs.draft * count as f32;
                let first = match speculation.has_asked {
                    true => 0.0,
                    false => FIRST_DRAFTS * costs.step,
                };
                if speculation.has_asked {
                    let known = speculation.reading > 0.0;
                    time += (drafting + if known { reading } else { 0.0 }) / NOISE;
                }
                let took = Duration::from_secs_f32(reading + drafting + first);
                speculation.was_asked(&Asked {
                    count,
                    lacked,
                    took,
                });
                speculation.submitted(&[1; MAX_DRAFTS][..count], class);
            }
            let step = (costs.step + costs.row * count as f32) * (1.0 + 0.1 * draw());
            time += step / NOISE;
            speculation
                .depth
                .step_took(count, Duration::from_secs_f32(step));
            let accepted = (0..count).take_while(|_| draw() < right).count();
            for i in 0..=accepted {
                speculation.polled(Some(u32::from(i < accepted)));
            }
            let wanted = left.min(accepted + 1);
            // The host goes on with another prompt: what is left of the step is dropped.
            let saved = speculation.saved;
            speculation
                .allowance
                .take_back(accepted + 1 - wanted, saved);
            left -= wanted;
        }
    }
    time / without
}

#[test]
fn drafts_of_a_model_cost_at_most_two_hundredths() {
    for costs in [SMALL, LARGE, DEMO] {
        for prompt in [20, 100, 1000] {
            for answer in [2, 4, 8, 30, 300] {
                for (right, ends) in [
                    (0.0, false),
                    (0.3, false),
                    (0.7, true),
                    (1.0, true),
                    (1.0, false),
                ] {
                    // Lengths differ, now and then by much.
                    let lengths: Vec<usize> = (0..3000 / answer)
                        .map(|i| answer + i % 2 * answer / 2 + usize::from(i % 10 == 0) * 20)
                        .collect();
                    let slow = slowdown(costs, prompt, &lengths, right, ends);
                    assert!(
                        slow < 1.02,
                        "{slow}: {costs:?}, prompts of {prompt}, answers of {answer}, right {right}, ends: {ends}"
                    );
                }
            }
        }
    }
}

#[test]
fn drafts_of_a_model_that_pay_are_had() {
    for (costs, prompt, answer, right, wanted) in [
        (LARGE, 100, 100, 0.8, 0.45),
        (LARGE, 1000, 200, 0.8, 0.55),
        (LARGE, 1000, 300, 0.9, 0.4),
        (LARGE, 20, 20, 1.0, 0.45),
        (DEMO, 20, 20, 0.97, 0.8),
        (DEMO, 20, 40, 1.0, 0.7),
    ] {
        let answers = vec![answer; 2000 / answer];
        let slow = slowdown(costs, prompt, &answers, right, true);
        assert!(
            slow < wanted,
            "{slow}: {costs:?}, prompts of {prompt}, answers of {answer}, right {right}"
        );
    }
}
