//! Gated delta nets: Qwen 3 Next, 3.5 and 3.6. Folders have the value heads of one key head after the
//! other, and GGUF files of the newer ones take the key heads in turns.

use super::json::{Config, wrong};
use super::keys::{Keys, qwen_experts};
use super::rows::Order;
use super::stored::{Stored, small};
use super::tensors::{Folder, reordered};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::made::MakeRows;
use crate::format::{Array, Tensor, Value};

/// What the names of the parts of a delta net begin with.
const PREFIX: &str = "linear_attn.";
const TYPES: &str = "layer_types";
const INTERVAL: &str = "full_attention_interval";

/// Sets the keys of a family without experts.
pub(super) fn dense(k: &mut Keys) -> Result<()> {
    let recurrent: Vec<bool> = match k.config.find_array(TYPES)? {
        Some(types) => {
            let recurrent = types.iter().map(|ty| match ty.as_str() {
                Some("linear_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(wrong(TYPES, ty, "linear_attention or full_attention")),
            });
            recurrent.collect::<Result<_>>()?
        }
        None => {
            let interval = k.config.find_size(INTERVAL)?.unwrap_or(4).max(1);
            let recurrent = |layer: u64| !(layer + 1).is_multiple_of(interval);
            (0..k.n_layers).map(recurrent).collect()
        }
    };
    k.set(
        "attention.recurrent_layers",
        Value::Array(Array::Bool(recurrent)),
    );
    let sizes = Sizes::read(k.config)?;
    k.set(
        "ssm.conv_kernel",
        k.config.size(&["linear_conv_kernel_dim"])?,
    );
    k.set("ssm.state_size", sizes.key_dim as u64);
    k.set("ssm.group_count", sizes.n_key_heads as u64);
    k.set(
        "ssm.time_step_rank",
        (sizes.n_key_heads * sizes.group) as u64,
    );
    k.set(
        "ssm.inner_size",
        (sizes.n_key_heads * sizes.group * sizes.value_dim) as u64,
    );
    Ok(())
}

/// Of OLMo Hybrid, whose heads are as many of all kinds, and whose layers may not rotate.
pub(super) fn olmo_hybrid(k: &mut Keys) -> Result<()> {
    dense(k)?;
    let sizes = Sizes::read(k.config)?;
    if sizes.group != 1 {
        fail!(
            Unsupported,
            "config.json: linear_num_value_heads is {}, which is not linear_num_key_heads; they must be the same",
            sizes.n_key_heads * sizes.group
        );
    }
    k.set(
        "ssm.doubled_steps",
        k.config.flag("linear_allow_neg_eigval")?,
    );
    let parameters = k.config.nested("rope_parameters")?;
    let theta = |config: &Config| config.find("rope_theta").is_some();
    let rotates = parameters.as_ref().is_some_and(theta) || theta(k.config);
    k.set("attention.rotates", rotates);
    Ok(())
}

/// Sets the keys of a family with experts.
pub(super) fn experts(k: &mut Keys) -> Result<()> {
    qwen_experts(k)?;
    if k.config.find("norm_topk_prob").is_some() {
        k.set("expert_weights_norm", k.config.flag("norm_topk_prob")?);
    }
    let shared = k.config.find_size("shared_expert_intermediate_size")?;
    k.set("expert_shared_feed_forward_length", shared.unwrap_or(0));
    dense(k)
}

/// The heads of delta nets.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    n_key_heads: usize,
    /// Value heads of a key head.
    group: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Sizes {
    /// What a config says.
    fn read(config: &Config) -> Result<Sizes> {
        const KEYS: &str = "linear_num_key_heads";
        const VALUES: &str = "linear_num_value_heads";
        /// So that no product of two of them is too large.
        const MAX: u64 = 1 << 20;
        let size = |key: &str| match config.size(&[key])? {
            n @ 1..=MAX => Ok(n as usize),
            n => Err(wrong(key, &n.into(), "a number from 1 to 1048576")),
        };
        let (n_key_heads, n_value_heads) = (size(KEYS)?, size(VALUES)?);
        if !n_value_heads.is_multiple_of(n_key_heads) {
            let problem = format!(
                "config.json: {KEYS} is {n_key_heads}, which does not divide the {n_value_heads} value heads"
            );
            return Err(Error::new(Status::InvalidModel, problem));
        }
        Ok(Sizes {
            n_key_heads,
            group: n_value_heads / n_key_heads,
            key_dim: size("linear_key_head_dim")?,
            value_dim: size("linear_value_head_dim")?,
        })
    }

    /// Those of a family that has delta nets.
    pub(super) fn find(keys: &Keys) -> Result<Option<Sizes>> {
        match keys.architecture {
            "qwen3next" | "qwen35" | "qwen35moe" | "olmo_hybrid" => {
                Sizes::read(keys.config).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Rows of value heads, `rows` of each, from row `first` on in GGUF's order.
    fn heads(&self, folder: &Folder, first: usize, rows: usize) -> Order {
        match folder.architecture() {
            "qwen3next" | "olmo_hybrid" => Order::Same,
            _ => Order::Tiled {
                first,
                rows,
                groups: self.n_key_heads,
                group: self.group,
            },
        }
    }

    /// The tensors in GGUF that the part `linear_attn.{part}` of a layer is or holds, by their names
    /// behind that of the layer. None if the part is not known.
    pub(super) fn tensors(
        &self,
        folder: &Folder,
        part: &str,
        stored: &Stored,
    ) -> Result<Option<Vec<(&'static str, Tensor)>>> {
        let Some(part) = part.strip_prefix(PREFIX) else {
            return Ok(None);
        };
        let keys = self.n_key_heads * self.key_dim;
        let values_of_group = self.group * self.value_dim;
        let matrix = |order: Order, rows: usize| {
            let tensor = folder.matrix(stored)?;
            let of = match part {
                "in_proj_qkvz.weight" => 2 * keys + 2 * self.n_key_heads * values_of_group,
                _ => rows,
            };
            expect(stored, of)?;
            match order {
                Order::Same => Ok(tensor),
                order => {
                    let dims = vec![tensor.row_len(), rows];
                    reordered(tensor, order, Some(dims))
                }
            }
        };
        let vector = |order: Order, f: fn(f32) -> f32| {
            let heads = self.n_key_heads * self.group;
            expect(stored, heads)?;
            let values = stored.values()?;
            let values: Vec<f32> = (0..heads).map(|i| f(values[order.source(i)])).collect();
            small(&stored.name, vec![heads], &values)
        };
        let values = self.n_key_heads * values_of_group;
        let of_a_head = self.heads(folder, 0, 1);
        let of_values = self.heads(folder, 0, self.value_dim);
        let behind_keys = self.heads(folder, 2 * keys, self.value_dim);
        let heads = self.n_key_heads * self.group;
        Ok(Some(match part {
            "in_proj_qkv.weight" => {
                vec![("attn_qkv.weight", matrix(behind_keys, 2 * keys + values)?)]
            }
            "q_proj.weight" => vec![("attn_q.weight", matrix(Order::Same, keys)?)],
            "k_proj.weight" => vec![("attn_k.weight", matrix(Order::Same, keys)?)],
            "v_proj.weight" => vec![("attn_v.weight", matrix(of_values, values)?)],
            "in_proj_z.weight" | "g_proj.weight" => {
                vec![("attn_gate.weight", matrix(of_values, values)?)]
            }
            "in_proj_qkvz.weight" => {
                let apart = Order::Apart {
                    groups: self.n_key_heads,
                    key: self.key_dim,
                    values: values_of_group,
                };
                let gate = Order::Part {
                    of: 2 * self.key_dim + 2 * values_of_group,
                    from: 2 * self.key_dim + values_of_group,
                    rows: values_of_group,
                    step: 1,
                };
                vec![
                    ("attn_qkv.weight", matrix(apart, 2 * keys + values)?),
                    ("attn_gate.weight", matrix(gate, values)?),
                ]
            }
            "in_proj_ba.weight" => vec![("ssm_ba.weight", matrix(Order::Same, 2 * heads)?)],
            "in_proj_b.weight" | "b_proj.weight" => {
                vec![("ssm_beta.weight", matrix(of_a_head, heads)?)]
            }
            "in_proj_a.weight" | "a_proj.weight" => {
                vec![("ssm_alpha.weight", matrix(of_a_head, heads)?)]
            }
            "A_log" => vec![("ssm_a", vector(of_a_head, |x| -f64::from(x).exp() as f32)?)],
            "dt_bias" => vec![("ssm_dt.bias", vector(of_a_head, |x| x)?)],
            "norm.weight" | "o_norm.weight" => vec![(
                "ssm_norm.weight",
                small(&stored.name, stored.dims()?, &stored.values()?)?,
            )],
            "conv1d.weight" => {
                let channels = 2 * keys + values;
                expect(stored, channels)?;
                let (all, width) = (stored.values()?, stored.shape.last().copied().unwrap_or(1));
                let mut taps = try_vec(all.len(), 0.0, &stored.name)?;
                if channels * width != all.len() {
                    return Err(misshapen(stored, channels));
                }
                for (channel, taps) in taps.chunks_exact_mut(width).enumerate() {
                    taps.copy_from_slice(&all[behind_keys.source(channel) * width..][..width]);
                }
                vec![(
                    "ssm_conv1d.weight",
                    small(&stored.name, vec![width, channels], &taps)?,
                )]
            }
            // Of queries, keys and values apart, which belong together in this order.
            "k_conv1d.weight" | "v_conv1d.weight" => Vec::new(),
            "q_conv1d.weight" => {
                let mut taps = stored.values()?;
                for part in ["k_conv1d", "v_conv1d"] {
                    let name = stored.name.replace("q_conv1d", part);
                    taps.extend(folder.partner(stored, &name)?.values()?);
                }
                let (channels, width) = (2 * keys + values, stored.shape.last());
                let width = width.copied().unwrap_or(1);
                if channels * width != taps.len() {
                    return Err(misshapen(stored, channels));
                }
                vec![(
                    "ssm_conv1d.weight",
                    small(&stored.name, vec![width, channels], &taps)?,
                )]
            }
            "out_proj.weight" | "o_proj.weight" => {
                let tensor = folder.matrix(stored)?;
                vec![("ssm_out.weight", self.columns(tensor, of_a_head)?)]
            }
            _ => return Ok(None),
        }))
    }

    /// A matrix with the columns of value heads in another order.
    fn columns(&self, source: Tensor, order: Order) -> Result<Tensor> {
        if matches!(order, Order::Same) {
            return Ok(source);
        }
        let heads = self.n_key_heads * self.group;
        if source.row_len() != heads * self.value_dim || source.ty.block_len() != 1 {
            fail!(
                ShapeMismatch,
                "tensor {} has rows of {} elements of type {}; the model needs {} of {heads} heads",
                source.name,
                source.row_len(),
                source.ty.name(),
                heads * self.value_dim
            );
        }
        let (name, ty, dims) = (source.name.clone(), source.ty, source.dims.clone());
        Tensor::made(
            name,
            ty,
            dims,
            Columns {
                source,
                order,
                heads,
            },
        )
    }
}

/// `ShapeMismatch` if a tensor does not have so many rows.
fn expect(stored: &Stored, rows: usize) -> Result<()> {
    match stored.shape.first() {
        Some(&found) if found == rows => Ok(()),
        _ => Err(misshapen(stored, rows)),
    }
}

fn misshapen(stored: &Stored, rows: usize) -> Error {
    let problem = format!(
        "tensor {} has shape {:?}; the model needs {rows} rows",
        stored.name, stored.shape
    );
    Error::new(Status::ShapeMismatch, problem)
}

/// Rows that consist of as many elements of each of some heads, in another order of these.
struct Columns {
    source: Tensor,
    /// Of heads.
    order: Order,
    heads: usize,
}

impl MakeRows for Columns {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.source.row_bytes();
        let of_head = row_bytes / self.heads;
        let mut rows = try_vec(out.len(), 0u8, &self.source.name)?;
        self.source.read_rows(first, &mut rows)?;
        for (row, out) in rows
            .chunks_exact(row_bytes)
            .zip(out.chunks_exact_mut(row_bytes))
        {
            for (head, out) in out.chunks_exact_mut(of_head).enumerate() {
                out.copy_from_slice(&row[self.order.source(head) * of_head..][..of_head]);
            }
        }
        Ok(())
    }
}
