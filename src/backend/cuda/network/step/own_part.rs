//! The part of a layer with an input of its own, where one kernel does all of it.

use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::backend::cuda::network::step::StepOperations;
use crate::backend::cuda::network::walk::Addition;
use crate::error::Result;

impl StepOperations<'_> {
    /// The part of layer `layer` that has an input of its own, with what is still to be added to the residual stream, if one kernel
    /// does that. Whether it does is the answer.
    pub(super) fn whole_own_part(
        &self,
        layer: usize,
        own: &LayerInputPlan,
        addition: &Addition,
    ) -> Result<bool> {
        let e = &self.eval;
        let width = e.plan.hidden;
        let takes = self.batch == 1
            && e.link.is_none()
            && addition.is_of_residual()
            && !e.adapts(&own.gate)
            && !e.adapts(&own.projection)
            && e.kernels.plan_own(own, width).is_some();
        if !takes {
            return Ok(false);
        }
        let rows = self.rows();
        let residual = rows.residual.address;
        let (x, added) = match self.waiting.take() {
            Some(first) => {
                let added = args::RowSum {
                    norm: first.norm.unwrap_or_default(),
                    base: residual,
                    sum: 0,
                    scale: first.scale,
                    out_scale: first.out_scale,
                };
                (rows.of(first.from).address, added)
            }
            None => (residual, args::RowSum::default()),
        };
        let args = args::OwnInput {
            x,
            added,
            own: own.weighted(layer, &rows).gate,
            out: residual,
            scale: addition.scale,
            out_scale: addition.out_scale,
            ..Default::default()
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe { e.kernels.own_input(e.stream, own, width, args)? };
        Ok(true)
    }
}
