//! The residual stream at the ends of a part of a network: rows of floats between host memory and the device.

use crate::backend::cuda::driver::Stream;
use crate::backend::cuda::launch::span::Span;
use crate::error::{Result, try_vec};

/// What is wrong where there is no memory.
const WHAT: &str = "rows of the residual stream";

/// Enqueues the copy of rows of `width` floats to `to`, with zeros behind each as far as the next one. They are read before this
/// returns, or, if they are in pinned memory, before the stream is idle.
///
/// # Safety
/// There is room for the rows at `to`, which no other work uses until the copy is done. Pinned rows stay as they are until then.
pub(in crate::backend::cuda) unsafe fn enter(
    stream: &Stream,
    rows: &[f32],
    width: usize,
    to: Span,
) -> Result<()> {
    let stride = to.stride as usize;
    let mut padded = Vec::new();
    let rows = match stride == width {
        true => rows,
        false => {
            padded = try_vec(rows.len() / width * stride, 0.0, WHAT)?;
            for (to, from) in padded
                .chunks_exact_mut(stride)
                .zip(rows.chunks_exact(width))
            {
                to[..width].copy_from_slice(from);
            }
            &padded[..]
        }
    };
    // SAFETY: by contract, `to` has room for the rows, no other work uses it until the copy is done, and pinned memory
    // stays as it is until then; other memory is read before the call returns.
    let copied = unsafe { stream.copy_in(to.address, rows.as_ptr().cast(), size_of_val(rows)) };
    drop(padded);
    copied
}

/// Copies rows of `width` floats from `from`, and waits for that.
///
/// # Safety
/// The rows at `from` are those of work that was enqueued before.
pub(in crate::backend::cuda) unsafe fn leave(
    stream: &Stream,
    from: Span,
    width: usize,
    rows: &mut [f32],
) -> Result<()> {
    let stride = from.stride as usize;
    let mut padded = Vec::new();
    let to = match stride == width {
        true => &mut *rows,
        false => {
            padded = try_vec(rows.len() / width * stride, 0.0, WHAT)?;
            &mut padded[..]
        }
    };
    // SAFETY: by contract, work that was enqueued before makes the rows at `from`; the memory stays
    // until the copy is done, which is awaited.
    unsafe { stream.copy_out(to.as_mut_ptr().cast(), from.address, size_of_val(to))? };
    stream.synchronize()?;
    if stride != width {
        for (to, from) in rows
            .chunks_exact_mut(width)
            .zip(padded.chunks_exact(stride))
        {
            to.copy_from_slice(&from[..width]);
        }
    }
    Ok(())
}
