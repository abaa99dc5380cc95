//! Shares of a network for ranks: each has its rows, columns, heads and experts' parts of the whole.

use crate::common::TempDir;
use crate::common::edit::Edited;
use crate::common::families::open_family;
use crate::common::later::{kimi_linear, lfm3, ling_3, olmo_hybrid};
use crate::common::reference_llama::{Rows, add_feed_forward, attention_part};
use crate::common::tiny_experts::{self, PLAIN, Variant};
use emberlm::Status;
use emberlm::format::ModelFile;
use emberlm::model::{
    Block, DeltaNet, DeltaSteps, Experts, FeedForward, FixedShape, Linear, Mixer, MixerState,
    Network, Rank,
};
use std::ops::Range;

const COUNT: usize = 2;

fn network(name: &str) -> Network {
    Network::from_file(&open_family(name)).unwrap()
}

fn shares(network: &Network) -> Vec<Network> {
    let rank = |index| Rank {
        index,
        count: COUNT,
    };
    (0..COUNT)
        .map(|index| network.rank(rank(index)).unwrap())
        .collect()
}

/// Rows of a matrix of floats.
fn rows(linear: &Linear) -> Vec<Vec<f32>> {
    let tensor = &linear.weight;
    let mut bytes = vec![0; tensor.byte_len()];
    tensor.read_rows(0, &mut bytes).unwrap();
    let size = tensor.row_bytes() / tensor.row_len();
    let number = |b: &[u8]| match size {
        4 => f32::from_le_bytes(b.try_into().unwrap()),
        // Any numbers do, if different ones are.
        2 => f32::from(u16::from_le_bytes(b.try_into().unwrap())),
        _ => panic!("{} elements", tensor.ty.name()),
    };
    bytes
        .chunks_exact(tensor.row_bytes())
        .map(|row| row.chunks_exact(size).map(number).collect())
        .collect()
}

fn bias(linear: &Linear) -> Option<Vec<f32>> {
    let bias = linear.bias.as_ref()?;
    let mut bytes = vec![0; bias.byte_len()];
    bias.read_rows(0, &mut bytes).unwrap();
    let number = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
    Some(bytes.chunks_exact(4).map(number).collect())
}

fn columns_of(rows: &[Vec<f32>], columns: Range<usize>) -> Vec<Vec<f32>> {
    rows.iter()
        .map(|row| row[columns.clone()].to_vec())
        .collect()
}

fn experts_of(network: &Network, layer: usize) -> &Experts {
    match &network.blocks[layer].feed_forward {
        FeedForward::Experts(experts) => experts,
        FeedForward::Both(both) => &both.experts,
        _ => panic!("layer {layer} without experts"),
    }
}

/// Each expert's inner elements are shared; routers, and biases of what is added, are not.
#[test]
fn each_expert_is_shared_by_its_inner_elements() {
    let biased = Variant {
        biases: true,
        shared: Some(true),
        ..PLAIN
    };
    let files = ["mixtral", "qwen2_moe", "granite_moe", "gemma4_moe"].into_iter();
    let files = files.map(|name| (name, network(name)));
    for (name, whole) in files.chain([("biased", tiny_experts::network(&biased))]) {
        let shares = shares(&whole);
        let layer = whole
            .blocks
            .iter()
            .position(|b| {
                matches!(
                    b.feed_forward,
                    FeedForward::Experts(_) | FeedForward::Both(_)
                )
            })
            .unwrap();
        let all = experts_of(&whole, layer);
        let (n, n_ff, hidden) = (all.n_experts, all.n_ff, whole.hidden);
        let mut at = 0;
        for (i, share) in shares.iter().enumerate() {
            let own = experts_of(share, layer);
            let inner = at..at + own.n_ff;
            at = inner.end;
            assert_eq!(rows(&own.router), rows(&all.router), "{name}");
            let first = rows(&all.up);
            let per_expert = first.len() / n;
            let pick = |of: &[Vec<f32>], from: usize| -> Vec<Vec<f32>> {
                (0..n)
                    .flat_map(|e| of[e * per_expert + from..][inner.clone()].to_vec())
                    .collect()
            };
            if all.fused {
                let (gates, ups) = (pick(&first, 0), pick(&first, n_ff));
                let want: Vec<_> = (0..n)
                    .flat_map(|e| {
                        let of = e * own.n_ff..(e + 1) * own.n_ff;
                        [gates[of.clone()].to_vec(), ups[of].to_vec()].concat()
                    })
                    .collect();
                assert!(rows(&own.up) == want, "{name}");
                let gate = own.gate.as_ref().unwrap();
                assert!(own.fused && gate.weight.same_data(&own.up.weight), "{name}");
            } else {
                assert!(rows(&own.up) == pick(&first, 0), "{name}");
                if let (Some(gate), Some(whole)) = (&own.gate, &all.gate) {
                    assert!(rows(gate) == pick(&rows(whole), 0), "{name}");
                }
            }
            if let Some(all) = bias(&all.up) {
                let want: Vec<f32> = (0..n)
                    .flat_map(|e| all[e * n_ff..][inner.clone()].to_vec())
                    .collect();
                assert_eq!(bias(&own.up), Some(want), "{name}");
            }
            assert!(
                rows(&own.down) == columns_of(&rows(&all.down), inner),
                "{name}"
            );
            assert_eq!(own.down.weight.rows(), n * hidden, "{name}");
            assert_eq!(
                bias(&own.down),
                bias(&all.down).filter(|_| i == 0),
                "{name}"
            );
            if let (Some(own), Some(all)) = (&own.shared, &all.shared) {
                assert!(
                    own.mlp.up.weight.rows() < all.mlp.up.weight.rows(),
                    "{name}"
                );
            }
        }
        assert_eq!(at, n_ff, "{name}");
    }
}

/// A block of a quantized matrix is not cut.
#[test]
fn inner_elements_are_shared_in_blocks() {
    let whole = network("gpt_oss");
    let e = whole
        .rank(Rank {
            index: 1,
            count: COUNT,
        })
        .map(drop)
        .unwrap_err();
    assert_eq!(e.status, emberlm::Status::Unsupported);
    assert!(
        e.message
            .contains("layer 0: 32 inner elements in blocks of 32"),
        "{}",
        e.message
    );
}

/// Rows of a made tensor are the same wherever reading begins.
#[test]
fn rows_of_shares_are_read_from_anywhere() {
    let share = shares(&network("granite_moe")).remove(1);
    let up = &experts_of(&share, 0).up;
    let all = rows(up);
    let row_bytes = up.weight.row_bytes();
    let mut whole = vec![0; up.weight.byte_len()];
    up.weight.read_rows(0, &mut whole).unwrap();
    for first in 0..all.len() {
        for n in [1, 3, all.len() - first] {
            let n = n.min(all.len() - first);
            let mut some = vec![0; n * row_bytes];
            up.weight.read_rows(first, &mut some).unwrap();
            assert!(
                some == whole[first * row_bytes..][..n * row_bytes],
                "{n} rows from {first} on"
            );
        }
    }
}

/// Heads are shared; what is cached is not.
#[test]
fn latent_attention_is_shared_by_heads() {
    for name in ["deepseek_v2", "deepseek_v3", "minicpm3"] {
        let whole = network(name);
        let mut at = 0;
        for share in shares(&whole) {
            let (Mixer::Latent(own), Mixer::Latent(all)) =
                (&share.blocks[0].mixer, &whole.blocks[0].mixer)
            else {
                panic!("{name}");
            };
            let heads = at..at + own.n_heads;
            at = heads.end;
            assert!(rows(&own.kv) == rows(&all.kv), "{name}");
            let of = |each: usize| heads.start * each..heads.end * each;
            for (own, all, each) in [
                (&own.q, &all.q, all.plain_dim + all.rotated()),
                (&own.to_latent, &all.to_latent, all.rank),
                (&own.from_latent, &all.from_latent, all.value_dim),
            ] {
                assert!(
                    rows(own) == rows(all)[of(each)],
                    "{name}: {}",
                    all.weight.name
                );
            }
            let want = columns_of(&rows(&all.output), of(all.value_dim));
            assert!(rows(&own.output) == want, "{name}");
        }
        let Mixer::Latent(all) = &whole.blocks[0].mixer else {
            panic!("{name}");
        };
        assert_eq!(at, all.n_heads, "{name}");
    }
}

/// The network of a file that a test has changed.
fn network_of(edited: &Edited) -> Network {
    let dir = TempDir::new("ranks");
    let path = dir.file("model.gguf", &edited.bytes());
    Network::from_file(&ModelFile::open(&path).unwrap()).unwrap()
}

/// What ranks of so many have of a network.
fn shares_of(network: &Network, count: usize) -> Vec<Network> {
    let share = |index| network.rank(Rank { index, count });
    (0..count).map(|index| share(index).unwrap()).collect()
}

/// Rows of numbers without a pattern.
fn some_rows(n: usize, width: usize) -> Rows {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..n)
        .map(|_| (0..width).map(|_| next()).collect())
        .collect()
}

/// What the parts of a block add, before norms behind them: its mixer and its feed-forward part.
fn added(block: &Block, x: &Rows) -> [Rows; 2] {
    let block = Block {
        mixer_post_norm: None,
        feed_forward_norm: None,
        feed_forward_post_norm: None,
        residual_scale: 1.0,
        ..block.clone()
    };
    let mut fed = x.clone();
    add_feed_forward(&block, &mut fed);
    for (fed, x) in fed.iter_mut().flatten().zip(x.iter().flatten()) {
        *fed -= x;
    }
    [attention_part(&block, x, &mut Vec::new()), fed]
}

/// What all ranks add is what the whole adds, in double precision.
fn add_up(name: &str, whole: &Network, count: usize) {
    let shares = shares_of(whole, count);
    let x = some_rows(12, whole.hidden);
    for (layer, block) in whole.blocks.iter().enumerate() {
        let mut sums = added(block, &x);
        let largest = sums
            .iter()
            .flatten()
            .flatten()
            .fold(0f64, |m, v| m.max(v.abs()));
        for share in &shares {
            for (sum, own) in sums.iter_mut().zip(added(&share.blocks[layer], &x)) {
                for (sum, own) in sum.iter_mut().flatten().zip(own.iter().flatten()) {
                    *sum -= own;
                }
            }
        }
        let rest = sums
            .iter()
            .flatten()
            .flatten()
            .fold(0f64, |m, v| m.max(v.abs()));
        assert!(
            rest < 1e-10 * largest,
            "{name}, {count} ranks, layer {layer}: {rest} of {largest}"
        );
    }
}

/// Those with recurrences, of which ranks have heads or channels: delta nets with heads in turns and in succession, with steps of each
/// channel, short convolutions, Mamba 2 with several groups and with one that all ranks have, beside attention; experts with a width of
/// their own.
#[test]
fn shares_of_recurrences_add_up() {
    let families = [
        ("qwen3_5", &[2, 4][..]),
        ("qwen3_5_moe", &[2]),
        ("qwen3_next", &[2, 4]),
        ("lfm2", &[2, 3]),
        ("lfm2_moe", &[2]),
        ("nemotron_h", &[2]),
        ("nemotron_h_moe", &[2]),
        ("nemotron_h_latent", &[2]),
        ("bamba", &[2]),
        ("granite_hybrid", &[2]),
        ("granite_hybrid_moe", &[2]),
        ("falcon_h1", &[2, 4]),
        ("falcon_h1_normed", &[2]),
    ];
    for (name, counts) in families {
        let whole = network(name);
        for count in counts {
            add_up(name, &whole, *count);
        }
    }
    for (name, edited) in [
        ("kimi_linear", kimi_linear(12).file),
        ("ling_3", ling_3(12).file),
        ("lfm3", lfm3().file),
    ] {
        add_up(name, &network_of(&edited), 2);
    }
    // Its attention has norms over all heads.
    let mut olmo = network_of(&olmo_hybrid().file);
    olmo.blocks
        .retain(|block| matches!(block.mixer, Mixer::DeltaNet(_)));
    assert!(!olmo.blocks.is_empty());
    add_up("olmo_hybrid", &olmo, 2);
}

/// Attention, latent attention and experts, likewise.
#[test]
fn shares_of_attention_and_experts_add_up() {
    for name in [
        "mistral",
        "gemma2",
        "qwen2",
        "phi2",
        "gpt2",
        "mixtral",
        "qwen2_moe",
        "granite_moe",
        "deepseek_v2",
        "deepseek_v3_biased",
        "minicpm3",
    ] {
        add_up(name, &network(name), COUNT);
    }
}

fn fixed_of(network: &Network) -> Vec<FixedShape> {
    let states = network
        .blocks
        .iter()
        .map(|b| b.mixer.state(network.context_length));
    let fixed = states.filter_map(|state| match state {
        MixerState::Kv(_) | MixerState::None => None,
        MixerState::Fixed(fixed) | MixerState::Both(_, fixed) => Some(fixed),
    });
    fixed.collect()
}

/// What ranks say that they have of a state is what their networks keep, and all of it is there.
#[test]
fn states_of_ranks_are_all_of_the_state() {
    for (name, count) in [
        ("qwen3_5", 2),
        ("qwen3_5", 4),
        ("qwen3_next", 4),
        ("lfm2", 3),
        ("nemotron_h", 2),
        ("falcon_h1", 2),
    ] {
        let whole = network(name);
        let all = fixed_of(&whole);
        let mut heads = vec![Vec::new(); all.len()];
        let mut channels = vec![Vec::new(); all.len()];
        for (index, share) in shares_of(&whole, count).iter().enumerate() {
            let cuts = whole.fixed_cuts(Rank { index, count }).unwrap();
            let cuts = cuts.into_iter().flatten();
            for (i, (own, cut)) in fixed_of(share).iter().zip(cuts).enumerate() {
                assert_eq!(own.n_heads, cut.heads.len(), "{name}");
                assert_eq!(own.conv_channels, cut.channels.len(), "{name}");
                assert_eq!((own.rows, own.columns), (all[i].rows, all[i].columns));
                heads[i].extend(cut.heads.ranges().iter().cloned().flatten());
                channels[i].extend(cut.channels.ranges().iter().cloned().flatten());
            }
        }
        for (i, shape) in all.iter().enumerate() {
            heads[i].sort_unstable();
            assert!(heads[i].iter().copied().eq(0..shape.n_heads), "{name}");
            channels[i].sort_unstable();
            channels[i].dedup();
            let n = shape.conv_channels;
            assert!(channels[i].iter().copied().eq(0..n), "{name}");
        }
    }
}

fn delta_net(network: &Network) -> &DeltaNet {
    match &network.blocks[0].mixer {
        Mixer::DeltaNet(net) => net,
        other => panic!("{}", other.name()),
    }
}

/// Value heads go along with the key head that they use, whichever way they are numbered.
#[test]
fn value_heads_go_along_with_their_key_head() {
    for name in ["qwen3_5", "qwen3_next"] {
        let whole = network(name);
        let all = delta_net(&whole);
        for count in [2, 4] {
            let mut at = vec![0; all.n_value_heads];
            for (index, share) in shares_of(&whole, count).iter().enumerate() {
                let own = delta_net(share);
                let cuts = whole.fixed_cuts(Rank { index, count }).unwrap();
                let heads = cuts[0].as_ref().unwrap().heads.ranges().iter().cloned();
                for (here, head) in heads.flatten().enumerate() {
                    at[head] += 1;
                    let of = |net: &DeltaNet, h: usize| {
                        let key = net.key_head(h) * net.key_dim;
                        rows(&net.k)[key..key + net.key_dim].to_vec()
                    };
                    assert!(of(own, here) == of(all, head), "{name}, head {head}");
                    if let (DeltaSteps::Apart { a: own, .. }, DeltaSteps::Apart { a: all, .. }) =
                        (&own.steps, &all.steps)
                    {
                        assert!(rows(own)[here] == rows(all)[head], "{name}, head {head}");
                    }
                }
            }
            assert!(at.iter().all(|n| *n == 1), "{name}: {at:?}");
        }
    }
}

/// Those that need all elements of a layer, or have fewer heads than there are devices, are refused by name.
#[test]
fn what_cannot_be_shared_is_refused() {
    for (name, count, why) in [
        ("mamba", 2, "time steps of the first Mamba"),
        ("jamba", 2, "time steps of the first Mamba"),
        ("mamba2", 2, "a norm over all inner elements"),
        ("qwen3_5", 3, "2 heads of keys with 3 of values each"),
        ("nemotron_h", 3, "6 heads in 2 groups and norms of 3"),
        ("falcon_h1_biased", 2, "a norm over all inner elements"),
    ] {
        let whole = network(name);
        let ranks = (0..count).map(|index| Rank { index, count });
        let refused = ranks.map(|rank| whole.rank(rank).map(drop));
        let e = refused.filter_map(Result::err).next().expect(name);
        assert_eq!(e.status, Status::Unsupported, "{name}: {}", e.message);
        assert!(e.message.contains(why), "{name}: {}", e.message);
        assert!(e.message.contains("split by tensors"), "{}", e.message);
    }
}

/// What adapters are cut by: each matrix of a rank is these rows and columns of one of the whole network, whose bias goes along with the
/// rows.
#[test]
fn cuts_are_of_the_matrices_that_they_name() {
    for (name, count) in [
        ("qwen3_5", 2),
        ("qwen3_5", 4),
        ("qwen3_next", 4),
        ("lfm2_moe", 3),
        ("nemotron_h", 2),
        ("falcon_h1", 4),
        ("mistral", 2),
    ] {
        let whole = network(name);
        for share in shares_of(&whole, count) {
            let cuts = share.cuts.as_ref().unwrap();
            let mut found = 0;
            for (own, all) in share.blocks.iter().zip(&whole.blocks) {
                for (own, all) in own.linears().iter().zip(all.linears()) {
                    let Some(cut) = cuts.get(&own.weight.id()) else {
                        continue;
                    };
                    assert_eq!(cut.whole, all.weight.id(), "{name}");
                    let all = rows(all);
                    let picked = cut.rows.ranges().iter().cloned().flatten();
                    let of_row = |row: usize| -> Vec<f32> {
                        let columns = cut.columns.ranges().iter().cloned().flatten();
                        columns.map(|column| all[row][column]).collect()
                    };
                    let picked: Vec<_> = picked.map(of_row).collect();
                    assert!(rows(own) == picked, "{name}: {}", own.weight.name);
                    found += 1;
                }
            }
            assert!(found > 2 * whole.blocks.len(), "{name}: {found}");
        }
    }
}
