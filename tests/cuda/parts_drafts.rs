//! Drafts over networks in parts of which some or all are on a GPU: sessions with and without them give the same tokens and
//! log-probabilities.

use crate::common::drafts::*;
use crate::common::families::with_context;
use crate::common::states::{bits, random_life_of, session};
use crate::common::{TempDir, repository_file};
use crate::drafts::{dropped_by, marked_by};
use crate::gpu::*;
use crate::parts::{cpu, gpu, hamlet_path, load};
use emberlm::backend::{
    DeviceKind, LoadOptions, MaskSource, Outcome, Residual, Row, Runner, RunnerOptions, Want, When,
};
use emberlm::engine::sampling::Sampling;
use emberlm::engine::speculate::DraftOptions;
use emberlm::engine::{Model, Session};
use emberlm::{Error, Result, Status};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn tests(tests: &mut Tests) {
    for (seed, way) in Way::ALL.into_iter().enumerate() {
        let test = format!("parts_drafts::lives::{way:?}");
        tests.push((test, Box::new(move || random_lives(way, seed as u64))));
    }
    // Of these, no count of right drafts is asked, so that a stand-in may give prompts bits that steps do not have.
    tests.push(("parts_drafts::chunks_and_marks".into(), Box::new(marks)));
    tests.push(("parts_drafts::chunks_and_rings".into(), Box::new(rings)));
    tests.push((
        "parts_drafts::chunks_and_texts".into(),
        Box::new(recurrent_texts),
    ));
    tests.push(("parts_drafts::families".into(), Box::new(families)));
    tests.push(("parts_drafts::recurrent".into(), Box::new(recurrent)));
    tests.push(("parts_drafts::dropped".into(), Box::new(all_dropped)));
    tests.push(("parts_drafts::texts".into(), Box::new(texts)));
    tests.push(("parts_drafts::trained".into(), Box::new(trained)));
    tests.push(("parts_drafts::interrupts".into(), Box::new(interrupts)));
    tests.push(("parts_drafts::failures".into(), Box::new(failures)));
    tests.push(("parts_drafts::options".into(), Box::new(options)));
    let test = "parts_drafts::out_of_memory";
    tests.push((test.into(), Box::new(out_of_memory)));
}

/// Where parts are, first to last.
#[derive(Clone, Copy, Debug)]
enum Way {
    GpuGpu,
    CpuGpu,
    GpuCpu,
    GpuGpuGpu,
    CpuGpuCpu,
    GpuCpuGpu,
}

impl Way {
    const ALL: [Way; 6] = [
        Way::GpuGpu,
        Way::CpuGpu,
        Way::GpuCpu,
        Way::GpuGpuGpu,
        Way::CpuGpuCpu,
        Way::GpuCpuGpu,
    ];

    fn on_gpu(self) -> &'static [bool] {
        match self {
            Way::GpuGpu => &[true, true],
            Way::CpuGpu => &[false, true],
            Way::GpuCpu => &[true, false],
            Way::GpuGpuGpu => &[true, true, true],
            Way::CpuGpuCpu => &[false, true, false],
            Way::GpuCpuGpu => &[true, false, true],
        }
    }

    /// A model in such parts, of a layer each but the last, or `None` where it has too few layers.
    fn load(self, path: &Path) -> Option<Arc<Model>> {
        let on_gpu = self.on_gpu();
        let place = |on_gpu: &bool| if *on_gpu { gpu() } else { cpu() };
        let (last, first) = on_gpu.split_last().unwrap();
        let cuts: Vec<_> = (1..).zip(first.iter().map(place)).collect();
        let n_layers = layers(path);
        (n_layers > cuts.len()).then(|| load(path, &cuts, place(last)))
    }
}

fn layers(path: &Path) -> usize {
    load(path, &[], cpu()).details().n_layers
}

fn hamlet(way: Way) -> Arc<Model> {
    way.load(&hamlet_path()).unwrap()
}

fn random_lives(way: Way, seed: u64) {
    let model = hamlet(way);
    for wrong in [0, 30, 100] {
        lives(&model, seed + wrong, wrong, true);
    }
}

/// Dense, with windows, with experts, with latent attention, with a width that is no multiple of 32.
fn families() {
    for (seed, name) in [
        "mistral",
        "gemma3",
        "mixtral",
        "gpt_oss",
        "deepseek_v2",
        "gpt2",
    ]
    .into_iter()
    .enumerate()
    {
        for way in Way::ALL {
            let Some(model) = way.load(&path_of(name)) else {
                continue;
            };
            random_life_of(&model, seed as u64, 30, false, &mut |session| {
                let source = Spoiled::source(session, 30);
                session.set_draft_source(source, &ALWAYS).unwrap();
            });
            for sampling in [Sampling::GREEDY, SAMPLED] {
                let accepted = interrupted_text(&model, sampling, 100, &with_spoiled);
                println!("{name}, {way:?}: {accepted} accepted");
                assert!(accepted > 25, "{name}, {way:?}, {sampling:?}: {accepted}");
            }
        }
    }
}

fn rings() {
    let dir = TempDir::new("gpu-parts-draft-rings");
    for name in ["gemma3", "gpt_oss"] {
        let path = long_path_of(name, &dir);
        for way in Way::ALL {
            let Some(model) = way.load(&path) else {
                continue;
            };
            random_life_of(&model, 9, 50, false, &mut |session| {
                let source = Spoiled::source(session, 30);
                session.set_draft_source(source, &ALWAYS).unwrap();
            });
        }
    }
}

/// Those of families with recurrent layers, in all ways.
fn each_recurrent(names: &[&str], run: impl Fn(&str, Way, &Arc<Model>)) {
    let dir = TempDir::new("gpu-parts-draft-recurrent");
    for name in names {
        let path = dir.file("model.gguf", &with_context(name, 4096).bytes());
        for way in Way::ALL {
            if let Some(model) = way.load(&path) {
                run(name, way, &model);
            }
        }
    }
}

/// Layers that keep a state of fixed size: every part goes back to the state behind the last row that was right.
fn recurrent() {
    let names = [
        "qwen3_5",
        "lfm2",
        "falcon_h1",
        "mamba",
        "mamba2",
        "jamba",
        "nemotron_h_moe",
    ];
    each_recurrent(&names, |name, way, model| {
        for sampling in [Sampling::GREEDY, SAMPLED] {
            let accepted = interrupted_texts(model, sampling, 150, &with_spoiled, true);
            println!("{name}, {way:?}: {accepted} accepted");
            assert!(accepted > 40, "{name}, {way:?}, {sampling:?}: {accepted}");
        }
        interrupted_texts(model, Sampling::GREEDY, 150, &with_ngrams, true);
    });
}

fn recurrent_texts() {
    each_recurrent(&["qwen3_5", "falcon_h1", "mamba"], |_, _, model| {
        for prepare in [&with_spoiled as &dyn Fn(&mut Session), &with_ngrams] {
            interrupted_texts(model, Sampling::GREEDY, 150, prepare, true);
        }
    });
}

fn all_dropped() {
    for way in Way::ALL {
        let model = hamlet(way);
        let accepted = dropped(&|| session(&model), &Spoiled::source);
        assert!(accepted > 100, "{way:?}: {accepted}");
    }
    each_recurrent(&["qwen3_5", "lfm2", "mamba"], |name, way, model| {
        dropped_by(&format!("{name}, {way:?}"), model);
    });
}

/// Marks are where they are without drafts, in every part.
fn marks() {
    each_recurrent(&["qwen3_5", "falcon_h1"], |name, way, model| {
        marked_by(&format!("{name}, {way:?}"), model);
    });
}

/// Texts with every source, through rewinds, forks, saves and restores.
fn texts() {
    let count = long_count(150);
    for way in Way::ALL {
        let model = hamlet(way);
        for sampling in [Sampling::GREEDY, SAMPLED] {
            interrupted_text(&model, sampling, count, &with_ngrams);
            for source in [&with_spoiled as &dyn Fn(&mut Session), &with_own_model] {
                assert!(interrupted_text(&model, sampling, count, source) > 0);
            }
        }
    }
}

fn trained() {
    let drafts = repository_file("models/hamlet-draft-0.5m-Q8_0.gguf");
    let drafts = load_on(&drafts, DeviceKind::Cuda, &LoadOptions::default());
    for way in Way::ALL {
        let model = hamlet(way);
        of_a_trained_model(&|| session(&model), &drafts);
    }
}

fn interrupts() {
    for way in Way::ALL {
        let model = hamlet(way);
        interrupted(session(&model), session(&model));
    }
}

/// A runner of a model, behind a prompt, and its next tokens as single choices give them.
struct Work {
    model: Arc<Model>,
    interrupt: Arc<AtomicBool>,
}

impl Work {
    fn runner(&self, prompt: &[u32]) -> Box<dyn Runner> {
        let options = RunnerOptions {
            context: 600,
            ..Default::default()
        };
        let mut runner = self
            .model
            .weights()
            .clone()
            .create_runner(&options)
            .unwrap();
        runner.reserve_drafts(6).unwrap();
        self.submit(&mut *runner, prompt, Want::Logits, None)
            .unwrap();
        assert_eq!(runner.poll(true).unwrap(), Some(Outcome::Logits));
        runner
    }

    fn submit<'a>(
        &'a self,
        runner: &'a mut dyn Runner,
        tokens: &'a [u32],
        want: Want,
        mask: Option<&'a mut MaskSource<'a>>,
    ) -> Result<()> {
        let row = Row {
            runner,
            tokens,
            want,
            mask,
            interrupt: &self.interrupt,
            residual: Residual::default(),
        };
        let weights = self.model.weights();
        weights.submit(&mut [row], When::Now).map_err(|e| e.error)
    }

    fn next(&self, runner: &mut dyn Runner, tokens: &[u32]) -> u32 {
        let want = Want::Choices {
            count: 1,
            sampling: Sampling::GREEDY,
        };
        self.submit(runner, tokens, want, None).unwrap();
        match runner.poll(true).unwrap() {
            Some(Outcome::Token(token)) => token,
            other => panic!("{other:?}"),
        }
    }
}

fn failures() {
    for way in Way::ALL {
        failures_of(&format!("{way:?}"), hamlet(way));
    }
}

/// Masks that fail and interrupts leave all parts where they were, behind what was chosen before.
pub fn failures_of(name: &str, model: Arc<Model>) {
    let work = Work {
        model,
        interrupt: Arc::default(),
    };
    let prompt: Vec<u32> = (0..50).map(|i| i * 37 % 500).collect();
    let mut plain = work.runner(&prompt);
    let mut text = vec![work.next(&mut *plain, &[])];
    for i in 0..8 {
        let next = work.next(&mut *plain, &text[i..=i]);
        text.push(next);
    }
    let verify = Want::Verified {
        drafts: 4,
        sampling: Sampling::GREEDY,
    };
    // Behind a known token or none, a mask that fails at once, on the way or never.
    for (known, fails_at) in [
        (0, 0),
        (0, 1),
        (0, 3),
        (0, 9),
        (1, 0),
        (1, 1),
        (1, 3),
        (1, 9),
    ] {
        let what = format!("{name}, {known} known, a failure of mask {fails_at}");
        let mut runner = work.runner(&prompt);
        if known == 1 {
            assert_eq!(work.next(&mut *runner, &[]), text[0], "{what}");
        }
        let before = runner.len();
        let mut asked = 0;
        let mut mask = |words: &mut [u32]| {
            words.fill(!0);
            asked += 1;
            match asked > fails_at {
                true => Err(Error::new(Status::Grammar, "no mask")),
                false => Ok(()),
            }
        };
        let (mut chosen, mut failed) = (Vec::new(), None);
        let tokens = &text[..4 + known];
        if let Err(e) = work.submit(&mut *runner, tokens, verify, Some(&mut mask)) {
            failed = Some(e);
        }
        while failed.is_none() && chosen.len() < 5 {
            match runner.poll(true) {
                Ok(Some(Outcome::Token(token))) => chosen.push(token),
                Ok(other) => panic!("{what}: {other:?}"),
                Err(e) => failed = Some(e),
            }
        }
        assert_eq!(chosen.len(), fails_at.min(5), "{what}");
        assert_eq!(failed.is_some(), fails_at < 5, "{what}: {failed:?}");
        assert_eq!(chosen, text[known..][..chosen.len()], "{what}");
        let n = known + chosen.len();
        let mut last = match chosen.last() {
            Some(last) => {
                // A choice that was right may be in the state already.
                let len = before + n - 1;
                assert!([len, len + 1].contains(&runner.len()), "{what}");
                let mark = runner.mark_before(len);
                runner.rollback(mark);
                assert_eq!(runner.len(), len, "{what}");
                *last
            }
            None => {
                assert_eq!(runner.len(), before, "{what}");
                // The logits may be gone.
                let mark = runner.mark_before(before - usize::from(known == 0));
                runner.rollback(mark);
                assert_eq!(runner.len(), before - usize::from(known == 0), "{what}");
                *text[..known].last().unwrap_or(&prompt[49])
            }
        };
        for token in &text[n..] {
            last = work.next(&mut *runner, &[last]);
            assert_eq!(last, *token, "{what}");
        }
    }
    let mut runner = work.runner(&prompt);
    work.next(&mut *runner, &[]);
    let before = runner.len();
    work.interrupt.store(true, Ordering::Relaxed);
    let e = work.submit(&mut *runner, &text[..5], verify, None);
    assert_eq!(e.unwrap_err().status, Status::Interrupted, "{name}");
    work.interrupt.store(false, Ordering::Relaxed);
    assert_eq!(runner.len(), before, "{name}");
    assert_eq!(work.next(&mut *runner, &text[..1]), text[1], "{name}");
}

fn options() {
    for way in Way::ALL {
        options_of(&format!("{way:?}"), &hamlet(way));
    }
}

/// As many rows as all parts have, up to the end of the context.
pub fn options_of(name: &str, model: &Arc<Model>) {
    let more = DraftOptions {
        most: 16,
        ..Default::default()
    };
    let most = DraftOptions {
        most: 15,
        always: true,
    };
    let (mut plain, mut s) = (session(model), session(model));
    let e = s.set_ngram_drafts(0, &more).unwrap_err();
    assert_eq!(e.status, Status::InvalidArgument);
    assert!(e.message.contains("up to 15"), "{e}");
    let source = Spoiled::source(&s, 3);
    s.set_draft_source(source, &most).unwrap();
    let prompt: Vec<u32> = (0..900).map(|i| i * 37 % 500).collect();
    for session in [&mut plain, &mut s] {
        session.prefill(&prompt).unwrap();
    }
    let rest = s.context() - s.position();
    assert!(decoded(&mut s, rest) == decoded(&mut plain, rest));
    assert_eq!(s.decode().unwrap_err().status, Status::ContextFull);
    let stats = s.speculation().unwrap().stats;
    assert!(stats.drafted > 2 * stats.steps, "{name}: {stats:?}");
    assert!(bits(&mut s) == bits(&mut plain), "{name}");
}

/// Each allocation on a GPU fails in turn, of making room for drafts and of decoding with them: nothing is lost.
fn out_of_memory() {
    let context = context();
    let prompt: Vec<u32> = (0..60).map(|i| 100 + i % 7).collect();
    for way in [Way::GpuGpu, Way::CpuGpu, Way::GpuCpu] {
        let model = hamlet(way);
        let begun = || {
            let mut session = session(&model);
            session.prefill(&prompt).unwrap();
            session
        };
        let expected = decoded(&mut begun(), 30);
        let mut failed = 0;
        for n in 0.. {
            let mut session = begun();
            let mut said = Vec::new();
            context.fail_allocation(n);
            let done = session.set_ngram_drafts(1, &ALWAYS).and_then(|()| {
                while said.len() < 20 {
                    said.push((session.decode()?, None));
                }
                Ok(())
            });
            context.fail_allocation(-1);
            let is_done = match done {
                Ok(()) => true,
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory, "{way:?}: {e}");
                    session.set_ngram_drafts(1, &ALWAYS).unwrap();
                    false
                }
            };
            said.extend(decoded(&mut session, 30 - said.len()));
            assert!(said == expected, "{way:?}, allocation {n}");
            if is_done {
                break;
            }
            failed += 1;
        }
        println!("{way:?}: {failed} allocations failed");
        assert!(failed > 1, "{way:?}");
    }
}
