//! A decoded token touches no allocator, on no thread.

// It has an allocator of its own, which the C library has, too.
#![cfg(not(feature = "c-library"))]

mod common;

use common::tiny_experts::{PLAIN, Variant};
use common::work::{Driven, Step};
use common::{hamlet, repository_file, tiny_experts};
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::{MAX_BATCH, Outcome, Row, RunnerOptions, Want, Weights, When};
use emberlm::engine::sampling::{Dry, Sampling};
use emberlm::model::{Adaptable, AdapterSet, AdapterUse, Network};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts what all threads ask for.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn prompt(len: usize, network: &Network) -> Vec<u32> {
    (0..len).map(|i| (i % network.n_vocab) as u32).collect()
}

/// Batched steps, after the first one of a model.
fn batches_allocate_nothing(network: &Network, adapters: Option<&Arc<AdapterSet>>) {
    for threads in [1, 3] {
        let weights: Arc<dyn Weights> =
            CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap();
        let options = RunnerOptions {
            context: 600,
            ..Default::default()
        };
        let mut runners: Vec<_> = (0..MAX_BATCH)
            .map(|i| {
                let mut runner = Driven::new(&weights, &options).unwrap();
                let prompt = prompt(1 + 9 * i, network);
                // Some have adapters, where there are any.
                let own = adapters.filter(|_| i % 3 > 0).cloned();
                runner.set_adapters(own).unwrap();
                runner.extend(&prompt, &Arc::default()).unwrap();
                runner
            })
            .collect();
        let never = Arc::new(AtomicBool::new(false));
        for n in [2, 7, MAX_BATCH] {
            let mut rows: Vec<Row> = Vec::new();
            for (i, driven) in runners[..n].iter_mut().enumerate() {
                let sampling = Sampling {
                    temperature: (i % 2) as f32,
                    top_k: 40,
                    top_p: 0.9,
                    seed: 3,
                    ..Sampling::GREEDY
                };
                rows.push(Row {
                    runner: &mut *driven.runner,
                    tokens: &[5],
                    want: Want::Choices { count: 1, sampling },
                    mask: None,
                    interrupt: &never,
                    residual: emberlm::backend::Residual::default(),
                });
            }
            let mut step = || {
                weights.submit(&mut rows, When::Now).unwrap();
                for row in &mut rows {
                    let outcome = row.runner.poll(true).unwrap();
                    assert!(matches!(outcome, Some(Outcome::Token(_))));
                }
            };
            step();
            let calls = calls_of(threads, || {
                step();
                step();
            });
            assert_eq!(calls, 0, "{threads} threads, {n} sessions");
        }
    }
}

/// The fewest calls that `work` makes. A thread that comes to its first work late, on a busy machine, may make ready once what it has for
/// itself; what every step allocates, each try shows.
fn calls_of(threads: usize, mut work: impl FnMut()) -> usize {
    let tries = (0..=threads).map(|_| {
        let before = CALLS.load(Ordering::SeqCst);
        work();
        CALLS.load(Ordering::SeqCst) - before
    });
    let mut fewest = usize::MAX;
    for calls in tries {
        fewest = fewest.min(calls);
        if fewest == 0 {
            break;
        }
    }
    fewest
}

/// One test, because the count is the process's.
#[test]
fn decoding_allocates_nothing() {
    let experts = Variant {
        shared: Some(true),
        ..PLAIN
    };
    for network in [
        Network::from_file(&hamlet::q4_k_m()).unwrap(),
        tiny_experts::network(&experts),
    ] {
        batches_allocate_nothing(&network, None);
        steps_allocate_nothing(&network, None);
    }
    let file = hamlet::q4_k_m();
    let network = Network::from_file(&file).unwrap();
    let adapter = Adaptable::of(&file, &network).unwrap();
    let adapter = adapter.read(&repository_file("tests/data/adapters/hamlet.gguf"));
    let set = Arc::new(vec![AdapterUse {
        adapter: Arc::new(adapter.unwrap()),
        scale: 0.5,
    }]);
    batches_allocate_nothing(&network, Some(&set));
    steps_allocate_nothing(&network, Some(&set));
}

fn steps_allocate_nothing(network: &Network, adapters: Option<&Arc<AdapterSet>>) {
    // Three threads and two KV heads, so that attention is split by segments, too.
    for threads in [1, 2, 3] {
        let weights: Arc<dyn Weights> =
            CpuWeights::load(network, threads, &mut |_| Ok(())).unwrap();
        let options = RunnerOptions {
            context: 600,
            ..Default::default()
        };
        let mut runner = Driven::new(&weights, &options).unwrap();
        runner.set_adapters(adapters.cloned()).unwrap();
        let interrupt = Arc::new(AtomicBool::new(false));
        let prompt = prompt(250, network);
        for sampling in [
            Sampling::GREEDY,
            Sampling {
                temperature: 1.0,
                top_k: 40,
                top_p: 0.9,
                min_p: 0.05,
                seed: 1,
                ..Sampling::GREEDY
            },
            Sampling {
                temperature: 1.0,
                top_k: 0,
                typical_p: 0.9,
                repeat_penalty: 1.1,
                dry: Dry {
                    multiplier: 0.8,
                    ..Dry::OFF
                },
                ..Sampling::GREEDY
            },
            Sampling {
                logprobs: 5,
                ..Sampling::GREEDY
            },
        ] {
            runner.truncate(0);
            runner.extend(&prompt, &interrupt).unwrap();
            let mut token = None;
            let mut step = |start: bool| {
                let step = Step { token, sampling };
                token = Some(if start {
                    runner.steps_start(&step, 1, &interrupt).unwrap();
                    runner.step_poll(true).unwrap().unwrap()
                } else {
                    runner.step(&step, &interrupt).unwrap()
                });
            };
            // The first started step makes its thread; and locks may initialize themselves.
            step(false);
            step(true);
            let calls = calls_of(threads, || {
                for i in 2..20 {
                    step(i % 2 == 0);
                }
            });
            assert_eq!(calls, 0, "{threads} threads");
        }
    }
}
