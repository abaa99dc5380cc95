//! What tensors of GGUF the modules of a PEFT folder are.

use super::super::encoders::Encoder;
use super::super::families::{Family, Layout};
use super::super::latent::parts_of;
use super::super::rows::Order;
use super::super::tensors::{TOP, layer_and_part, without_prefixes};
use crate::error::{Error, Result, Status, fail};
use crate::format::adapter::BaseShape;

/// A module of a model, as a tensor of GGUF.
pub(super) struct Module {
    pub name: String,
    pub order: Order,
    pub rows: Rows,
}

/// Which tensors the rows of a module are of.
pub(super) enum Rows {
    /// Of one.
    One,
    /// The lower half of them of another.
    Halves(String),
    /// Of each head, those of keys of one and those of values of another; that of keys has them as columns.
    Heads([String; 2]),
}

/// The error about a module that cannot have an adapter.
pub(super) fn unknown(module: &str, base: &BaseShape, why: &str) -> Error {
    let message = format!(
        "module {module} {why} in models of architecture {}",
        base.architecture
    );
    Error::new(Status::Unsupported, message)
}

impl Module {
    pub fn of(module: &str, base: &BaseShape) -> Result<Module> {
        let families: Vec<&Family> = Family::of_architecture(&base.architecture).collect();
        let unknown = |why: &str| unknown(module, base, why);
        let mut encoders = Encoder::of_architecture(&base.architecture).peekable();
        if encoders.peek().is_some() {
            return match encoders.find_map(|encoder| encoder.module(module)) {
                Some(gguf) if !gguf.contains("blk.") && gguf != "token_embd" => {
                    Err(unknown("is no matrix that can have an adapter"))
                }
                Some(gguf) => Ok(Module {
                    name: format!("{gguf}.weight"),
                    order: Order::Same,
                    rows: Rows::One,
                }),
                None => Err(unknown("is not known")),
            };
        }
        if base.folds || families.is_empty() {
            return Err(unknown("cannot have an adapter from a folder"));
        }
        let short = without_prefixes(module);
        if let Some((_, top)) = TOP.iter().find(|(known, _)| *known == short) {
            return match *top {
                "output" | "token_embd" => Ok(Module {
                    name: format!("{top}.weight"),
                    order: Order::Same,
                    rows: Rows::One,
                }),
                _ => Err(unknown("is no matrix that can have an adapter")),
            };
        }
        let Some((layer, part)) = layer_and_part(short) else {
            return Err(unknown("is not known"));
        };
        if base.architecture.starts_with("granite")
            && let Some((upper, lower)) = of_granite(part, base.experts.is_some())
        {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            return Ok(Module {
                name: name(upper),
                order: Order::Same,
                rows: match lower {
                    Some(lower) => Rows::Halves(name(lower)),
                    None => Rows::One,
                },
            });
        }
        let found = families
            .iter()
            .find_map(|f| f.part(part).map(|gguf| (f.layout, gguf)));
        let Some((layout, gguf)) = found else {
            return Err(unknown("is not known"));
        };
        let order = match (layout, gguf) {
            (Layout::Halves, "attn_q" | "attn_k") => Order::Interleaved(base.head_dim),
            (Layout::GroupedHeads, "attn_qkv") => {
                let groups = match base.architecture.as_str() {
                    "falcon" => base.n_kv_heads,
                    _ => base.n_heads,
                };
                Order::Heads {
                    groups,
                    queries: base.n_heads.checked_div(groups).unwrap_or(0) * base.head_dim,
                    head: base.head_dim,
                }
            }
            _ => Order::Same,
        };
        let rows = match parts_of(&base.architecture, gguf) {
            Some(parts) => Rows::Heads(parts.map(|part| format!("blk.{layer}.{part}.weight"))),
            None => Rows::One,
        };
        Ok(Module {
            name: format!("blk.{layer}.{gguf}.weight"),
            order,
            rows,
        })
    }

    /// Checks that rows can be put in order.
    pub fn check(&self, outputs: usize, name: &str, base: &BaseShape) -> Result<()> {
        let fits = match self.order {
            Order::Interleaved(head) => {
                head > 0 && head.is_multiple_of(2) && outputs.is_multiple_of(head)
            }
            Order::Heads {
                groups,
                queries,
                head,
            } => groups > 0 && head > 0 && outputs == groups * (queries + 2 * head),
            _ => true,
        };
        if !fits {
            fail!(
                ShapeMismatch,
                "tensor {name} has {outputs} rows; the model has heads of {} elements",
                base.head_dim
            );
        }
        Ok(())
    }
}

/// What the feed-forward part for all tokens is in GGUF: a matrix, or that of the upper half of the rows and that of the lower.
fn of_granite(part: &str, has_experts: bool) -> Option<(&'static str, Option<&'static str>)> {
    match (part, has_experts) {
        ("shared_mlp.input_linear", false) => Some(("ffn_gate", Some("ffn_up"))),
        ("shared_mlp.input_linear", true) => Some(("ffn_gate_shexp", Some("ffn_up_shexp"))),
        ("shared_mlp.output_linear", false) => Some(("ffn_down", None)),
        ("shared_mlp.output_linear", true) => Some(("ffn_down_shexp", None)),
        _ => None,
    }
}
