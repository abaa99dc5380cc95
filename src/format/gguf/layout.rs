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
    let too_large = |what: &str| format!("{what} ends beyond the largest file that there can be");
    let Some(data) = header.end.checked_next_multiple_of(*alignment) else {
        fail!(FileCorrupt, "{}", too_large("the header"));
    };

    let mut order = try_vec(tensors.len(), 0, "tensor order")?;
    order.iter_mut().enumerate().for_each(|(i, slot)| *slot = i);
    // Not the stable sort, which allocates. Equal offsets overlap in any order.
    order.sort_unstable_by_key(|&i| tensors[i].offset);
    let mut ranges = try_vec(tensors.len(), 0..0, "tensor ranges")?;
    let mut next = data;
    let mut end = header.end;
    let mut previous: Option<&TensorInfo> = None;
    for i in order {
        let tensor = &tensors[i];
        let name = &tensor.name;
        if tensor.offset % *alignment as u64 != 0 {
            fail!(
                FileCorrupt,
                "tensor {name} has offset {}, which is no multiple of the alignment {alignment}",
                tensor.offset
            );
        }
        let start = usize::try_from(tensor.offset)
            .ok()
            .and_then(|offset| data.checked_add(offset));
        let range = start.and_then(|start| Some(start..start.checked_add(tensor.size)?));
        let Some(range) = range else {
            fail!(FileCorrupt, "{}", too_large(&format!("tensor {name}")));
        };
        if range.start < next {
            let other = previous.map_or("", |p| &p.name);
            fail!(
                FileCorrupt,
                "tensor {name} starts at byte {}, inside tensor {other}, which ends at byte {end}",
                range.start
            );
        }
        if range.end > file_len {
            fail!(
                FileTruncated,
                "tensor {name} takes bytes {} to {}, but the file ends at byte {file_len}",
                range.start,
                range.end
            );
        }
        if range.start > next {
            fail!(
                FileCorrupt,
                "{} unexplained bytes lie before tensor {name}, which starts at byte {} and not at {next}",
                range.start - next,
                range.start
            );
        }
        end = range.end;
        next = match end.checked_next_multiple_of(*alignment) {
            Some(next) => next,
            None => fail!(FileCorrupt, "{}", too_large(&format!("tensor {name}"))),
        };
        previous = Some(tensor);
        ranges[i] = range;
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
