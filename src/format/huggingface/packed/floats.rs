//! 4-bit floats, two in a byte, with scales for each 16 (NVFP4) or 32 (MXFP4) of a row.

use super::Parts;
use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::convert::converted;
use crate::format::huggingface::fp8::e4m3;
use crate::format::huggingface::mxfp4;
use crate::format::huggingface::stored::Stored;
use crate::format::made::MakeRows;
use crate::quant::{E2M1_DOUBLED, TensorType};
use std::sync::Arc;

/// Which of them.
pub(super) struct Floats {
    group: usize,
    scale_type: &'static str,
}

pub(super) const NVFP4: Floats = Floats {
    group: 16,
    scale_type: "F8_E4M3",
};
pub(super) const MXFP4: Floats = Floats {
    group: 32,
    scale_type: "U8",
};

impl Floats {
    /// The tensor that the bytes and their scales are together.
    pub fn join(&self, parts: &Parts, stem: &str) -> Result<Stored> {
        let (codes, scales) = (parts.own(), parts.of(stem, "weight_scale")?);
        let &[outputs, bytes] = &codes.shape[..] else {
            return Err(codes.misshapen("a matrix"));
        };
        let inputs = bytes.saturating_mul(2);
        if outputs == 0 || inputs == 0 || !inputs.is_multiple_of(self.group) {
            let needed = format!("rows of a multiple of {} bytes", self.group / 2);
            return Err(codes.misshapen(&needed));
        }
        let groups = inputs / self.group;
        if scales.shape != [outputs, groups] {
            return Err(scales.misshapen(&format!("[{outputs}, {groups}]")));
        }
        scales.check_type(self.scale_type)?;
        let name: Arc<str> = format!("{stem}.weight").into();
        let tensor = match self.group {
            32 => {
                let (mut blocks, mut exponents) = (codes.clone(), scales.clone());
                blocks.shape = vec![1, outputs, groups, 16];
                exponents.shape = vec![1, outputs, groups];
                let tensor = mxfp4::joined(&name, &blocks, &exponents)?;
                tensor.row_range(0..outputs)
            }
            _ => self.with_factor(parts, stem, name, [outputs, inputs])?,
        };
        Ok(Stored::together(codes, vec![outputs, inputs], tensor))
    }

    /// Those that have a factor for the whole matrix besides, as Q8_0, which has room for it.
    fn with_factor(
        &self,
        parts: &Parts,
        stem: &str,
        name: Arc<str>,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Tensor> {
        // One multiplies, the other divides.
        let (factor, divides) = match parts.find(stem, "weight_scale_2") {
            Some(factor) => (factor, false),
            None => (parts.of(stem, "weight_global_scale")?, true),
        };
        let &[number] = &factor.values()?[..] else {
            return Err(factor.misshapen("one number"));
        };
        let number_or_inverse = if divides { 1.0 / number } else { number };
        if !number_or_inverse.is_finite() || number_or_inverse == 0.0 {
            fail!(
                InvalidModel,
                "tensor {} has the element {number}",
                factor.name
            );
        }
        let rows = Rows {
            codes: parts.own().clone(),
            scales: parts.of(stem, "weight_scale")?.clone(),
            factor: number_or_inverse,
            inputs,
        };
        let single = Tensor::made(name, TensorType::F32, vec![inputs, outputs], rows)?;
        let ty = match inputs.is_multiple_of(32) {
            true => TensorType::Q8_0,
            false => TensorType::F16,
        };
        converted(&single, ty)
    }
}

/// Rows of NVFP4 as F32.
struct Rows {
    codes: Stored,
    scales: Stored,
    factor: f32,
    inputs: usize,
}

impl MakeRows for Rows {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let group = NVFP4.group;
        let n = out.len() / (4 * self.inputs);
        let mut codes = try_vec(n * self.inputs / 2, 0u8, &self.codes.name)?;
        self.codes.read(first * self.inputs / 2, &mut codes)?;
        let mut scales = try_vec(n * self.inputs / group, 0u8, &self.scales.name)?;
        let groups = self.inputs / group;
        self.scales.read(first * groups, &mut scales)?;
        let parts = codes.chunks_exact(group / 2).zip(&scales);
        for ((codes, scale), out) in parts.zip(out.chunks_exact_mut(4 * group)) {
            let scale = e4m3(*scale) * self.factor;
            for (i, out) in out.chunks_exact_mut(4).enumerate() {
                let code = codes[i / 2] >> (4 * (i % 2)) & 15;
                let x = f32::from(E2M1_DOUBLED[usize::from(code)]) * 0.5 * scale;
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
        Ok(())
    }
}
