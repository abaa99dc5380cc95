//! What else runs: busy threads of the host's, other sessions on threads, a long prompt beside decodes.

use crate::stats::Samples;
use emberlm::engine::Session;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Instant;

/// Threads that do nothing but take time, until dropped.
pub struct BusyHost {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyHost {
    /// Starts so many.
    pub fn start(threads: usize) -> BusyHost {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        BusyHost {
            threads: (0..threads).map(busy).collect(),
            stop,
        }
    }
}

impl Drop for BusyHost {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Tokens per second of all sessions together, each on a thread of its own, `generate` tokens each.
pub fn sessions_rate(
    sessions: &mut [Session],
    generate: usize,
    reps: usize,
) -> emberlm::Result<Samples> {
    let mut rates = Vec::new();
    for _ in 0..reps {
        let begin = Barrier::new(sessions.len() + 1);
        let total = (sessions.len() * generate) as f64;
        let start = std::thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .iter_mut()
                .map(|session| {
                    let begin = &begin;
                    scope.spawn(move || {
                        let ready = session.rewind(1).and_then(|()| session.decode().map(drop));
                        begin.wait();
                        ready?;
                        (0..generate).try_for_each(|_| session.decode().map(drop))
                    })
                })
                .collect();
            begin.wait();
            let start = Instant::now();
            for thread in threads {
                thread.join().expect("a thread of the benchmark")?;
            }
            Ok::<_, emberlm::Error>(start)
        })?;
        rates.push(total / start.elapsed().as_secs_f64());
    }
    Ok(Samples::new(rates))
}

/// Tokens per second of decodes while another session reads `prompt` again and again, and of that
/// prompt meanwhile.
pub fn beside_prefill(
    decoding: &mut Session,
    reading: &mut Session,
    prompt: &[u32],
    generate: usize,
    reps: usize,
) -> emberlm::Result<(Samples, Samples)> {
    let (mut decoded, mut read) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        decoding.rewind(1)?;
        decoding.decode()?;
        let stop = AtomicBool::new(false);
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                reading.rewind(0)?;
                begin.wait();
                let start = Instant::now();
                let mut count = 0;
                while !stop.load(Relaxed) {
                    reading.rewind(0)?;
                    reading.prefill(prompt)?;
                    count += prompt.len();
                }
                Ok::<_, emberlm::Error>(count as f64 / start.elapsed().as_secs_f64())
            });
            begin.wait();
            let start = Instant::now();
            let done = (0..generate).try_for_each(|_| decoding.decode().map(drop));
            decoded.push(generate as f64 / start.elapsed().as_secs_f64());
            stop.store(true, Relaxed);
            read.push(reader.join().expect("a thread of the benchmark")?);
            done
        })?;
    }
    Ok((Samples::new(decoded), Samples::new(read)))
}
