//! Experts of another width than the network's, beside a feed-forward for all tokens.

use super::experts::ExpertLayer;
use super::layer::{DenseLayer, NormWeights, Product, product};
use super::matmul::Isa;
use super::pass::{Pass, Post, Rows};
use super::profile::product_bytes;
use crate::backend::Work as Kind;
use crate::error::Result;
use crate::model::LatentExperts;

/// Such a part of a layer.
pub(super) struct LatentExpertLayer {
    enter: Product,
    experts: ExpertLayer,
    leave: Product,
    mlp: DenseLayer,
}

impl LatentExpertLayer {
    /// Takes a part over; reads only the small tensors.
    pub fn new(latent: &LatentExperts, isa: Isa) -> Result<LatentExpertLayer> {
        Ok(LatentExpertLayer {
            enter: product(&latent.enter, isa)?,
            experts: ExpertLayer::new(&latent.experts, isa)?,
            leave: product(&latent.leave, isa)?,
            mlp: DenseLayer::new(&latent.mlp, isa)?,
        })
    }

    /// Adds `post` of it to the residual stream, in two steps: no step reads the stream after the first one has changed it.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let (mlp, experts) = (&self.mlp, &self.experts);
        let b = &pass.tokens.buffers;
        let s = b.sizes;
        let router = experts.router.matrix.encodings();
        let encodings = router.union(self.enter.matrix.encodings());
        pass.encode(norm, pass.residual(), encodings)?;
        pass.tokens.experts.score(pass, experts)?;
        let input = Rows::of(b.k, &self.enter, s.kv);
        pass.products([&self.enter], [input])?;
        pass.inner(norm, mlp)?;
        let inner = Rows::of(b.gate, &mlp.up, s.n_ff);
        pass.add_product(inner, &mlp.down, post)?;
        pass.marks.end(Kind::Down, || product_bytes([&mlp.down]));
        pass.encode(None, input, experts.input_encodings)?;
        pass.tokens.experts.run_scored(pass, experts)?;
        // The experts' outputs are rows of their own width.
        let output = Rows {
            span: b.y,
            width: experts.hidden,
            stride: experts.hidden,
        };
        pass.add_product(output, &self.leave, post)?;
        let down = || experts.bytes_per_token().1 + product_bytes([&self.leave]);
        pass.marks.end(Kind::Down, down);
        Ok(())
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let biases = self.enter.bias_len() + self.leave.bias_len();
        biases + self.mlp.floats() + self.experts.vector_len()
    }
}
