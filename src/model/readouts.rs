//! Readouts as files describe them: `pooling_type` and the tensors behind the final norm.

use super::source::Source;
use super::{Dense, DenseActivation, NormKind, Pooling, Readout, Scores};
use crate::error::{Error, Result};

const POOLING: &str = "pooling_type";
const SCORE_POOLING: &str = "classifier.pooling_type";
/// The same in older files of `ember-convert`.
const OLD_SCORE_POOLING: &str = "score_pooling_type";
/// The value of `pooling_type` that says that the model scores texts.
const RANK: u64 = 4;

/// What a file says about vectors and scores.
pub(super) fn read(source: &Source, hidden: usize) -> Result<Readout> {
    let named = source.find::<u64>(POOLING)?;
    let mut width = hidden;
    let mut projections = Vec::new();
    for name in ["dense_2", "dense_3"] {
        if source.has(name) {
            let rows = source.file.tensor(&format!("{name}.weight"))?.rows();
            projections.push(Dense {
                linear: source.linear(name, width, rows)?,
                activation: activation(source, &format!("{name}_activation"))?,
                norm: None,
            });
            width = rows;
        }
    }
    Ok(Readout {
        pooling: match named {
            None | Some(RANK) => None,
            Some(number) => Some(pooling(source, POOLING, number)?),
        },
        normalized: source.find("normalize_embeddings")?,
        max_tokens: source.find_size("max_text_length")?,
        projections,
        scores: scores(source, hidden)?,
    })
}

fn pooling(source: &Source, key: &str, number: u64) -> Result<Pooling> {
    Ok(match number {
        0 => Pooling::None,
        1 => Pooling::Mean,
        2 => Pooling::First,
        3 => Pooling::Last,
        _ => return Err(source.invalid(key, &format!("is {number}; it must be from 0 to 4"))),
    })
}

fn activation(source: &Source, key: &str) -> Result<Option<DenseActivation>> {
    match source.find::<&str>(key)? {
        None => Ok(None),
        Some("tanh") => Ok(Some(DenseActivation::Tanh)),
        Some("gelu") => Ok(Some(DenseActivation::Gelu)),
        Some(other) => {
            let other: String = other.chars().take(60).collect();
            Err(unsupported(source, key, &other))
        }
    }
}

fn unsupported(source: &Source, key: &str, value: &str) -> Error {
    let key = source.key_name(key);
    Error::new(
        crate::Status::Unsupported,
        format!("{key} is {value:?}; supported: tanh, gelu"),
    )
}

/// The layers `cls` and `cls.output`.
fn scores(source: &Source, hidden: usize) -> Result<Option<Scores>> {
    let rows =
        |name: &str| -> Result<usize> { Ok(source.file.tensor(&format!("{name}.weight"))?.rows()) };
    let architecture = source.architecture();
    let (mut layers, mut width) = (Vec::new(), hidden);
    let last = source.has("cls.output");
    if source.has("cls") {
        let usual = match architecture {
            "modern-bert" => DenseActivation::Gelu,
            _ => DenseActivation::Tanh,
        };
        let norm = match source.has("cls.norm") {
            true => {
                let eps = source.find_positive("attention.layer_norm_epsilon")?;
                let eps = eps.unwrap_or(1e-5);
                Some(source.norm("cls.norm", rows("cls")?, NormKind::Layer, eps)?)
            }
            false => None,
        };
        width = rows("cls")?;
        layers.push(Dense {
            linear: source.linear("cls", hidden, width)?,
            // A layer by itself gives the scores.
            activation: match last {
                true => Some(activation(source, "classifier.activation")?.unwrap_or(usual)),
                false => None,
            },
            norm,
        });
    }
    if last {
        layers.push(Dense {
            linear: source.linear("cls.output", width, rows("cls.output")?)?,
            activation: None,
            norm: None,
        });
    }
    if layers.is_empty() {
        return Ok(None);
    }
    let encoder = source.find::<bool>("attention.causal")? == Some(false);
    let named = match source.find::<u64>(SCORE_POOLING)? {
        Some(number) => Some((SCORE_POOLING, number)),
        None => source
            .find::<u64>(OLD_SCORE_POOLING)?
            .map(|number| (OLD_SCORE_POOLING, number)),
    };
    Ok(Some(Scores {
        pooling: match named {
            Some((key, number)) => pooling(source, key, number)?,
            // Files without the key are of models that have it so.
            None if architecture == "modern-bert" => Pooling::Mean,
            None if encoder => Pooling::First,
            None => Pooling::Last,
        },
        layers,
        // Rows of the head for "yes" and "no".
        softmax: matches!(architecture, "qwen3" | "qwen3vl"),
    }))
}
