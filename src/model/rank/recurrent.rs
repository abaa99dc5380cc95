//! Shares of mixers with a state of fixed size: heads of gated delta nets and of Mamba 2, and channels of short convolutions. What a head
//! has of its own goes along with it: channels of the convolution, decay, steps, norm and gate.

use super::pieces::Pieces;
use super::{Cutter, Rank, Share, elements, in_blocks, inner_of};
use crate::model::{Conv, DeltaNet, DeltaSteps, Mamba2, Mixer, ShortConv};

/// Why the first Mamba is whole.
pub(super) const MAMBA1: &str = "time steps of the first Mamba need all of its channels";

/// What a rank has of a layer's state of fixed size, in its own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedCut {
    /// Channels of the convolution. Several ranks may have the same.
    pub channels: Pieces,
    /// Heads of the recurrence.
    pub heads: Pieces,
}

/// What a rank has of the state of a mixer; `None` where that has none of fixed size.
pub(super) fn fixed_cut(mixer: &Mixer, rank: Rank) -> Share<Option<FixedCut>> {
    Ok(Some(match mixer {
        Mixer::Attention(_) | Mixer::Latent(_) | Mixer::Absent => return Ok(None),
        Mixer::ShortConv(m) => FixedCut {
            channels: inner_of(&m.output, rank)?.into(),
            heads: Pieces::new([]),
        },
        Mixer::DeltaNet(m) => DeltaHeads::of(m, rank)?.state(m),
        Mixer::Mamba2(m) => MambaHeads::of(m, rank)?.state(m),
        Mixer::SideBySide(both) => MambaHeads::of(&both.mamba, rank)?.state(&both.mamba),
        Mixer::Mamba1(_) => return Err(MAMBA1.into()),
    }))
}

/// What a rank has of a gated delta net.
struct DeltaHeads {
    /// Heads of queries and keys.
    keys: Pieces,
    /// Heads of values, which use these keys and are in the same order.
    values: Pieces,
}

impl DeltaHeads {
    fn of(m: &DeltaNet, rank: Rank) -> Share<DeltaHeads> {
        DeltaHeads::find(m, rank).ok_or_else(|| {
            format!(
                "{} heads of keys with {} of values each cannot be shared by {} devices",
                m.n_key_heads,
                m.n_value_heads / m.n_key_heads,
                rank.count
            )
        })
    }

    fn find(m: &DeltaNet, rank: Rank) -> Option<DeltaHeads> {
        let (n_keys, dim) = (m.n_key_heads, m.value_dim);
        let per_key = m.n_value_heads / n_keys;
        let block = m.output.weight.ty.block_len();
        if n_keys < rank.count {
            // Several ranks have the same key, and of its values some each.
            let each = rank.count / n_keys;
            let among = Rank {
                index: rank.index % each,
                count: each,
            };
            let key = rank.index / each;
            // Of heads in turns, each is apart from the next.
            let fits = !m.tiled || dim.is_multiple_of(block);
            let fits = fits && n_keys * each == rank.count;
            let values = in_blocks(per_key, dim, block, among).filter(|_| fits)?;
            return Some(DeltaHeads {
                keys: (key..key + 1).into(),
                values: match m.tiled {
                    true => Pieces::new(values.map(|tile| {
                        let head = tile * n_keys + key;
                        head..head + 1
                    })),
                    false => (key * per_key + values.start..key * per_key + values.end).into(),
                },
            });
        }
        if m.tiled {
            // Of each tile the values of the same keys.
            let keys = in_blocks(n_keys, dim, block, rank)?;
            let tiles = (0..per_key).map(|tile| tile * n_keys);
            return Some(DeltaHeads {
                values: Pieces::new(tiles.map(|tile| tile + keys.start..tile + keys.end)),
                keys: keys.into(),
            });
        }
        let keys = in_blocks(n_keys, per_key * dim, block, rank)?;
        Some(DeltaHeads {
            values: (keys.start * per_key..keys.end * per_key).into(),
            keys: keys.into(),
        })
    }

    fn state(self, m: &DeltaNet) -> FixedCut {
        FixedCut {
            channels: self.channels(m),
            heads: self.values,
        }
    }

    /// Of queries, keys and values.
    fn channels(&self, m: &DeltaNet) -> Pieces {
        let all = m.n_key_heads * m.key_dim;
        let keys = self.keys.times(m.key_dim);
        let keys = keys.and(self.keys.behind(all, m.key_dim));
        keys.and(self.values.behind(2 * all, m.value_dim))
    }

    /// Rows of a matrix that has, for each key, a row for each of its values, and then as many again.
    fn pairs(&self, m: &DeltaNet) -> Pieces {
        let per_key = m.n_value_heads / m.n_key_heads;
        let keys = self.keys.ranges().iter().cloned().flatten();
        let of = |key: usize| {
            let first = key * per_key;
            let values = self.values.within(first..first + per_key);
            values
                .behind(first, 1)
                .and(values.behind(first + per_key, 1))
        };
        keys.map(of).fold(Pieces::new([]), Pieces::and)
    }
}

/// Value heads go along with the key head that they use.
pub(super) fn delta_share(m: &mut DeltaNet, cutter: &mut Cutter) -> Share<()> {
    let heads = DeltaHeads::of(m, cutter.rank)?;
    let (keys, values) = (&heads.keys, &heads.values);
    let (of_keys, of_values) = (keys.times(m.key_dim), values.times(m.value_dim));
    m.q = cutter.pieces_of(&m.q, &of_keys)?;
    m.k = cutter.pieces_of(&m.k, &of_keys)?;
    m.v = cutter.pieces_of(&m.v, &of_values)?;
    m.z = cutter.pieces_of(&m.z, &of_values)?;
    let steps = m.dt_bias.row_len() / m.n_value_heads;
    m.steps = match &m.steps {
        DeltaSteps::Apart { b, a } => DeltaSteps::Apart {
            b: cutter.pieces_of(b, values)?,
            a: cutter.pieces_of(a, values)?,
        },
        DeltaSteps::Together(both) => {
            DeltaSteps::Together(cutter.pieces_of(both, &heads.pairs(m))?)
        }
        DeltaSteps::Channels { b, short, a } => DeltaSteps::Channels {
            b: cutter.pieces_of(b, values)?,
            short: short.clone(),
            a: cutter.pieces_of(a, &values.times(steps))?,
        },
    };
    m.conv = conv_share(&m.conv, &heads.channels(m))?;
    m.decay = elements(&m.decay, values)?;
    m.dt_bias = elements(&m.dt_bias, &values.times(steps))?;
    m.output = cutter.columns_of(&m.output, of_values)?;
    (m.n_key_heads, m.n_value_heads) = (keys.len(), values.len());
    Ok(())
}

/// What a rank has of Mamba 2.
struct MambaHeads {
    heads: Pieces,
    /// Those whose `B` and `C` the heads use.
    groups: Pieces,
    /// Parts of the norm.
    norms: usize,
}

impl MambaHeads {
    fn of(m: &Mamba2, rank: Rank) -> Share<MambaHeads> {
        let normed = m.norm.is_some();
        if normed && m.norm_groups == 1 && rank.count > 1 {
            return Err("a norm over all inner elements needs all of them".into());
        }
        // Heads with a norm together.
        let per_norm = match normed {
            true if m.n_heads.is_multiple_of(m.norm_groups) => m.n_heads / m.norm_groups,
            true => return Err("a norm over parts of heads is not split by tensors".into()),
            false => 1,
        };
        MambaHeads::find(m, per_norm, rank).ok_or_else(|| {
            let norms = match normed {
                true => format!(" and norms of {per_norm}"),
                false => String::new(),
            };
            format!(
                "{} heads in {} groups{norms} cannot be shared by {} devices",
                m.n_heads, m.n_groups, rank.count
            )
        })
    }

    fn find(m: &Mamba2, per_norm: usize, rank: Rank) -> Option<MambaHeads> {
        let block = m.output.weight.ty.block_len();
        let per_group = m.n_heads / m.n_groups;
        // The share of `n` heads of which so many go together.
        let shared = |n: usize, unit: usize, rank: Rank| {
            let units = n.is_multiple_of(unit).then_some(n / unit)?;
            let share = in_blocks(units, unit * m.head_dim, block, rank)?;
            Some(share.start * unit..share.end * unit)
        };
        let (heads, groups) = if m.n_groups < rank.count {
            // Several ranks have the same group, and of its heads some each.
            let each = rank.count / m.n_groups;
            let among = Rank {
                index: rank.index % each,
                count: each,
            };
            let group = rank.index / each;
            let fits = m.n_groups * each == rank.count;
            let heads = shared(per_group, per_norm, among).filter(|_| fits)?;
            let first = group * per_group;
            (first + heads.start..first + heads.end, group..group + 1)
        } else {
            let unit = (1..=m.n_groups)
                .map(|groups| groups * per_group)
                .find(|unit| unit.is_multiple_of(per_norm))?;
            let heads = shared(m.n_heads, unit, rank)?;
            let groups = heads.start / per_group..heads.end / per_group;
            (heads, groups)
        };
        Some(MambaHeads {
            norms: heads.len() / per_norm,
            heads: heads.into(),
            groups: groups.into(),
        })
    }

    fn state(self, m: &Mamba2) -> FixedCut {
        FixedCut {
            channels: self.channels(m),
            heads: self.heads,
        }
    }

    /// Of `x`, `B` and `C`.
    fn channels(&self, m: &Mamba2) -> Pieces {
        let inner = m.n_heads * m.head_dim;
        let states = m.n_groups * m.state_dim;
        let x = self.heads.times(m.head_dim);
        let b = self.groups.behind(inner, m.state_dim);
        x.and(b)
            .and(self.groups.behind(inner + states, m.state_dim))
    }
}

/// Heads go along with their group, or several ranks have that.
pub(super) fn mamba2_share(m: &mut Mamba2, cutter: &mut Cutter) -> Share<()> {
    let share = MambaHeads::of(m, cutter.rank)?;
    let (heads, groups) = (&share.heads, &share.groups);
    let (inner, states) = (heads.times(m.head_dim), groups.times(m.state_dim));
    m.z = cutter.pieces_of(&m.z, &inner)?;
    m.x = cutter.pieces_of(&m.x, &inner)?;
    m.b = cutter.pieces_of(&m.b, &states)?;
    m.c = cutter.pieces_of(&m.c, &states)?;
    m.dt = cutter.pieces_of(&m.dt, heads)?;
    m.conv = conv_share(&m.conv, &share.channels(m))?;
    for vector in [&mut m.decay, &mut m.dt_bias, &mut m.skip] {
        *vector = elements(vector, heads)?;
    }
    if let Some(norm) = &mut m.norm {
        norm.weight = elements(&norm.weight, &inner)?;
        let bias = norm.bias.as_ref().map(|bias| elements(bias, &inner));
        norm.bias = bias.transpose()?;
        m.norm_groups = share.norms;
    }
    m.output = cutter.columns_of(&m.output, inner)?;
    (m.n_heads, m.n_groups) = (heads.len(), groups.len());
    Ok(())
}

pub(super) fn short_conv_share(m: &mut ShortConv, cutter: &mut Cutter) -> Share<()> {
    let channels = Pieces::from(inner_of(&m.output, cutter.rank)?);
    for linear in [&mut m.b, &mut m.c, &mut m.x] {
        *linear = cutter.pieces_of(linear, &channels)?;
    }
    m.conv = conv_share(&m.conv, &channels)?;
    m.output = cutter.columns_of(&m.output, channels)?;
    Ok(())
}

fn conv_share(conv: &Conv, channels: &Pieces) -> Share<Conv> {
    let bias = conv.bias.as_ref().map(|bias| elements(bias, channels));
    Ok(Conv {
        weight: super::rows(&conv.weight, channels)?,
        bias: bias.transpose()?,
    })
}
