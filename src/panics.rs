//! Turns panics into errors without a word on stderr.

use crate::error::{Error, Result, Status};
use crate::float_env::FloatEnv;
use crate::log::log;
use crate::memory;
use arrayvec::ArrayString;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// How many `catch` calls this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What the hook saw last on this thread. Not a `String`: a destructor would have to be registered,
    /// and glibc ends the process if it has no memory for that.
    static LAST: RefCell<ArrayString<MAX_TEXT>> = const { RefCell::new(ArrayString::new_const()) };
}

/// Longest text of a panic that is kept, in bytes; what is longer is cut.
const MAX_TEXT: usize = 400;

/// Appends as much as fits.
struct Cut<'a>(&'a mut ArrayString<MAX_TEXT>);

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut end = text.len().min(self.0.remaining_capacity());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.push_str(&text[..end]);
        Ok(())
    }
}

/// Runs `work`. A panic in it becomes an `Internal` error with the panic's message and place; the
/// host's panic hook sees nothing of it. What `work` was changing must not be used afterwards
/// unless it is known to be whole. [`memory::check`] in it is about what `work` does.
///
/// The border uses it around every exported function; a thread that the library starts has to use
/// it around everything it does.
pub fn catch<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    install_hook();
    let _call = memory::Call::begin();
    // What follows computes as on any other host.
    let _env = FloatEnv::standard();
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    result.unwrap_or_else(|payload| {
        // The drop of a payload can panic itself; a leak of a few bytes is the lesser evil.
        std::mem::forget(payload);
        let what = LAST.replace(ArrayString::new_const());
        log!(Error, "caught a bug in the library: {what}");
        Err(Error::new(
            Status::Internal,
            format!("a bug in the library: {what}"),
        ))
    })
}

/// Puts a hook before the present one (the host's, if it is a Rust program) that stays silent
/// inside `catch` and passes everything else on.
fn install_hook() {
    static ONCE: Once = Once::new();
    // The hook cannot be changed by a thread that panics, and such a thread prints anyway.
    if ONCE.is_completed() || std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = DEPTH.try_with(|d| d.get() > 0).unwrap_or(false);
            if !ours {
                return previous(info);
            }
            let payload = info.payload();
            let text = (payload.downcast_ref::<&str>().copied())
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("panic");
            let _ = LAST.try_with(|last| {
                let Ok(mut last) = last.try_borrow_mut() else {
                    return;
                };
                last.clear();
                let mut to = Cut(&mut last);
                // Writing into it does not fail.
                let _ = match info.location() {
                    Some(at) => write!(to, "{text} ({}:{})", at.file(), at.line()),
                    None => to.write_str(text),
                };
            });
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_place_survive() {
        let e = catch::<()>(|| panic!("wheel number {}", 3)).unwrap_err();
        assert_eq!(e.status, Status::Internal);
        assert!(e.message.contains("wheel number 3"), "{}", e.message);
        assert!(e.message.contains("panics.rs:"), "{}", e.message);
        assert_eq!(catch(|| Ok(5)), Ok(5));
    }

    #[test]
    fn payload_that_panics_in_its_drop_is_harmless() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let e = catch::<()>(|| std::panic::panic_any(Bomb)).unwrap_err();
        assert_eq!(e.status, Status::Internal);
    }

    /// Runs itself in a child process and looks at what that wrote.
    #[test]
    fn nothing_is_printed() {
        const MARK: &str = "EMBERLM_TEST_PANIC_CHILD";
        if std::env::var_os(MARK).is_some() {
            assert!(catch::<()>(|| panic!("quiet one")).is_err());
            let loud = std::thread::spawn(|| panic!("loud one")).join();
            assert!(loud.is_err());
            return;
        }
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "panics::tests::nothing_is_printed",
                "--nocapture",
            ])
            .env(MARK, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{text}");
        assert!(text.contains("loud one"), "{text}");
        assert!(!text.contains("quiet one"), "{text}");
    }
}
