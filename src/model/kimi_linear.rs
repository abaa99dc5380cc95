//! `kimi-linear` and `bailingmoe3`: Kimi Linear and Ling 3. Most layers are gated delta nets with steps of each channel, the others latent
//! attention, which does not rotate in the first one, and has gates of its heads in the second. Experts are chosen by sigmoids and a bias in
//! all layers but the first ones.

use super::decoder::{Decoder, bare_block};
use super::deepseek2::Shape;
use super::experts::{Defaults, Mixture, shared_count_ff, shared_ff, softmax};
use super::hybrid::{attending, conv_width, kv_heads};
use super::step35::Limits;
use super::{Block, Conv, DeltaNet, DeltaSteps, Linear, Mixer, Network, NormKind, Scoring};
use crate::error::{Result, fail, try_vec};
use crate::format::{ModelFile, Tensor};

const HEAD_DIM: &str = "kda.head_dim";

pub(super) fn describe(file: &ModelFile) -> Result<Network> {
    let d = Decoder::read_with(file, "kimi-linear", NormKind::Rms, kv_heads)?;
    let attends = attending(&d.source, d.n_layers, "ssm_f_a")?;
    network(&d, &attends, None)
}

/// The one whose decay has a floor, and whose steps and gates come of the input itself.
pub(super) fn bailing(file: &ModelFile) -> Result<Network> {
    const FLOOR: &str = "kda.gate_lower_bound";
    let mut d = Decoder::read_with(file, "bailingmoe3", NormKind::Rms, kv_heads)?;
    let attends = attending(&d.source, d.n_layers, "ssm_f_a")?;
    let limits = Limits::read(&d)?;
    d.leave_out_predictors()?;
    if !file.get::<bool>(&d.source.key("kda.safe_gate"))? {
        fail!(
            Unsupported,
            "{} is false, which is not supported",
            d.source.key_name("kda.safe_gate")
        );
    }
    let floor = file.f32(&d.source.key(FLOOR))?;
    if !(floor.is_finite() && floor < 0.0) {
        let problem = format!("is {floor}; it must be a finite number below 0");
        return Err(d.source.invalid(FLOOR, &problem));
    }
    let mut network = network(&d, &attends, Some(floor))?;
    for (layer, block) in network.blocks.iter_mut().enumerate() {
        limits.apply(layer, &mut block.feed_forward);
        if let Mixer::Latent(attention) = &mut block.mixer {
            let gate = format!("blk.{layer}.attn_gate");
            attention.gate = Some(d.source.linear(&gate, d.hidden, d.n_heads)?);
        }
    }
    Ok(network)
}

fn network(d: &Decoder, attends: &[bool], floor: Option<f32>) -> Result<Network> {
    let shape = Shape::read(d)?;
    let experts = Defaults {
        scoring: Scoring::Sigmoid,
        shared_ff: match shared_ff(d)? {
            None => shared_count_ff(d)?,
            found => found,
        },
        ..softmax(d)?
    };
    let experts = Mixture::new(d, experts)?;
    let width = conv_width(&d.source, "ssm.conv_kernel")?;
    let head_dim = d.source.size(HEAD_DIM)?;
    let all = d.source.product(HEAD_DIM, head_dim, d.n_heads)?;
    d.source.product(HEAD_DIM, all, 3 * width.max(head_dim))?;
    d.network(|i| {
        let mixer = match attends[i] {
            true => Mixer::Latent(Box::new(shape.attention(d, i)?)),
            false => delta_net(d, i, (head_dim, width), floor)?.into(),
        };
        Ok(Block {
            mixer_norm: d.norm(i, "attn_norm")?,
            feed_forward_norm: d.norm(i, "ffn_norm")?,
            ..bare_block(mixer, experts.or_gated(d, i)?)
        })
    })
}

/// A delta net with heads of so many elements, convolutions of that width, and a floor of its decay, or shorter vectors.
fn delta_net(
    d: &Decoder,
    layer: usize,
    (head_dim, width): (usize, usize),
    floor: Option<f32>,
) -> Result<DeltaNet> {
    let (source, hidden, heads) = (&d.source, d.hidden, d.n_heads);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let all = heads * head_dim;
    let [q, k, v] = d.qkv(layer, [all; 3])?;
    // What comes of the input, or of a shorter vector.
    let by_way = |first: &str, second: &str| -> Result<(Option<Linear>, Linear)> {
        if floor.is_some() {
            return Ok((None, source.linear(&name(first), hidden, all)?));
        }
        let short = source.linear(&name(first), hidden, head_dim)?;
        Ok((Some(short), source.linear(&name(second), head_dim, all)?))
    };
    let (short, a) = by_way("ssm_f_a", "ssm_f_b")?;
    let (z_short, z) = by_way("ssm_g_a", "ssm_g_b")?;
    Ok(DeltaNet {
        n_key_heads: heads,
        n_value_heads: heads,
        key_dim: head_dim,
        value_dim: head_dim,
        tiled: false,
        q,
        k,
        v,
        z,
        z_short,
        sigmoid_gate: true,
        steps: DeltaSteps::Channels {
            b: source.linear(&name("ssm_beta"), hidden, heads)?,
            short,
            a,
        },
        beta_scale: 1.0,
        conv: conv(d, layer, all, width)?,
        decay_floor: floor,
        decay: source.vector_in_rows(&name("ssm_a"), 1, heads)?,
        dt_bias: source.vector(&name("ssm_dt.bias"), all)?,
        norm: source.norm(&name("ssm_norm"), head_dim, NormKind::Rms, d.eps)?,
        output: source.linear(&name("attn_output"), all, hidden)?,
    })
}

/// The convolutions of queries, keys and values, which files have apart, as one.
fn conv(d: &Decoder, layer: usize, channels: usize, width: usize) -> Result<Conv> {
    let mut taps = try_vec(3 * channels * width, 0.0, "convolutions")?;
    for (part, taps) in ["q", "k", "v"]
        .into_iter()
        .zip(taps.chunks_exact_mut(channels * width))
    {
        let name = format!("blk.{layer}.ssm_conv1d_{part}.weight");
        let tensor = d.source.file.tensor(&name)?;
        // Dimensions of 1 make no difference.
        let dims: Vec<usize> = tensor.dims.iter().copied().filter(|n| *n != 1).collect();
        let values = match tensor.ty.is_float() {
            true => tensor.to_f32()?,
            false => None,
        };
        match values {
            Some(values) if dims == [width, channels] => taps.copy_from_slice(&values),
            _ => fail!(
                ShapeMismatch,
                "tensor {name} has shape {:?} and type {}; the model needs {channels} channels of {width} floats",
                tensor.dims,
                tensor.ty.name()
            ),
        }
    }
    let name = format!("blk.{layer}.ssm_conv1d.weight");
    Ok(Conv {
        weight: Tensor::of_numbers(&name, vec![width, 3 * channels], &taps)?,
        bias: None,
    })
}
