//! OPT: learned positions that are counted from 2 on, and ReLU.

use super::families::{Family, Layout};
use super::keys::Keys;
use super::later::only;
use super::stored::Stored;
use crate::error::{Result, fail};
use serde_json::json;

/// The row of the first position.
const FIRST_POSITION: usize = 2;

pub(super) const OPT: Family = Family {
    model_types: &["opt"],
    classes: &["OPTForCausalLM"],
    architecture: "opt",
    activations: &["relu"],
    parts: &[&[
        ("self_attn_layer_norm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.out_proj", "attn_output"),
        ("final_layer_norm", "ffn_norm"),
        ("fc1", "ffn_up"),
        ("fc2", "ffn_down"),
    ]],
    layout: Layout::Same,
    rope: false,
    defaults: || json!({"layer_norm_eps": 1e-5, "activation_function": "relu", "max_position_embeddings": 2048}),
    tied: true,
    bias_flags: &[],
    keys: opt,
};

fn opt(k: &mut Keys) -> Result<()> {
    k.copy_size("ffn_dim", "feed_forward_length")?;
    for (key, value) in [
        ("do_layer_norm_before", true),
        ("enable_bias", true),
        ("layer_norm_elementwise_affine", true),
        ("_remove_final_layer_norm", false),
    ] {
        only(k, key, &json!(value))?;
    }
    if let Some(width) = k.config.find("word_embed_proj_dim")
        && *width != json!(k.config.size(&["hidden_size"])?)
    {
        fail!(
            Unsupported,
            "config.json: word_embed_proj_dim is {width}; embeddings of another width than the network's are not supported"
        );
    }
    Ok(())
}

/// The rows that positions have, of the position embedding.
pub(super) fn positions(
    stored: &Stored,
    mut dims: Vec<usize>,
    mut values: Vec<f32>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let [columns, rows] = dims[..] else {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; the model needs a matrix",
            stored.name,
            stored.shape
        );
    };
    if rows <= FIRST_POSITION {
        fail!(
            ShapeMismatch,
            "tensor {} has {rows} rows; the model needs more than {FIRST_POSITION}",
            stored.name
        );
    }
    values.drain(..FIRST_POSITION * columns);
    dims[1] -= FIRST_POSITION;
    Ok((dims, values))
}
