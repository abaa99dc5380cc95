//! The layout of a cache, and what its rings keep.

use super::*;
use crate::backend::cpu::matmul::Isa;
use crate::error::Status;
use crate::model::KvShape;

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
    assert!(cache.keeps(0));
    cache.prepare(0, 6 * 256).unwrap();
    assert!(cache.keeps(10));
    cache.prepare(6 * 256, 9 * 256).unwrap();
    // Segments 3 to 8 are there, and position p sees from p - 299 on.
    assert!(cache.keeps(3 * 256 + 299) && !cache.keeps(3 * 256 + 298));
    assert!(!cache.fork(5 * 256).unwrap().keeps(4 * 256));
    // Nothing is left that could be lost.
    cache.clear();
    assert!(cache.keeps(100));
}

/// Writes position `p` of a cache of one layer and one head.
fn write(cache: &KvCache, p: usize, value: f32) {
    // SAFETY: one thread; the position is prepared.
    unsafe {
        put(
            Isa::detect(),
            cache.head::<f32>(0, 0),
            p,
            &[value; 16],
            &[-value; 16],
        )
    };
}

/// What position `p` holds.
fn read(cache: &KvCache, p: usize) -> f32 {
    let head = cache.head::<f32>(0, 0);
    let at = (p % SEGMENT) * head.value_stride();
    // SAFETY: inside the blocks.
    unsafe { -*head.values(p / SEGMENT).add(at) }
}

#[test]
fn forks_share_what_they_only_read() {
    for window in [None, Some(300)] {
        let layer = KvShape {
            n_kv_heads: 1,
            head_dim: 16,
            window,
        };
        let shape = Shape::new([layer].into_iter(), KvType::F32).unwrap();
        let mut first = KvCache::new(shape, 1500).unwrap();
        first.prepare(0, 700).unwrap();
        (0..700).for_each(|p| write(&first, p, p as f32));
        let mut second = first.fork(700).unwrap();
        let shared = |a: &KvCache, b: &KvCache| {
            let pairs = a.segments[0].pages.iter().zip(&b.segments[0].pages);
            pairs.filter(|(a, b)| Arc::ptr_eq(a, b)).count()
        };
        // Two full segments; a ring is written again soon.
        assert_eq!(
            shared(&first, &second),
            if window.is_none() { 2 } else { 0 }
        );
        // Both go on, and one goes back into a shared segment.
        first.prepare(700, 701).unwrap();
        write(&first, 700, 1e6);
        second.prepare(500, 501).unwrap();
        write(&second, 500, 2e6);
        assert_eq!(shared(&first, &second), usize::from(window.is_none()));
        assert_eq!((read(&first, 700), read(&second, 700)), (1e6, 0.0));
        assert_eq!((read(&first, 500), read(&second, 500)), (500.0, 2e6));
        drop(first);
        for p in (0..700).filter(|p| *p != 500) {
            assert_eq!(read(&second, p), p as f32);
        }
        // Nobody shares it any more, so nothing is copied.
        let before = second.segments[0].pages[0].base();
        second.prepare(0, 1).unwrap();
        assert_eq!(second.segments[0].pages[0].base(), before);
    }
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
    let mut cache = KvCache::new(shape, 300).unwrap();
    cache.prepare(0, 300).unwrap();
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
