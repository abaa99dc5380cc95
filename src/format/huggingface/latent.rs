//! Keys and tensors of models whose layers keep a latent vector of a position.

use super::keys::Keys;
use super::relatives;
use super::rows::{Order, Reordered};
use crate::error::{Error, Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::made::MakeRows;
use crate::quant::{TensorType, dequantize_row};

/// Whether rope rotates neighbours, as it does without the flag.
const INTERLEAVED: &str = "rope_interleave";

pub(super) fn keys(k: &mut Keys) -> Result<()> {
    let size = |key: &str| k.config.size(&[key]);
    let (rank, rotated) = (size("kv_lora_rank")?, size("qk_rope_head_dim")?);
    let (plain, value) = (size("qk_nope_head_dim")?, size("v_head_dim")?);
    if let Some(q_rank) = k.config.find_size("q_lora_rank")? {
        k.set("attention.q_lora_rank", q_rank);
    }
    k.set("attention.kv_lora_rank", rank);
    k.set("attention.head_count_kv", 1u64);
    k.set("attention.key_length", rank + rotated);
    k.set("attention.value_length", rank);
    k.set("attention.key_length_mla", plain + rotated);
    k.set("attention.value_length_mla", value);
    k.set("rope.dimension_count", rotated);
    multiplier(k)?;
    experts(k)
}

/// Of MiniCPM 3, which has no experts, and factors of MiniCPM.
pub(super) fn minicpm3(k: &mut Keys) -> Result<()> {
    let size = |key: &str| k.config.size(&[key]);
    let (rank, rotated) = (size("kv_lora_rank")?, size("qk_rope_head_dim")?);
    let (plain, hidden) = (size("qk_nope_head_dim")?, size("hidden_size")?);
    let value = k.config.find_size("v_head_dim")?;
    let value = value.unwrap_or(hidden / size("num_attention_heads")?);
    if let Some(q_rank) = k.config.find_size("q_lora_rank")? {
        k.set("attention.q_lora_rank", q_rank);
    }
    k.set("attention.kv_lora_rank", rank);
    k.set("attention.key_length", plain + rotated);
    k.set("attention.value_length", value);
    k.set("rope.dimension_count", rotated);
    relatives::minicpm(k)
}

/// Of Mistral 4, whose queries grow with their position.
pub(super) fn mistral4(k: &mut Keys) -> Result<()> {
    keys(k)?;
    if k.config.find_size("n_group")?.unwrap_or(1) > 1 {
        fail!(
            Unsupported,
            "config.json: n_group is above 1, which is not supported in models of mistral4"
        );
    }
    let rope = match k.config.nested("rope_parameters")? {
        None => k.config.nested("rope_scaling")?,
        found => found,
    };
    if let Some(rope) = rope
        && let Some(beta) = rope.find_f32("llama_4_scaling_beta")?
    {
        k.set("attention.temperature_scale", beta);
    }
    Ok(())
}

/// The order of the rows of a part that has rotated ones, where the folder rotates halves: those of each head, or of the vector that
/// all heads share, come last.
pub(super) fn rotated_last(k: &Keys, part: &str) -> Result<Option<Order>> {
    if k.config.find(INTERLEAVED) != Some(&false.into()) {
        return Ok(None);
    }
    let plain = match part {
        "attn_q" | "attn_q_b" => "qk_nope_head_dim",
        "attn_kv_a_mqa" => "kv_lora_rank",
        _ => return Ok(None),
    };
    let size = |key: &str| Ok::<usize, Error>(k.config.size(&[key])? as usize);
    Ok(Some(Order::LastInterleaved {
        plain: size(plain)?,
        rotated: size("qk_rope_head_dim")?,
    }))
}

/// What YaRN asks of the scores, a tenth of which GGUF has.
fn multiplier(k: &mut Keys) -> Result<()> {
    let rope = match k.config.nested("rope_parameters")? {
        None => k.config.nested("rope_scaling")?,
        found => found,
    };
    if let Some(rope) = rope
        && let Some(all) = rope.find_f32("mscale_all_dim")?
        && all != 0.0
    {
        let tenth = (0.1 * f64::from(all)) as f32;
        k.set("rope.scaling.yarn_log_multiplier", tenth);
    }
    Ok(())
}

fn experts(k: &mut Keys) -> Result<()> {
    if k.config.find("n_routed_experts").is_none() {
        return Ok(());
    }
    if let Some(every) = k.config.find_size("moe_layer_freq")?
        && every != 1
    {
        fail!(
            Unsupported,
            "config.json: moe_layer_freq is {every}; only 1 is supported"
        );
    }
    let model_type = k.config.find_str("model_type")?;
    let softmax = k.architecture == "mistral4" || model_type == Some("deepseek_v2");
    let scoring = match k.config.find_str("scoring_func")? {
        Some("softmax") => 1u64,
        Some("sigmoid") => 2,
        None if softmax => 1,
        None => 2,
        Some(other) => fail!(
            Unsupported,
            "config.json: scoring_func is {other:?}; supported: softmax, sigmoid"
        ),
    };
    k.set("expert_gating_func", scoring);
    for (from, to) in [
        ("n_routed_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
    ] {
        let size = k.config.size(&[from])?;
        k.set(to, size);
    }
    k.set("expert_shared_count", k.count("n_shared_experts")?);
    let grouped = k.config.find_str("topk_method")? != Some("greedy");
    let groups = |key: &str| -> Result<u64> {
        match grouped {
            true => Ok(k.config.find_size(key)?.unwrap_or(1)),
            false => Ok(1),
        }
    };
    let (n_groups, used) = (groups("n_group")?, groups("topk_group")?);
    k.set("expert_group_count", n_groups);
    k.set("expert_group_used_count", used);
    let scale = k.config.find_f32("routed_scaling_factor")?.unwrap_or(1.0);
    k.set("expert_weights_scale", scale);
    // Those of the second version are not divided by their sum, whatever a config says.
    let normalize = k.config.flag("norm_topk_prob")? && model_type != Some("deepseek_v2");
    k.set("expert_weights_norm", normalize);
    relatives::dense_and_sparse(k)?;
    Ok(())
}

/// Of each head, some rows of a matrix the other way round: row `r` of a head has an element of each
/// of them. What has blocks becomes f16.
struct HeadsTransposed {
    source: Tensor,
    /// Rows of a head in the source, and those of them that are wanted, which come first.
    of: usize,
    wanted: usize,
}

impl MakeRows for HeadsTransposed {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let (row_bytes, columns) = (self.source.row_bytes(), self.source.row_len());
        let blocks = self.source.ty.block_len() != 1;
        let size = if blocks { 2 } else { row_bytes / columns };
        let mut head = try_vec(self.wanted * row_bytes, 0u8, &self.source.name)?;
        let plain_len = if blocks { self.wanted * columns * 2 } else { 0 };
        let mut plain = try_vec(plain_len, 0u8, &self.source.name)?;
        let mut values = try_vec(if blocks { columns } else { 0 }, 0f32, &self.source.name)?;
        let mut read = None;
        for (i, out) in out.chunks_exact_mut(self.wanted * size).enumerate() {
            let (h, column) = ((first + i) / columns, (first + i) % columns);
            if read != Some(h) {
                self.source.read_rows(h * self.of, &mut head)?;
                if blocks {
                    for (row, out) in head
                        .chunks_exact(row_bytes)
                        .zip(plain.chunks_exact_mut(2 * columns))
                    {
                        dequantize_row(self.source.ty, row, &mut values);
                        for (value, out) in values.iter().zip(out.chunks_exact_mut(2)) {
                            out.copy_from_slice(&half::f16::from_f32(*value).to_le_bytes());
                        }
                    }
                }
                read = Some(h);
            }
            let head = if blocks { &plain } else { &head };
            for (row, out) in head
                .chunks_exact(columns * size)
                .zip(out.chunks_exact_mut(size))
            {
                out.copy_from_slice(&row[column * size..][..size]);
            }
        }
        Ok(())
    }
}

/// The two tensors that most GGUF files have of keys and values of all heads, if that is what a part of a layer is.
pub(super) fn parts_of(architecture: &str, part: &str) -> Option<[&'static str; 2]> {
    (part == "attn_kv_b" && architecture != "minicpm3").then_some(["attn_k_b", "attn_v_b"])
}

/// `kv_b_proj`, of each head `plain` rows of keys and then those of values, as the two tensors that most
/// GGUF files have of it.
pub(crate) fn keys_and_values(source: Tensor, n_heads: usize, plain: usize) -> Result<[Tensor; 2]> {
    let (rank, rows) = (source.row_len(), source.rows());
    let of = rows / n_heads.max(1);
    if rows != of * n_heads || of <= plain {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; the model needs keys of {plain} elements and values for {n_heads} heads",
            source.name,
            source.dims
        );
    }
    let (name, ty) = (source.name.clone(), source.ty);
    let of_keys = match ty.block_len() {
        1 => ty,
        _ => TensorType::F16,
    };
    let keys = HeadsTransposed {
        source: source.clone(),
        of,
        wanted: plain,
    };
    let values = Reordered {
        source,
        order: Order::Part {
            of,
            from: plain,
            rows: of - plain,
            step: 1,
        },
    };
    Ok([
        Tensor::made(name.clone(), of_keys, vec![plain, rank, n_heads], keys)?,
        Tensor::made(name, ty, vec![rank, of - plain, n_heads], values)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::input::Input;
    use std::sync::Arc;

    #[test]
    fn keys_of_quantized_matrices_become_halves() {
        // Two heads of three keys and two values each, of 32 elements.
        let (rows, row_bytes) = (10, TensorType::Q8_0.row_bytes(32).unwrap());
        let row = |row: usize| -> Vec<u8> {
            let scale = half::f16::from_f32(0.01 * (row + 1) as f32);
            let numbers = (0..32).map(|i| (7 * i + 31 * row) as u8);
            scale.to_le_bytes().into_iter().chain(numbers).collect()
        };
        let bytes: Vec<u8> = (0..rows).flat_map(row).collect();
        let input = Arc::new(Input::copy(&bytes).unwrap());
        let (name, dims) = (Arc::from("kv_b"), vec![32, rows]);
        let source = Tensor::stored(name, TensorType::Q8_0, dims, &input, 0..bytes.len());
        let [keys, values] = keys_and_values(source.clone(), 2, 3).unwrap();
        assert_eq!(
            (keys.ty, &keys.dims[..]),
            (TensorType::F16, &[3, 32, 2][..])
        );
        let found = keys.in_memory().unwrap().to_f32().unwrap().unwrap();
        for (i, found) in found.iter().enumerate() {
            let (head, column, key) = (i / 96, i / 3 % 32, i % 3);
            let mut wanted = [0.0; 32];
            let from = (5 * head + key) * row_bytes;
            dequantize_row(source.ty, &bytes[from..from + row_bytes], &mut wanted);
            assert_eq!(*found, half::f16::from_f32(wanted[column]).to_f32());
        }
        let wanted: Vec<u8> = [3, 4, 8, 9].into_iter().flat_map(row).collect();
        assert_eq!(values.in_memory().unwrap().bytes(), wanted);
        // Rows that are no whole heads.
        let error = keys_and_values(source, 3, 3).unwrap_err();
        assert!(error.message.contains("kv_b"), "{error}");
    }
}
