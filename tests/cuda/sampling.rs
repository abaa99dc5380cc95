//! Sampling in sessions: single, queued, batched and masked steps, against the engine's own choices
//! from the same logits.

use crate::common::hamlet;
use crate::common::work::{Driven, Step, step_batch_masked};
use crate::gpu::*;
use crate::model::{gpu, runner};
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{KvType, MAX_BATCH, MaskSource};
use emberlm::engine::sampling::{
    Breakers, Dry, Input, Logprobs, Sampling, Scratch, TokenRules, choose,
};
use emberlm::error::{Error, Status};
use emberlm::model::Network;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn tests(tests: &mut Tests) {
    tests.push(("sampling::single".into(), Box::new(single_steps)));
    tests.push(("sampling::queued".into(), Box::new(queued_steps)));
    tests.push(("sampling::batched".into(), Box::new(batched_steps)));
    tests.push(("sampling::masked".into(), Box::new(masked_steps)));
    tests.push(("sampling::mask_errors".into(), Box::new(masks_that_fail)));
}

const PROMPT: [u32; 6] = [9, 8, 7, 9, 8, 7];

fn weights() -> (Arc<CudaWeights>, usize) {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    (gpu(&network), network.n_vocab)
}

/// Settings of several kinds; those from 2 on look at the context.
fn settings(i: usize) -> Sampling {
    let plain = Sampling {
        seed: i as u64,
        logprobs: (i % 3) as u32 * 4,
        ..Sampling::GREEDY
    };
    match i % 5 {
        0 => plain,
        1 => Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..plain
        },
        2 => Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.1,
            ..plain
        },
        3 => Sampling {
            frequency_penalty: 0.4,
            presence_penalty: 0.4,
            penalty_window: 12,
            ..plain
        },
        _ => Sampling {
            temperature: 1.0,
            typical_p: 0.9,
            dry: Dry {
                multiplier: 1.5,
                allowed_length: 1,
                ..Dry::OFF
            },
            ..plain
        },
    }
}

fn rules(i: usize, n_vocab: usize) -> Option<Arc<TokenRules>> {
    if i.is_multiple_of(2) {
        return None;
    }
    let breakers = Breakers::new(n_vocab, [&[20u32][..], &[9, 8]]).unwrap();
    let bias = [(3u32, 2.5f32), (4, -1.0)];
    let rules = TokenRules::new(n_vocab, bias.into_iter(), &[5, 6], &[], breakers).unwrap();
    Some(Arc::new(rules))
}

/// Every third token, and which of them depends on the position.
fn mask(position: usize, words: &mut [u32]) {
    words.fill(0);
    for id in (position % 3..words.len() * 32).step_by(3) {
        words[id / 32] |= 1 << (id % 32);
    }
}

/// A session that checks each of its choices.
struct Talk {
    runner: Driven,
    settings: Sampling,
    rules: Option<Arc<TokenRules>>,
    tokens: Vec<u32>,
    pending: bool,
    scratch: Scratch,
    n_vocab: usize,
}

impl Talk {
    fn new(weights: &Arc<CudaWeights>, n_vocab: usize, i: usize) -> Talk {
        let mut runner = runner(weights, 256, KvType::F16);
        runner.extend(&PROMPT, &Arc::default()).unwrap();
        let rules = rules(i, n_vocab);
        runner.set_rules(rules.clone()).unwrap();
        Talk {
            runner,
            settings: settings(i),
            rules,
            tokens: PROMPT.to_vec(),
            pending: false,
            scratch: Scratch::new(n_vocab).unwrap(),
            n_vocab,
        }
    }

    fn step(&self) -> Step {
        Step {
            token: self.pending.then(|| *self.tokens.last().unwrap()),
            sampling: self.settings,
        }
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.pending = true;
    }

    /// That `token` is what the engine chooses by the logits that the runner has.
    fn check(&mut self, token: u32, mask: Option<&[u32]>) {
        let mut logits = vec![0.0; self.n_vocab];
        self.runner.logits(&mut logits).unwrap();
        let input = Input {
            logits: &logits,
            history: &self.tokens,
            rules: self.rules.as_deref(),
            mask,
            position: self.tokens.len() as u64,
        };
        let expected = choose(&input, &mut self.scratch, &self.settings).unwrap();
        assert_eq!(token, expected, "{:?}", self.settings);
        let logprobs = match self.settings.logprobs {
            0 => None,
            n => Some(Logprobs::of(&logits, token, n, &mut self.scratch).unwrap()),
        };
        assert_eq!(self.runner.logprobs(), logprobs.as_ref());
    }
}

fn single_steps() {
    let (weights, n_vocab) = weights();
    let go = Arc::new(AtomicBool::new(false));
    for i in 0..10 {
        let mut talk = Talk::new(&weights, n_vocab, i);
        for _ in 0..30 {
            let token = talk.runner.step(&talk.step(), &go).unwrap();
            talk.check(token, None);
            talk.push(token);
        }
        // What the context was before a rewind does not matter.
        let tokens = talk.tokens.clone();
        talk.runner.truncate(11);
        talk.runner.extend(&tokens[11..12], &go).unwrap();
        talk.tokens.truncate(12);
        talk.pending = false;
        while talk.tokens.len() < tokens.len() {
            let token = talk.runner.step(&talk.step(), &go).unwrap();
            talk.push(token);
        }
        assert_eq!(talk.tokens, tokens);
        let mut fork = talk.runner.fork().unwrap();
        let token = talk.runner.step(&talk.step(), &go).unwrap();
        assert_eq!(fork.step(&talk.step(), &go).unwrap(), token);
    }
}

fn queued_steps() {
    let (weights, n_vocab) = weights();
    let go = Arc::new(AtomicBool::new(false));
    for i in 0..10 {
        let mut single = Talk::new(&weights, n_vocab, i);
        let mut reported = Vec::new();
        for _ in 0..40 {
            let token = single.runner.step(&single.step(), &go).unwrap();
            reported.push(single.runner.logprobs().cloned());
            single.push(token);
        }
        let mut queued = Talk::new(&weights, n_vocab, i);
        let mut same = Vec::new();
        for count in [1, 30, 9] {
            queued
                .runner
                .steps_start(&queued.step(), count, &go)
                .unwrap();
            for _ in 0..count {
                let token = queued.runner.step_poll(true).unwrap().unwrap();
                same.push(queued.runner.logprobs().cloned());
                queued.push(token);
            }
        }
        assert_eq!(queued.tokens, single.tokens);
        assert_eq!(same, reported);
    }
}

/// Steps all, those of `masked` with a mask, and gives the tokens.
fn step_all(talks: &mut [Talk], masked: &[bool]) -> Vec<u32> {
    let go = Arc::new(AtomicBool::new(false));
    let steps: Vec<Step> = talks.iter().map(Talk::step).collect();
    let lengths: Vec<usize> = talks.iter().map(|t| t.tokens.len()).collect();
    let mut sources: Vec<_> = lengths
        .iter()
        .map(|&len| {
            move |words: &mut [u32]| {
                mask(len, words);
                Ok(())
            }
        })
        .collect();
    let mut masks: Vec<Option<&mut MaskSource>> = sources
        .iter_mut()
        .zip(masked)
        .map(|(source, masked)| masked.then_some(source as &mut MaskSource))
        .collect();
    let mut runners: Vec<_> = talks.iter_mut().map(|t| &mut t.runner).collect();
    let interrupts = vec![&go; steps.len()];
    let mut tokens = vec![0; steps.len()];
    step_batch_masked(&mut runners, &steps, &mut masks, &interrupts, &mut tokens).unwrap();
    tokens
}

fn batched_steps() {
    let (weights, n_vocab) = weights();
    let go = Arc::new(AtomicBool::new(false));
    let mut alone: Vec<Talk> = (0..MAX_BATCH)
        .map(|i| Talk::new(&weights, n_vocab, i))
        .collect();
    for (i, talk) in alone.iter_mut().enumerate() {
        for _ in 0..20 {
            let step = talk.step();
            let len = talk.tokens.len();
            let token = if i % 4 == 1 {
                let mut source = |words: &mut [u32]| {
                    mask(len, words);
                    Ok(())
                };
                talk.runner.step_masked(&step, &mut source, &go)
            } else {
                talk.runner.step(&step, &go)
            };
            talk.push(token.unwrap());
        }
    }
    for (count, with_masks) in [(11, true), (11, false), (MAX_BATCH, true)] {
        let mut talks: Vec<Talk> = (0..count)
            .map(|i| Talk::new(&weights, n_vocab, i))
            .collect();
        let masked: Vec<bool> = (0..count).map(|i| with_masks && i % 4 == 1).collect();
        for _ in 0..20 {
            let tokens = step_all(&mut talks, &masked);
            for (talk, token) in talks.iter_mut().zip(tokens) {
                assert_eq!(talk.runner.logprobs().is_some(), talk.settings.logprobs > 0);
                talk.push(token);
            }
        }
        for (i, (talk, other)) in talks.iter().zip(&alone).enumerate() {
            if with_masks || i % 4 != 1 {
                assert_eq!(talk.tokens, other.tokens, "session {i} of {count}");
                let (last, wanted) = (talk.runner.logprobs(), other.runner.logprobs());
                assert_eq!(last, wanted, "session {i} of {count}");
            }
        }
    }
}

fn masked_steps() {
    let (weights, n_vocab) = weights();
    let go = Arc::new(AtomicBool::new(false));
    for i in 0..5 {
        let mut talk = Talk::new(&weights, n_vocab, i);
        for n in 0..30 {
            let step = talk.step();
            let mut words = vec![0; n_vocab.div_ceil(32)];
            mask(n, &mut words);
            let mut source = |to: &mut [u32]| {
                to.copy_from_slice(&words);
                Ok(())
            };
            // Started ones and plain ones in between.
            let (token, used) = match n % 3 {
                0 => (
                    talk.runner.step_masked(&step, &mut source, &go).unwrap(),
                    true,
                ),
                1 => {
                    talk.runner
                        .step_start_masked(&step, &mut source, &go)
                        .unwrap();
                    (talk.runner.step_poll(true).unwrap().unwrap(), true)
                }
                _ => (talk.runner.step(&step, &go).unwrap(), false),
            };
            assert!(!used || words[token as usize / 32] >> (token % 32) & 1 == 1);
            talk.check(token, used.then_some(&words));
            talk.push(token);
        }
    }
}

fn masks_that_fail() {
    let (weights, n_vocab) = weights();
    let go = Arc::new(AtomicBool::new(false));
    let mut talk = Talk::new(&weights, n_vocab, 2);
    let mut plain = Talk::new(&weights, n_vocab, 2);
    let token = talk.runner.step(&talk.step(), &go).unwrap();
    assert_eq!(plain.runner.step(&plain.step(), &go).unwrap(), token);
    talk.push(token);
    plain.push(token);
    let step = talk.step();
    let len = talk.runner.len();
    let mut nothing = |words: &mut [u32]| {
        words.fill(0);
        Ok(())
    };
    let e = talk
        .runner
        .step_masked(&step, &mut nothing, &go)
        .unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    let mut failing = |_: &mut [u32]| Err(Error::new(Status::Interrupted, "stopped"));
    let e = talk
        .runner
        .step_masked(&step, &mut failing, &go)
        .unwrap_err();
    assert_eq!(e.status, Status::Interrupted);
    let mut panicking = |_: &mut [u32]| -> emberlm::Result<()> { panic!("a bug") };
    let e = talk
        .runner
        .step_masked(&step, &mut panicking, &go)
        .unwrap_err();
    assert_eq!(e.status, Status::Internal);
    // In a batch, beside one without a mask.
    let steps = [step, plain.step()];
    let e = step_batch_masked(
        &mut [&mut talk.runner, &mut plain.runner],
        &steps,
        &mut [Some(&mut failing)],
        &[&go; 2],
        &mut [0; 2],
    )
    .unwrap_err();
    assert_eq!((e.error.status, e.row), (Status::Interrupted, Some(0)));
    // Nothing has moved.
    assert_eq!((talk.runner.len(), plain.runner.len()), (len, len));
    for _ in 0..5 {
        let token = talk.runner.step(&talk.step(), &go).unwrap();
        assert_eq!(plain.runner.step(&plain.step(), &go).unwrap(), token);
        talk.push(token);
        plain.push(token);
    }
}
