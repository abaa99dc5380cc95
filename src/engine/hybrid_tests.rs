//! What a session of a model with recurrent layers evaluates, position by position, in a chat.

use super::*;
use crate::backend::cpu::CpuWeights;
use crate::backend::{KvType, Row, RowResult, Runner, RunnerOptions, Weights, When};
use crate::format::ModelFile;
use crate::model::{KvShape, Network};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../../tests/common/xz.rs"]
mod xz;

/// Weights that count the tokens that they evaluate.
struct Counting {
    weights: Arc<CpuWeights>,
    evaluated: AtomicUsize,
}

impl Counting {
    /// Tokens since the last call.
    fn take(&self) -> usize {
        self.evaluated.swap(0, Ordering::Relaxed)
    }
}

impl Weights for Counting {
    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        self.weights.clone().create_runner(options)
    }

    fn resident_bytes(&self) -> u64 {
        self.weights.resident_bytes()
    }

    fn kv_layers(&self) -> &[KvShape] {
        self.weights.kv_layers()
    }

    fn fixed_len(&self) -> usize {
        self.weights.fixed_len()
    }

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        self.weights.takes_kv_type(kv_type)
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        self.weights.kv_bytes_per_token(kv_type)
    }

    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()> {
        let tokens = rows.iter().map(|row| row.tokens.len()).sum();
        self.evaluated.fetch_add(tokens, Ordering::Relaxed);
        self.weights.submit(rows, when)
    }
}

fn counting(family: &str) -> (Arc<Counting>, Arc<Model>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(root.join(format!("tests/data/families/{family}/weights.xz")));
    let (gguf, _) = xz::weights(&packed.unwrap());
    let network = Network::from_file(&ModelFile::from_bytes(&gguf).unwrap()).unwrap();
    assert!(
        CpuWeights::load(&network, 1, &mut |_| Ok(()))
            .unwrap()
            .fixed_len()
            > 0
    );
    let counting = Arc::new(Counting {
        weights: CpuWeights::load(&network, 1, &mut |_| Ok(())).unwrap(),
        evaluated: AtomicUsize::new(0),
    });
    let model = Model::from_weights(counting.clone(), network.n_vocab, network.context_length);
    (counting, Arc::new(model))
}

/// Tokens of a conversation, the same for the same seed.
fn words(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32)
        .map(|i| (i * 31 + seed * 17 + 5) % 96)
        .collect()
}

/// Each turn of a chat comes with the whole conversation, in which the last answer is not what the model
/// wrote: templates leave its thoughts out. The session goes back to the end of the last prompt, where it has
/// a copy of its state, and evaluates the answer and the new question alone.
#[test]
fn a_turn_of_a_chat_evaluates_what_is_new_alone() {
    for family in [
        "lfm2",
        "qwen3_5",
        "granite_hybrid",
        "nemotron_h",
        "falcon_h1",
    ] {
        let (counting, model) = counting(family);
        let mut session = Session::create(model.clone(), &SessionOptions::default()).unwrap();
        let mut conversation = words(1, 14);
        assert_eq!(session.sync(&conversation).unwrap(), 0);
        assert_eq!(counting.take(), conversation.len(), "{family}");
        for turn in 2..5 {
            let prompt = conversation.len();
            let wrote: Vec<u32> = (0..6).map(|_| session.decode().unwrap()).collect();
            counting.take();
            // As what was kept of the answer begins otherwise, nothing of it is in common.
            let mut answer = words(turn, 4);
            answer[0] = (wrote[0] + 1) % 96;
            conversation.extend(answer);
            conversation.extend(words(10 * turn, 5));
            assert_eq!(session.sync(&conversation).unwrap(), prompt, "{family}");
            assert_eq!(
                counting.take(),
                conversation.len() - prompt,
                "{family}, turn {turn}"
            );
            // And the state is that of the conversation.
            let mut fresh = Session::create(model.clone(), &SessionOptions::default()).unwrap();
            fresh.sync(&conversation).unwrap();
            let mut logits = [vec![0.0; 96], vec![0.0; 96]];
            session.logits(&mut logits[0]).unwrap();
            fresh.logits(&mut logits[1]).unwrap();
            assert_eq!(logits[0], logits[1], "{family}, turn {turn}");
            counting.take();
        }
    }
}
