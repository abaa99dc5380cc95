//! The plan of what layers keep of fixed size.
//!
//! Of a layer, a ring of the convolution's inputs comes first, `[channels][width]`, in which position `p`
//! has entry `p % width`; behind it the matrices, `[heads][rows][columns]`.

use crate::backend::marks::MarkPlan;
use crate::model::FixedShape;

/// Where things begin, in bytes.
const ALIGNMENT: u64 = 256;

/// Where the states of all layers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FixedPlan {
    pub(in crate::backend::cuda) layers: Vec<FixedLayer>,
    pub(in crate::backend::cuda) bytes: u64,
}

/// Where the state of a layer is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLayer {
    /// Of the whole, in that of all layers.
    pub offset: u64,
    /// Of the matrices, behind that.
    pub matrices: u64,
    pub(in crate::backend::cuda) shape: FixedShape,
}

impl FixedPlan {
    /// Makes room for a layer's state.
    pub fn add(&mut self, shape: FixedShape) -> FixedLayer {
        let width = shape.conv_columns as u64 + 1;
        let ring = shape.conv_channels as u64 * width * 4;
        let matrices = (shape.len() - shape.conv_len()) as u64 * 4;
        let layer = FixedLayer {
            offset: self.bytes,
            matrices: ring.next_multiple_of(ALIGNMENT),
            shape,
        };
        self.bytes += (layer.matrices + matrices).next_multiple_of(ALIGNMENT);
        self.layers.push(layer);
        layer
    }

    /// Floats of all layers in a stream.
    pub fn floats(&self) -> usize {
        self.layers.iter().map(|l| l.shape.len()).sum()
    }

    /// Bytes that a session takes, with the copies.
    pub fn session_bytes(&self, n_vocab: usize, marks: MarkPlan) -> u64 {
        let copies = (marks.slots as u64).saturating_mul(self.copy_bytes(n_vocab));
        match self.bytes {
            0 => 0,
            bytes => bytes.saturating_add(copies),
        }
    }

    /// Bytes of a copy, with logits behind it.
    pub(in crate::backend::cuda) fn copy_bytes(&self, n_vocab: usize) -> u64 {
        self.bytes + (n_vocab as u64 * 4).next_multiple_of(ALIGNMENT)
    }
}
