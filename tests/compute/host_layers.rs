//! Parts of layers that the CPU evaluates for another device: as the oracle has them, and each row as alone.

use crate::common::families::{FAMILIES, open_family};
use crate::common::reference_llama;
use crate::common::runs::on_cpu;
use crate::common::tiny::Random;
use emberlm::Status;
use emberlm::model::{Mixer, Network};
use emberlm::quant::TensorType;

fn is_of_experts(network: &Network) -> bool {
    network.separable_experts() > 0
}

/// Rows a stride apart, each as long as the width and followed by something that stays.
fn rows(random: &mut Random, (count, width, stride): (usize, usize, usize)) -> Vec<f32> {
    let mut all = vec![7.5; count * stride];
    for row in all.chunks_mut(stride) {
        for x in &mut row[..width] {
            *x = (random.bits() % 2001) as f32 / 500.0 - 2.0;
        }
    }
    all
}

#[test]
fn experts_apart_are_the_oracles() {
    let mut families = 0;
    for name in FAMILIES {
        let network = Network::from_file(&open_family(name)).unwrap();
        if !is_of_experts(&network) {
            continue;
        }
        families += 1;
        let count = network.separable_experts();
        let (rest, apart) = network.experts_apart(usize::MAX);
        assert_eq!(rest.blocks.len(), network.blocks.len(), "{name}");
        assert_eq!(apart.blocks.len(), count, "{name}");
        assert_eq!(rest.separable_experts(), 0, "{name}");
        let mixers = apart.blocks.iter().map(|block| &block.mixer);
        assert!(mixers.into_iter().all(|m| matches!(m, Mixer::Absent)));
        let host = on_cpu(&apart, 2).host_layers().expect("a host").0;
        host.reserve(40).unwrap();
        let (width, stride) = (network.hidden, network.hidden.next_multiple_of(32) + 32);
        let mut random = Random::new(5, name);
        for (index, block) in apart.blocks.iter().enumerate() {
            // With quantized weights, inputs are rounded to 8 bits.
            let linears = block.linears().into_iter();
            let is_float = |ty: TensorType| ty.block_len() == 1;
            let bound = match linears.map(|l| l.weight.ty).all(is_float) {
                true => 1e-4,
                false => 0.1,
            };
            for n in [1, 2, 40] {
                let before = rows(&mut random, (n, width, stride));
                let mut behind = before.clone();
                host.run(index, &mut behind, stride).unwrap();
                let mut oracle: Vec<Vec<f64>> = before
                    .chunks(stride)
                    .map(|row| row[..width].iter().map(|x| f64::from(*x)).collect())
                    .collect();
                reference_llama::add_feed_forward(block, &mut oracle);
                for (t, (row, oracle)) in behind.chunks(stride).zip(&oracle).enumerate() {
                    let scale = oracle.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                    for (x, o) in row.iter().zip(oracle) {
                        let o = o * f64::from(block.output_scale);
                        let off = (f64::from(*x) - o).abs() / scale;
                        assert!(
                            off < bound,
                            "{name}, layer {index}, row {t} of {n}: {x} and {o}"
                        );
                    }
                    assert!(row[width..].iter().all(|x| *x == 7.5), "{name}");
                    let mut alone = before[t * stride..][..stride].to_vec();
                    host.run(index, &mut alone, stride).unwrap();
                    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&alone), bits(row), "{name}, row {t} of {n}");
                }
            }
        }
        let e = host.run(count, &mut vec![0.0; stride], stride).unwrap_err();
        assert_eq!(e.status, Status::Internal);
    }
    assert!(families > 10, "{families} families with experts");
}

/// The first layers that have experts, and no others: dense ones and those whose parts read the same stay.
#[test]
fn as_many_layers_as_were_asked_for() {
    for name in FAMILIES {
        let network = Network::from_file(&open_family(name)).unwrap();
        let all = network.separable_experts();
        for count in 0..=all + 1 {
            let (rest, apart) = network.experts_apart(count);
            assert_eq!(apart.blocks.len(), count.min(all), "{name}");
            assert_eq!(rest.separable_experts(), all - count.min(all), "{name}");
            // Every tensor is somewhere, and none of the parts twice.
            let names = |network: &Network| -> Vec<_> {
                let linears = network.blocks.iter().flat_map(|block| block.linears());
                linears.map(|linear| linear.weight.id()).collect()
            };
            let mut parts = names(&rest);
            parts.extend(names(&apart));
            assert_eq!(parts.len(), names(&network).len(), "{name}");
        }
    }
}
