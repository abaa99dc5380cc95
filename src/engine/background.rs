//! What a model does beside its callers: batches that were started, and the ends of sessions that nobody waits for.

use crate::error::{Result, fail};
use crate::threads::{self, Placement, Thread};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Something to be done on the model's thread.
pub(super) type Task = Box<dyn FnOnce() + Send>;

/// A thread of the model's own, and threads of former sessions. Dropping it waits for all of them.
#[derive(Default)]
pub(super) struct Background {
    placement: Placement,
    worker: Mutex<Option<Worker>>,
    /// Threads that end by themselves.
    retired: Mutex<Vec<Thread>>,
}

struct Worker {
    queue: Arc<Queue>,
    /// Joined when this is dropped.
    _thread: Thread,
}

#[derive(Default)]
struct Queue {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Task>,
    quit: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    /// Without threads yet; those that it starts run as it is said here.
    pub fn new(placement: Placement) -> Background {
        Background {
            placement,
            ..Background::default()
        }
    }

    /// Readies room for a task, and a thread for it.
    ///
    /// Errors: `OutOfMemory`.
    pub fn reserve(&self) -> Result<()> {
        let mut worker = lock(&self.worker);
        let worker = match &mut *worker {
            Some(worker) => worker,
            none => {
                let queue = Arc::new(Queue::default());
                let theirs = queue.clone();
                let serve = move || theirs.serve();
                let bytes = threads::STACK_BYTES;
                let thread = threads::spawn_placed("ember-batch", bytes, &self.placement, serve)?;
                none.insert(Worker {
                    queue,
                    _thread: thread,
                })
            }
        };
        if lock(&worker.queue.tasks).waiting.try_reserve(1).is_err() {
            fail!(OutOfMemory, "room for a batch in the background");
        }
        Ok(())
    }

    /// Does a task behind those that were given before. There is room for it.
    pub fn run(&self, task: Task) {
        if let Some(worker) = &*lock(&self.worker) {
            lock(&worker.queue.tasks).waiting.push_back(task);
            worker.queue.changed.notify_one();
        }
    }

    /// Keeps a thread that is about to end until it has.
    pub fn retire(&self, thread: Thread) {
        let mut retired = lock(&self.retired);
        retired.retain(|thread| !thread.has_ended());
        if retired.try_reserve(1).is_ok() {
            retired.push(thread);
        }
    }
}

impl Queue {
    fn serve(&self) {
        let mut tasks = lock(&self.tasks);
        loop {
            if let Some(task) = tasks.waiting.pop_front() {
                drop(tasks);
                task();
                tasks = lock(&self.tasks);
            } else if tasks.quit {
                return;
            } else {
                let changed = self.changed.wait(tasks);
                tasks = changed.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.queue.tasks).quit = true;
        self.queue.changed.notify_one();
    }
}
