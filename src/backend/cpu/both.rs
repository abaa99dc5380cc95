//! A feed-forward for all tokens beside a mixture of experts: both read the same residual stream, and a norm of each
//! one's output goes into the sum.
//!
//! While the sum comes together it is where the residual stream was, which is held apart.

use super::elementwise::add_scaled;
use super::experts::ExpertLayer;
use super::layer::{DenseLayer, NormWeights};
use super::matmul::Isa;
use super::pass::{Pass, Post, Rows};
use super::pool::Work;
use super::profile::product_bytes;
use crate::backend::Work as Kind;
use crate::error::Result;
use crate::model::DenseAndExperts;

/// Both parts of a layer.
pub(super) struct BothLayer {
    mlp: DenseLayer,
    mlp_post_norm: NormWeights,
    router_norm: NormWeights,
    experts_norm: NormWeights,
    experts: ExpertLayer,
    experts_post_norm: NormWeights,
}

impl BothLayer {
    /// Takes both over; reads only the small tensors.
    pub fn new(both: &DenseAndExperts, isa: Isa) -> Result<BothLayer> {
        Ok(BothLayer {
            mlp: DenseLayer::new(&both.mlp, isa)?,
            mlp_post_norm: NormWeights::new(&both.mlp_post_norm)?,
            router_norm: NormWeights::new(&both.router_norm)?,
            experts_norm: NormWeights::new(&both.experts_norm)?,
            experts: ExpertLayer::new(&both.experts, isa)?,
            experts_post_norm: NormWeights::new(&both.experts_post_norm)?,
        })
    }

    /// Adds `post` of the sum of both to the residual stream. `norm` is that before the first.
    pub fn run(&self, pass: &Pass, norm: Option<&NormWeights>, post: Post) -> Result<()> {
        let (mlp, experts) = (&self.mlp, &self.experts);
        let b = &pass.tokens.buffers;
        pass.hold()?;
        pass.inner(norm, mlp)?;
        let inner = Rows {
            span: b.gate,
            width: mlp.up.matrix.rows(),
            stride: b.sizes.n_ff,
        };
        pass.clear_residual()?;
        pass.add_product(inner, &mlp.down, own(&self.mlp_post_norm))?;
        pass.marks.end(Kind::Down, || product_bytes([&mlp.down]));

        let held = Pass {
            held: true,
            ..*pass
        };
        let router = experts.router.matrix.encodings();
        pass.encode(Some(&self.router_norm), held.input(), router)?;
        pass.tokens.experts.score(pass, experts)?;
        let inputs = experts.input_encodings;
        pass.encode(Some(&self.experts_norm), held.input(), inputs)?;
        pass.marks.end_norm(Some(&self.experts_norm));
        pass.tokens.experts.run_scored(pass, experts)?;
        pass.add_outputs(own(&self.experts_post_norm))?;
        add_to_held(pass, post)?;
        let down = || experts.bytes_per_token().1;
        pass.marks.end(Kind::Down, down);
        Ok(())
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let norms = [
            &self.mlp_post_norm,
            &self.router_norm,
            &self.experts_norm,
            &self.experts_post_norm,
        ];
        let norms: usize = norms.into_iter().map(NormWeights::floats).sum();
        norms + self.mlp.floats() + self.experts.vector_len()
    }
}

/// What becomes of the output of one of both.
fn own(norm: &NormWeights) -> Post<'_> {
    Post {
        norm: Some(norm),
        scale: 1.0,
    }
}

/// The residual stream becomes what it was when it was held, with `post` of what it is now added.
fn add_to_held(pass: &Pass, post: Post) -> Result<()> {
    let (tokens, b) = (pass.tokens, &pass.tokens.buffers);
    let hidden = b.sizes.hidden;
    let work = Work::even(tokens.count, 50 + hidden as u64 / 4);
    pass.phase(work, move |me, range| {
        for t in range {
            // SAFETY: each token is one thread's. The weights' instruction set is the processor's.
            unsafe {
                let (x, held) = (
                    b.x.part(t * hidden, hidden),
                    b.held.part(t * hidden, hidden),
                );
                let sum = match post.norm {
                    Some(norm) => norm.apply(tokens.isa(), x, &mut me.row),
                    None => &*x,
                };
                add_scaled(held, sum, None, post.scale);
                x.copy_from_slice(held);
            }
        }
    })
}
