//! Where the tensors lie in the file: aligned, inside it, without overlaps and holes.

use super::header::{Header, TensorInfo};
use crate::error::{Result, fail, try_vec};
use std::ops::Range;

/// The byte range of each tensor in a file of `file_len` bytes.
///
/// The tensors, in the order of their offsets, must tile the data: each starts at the first
/// multiple of the alignment after its predecessor. After the last one the file may end at once or
/// with padding up to the next such multiple, but have nothing more.
pub(super) fn place(header: &Header, file_len: usize) -> Result<Vec<Range<usize>>> {
    let Header {
        tensors, alignment, ..
    } = header;
    let Some(data) = header.end.checked_next_multiple_of(*alignment) else {
        fail!(FileCorrupt, "{}", too_large("the header"));
    };

    // First what is wrong with a tensor by itself: one that is out of place leaves a hole before
    // another, which is not to blame.
    let mut ranges = try_vec(tensors.len(), 0..0, "tensor ranges")?;
    for (tensor, range) in tensors.iter().zip(&mut ranges) {
        *range = range_of(tensor, data, *alignment)?;
    }
    let mut order = try_vec(tensors.len(), 0, "tensor order")?;
    order.iter_mut().enumerate().for_each(|(i, slot)| *slot = i);
    // Not the stable sort, which allocates. Equal offsets overlap in any order.
    order.sort_unstable_by_key(|&i| tensors[i].offset);
    if let Some(&i) = order.iter().find(|&&i| ranges[i].end > file_len) {
        fail!(
            FileTruncated,
            "tensor {} takes bytes {} to {}, but the file ends at byte {file_len}",
            tensors[i].name,
            ranges[i].start,
            ranges[i].end
        );
    }
    // Then overlaps, which name both.
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if ranges[after].start < ranges[before].end {
            fail!(
                FileCorrupt,
                "tensor {} starts at byte {}, inside tensor {}, which ends at byte {}",
                tensors[after].name,
                ranges[after].start,
                tensors[before].name,
                ranges[before].end
            );
        }
    }
    let mut next = data;
    for i in order {
        let (name, range) = (&tensors[i].name, &ranges[i]);
        if range.start != next {
            fail!(
                FileCorrupt,
                "{} unexplained bytes lie before tensor {name}, which starts at byte {} and not at {next}",
                range.start.abs_diff(next),
                range.start
            );
        }
        next = match range.end.checked_next_multiple_of(*alignment) {
            Some(next) => next,
            None => fail!(FileCorrupt, "{}", too_large(&format!("tensor {name}"))),
        };
    }
    if file_len > next {
        fail!(
            FileCorrupt,
            "{} unexplained bytes follow the last tensor at byte {next}",
            file_len - next
        );
    }
    Ok(ranges)
}

fn too_large(what: &str) -> String {
    format!("{what} ends beyond the largest file that there can be")
}

/// Where a tensor lies in a file whose data start at byte `data`.
fn range_of(tensor: &TensorInfo, data: usize, alignment: usize) -> Result<Range<usize>> {
    let name = &tensor.name;
    if !tensor.offset.is_multiple_of(alignment as u64) {
        fail!(
            FileCorrupt,
            "tensor {name} has offset {}, which is no multiple of the alignment {alignment}",
            tensor.offset
        );
    }
    let start = usize::try_from(tensor.offset)
        .ok()
        .and_then(|offset| data.checked_add(offset));
    match start.and_then(|start| Some(start..start.checked_add(tensor.size)?)) {
        Some(range) => Ok(range),
        None => fail!(FileCorrupt, "{}", too_large(&format!("tensor {name}"))),
    }
}
