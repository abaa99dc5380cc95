//! A share of each layer of a network, as a network of its own: what a device runs where others run the rest of the same layers.
//!
//! Attention and recurrences are shared by heads, short convolutions by channels, a feed-forward part by its inner elements, and so is
//! each expert. Each rank has rows of the matrices that read the residual stream, and columns of those that add to it, so that the sum
//! of what all ranks have is what the whole network adds. Routers are whole: every rank chooses the same experts. So is what makes a
//! shorter vector of the residual stream, and what brings the sum of experts with a width of their own back.

mod pieces;
mod recurrent;

pub use pieces::Pieces;
pub use recurrent::FixedCut;

use super::{
    Attention, Block, Experts, FeedForward, LatentAttention, LatentExperts, Linear, Mixer, Mlp,
    Network, Norm,
};
use crate::error::{Result, fail};
use crate::format::{Tensor, TensorId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// One of the networks that share the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Counted from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Rank {
    /// The share of `n` units, in order: all ranks have the same, or the first ones one more.
    fn share(self, n: usize) -> Range<usize> {
        let start = |index: usize| index * (n / self.count) + index.min(n % self.count);
        start(self.index)..start(self.index + 1)
    }
}

/// What a matrix is of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixCut {
    /// The other one.
    pub whole: TensorId,
    /// Its rows.
    pub rows: Pieces,
    /// Its columns.
    pub columns: Pieces,
}

impl MatrixCut {
    /// All of a matrix.
    pub fn none(weight: &Tensor) -> MatrixCut {
        MatrixCut {
            whole: weight.id(),
            rows: (0..weight.rows()).into(),
            columns: (0..weight.row_len()).into(),
        }
    }
}

/// By the matrices of a share.
pub type Cuts = HashMap<TensorId, MatrixCut>;

/// A share that is being made.
struct Cutter {
    rank: Rank,
    cuts: Cuts,
}

impl Network {
    /// The share of a rank: part of each layer, and as many rows of the head. All ranks have the embedding and the norms; rank 0
    /// has the biases of what is added to the residual stream.
    ///
    /// Errors: `Unsupported` names what cannot be shared.
    pub fn rank(&self, rank: Rank) -> Result<Network> {
        let whole = [
            (self.encoder.is_some(), "encoders"),
            (self.streams.is_some(), "several residual streams"),
            (self.per_layer.is_some(), "inputs of layers"),
        ];
        if let Some((_, what)) = whole.iter().find(|(has, _)| *has) {
            fail!(
                Unsupported,
                "architecture {}: {what} cannot be split by tensors",
                self.architecture
            );
        }
        let mut share = self.clone();
        let mut cutter = Cutter {
            rank,
            cuts: Cuts::new(),
        };
        for (i, block) in share.blocks.iter_mut().enumerate() {
            let result = block_share(block, &mut cutter);
            result.map_err(|what| self.cannot(&format!("layer {i}: {what}")))?;
        }
        let rows = rank.share(self.n_vocab);
        if rows.is_empty() {
            return Err(self.cannot("its vocabulary is too small"));
        }
        share.head = cutter.rows_of(&self.head, rows);
        share.cuts = Some(Arc::new(cutter.cuts));
        Ok(share)
    }

    /// What a rank has of the state of fixed size of each layer; `None` of those without one. Errors: as [`Network::rank`].
    pub fn fixed_cuts(&self, rank: Rank) -> Result<Vec<Option<FixedCut>>> {
        let blocks = self.blocks.iter().enumerate();
        let cuts = blocks.map(|(i, block)| {
            let cut = recurrent::fixed_cut(&block.mixer, rank);
            cut.map_err(|what| self.cannot(&format!("layer {i}: {what}")))
        });
        cuts.collect()
    }

    /// The first logit of a rank's head.
    pub fn first_logit(&self, rank: Rank) -> usize {
        rank.share(self.n_vocab).start
    }

    fn cannot(&self, what: &str) -> crate::Error {
        let message = format!(
            "architecture {}: {what}; the model cannot be split by tensors among so many devices",
            self.architecture
        );
        crate::Error::new(crate::Status::Unsupported, message)
    }
}

/// What is wrong with a layer.
type Share<T> = std::result::Result<T, String>;

fn block_share(block: &mut Block, cutter: &mut Cutter) -> Share<()> {
    match &mut block.mixer {
        Mixer::Attention(attention) => attention_share(attention, cutter)?,
        Mixer::Latent(latent) => latent_share(latent, cutter)?,
        Mixer::ShortConv(conv) => recurrent::short_conv_share(conv, cutter)?,
        Mixer::DeltaNet(net) => recurrent::delta_share(net, cutter)?,
        Mixer::Mamba1(_) => return Err(recurrent::MAMBA1.into()),
        Mixer::Mamba2(mamba) => recurrent::mamba2_share(mamba, cutter)?,
        Mixer::SideBySide(both) => {
            attention_share(&mut both.attention, cutter)?;
            recurrent::mamba2_share(&mut both.mamba, cutter)?;
        }
        Mixer::Absent => {}
    }
    match &mut block.feed_forward {
        FeedForward::Dense(mlp) => mlp_share(mlp, cutter),
        FeedForward::Experts(experts) => experts_share(experts, cutter),
        FeedForward::Both(both) => {
            mlp_share(&mut both.mlp, cutter)?;
            experts_share(&mut both.experts, cutter)
        }
        FeedForward::Latent(latent) => latent_experts_share(latent, cutter),
        FeedForward::OnHost(_) | FeedForward::None => Ok(()),
    }
}

fn attention_share(attention: &mut Attention, cutter: &mut Cutter) -> Share<()> {
    let rank = cutter.rank;
    let of_each_head = |norm: &Option<Norm>| {
        let is_of_head = |norm: &Norm| norm.weight.row_len() == attention.head_dim;
        attention.own_head_norms || norm.as_ref().is_none_or(is_of_head)
    };
    if !of_each_head(&attention.q_norm) || !of_each_head(&attention.k_norm) {
        return Err("a norm over all heads together needs all of them".into());
    }
    if attention.output_norm.is_some() {
        return Err("a norm over the results of all heads needs all of them".into());
    }
    let per_kv = attention.n_heads / attention.n_kv_heads;
    let (head_dim, value_dim) = (attention.head_dim, attention.value_dim);
    let block = attention.output.weight.ty.block_len();
    let (kv_heads, heads) = match heads_of(attention, rank, block) {
        Some(heads) => heads,
        None => {
            return Err(format!(
                "{} heads of keys with {per_kv} of queries each cannot be shared by {} devices",
                attention.n_kv_heads, rank.count
            ));
        }
    };
    let of = |heads: &Range<usize>, each: usize| heads.start * each..heads.end * each;
    let q_rows = if attention.gated {
        2 * head_dim
    } else {
        head_dim
    };
    attention.q = cutter.rows_of(&attention.q, of(&heads, q_rows));
    attention.k = cutter.rows_of(&attention.k, of(&kv_heads, head_dim));
    attention.v = cutter.rows_of(&attention.v, of(&kv_heads, value_dim));
    let n_heads = attention.n_heads;
    attention.gate = attention.gate.as_ref().map(|gate| {
        let each = gate.weight.rows() / n_heads;
        cutter.rows_of(gate, of(&heads, each))
    });
    attention.output = cutter.columns_of(&attention.output, of(&heads, value_dim))?;
    if attention.own_head_norms {
        for (norm, heads) in [
            (&mut attention.q_norm, &heads),
            (&mut attention.k_norm, &kv_heads),
        ] {
            if let Some(norm) = norm {
                norm.weight = norm.weight.elements(of(heads, head_dim));
                let bias = norm.bias.as_ref();
                norm.bias = bias.map(|bias| bias.elements(of(heads, head_dim)));
            }
        }
    }
    let sinks = attention.sinks.as_ref();
    attention.sinks = sinks.map(|sinks| sinks.elements(heads.clone()));
    let slopes = attention.slopes.as_ref();
    attention.slopes = slopes.map(|slopes| Arc::from(&slopes[heads.clone()]));
    if let Some(distances) = &mut attention.distances {
        distances.heads = distances.heads.start + heads.start..distances.heads.start + heads.end;
    }
    attention.n_heads = heads.len();
    attention.n_kv_heads = kv_heads.len();
    Ok(())
}

/// The heads of keys of a rank, and those of queries, whose columns are whole blocks.
fn heads_of(
    attention: &Attention,
    rank: Rank,
    block: usize,
) -> Option<(Range<usize>, Range<usize>)> {
    let (n_kv, value_dim) = (attention.n_kv_heads, attention.value_dim);
    let per_kv = attention.n_heads / n_kv;
    if n_kv < rank.count {
        // Several ranks have the same keys, and of their queries some each.
        let each = rank.count / n_kv;
        let among = Rank {
            index: rank.index % each,
            count: each,
        };
        let heads = in_blocks(per_kv, value_dim, block, among)?;
        let kv = rank.index / each;
        let first = kv * per_kv;
        let fits = n_kv * each == rank.count;
        return fits.then_some((kv..kv + 1, first + heads.start..first + heads.end));
    }
    // Heads go together that share keys.
    let kv = in_blocks(n_kv, per_kv * value_dim, block, rank)?;
    let heads = kv.start * per_kv..kv.end * per_kv;
    Some((kv, heads))
}

/// The share of `n` units with `each` columns, as many of which go together as whole blocks want; none if there is nothing for a rank.
fn in_blocks(n: usize, each: usize, block: usize, rank: Rank) -> Option<Range<usize>> {
    let fits = |units: &usize| (units * each).is_multiple_of(block) && n.is_multiple_of(*units);
    let unit = (1..=n).find(fits)?;
    let share = rank.share(n / unit);
    (!share.is_empty()).then_some(share.start * unit..share.end * unit)
}

/// All ranks have the latent vectors, and some heads each.
fn latent_share(latent: &mut LatentAttention, cutter: &mut Cutter) -> Share<()> {
    let rank = cutter.rank;
    let block = latent.output.weight.ty.block_len();
    let (n, value_dim) = (latent.n_heads, latent.value_dim);
    let Some(heads) = in_blocks(n, value_dim, block, rank) else {
        return Err(format!(
            "{n} heads with {value_dim} elements each in blocks of {block} cannot be shared by {} devices",
            rank.count
        ));
    };
    let of = |each: usize| heads.start * each..heads.end * each;
    latent.q = cutter.rows_of(&latent.q, of(latent.plain_dim + latent.rotated()));
    latent.to_latent = cutter.rows_of(&latent.to_latent, of(latent.rank));
    latent.from_latent = cutter.rows_of(&latent.from_latent, of(value_dim));
    let gate = latent.gate.as_ref();
    latent.gate = gate.map(|gate| cutter.rows_of(gate, heads.clone()));
    latent.output = cutter.columns_of(&latent.output, of(value_dim))?;
    latent.n_heads = heads.len();
    Ok(())
}

/// The inner elements of a rank, of `n_ff` that `down` reads.
fn inner_of(down: &Linear, rank: Rank) -> Share<Range<usize>> {
    let block = down.weight.ty.block_len();
    let n_ff = down.weight.row_len();
    // Kernels like whole groups of rows.
    let unit = [256, 128, 64, 32, block]
        .into_iter()
        .find(|unit| n_ff.is_multiple_of(unit * rank.count) && unit.is_multiple_of(block))
        .unwrap_or(block);
    let units = rank.share(n_ff / unit);
    if units.is_empty() {
        return Err(format!(
            "{n_ff} inner elements in blocks of {block} cannot be shared by {} devices",
            rank.count
        ));
    }
    Ok(units.start * unit..units.end * unit)
}

fn mlp_share(mlp: &mut Mlp, cutter: &mut Cutter) -> Share<()> {
    let rank = cutter.rank;
    if mlp.inner_norm.is_some() {
        return Err("a norm over all inner elements needs all of them".into());
    }
    let inner = inner_of(&mlp.down, rank)?;
    mlp.gate = mlp
        .gate
        .as_ref()
        .map(|gate| cutter.rows_of(gate, inner.clone()));
    mlp.up = cutter.rows_of(&mlp.up, inner.clone());
    mlp.down = cutter.columns_of(&mlp.down, inner)?;
    Ok(())
}

fn experts_share(experts: &mut Experts, cutter: &mut Cutter) -> Share<()> {
    let rank = cutter.rank;
    let inner = inner_of(&experts.down, rank)?;
    let (n, n_ff) = (experts.n_experts, experts.n_ff);
    let mut of_each = |linear: &Linear, pieces: &[Range<usize>]| -> Share<Linear> {
        let whole = MatrixCut::none(&linear.weight);
        let weight = Tensor::rows_of_each(&linear.weight, n, pieces).map_err(|e| e.message)?;
        let period = linear.weight.rows() / n;
        let rows = (0..n).flat_map(|i| {
            let of = move |rows: &Range<usize>| i * period + rows.start..i * period + rows.end;
            pieces.iter().map(of)
        });
        let cut = MatrixCut {
            rows: Pieces::new(rows),
            ..whole
        };
        cutter.cuts.insert(weight.id(), cut);
        let bias = linear.bias.as_ref().map(|bias| {
            let bias = bias.with_rows_of(n_ff);
            Tensor::columns(&bias, std::slice::from_ref(&inner)).map_err(|e| e.message)
        });
        let bias = bias.transpose()?;
        Ok(Linear { weight, bias })
    };
    if experts.fused {
        let up = inner.start + n_ff..inner.end + n_ff;
        experts.up = of_each(&experts.up, &[inner.clone(), up])?;
        experts.gate = Some(experts.up.clone());
    } else {
        let gate = experts.gate.as_ref();
        experts.gate = gate
            .map(|gate| of_each(gate, std::slice::from_ref(&inner)))
            .transpose()?;
        experts.up = of_each(&experts.up, std::slice::from_ref(&inner))?;
    }
    experts.n_ff = inner.len();
    experts.down = cutter.columns_of(&experts.down, inner.clone())?;
    experts.sum_bias = experts.sum_bias.take().filter(|_| rank.index == 0);
    match &mut experts.shared {
        Some(shared) => mlp_share(&mut shared.mlp, cutter),
        None => Ok(()),
    }
}

/// All ranks have the shorter vectors, and what brings back the sum of what a rank's experts make of them: all of that is linear.
fn latent_experts_share(latent: &mut LatentExperts, cutter: &mut Cutter) -> Share<()> {
    experts_share(&mut latent.experts, cutter)?;
    latent.leave.bias = latent.leave.bias.take().filter(|_| cutter.rank.index == 0);
    mlp_share(&mut latent.mlp, cutter)
}

/// Some rows of a matrix.
fn rows(whole: &Tensor, pieces: &Pieces) -> Share<Tensor> {
    match pieces.single() {
        Some(rows) => Ok(whole.row_range(rows)),
        None => Tensor::rows_of_each(whole, 1, pieces.ranges()).map_err(|e| e.message),
    }
}

/// Some elements of a vector.
fn elements(whole: &Tensor, pieces: &Pieces) -> Share<Tensor> {
    match pieces.single() {
        Some(elements) => Ok(whole.elements(elements)),
        None => Ok(rows(&whole.with_rows_of(1), pieces)?.with_rows_of(pieces.len())),
    }
}

impl Cutter {
    fn rows_of(&mut self, linear: &Linear, rows: Range<usize>) -> Linear {
        let bias = linear.bias.as_ref();
        let whole = MatrixCut::none(&linear.weight);
        let weight = linear.weight.row_range(rows.clone());
        self.cuts.insert(
            weight.id(),
            MatrixCut {
                rows: rows.clone().into(),
                ..whole
            },
        );
        Linear {
            bias: bias.map(|bias| bias.elements(rows)),
            weight,
        }
    }

    /// Rows that need not be behind each other.
    fn pieces_of(&mut self, linear: &Linear, pieces: &Pieces) -> Share<Linear> {
        if let Some(rows) = pieces.single() {
            return Ok(self.rows_of(linear, rows));
        }
        let whole = MatrixCut::none(&linear.weight);
        let weight = rows(&linear.weight, pieces)?;
        let cut = MatrixCut {
            rows: pieces.clone(),
            ..whole
        };
        self.cuts.insert(weight.id(), cut);
        let bias = linear.bias.as_ref().map(|bias| elements(bias, pieces));
        Ok(Linear {
            bias: bias.transpose()?,
            weight,
        })
    }

    fn columns_of(&mut self, linear: &Linear, columns: impl Into<Pieces>) -> Share<Linear> {
        let whole = MatrixCut::none(&linear.weight);
        let columns = columns.into();
        let weight = Tensor::columns(&linear.weight, columns.ranges()).map_err(|e| e.message)?;
        self.cuts
            .insert(weight.id(), MatrixCut { columns, ..whole });
        Ok(Linear {
            weight,
            bias: linear.bias.clone().filter(|_| self.rank.index == 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_order_and_alike() {
        for (n, count) in [(8, 2), (7, 3), (2, 4), (128_256, 2), (1, 1)] {
            let shares: Vec<_> = (0..count)
                .map(|index| Rank { index, count }.share(n))
                .collect();
            let mut at = 0;
            for share in &shares {
                assert_eq!(share.start, at);
                at = share.end;
            }
            assert_eq!(at, n);
            let lens = shares.iter().map(ExactSizeIterator::len);
            assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
        }
    }
}
