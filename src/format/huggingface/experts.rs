//! Matrices of experts, which folders have one by one or fused, and GGUF one below the other.

use super::mxfp4;
use super::rows::{Order, stack, transposed};
use super::stored::{Stored, small};
use super::tensors::{Folder, insert, reordered};
use crate::error::{Result, fail};
use crate::format::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

type Tensors = HashMap<Arc<str>, Tensor>;

/// Names of the three matrices of an expert.
pub(super) const PROJECTIONS: [(&str, &str); 6] = [
    ("gate_proj", "ffn_gate_exps"),
    ("up_proj", "ffn_up_exps"),
    ("down_proj", "ffn_down_exps"),
    ("w1", "ffn_gate_exps"),
    ("w3", "ffn_up_exps"),
    ("w2", "ffn_down_exps"),
];

/// Whether experts' matrices have a row per input, and those of gate and up take turns.
pub(super) fn take_turns(architecture: &str) -> bool {
    architecture == "gpt-oss"
}

/// Whether gate and up of experts stay together, as GGUF files have them.
pub(super) fn are_together(architecture: &str) -> bool {
    architecture == "gemma4"
}

/// Experts' matrices that come one by one: by name in GGUF, then by expert.
#[derive(Default)]
pub(super) struct Experts {
    single: BTreeMap<String, BTreeMap<usize, Tensor>>,
}

impl Experts {
    /// Takes in the tensor `experts.{part}.{end}` of a layer. False if that is no name of one.
    pub(super) fn add(
        &mut self,
        folder: &Folder,
        layer: u64,
        part: &str,
        end: &str,
        stored: &Stored,
        tensors: &mut Tensors,
    ) -> Result<bool> {
        if let Some((index, projection)) = part.split_once('.') {
            let known = PROJECTIONS.iter().find(|(name, _)| *name == projection);
            let index = index
                .parse()
                .ok()
                .filter(|n: &usize| n.to_string() == index);
            let (Some((_, name)), Some(index), "weight") = (known, index, end) else {
                return Ok(false);
            };
            let name = format!("blk.{layer}.{name}.weight");
            let tensor = folder.matrix(stored)?;
            // A folder with both spellings of a name.
            if let Some(other) = self.single.entry(name).or_default().insert(index, tensor) {
                fail!(
                    FileCorrupt,
                    "tensors {} and {} are the same part of the model",
                    other.name,
                    stored.name
                );
            }
            return Ok(true);
        }
        let is_bias = part.ends_with("_bias") || end == "bias";
        let part = part.strip_suffix("_bias").unwrap_or(part);
        let (part, source) = if let Some(part) = part.strip_suffix("_blocks") {
            let stem = stored.name.strip_suffix("_blocks").unwrap_or_default();
            let scales = folder.partner(stored, &format!("{stem}_scales"))?;
            (part, mxfp4::joined(stem, stored, scales)?)
        } else if let Some(part) = part.strip_suffix("_scales") {
            let stem = stored.name.strip_suffix("_scales").unwrap_or_default();
            folder.partner(stored, &format!("{stem}_blocks"))?;
            // Comes with the blocks.
            return Ok(matches!(part, "gate_up_proj" | "down_proj"));
        } else if is_bias {
            return add_biases(folder, layer, part, stored, tensors);
        } else if take_turns(folder.architecture()) || folder.architecture() == "llama4" {
            (part, transposed(stored)?)
        } else {
            (part, folder.matrix(stored)?)
        };
        let mut put = |name: &str, tensor: Tensor| {
            insert(tensors, format!("blk.{layer}.{name}.weight"), tensor)
        };
        match part {
            "down_proj" => put("ffn_down_exps", source)?,
            "up_proj" => put("ffn_up_exps", source)?,
            "gate_up_proj" if are_together(folder.architecture()) => {
                put("ffn_gate_up_exps", source)?
            }
            "gate_up_proj" => {
                let [gate, up] = halves(folder, stored, &source.dims)?;
                put(
                    "ffn_gate_exps",
                    reordered(source.clone(), gate.0, Some(gate.1))?,
                )?;
                put("ffn_up_exps", reordered(source, up.0, Some(up.1))?)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Puts those that came one by one below each other.
    pub(super) fn stack(self, tensors: &mut Tensors) -> Result<()> {
        let all = self.single.values().map(BTreeMap::len).max().unwrap_or(0);
        for (name, parts) in self.single {
            let Some(some) = parts.values().next() else {
                continue;
            };
            let named = |index: &str| {
                let (before, after) = some.name.split_once(".experts.").unwrap_or_default();
                let after = after.split_once('.').map_or("", |(_, after)| after);
                format!("{before}.experts.{index}.{after}")
            };
            // The indices are in order.
            let mut found = parts.keys();
            if let Some(index) = (0..all).find(|index| found.next() != Some(index)) {
                fail!(
                    MissingTensor,
                    "tensor {} is missing",
                    named(&index.to_string())
                );
            }
            let joined = stack(named("*"), parts.into_values().collect())?;
            insert(tensors, name, joined)?;
        }
        Ok(())
    }
}

/// Which rows of fused matrices of gate and up are those of each, and the sizes of both.
fn halves(folder: &Folder, stored: &Stored, dims: &[usize]) -> Result<[(Order, Vec<usize>); 2]> {
    let &[columns, of, experts] = dims else {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; the model needs a matrix per expert",
            stored.name,
            stored.shape
        );
    };
    if !of.is_multiple_of(2) {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}, which is not two matrices of the same size",
            stored.name,
            stored.shape
        );
    }
    let rows = of / 2;
    let half = |from: usize, step: usize| {
        let order = Order::Part {
            of,
            from,
            rows,
            step,
        };
        (order, vec![columns, rows, experts])
    };
    Ok(match take_turns(folder.architecture()) {
        true => [half(0, 2), half(1, 2)],
        false => [half(0, 1), half(rows, 1)],
    })
}

/// The biases of all experts of a layer.
fn add_biases(
    folder: &Folder,
    layer: u64,
    part: &str,
    stored: &Stored,
    tensors: &mut Tensors,
) -> Result<bool> {
    let dims = stored.dims()?;
    let values = stored.values()?;
    let mut put = |name: &str, dims: Vec<usize>, values: &[f32]| {
        let tensor = small(&stored.name, dims, values)?;
        insert(tensors, format!("blk.{layer}.{name}.bias"), tensor)
    };
    match (part, &dims[..]) {
        ("down_proj", [_, _]) => put("ffn_down_exps", dims, &values)?,
        ("gate_up_proj", &[of, experts]) => {
            for (name, (order, dims)) in ["ffn_gate_exps", "ffn_up_exps"].into_iter().zip(halves(
                folder,
                stored,
                &[1, of, experts],
            )?) {
                let count = dims[1] * experts;
                let own: Vec<f32> = (0..count).map(|i| values[order.source(i)]).collect();
                put(name, vec![dims[1], experts], &own)?;
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}
