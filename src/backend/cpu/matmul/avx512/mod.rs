//! The products with AVX-512 and VNNI.
//!
//! Few tokens: a vector holds the group sums of one or two rows ([`matvec`]). More: rows are
//! unpacked into a panel and a vector holds 16 rows ([`gemm`]).

// Iterator adapters are compiled without the vector features and then not inlined into functions
// that have them; loops over indices cost nothing.
#![allow(clippy::needless_range_loop)]

mod float;
mod gemm;
mod matvec;
mod transpose;
mod unpack;

use super::Job;
use super::types::with_format;

/// Up to this many tokens, rows are read in place; above, they are unpacked first.
const MATVEC_TOKENS: usize = 4;

/// Whether this processor runs them.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// The product.
///
/// # Safety
/// `job` was checked by [`super::View::mul`]; [`available`].
pub(super) unsafe fn mul(job: &Job) {
    // SAFETY: by contract, `View::mul` has checked `job`, and the processor has the features.
    unsafe {
        with_format!(job.ty, F => {
            if job.tokens.len() <= MATVEC_TOKENS {
                matvec::mul::<F>(job)
            } else {
                gemm::mul::<F>(job)
            }
        }, _ => float::mul(job))
    }
}
