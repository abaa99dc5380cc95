//! `eagle3`: heads of EAGLE-3, which draft for the model that they were trained for, and are no models of their own.

use super::decoder::{Decoder, bare_block};
use super::{Activation, Block, Entry, Fusion, Network, NormKind, RopePairing, Surroundings};
use crate::error::{Result, fail};
use crate::format::ModelFile;
use std::sync::Arc;

const LAYERS: &str = "block_count";
const PLACES: &str = "target_places";
const IDS: &str = "token_ids";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let of_folder = file.key_name("eagle3.embedding_length").is_some();
    if !of_folder {
        fail!(
            Unsupported,
            "general.architecture is \"eagle3\": heads of EAGLE-3 are read from folders only"
        );
    }
    let d = Decoder::read(file, "eagle3", NormKind::Rms)?;
    let (source, hidden) = (&d.source, d.hidden);
    if d.n_layers != 1 {
        fail!(
            Unsupported,
            "{} is {}; heads of EAGLE-3 with one layer are supported",
            source.key_name(LAYERS),
            d.n_layers
        );
    }
    let n_vocab = source.size("vocab_size")?;
    let ids = ids(&d, n_vocab)?;
    let rows = ids.as_ref().map_or(n_vocab, |ids| ids.len());
    let (q, kv) = (d.n_heads * d.head_dim, d.n_kv_heads * d.head_dim);
    let joined = source.product("embedding_length", hidden, 2)?;
    let matrices = [
        source.linear("blk.0.attn_q", joined, q)?,
        source.linear("blk.0.attn_k", joined, kv)?,
        source.linear("blk.0.attn_v", joined, kv)?,
    ];
    let rope = d.rope(RopePairing::Halves)?;
    let block = Block {
        feed_forward_norm: d.norm(0, "ffn_norm")?,
        ..bare_block(
            d.attention_with(0, matrices, Some(&rope))?,
            d.gated(0, Activation::Silu)?,
        )
    };
    let norm = |name: &str| source.norm(name, hidden, NormKind::Rms, d.eps);
    let width = source.product("target_hidden_size", source.size("target_hidden_size")?, 3)?;
    if width == hidden {
        // What it reads would not be told from what it makes.
        let problem = format!("is a third of the head's own width, {hidden}");
        return Err(source.invalid("target_hidden_size", &problem));
    }
    let head = source.linear("output", hidden, rows)?;
    let own_embedding = source.has("token_embd");
    Ok(Network {
        architecture: source.architecture().to_owned(),
        hidden,
        n_vocab,
        context_length: d.context_length,
        embedding: match own_embedding {
            true => source.matrix("token_embd.weight", hidden, n_vocab)?,
            false => head.weight.clone(),
        },
        embedding_scale: 1.0,
        positions: None,
        embedding_norm: None,
        per_layer: None,
        encoder: None,
        streams: None,
        residual_unit: 1.0,
        blocks: vec![block],
        final_norm: norm("output_norm")?,
        head,
        logit_scale: 1.0,
        logit_cap: None,
        readout: Default::default(),
        around: Surroundings::default(),
        host: None,
        cuts: None,
        entry: Some(Box::new(Entry {
            token_norm: norm("blk.0.attn_norm")?,
            state_norm: norm("blk.0.hidden_norm")?,
            projection: source.linear("fc", width, hidden)?,
            fusion: Some(Fusion {
                places: places(&d)?,
                normed_stream: source.find("norm_before_residual")?.unwrap_or(false),
                ids,
                own_embedding,
            }),
        })),
        predictor: None,
    })
}

/// The tokens of the rows of its output matrix, if it has not all.
fn ids(d: &Decoder, n_vocab: usize) -> Result<Option<Arc<[u32]>>> {
    let Some(ids) = d.source.find::<Vec<u32>>(IDS)? else {
        return Ok(None);
    };
    let ascending = ids.is_sorted_by(|a, b| a < b);
    if ids.is_empty() || !ascending || ids.last().is_some_and(|last| *last as usize >= n_vocab) {
        let problem = format!("has tokens that do not ascend below {n_vocab}");
        return Err(d.source.invalid(IDS, &problem));
    }
    Ok(Some(ids.into()))
}

fn places(d: &Decoder) -> Result<Option<[usize; 3]>> {
    let Some(places) = d.source.find::<Vec<u32>>(PLACES)? else {
        return Ok(None);
    };
    match places[..] {
        [a, b, c] => Ok(Some([a, b, c].map(|place| place as usize))),
        _ => {
            let problem = format!("has {} elements; supported are 3", places.len());
            Err(d.source.invalid(PLACES, &problem))
        }
    }
}
