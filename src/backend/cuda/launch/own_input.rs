//! The part of a layer with an input of its own, and its launch for one session: by one kernel (`kernels/own_input.cuh`), where there is one.

use super::args::{self, INPUT_BYTES, OWN_BLOCKS};
use super::kernel_id::KernelId;
use super::kernels::{Kernels, WARPS, WIDEST_SUM};
use super::matrix::{Matrix, slices};
use super::record::RecordType;
use crate::backend::cuda::driver::Stream;
use crate::error::{Result, fail};

/// At least the static shared memory of a block.
const STATIC_SHARED: usize = 1024;

/// What a layer makes of its own input on the device.
#[derive(Clone, Debug)]
pub struct LayerInputPlan {
    /// From the residual stream.
    pub gate: Matrix,
    /// Of what it leaves.
    pub activation: args::Activation,
    /// To it.
    pub projection: Matrix,
    /// Of the projection's output.
    pub post_norm: Option<args::Norm>,
}

/// A matrix of one type without biases, whose rows blocks can share, with the bytes that a block has of it.
fn own_matrix(matrix: &Matrix) -> Option<(args::OwnMatrix, RecordType, u32)> {
    let [segment] = &matrix.segments[..] else {
        return None;
    };
    if matrix.bias != 0 || !segment.rows.is_multiple_of(OWN_BLOCKS * 4) || segment.ty.is_float() {
        return None;
    }
    let (n_slices, full, last) = slices(segment.ty, matrix.groups);
    let own = args::OwnMatrix {
        matrix: segment.address,
        rows: segment.rows,
        n_slices,
        full,
        last,
        full_bytes: segment.ty.record_bytes(full) as u32,
        last_bytes: segment.ty.record_bytes(last) as u32,
    };
    let bytes = segment.rows / OWN_BLOCKS * ((n_slices - 1) * own.full_bytes + own.last_bytes);
    Some((own, segment.ty, bytes))
}

impl Kernels {
    /// Makes the kernels known where the device can run them.
    pub(super) fn find_own_inputs(&mut self) -> Result<()> {
        let properties = self.context().properties();
        if properties.capability.0 < 9 {
            return Ok(());
        }
        let most = properties.shared_bytes - STATIC_SHARED;
        for ty in RecordType::SUMMED {
            self.find(KernelId::OwnInput { ty }, most)?;
        }
        Ok(())
    }

    /// The launch for a layer's part of a network of this width: its arguments, shared memory and type; `None` where there is no
    /// kernel for it.
    pub(in crate::backend::cuda) fn plan_own(
        &self,
        own: &LayerInputPlan,
        width: u32,
    ) -> Option<(args::OwnInput, usize, RecordType)> {
        let (gate, ty, gate_bytes) = own_matrix(&own.gate)?;
        let (projection, other, projection_bytes) = own_matrix(&own.projection)?;
        let fits = ty == other
            && width <= WIDEST_SUM
            && own.gate.groups * 32 == width
            && projection.rows == width
            && projection.n_slices == 1
            && own.projection.groups * 32 == gate.rows;
        let input_at = gate_bytes + projection_bytes;
        let inner_at = (input_at + own.gate.groups * INPUT_BYTES).next_multiple_of(16);
        let own_at = (inner_at + own.projection.groups * INPUT_BYTES).next_multiple_of(16);
        let floats = gate.rows / OWN_BLOCKS * (1 + gate.n_slices) + width / OWN_BLOCKS;
        let shared = (own_at + floats * 4) as usize;
        let most = self.context().properties().shared_bytes - STATIC_SHARED;
        let args = args::OwnInput {
            gate,
            projection,
            norm: own.post_norm.unwrap_or_default(),
            inverse_len: 1.0 / width as f32,
            groups: own.gate.groups,
            projection_at: gate_bytes,
            input_at,
            inner_at,
            own_at,
            activation: own.activation,
            ..Default::default()
        };
        let is_there = self.has(KernelId::OwnInput { ty });
        (fits && shared <= most && is_there).then_some((args, shared, ty))
    }

    /// Enqueues it. The other arguments are as `args` says.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub(in crate::backend::cuda) unsafe fn own_input(
        &self,
        stream: &Stream,
        own: &LayerInputPlan,
        width: u32,
        args: args::OwnInput,
    ) -> Result<()> {
        let Some((plan, shared, ty)) = self.plan_own(own, width) else {
            fail!(Internal, "a layer's own input does not fit");
        };
        let args = args::OwnInput {
            x: args.x,
            added: args.added,
            own: args.own,
            out: args.out,
            scale: args.scale,
            out_scale: args.out_scale,
            ..plan
        };
        let (grid, threads) = ((OWN_BLOCKS, 1, 1), (WARPS * 32) as u32);
        // SAFETY: by contract, the arguments are what the kernel expects, and its addresses are valid.
        unsafe {
            self.launch(
                stream,
                KernelId::OwnInput { ty },
                grid,
                threads,
                shared,
                &args,
            )
        }
    }
}
