//! Models with a head that guesses further tokens: tiny random ones, whose heads are right now and then, as folders.

use super::folder::{Folder, Stored};
use super::reference_llama::{self as reference, Rows};
use super::tiny::Random;
use emberlm::format::ModelFile;
use emberlm::model::Network;
use emberlm::quant::{TensorType, dequantize_row};
use serde_json::json;

/// Families of which folders have heads.
pub const WITH_HEADS: [&str; 6] = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "glm4",
    "glm4_moe",
    "deepseek_v3",
];

/// How much less than otherwise layers add to the residual stream, so that the token decides what follows it, most of the time.
const WEAK: f32 = 0.05;

fn values(stored: &Stored) -> Vec<f32> {
    let mut values = vec![0.0; stored.shape.iter().product()];
    let ty = match &*stored.ty {
        "F16" => TensorType::F16,
        "F32" => TensorType::F32,
        other => panic!("{other}"),
    };
    dequantize_row(ty, &stored.bytes, &mut values);
    values
}

fn scaled(stored: &Stored, factor: f32) -> Stored {
    let values: Vec<f32> = values(stored).iter().map(|v| v * factor).collect();
    Stored::f32(&stored.shape, &values)
}

/// A folder of `data/families` with a head, of which the layer is that of another layer, spoiled. A head of GLM's or DeepSeek's has an
/// embedding and an output matrix of its own, if `own`.
pub fn folder(name: &str, own: bool) -> Folder {
    let mut folder = Folder::family(name);
    let mut random = Random::new(7, name);
    let size = |key: &str| folder.config[key].as_u64().unwrap() as usize;
    let (hidden, n_layers) = (size("hidden_size"), size("num_hidden_layers"));
    let qwen = name.starts_with("qwen");
    // One that attends.
    let like = if qwen { 2 } else { n_layers - 1 };
    let like = match name {
        "qwen3_next" => (0..n_layers)
            .find(|layer| {
                folder
                    .tensors
                    .contains_key(&format!("model.layers.{layer}.self_attn.q_proj.weight"))
            })
            .unwrap(),
        _ => like,
    };
    let adds = [
        "o_proj.weight",
        "out_proj.weight",
        "down_proj.weight",
        "down_proj",
        // Behind these, of GLM 4.
        "post_self_attn_layernorm.weight",
        "post_mlp_layernorm.weight",
    ];
    for (name, stored) in &mut folder.tensors {
        if adds.iter().any(|end| name.ends_with(end)) {
            *stored = scaled(stored, WEAK);
        }
    }
    let layer = format!("model.layers.{like}.");
    let of_layer = |(name, stored): (&String, &Stored)| {
        Some((name.strip_prefix(&layer)?.to_owned(), stored.clone()))
    };
    let theirs: Vec<_> = folder.tensors.iter().filter_map(of_layer).collect();
    let head = match qwen {
        true => "mtp.layers.0.".to_owned(),
        false => format!("model.layers.{n_layers}."),
    };
    for (part, stored) in theirs {
        let values: Vec<f32> = values(&stored)
            .iter()
            .map(|v| v * (1.0 + 0.2 * random.signed_unit()))
            .collect();
        let spoiled = Stored::f32(&stored.shape, &values);
        folder.tensors.insert(format!("{head}{part}"), spoiled);
    }
    // The embedding as it is, and a bit of the hidden state.
    let mut projection = vec![0.0; 2 * hidden * hidden];
    for (i, row) in projection.chunks_exact_mut(2 * hidden).enumerate() {
        row[i] = 1.0;
        row[hidden..]
            .iter_mut()
            .for_each(|v| *v = 0.05 * random.signed_unit());
    }
    // Qwen's are stored less one.
    let one = if qwen { 0.0 } else { 1.0 };
    let mut norm = || -> Vec<f32> {
        (0..hidden)
            .map(|_| one + 0.2 * random.signed_unit())
            .collect()
    };
    let (token, state, last) = (norm(), norm(), norm());
    let beside = match qwen {
        true => [
            "mtp.fc.weight",
            "mtp.pre_fc_norm_embedding.weight",
            "mtp.pre_fc_norm_hidden.weight",
            "mtp.norm.weight",
        ]
        .map(str::to_owned),
        false => ["eh_proj", "enorm", "hnorm", "shared_head.norm"]
            .map(|part| format!("{head}{part}.weight")),
    };
    let [p, t, s, l] = beside;
    folder
        .tensors
        .insert(p, Stored::f32(&[hidden, 2 * hidden], &projection));
    for (name, values) in [(t, token), (s, state), (l, last)] {
        folder.tensors.insert(name, Stored::f32(&[hidden], &values));
    }
    if own && !qwen {
        for (own, theirs) in [
            ("embed_tokens", "model.embed_tokens.weight"),
            ("shared_head.head", "lm_head.weight"),
        ] {
            let spoiled: Vec<f32> = values(&folder.tensors[theirs])
                .iter()
                .map(|v| v * (1.0 + 0.1 * random.signed_unit()))
                .collect();
            let shape = folder.tensors[theirs].shape.clone();
            folder
                .tensors
                .insert(format!("{head}{own}.weight"), Stored::f32(&shape, &spoiled));
        }
    }
    if !qwen {
        folder.set("num_nextn_predict_layers", json!(1));
    }
    folder.set("max_position_embeddings", json!(8192));
    folder
}

/// The network of a file and its head.
pub fn networks(mut file: ModelFile) -> (Network, Network) {
    file.has_predictor = true;
    let mut network = Network::from_file(&file).unwrap();
    let head = network.predictor.take().unwrap();
    (network, (*head).clone())
}

/// What a head's layers begin with: of the hidden states of positions and the tokens behind them.
pub fn entered(head: &Network, states: &Rows, tokens: &[u32]) -> Rows {
    let entry = head.entry.as_ref().unwrap();
    let both = states.iter().zip(reference::embedded(head, tokens));
    let both = both.map(|(state, token)| {
        let token = reference::norm_row(&entry.token_norm, &token);
        let state = reference::norm_row(&entry.state_norm, state);
        [token, state].concat()
    });
    reference::linear(&entry.projection, &both.collect())
}

/// The logits of a head behind each token but the first, by the model's hidden states, and behind the last one those of `further`
/// tokens by the head's own.
pub fn logits(network: &Network, head: &Network, tokens: &[u32], further: &[u32]) -> Rows {
    let normed = |network: &Network, rows: &Rows| -> Rows {
        rows.iter()
            .map(|row| reference::norm_row(&network.final_norm, row))
            .collect()
    };
    let x = reference::embedded(network, tokens);
    let mut states = normed(network, &reference::residual(network, x, tokens));
    states.pop();
    let mut behind = tokens[1..].to_vec();
    for token in further.iter().map(Some).chain([None]) {
        let x = reference::residual(head, entered(head, &states, &behind), &behind);
        let own = normed(head, &x);
        if let Some(token) = token {
            states.push(own.last().unwrap().clone());
            behind.push(*token);
        } else {
            return reference::head(head, &x);
        }
    }
    unreachable!()
}
