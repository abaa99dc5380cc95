//! The threads of this process.

use std::time::{Duration, Instant};

/// How many there are, where the system tells.
pub fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// The same once there are as many as wanted, or after ten seconds: the system lists a thread for a moment
/// longer than its end can be waited for.
pub fn threads_in_the_end(wanted: Option<usize>) -> Option<usize> {
    let start = Instant::now();
    loop {
        let now = threads();
        if now == wanted || start.elapsed() > Duration::from_secs(10) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
