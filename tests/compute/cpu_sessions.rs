//! Batches, queued steps, forks and profiles on the CPU: the same bits as one session alone.

use crate::common::hamlet;
use crate::common::tiny::{Random, Tiny};
use crate::common::work::{Driven, Step, step_batch};
use emberlm::Status;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{KvType, MAX_BATCH, RowError, RunnerOptions, Weights, Work};
use emberlm::engine::sampling::{Dry, Sampling};
use emberlm::format::ModelFile;
use emberlm::model::{FeedForward, Network};
use emberlm::quant::TensorType;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static NEVER: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

fn network(tiny: &Tiny) -> Network {
    Network::from_file(&ModelFile::from_bytes(&tiny.bytes()).unwrap()).unwrap()
}

fn load(network: &Network, threads: usize) -> Arc<CpuWeights> {
    CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap()
}

/// Greedy, and draws of several kinds.
fn sampling(i: usize) -> Sampling {
    let plain = Sampling {
        seed: i as u64,
        ..Sampling::GREEDY
    };
    match i % 6 {
        0 => plain,
        1 => Sampling {
            temperature: 1.0,
            ..plain
        },
        2 => Sampling {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.9,
            ..plain
        },
        3 => Sampling {
            temperature: 2.0,
            min_p: 0.05,
            ..plain
        },
        // These look at the tokens of the context.
        4 => Sampling {
            repeat_penalty: 1.3,
            frequency_penalty: 0.5,
            penalty_window: 9,
            logprobs: 3,
            ..plain
        },
        _ => Sampling {
            temperature: 0.9,
            typical_p: 0.8,
            presence_penalty: 0.7,
            dry: Dry {
                multiplier: 2.0,
                allowed_length: 1,
                ..Dry::OFF
            },
            ..plain
        },
    }
}

/// A session as the engine sees it: a runner, how it samples, and the token that it did not
/// evaluate yet.
struct Talk {
    runner: Driven,
    sampling: Sampling,
    pending: Option<u32>,
}

impl Talk {
    /// Number `i`, with a prompt of `len` tokens.
    fn new(weights: &Arc<CpuWeights>, vocab: usize, i: usize, len: usize, kv: KvType) -> Talk {
        let options = RunnerOptions {
            context: len + 40,
            kv_type: kv,
            ..Default::default()
        };
        let all: Arc<dyn Weights> = weights.clone();
        let mut runner = Driven::new(&all, &options).unwrap();
        let mut random = Random::new(i as u64, "prompt");
        let prompt: Vec<u32> = (0..len)
            .map(|_| (random.bits() % vocab as u64) as u32)
            .collect();
        runner.extend(&prompt, &NEVER).unwrap();
        Talk {
            runner,
            sampling: sampling(i),
            pending: None,
        }
    }

    fn next(&self) -> Step {
        Step {
            token: self.pending,
            sampling: self.sampling,
        }
    }

    fn step(&mut self) -> u32 {
        let token = self.runner.step(&self.next(), &NEVER).unwrap();
        self.pending = Some(token);
        token
    }

    fn logits(&mut self, vocab: usize) -> Vec<u32> {
        let mut out = vec![0.0; vocab];
        self.runner.logits(&mut out).unwrap();
        out.iter().map(|x| x.to_bits()).collect()
    }
}

fn batch(talks: &mut [&mut Talk], stop: &[&Arc<AtomicBool>]) -> Result<Vec<u32>, RowError> {
    let steps: Vec<Step> = talks.iter().map(|t| t.next()).collect();
    let mut tokens = vec![u32::MAX; talks.len()];
    let mut runners: Vec<&mut Driven> = talks.iter_mut().map(|t| &mut t.runner).collect();
    let result = step_batch(&mut runners, &steps, stop, &mut tokens);
    if result.is_err() {
        assert!(tokens.iter().all(|t| *t == u32::MAX));
    }
    result.map(|()| {
        for (talk, token) in talks.iter_mut().zip(&tokens) {
            talk.pending = Some(*token);
        }
        tokens
    })
}

/// Sessions alone and in batches of changing company give the same tokens and logits.
fn same_in_every_company(network: &Network, lengths: &[usize], kv: &[KvType], threads: usize) {
    let vocab = network.n_vocab;
    let weights = load(network, threads);
    let talks = || -> Vec<Talk> {
        let of = |(i, len): (usize, &usize)| Talk::new(&weights, vocab, i, *len, kv[i % kv.len()]);
        lengths.iter().enumerate().map(of).collect()
    };
    let mut alone = talks();
    let mut all = || -> Vec<(u32, Vec<u32>)> {
        let of = |talk: &mut Talk| (talk.step(), talk.logits(vocab));
        alone.iter_mut().map(of).collect()
    };
    let expected: Vec<_> = (0..5).map(|_| all()).collect();
    for company in [lengths.len(), 1, 2, 3, 8] {
        let mut together = talks();
        for (round, expected) in expected.iter().enumerate() {
            // Other neighbours every round, and another order.
            let mut order: Vec<usize> = (0..together.len()).collect();
            order.rotate_left(round);
            for group in order.chunks(company) {
                let mut members: Vec<&mut Talk> = Vec::new();
                for (i, talk) in together.iter_mut().enumerate() {
                    if group.contains(&i) {
                        members.push(talk);
                    }
                }
                let tokens = batch(&mut members, &vec![&*NEVER; group.len()]).unwrap();
                let mut group = group.to_vec();
                group.sort_unstable();
                for ((i, talk), token) in group.iter().zip(members).zip(tokens) {
                    let (wanted, logits) = &expected[*i];
                    assert_eq!(token, *wanted, "session {i} among {company}, round {round}");
                    assert!(talk.logits(vocab) == *logits, "session {i} among {company}");
                }
            }
        }
    }
}

#[test]
fn a_batch_has_the_bits_of_each_session_alone() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    // Around the borders of blocks and segments of attention, and one far longer than the others.
    let lengths = [1, 300, 2, 15, 16, 17, 255, 256, 257, 31, 900, 5];
    same_in_every_company(&network, &lengths, &[KvType::F16], 2);
}

#[test]
fn as_many_sessions_as_there_can_be_do_not_disturb_each_other() {
    for (heads, kv_heads, ty, threads) in [
        (4, 2, TensorType::F32, 3),
        (3, 3, TensorType::BF16, 1),
        (6, 1, TensorType::F16, 5),
    ] {
        let network = network(&Tiny {
            heads,
            kv_heads,
            head_dim: 20,
            hidden: 48,
            ff: 80,
            context: 1024,
            biases: heads == 4,
            ty,
            ..Tiny::default()
        });
        let lengths: Vec<usize> = (0..MAX_BATCH).map(|i| 1 + i * i % 300).collect();
        same_in_every_company(&network, &lengths, &[KvType::F16, KvType::F32], threads);
    }
}

#[test]
fn a_batch_is_all_or_nothing() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let vocab = network.n_vocab;
    let weights = load(&network, 2);
    let mut talks: Vec<Talk> = (0..4)
        .map(|i| Talk::new(&weights, vocab, i, 5 + i, KvType::F16))
        .collect();
    let never = [&*NEVER; 4];
    // One whose logits are at hand among others that evaluate a token.
    for talk in &mut talks[..3] {
        talk.step();
    }
    let lens = |talks: &[Talk]| -> Vec<usize> { talks.iter().map(|t| t.runner.len()).collect() };
    let before = lens(&talks);
    let set = Arc::new(AtomicBool::new(true));
    let mut all: Vec<&mut Talk> = talks.iter_mut().collect();
    let e = batch(&mut all, &[&NEVER, &NEVER, &set, &NEVER]).unwrap_err();
    assert_eq!((e.error.status, e.row), (Status::Interrupted, Some(2)));
    assert_eq!(lens(&talks), before);

    // A token that is not in the vocabulary.
    let full = Talk::new(&weights, vocab, 9, 5, KvType::F16);
    let mut other = Talk {
        pending: Some(vocab as u32),
        ..full
    };
    let (three, _) = talks.split_at_mut(3);
    let mut mixed: Vec<&mut Talk> = three.iter_mut().chain([&mut other]).collect();
    let e = batch(&mut mixed, &never).unwrap_err();
    assert_eq!((e.error.status, e.row), (Status::InvalidToken, Some(3)));
    assert_eq!(lens(&talks), before);

    let stranger = load(&network, 1);
    let mut stranger = Talk::new(&stranger, vocab, 1, 5, KvType::F16);
    let (three, _) = talks.split_at_mut(3);
    let mut mixed: Vec<&mut Talk> = three.iter_mut().chain([&mut stranger]).collect();
    let e = batch(&mut mixed, &never).unwrap_err();
    assert_eq!((e.error.status, e.row), (Status::Internal, Some(3)));

    // And then as if nothing had been.
    let mut alone: Vec<Talk> = (0..4)
        .map(|i| Talk::new(&weights, vocab, i, 5 + i, KvType::F16))
        .collect();
    for talk in &mut alone[..3] {
        talk.step();
    }
    for _ in 0..4 {
        let expected: Vec<u32> = alone.iter_mut().map(Talk::step).collect();
        let mut all: Vec<&mut Talk> = talks.iter_mut().collect();
        assert_eq!(batch(&mut all, &never).unwrap(), expected);
    }
}

/// NaN in the final norm makes every choice fail; the sessions stay where they were.
#[test]
fn logits_that_are_no_numbers_fail_the_batch() {
    let mut network = network(&Tiny::default());
    let weights = load(&network, 2);
    let mut talks: Vec<Talk> = (0..3)
        .map(|i| Talk::new(&weights, network.n_vocab, i, 4, KvType::F16))
        .collect();
    let mut all: Vec<&mut Talk> = talks.iter_mut().collect();
    batch(&mut all, &[&*NEVER; 3]).unwrap();

    network.final_norm.eps = f32::NAN;
    let broken = load(&network, 2);
    let mut talks: Vec<Talk> = (0..3)
        .map(|i| Talk::new(&broken, network.n_vocab, i, 4, KvType::F16))
        .collect();
    for pending in [None, Some(7)] {
        talks.iter_mut().for_each(|t| t.pending = pending);
        let mut all: Vec<&mut Talk> = talks.iter_mut().collect();
        let e = batch(&mut all, &[&*NEVER; 3]).unwrap_err();
        assert_eq!((e.error.status, e.row), (Status::Numeric, Some(0)));
        assert!(talks.iter().all(|t| t.runner.len() == 4));
    }
}

#[test]
fn queued_steps_give_the_tokens_of_single_ones() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let vocab = network.n_vocab;
    let weights = load(&network, 2);
    let interrupt = Arc::new(AtomicBool::new(false));
    for i in 0..4 {
        let mut alone = Talk::new(&weights, vocab, i, 250, KvType::F16);
        let mut queued = Talk::new(&weights, vocab, i, 250, KvType::F16);
        for (count, wait) in [(1, true), (9, false), (12, true)] {
            assert!(queued.runner.queue_limit() >= count);
            let step = queued.next();
            queued.runner.steps_start(&step, count, &interrupt).unwrap();
            for _ in 0..count {
                let token = loop {
                    match queued.runner.step_poll(wait).unwrap() {
                        Some(token) => break token,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(token, alone.step());
                queued.pending = Some(token);
            }
            assert_eq!(queued.runner.len(), alone.runner.len());
            assert_eq!(queued.logits(vocab), alone.logits(vocab));
            let e = queued.runner.step_poll(true).unwrap_err();
            assert_eq!(e.status, Status::NothingPending);
        }
    }
}

#[test]
fn an_interrupt_ends_a_queue_behind_the_tokens_that_were_made() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let vocab = network.n_vocab;
    let weights = load(&network, 2);
    for i in 0..4 {
        let mut alone = Talk::new(&weights, vocab, i, 20, KvType::F16);
        let mut queued = Talk::new(&weights, vocab, i, 20, KvType::F16);
        let interrupt = Arc::new(AtomicBool::new(false));
        let step = queued.next();
        queued.runner.steps_start(&step, 30, &interrupt).unwrap();
        let mut made = 0;
        let ended = loop {
            match queued.runner.step_poll(true) {
                Ok(token) => {
                    assert_eq!(token.unwrap(), alone.step());
                    queued.pending = token;
                    made += 1;
                    if made == 3 {
                        interrupt.store(true, Ordering::SeqCst);
                    }
                    if made == 30 {
                        break None;
                    }
                }
                Err(e) => break Some(e.status),
            }
        };
        // On a busy machine all may have been made before the interrupt.
        assert!(matches!(ended, Some(Status::Interrupted) | None));
        assert_eq!(queued.runner.len(), alone.runner.len());
        for _ in 0..3 {
            assert_eq!(queued.step(), alone.step());
        }
        // Freed with a long queue in flight.
        let step = queued.next();
        interrupt.store(false, Ordering::SeqCst);
        queued.runner.steps_start(&step, 5, &interrupt).unwrap();
    }
    assert_eq!(Arc::strong_count(&weights), 1, "no thread holds the model");
}

#[test]
fn a_fork_continues_with_the_same_bits_and_leaves_the_first_alone() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let vocab = network.n_vocab;
    let weights = load(&network, 2);
    for (i, len) in [1, 200, 256, 257, 700].into_iter().enumerate() {
        for kv in [KvType::F16, KvType::F32] {
            let mut first = Talk::new(&weights, vocab, i, len, kv);
            first.step();
            let mut fork = Talk {
                runner: first.runner.fork().unwrap(),
                sampling: first.sampling,
                pending: first.pending,
            };
            assert!(fork.runner.has_logits() && fork.runner.len() == len);
            // What the fork writes does not show in the first one.
            let mut stray = first.runner.fork().unwrap();
            stray.truncate(len / 2);
            stray.extend(&[5; 30], &NEVER).unwrap();
            first.pending = fork.pending;
            for _ in 0..8 {
                assert_eq!(fork.step(), first.step());
                assert_eq!(fork.logits(vocab), first.logits(vocab));
            }
        }
    }
    let empty = RunnerOptions {
        context: 4,
        ..Default::default()
    };
    let all: Arc<dyn Weights> = weights.clone();
    let mut empty = Driven::new(&all, &empty).unwrap();
    let fork = empty.fork().unwrap();
    assert!(fork.is_empty() && !fork.has_logits());
}

#[test]
fn a_profile_is_a_step_with_every_kind_of_work() {
    let network = Network::from_file(&hamlet::q4_k_m()).unwrap();
    let vocab = network.n_vocab;
    for threads in [1, 3] {
        let weights = load(&network, threads);
        let mut alone = Talk::new(&weights, vocab, 0, 300, KvType::F16);
        let mut profiled = Talk::new(&weights, vocab, 0, 300, KvType::F16);
        alone.step();
        profiled.step();
        let step = profiled.next();
        let profile = profiled.runner.profile(&step, &NEVER).unwrap();
        alone.step();
        assert_eq!(profiled.runner.len(), alone.runner.len());
        assert_eq!(profiled.logits(vocab), alone.logits(vocab));
        let layers = network.blocks.len() as u32;
        for work in Work::ALL {
            let entry = profile.entry(work);
            let calls = match work {
                Work::Embed | Work::Head | Work::Sample => 1,
                Work::Norm => 2 * layers,
                _ => layers,
            };
            assert_eq!(entry.calls, calls, "{work:?}");
            assert!(entry.microseconds >= 0.0 && entry.bytes > 0, "{work:?}");
        }
        let attention = profile.entry(Work::Attention).bytes;
        assert_eq!(attention, 301 * weights.kv_bytes_per_token(KvType::F16));
        let tensors = |block: &emberlm::model::Block| {
            let FeedForward::Dense(mlp) = &block.feed_forward else {
                panic!("experts")
            };
            let gate = mlp.gate.as_ref().unwrap();
            (gate.weight.bytes().len() + mlp.up.weight.bytes().len()) as u64
        };
        let gate_up: u64 = network.blocks.iter().map(tensors).sum();
        assert_eq!(profile.entry(Work::GateUp).bytes, gate_up);
        let set = AtomicBool::new(true);
        let step = Step {
            token: Some(1),
            ..step
        };
        let e = profiled.runner.profile(&step, &set).unwrap_err();
        assert_eq!(e.status, Status::Interrupted);
    }
}

#[test]
fn a_cache_in_q8_0_is_refused_by_name() {
    let weights = load(&network(&Tiny::default()), 1);
    let options = RunnerOptions {
        context: 8,
        kv_type: KvType::Q8_0,
        ..Default::default()
    };
    let e = weights.create_runner(&options).err().unwrap();
    assert_eq!(e.status, Status::Unsupported);
    assert!(e.message.contains("q8_0"), "{e}");
}
