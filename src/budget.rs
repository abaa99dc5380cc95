//! What a call may spend on a text, a template or a grammar that somebody else wrote.
//!
//! Whoever works on such input pays for what is really done, step by step. A call ends with an error
//! when its steps are spent, when it wants more memory than it may have, or when it is interrupted.

use crate::error::{Error, Result, Status, fail};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Steps between two looks at the interrupt, a fraction of a millisecond.
const STEPS_PER_LOOK: u64 = 1 << 14;
/// Steps that the tokens of a text may take, and how many more for each of its bytes. Published
/// tokenizers take about ten for a byte.
const TEXT_WORK: u64 = 60_000_000;
const TEXT_WORK_PER_BYTE: u64 = 256;
/// Bytes that a text may grow to before it is cut into tokens, and how many more for each of its own.
const TEXT_MEMORY: usize = 64 << 20;
const TEXT_MEMORY_PER_BYTE: usize = 8;
/// The same for a file that describes a tokenizer.
const VOCABULARY_WORK: u64 = 200_000_000;
const VOCABULARY_WORK_PER_BYTE: u64 = 64;
const VOCABULARY_MEMORY: usize = 64 << 20;
const VOCABULARY_MEMORY_PER_BYTE: usize = 16;
/// Steps that the look at a schema or grammar may take before it is compiled, of some ten nanoseconds
/// each, and how many more for each of its bytes.
const GRAMMAR_WORK: u64 = 2_000_000;
const GRAMMAR_WORK_PER_BYTE: u64 = 8;

/// Somebody who may ask a call to end.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// Calls `asked` now and then, which says whether the call is to end.
    pub fn new(asked: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Some(Arc::new(asked)))
    }

    /// Whether the call is to end.
    pub fn is_asked(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked())
    }

    /// `Interrupted` if the call is to end.
    pub fn check(&self) -> Result<()> {
        if self.is_asked() {
            fail!(Interrupted, "the call was interrupted");
        }
        Ok(())
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = if self.0.is_some() { "Some" } else { "None" };
        write!(f, "Interrupt({name})")
    }
}

/// What the steps are spent on, which decides how running out of them is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Text,
    Vocabulary,
    Template,
    Grammar,
}

/// Limits of one call, and what is left of them.
#[derive(Debug)]
pub struct Budget {
    purpose: Purpose,
    work_limit: u64,
    /// Steps left behind those until the next look at the interrupt.
    work: Cell<u64>,
    until_look: Cell<u64>,
    memory_limit: usize,
    memory: Cell<usize>,
    interrupt: Interrupt,
}

impl Budget {
    fn new(purpose: Purpose, work: u64, memory: usize) -> Budget {
        Budget {
            purpose,
            work_limit: work,
            work: Cell::new(work),
            until_look: Cell::new(0),
            memory_limit: memory,
            memory: Cell::new(memory),
            interrupt: Interrupt::default(),
        }
    }

    /// For the tokens of a text of so many bytes.
    pub fn for_text(bytes: usize) -> Budget {
        let work = TEXT_WORK.saturating_add(TEXT_WORK_PER_BYTE.saturating_mul(bytes as u64));
        let memory = TEXT_MEMORY.saturating_add(TEXT_MEMORY_PER_BYTE.saturating_mul(bytes));
        Budget::new(Purpose::Text, work, memory)
    }

    /// For a tokenizer that a file of so many bytes describes.
    pub fn for_vocabulary(bytes: usize) -> Budget {
        let work = VOCABULARY_WORK_PER_BYTE.saturating_mul(bytes as u64);
        let memory = VOCABULARY_MEMORY_PER_BYTE.saturating_mul(bytes);
        Budget::new(
            Purpose::Vocabulary,
            VOCABULARY_WORK.saturating_add(work),
            VOCABULARY_MEMORY.saturating_add(memory),
        )
    }

    /// For a rendering of a chat template.
    pub fn for_template(work: u64, memory: usize) -> Budget {
        Budget::new(Purpose::Template, work, memory)
    }

    /// For the look at a grammar of so many bytes.
    pub fn for_grammar(bytes: usize) -> Budget {
        let work = GRAMMAR_WORK_PER_BYTE.saturating_mul(bytes as u64);
        Budget::new(Purpose::Grammar, GRAMMAR_WORK.saturating_add(work), 0)
    }

    /// The same that ends with `Interrupted` when it is asked to.
    pub fn with_interrupt(self, interrupt: Interrupt) -> Budget {
        Budget { interrupt, ..self }
    }

    /// Steps that were spent.
    pub fn spent(&self) -> u64 {
        self.work_limit - self.work.get() - self.until_look.get()
    }

    /// Spends steps. Errors: `Interrupted`; that there are too few left.
    #[inline]
    pub fn work(&self, steps: u64) -> Result<()> {
        crate::memory::check()?;
        match self.until_look.get().checked_sub(steps) {
            Some(left) => {
                self.until_look.set(left);
                Ok(())
            }
            None => self.work_and_look(steps),
        }
    }

    #[cold]
    fn work_and_look(&self, steps: u64) -> Result<()> {
        self.interrupt.check()?;
        let all = self.work.get() + self.until_look.get();
        let Some(left) = all.checked_sub(steps) else {
            self.work.set(0);
            self.until_look.set(0);
            return Err(self.no_work());
        };
        let until_look = left.min(STEPS_PER_LOOK);
        self.until_look.set(until_look);
        self.work.set(left - until_look);
        Ok(())
    }

    /// Spends the steps of looking at or copying `n` bytes or characters.
    #[inline]
    pub fn scan(&self, n: usize) -> Result<()> {
        self.work(n as u64 / 16 + 1)
    }

    /// Takes memory until [`free`](Self::free).
    pub fn take(&self, bytes: usize) -> Result<()> {
        match self.memory.get().checked_sub(bytes) {
            Some(left) => {
                self.memory.set(left);
                Ok(())
            }
            None => Err(self.no_memory()),
        }
    }

    /// Gives memory back that was taken.
    pub fn free(&self, bytes: usize) {
        self.memory.set(self.memory.get() + bytes);
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

    #[cold]
    fn no_work(&self) -> Error {
        let limit = self.work_limit;
        match self.purpose {
            Purpose::Template => Error::new(
                Status::TemplateFailed,
                "the template does not come to an end",
            ),
            Purpose::Text => Error::new(
                Status::InvalidArgument,
                format!("text: the tokenizer takes more than {limit} steps for it"),
            ),
            Purpose::Vocabulary => Error::new(
                Status::Unsupported,
                format!("tokenizer: it takes more than {limit} steps to read"),
            ),
            Purpose::Grammar => Error::new(
                Status::Grammar,
                "it is too large: too many of its parts hold together",
            ),
        }
    }

    #[cold]
    fn no_memory(&self) -> Error {
        let limit = self.memory_limit >> 20;
        match self.purpose {
            Purpose::Template => Error::new(
                Status::TemplateFailed,
                format!("the template wants more than {limit} MB of memory"),
            ),
            Purpose::Text => Error::new(
                Status::InvalidArgument,
                format!("text: the tokenizer makes more than {limit} MB of it"),
            ),
            Purpose::Vocabulary => Error::new(
                Status::Unsupported,
                format!("tokenizer: it wants more than {limit} MB of memory"),
            ),
            Purpose::Grammar => Error::new(
                Status::Grammar,
                format!("it is too large: it wants more than {limit} MB of memory"),
            ),
        }
    }
}

/// Memory that is in use.
#[derive(Debug)]
pub struct Hold {
    bytes: usize,
    budget: Rc<Budget>,
}

impl Hold {
    /// Takes more.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// The budget that the memory is of.
    pub fn budget(&self) -> &Rc<Budget> {
        &self.budget
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.budget.free(self.bytes);
    }
}

/// Text that grows, and pays for it.
pub(crate) struct Output<'b> {
    text: String,
    budget: &'b Budget,
    taken: usize,
}

impl<'b> Output<'b> {
    /// Room for so many bytes. Errors: those of the budget; `OutOfMemory`.
    pub fn with_room(budget: &'b Budget, bytes: usize) -> Result<Self> {
        let mut output = Output {
            text: String::new(),
            budget,
            taken: 0,
        };
        output.reserve(bytes)?;
        Ok(output)
    }

    #[cold]
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        let wanted = (self.text.len().saturating_add(bytes)).max(2 * self.text.capacity());
        let more = wanted.saturating_sub(self.text.capacity());
        self.budget.scan(more)?;
        self.budget.take(more)?;
        self.taken += more;
        if self
            .text
            .try_reserve_exact(wanted - self.text.len())
            .is_err()
        {
            fail!(OutOfMemory, "no memory for a text of {wanted} bytes");
        }
        Ok(())
    }

    /// Appends. Errors: as [`with_room`](Self::with_room).
    #[inline]
    pub fn push(&mut self, part: &str) -> Result<()> {
        if self.text.capacity() - self.text.len() < part.len() {
            self.reserve(part.len())?;
        }
        self.text.push_str(part);
        Ok(())
    }

    /// Appends a character. Errors: as [`with_room`](Self::with_room).
    #[inline]
    pub fn push_char(&mut self, c: char) -> Result<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn truncate(&mut self, bytes: usize) {
        self.text.truncate(bytes);
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        self.budget.free(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn steps_end() {
        let budget = Budget::new(Purpose::Text, 100_000, 0);
        for _ in 0..10 {
            budget.work(9_999).unwrap();
        }
        assert_eq!(budget.spent(), 99_990);
        let error = budget.work(11).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(budget.work(1).is_err());
    }

    #[test]
    fn memory_comes_back() {
        let budget = Rc::new(Budget::new(Purpose::Template, 100, 1000));
        let hold = budget.hold(900).unwrap();
        let error = budget.hold(101).unwrap_err();
        assert_eq!(error.status, Status::TemplateFailed);
        drop(hold);
        budget.hold(1000).unwrap();
    }

    #[test]
    fn output_is_paid_for() {
        let budget = Budget::new(Purpose::Text, 100, 500);
        let mut output = Output::with_room(&budget, 100).unwrap();
        for _ in 0..100 {
            output.push_char('a').unwrap();
        }
        assert!(output.push(&"b".repeat(500)).is_err());
        assert_eq!(output.as_str().len(), 100);
        drop(output);
        assert!(Output::with_room(&budget, 500).is_ok());
    }

    #[test]
    fn an_interrupt_is_seen_soon() {
        let flag = Arc::new(AtomicU32::new(0));
        let seen = flag.clone();
        let interrupt = Interrupt::new(move || seen.load(Ordering::Relaxed) != 0);
        let budget = Budget::for_text(0).with_interrupt(interrupt);
        budget.work(1).unwrap();
        flag.store(1, Ordering::Relaxed);
        let mut steps = 0;
        let error = loop {
            match budget.work(1) {
                Ok(()) => steps += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.status, Status::Interrupted);
        assert!(steps <= STEPS_PER_LOOK, "{steps}");
    }
}
