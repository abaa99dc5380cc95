//! Rotary embedding: the frequencies that each kind of scaling gives.

use crate::common::tiny::Tiny;
use emberlm::format::writer::Writer;
use emberlm::format::{ModelFile, Value};
use emberlm::model::{Network, Rope};
use emberlm::{Error, Status};

/// The network of a tiny model with changed metadata.
fn with(tiny: &Tiny, change: impl FnOnce(&mut Writer)) -> Result<Network, Error> {
    let mut writer = tiny.writer();
    change(&mut writer);
    Network::from_file(&ModelFile::from_bytes(&tiny.write(&writer))?)
}

fn rope(tiny: &Tiny, change: impl FnOnce(&mut Writer)) -> Rope {
    let network = with(tiny, change).unwrap();
    let ropes: Vec<_> = network.blocks.iter().map(|b| b.mixer.rope()).collect();
    assert!(ropes.iter().all(|rope| *rope == ropes[0]));
    ropes[0].unwrap().clone()
}

/// Fails unless each number is within a few units in the last place of single precision.
fn assert_near(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let relative = (f64::from(*f) - e).abs() / e;
        assert!(relative < 3e-7, "frequency {i} is {f}, not {e}");
    }
}

/// Plain frequencies for 8 rotated elements and base 10000.
const PLAIN: [f64; 4] = [1.0, 0.1, 0.01, 0.001];

#[test]
fn plain_and_linear_rope() {
    let tiny = Tiny::default();
    let plain = rope(&tiny, |_| {});
    assert_near(&plain.inv_freq, &PLAIN);
    assert_eq!(plain.magnitude, 1.0);
    let quarter = PLAIN.map(|f| f / 4.0);
    let set = |values: &[(&str, Value)]| {
        rope(&tiny, |w| {
            for (key, value) in values {
                w.set(&format!("llama.rope.{key}"), value.clone());
            }
        })
    };
    let linear = Value::from("linear");
    let four = Value::F32(4.0);
    assert_near(
        &set(&[
            ("scaling.type", linear.clone()),
            ("scaling.factor", four.clone()),
        ])
        .inv_freq,
        &quarter,
    );
    // Without a type a factor means linear; so does the older key.
    assert_near(&set(&[("scaling.factor", four.clone())]).inv_freq, &quarter);
    assert_near(&set(&[("scale_linear", four.clone())]).inv_freq, &quarter);
    assert_near(&set(&[("scale_linear", Value::F32(0.0))]).inv_freq, &PLAIN);
    assert_near(&set(&[("scaling.type", linear)]).inv_freq, &PLAIN);
    assert_near(
        &set(&[("scaling.type", "none".into()), ("scaling.factor", four)]).inv_freq,
        &PLAIN,
    );
    assert_eq!(
        set(&[("scaling.attn_factor", Value::F32(1.5))]).magnitude,
        1.5
    );

    let half = Tiny {
        rotated: Some(4),
        ..tiny.clone()
    };
    assert_near(&rope(&half, |_| {}).inv_freq, &[1.0, 0.01]);
}

/// Llama 3.1's scaling comes as a tensor of divisors, which converters compute.
#[test]
fn rope_factors_divide_the_frequencies() {
    let tiny = Tiny {
        head_dim: 16,
        rope_base: 500_000.0,
        rope_factors: Some(vec![1.0, 1.0, 1.0, 1.0, 2.694_530_2, 8.0, 8.0, 8.0]),
        ..Tiny::default()
    };
    // transformers 5, `llama3`: factor 8, low 1, high 4, original context 8192.
    let expected = [
        1.0,
        0.193922758,
        0.0376060307,
        0.00729266508,
        0.000524846022,
        3.42810235e-05,
        6.64786967e-06,
        1.28917316e-06,
    ];
    assert_near(&rope(&tiny, |_| {}).inv_freq, &expected);
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut tiny = tiny.clone();
        tiny.rope_factors.as_mut().unwrap()[3] = bad;
        let error = with(&tiny, |_| {}).unwrap_err();
        assert_eq!(error.status, Status::InvalidModel);
        assert!(
            error
                .message
                .contains("element 3 of tensor rope_freqs.weight")
        );
    }
}

/// Expected values: the formulas of `_compute_yarn_parameters` of transformers 5, evaluated in
/// double precision by a script of their own and compared with that function's single precision.
#[test]
fn yarn_rope_is_that_of_transformers() {
    let tiny = Tiny {
        head_dim: 64,
        context: 65_536,
        rope_scaling: Some(("yarn", 16.0)),
        ..Tiny::default()
    };
    let original = |w: &mut Writer| {
        w.set("llama.rope.scaling.original_context_length", 4096u32);
    };
    let found = rope(&tiny, original);
    let expected = [
        1.0,
        0.749894209,
        0.562341325,
        0.421696503,
        0.316227766,
        0.237137371,
        0.177827941,
        0.133352143,
        0.1,
        0.0749894209,
        0.0562341325,
        0.0391285698,
        0.0270617992,
        0.0185833613,
        0.012653142,
        0.00852684377,
        0.00567307692,
        0.00371341844,
        0.00237913638,
        0.00147999254,
        0.000881788963,
        0.00049023591,
        0.000239383767,
        8.33450895e-05,
        6.25e-05,
        4.68683881e-05,
        3.51463328e-05,
        2.63560315e-05,
        1.97642354e-05,
        1.48210857e-05,
        1.11142463e-05,
        8.33450895e-06,
    ];
    assert_near(&found.inv_freq, &expected);
    assert_near(&[found.magnitude], &[1.2772588722239782]);

    let scaled = rope(&tiny, |w| {
        original(w);
        w.set("llama.rope.scaling.attn_factor", 0.5f32)
            .set("llama.rope.scaling.yarn_attn_factor", 3.0f32);
    });
    // A factor that is given takes the place of the one that YaRN would compute.
    assert_near(&[scaled.magnitude], &[1.5]);

    // Without extrapolation YaRN is linear scaling.
    let interpolated = rope(&tiny, |w| {
        original(w);
        w.set("llama.rope.scaling.yarn_ext_factor", 0.0f32);
    });
    let linear = rope(
        &Tiny {
            rope_scaling: Some(("linear", 16.0)),
            ..tiny.clone()
        },
        |_| {},
    );
    assert_eq!(interpolated, linear);
    let error = with(&tiny, |w| {
        w.set("llama.rope.scaling.yarn_log_multiplier", 1.0f32);
    });
    assert_eq!(error.unwrap_err().status, Status::Unsupported);
}

#[test]
fn yarn_rope_takes_betas_and_the_context_length() {
    let tiny = Tiny {
        head_dim: 16,
        rope_base: 1_000_000.0,
        // Stands in for the original context, which the file does not give.
        context: 32_768,
        rope_scaling: Some(("yarn", 4.0)),
        ..Tiny::default()
    };
    let found = rope(&tiny, |w| {
        w.set("llama.rope.scaling.yarn_beta_fast", 48.0f32)
            .set("llama.rope.scaling.yarn_beta_slow", 2.0f32);
    });
    let expected = [
        1.0,
        0.177827941,
        0.0316227766,
        0.00421755994,
        0.0005,
        4.44569853e-05,
        7.90569415e-06,
        1.40585331e-06,
    ];
    assert_near(&found.inv_freq, &expected);
    assert_near(&[found.magnitude], &[1.138629436111989]);
}
