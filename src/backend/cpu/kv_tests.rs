//! The layout of a cache, and what its rings keep.

use super::*;
use crate::backend::cpu::matmul::Isa;
use crate::error::Status;

fn whole((n_kv_heads, head_dim): (usize, usize)) -> KvShape {
    KvShape {
        n_kv_heads,
        head_dim,
        window: None,
    }
}

#[test]
fn a_ring_holds_a_window_and_a_chunk_before_it_forgets() {
    let layers = [None, Some(300)].map(|window| KvShape {
        n_kv_heads: 1,
        head_dim: 16,
        window,
    });
    let shape = Shape::new(layers.into_iter(), KvType::F16).unwrap();
    let bytes = 2 * 2 * 16;
    assert_eq!(shape.bytes_per_token(), bytes);
    // 812 positions touch at most 5 segments.
    assert_eq!(shape.bytes(100), 2 * 256 * bytes);
    assert_eq!(shape.bytes(100_000), (391 + 6) * 256 * bytes);
    let mut cache = KvCache::new(shape, 10_000).unwrap();
    assert_eq!(cache.kept(0), 0);
    cache.touch(6 * 256);
    assert_eq!(cache.kept(10), 10);
    cache.touch(9 * 256);
    // Segments 3 to 8 are there, and position p sees from p - 299 on.
    assert_eq!(cache.kept(3 * 256 + 299), 3 * 256 + 299);
    assert_eq!(cache.fork(5 * 256).unwrap().kept(4 * 256), 0);
    assert_eq!(cache.kept(3 * 256 + 298), 0);
    // Nothing is left that could be lost.
    assert_eq!(cache.kept(100), 100);
}

#[test]
fn positions_are_where_they_belong_and_do_not_overlap() {
    let shape = Shape::new(
        [(2, 20), (1, 32), (3, 16)].into_iter().map(whole),
        KvType::F32,
    )
    .unwrap();
    assert_eq!(
        shape.bytes_per_token(),
        4 * (2 * (20 + 32) + (32 + 32) + 3 * (16 + 16))
    );
    let cache = KvCache::new(shape, 300).unwrap();
    let layers = [(2, 20), (1, 32), (3, 16)];
    let number = |l: usize, h: usize, p: usize, d: usize| (((l * 8 + h) * 512 + p) * 64 + d) as f32;
    for (l, (heads, dim)) in layers.into_iter().enumerate() {
        for h in 0..heads {
            for p in 0..300 {
                let key: Vec<f32> = (0..dim).map(|d| number(l, h, p, d)).collect();
                let value: Vec<f32> = key.iter().map(|k| -k).collect();
                // SAFETY: one thread.
                unsafe { put(Isa::detect(), cache.head::<f32>(l, h), p, &key, &value) };
            }
        }
    }
    for (l, (heads, dim)) in layers.into_iter().enumerate() {
        for h in 0..heads {
            let head = cache.head::<f32>(l, h);
            for p in 0..300 {
                for d in 0..head.value_stride() {
                    let at = p % SEGMENT;
                    // SAFETY: inside the blocks.
                    unsafe {
                        let v = *head.values(p / SEGMENT).add(at * head.value_stride() + d);
                        assert_eq!(v, if d < dim { -number(l, h, p, d) } else { 0.0 });
                        if d < dim {
                            let k = *head
                                .keys(p / SEGMENT)
                                .add((at / 16 * dim + d) * 16 + at % 16);
                            assert_eq!(k, number(l, h, p, d));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn impossible_sizes_are_out_of_memory() {
    let huge = Shape::new([(usize::MAX / 4, 128)].into_iter().map(whole), KvType::F16);
    assert_eq!(huge.err().unwrap().status, Status::OutOfMemory);
    for context in [usize::MAX, usize::MAX / 100_000, 1 << 45] {
        let shape = Shape::new([(8, 128)].into_iter().map(whole), KvType::F16).unwrap();
        let error = KvCache::new(shape, context).err().unwrap();
        assert_eq!(error.status, Status::OutOfMemory, "{error}");
    }
}
