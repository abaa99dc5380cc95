//! Integers of 2, 3, 4 or 8 bits with scales and zero points: `(code - zero) * scale`.

use crate::error::{Result, fail, try_vec};
use crate::format::Tensor;
use crate::format::huggingface::stored::Stored;
use crate::format::made::{CHUNK_BYTES, MakeRows};
use crate::quant::TensorType;
use half::f16;
use std::sync::Arc;

/// Elements of a block of the types that integers become.
const BLOCK: usize = 32;
/// Scales that F16 holds with all its bits, and times 15.
pub(super) const F16_SCALES: std::ops::RangeInclusive<f32> = 6.103_515_6e-5..=4_096.0;
/// Where the codes of eight outputs are in a word, from the lowest bits on, if they have an order.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// How codes are packed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Codes {
    bits: u32,
    packed: Packed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Packed {
    /// A row of words for each output; scales likewise; zero points in words of consecutive outputs.
    Rows,
    /// A row of words for consecutive inputs, a word for each output; scales and zero points have a row
    /// for each group of inputs, the latter in words of consecutive outputs.
    Columns,
    /// A row of words for each input, a word for consecutive outputs, in an order of their own; likewise.
    Awq,
    /// A row of words for each output; scales likewise, as many as there is room for in the zero points, which
    /// are in words of consecutive groups.
    AwqRows,
    /// Signed bytes, a row for each output.
    Bytes,
}

impl Codes {
    pub(super) const AWQ: Codes = Codes {
        bits: 4,
        packed: Packed::Awq,
    };
    pub(super) const AWQ_ROWS: Codes = Codes {
        bits: 4,
        packed: Packed::AwqRows,
    };
    pub(super) const BYTES: Codes = Codes {
        bits: 8,
        packed: Packed::Bytes,
    };

    pub fn rows(bits: u32) -> Codes {
        Codes {
            bits,
            packed: Packed::Rows,
        }
    }

    pub fn columns(bits: u32) -> Codes {
        Codes {
            bits,
            packed: Packed::Columns,
        }
    }

    /// Words that hold whole codes together: three of codes of 3 bits, else one.
    pub fn unit(self) -> usize {
        match self.bits {
            3 => 3,
            _ => 1,
        }
    }

    /// Codes of such words.
    pub fn per_unit(self) -> usize {
        32 * self.unit() / self.bits as usize
    }

    /// Words of so many codes.
    fn words(self, codes: usize) -> usize {
        codes.div_ceil(self.per_unit()).saturating_mul(self.unit())
    }

    /// The zero point of symmetric codes.
    fn middle(self) -> u8 {
        1 << (self.bits - 1)
    }

    /// The code in place `i` of words that have consecutive ones, or those of AWQ.
    fn code(self, words: &[u32], i: usize) -> u8 {
        let at = match self.packed {
            Packed::Awq => AWQ_PLACES[i],
            _ => i,
        };
        let bit = at * self.bits as usize;
        let (word, shift) = (bit / 32, bit % 32);
        let next = words.get(word + 1).copied().unwrap_or(0);
        let both = u64::from(words[word]) | u64::from(next) << 32;
        (both >> shift) as u8 & (u8::MAX >> (8 - self.bits))
    }
}

/// What integers become, from the smallest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// Blocks with scales.
    Symmetric,
    /// Blocks with scales and offsets.
    Offset,
    /// F16.
    Half,
    /// F32.
    Single,
}

/// A matrix of integers.
pub(super) struct Integers {
    codes: Codes,
    words: Stored,
    scales: Stored,
    zeros: Option<Stored>,
    /// Whether zero points are stored less 1.
    less_one: bool,
    outputs: usize,
    inputs: usize,
    /// Groups of inputs that have a scale.
    groups: usize,
    /// The group of each input, where they are not in order.
    group_of: Option<Vec<u32>>,
}

impl Form {
    pub fn is_in_blocks(self) -> bool {
        self <= Form::Offset
    }
}

impl Integers {
    /// The parts of a matrix of `[outputs, inputs]`.
    pub fn new(
        codes: Codes,
        words: &Stored,
        scales: &Stored,
        zeros: Option<&Stored>,
        [outputs, inputs]: [usize; 2],
        less_one: bool,
    ) -> Result<Integers> {
        let by_rows = matches!(codes.packed, Packed::Rows | Packed::Bytes);
        let needed = match codes.packed {
            Packed::Rows | Packed::AwqRows => [outputs, codes.words(inputs)],
            Packed::Columns => [codes.words(inputs), outputs],
            Packed::Awq => [inputs, outputs / codes.per_unit()],
            Packed::Bytes => [outputs, inputs],
        };
        let ty = match codes.packed {
            Packed::Bytes => "I8",
            _ => "I32",
        };
        for stored in std::iter::once(words).chain(zeros) {
            stored.check_type(ty)?;
        }
        if words.shape != needed || outputs == 0 || inputs == 0 {
            return Err(words.misshapen(&format!("{needed:?}, none of them 0")));
        }
        let groups = match scales.shape[..] {
            [] | [1] if by_rows => 1,
            [n, groups] if by_rows && (n == outputs || n == 1) => groups,
            [n] if by_rows && n == outputs => 1,
            [groups, n] if !by_rows && n == outputs => groups,
            _ => 0,
        };
        if groups == 0 || groups > inputs {
            let needed = match by_rows {
                true => format!("[{outputs}, groups of {inputs} inputs]"),
                false => format!("[groups of {inputs} inputs, {outputs}]"),
            };
            return Err(scales.misshapen(&needed));
        }
        if let Some(zeros) = zeros {
            let needed = match by_rows {
                true => [codes.words(outputs), groups],
                false => [groups, codes.words(outputs)],
            };
            if zeros.shape != needed {
                return Err(zeros.misshapen(&format!("{needed:?}")));
            }
        }
        check_scale_type(scales)?;
        let integers = Integers {
            codes,
            words: words.clone(),
            scales: scales.clone(),
            zeros: zeros.cloned(),
            less_one,
            outputs,
            inputs,
            groups,
            group_of: None,
        };
        Ok(integers)
    }

    /// The parts of a matrix that AWQ has packed along the inputs, in groups of so many.
    pub fn awq_rows(
        words: &Stored,
        scales: &Stored,
        zeros: &Stored,
        group: usize,
    ) -> Result<Integers> {
        let codes = Codes::AWQ_ROWS;
        let &[outputs, width] = &words.shape[..] else {
            return Err(words.misshapen("a matrix"));
        };
        for stored in [words, zeros] {
            stored.check_type("I32")?;
        }
        let inputs = width.saturating_mul(codes.per_unit());
        if outputs == 0 || inputs == 0 || !inputs.is_multiple_of(group) {
            let needed = format!("rows of groups of {group} inputs, 8 in a word");
            return Err(words.misshapen(&needed));
        }
        let groups = inputs / group;
        // There may be room for more groups than there are.
        let room = match zeros.shape[..] {
            [n, width] if n == outputs && width >= codes.words(groups) => width,
            _ => {
                let needed = format!("[{outputs}, {} or more]", codes.words(groups));
                return Err(zeros.misshapen(&needed));
            }
        };
        let room = room.saturating_mul(codes.per_unit());
        if scales.shape != [outputs, room] {
            return Err(scales.misshapen(&format!("[{outputs}, {room}]")));
        }
        check_scale_type(scales)?;
        Ok(Integers {
            codes,
            words: words.clone(),
            scales: scales.clone(),
            zeros: Some(zeros.clone()),
            less_one: false,
            outputs,
            inputs,
            groups,
            group_of: None,
        })
    }

    /// With the group of each input, if there is such a list.
    pub fn with_groups(mut self, list: Option<&Stored>) -> Result<Integers> {
        let Some(list) = list else {
            if !self.inputs.is_multiple_of(self.groups) {
                let needed = format!("as many groups as divide {} inputs", self.inputs);
                return Err(self.scales.misshapen(&needed));
            }
            return Ok(self);
        };
        let groups = list.sizes()?;
        if groups.len() != self.inputs {
            return Err(list.misshapen(&format!("[{}]", self.inputs)));
        }
        if let Some(bad) = groups.iter().find(|g| **g >= self.groups) {
            fail!(
                InvalidModel,
                "tensor {} has the element {bad}, but there are {} groups",
                list.name,
                self.groups
            );
        }
        let group = self.inputs.div_ceil(self.groups);
        let ordered = self.inputs.is_multiple_of(self.groups)
            && groups.iter().enumerate().all(|(i, g)| i / group == *g);
        if !ordered {
            self.group_of = Some(groups.into_iter().map(|g| g as u32).collect());
        }
        Ok(self)
    }

    /// The least that holds them. Reads scales and zero points.
    pub fn form(&self) -> Result<Form> {
        let scales = self.scales.values()?;
        if let Some(bad) = scales.iter().find(|s| !s.is_finite()) {
            fail!(
                InvalidModel,
                "tensor {} has the scale {bad}",
                self.scales.name
            );
        }
        if !scales
            .iter()
            .all(|s| *s == 0.0 || F16_SCALES.contains(&s.abs()))
        {
            return Ok(Form::Single);
        }
        let in_blocks = self.group_of.is_none()
            && (self.inputs / self.groups).is_multiple_of(BLOCK)
            && self.inputs.is_multiple_of(BLOCK);
        if !in_blocks {
            return Ok(Form::Half);
        }
        if self.is_symmetric()? {
            return Ok(Form::Symmetric);
        }
        Ok(match self.codes.bits {
            8 => Form::Half,
            _ => Form::Offset,
        })
    }

    /// Whether all zero points are in the middle.
    fn is_symmetric(&self) -> Result<bool> {
        let Some(zeros) = &self.zeros else {
            return Ok(true);
        };
        let mut words = try_vec(zeros.shape.iter().product(), 0u32, &zeros.name)?;
        zeros.read_words(0, &mut words)?;
        let (per_unit, unit) = (self.codes.per_unit(), self.codes.unit());
        let in_row = zeros.shape[1] / unit;
        // What pads the last words is none.
        let symmetric = |(at, words): (usize, &[u32])| {
            let (first, of) = match self.codes.packed {
                Packed::Rows => (at / self.groups, self.outputs),
                Packed::AwqRows => (at % in_row, self.groups),
                _ => (at % in_row, self.outputs),
            };
            let count = per_unit.min(of.saturating_sub(first * per_unit));
            (0..count).all(|i| self.zero(words, i) == i32::from(self.codes.middle()))
        };
        Ok(words.chunks_exact(unit).enumerate().all(symmetric))
    }

    /// A zero point of some words.
    fn zero(&self, words: &[u32], i: usize) -> i32 {
        i32::from(self.codes.code(words, i)) + i32::from(self.less_one)
    }

    /// The tensor that they are together, in a form that holds them.
    pub fn joined(self, stem: &str, form: Form) -> Result<Stored> {
        let ty = match (form, self.codes.bits) {
            (Form::Symmetric, 8) => TensorType::Q8_0,
            (Form::Symmetric, _) => TensorType::Q4_0,
            (Form::Offset | Form::Half, 8) => TensorType::F16,
            (Form::Offset, _) => TensorType::Q4_1,
            (Form::Half, _) => TensorType::F16,
            (Form::Single, _) => TensorType::F32,
        };
        let name: Arc<str> = format!("{stem}.weight").into();
        let words = self.words.clone();
        let shape = vec![self.outputs, self.inputs];
        let dims = vec![self.inputs, self.outputs];
        let tensor = Tensor::made(name, ty, dims, Rows { integers: self, ty })?;
        Ok(Stored::together(&words, shape, tensor))
    }

    /// The codes of outputs `first..first + n`, `[n][inputs]`.
    fn read_codes(&self, first: usize, n: usize) -> Result<Vec<u8>> {
        let (name, inputs) = (&self.words.name, self.inputs);
        let (per_unit, unit) = (self.codes.per_unit(), self.codes.unit());
        let mut codes = try_vec(n * inputs, 0u8, name)?;
        match self.codes.packed {
            Packed::Bytes => {
                self.words.read(first * inputs, &mut codes)?;
                // As the others: 128 stands for 0.
                codes.iter_mut().for_each(|c| *c ^= 128);
            }
            Packed::Rows | Packed::AwqRows => {
                let row_words = self.codes.words(inputs);
                let mut words = try_vec(n * row_words, 0u32, name)?;
                self.words.read_words(first * row_words, &mut words)?;
                let rows = codes.chunks_exact_mut(inputs);
                for (codes, words) in rows.zip(words.chunks_exact(row_words)) {
                    let units = words.chunks_exact(unit);
                    for (codes, words) in codes.chunks_mut(per_unit).zip(units) {
                        for (i, code) in codes.iter_mut().enumerate() {
                            *code = self.codes.code(words, i);
                        }
                    }
                }
            }
            Packed::Columns => {
                let mut words = try_vec(n * unit, 0u32, name)?;
                for at in 0..inputs / per_unit {
                    // The words of a unit stand below each other.
                    for (part, words) in words.chunks_exact_mut(n).enumerate() {
                        let row = at * unit + part;
                        self.words.read_words(row * self.outputs + first, words)?;
                    }
                    for row in 0..n {
                        let mut own = [0; 3];
                        for (part, own) in own[..unit].iter_mut().enumerate() {
                            *own = words[part * n + row];
                        }
                        let codes = &mut codes[row * inputs + at * per_unit..][..per_unit];
                        for (i, code) in codes.iter_mut().enumerate() {
                            *code = self.codes.code(&own[..unit], i);
                        }
                    }
                }
            }
            Packed::Awq => self.across(&self.words, inputs, first, n, |input, row, words, i| {
                codes[row * inputs + input] = self.codes.code(words, i);
            })?,
        }
        Ok(codes)
    }

    /// Visits what a matrix of words of consecutive outputs, with `rows` rows, has for outputs
    /// `first..first + n`: the row, which of these outputs, the words, and the place in them.
    fn across(
        &self,
        matrix: &Stored,
        rows: usize,
        first: usize,
        n: usize,
        mut visit: impl FnMut(usize, usize, &[u32], usize),
    ) -> Result<()> {
        let (per_unit, unit) = (self.codes.per_unit(), self.codes.unit());
        let width = self.codes.words(self.outputs);
        let from = first / per_unit;
        let units = (first + n).div_ceil(per_unit) - from;
        let mut words = try_vec(units * unit, 0u32, &matrix.name)?;
        for at in 0..rows {
            matrix.read_words(at * width + from * unit, &mut words)?;
            for row in 0..n {
                let output = first + row;
                let own = &words[(output / per_unit - from) * unit..][..unit];
                visit(at, row, own, output % per_unit);
            }
        }
        Ok(())
    }

    /// Scales and zero points of outputs `first..first + n`, `[n][groups]`.
    fn read_scales(&self, first: usize, n: usize) -> Result<Vec<(f32, i32)>> {
        let (groups, outputs) = (self.groups, self.outputs);
        let middle = i32::from(self.codes.middle());
        let mut found = try_vec(n * groups, (0.0f32, middle), &self.scales.name)?;
        match self.codes.packed {
            Packed::Rows | Packed::Bytes => {
                let shared = self.scales.shape.iter().product::<usize>() == groups && outputs > 1;
                let at = if shared { 0 } else { first * groups };
                let scales = self
                    .scales
                    .range(at, if shared { groups } else { n * groups })?;
                for (found, scale) in found.iter_mut().zip(scales.iter().cycle()) {
                    found.0 = *scale;
                }
                if let Some(zeros) = &self.zeros {
                    // Words of consecutive outputs stand below each other.
                    let per_word = self.codes.per_unit();
                    let from = first / per_word;
                    let rows = (first + n).div_ceil(per_word) - from;
                    let mut words = try_vec(rows * groups, 0u32, &zeros.name)?;
                    zeros.read_words(from * groups, &mut words)?;
                    for (i, found) in found.iter_mut().enumerate() {
                        let (output, group) = (first + i / groups, i % groups);
                        let word = words[(output / per_word - from) * groups + group];
                        found.1 = self.zero(&[word], output % per_word);
                    }
                }
            }
            Packed::AwqRows => {
                let room = self.scales.shape[1];
                let scales = self.scales.range(first * room, n * room)?;
                let per_word = self.codes.per_unit();
                let mut words = try_vec(n * room / per_word, 0u32, &self.words.name)?;
                if let Some(zeros) = &self.zeros {
                    zeros.read_words(first * room / per_word, &mut words)?;
                }
                for (i, found) in found.iter_mut().enumerate() {
                    let at = i / groups * room + i % groups;
                    let word = &words[at / per_word..][..1];
                    *found = (scales[at], self.zero(word, at % per_word));
                }
            }
            Packed::Columns | Packed::Awq => {
                for group in 0..groups {
                    let scales = self.scales.range(group * outputs + first, n)?;
                    for (row, scale) in scales.into_iter().enumerate() {
                        found[row * groups + group].0 = scale;
                    }
                }
                if let Some(zeros) = &self.zeros {
                    self.across(zeros, groups, first, n, |group, row, words, i| {
                        found[row * groups + group].1 = self.zero(words, i);
                    })?;
                }
            }
        }
        Ok(found)
    }
}

fn check_scale_type(scales: &Stored) -> Result<()> {
    if scales.plain_type().is_none() {
        fail!(
            Unsupported,
            "tensor {} has type {}; it must be F16, BF16 or F32",
            scales.name,
            scales.ty
        );
    }
    Ok(())
}

/// The rows of the tensor.
struct Rows {
    integers: Integers,
    ty: TensorType,
}

impl MakeRows for Rows {
    fn make(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let m = &self.integers;
        let row_bytes = self.ty.row_bytes(m.inputs).unwrap_or(out.len());
        let n = out.len() / row_bytes;
        let codes = m.read_codes(first, n)?;
        let scales = m.read_scales(first, n)?;
        let group = m.inputs.div_ceil(m.groups);
        let middle = m.codes.middle();
        let rows = codes
            .chunks_exact(m.inputs)
            .zip(scales.chunks_exact(m.groups));
        for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            if self.ty.block_len() == BLOCK {
                let blocks = codes.as_chunks::<BLOCK>().0.iter().enumerate();
                for ((b, codes), out) in blocks.zip(out.chunks_exact_mut(self.ty.block_bytes())) {
                    encode(self.ty, codes, scales[b * BLOCK / group], middle, out);
                }
                continue;
            }
            for (i, (code, out)) in codes
                .iter()
                .zip(out.chunks_exact_mut(self.ty.block_bytes()))
                .enumerate()
            {
                let of = m.group_of.as_ref().map_or(i / group, |of| of[i] as usize);
                let (scale, zero) = scales[of];
                let x = (i32::from(*code) - zero) as f32 * scale;
                match self.ty {
                    TensorType::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                    _ => out.copy_from_slice(&x.to_le_bytes()),
                }
            }
        }
        Ok(())
    }

    /// Long runs of words that lie together.
    fn chunk_bytes(&self) -> usize {
        8 * CHUNK_BYTES
    }
}

/// A block of Q4_0, Q4_1 or Q8_0; the zero point of those without offsets is `middle`.
fn encode(
    ty: TensorType,
    codes: &[u8; BLOCK],
    (scale, zero): (f32, i32),
    middle: u8,
    out: &mut [u8],
) {
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    // Q4_0 stands for 8 less.
    let (more, out) = match ty {
        TensorType::Q8_0 => {
            for (out, code) in out[2..].iter_mut().zip(codes) {
                *out = code ^ 128;
            }
            return;
        }
        TensorType::Q4_1 => {
            let offset = f16::from_f32(-(zero as f32) * scale);
            out[2..4].copy_from_slice(&offset.to_le_bytes());
            (0, &mut out[4..])
        }
        _ => (8 - middle, &mut out[2..]),
    };
    let (low, high) = codes.split_at(BLOCK / 2);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = (low + more) | (high + more) << 4;
    }
}
