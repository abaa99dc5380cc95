//! The tests' own oracle, and the description of every family that it runs on, against Hugging Face
//! transformers: two independent implementations that agree are worth trusting.

use crate::common::expected::Expected;
use crate::common::{families, hamlet, reference_llama};
use emberlm::format::ModelFile;
use emberlm::model::Network;

/// Transformers computes in single precision; its logits, up to 25, are within 2e-5 of exact.
const TOLERANCE: f64 = 1e-4;

fn compare(name: &str, file: &ModelFile, expected: &Expected) {
    let network = Network::from_file(file).unwrap();
    let logits = reference_llama::logits(&network, &expected.tokens);
    assert_eq!(logits.len(), expected.logits.len());
    let mut largest = 0.0_f64;
    for (position, (ours, theirs)) in logits.iter().zip(&expected.logits).enumerate() {
        assert_eq!(ours.len(), theirs.len());
        for (token, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let difference = (a - f64::from(*b)).abs();
            assert!(
                difference < TOLERANCE,
                "{name}, position {position}, token {token}: {a}, transformers {b}"
            );
            largest = largest.max(difference);
        }
    }
    println!("{name}: largest difference {largest:.2e}");
}

#[test]
fn agrees_with_transformers_on_the_committed_file() {
    let expected = Expected::read("hamlet_q4_k_m_logits");
    compare("hamlet Q4_K_M", &hamlet::q4_k_m(), &expected);
}

#[test]
fn agrees_with_transformers_on_every_family() {
    for name in families::NAMES {
        let expected = Expected::read(&format!("families/{name}"));
        compare(name, &families::open(name), &expected);
    }
    for &name in families::FAMILIES {
        let expected = Expected::read(&format!("families/{name}/logits"));
        compare(name, &families::open_family(name), &expected);
    }
    let short = Expected::read("families/phi3/short");
    compare("phi3", &families::open_family("phi3"), &short);
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn agrees_with_transformers_on_the_original_weights() {
    let expected = Expected::read("hamlet_f16_logits");
    compare("hamlet F16", &hamlet::f16(), &expected);
}
