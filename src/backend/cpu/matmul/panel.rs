//! 32 unpacked rows, as the products with many tokens read them: one vector lane per row.
//!
//! The groups are ordered by accumulator, the accumulators in the order in which the tree joins
//! them, so that a block of tokens reads the panel from front to end.

use super::Job;
use super::types::Format;

/// Rows of a panel.
pub(super) const ROWS: usize = 32;

/// Where the parts of a panel are in the scratch memory.
pub(super) struct Panel {
    /// Codes: `[group][4 elements][row][element]`.
    pub codes: *mut u8,
    /// `[group][row]`.
    pub scales: *mut f32,
    /// `[group][row]`.
    pub minimums: *mut f32,
    /// Chunks of 256 elements, the last one perhaps not full: groups per accumulator.
    pub chunks: usize,
}

impl Panel {
    /// The panel for a product.
    pub(super) fn new<F: Format>(job: &Job) -> Panel {
        // The scratch memory has 128 bytes per column, rounded up to whole chunks. The codes of
        // 32 rows take 32, scales and minimums of groups of 16 take 8 each.
        let chunks = job.cols.div_ceil(256);
        let scales: *mut f32 = job.scratch.wrapping_add(chunks * 256 * ROWS).cast();
        Panel {
            codes: job.scratch,
            scales,
            minimums: scales.wrapping_add(chunks * F::LANES * ROWS),
            chunks,
        }
    }

    /// Where group `g` of a row is in the panel.
    #[inline(always)]
    pub(super) fn place<F: Format>(&self, g: usize) -> usize {
        visit(g % F::LANES, F::LANES) * self.chunks + g / F::LANES
    }
}

/// The accumulator that is the `i`th to be computed (and the other way round): its bits reversed.
/// So every sum of the tree joins the sum before it with the one just finished.
#[inline(always)]
pub(super) fn visit(i: usize, lanes: usize) -> usize {
    i.reverse_bits() >> (usize::BITS - lanes.trailing_zeros())
}

/// Writes chunk `c` of row `i`: 256 codes, four to a word, and its scales and minimums.
///
/// # Safety
/// `i < ROWS` and `c < panel.chunks`; the panel is exclusive.
#[inline(always)]
pub(super) unsafe fn put<F: Format>(
    panel: &Panel,
    i: usize,
    c: usize,
    codes: &[u32; 64],
    scales: &[f32; 16],
    minimums: &[f32; 16],
) {
    let words = F::GROUP / 4;
    for n in 0..F::LANES {
        let g = panel.place::<F>(c * F::LANES + n);
        // SAFETY: the group is in the panel, see `Panel::new`.
        unsafe {
            let to: *mut u32 = panel.codes.cast();
            for k in 0..words {
                *to.add((g * words + k) * ROWS + i) = codes[n * words + k];
            }
            *panel.scales.add(g * ROWS + i) = scales[n];
            if F::MINIMUM {
                *panel.minimums.add(g * ROWS + i) = minimums[n];
            }
        }
    }
}
