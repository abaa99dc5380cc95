//! The products with AVX2, FMA and F16C.
//!
//! As with AVX-512: few tokens, rows in place ([`matvec`]); many, a panel of rows ([`gemm`]).
//! `vpmaddubsw` multiplies unsigned with signed bytes and adds pairs with saturation at 16 bits.
//! Codes up to 127 cannot reach that; types with larger ones are unpacked as signed numbers, and
//! their sign is moved to the activation, which is at least -127.

// See `avx512`.
#![allow(clippy::needless_range_loop)]

mod float;
mod gemm;
mod matvec;
mod unpack;

use super::Job;
use super::types::with_format;
use unpack::Unpack;

/// Up to this many tokens, rows are read in place; above, they are unpacked first.
const MATVEC_TOKENS: usize = 8;

/// Whether this processor runs them.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
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
            // Moving signs costs a panel what it gains.
            if job.tokens.len() <= MATVEC_TOKENS || <F as Unpack>::SIGNED {
                matvec::mul::<F>(job)
            } else {
                gemm::mul::<F>(job)
            }
        }, _ => float::mul(job))
    }
}
