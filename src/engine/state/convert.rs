//! A state's keys and values in another element type than they were saved in.

use crate::backend::state::{BLOCK, Plane, StateLayout, row_bytes};
use crate::backend::{KvType, StateInfo, StateSource};
use crate::error::{Result, try_vec};
use half::f16;

/// Elements of a group of q8_0, which share a scale.
const GROUP: usize = 32;

/// A stream with its rows in another type.
pub(super) struct Converter<'a, S> {
    layout: &'a StateLayout<'a>,
    from: KvType,
    to: KvType,
    source: &'a mut S,
    /// Bytes of logits that are still to come.
    logits: usize,
    planes: Box<dyn Iterator<Item = Plane> + 'a>,
    /// The plane that was converted last, and how much of it was used.
    plane: Vec<u8>,
    used: usize,
}

impl<'a, S: StateSource> Converter<'a, S> {
    /// The stream of `source`, which has the layout and `info`, with elements of type `to`.
    pub fn new(
        layout: &'a StateLayout<'a>,
        info: &StateInfo,
        to: KvType,
        source: &'a mut S,
    ) -> Converter<'a, S> {
        Converter {
            layout,
            from: info.kv_type,
            to,
            source,
            logits: layout.logits_bytes(),
            planes: Box::new(layout.planes(false).chain(layout.planes(true))),
            plane: Vec::new(),
            used: 0,
        }
    }

    fn next_plane(&mut self) -> Result<()> {
        let Some(plane) = self.planes.next() else {
            crate::error::fail!(Internal, "a state that is shorter than its layout");
        };
        let shape = self.layout.shape(plane.layer);
        let what = "a part of a saved state";
        let mut stored = try_vec(self.layout.plane_bytes(plane.layer), 0u8, what)?;
        self.source.read(&mut stored)?;
        let [from, to] = [self.from, self.to].map(|t| row_bytes(t, shape.head_dim));
        let mut converted = try_vec(shape.n_kv_heads * BLOCK * to, 0u8, what)?;
        let mut row = try_vec(shape.head_dim, 0f32, what)?;
        for (stored, converted) in stored
            .chunks_exact(from)
            .zip(converted.chunks_exact_mut(to))
        {
            decode(self.from, stored, &mut row);
            encode(self.to, &row, converted);
        }
        self.plane = converted;
        self.used = 0;
        Ok(())
    }
}

impl<S: StateSource> StateSource for Converter<'_, S> {
    fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        let logits = bytes.len().min(self.logits);
        if logits > 0 {
            let (now, later) = bytes.split_at_mut(logits);
            self.source.read(now)?;
            self.logits -= logits;
            bytes = later;
        }
        while !bytes.is_empty() {
            if self.used == self.plane.len() {
                self.next_plane()?;
            }
            let n = bytes.len().min(self.plane.len() - self.used);
            bytes[..n].copy_from_slice(&self.plane[self.used..self.used + n]);
            self.used += n;
            bytes = &mut bytes[n..];
        }
        Ok(())
    }
}

/// Where the scales of a row of q8_0 begin.
fn scales_at(len: usize) -> usize {
    len.next_multiple_of(GROUP)
}

/// The elements of a row.
fn decode(kv_type: KvType, bytes: &[u8], row: &mut [f32]) {
    match kv_type {
        KvType::F16 => {
            for (x, b) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        KvType::F32 => {
            for (x, b) in row.iter_mut().zip(bytes.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        KvType::Q8_0 => {
            let (values, scales) = bytes.split_at(scales_at(row.len()));
            for (i, x) in row.iter_mut().enumerate() {
                let scale = &scales[i / GROUP * 2..][..2];
                let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
                *x = f32::from(values[i] as i8) * scale;
            }
        }
    }
}

/// The bytes of a row, of which those behind its elements are zero.
fn encode(kv_type: KvType, row: &[f32], bytes: &mut [u8]) {
    match kv_type {
        KvType::F16 => {
            for (x, b) in row.iter().zip(bytes.chunks_exact_mut(2)) {
                b.copy_from_slice(&f16::from_f32(*x).to_le_bytes());
            }
        }
        KvType::F32 => {
            for (x, b) in row.iter().zip(bytes.chunks_exact_mut(4)) {
                b.copy_from_slice(&x.to_le_bytes());
            }
        }
        KvType::Q8_0 => {
            let (values, scales) = bytes.split_at_mut(scales_at(row.len()));
            for (g, group) in row.chunks(GROUP).enumerate() {
                let largest = group.iter().fold(0f32, |m, x| m.max(x.abs()));
                let scale = f16::from_f32(largest / 127.0);
                scales[g * 2..][..2].copy_from_slice(&scale.to_le_bytes());
                let scale = scale.to_f32();
                for (x, v) in group.iter().zip(&mut values[g * GROUP..]) {
                    let q = if scale > 0.0 { x / scale } else { 0.0 };
                    *v = q.round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_within_the_precision_of_their_type() {
        let row: Vec<f32> = (0..45)
            .map(|i| ((i * 37) % 91) as f32 / 13.0 - 3.0)
            .collect();
        for (kv_type, tolerance) in [
            (KvType::F32, 0.0),
            (KvType::F16, 3e-3),
            (KvType::Q8_0, 4.0 / 254.0 + 3e-3),
        ] {
            let mut bytes = vec![0u8; row_bytes(kv_type, row.len())];
            encode(kv_type, &row, &mut bytes);
            let mut back = vec![0f32; row.len()];
            decode(kv_type, &bytes, &mut back);
            for (a, b) in row.iter().zip(&back) {
                assert!((a - b).abs() <= tolerance, "{kv_type:?}: {a} became {b}");
            }
            // What was rounded once stays as it is.
            let mut again = vec![0u8; bytes.len()];
            encode(kv_type, &back, &mut again);
            assert_eq!(bytes, again, "{kv_type:?}");
        }
    }
}
