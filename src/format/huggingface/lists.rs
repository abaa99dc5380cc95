//! Tensors that a folder has as a list, and a file below each other as one.

use super::rows::stack;
use super::tensors::{insert, layer_and_part};
use crate::error::{Result, fail};
use crate::format::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a list becomes in GGUF.
fn name(architecture: &str, list: &str) -> Option<String> {
    match (architecture, list) {
        ("gemma3n", "altup_projections") => Some("altup_proj.weight".to_owned()),
        ("gemma3n", "altup_unembed_projections") => Some("altup_unembd_proj.weight".to_owned()),
        ("stablelm", list) => {
            let (layer, part) = layer_and_part(list)?;
            let part = match part {
                "self_attn.q_layernorm.norms" => "attn_q_norm",
                "self_attn.k_layernorm.norms" => "attn_k_norm",
                _ => return None,
            };
            Some(format!("blk.{layer}.{part}.weight"))
        }
        _ => None,
    }
}

/// A list's name in the folder, and its tensors by their index.
#[derive(Default)]
struct List {
    name: String,
    tensors: BTreeMap<usize, Tensor>,
}

/// All lists of a folder, by their names in GGUF.
#[derive(Default)]
pub(super) struct Lists(BTreeMap<String, List>);

impl Lists {
    /// Takes in a tensor by its name without `.weight`. False if it is of no list.
    pub(super) fn add(
        &mut self,
        architecture: &str,
        stem: &str,
        tensor: impl FnOnce() -> Result<Tensor>,
    ) -> Result<bool> {
        let Some((list, index)) = stem.rsplit_once('.') else {
            return Ok(false);
        };
        let Some(name) = name(architecture, list) else {
            return Ok(false);
        };
        let Some(index) = index
            .parse()
            .ok()
            .filter(|n: &usize| n.to_string() == index)
        else {
            return Ok(false);
        };
        let found = self.0.entry(name).or_default();
        list.clone_into(&mut found.name);
        found.tensors.insert(index, tensor()?);
        Ok(true)
    }

    /// Puts the tensors of each list below each other.
    pub(super) fn stack(self, tensors: &mut HashMap<Arc<str>, Tensor>) -> Result<()> {
        for (name, list) in self.0 {
            let parts = list.tensors;
            if let Some(missing) = (0..parts.len()).find(|i| !parts.contains_key(i)) {
                fail!(
                    MissingTensor,
                    "tensor model.{}.{missing}.weight is missing",
                    list.name
                );
            }
            let label = parts
                .values()
                .next()
                .map_or(name.clone(), |t| t.name.to_string());
            let joined = stack(label, parts.into_values().collect())?;
            insert(tensors, name, joined)?;
        }
        Ok(())
    }
}
