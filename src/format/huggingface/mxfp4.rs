//! Experts' matrices of 4-bit floats with a power of two per 32 of them, in two tensors: `_blocks`
//! (experts, rows, groups, 16 bytes: element `2i` in the low half of byte `i`, `2i + 1` in the
//! high half) and `_scales` (experts, rows, groups). GGUF has the scale before the bytes, and
//! element `i + 16` above element `i`.

use super::stored::Stored;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::made::MakeRows;
use crate::quant::TensorType;

const GROUP_BYTES: usize = 16;

struct Blocks {
    blocks: Stored,
    scales: Stored,
    groups: usize,
}

/// The tensor that both are together, `name`.
pub(super) fn joined(name: &str, blocks: &Stored, scales: &Stored) -> Result<Tensor> {
    for part in [blocks, scales] {
        part.check_type("U8")?;
    }
    let &[experts, rows, groups, GROUP_BYTES] = &blocks.shape[..] else {
        fail!(
            ShapeMismatch,
            "tensor {} has shape {:?}; it must have 4 dimensions, the last of {GROUP_BYTES}",
            blocks.name,
            blocks.shape
        );
    };
    if scales.shape != [experts, rows, groups] {
        return Err(scales.misshapen(&format!("{:?}", [experts, rows, groups])));
    }
    let dims = vec![groups * 32, rows, experts];
    let rows = Blocks {
        blocks: blocks.clone(),
        scales: scales.clone(),
        groups,
    };
    Tensor::made(name.into(), TensorType::MXFP4, dims, rows)
}

impl MakeRows for Blocks {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let from = first * self.groups;
        let out = out.as_chunks_mut::<{ GROUP_BYTES + 1 }>().0;
        let mut blocks = try_vec(out.len(), [0; GROUP_BYTES], &self.blocks.name)?;
        self.blocks
            .read(from * GROUP_BYTES, blocks.as_flattened_mut())?;
        let mut scales = try_vec(out.len(), 0u8, &self.scales.name)?;
        self.scales.read(from, &mut scales)?;
        for ((codes, scale), out) in blocks.iter().zip(&scales).zip(out) {
            out[0] = *scale;
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            for i in 0..GROUP_BYTES {
                out[1 + i] = code(i) | code(i + 16) << 4;
            }
        }
        Ok(())
    }
}
