//! Weights of 8-bit floats (E4M3: 4 bits exponent, 3 bits mantissa) with scales beside them.
//!
//! The scale of `X.weight` is `X.weight_scale_inv` or `X.weight_scale`, a factor in both cases: one
//! for the tensor, one per row, or one per block, of 128 x 128 unless the config says otherwise.
//! They become F16, in which every product of such a float and a scale is exact to 2^-12 of the
//! largest; or F32 where the scales are too small or too large for that.

use super::stored::Stored;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::made::MakeRows;
use crate::quant::TensorType;
use half::f16;
use std::array;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The element type, as safetensors files spell it.
pub(super) const TYPE: &str = "F8_E4M3";

/// Scales with which F16 is precise enough: the largest float is 448.
const F16_SCALES: RangeInclusive<f32> = 1.0 / 2_097_152.0..=146.0;

/// Bytes to floats with scales.
struct Scaled {
    source: Stored,
    ty: TensorType,
    scales: Vec<f32>,
    /// Rows and columns that share a scale.
    block: [usize; 2],
    /// Rows of a matrix; there may be several, whose blocks do not cross.
    rows: usize,
    columns: usize,
    values: [f32; 256],
}

/// The type for all weights with these scales.
pub(super) fn wide_type<'a>(scales: impl IntoIterator<Item = &'a Stored>) -> Result<TensorType> {
    for scale in scales {
        if scale
            .values()?
            .iter()
            .any(|s| !F16_SCALES.contains(&s.abs()))
        {
            return Ok(TensorType::F32);
        }
    }
    Ok(TensorType::F16)
}

/// The weights of `source` times their scales, which are 1 if there are none.
pub(super) fn scaled(
    source: &Stored,
    scale: Option<&Stored>,
    block: [usize; 2],
    ty: TensorType,
) -> Result<Tensor> {
    let dims = source.dims()?;
    let (columns, rows) = (dims[0], dims.get(1).copied().unwrap_or(1));
    let matrices = dims.iter().skip(2).product::<usize>();
    let (scales, block) = match scale {
        None => (vec![1.0], [rows, columns]),
        Some(scale) => {
            let scales = scale.values()?;
            let blocks = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
            // A shape decides before a number does: one row is no block.
            let by_block = scale.shape.len() > 1 && scale.shape.ends_with(&blocks);
            let block = match scales.len() {
                1 => [rows, columns],
                n if by_block && n == matrices * blocks[0] * blocks[1] => block,
                n if n == matrices => [rows, columns],
                n if n == matrices * rows => [1, columns],
                _ => fail!(
                    ShapeMismatch,
                    "tensor {} has shape {:?}; for the shape {:?} of {} it must be a number, one per row, or {blocks:?}",
                    scale.name,
                    scale.shape,
                    source.shape,
                    source.name
                ),
            };
            if let Some(bad) = scales.iter().find(|s| !s.is_finite()) {
                fail!(InvalidModel, "tensor {} has the scale {bad}", scale.name);
            }
            (scales, block)
        }
    };
    let scaled = Scaled {
        source: source.clone(),
        ty,
        scales,
        block,
        rows,
        columns,
        values: array::from_fn(|code| e4m3(code as u8)),
    };
    Tensor::made(Arc::clone(&source.name), ty, dims, scaled)
}

impl MakeRows for Scaled {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let &Scaled {
            rows,
            columns,
            block: [block_rows, block_columns],
            ..
        } = self;
        let rows_out = out.len() / (columns * self.ty.block_bytes());
        let mut bytes = try_vec(rows_out * columns, 0u8, &self.source.name)?;
        self.source.read(first * columns, &mut bytes)?;
        let per_row = columns.div_ceil(block_columns);
        let per_matrix = rows.div_ceil(block_rows) * per_row;
        let size = self.ty.block_bytes();
        for (i, out) in out.chunks_exact_mut(columns * size).enumerate() {
            let row = first + i;
            let at = match self.scales.len() {
                1 => 0,
                _ => row / rows * per_matrix + row % rows / block_rows * per_row,
            };
            let scales = &self.scales[at..at + per_row];
            let codes = bytes[i * columns..(i + 1) * columns].chunks(block_columns);
            let out = out.chunks_mut(block_columns * size);
            for ((codes, out), scale) in codes.zip(out).zip(scales) {
                for (code, out) in codes.iter().zip(out.chunks_exact_mut(size)) {
                    let x = self.values[usize::from(*code)] * scale;
                    match self.ty {
                        TensorType::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                        _ => out.copy_from_slice(&x.to_le_bytes()),
                    }
                }
            }
        }
        Ok(())
    }
}

/// The value of an E4M3 code: bias 7, no infinities, the code of all ones is not a number.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code < 128 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

    #[test]
    fn codes_have_the_values_of_the_format() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
            (0xfe, -448.0),
        ] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
