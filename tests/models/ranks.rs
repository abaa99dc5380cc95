//! Shares of a network for ranks: each has its rows, columns, heads and experts' parts of the whole.

use crate::common::families::open_family;
use crate::common::tiny_experts::{self, PLAIN, Variant};
use emberlm::model::{Experts, FeedForward, Linear, Mixer, Network, Rank};
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
