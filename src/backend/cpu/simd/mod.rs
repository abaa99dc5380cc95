//! Sixteen `f32` lanes, the same on every processor.
//!
//! Norms, activations and attention are written once over [`Lanes`] and compiled once per
//! instruction set. Every operation is exact IEEE (fused multiply-add included) and works lane by
//! lane; sums over lanes use one fixed tree. So all instruction sets give the same bits.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// What lanes are loaded from.
pub trait Number: Copy + Default {
    /// Lanes of these numbers.
    ///
    /// # Safety
    /// As of [`Lanes`].
    unsafe fn load<L: Lanes>(p: *const Self) -> L;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const f32) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }
}

impl Number for half::f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const half::f16) -> L {
        // SAFETY: the caller's promise; the type is its bits.
        unsafe { L::load_f16(p.cast()) }
    }
}

impl Number for half::bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const half::bf16) -> L {
        // SAFETY: the caller's promise; the type is its bits.
        unsafe { L::load_bf16(p.cast()) }
    }
}

/// Lanes of a [`Lanes`] value.
pub const LANES: usize = 16;

/// Sixteen `f32` lanes.
///
/// # Safety
/// All methods need the processor features of the implementing type, and must be inlined into a
/// function that enables them (see [`simd_kernel`]). Loads and stores need `LANES` valid elements;
/// no alignment is needed.
pub unsafe trait Lanes: Copy {
    /// Whether the register file holds 32 values of this type, and not about 8.
    const MANY: bool;
    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Lanes from memory.
    unsafe fn load(p: *const f32) -> Self;
    /// Lanes from memory in half precision (exact).
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Lanes from memory in bfloat16 (exact).
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller vouches for LANES elements, and the array has as many.
        unsafe {
            let bits = p.cast::<[u16; LANES]>().read_unaligned();
            let wide = bits.map(|b| f32::from_bits(u32::from(b) << 16));
            Self::load(wide.as_ptr())
        }
    }
    /// Lanes to memory.
    unsafe fn store(self, p: *mut f32);
    /// Lanes to memory, rounded to the nearest half, ties to even.
    unsafe fn store_f16(self, p: *mut u16);
    /// `self + o`
    unsafe fn add(self, o: Self) -> Self;
    /// `self - o`
    unsafe fn sub(self, o: Self) -> Self;
    /// `self * o`
    unsafe fn mul(self, o: Self) -> Self;
    /// `self / o`
    unsafe fn div(self, o: Self) -> Self;
    /// `self * a + b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// `self > o ? self : o`; so `o` if either is not a number.
    unsafe fn max(self, o: Self) -> Self;
    /// `self < o ? self : o`; so `o` if either is not a number.
    unsafe fn min(self, o: Self) -> Self;
    /// Lanes `0..n` of `self`, the rest of `o`.
    unsafe fn first(self, n: usize, o: Self) -> Self;
    /// The bits of each lane, as an integer, plus `bias`, shifted left by 23.
    unsafe fn exponent(self, bias: i32) -> Self;

    /// Sum over the lanes: `i + (i+8)`, then `i + (i+4)`, `i + (i+2)`, `i + (i+1)`.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut v = [0f32; LANES];
        // SAFETY: the array has LANES elements.
        unsafe { self.store(v.as_mut_ptr()) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] += v[i + half];
            }
            half /= 2;
        }
        v[0]
    }

    /// Largest lane (any order gives the same value).
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let mut v = [0f32; LANES];
        // SAFETY: the array has LANES elements.
        unsafe { self.store(v.as_mut_ptr()) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                v[i] = if v[i] > v[i + half] {
                    v[i]
                } else {
                    v[i + half]
                };
            }
            half /= 2;
        }
        v[0]
    }

    /// Lanes `0..n` from memory, the rest zero.
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut v = [0f32; LANES];
        // SAFETY: by contract, `p` has `n` elements, and `n` is at most `LANES`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n);
            Self::load(v.as_ptr())
        }
    }

    /// Lanes `0..n` to memory.
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        let mut v = [0f32; LANES];
        // SAFETY: by contract, `p` has `n` elements, and `n` is at most `LANES`.
        unsafe {
            self.store(v.as_mut_ptr());
            std::ptr::copy_nonoverlapping(v.as_ptr(), p, n);
        }
    }

    /// `e` to the power of each lane, relative error below 2e-7 between -87 and 88; arguments
    /// outside are treated as those limits. Not a number stays not a number.
    ///
    /// `x = n ln 2 + r`, a polynomial of degree 6 in `r`, times `2^n`.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: same features as the caller's.
        unsafe {
            // The limits come first, so that a NaN in the second operand survives.
            let x = Self::splat(88.0).min(Self::splat(-87.0).max(self));
            // Adding 1.5 * 2^23 rounds to an integer that stands in the low bits of the sum.
            let magic = Self::splat(12_582_912.0);
            let t = x.fma(Self::splat(std::f32::consts::LOG2_E), magic);
            let n = t.sub(magic);
            // ln 2 in two parts, the first short enough that its product with n is exact.
            let r = n.fma(Self::splat(-0.693_145_75), x);
            let r = n.fma(Self::splat(-1.428_606_8e-6), r);
            let mut p = Self::splat(1.0 / 720.0);
            for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
                p = p.fma(r, Self::splat(c));
            }
            p.mul(t.exponent(127))
        }
    }

    /// Hyperbolic tangent of each lane, within 2e-7: `1 - 2 / (1 + exp(2 x))`.
    #[inline(always)]
    unsafe fn tanh(self) -> Self {
        // SAFETY: same features as the caller's.
        unsafe {
            let (one, two) = (Self::splat(1.0), Self::splat(2.0));
            one.sub(two.div(one.add(self.add(self).exp())))
        }
    }
}

/// Defines `unsafe fn name(isa: Isa, ...)` that runs `generic::<L>(...)` with the lanes of `isa`,
/// each compiled with the features that they need. A further type parameter goes into brackets
/// behind the name.
macro_rules! simd_kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $([$e:ident: $bound:path])? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$e: $bound>)? (isa: $crate::backend::cpu::matmul::Isa, $($arg: $ty),*) $(-> $ret)? {
            use $crate::backend::cpu::matmul::Isa;
            use $crate::backend::cpu::simd;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            unsafe fn avx512 $(<$e: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the function has the same contract.
                unsafe { $generic::<simd::Avx512 $(, $e)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2 $(<$e: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the function has the same contract.
                unsafe { $generic::<simd::Avx2 $(, $e)?>($($arg),*) }
            }
            // SAFETY: by contract, the processor has `isa`, and what the function demands holds.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512Vnni => avx512 $(::<$e>)? ($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2 $(::<$e>)? ($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon => $generic::<simd::Neon $(, $e)?>($($arg),*),
                    _ => $generic::<simd::Scalar $(, $e)?>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use simd_kernel;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::matmul::Isa;

    unsafe fn exp_generic<L: Lanes>(x: *const f32, out: *mut f32) {
        // SAFETY: both arrays have LANES elements.
        unsafe { L::load(x).exp().store(out) }
    }
    simd_kernel! { fn exp_kernel(x: *const f32, out: *mut f32) = exp_generic }

    unsafe fn half_generic<L: Lanes>(x: *const f32, half: *mut u16, out: *mut f32) {
        // SAFETY: all arrays have LANES elements.
        unsafe {
            L::load(x).store_f16(half);
            L::load_f16(half).store(out);
        }
    }
    simd_kernel! { fn half_kernel(x: *const f32, half: *mut u16, out: *mut f32) = half_generic }

    unsafe fn misc_generic<L: Lanes>(x: *const f32, n: usize, out: *mut f32) {
        // SAFETY: x has LANES elements, out 4 * LANES.
        unsafe {
            let v = L::load(x);
            v.first(n, L::splat(-1.0)).store(out);
            L::splat(v.sum()).store(out.add(LANES));
            L::splat(v.largest()).store(out.add(2 * LANES));
            L::load_first(x, n).store(out.add(3 * LANES));
        }
    }
    simd_kernel! { fn misc_kernel(x: *const f32, n: usize, out: *mut f32) = misc_generic }

    fn numbers(n: usize, scale: f32) -> Vec<f32> {
        let mut state = 0x1234_5678_9abc_def0u64;
        (0..n)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
            })
            .collect()
    }

    #[test]
    fn exp_is_accurate_and_the_same_everywhere() {
        for scale in [1e-3f32, 1.0, 10.0, 86.9] {
            for x in numbers(1600, scale).chunks(LANES) {
                let mut reference = [0f32; LANES];
                let mut out = [0f32; LANES];
                // SAFETY: chunks and arrays of LANES elements; both sets exist here.
                unsafe {
                    exp_kernel(Isa::Scalar, x.as_ptr(), reference.as_mut_ptr());
                    exp_kernel(Isa::detect(), x.as_ptr(), out.as_mut_ptr());
                }
                for i in 0..LANES {
                    let exact = f64::from(x[i]).exp();
                    assert!(
                        (f64::from(reference[i]) - exact).abs() <= 2e-7 * exact,
                        "exp({})",
                        x[i]
                    );
                    assert_eq!(reference[i].to_bits(), out[i].to_bits());
                }
            }
        }
        let x = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            0.0,
            200.0,
            -200.0,
            1.0,
            -1.0,
            88.0,
            -87.0,
            0.5,
            0.25,
            -0.0,
            1e-30,
            -1e-30,
            3.0,
        ];
        for isa in [Isa::Scalar, Isa::detect()] {
            let mut out = [0f32; LANES];
            // SAFETY: arrays of LANES elements.
            unsafe { exp_kernel(isa, x.as_ptr(), out.as_mut_ptr()) };
            assert!(out[0].is_nan());
            assert!(out[1].is_finite() && out[1] > 1e38);
            assert!(out[2] > 0.0 && out[2] < 2e-38);
            assert_eq!((out[3], out[12]), (1.0, 1.0));
        }
    }

    #[test]
    fn halves_round_to_nearest_even() {
        let mut values = numbers(1600, 1.0);
        values.extend(numbers(1600, 6e-5));
        values.extend(numbers(1600, 7e4));
        values.extend([
            1.0 + 1.0 / 2048.0,
            1.0 + 3.0 / 2048.0,
            65519.0,
            65520.0,
            0.0,
            -0.0,
            3e-8,
            2.9e-8,
            f32::INFINITY,
            f32::NEG_INFINITY,
            6e-8,
            5.9e-8,
            1e-20,
            -1e-20,
            1e30,
            -1e30,
        ]);
        for x in values.chunks(LANES) {
            let (mut half, mut out) = ([0u16; LANES], [0f32; LANES]);
            // SAFETY: arrays of LANES elements.
            unsafe {
                half_kernel(
                    Isa::detect(),
                    x.as_ptr(),
                    half.as_mut_ptr(),
                    out.as_mut_ptr(),
                )
            };
            for i in 0..LANES {
                assert_eq!(half[i], half::f16::from_f32(x[i]).to_bits(), "{}", x[i]);
                assert_eq!(
                    out[i].to_bits(),
                    half::f16::from_bits(half[i]).to_f32().to_bits()
                );
            }
        }
    }

    #[test]
    fn lane_operations_are_the_same_everywhere() {
        for (k, x) in numbers(16 * 17, 5.0).chunks(LANES).enumerate() {
            let (mut a, mut b) = ([0f32; 4 * LANES], [0f32; 4 * LANES]);
            // SAFETY: x has LANES elements, the outputs four times as many.
            unsafe {
                misc_kernel(Isa::Scalar, x.as_ptr(), k, a.as_mut_ptr());
                misc_kernel(Isa::detect(), x.as_ptr(), k, b.as_mut_ptr());
            }
            assert_eq!(a.map(f32::to_bits), b.map(f32::to_bits));
            assert!((0..LANES).all(|i| a[i] == if i < k { x[i] } else { -1.0 }));
            assert_eq!(a[2 * LANES], x.iter().copied().fold(f32::MIN, f32::max));
        }
    }
}
