//! The keys and values of a session.
//!
//! The whole range is reserved at once but not touched, so memory becomes resident segment by
//! segment as the context grows. Forks share segments that both only read; who writes into a shared
//! one copies it first.

use super::super::pages::Pages;
use super::super::simd::{LANES, Lanes, simd_kernel};
use super::fixed::FixedStates;
use super::plan::{Group, element_bytes};
use crate::backend::KvType;
use crate::backend::state::{WindowState, keeps};
use crate::error::{Result, fail};
use crate::memory::Account;
use std::marker::PhantomData;
use std::sync::Arc;

pub use super::plan::Shape;

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
        // SAFETY: by contract, `p` has `LANES` elements, and the processor has the features; `Half` is transparent.
        unsafe { L::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(x: L, p: *mut Self) {
        // SAFETY: by contract, `p` has `LANES` elements, and the processor has the features; `Half` is transparent.
        unsafe { x.store_f16(p.cast()) }
    }
}

// SAFETY: zero bits are zero.
unsafe impl Element for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: by contract, `p` has `LANES` elements, and the processor has the features.
        unsafe { L::load(p) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(x: L, p: *mut Self) {
        // SAFETY: by contract, `p` has `LANES` elements, and the processor has the features.
        unsafe { x.store(p) }
    }
}

/// Positions that a chunk writes at most before attention reads them.
pub const MAX_CHUNK: usize = 512;

/// The segments of a group's layers.
struct Segments {
    /// Memory of each; shared with forks where these hold the same.
    pages: Vec<Arc<Pages>>,
    /// Bytes of each.
    bytes: usize,
    window: Option<usize>,
    /// Whose memory it is.
    account: Arc<Account>,
}

impl Segments {
    /// Reserves the segments of a group for `context` positions.
    fn new(group: &Group, context: usize, account: &Arc<Account>) -> Result<Segments> {
        let what = format!("KV cache for {context} positions");
        // Layers that keep nothing of single positions take nothing.
        let there = |b: &usize| *b > 0 || (group.segment_bytes == 0 && context > 0);
        let Some(total) = group.bytes(context).filter(there) else {
            fail!(
                OutOfMemory,
                "KV cache: {context} positions are beyond all memory (or none)"
            );
        };
        // What is beyond all memory shows here, not after many segments.
        drop(Pages::new(total, &what)?);
        let bytes = group.segment_bytes;
        let reserve = |_| Pages::charged(account, bytes, &what).map(Arc::new);
        let pages = (0..group.segments(context))
            .map(reserve)
            .collect::<Result<_>>()?;
        Ok(Segments {
            pages,
            bytes,
            window: group.window,
            account: account.clone(),
        })
    }

    /// Where segment number `segment` lies.
    fn place(&self, segment: usize) -> usize {
        segment % self.pages.len()
    }

    /// Gives a place memory of its own, with the same content if that is to be kept.
    fn own(&mut self, place: usize, keep: bool) -> Result<()> {
        if Arc::get_mut(&mut self.pages[place]).is_some() {
            return Ok(());
        }
        let what = "a shared part of the KV cache";
        let own = Pages::charged(&self.account, self.bytes, what)?;
        if keep {
            // SAFETY: both have as many bytes and are different mappings. Nobody writes a shared
            // segment, and the other is new.
            unsafe {
                std::ptr::copy_nonoverlapping(self.pages[place].base(), own.base(), self.bytes)
            };
        }
        self.pages[place] = Arc::new(own);
        Ok(())
    }

    /// Readies positions from `len` to `end` for writing.
    fn prepare(&mut self, len: usize, end: usize) -> Result<()> {
        if len >= end {
            return Ok(());
        }
        for segment in len / SEGMENT..=(end - 1) / SEGMENT {
            // A ring's place also holds positions from its last turn.
            let keep = self.window.is_some() || segment * SEGMENT < len;
            self.own(self.place(segment), keep)?;
        }
        Ok(())
    }

    /// The first position that is left when those below `end` have been written.
    fn oldest(&self, end: usize) -> usize {
        let last = end.saturating_sub(1) / SEGMENT;
        (last + 1).saturating_sub(self.pages.len()) * SEGMENT
    }

    /// The segments of a fork at `len` positions: full ones are shared, the others are its own.
    fn fork(&self, len: usize) -> Result<Segments> {
        let mut other = Segments {
            pages: self.pages.clone(),
            bytes: self.bytes,
            window: self.window,
            account: self.account.clone(),
        };
        for place in 0..other.pages.len() {
            // Those of a ring are all written again soon.
            if other.window.is_some() || place >= len / SEGMENT {
                let keep = other.window.is_some() || place * SEGMENT < len;
                other.own(place, keep)?;
            }
        }
        Ok(other)
    }
}

/// A cache with room for a number of positions. Which of them hold something is the caller's to
/// know.
pub struct KvCache {
    shape: Shape,
    context: usize,
    /// Of each group.
    segments: Vec<Segments>,
    /// What the layers with windows hold.
    windows: Vec<WindowState>,
    /// What layers keep of fixed size.
    pub fixed: FixedStates,
}

impl KvCache {
    /// Reserves a cache for `context` positions. Errors: `OutOfMemory`.
    #[cfg(test)]
    pub fn new(shape: Shape, context: usize) -> Result<KvCache> {
        let (marks, account) = (
            crate::backend::marks::MarkPlan::new(0, context),
            Account::unlimited(),
        );
        let fixed = FixedStates::new(&[], 0, marks, &account)?;
        KvCache::with_fixed(shape, context, fixed, &account)
    }

    /// The same, with layers that keep a state of fixed size.
    pub fn with_fixed(
        shape: Shape,
        context: usize,
        fixed: FixedStates,
        account: &Arc<Account>,
    ) -> Result<KvCache> {
        let reserve = |group| Segments::new(group, context, account);
        let segments = shape.groups.iter().map(reserve).collect::<Result<_>>()?;
        Ok(KvCache {
            windows: shape.windows(),
            shape,
            context,
            segments,
            fixed,
        })
    }

    /// A cache of the same size with the same content in the first `len` positions, as far as
    /// windows still reach them.
    ///
    /// Nobody may write these positions meanwhile. Errors: `OutOfMemory`.
    pub fn fork(&self, len: usize) -> Result<KvCache> {
        assert!(len <= self.context);
        let fork = |s: &Segments| s.fork(len);
        Ok(KvCache {
            shape: self.shape.clone(),
            context: self.context,
            segments: self.segments.iter().map(fork).collect::<Result<_>>()?,
            windows: self.windows.clone(),
            fixed: self.fixed.fork()?,
        })
    }

    /// Readies the positions from `len` to `end` for writing, behind the `len` that are held.
    ///
    /// Errors: `OutOfMemory` for the copy of a part that is shared with a fork. Then no position
    /// has changed.
    pub fn prepare(&mut self, len: usize, end: usize) -> Result<()> {
        self.fixed.join_rows();
        for segments in &mut self.segments {
            segments.prepare(len, end)?;
        }
        for state in &mut self.windows {
            let of_window = |s: &&Segments| s.window == Some(state.window);
            if let Some(segments) = self.segments.iter().find(of_window) {
                state.from = state.from.max(segments.oldest(end));
            }
        }
        Ok(())
    }

    /// Whether the first `len` positions can be gone on with: whether windows still reach back to
    /// what comes after them sees, and states of fixed size are there.
    pub fn keeps(&self, len: usize) -> bool {
        keeps(&self.windows, len) && self.fixed.keeps(len)
    }

    /// The most of the first `len` positions that can be gone on with.
    pub fn reachable(&self, len: usize) -> usize {
        if self.keeps(len) {
            return len;
        }
        let marks = self.fixed.marks().filter(|p| *p <= len && self.keeps(*p));
        marks.max().unwrap_or(0)
    }

    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.windows = self.shape.windows();
        self.fixed.clear();
    }

    /// What the layers with windows hold, ascending by window.
    pub fn windows(&self) -> &[WindowState] {
        &self.windows
    }

    /// Takes over what layers with windows hold from elsewhere, as far as there is room for it.
    pub fn set_windows(&mut self, windows: &[WindowState]) {
        for (mine, theirs) in self.windows.iter_mut().zip(windows) {
            mine.from = mine.from.max(theirs.from);
        }
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
        Head {
            place: Place::Segments {
                segments: &self.segments[part.group].pages,
                offset: part.offset + head * (part.keys_bytes + part.values_bytes),
                keys_bytes: part.keys_bytes,
            },
            head_dim: part.head_dim,
            context: self.context,
            element: PhantomData,
        }
    }
}

/// Where the keys and values of a head lie.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// In a cache.
    Segments {
        /// Memory of the segments that there is room for; the others take their places in turn.
        segments: &'a [Arc<Pages>],
        /// Where the head begins in a segment.
        offset: usize,
        keys_bytes: usize,
    },
    /// Segment behind segment, in memory for a text alone.
    Flat { keys: *mut u8, values: *mut u8 },
}

/// The keys and values of one KV head of one layer.
#[derive(Clone, Copy)]
pub struct Head<'a, E> {
    place: Place<'a>,
    /// Elements of a key and of a value.
    pub head_dim: usize,
    context: usize,
    element: PhantomData<E>,
}

impl<E: Element> Head<'_, E> {
    /// A head of a text of its own. `keys` has `head_dim` and `values` [`value_stride`](Self::value_stride)
    /// elements for each of `len` positions, rounded up to whole tiles.
    pub fn flat(keys: *mut E, values: *mut E, head_dim: usize, len: usize) -> Self {
        Head {
            place: Place::Flat {
                keys: keys.cast(),
                values: values.cast(),
            },
            head_dim,
            context: len,
            element: PhantomData,
        }
    }

    /// Elements from one value to the next.
    pub fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Where the keys and the values of a segment begin.
    #[inline(always)]
    fn segment(&self, segment: usize) -> (*mut u8, *mut u8) {
        debug_assert!(segment * SEGMENT < self.context);
        match self.place {
            Place::Segments {
                segments,
                offset,
                keys_bytes,
            } => {
                let place = if segment < segments.len() {
                    segment
                } else {
                    segment % segments.len()
                };
                let keys = segments[place].base().wrapping_add(offset);
                (keys, keys.wrapping_add(keys_bytes))
            }
            Place::Flat { keys, values } => {
                let before = segment * SEGMENT * size_of::<E>();
                (
                    keys.wrapping_add(before * self.head_dim),
                    values.wrapping_add(before * self.value_stride()),
                )
            }
        }
    }

    /// The keys of a segment, `[SEGMENT / 16][head_dim][16]`.
    #[inline(always)]
    pub fn keys(&self, segment: usize) -> *mut E {
        self.segment(segment).0.cast()
    }

    /// The values of a segment, `[SEGMENT][value_stride]`; elements from `head_dim` on are zero.
    #[inline(always)]
    pub fn values(&self, segment: usize) -> *mut E {
        self.segment(segment).1.cast()
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
            // SAFETY: inside the rows and the blocks of an existing segment; by contract, nobody else
            // uses this position.
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
    // SAFETY: by contract, nobody else uses this position of this head, and the processor has the features.
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
