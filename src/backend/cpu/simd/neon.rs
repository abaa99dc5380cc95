//! NEON: four registers a value.

use super::Lanes;
use std::arch::aarch64::*;
use std::arch::asm;

/// Lanes 0..4, 4..8, 8..12 and 12..16.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; 4]);

/// Applies an expression to each of the four registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        Neon([
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ])
    };
}

/// Four halves as singles. (The intrinsic needs a newer compiler; the instruction is base ARMv8.)
#[inline(always)]
unsafe fn widen(h: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: a pure computation on vector registers.
    unsafe {
        asm!("fcvtl {o:v}.4s, {i:v}.4h", o = out(vreg) out, i = in(vreg) h, options(pure, nomem, nostack))
    };
    out
}

/// Four singles as halves, rounded to nearest even (the mode that Rust runs in).
#[inline(always)]
unsafe fn narrow(x: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: a pure computation on vector registers.
    unsafe {
        asm!("fcvtn {o:v}.4h, {i:v}.4s", o = out(vreg) out, i = in(vreg) x, options(pure, nomem, nostack))
    };
    out
}

// SAFETY: NEON is part of every aarch64. All methods that take a pointer demand `LANES` elements there.
unsafe impl Lanes for Neon {
    const MANY: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { Neon([vdupq_n_f32(x); 4]) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { each!(I => vld1q_f32(p.add(4 * I))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: by contract, the processor has the features, and `p` has the elements.
        unsafe { each!(I => widen(vld1_u16(p.add(4 * I)))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, v) in self.0.into_iter().enumerate() {
            // SAFETY: by contract, the processor has the features, and `p` has the elements.
            unsafe { vst1q_f32(p.add(4 * i), v) };
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        for (i, v) in self.0.into_iter().enumerate() {
            // SAFETY: by contract, the processor has the features, and `p` has the elements.
            unsafe { vst1_u16(p.add(4 * i), narrow(v)) };
        }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vaddq_f32(self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vsubq_f32(self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vmulq_f32(self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vdivq_f32(self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vfmaq_f32(b.0[I], self.0[I], a.0[I])) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vbslq_f32(vcgtq_f32(self.0[I], o.0[I]), self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe { each!(I => vbslq_f32(vcltq_f32(self.0[I], o.0[I]), self.0[I], o.0[I])) }
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, o: Self) -> Self {
        const INDEX: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: by contract, the processor has the features; INDEX has 16 elements.
        unsafe {
            let n = vdupq_n_u32(n as u32);
            each!(I => vbslq_f32(vcltq_u32(vld1q_u32(INDEX.as_ptr().add(4 * I)), n), self.0[I], o.0[I]))
        }
    }
    #[inline(always)]
    unsafe fn exponent(self, bias: i32) -> Self {
        // SAFETY: by contract, the processor has the features.
        unsafe {
            let bias = vdupq_n_s32(bias);
            each!(I => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vreinterpretq_s32_f32(self.0[I]), bias))))
        }
    }
}
