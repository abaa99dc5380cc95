//! Models of `common/variants.rs` against the plain evaluation of their networks in f64, and in batches, forks, saved sessions and random
//! lives: Command R+, Phi-3.5-MoE, MiMo V2, Laguna, and families that came later (`common/later.rs`).

use crate::common::TempDir;
use crate::common::drafts::{ALWAYS, Spoiled};
use crate::common::expected::Expected;
use crate::common::families::open_family;
use crate::common::later;
use crate::common::reference_llama;
use crate::common::states::{bits, random_life, random_life_of, restored, saved, session_with};
use crate::common::tiny::Random;
use crate::families::{
    batches_change_nothing, beyond_the_ring, forks_go_their_own_way, matches_logits,
};
use crate::gpu::{Tests, context, floats, load_on};
use emberlm::Status;
use emberlm::backend::cpu::CpuWeights;
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{DeviceKind, KvType, LoadOptions};
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::model::{Mixer, Network};

/// A model.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    architecture: &'static str,
    /// Whether it has layers with a window.
    has_window: bool,
    /// Whether it has layers with a state of fixed size, of which a restored session has no marks.
    is_recurrent: bool,
    /// The number of its text. SparseMixer's weights are steps of the scores, so that little errors can send a token elsewhere, and all
    /// behind it with that: of its texts, no token is near a step.
    text: u64,
    /// How far logits may be from those in f64 with f16 caches, as a share of the largest one.
    bound: f32,
}

/// One whose file is that of `later::FILES` of this name.
const fn variant(name: &'static str, architecture: &'static str) -> Variant {
    Variant {
        name,
        architecture,
        has_window: false,
        is_recurrent: false,
        text: 3,
        bound: BOUND,
    }
}

const fn windowed(name: &'static str, architecture: &'static str) -> Variant {
    Variant {
        has_window: true,
        ..variant(name, architecture)
    }
}

const VARIANTS: [Variant; 37] = [
    variant("hyperclova", "hyperclovax"),
    variant("hyperclova_post_norms", "hyperclovax"),
    windowed("vault_gemma", "vaultgemma"),
    variant("flex_olmo", "flex_olmo"),
    variant("dbrx", "dbrx"),
    // Its positions are learned, so it does not go beyond a ring.
    variant("gpt_neo", "gptneo"),
    windowed("step", "step35"),
    windowed("limited_step", "step35"),
    windowed("muse_glimmer", "muse-glimmer"),
    variant("bloom", "bloom"),
    variant("falcon_rw", "falcon"),
    variant("mpt", "mpt"),
    Variant {
        is_recurrent: true,
        ..variant("kimi_linear", "kimi-linear")
    },
    Variant {
        is_recurrent: true,
        ..variant("ling_3", "bailingmoe3")
    },
    // What a head makes of its first tokens is little more than the epsilon of its norm, which makes errors larger.
    Variant {
        is_recurrent: true,
        bound: 2e-2,
        ..variant("olmo_hybrid", "olmo_hybrid")
    },
    Variant {
        is_recurrent: true,
        ..variant("lfm3", "lfm3")
    },
    variant("maincoder", "maincoder"),
    windowed("spark", "spark2_5"),
    variant("ling_1", "bailingmoe"),
    variant("deepseek", "deepseek"),
    variant("qwen_1", "qwen"),
    variant("codeshell", "codeshell"),
    variant("refact", "refact"),
    variant("openelm", "openelm"),
    variant("deci", "deci"),
    variant("nanbeige", "nanbeige"),
    windowed("plamo_3", "plamo3"),
    variant("jais", "jais"),
    variant("plm", "plm"),
    variant("hunyuan_vl", "hunyuan_vl"),
    variant("command_r_plus", "command-r"),
    windowed("laguna", "laguna"),
    windowed("wide_laguna", "laguna"),
    windowed("mimo_v2", "mimo2"),
    windowed("wide_mimo_v2", "mimo2"),
    Variant {
        text: 94,
        ..variant("phi_moe", "phimoe")
    },
    Variant {
        text: 351,
        ..variant("near_phi_moe", "phimoe")
    },
];

pub fn tests(tests: &mut Tests) {
    tests.push(("variants::refused".into(), Box::new(refused)));
    for variant in VARIANTS {
        let mut push = |what: &str, test: fn(&Variant)| {
            let name = format!("variants::{what}::{}", variant.name);
            tests.push((name, Box::new(move || test(&variant))));
        };
        push("matches", |v| {
            let expected = v.expected();
            matches_logits((v.name, "logits"), &v.network(), &expected, (64, v.bound));
        });
        push("batches", |v| {
            batches_change_nothing(v.name, &v.network(), &v.tokens())
        });
        push("forks", |v| {
            forks_go_their_own_way(v.name, &v.network(), &v.tokens())
        });
        if !variant.is_recurrent {
            push("lives", lives);
        }
        push("across_devices", across_devices);
        if variant.has_window {
            push("beyond_the_ring", |v| beyond_the_ring(v.name, v.network()));
        }
    }
}

/// What kernels cannot do so far is said by layer or tensor, and the CPU does it.
fn refused() {
    let network = |name: &str| Network::from_file(&open_family(name)).unwrap();
    let mut gated = network("qwen3_5");
    let Mixer::DeltaNet(delta) = &mut gated.blocks[0].mixer else {
        panic!("a delta net");
    };
    delta.sigmoid_gate = true;
    let odd = Network::from_file(&later::kimi_linear(14).file.open()).unwrap();
    for (network, why) in [
        (gated, "layer 0: a delta net whose gates are sigmoids"),
        (odd, "blk.0.ssm_f_a.weight: 14 rows"),
    ] {
        let refused = CudaWeights::load_into(&context(), &network, &mut |_| Ok(()));
        let e = refused.err().unwrap();
        assert_eq!(e.status, Status::Unsupported, "{e}");
        assert!(e.message.contains(why), "{e}");
        assert!(CpuWeights::load(&network, 1, &mut |_| Ok(())).is_ok());
    }
}

/// Of the largest logit, as of the other families.
const BOUND: f32 = 1e-2;

impl Variant {
    fn network(&self) -> Network {
        Network::from_file(&later::file(self.name).open()).unwrap()
    }

    fn tokens(&self) -> Vec<u32> {
        let n_vocab = self.network().n_vocab as u64;
        let mut random = Random::new(self.text, "tokens of variants");
        (0..40).map(|_| (random.bits() % n_vocab) as u32).collect()
    }

    fn expected(&self) -> Expected {
        let tokens = self.tokens();
        let row = |row: &Vec<f64>| row.iter().map(|v| *v as f32).collect();
        let exact = reference_llama::logits(&self.network(), &tokens);
        Expected {
            logits: exact.iter().map(row).collect(),
            tokens,
        }
    }

    /// The file of the model, with a longer context.
    fn file(&self, dir: &TempDir) -> std::path::PathBuf {
        let mut file = later::file(self.name);
        let key = format!("{}.context_length", self.architecture);
        file.set(&key, 4096u32);
        dir.file("model.gguf", &file.bytes())
    }
}

fn lives(variant: &Variant) {
    let dir = TempDir::new("gpu-variants");
    let path = variant.file(&dir);
    let model = load_on(&path, DeviceKind::Cuda, &LoadOptions::default());
    for seed in 0..2 {
        random_life(&model, seed, 50, false);
        // And with drafts, which are rows of a step that share their session's caches.
        random_life_of(&model, seed, 50, false, &mut |session| {
            let source = Spoiled::source(session, 30);
            session.set_draft_source(source, &ALWAYS).unwrap();
        });
    }
}

/// What one device has saved, the other goes on with: keys and values are the same within the bound.
fn across_devices(variant: &Variant) {
    let dir = TempDir::new("gpu-variants");
    let path = variant.file(&dir);
    let expected = variant.expected();
    let last = &expected.logits[expected.logits.len() - 1];
    let largest = last.iter().fold(0f32, |a, b| a.max(b.abs()));
    let (before, rest) = expected.tokens.split_at(25);
    let models = [DeviceKind::Cuda, DeviceKind::Cpu]
        .map(|kind| load_on(&path, kind, &LoadOptions::default()));
    for (from, to) in [(0, 1), (1, 0)] {
        let mut there = session_with(&models[from], KvType::F16);
        there.prefill(before).unwrap();
        let bytes = saved(&mut there, Kind::Everything);
        let mut here = restored(&models[to], &bytes, &RestoreOptions::default()).unwrap();
        here.prefill(rest).unwrap();
        let got = floats(&bits(&mut here));
        let apart = got.iter().zip(last).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0f32, f32::max) / largest;
        println!("{}, {from} to {to}: {apart:.1e}", variant.name);
        assert!(apart < BOUND, "{}, {from} to {to}: {apart}", variant.name);
    }
}
