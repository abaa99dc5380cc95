//! Launches of the kernels of whole texts.

use super::args::{self, DENSE_OUTPUTS, DENSE_TEXTS};
use super::attention::{flash_shared, flash_wgmma_shared, padded_head};
use super::kernel_id::KernelId;
use super::kernels::Kernels;
use super::span::Span;
use crate::backend::cuda::driver::Stream;
use crate::error::Result;

/// Queries of a tile, and of those of the warpgroup products.
const TILE: u32 = 64;
const WIDE_TILE: u32 = 128;
/// Texts of so many tokens or more go to the warpgroup products: what is shorter leaves much of their tiles empty.
const WIDE_FROM: u32 = 256;

/// Where tiles are in the list of a pack's: those of long texts for the warpgroup products, from 0 on, then those of the same texts
/// for other kernels, then those of the other texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Tiles {
    /// Behind the first.
    pub wide: u32,
    /// Behind the second.
    pub long: u32,
    /// Behind the last.
    pub all: u32,
}

impl Tiles {
    /// The most of so many texts of so many tokens together.
    pub fn most(tokens: u32, texts: u32) -> u32 {
        tokens / WIDE_TILE + tokens / TILE + 2 * texts
    }

    /// Lists those of texts, in each part those with the most to do first. There is room in `list`.
    pub fn of(spans: &[args::TextSpan], list: &mut Vec<args::TextTile>) -> Tiles {
        list.clear();
        let mut part = |is_long: bool, step: u32| {
            let begin = list.len();
            for span in spans.iter().filter(|s| (s.len >= WIDE_FROM) == is_long) {
                let tile = |first| args::TextTile {
                    start: span.start,
                    len: span.len,
                    first,
                    padding: 0,
                };
                list.extend((0..span.len).step_by(step as usize).map(tile));
            }
            let order = |t: &args::TextTile| (std::cmp::Reverse((t.first, t.len)), t.start);
            list[begin..].sort_unstable_by_key(order);
            list.len() as u32
        };
        Tiles {
            wide: part(true, WIDE_TILE),
            long: part(true, TILE),
            all: part(false, TILE),
        }
    }
}

/// A layer behind the pooling: `norm(activation(w x + bias))`, in f32.
#[derive(Clone, Copy, Debug)]
pub struct DensePlan {
    /// f32, `[outputs][inputs]`.
    pub w: u64,
    /// f32, `[outputs]`; 0: none.
    pub bias: u64,
    /// Elements of its input.
    pub inputs: u32,
    /// And of its output.
    pub outputs: u32,
    /// A `DenseKind`.
    pub activation: u32,
    /// Over the outputs.
    pub norm: Option<args::Norm>,
}

impl Kernels {
    /// Makes the kernels known that the device has the shared memory for.
    pub(in crate::backend::cuda) fn find_texts(&mut self) -> Result<()> {
        let shared = self.context().properties().shared_bytes;
        for dim in [64, 128, 256] {
            let bytes = flash_shared(dim);
            if bytes <= shared {
                self.find(KernelId::FlashTexts { dim }, bytes)?;
            }
        }
        if self.has_wgmma() {
            for dim in [64, 128] {
                self.find(KernelId::FlashTextsWgmma { dim }, flash_wgmma_shared(dim))?;
            }
        }
        Ok(())
    }

    /// Attention within the texts of a pack, whose tiles are in the list at `args.tiles`.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn flash_texts(
        &self,
        stream: &Stream,
        args: &args::TextFlash,
        tiles: Tiles,
    ) -> Result<()> {
        let (heads, head_dim) = (args.flash.n_heads, args.flash.layout.head_dim);
        let dim = padded_head(head_dim);
        let wgmma = KernelId::FlashTextsWgmma { dim };
        let mut first = tiles.wide;
        if self.has(wgmma) && head_dim.is_multiple_of(8) {
            if tiles.wide > 0 {
                let (grid, shared) = ((heads, tiles.wide, 1), flash_wgmma_shared(dim));
                // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
                unsafe { self.launch(stream, wgmma, grid, 384, shared, args)? };
            }
            first = tiles.long;
        }
        if first == tiles.all {
            return Ok(());
        }
        let args = args::TextFlash {
            tiles: args.tiles + u64::from(first) * size_of::<args::TextTile>() as u64,
            ..*args
        };
        let grid = (tiles.all - first, heads, 1);
        let id = KernelId::FlashTexts { dim };
        // SAFETY: as above.
        unsafe { self.launch(stream, id, grid, 128, flash_shared(dim), &args) }
    }

    /// A vector for each of `count` texts.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn pool_texts(
        &self,
        stream: &Stream,
        args: &args::Pool,
        count: u32,
    ) -> Result<()> {
        let grid = (args.len.div_ceil(128), count, 1);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, KernelId::PoolTexts, grid, 128, 0, args) }
    }

    /// A layer behind the pooling, of `count` vectors from `from` to `to`.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn dense_texts(
        &self,
        stream: &Stream,
        dense: &DensePlan,
        (from, to): (Span, Span),
        count: u32,
    ) -> Result<()> {
        let args = args::Dense {
            w: dense.w,
            bias: dense.bias,
            x: from.address,
            out: to.address,
            x_stride: from.stride,
            out_stride: to.stride,
            inputs: dense.inputs,
            outputs: dense.outputs,
            count,
            activation: dense.activation,
        };
        let blocks = dense.outputs.div_ceil(DENSE_OUTPUTS);
        let grid = (blocks, count.div_ceil(DENSE_TEXTS), 1);
        let (id, threads) = (KernelId::DenseTexts, 32 * DENSE_OUTPUTS);
        // SAFETY: by contract, `args` is what the kernel expects, and its addresses are valid.
        unsafe { self.launch(stream, id, grid, threads, 0, &args)? };
        let Some(norm) = dense.norm else {
            return Ok(());
        };
        let norms = args::NormParts {
            x: to.address,
            norms: [norm, args::Norm::default()],
            first: [0; 2],
            len: [dense.outputs, 0],
            stride: to.stride,
            padding: 0,
        };
        // SAFETY: as above.
        unsafe { self.norm_parts(stream, &norms, count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_texts_once_for_each_kind_of_kernel() {
        let lens = [1, 64, 65, 255, 256, 300, 1000];
        let mut start = 0;
        let spans: Vec<args::TextSpan> = lens
            .iter()
            .map(|&len| {
                let span = args::TextSpan { start, len };
                start += len;
                span
            })
            .collect();
        let most = Tiles::most(start, lens.len() as u32) as usize;
        let mut list = Vec::with_capacity(most);
        let tiles = Tiles::of(&spans, &mut list);
        assert!(list.len() <= most && list.len() == tiles.all as usize);
        let parts = [
            (0, tiles.wide, WIDE_TILE, true),
            (tiles.wide, tiles.long, TILE, true),
            (tiles.long, tiles.all, TILE, false),
        ];
        for (from, to, step, is_long) in parts {
            let mut seen = vec![0u32; start as usize];
            let part = &list[from as usize..to as usize];
            for tile in part {
                let end = (tile.first + step).min(tile.len);
                for row in tile.start + tile.first..tile.start + end {
                    seen[row as usize] += 1;
                }
            }
            for span in &spans {
                let times = u32::from((span.len >= WIDE_FROM) == is_long);
                let rows = span.start as usize..(span.start + span.len) as usize;
                assert!(seen[rows].iter().all(|n| *n == times), "{span:?}");
            }
            assert!(part.is_sorted_by(|a, b| a.first >= b.first));
        }
    }
}
