//! The tests' own oracle against Hugging Face transformers: two independent implementations that
//! agree are worth trusting.

mod common;

use common::hamlet::{self, Expected};
use common::reference_llama;
use emberlm::format::ModelFile;
use emberlm::model::Network;

/// Transformers computes in single precision: its logits, up to 25, are within 2e-5 of exact.
const TOLERANCE: f64 = 1e-4;

fn compare(file: &ModelFile, expected: &Expected) {
    let network = Network::from_file(file).unwrap();
    let logits = reference_llama::logits(&network, &expected.tokens);
    assert_eq!(logits.len(), expected.logits.len());
    for (position, (ours, theirs)) in logits.iter().zip(&expected.logits).enumerate() {
        assert_eq!(ours.len(), theirs.len());
        for (token, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let b = f64::from(*b);
            assert!(
                (a - b).abs() < TOLERANCE,
                "position {position}, token {token}: {a}, transformers {b}"
            );
        }
    }
}

#[test]
fn agrees_with_transformers_on_the_committed_file() {
    compare(&hamlet::q4_k_m(), &hamlet::expected("q4_k_m"));
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn agrees_with_transformers_on_the_original_weights() {
    compare(&hamlet::f16(), &hamlet::expected("f16"));
}
