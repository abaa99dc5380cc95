//! The rows that the parts of a layer leave for each other.

use crate::backend::cuda::launch::span::Span;

/// Rows of f32 that one operation leaves for another, one row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cuda) enum Rows {
    /// The residual stream, as wide as the network.
    Residual,
    /// The residual stream with the mixer's part added, which a parallel block keeps apart until its
    /// feed-forward part has read the stream, too.
    Branch,
    /// The outputs of the last product, as wide as the widest.
    Wide,
    /// Those of a part's last product, as wide as the network, where they are not added as they are. The next product may read them
    /// while it writes `Wide`.
    Part,
    /// The outputs of a shared expert, as wide as the network; or the sum of those of experts with a width of their own.
    SharedExpert,
}

/// Where the rows of each kind are.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct AllRows {
    pub residual: Span,
    pub branch: Span,
    pub wide: Span,
    pub part: Span,
    pub shared_expert: Span,
    /// Of the layers' own inputs, one behind the other.
    pub inputs: Span,
    /// Of all residual streams, one behind the other, where there are several.
    pub streams: Span,
    /// Of embeddings and hidden states side by side, which the layer of a head of EAGLE-3 reads.
    pub entry: Span,
}

impl AllRows {
    /// Those of one kind.
    pub fn of(&self, rows: Rows) -> Span {
        match rows {
            Rows::Residual => self.residual,
            Rows::Branch => self.branch,
            Rows::Wide => self.wide,
            Rows::Part => self.part,
            Rows::SharedExpert => self.shared_expert,
        }
    }
}
