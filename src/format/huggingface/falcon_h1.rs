//! Folders of Falcon-H1: the factors of their configs, which GGUF files have in the weights.

use super::keys::Keys;
use super::mamba2;
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::Tensor;
use crate::format::convert::converted;
use crate::format::made::MakeRows;
use crate::quant::TensorType;

pub(super) fn keys(k: &mut Keys) -> Result<()> {
    if k.config.flag("mamba_rms_norm")? && k.config.flag("mamba_norm_before_gate")? {
        k.set("ssm.norm_before_gate", true);
    }
    mamba2::refuse_limits(k)?;
    let size = |key: &str| k.config.size(&[key]);
    let (inner, heads) = (size("mamba_d_ssm")?, size("mamba_n_heads")?);
    if !inner.is_multiple_of(heads) {
        let problem = format!(
            "config.json: mamba_n_heads is {heads}, which does not divide the width {inner}"
        );
        return Err(Error::new(Status::InvalidModel, problem));
    }
    let pairs = [
        ("ssm.conv_kernel", size("mamba_d_conv")?),
        ("ssm.state_size", size("mamba_d_state")?),
        ("ssm.group_count", size("mamba_n_groups")?),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", inner),
    ];
    for (key, value) in pairs {
        k.set(key, value);
    }
    Ok(())
}

/// Factors of the rows of a tensor by its name in GGUF: runs of so many rows, and the factor of each; the
/// last run is as long as the rest.
fn factors(k: &Keys, name: &str) -> Result<Vec<(usize, f32)>> {
    let number = |key: &str| -> Result<f32> {
        let value = k.config.find_f32(key)?.unwrap_or(1.0);
        match value.is_finite() {
            true => Ok(value),
            false => fail!(InvalidModel, "config.json: {key} is {value}"),
        }
    };
    let list = |key: &str, len: usize| -> Result<Vec<f32>> {
        let Some(values) = k.config.find_array(key)? else {
            return Ok(vec![1.0; len]);
        };
        let numbers: Vec<f32> = values
            .iter()
            .filter_map(|v| v.as_f64().map(|v| v as f32))
            .filter(|v| v.is_finite())
            .collect();
        if numbers.len() != len || values.len() != len {
            let expected = format!("a list of {len} numbers");
            return Err(super::json::wrong(key, &values.clone().into(), &expected));
        }
        Ok(numbers)
    };
    let part = match name.strip_prefix("blk.") {
        Some(rest) => rest.split_once('.').map_or("", |(_, part)| part),
        None => name,
    };
    let size = |key: &str| Ok::<usize, Error>(k.config.size(&[key])? as usize);
    let all = |factor: f32| Ok(vec![(usize::MAX, factor)]);
    let input = || number("attention_in_multiplier");
    match part {
        "token_embd.weight" => all(number("embedding_multiplier")?),
        "output.weight" => all(number("lm_head_multiplier")?),
        "attn_q.weight" | "attn_v.weight" => all(input()?),
        "attn_k.weight" => all(input()? * number("key_multiplier")?),
        // Biases come behind the factor of the input.
        "attn_k.bias" => all(number("key_multiplier")?),
        "attn_output.weight" | "attn_output.bias" => all(number("attention_out_multiplier")?),
        "ffn_gate.weight" | "ffn_gate.bias" => all(list("mlp_multipliers", 2)?[0]),
        "ffn_down.weight" | "ffn_down.bias" => all(list("mlp_multipliers", 2)?[1]),
        "ssm_out.weight" | "ssm_out.bias" => all(number("ssm_out_multiplier")?),
        "ssm_in.weight" | "ssm_in.bias" => {
            let own = list("ssm_multipliers", 5)?;
            let input = match part {
                "ssm_in.weight" => number("ssm_in_multiplier")?,
                _ => 1.0,
            };
            let inner = size("mamba_d_ssm")?;
            let states = size("mamba_n_groups")?.saturating_mul(size("mamba_d_state")?);
            let lens = [inner, inner, states, states, usize::MAX];
            let runs = lens.into_iter().zip(own);
            Ok(runs.map(|(len, own)| (len, own * input)).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// The tensor with its factors, F32 where there are some.
pub(super) fn scaled(k: &Keys, tensor: Tensor, name: &str) -> Result<Tensor> {
    let factors = factors(k, name)?;
    if factors.iter().all(|(_, factor)| *factor == 1.0) {
        return Ok(tensor);
    }
    let source = converted(&tensor, TensorType::F32)?;
    let (name, dims) = (source.name.clone(), source.dims.clone());
    Tensor::made(name, TensorType::F32, dims, Scaled { source, factors })
}

/// Gives the values of a vector their factors.
pub(super) fn scale(k: &Keys, name: &str, values: &mut [f32]) -> Result<()> {
    let factors = factors(k, name)?;
    for (row, value) in values.iter_mut().enumerate() {
        *value *= factor(&factors, row);
    }
    Ok(())
}

/// The factor of a row: those of runs of so many rows are one behind the other.
fn factor(factors: &[(usize, f32)], mut row: usize) -> f32 {
    for (len, factor) in factors {
        if row < *len {
            return *factor;
        }
        row -= len;
    }
    1.0
}

/// Rows of numbers with a factor each.
struct Scaled {
    source: Tensor,
    factors: Vec<(usize, f32)>,
}

impl MakeRows for Scaled {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.source.row_bytes();
        let mut row = try_vec(row_bytes, 0u8, &self.source.name)?;
        for (i, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            self.source.read_rows(first + i, &mut row)?;
            let factor = factor(&self.factors, first + i);
            for (from, to) in row
                .as_chunks::<4>()
                .0
                .iter()
                .zip(out.as_chunks_mut::<4>().0)
            {
                *to = (f32::from_le_bytes(*from) * factor).to_le_bytes();
            }
        }
        Ok(())
    }
}
