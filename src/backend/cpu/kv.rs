//! The keys and values of a session.
//!
//! Positions are kept in segments of [`SEGMENT`]. A segment holds, for each layer and KV head, a
//! block of keys `[tile][head_dim][16]` (tiles of 16 positions, so that a vector holds one element
//! of 16 positions' keys) and a block of values `[position][padded head_dim]`. So a head's part of
//! a segment is contiguous, and memory becomes resident segment by segment as the context grows:
//! the whole range is reserved at once but not touched.
//!
//! Layers with a sliding window have a ring of few segments, which later ones overwrite. Layers
//! with the same ring lie together, so a segment holds the blocks of the layers of one [`Group`].

use super::pages::Pages;
use super::simd::{LANES, Lanes, simd_kernel};
use crate::backend::KvType;
use crate::error::{Result, fail};
use crate::model::KvShape;
use std::marker::PhantomData;

/// Positions per segment. Attention sums up whole segments, so this is part of the definition of
/// the results.
pub const SEGMENT: usize = 256;

/// An element type of the cache.
///
/// # Safety
/// All bits zero is the number 0.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// 0
    const ZERO: Self;
    /// Lanes from memory.
    ///
    /// # Safety
    /// `p` has `LANES` elements; otherwise as [`Lanes`].
    unsafe fn load<L: Lanes>(p: *const Self) -> L;
    /// The elements nearest to the lanes, to memory.
    ///
    /// # Safety
    /// `p` has `LANES` elements; otherwise as [`Lanes`].
    unsafe fn store<L: Lanes>(x: L, p: *mut Self);
}

/// Half precision, as its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Half(pub u16);

// SAFETY: zero bits are zero.
unsafe impl Element for Half {
    const ZERO: Self = Half(0);
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise; `Half` is transparent.
        unsafe { L::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(x: L, p: *mut Self) {
        // SAFETY: the caller's promise; `Half` is transparent.
        unsafe { x.store_f16(p.cast()) }
    }
}

// SAFETY: zero bits are zero.
unsafe impl Element for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(x: L, p: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { x.store(p) }
    }
}

/// Positions that a chunk writes at most before attention reads them.
pub const MAX_CHUNK: usize = 512;

/// KV heads and head size of one layer, and where its part of a segment begins.
#[derive(Clone, Copy, Debug)]
struct Part {
    n_kv_heads: usize,
    head_dim: usize,
    /// Index of its group.
    group: usize,
    /// Bytes into the segment.
    offset: usize,
    /// Bytes of one head's keys, and of its values.
    keys_bytes: usize,
    values_bytes: usize,
}

/// Layers whose segments lie together.
#[derive(Clone, Copy, Debug)]
struct Group {
    window: Option<usize>,
    segment_bytes: usize,
}

impl Group {
    /// Segments for `context` positions: all, or as many as a window and a chunk can touch, and one
    /// more for short rewinds.
    fn segments(&self, context: usize) -> usize {
        let all = context.div_ceil(SEGMENT);
        match self.window {
            Some(window) => {
                let touched = (window.saturating_add(MAX_CHUNK)).div_ceil(SEGMENT) + 1;
                all.min(touched + 1)
            }
            None => all,
        }
    }

    /// Bytes for `context` positions, if that is a number.
    fn bytes(&self, context: usize) -> Option<usize> {
        self.segments(context).checked_mul(self.segment_bytes)
    }
}

/// Where everything is in a cache.
#[derive(Clone)]
pub struct Shape {
    parts: Vec<Part>,
    groups: Vec<Group>,
    kv_type: KvType,
}

impl Shape {
    /// The shape for these layers. Errors: `OutOfMemory` where the numbers are beyond all memory.
    pub fn new(layers: impl Iterator<Item = KvShape>, kv_type: KvType) -> Result<Shape> {
        let size = element_bytes(kv_type);
        let mut parts = Vec::new();
        let mut groups: Vec<Group> = Vec::new();
        for layer in layers {
            let KvShape {
                n_kv_heads,
                head_dim,
                window,
            } = layer;
            let group = groups.iter().position(|g| g.window == window);
            let group = group.unwrap_or_else(|| {
                groups.push(Group {
                    window,
                    segment_bytes: 0,
                });
                groups.len() - 1
            });
            let offset = groups[group].segment_bytes;
            let bytes = |dim: usize| dim.checked_mul(SEGMENT * size);
            let ends = (|| {
                let (keys, values) = (bytes(head_dim)?, bytes(head_dim.next_multiple_of(LANES))?);
                let end = keys
                    .checked_add(values)?
                    .checked_mul(n_kv_heads)?
                    .checked_add(offset)?;
                Some((keys, values, end))
            })();
            let Some((keys_bytes, values_bytes, end)) = ends else {
                fail!(
                    OutOfMemory,
                    "KV cache: {n_kv_heads} heads of {head_dim} are beyond all memory"
                );
            };
            parts.push(Part {
                n_kv_heads,
                head_dim,
                group,
                offset,
                keys_bytes,
                values_bytes,
            });
            groups[group].segment_bytes = end;
        }
        Ok(Shape {
            parts,
            groups,
            kv_type,
        })
    }

    /// Bytes of a further position, in layers without a window.
    pub fn bytes_per_token(&self) -> u64 {
        let growing = self.groups.iter().filter(|g| g.window.is_none());
        growing.map(|g| (g.segment_bytes / SEGMENT) as u64).sum()
    }

    /// Bytes of a cache for `context` positions, which are whole segments.
    pub fn bytes(&self, context: usize) -> u64 {
        let bytes = |g: &Group| g.bytes(context).map_or(u64::MAX, |b| b as u64);
        self.groups.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

fn element_bytes(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F16 => 2,
        // q8_0 is refused when a session is made.
        KvType::F32 | KvType::Q8_0 => 4,
    }
}

/// A cache with room for a number of positions. Which of them hold something is the caller's to
/// know.
pub struct KvCache {
    shape: Shape,
    context: usize,
    /// Of each group, its memory and the segments in it.
    memory: Vec<(Pages, usize)>,
    /// Positions below this one may have been written since the cache was empty.
    touched: usize,
}

impl KvCache {
    /// Reserves a cache for `context` positions. Errors: `OutOfMemory`.
    pub fn new(shape: Shape, context: usize) -> Result<KvCache> {
        let mut memory = Vec::new();
        for group in &shape.groups {
            let Some(bytes) = group.bytes(context).filter(|b| *b > 0) else {
                fail!(
                    OutOfMemory,
                    "KV cache: {context} positions are beyond all memory (or none)"
                );
            };
            let pages = Pages::new(bytes, &format!("KV cache for {context} positions"))?;
            memory.push((pages, group.segments(context)));
        }
        Ok(KvCache {
            shape,
            context,
            memory,
            touched: 0,
        })
    }

    /// A cache of the same size with the same content in the first `len` positions, as far as
    /// windows still reach them.
    ///
    /// Nobody may write these positions meanwhile. Errors: `OutOfMemory`.
    pub fn fork(&self, len: usize) -> Result<KvCache> {
        assert!(len <= self.context);
        let mut other = KvCache::new(self.shape.clone(), self.context)?;
        other.touched = self.touched;
        let mine = self.memory.iter().zip(&self.shape.groups);
        for (((from, segments), group), (to, _)) in mine.zip(&other.memory) {
            // In a ring any segment may be one of them.
            let used = match group.window {
                Some(_) => self.touched.div_ceil(SEGMENT).min(*segments),
                None => len.div_ceil(SEGMENT),
            };
            let bytes = used * group.segment_bytes;
            assert!(bytes <= from.bytes() && bytes <= to.bytes());
            // SAFETY: both ranges have as many bytes, and they are different mappings. All
            // positions are written by the session that owns the cache, which is the caller's.
            unsafe { std::ptr::copy_nonoverlapping(from.base(), to.base(), bytes) };
        }
        Ok(other)
    }

    /// Notes that positions below `end` are about to be written.
    pub fn touch(&mut self, end: usize) {
        self.touched = self.touched.max(end);
    }

    /// How many of the first `len` positions are of use for what comes after them: all, or none if
    /// a ring has lost some that position `len` would see.
    pub fn kept(&mut self, len: usize) -> usize {
        let last = self.touched.saturating_sub(1) / SEGMENT;
        let groups = self.shape.groups.iter().zip(&self.memory);
        let lost = groups.filter_map(|(group, (_, segments))| {
            let first = (len + 1).saturating_sub(group.window?);
            let oldest = (last + 1).saturating_sub(*segments) * SEGMENT;
            Some(first < len && first < oldest)
        });
        let kept = if lost.into_iter().any(|lost| lost) {
            0
        } else {
            len
        };
        if kept == 0 {
            self.touched = 0;
        }
        kept
    }

    /// Bytes of what a position in a layer sees of the cache.
    pub fn seen_bytes(&self, layer: usize, position: usize) -> u64 {
        let part = &self.shape.parts[layer];
        let window = self.shape.groups[part.group].window.unwrap_or(usize::MAX);
        let per_token = part.n_kv_heads * (part.keys_bytes + part.values_bytes) / SEGMENT;
        per_token as u64 * (position + 1).min(window) as u64
    }

    /// Positions that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Element type.
    pub fn kv_type(&self) -> KvType {
        self.shape.kv_type
    }

    /// One KV head of one layer, with elements of type `E`.
    pub fn head<E: Element>(&self, layer: usize, head: usize) -> Head<'_, E> {
        let part = &self.shape.parts[layer];
        assert!(head < part.n_kv_heads && size_of::<E>() == element_bytes(self.shape.kv_type));
        let offset = part.offset + head * (part.keys_bytes + part.values_bytes);
        let (pages, segments) = &self.memory[part.group];
        Head {
            base: pages.base().wrapping_add(offset),
            segment_bytes: self.shape.groups[part.group].segment_bytes,
            segments: *segments,
            keys_bytes: part.keys_bytes,
            head_dim: part.head_dim,
            context: self.context,
            cache: PhantomData,
        }
    }
}

/// The keys and values of one KV head of one layer.
#[derive(Clone, Copy)]
pub struct Head<'a, E> {
    base: *mut u8,
    segment_bytes: usize,
    /// Segments that there is room for; the others take their places in turn.
    segments: usize,
    keys_bytes: usize,
    /// Elements of a key and of a value.
    pub head_dim: usize,
    context: usize,
    cache: PhantomData<(&'a KvCache, E)>,
}

impl<E: Element> Head<'_, E> {
    /// Elements from one value to the next.
    pub fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    #[inline(always)]
    fn segment(&self, segment: usize) -> *mut u8 {
        debug_assert!(segment * SEGMENT < self.context);
        let place = if segment < self.segments {
            segment
        } else {
            segment % self.segments
        };
        self.base.wrapping_add(place * self.segment_bytes)
    }

    /// The keys of a segment, `[SEGMENT / 16][head_dim][16]`.
    #[inline(always)]
    pub fn keys(&self, segment: usize) -> *mut E {
        self.segment(segment).cast()
    }

    /// The values of a segment, `[SEGMENT][value_stride]`; elements from `head_dim` on are zero.
    #[inline(always)]
    pub fn values(&self, segment: usize) -> *mut E {
        self.segment(segment).wrapping_add(self.keys_bytes).cast()
    }

    /// Writes the key and value of a position.
    ///
    /// # Safety
    /// Nobody reads or writes this position of this head at the same time. Otherwise as [`Lanes`].
    #[inline(always)]
    pub unsafe fn put<L: Lanes>(&self, position: usize, key: &[f32], value: &[f32]) {
        assert!(position < self.context);
        assert!(key.len() == self.head_dim && value.len() == self.head_dim);
        let (segment, at) = (position / SEGMENT, position % SEGMENT);
        let tile = (at / LANES) * self.head_dim * LANES + at % LANES;
        let row = at * self.value_stride();
        for d in (0..self.head_dim).step_by(LANES) {
            let n = (self.head_dim - d).min(LANES);
            let mut rounded = [E::ZERO; LANES];
            // SAFETY: inside the rows and the blocks of an existing segment, exclusive by the
            // caller's promise.
            unsafe {
                let (k, v) = (key.as_ptr().add(d), value.as_ptr().add(d));
                E::store(L::load_first(k, n), rounded.as_mut_ptr());
                let keys = self.keys(segment).add(tile + d * LANES);
                for (i, k) in rounded[..n].iter().enumerate() {
                    keys.add(i * LANES).write(*k);
                }
                // The padding becomes zero.
                E::store(L::load_first(v, n), self.values(segment).add(row + d));
            }
        }
    }
}

unsafe fn put_generic<L: Lanes, E: Element>(
    head: Head<'_, E>,
    position: usize,
    key: &[f32],
    value: &[f32],
) {
    // SAFETY: the caller's promise.
    unsafe { head.put::<L>(position, key, value) }
}
simd_kernel! {
    /// Writes the key and value of a position, rounded to nearest.
    ///
    /// # Safety
    /// The processor has `isa`. Nobody reads or writes this position of this head meanwhile.
    pub fn put[E: Element](head: Head<'_, E>, position: usize, key: &[f32], value: &[f32]) = put_generic
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
