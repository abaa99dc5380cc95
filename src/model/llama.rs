//! `llama`: Llama 2 to 3.2, Mistral, Mixtral, TinyLlama, SmolLM2 and others of their shape.
//!
//! Mistral's `llama.attention.sliding_window` is not used: attention sees the whole context, as
//! in other GGUF engines. Up to the window's length that is the same.

use super::experts::{Defaults, Mixture};
use super::source::Source;
use super::{
    Activation, Attention, Block, FeedForward, Linear, Mlp, Network, Rope, RopePairing, Scoring,
    rope,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Strings};

/// Largest head size that is taken seriously.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Sizes and constants that all layers share.
struct Shape {
    hidden: usize,
    n_ff: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    eps: f32,
    attention_scale: f32,
    experts: Option<Mixture>,
}

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    const N_LAYERS: &str = "block_count";
    let source = Source::new(file, "llama");
    refuse_variants(&source)?;

    let n_layers = source.size(N_LAYERS)?;
    if n_layers > file.tensors.len() {
        let problem = format!(
            "is {n_layers}, but the file has only {} tensors",
            file.tensors.len()
        );
        return Err(source.invalid(N_LAYERS, &problem));
    }
    let shape = shape(&source, n_layers)?;
    let context_length = source.size("context_length")?;
    let rope = rope::from_source(
        &source,
        shape.head_dim,
        context_length,
        RopePairing::Interleaved,
    )?;

    let embedding = file.tensor("token_embd.weight")?;
    let n_vocab = source.find_size("vocab_size")?.unwrap_or(embedding.rows());
    let embedding = source.matrix("token_embd.weight", shape.hidden, n_vocab)?;
    if let Some(tokens) = file.find::<&Strings>("tokenizer.ggml.tokens")?
        && tokens.len() != n_vocab
    {
        fail!(
            InvalidModel,
            "tokenizer.ggml.tokens has {} tokens, but tensor token_embd.weight has {n_vocab} rows",
            tokens.len()
        );
    }
    let head = if file.tensors.contains_key("output.weight") {
        source.linear("output", shape.hidden, n_vocab)?
    } else {
        Linear {
            weight: embedding.clone(),
            bias: source.find_vector("output.bias", n_vocab)?,
        }
    };

    let mut blocks = Vec::new();
    if blocks.try_reserve_exact(n_layers).is_err() {
        fail!(OutOfMemory, "{n_layers} layers could not be allocated");
    }
    for layer in 0..n_layers {
        blocks.push(block(&source, layer, &shape, &rope)?);
    }
    Ok(Network {
        architecture: "llama".to_owned(),
        hidden: shape.hidden,
        n_vocab,
        context_length,
        embedding,
        embedding_scale: 1.0,
        positions: None,
        blocks,
        final_norm: source.norm("output_norm", shape.hidden, shape.eps)?,
        head,
        logit_scale: 1.0,
        logit_cap: None,
    })
}

/// Refuses models of this architecture whose blocks are of another kind.
fn refuse_variants(source: &Source) -> Result<()> {
    if source.find::<bool>("attention.causal")? == Some(false) {
        fail!(
            Unsupported,
            "{} is false; only causal attention is supported",
            source.key("attention.causal")
        );
    }
    Ok(())
}

fn shape(source: &Source, n_layers: usize) -> Result<Shape> {
    const HEADS: &str = "attention.head_count";
    const KV_HEADS: &str = "attention.head_count_kv";
    const KEY_LENGTH: &str = "attention.key_length";
    const VALUE_LENGTH: &str = "attention.value_length";
    let hidden = source.size("embedding_length")?;
    let n_heads = source.uniform_size(HEADS, n_layers)?;
    let n_kv_heads = source
        .find_uniform_size(KV_HEADS, n_layers)?
        .unwrap_or(n_heads);
    if n_heads % n_kv_heads != 0 {
        let problem = format!("is {n_kv_heads}, which does not divide the {n_heads} heads");
        return Err(source.invalid(KV_HEADS, &problem));
    }
    let head_dim = match source.find_size(KEY_LENGTH)? {
        Some(head_dim) => head_dim,
        None if hidden % n_heads == 0 => hidden / n_heads,
        None => {
            let problem = format!("is {n_heads}, which does not divide the width {hidden}");
            return Err(source.invalid(HEADS, &problem));
        }
    };
    if head_dim > MAX_HEAD_DIM {
        let problem = format!("gives heads of {head_dim} elements; at most {MAX_HEAD_DIM} work");
        return Err(source.invalid(KEY_LENGTH, &problem));
    }
    if let Some(value_dim) = source.find_size(VALUE_LENGTH)?
        && value_dim != head_dim
    {
        fail!(
            Unsupported,
            "{} is {value_dim}, but keys have {head_dim} elements; they must be the same",
            source.key(VALUE_LENGTH)
        );
    }
    source.product(HEADS, n_heads, head_dim)?;
    let scale = source.find_positive("attention.scale")?;
    let n_ff = source.uniform_size("feed_forward_length", n_layers)?;
    let experts = Defaults {
        scoring: Scoring::Softmax,
        normalize: true,
        activation: Activation::Silu,
        n_ff: Some(n_ff),
        shared: None,
    };
    Ok(Shape {
        hidden,
        n_ff,
        n_heads,
        n_kv_heads,
        head_dim,
        eps: source.positive("attention.layer_norm_rms_epsilon")?,
        attention_scale: scale.unwrap_or((1.0 / (head_dim as f64).sqrt()) as f32),
        experts: Mixture::find(source, &experts)?,
    })
}

fn block(source: &Source, layer: usize, shape: &Shape, rope: &Rope) -> Result<Block> {
    let &Shape {
        hidden,
        n_ff,
        n_heads,
        n_kv_heads,
        head_dim,
        eps,
        attention_scale,
        ref experts,
    } = shape;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let q_len = n_heads * head_dim;
    let kv_len = n_kv_heads * head_dim;
    Ok(Block {
        attention_norm: Some(source.norm(&name("attn_norm"), hidden, eps)?),
        attention: Attention {
            n_heads,
            n_kv_heads,
            head_dim,
            q: source.linear(&name("attn_q"), hidden, q_len)?,
            k: source.linear(&name("attn_k"), hidden, kv_len)?,
            v: source.linear(&name("attn_v"), hidden, kv_len)?,
            output: source.linear(&name("attn_output"), q_len, hidden)?,
            q_norm: None,
            k_norm: None,
            rope: Some(rope.clone()),
            scale: attention_scale,
            window: None,
            score_cap: None,
            sinks: None,
        },
        attention_post_norm: None,
        feed_forward_norm: Some(source.norm(&name("ffn_norm"), hidden, eps)?),
        feed_forward: match experts {
            Some(experts) => experts.layer(source, layer, hidden)?,
            None => FeedForward::Dense(Box::new(Mlp {
                gate: Some(source.linear(&name("ffn_gate"), hidden, n_ff)?),
                up: source.linear(&name("ffn_up"), hidden, n_ff)?,
                down: source.linear(&name("ffn_down"), n_ff, hidden)?,
                activation: Activation::Silu,
            })),
        },
        feed_forward_post_norm: None,
        parallel: false,
        residual_scale: 1.0,
    })
}
