//! Sessions whose threads are late, never come, or are shared with others: the same bits.

use super::super::CpuWeights;
use super::super::pool::{Hook, Moment};
use crate::backend::{Mark, Outcome, Residual, Row, Runner, RunnerOptions, Want, Weights, When};
use crate::engine::sampling::Sampling;
use crate::format::ModelFile;
use crate::model::Network;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static NEVER: AtomicBool = AtomicBool::new(false);

fn load(threads: usize) -> Arc<CpuWeights> {
    let root = std::env::var("EMBERLM_REPOSITORY");
    let root = root.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let path = Path::new(&root).join("models/hamlet-7m-Q4_K_M.gguf");
    let network = Network::from_file(&ModelFile::open(&path).unwrap()).unwrap();
    CpuWeights::load(&network, threads, &mut |_| Ok(())).unwrap()
}

fn runner(weights: &Arc<CpuWeights>) -> Box<dyn Runner> {
    let options = RunnerOptions {
        context: 700,
        ..Default::default()
    };
    weights.clone().create_runner(&options).unwrap()
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * 37 % 1400) as u32).collect()
}

/// A prompt and some decodes: the tokens, and the bits of the last logits.
fn talk(weights: &CpuWeights, runner: &mut dyn Runner, n: usize) -> (Vec<u32>, Vec<u32>) {
    let interrupt = Arc::new(AtomicBool::new(false));
    let mut work = |tokens: &[u32], want| {
        let row = Row {
            runner: &mut *runner,
            tokens,
            want,
            mask: None,
            interrupt: &interrupt,
            residual: Residual::default(),
        };
        weights.submit(&mut [row], When::Now).unwrap();
        runner.poll(true).unwrap()
    };
    work(&prompt(n), Want::Logits);
    let mut tokens: Vec<u32> = Vec::new();
    for _ in 0..4 {
        let sampling = Sampling::GREEDY;
        let last = tokens.last().copied();
        match work(last.as_slice(), Want::Choices { count: 1, sampling }) {
            Some(Outcome::Token(token)) => tokens.push(token),
            other => panic!("{other:?}"),
        }
    }
    let mut logits = vec![0.0; 1424];
    runner.logits(&mut logits).unwrap();
    (tokens, logits.iter().map(|x| x.to_bits()).collect())
}

/// The same of a session with one thread and no company.
fn alone(n: usize) -> (Vec<u32>, Vec<u32>) {
    let weights = load(1);
    talk(&weights, &mut *runner(&weights), n)
}

#[test]
fn late_helpers_do_not_change_a_bit() {
    let expected: Vec<_> = [3, 300].map(alone).into();
    let calls = AtomicUsize::new(0);
    let late: Hook = Arc::new(move |index, _| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        for _ in 0..if call.is_multiple_of(3 + index) {
            30
        } else {
            0
        } {
            std::thread::yield_now();
        }
    });
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let never: Hook = Arc::new(move |_, moment| {
        while moment == Moment::Seen && !gate.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    });
    for threads in [2, 3, 5] {
        let weights = load(threads);
        for hook in [&late, &never] {
            weights.pool.set_hook(Some(hook.clone()));
            for (n, expected) in [3, 300].into_iter().zip(&expected) {
                assert_eq!(&talk(&weights, &mut *runner(&weights), n), expected);
            }
        }
        open.store(true, Ordering::SeqCst);
        weights.pool.set_hook(None);
    }
}

#[test]
fn a_session_that_runs_alone_gives_the_same_bits() {
    let expected = alone(1);
    let weights = load(2);
    let mut session = runner(&weights);
    let turn = weights.pool.turn(&NEVER).unwrap();
    // Nothing of this needs the turn, which is never given up.
    assert_eq!(talk(&weights, &mut *session, 1), expected);
    drop(turn);
}

#[test]
fn a_short_prompt_does_not_wait_for_the_chunk_of_another() {
    let expected = alone(6);
    let weights = load(2);
    let mut session = runner(&weights);
    let chunk = weights.prefill_turns.take(&NEVER).unwrap();
    let turn = weights.pool.turn(&NEVER).unwrap();
    assert_eq!(talk(&weights, &mut *session, 6), expected);
    drop((chunk, turn));
}

#[test]
fn sessions_at_once_give_the_bits_of_each_alone() {
    let lengths = [1, 6, 40, 290];
    let expected = lengths.map(alone);
    for threads in [1, 2, 3] {
        let weights = load(threads);
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (weights, expected) = (&weights, &expected[i % 4]);
                scope.spawn(move || {
                    let mut runner = runner(weights);
                    for _ in 0..3 {
                        runner.rollback(Mark::EMPTY);
                        let answer = talk(weights, &mut *runner, lengths[i % 4]);
                        assert_eq!(&answer, expected);
                    }
                });
            }
        });
    }
}
