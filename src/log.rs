//! What the library has to tell besides results. Without a sink nothing is formatted and nothing
//! is written anywhere.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// How much a message matters. Smaller is more important.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// A call failed for a reason that is not the caller's, such as a caught bug.
    Error = 1,
    /// Something works less well than it could.
    Warn = 2,
    /// A model or an adapter was loaded.
    Info = 3,
    /// Details for a bug report, such as each session that is created.
    Debug = 4,
}

/// Receives messages, from any thread, several at a time.
pub type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

/// Where the messages about one model go, in place of the sink for all.
#[derive(Clone)]
pub struct ModelLog {
    level: Level,
    sink: Arc<Sink>,
}

impl ModelLog {
    /// Messages up to `level` go to `sink`.
    pub fn new(level: Level, sink: Sink) -> ModelLog {
        ModelLog {
            level,
            sink: Arc::new(sink),
        }
    }
}

impl fmt::Debug for ModelLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelLog({:?})", self.level)
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sends messages up to `level` to `sink`, or none at all. On return the sink before is not in use
/// any more. False, with nothing changed, when called from within a sink.
pub fn set_sink(level: Level, sink: Option<Sink>) -> bool {
    if inside() {
        return false;
    }
    let mut current = SINK.write().unwrap_or_else(PoisonError::into_inner);
    let level = if sink.is_some() { level as u8 } else { 0 };
    LEVEL.store(level, Ordering::Relaxed);
    *current = sink;
    true
}

fn inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Sends one message. What a sink logs itself is dropped.
pub fn write(level: Level, message: fmt::Arguments<'_>) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) || inside() {
        return;
    }
    let text = message.to_string();
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(sink) = &*sink {
        give(sink, level, &text);
    }
}

/// Sends one message about a model, to its own log if it has one.
pub fn write_of(log: Option<&ModelLog>, level: Level, message: fmt::Arguments<'_>) {
    match log {
        None => write(level, message),
        Some(log) if level > log.level || inside() => {}
        Some(log) => give(&log.sink, level, &message.to_string()),
    }
}

fn give(sink: &Sink, level: Level, text: &str) {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(false);
        }
    }
    INSIDE.set(true);
    let _leave = Leave;
    sink(level, text);
}

/// `log!(Info, "...")`, or of a model `log!(of: its_log, Info, "...")`.
macro_rules! log {
    (of: $log:expr, $level:ident, $($arg:tt)*) => {
        $crate::log::write_of($log, $crate::log::Level::$level, format_args!($($arg)*))
    };
    ($level:ident, $($arg:tt)*) => {
        $crate::log::write($crate::log::Level::$level, format_args!($($arg)*))
    };
}
pub(crate) use log;
