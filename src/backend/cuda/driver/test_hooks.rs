//! What tests of GPUs need that cannot be had from outside. Not in the shipped library (feature `test-hooks`).

use crate::error::{Result, fail};
use std::sync::atomic::{AtomicI64, Ordering};

/// The capability and shared memory of a block, of this card or of an older one, such as `8.0`, that newer ones are to be
/// taken for: `EMBERLM_CUDA_CAPABILITY`. The kernels must have been compiled for it (`build/cuda.rs`).
pub(super) fn older(capability: (i32, i32), shared_bytes: usize) -> Result<((i32, i32), usize)> {
    let Some(text) = std::env::var_os("EMBERLM_CUDA_CAPABILITY") else {
        return Ok((capability, shared_bytes));
    };
    let text = text.to_string_lossy();
    let numbers = text.split_once('.').map(|(a, b)| (a.parse(), b.parse()));
    let Some((Ok(major), Ok(minor))) = numbers else {
        fail!(
            InvalidArgument,
            "EMBERLM_CUDA_CAPABILITY is {text:?}, not like 8.0"
        );
    };
    let older = (major, minor);
    if older >= capability {
        return Ok((capability, shared_bytes));
    }
    Ok((older, shared_bytes.min(most_shared(older))))
}

/// Shared memory that a block may have on cards of this compute capability at most.
fn most_shared(capability: (i32, i32)) -> usize {
    match capability {
        (..=7, _) => 64 << 10,
        (8, 0 | 7) => 163 << 10,
        (8, _) => 99 << 10,
        _ => usize::MAX,
    }
}

/// Allocations until one fails on purpose; negative: none does.
static FAILING: AtomicI64 = AtomicI64::new(-1);

/// Lets the n-th allocation from now fail, on whatever device; negative: none.
pub(super) fn fail_allocation(n: i64) {
    FAILING.store(n, Ordering::Relaxed);
}

/// Counts an allocation; true if it is the one to fail.
pub(super) fn fails_now() -> bool {
    FAILING.load(Ordering::Relaxed) >= 0 && FAILING.fetch_sub(1, Ordering::Relaxed) == 0
}
