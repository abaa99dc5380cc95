//! Plain Rust, for processors without a path of their own and as the reference of the others.

use super::{LANES, Lanes};
use half::f16;

/// An array of lanes.
#[derive(Clone, Copy)]
pub struct Scalar([f32; LANES]);

#[inline(always)]
fn zip(a: Scalar, b: Scalar, f: impl Fn(f32, f32) -> f32) -> Scalar {
    Scalar(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

// SAFETY: needs no processor features.
unsafe impl Lanes for Scalar {
    const MANY: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Scalar([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract, `p` has `LANES` elements.
        unsafe { Scalar(p.cast::<[f32; LANES]>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: by contract, `p` has `LANES` elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Scalar(bits.map(|b| f16::from_bits(b).to_f32()))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: by contract, `p` has `LANES` elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        let bits = self.0.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: by contract, `p` has `LANES` elements.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        zip(self, o, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        zip(self, o, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        zip(self, o, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        zip(self, o, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        zip(self, o, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        zip(self, o, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, o: Self) -> Self {
        Scalar(std::array::from_fn(
            |i| if i < n { self.0[i] } else { o.0[i] },
        ))
    }
    #[inline(always)]
    unsafe fn exponent(self, bias: i32) -> Self {
        Scalar(
            self.0
                .map(|x| f32::from_bits(x.to_bits().wrapping_add(bias as u32) << 23)),
        )
    }
}
