//! The unit of the residual stream.
//!
//! Some families scale what each part adds by a factor `r`. With `x / r` in place of `x`, parts add what they make as it
//! is: `x + r * f(norm(x))` becomes `x / r + f(norm(x))`, and an RMS norm of `x / r` is that of `x` if its epsilon is
//! divided by `r^2`. A product's sum with the residual stream then needs no pass of its own.

use super::{Block, Network, Norm, NormKind};

impl Network {
    /// Measures the residual stream in units of the factor on what parts add, if all parts have the same factor and nothing
    /// reads the stream but RMS norms. [`Network::residual_unit`] is that factor then.
    pub(super) fn scale_residual_unit(&mut self) {
        let Some(unit) = self.common_scale() else {
            return;
        };
        let square = unit * unit;
        let embedding_scale = self.embedding_scale / unit;
        let of_blocks = self.blocks.iter();
        let of_blocks = of_blocks.flat_map(|b| b.mixer_norm.iter().chain(&b.feed_forward_norm));
        let fits = |norm: &Norm| norm.kind == NormKind::Rms && (norm.eps / square).is_normal();
        let fit = of_blocks.chain([&self.final_norm]).all(fits);
        if !embedding_scale.is_normal() || !fit {
            return;
        }
        for block in &mut self.blocks {
            block.residual_scale = 1.0;
            for norm in [&mut block.mixer_norm, &mut block.feed_forward_norm] {
                norm.iter_mut().for_each(|norm| norm.eps /= square);
            }
        }
        self.final_norm.eps /= square;
        self.embedding_scale = embedding_scale;
        self.residual_unit = unit;
    }

    /// The factor that all parts have on what they add, if it is not 1 and another unit can stand for it.
    fn common_scale(&self) -> Option<f32> {
        let unit = self.blocks.first()?.residual_scale;
        let begins_apart = self.positions.is_some()
            || self.embedding_norm.is_some()
            || self.per_layer.is_some()
            || self.streams.is_some()
            || self.entry.is_some()
            || self.predictor.is_some()
            || self.encoder.is_some();
        let fits = |block: &Block| {
            let feeds = block.feed_forward_norm.is_some() || block.parallel;
            block.residual_scale == unit
                && block.output_scale == 1.0
                && block.mixer_norm.is_some()
                && feeds
                && block.mixer_sum_norm.is_none()
                && block.feed_forward_sum_norm.is_none()
        };
        (unit != 1.0 && !begins_apart && self.blocks.iter().all(fits)).then_some(unit)
    }
}
