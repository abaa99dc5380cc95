//! The floating-point environment that the library computes in.
//!
//! A host may have set another rounding mode, unmasked exceptions, or had subnormal numbers flushed
//! to zero, on its own threads and, by inheritance, on those that they start. Rust assumes the
//! default environment. So the library sets it where it begins to compute, and restores the host's
//! where it ends.

/// The default environment, until dropped: rounding to nearest, exceptions masked, subnormal
/// numbers kept. Then the thread has the environment that it had before.
///
/// It belongs to the thread that made it. Those of a thread are dropped in reverse order.
pub struct FloatEnv {
    before: control::Word,
    /// Not to be sent to another thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl FloatEnv {
    /// Sets the default environment on this thread.
    #[must_use]
    pub fn standard() -> FloatEnv {
        let before = control::get();
        if before != control::STANDARD {
            control::set(control::STANDARD);
        }
        FloatEnv {
            before,
            _thread: std::marker::PhantomData,
        }
    }
}

impl Drop for FloatEnv {
    fn drop(&mut self) {
        // The exceptions that were noted meanwhile are the library's own; the host sees none.
        if control::get() != self.before {
            control::set(self.before);
        }
    }
}

/// x86-64: MXCSR.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub type Word = u32;

    /// All exceptions masked and none noted, rounding to nearest, subnormal numbers kept.
    pub const STANDARD: Word = 0x1f80;

    pub fn get() -> Word {
        let mut word: Word = 0;
        // SAFETY: stores 32 bits to a variable; SSE is part of x86-64.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    pub fn set(word: Word) {
        // SAFETY: loads 32 bits from a variable. They are the default environment, which Rust code
        // assumes, or what the register held before, so no reserved bit is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

/// AArch64: FPCR and FPSR.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub type Word = [u64; 2];

    /// No traps, rounding to nearest, subnormal numbers kept; no exceptions noted.
    pub const STANDARD: Word = [0, 0];

    pub fn get() -> Word {
        let (control, status);
        // SAFETY: reads two registers.
        unsafe {
            asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags));
            asm!("mrs {}, fpsr", out(reg) status, options(nomem, nostack, preserves_flags));
        }
        [control, status]
    }

    pub fn set([control, status]: Word) {
        // SAFETY: sets the default environment, which Rust code assumes, or what the registers held
        // before.
        unsafe {
            asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags));
            asm!("msr fpsr, {}", in(reg) status, options(nostack, preserves_flags));
        }
    }
}

/// Elsewhere the host's environment is left as it is.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub type Word = ();
    pub const STANDARD: Word = ();
    pub fn get() -> Word {}
    pub fn set(_: Word) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_environment_is_set_and_restored() {
        let round_up = 0x5f80;
        control::set(round_up);
        let env = FloatEnv::standard();
        let inside = control::get();
        let nested = FloatEnv::standard();
        drop(nested);
        let still = control::get();
        drop(env);
        let after = control::get();
        control::set(control::STANDARD);
        assert_eq!((inside, still, after), (0x1f80, 0x1f80, round_up));
    }
}
