//! What a template may spend: steps of work, and memory that is alive at one time.
//!
//! Every string, list and mapping of a rendering holds the memory that it takes ([`Hold`]) and gives
//! it back when it goes, so the limit is on what is alive and not on what ever was.

use crate::error::{Result, fail};
use crate::memory;
use std::cell::Cell;
use std::rc::Rc;

/// Most nested lists, mappings and calls.
pub(super) const MAX_DEPTH: u32 = 200;

/// Limits of one rendering, and what is left of them.
pub(super) struct Budget {
    work: Cell<u64>,
    memory: Cell<usize>,
    memory_limit: usize,
}

impl Budget {
    /// `work` steps (evaluated nodes, or sixteen characters copied or looked at), `memory` bytes.
    pub fn new(work: u64, memory: usize) -> Rc<Budget> {
        Rc::new(Budget {
            work: Cell::new(work),
            memory: Cell::new(memory),
            memory_limit: memory,
        })
    }

    /// Spends steps. Errors: `TemplateFailed` if there are not so many; `OutOfMemory` if memory ran out.
    pub fn work(&self, steps: u64) -> Result<()> {
        memory::check()?;
        match self.work.get().checked_sub(steps) {
            Some(left) => {
                self.work.set(left);
                Ok(())
            }
            None => {
                self.work.set(0);
                fail!(TemplateFailed, "the template does not come to an end")
            }
        }
    }

    /// Spends the steps of looking at or copying `n` characters.
    pub fn scan(&self, n: usize) -> Result<()> {
        self.work(n as u64 / 16 + 1)
    }

    /// Takes memory, to be given back when the hold is dropped.
    pub fn hold(self: &Rc<Self>, bytes: usize) -> Result<Hold> {
        let mut hold = Hold {
            bytes: 0,
            budget: self.clone(),
        };
        hold.grow(bytes)?;
        Ok(hold)
    }
}

/// Memory that is in use.
pub(super) struct Hold {
    bytes: usize,
    budget: Rc<Budget>,
}

impl Hold {
    /// Takes more.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        let budget = &self.budget;
        match budget.memory.get().checked_sub(bytes) {
            Some(left) => {
                budget.memory.set(left);
                self.bytes += bytes;
                Ok(())
            }
            None => fail!(
                TemplateFailed,
                "the template wants more than {} MB of memory",
                budget.memory_limit >> 20
            ),
        }
    }

    /// The budget that the memory is of.
    pub fn budget(&self) -> &Rc<Budget> {
        &self.budget
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let memory = &self.budget.memory;
        memory.set(memory.get() + self.bytes);
    }
}
