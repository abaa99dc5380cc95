//! How much memory may be taken for a purpose, and how much of it is.

use crate::error::{Result, fail};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that are taken, up to a limit.
#[derive(Debug)]
pub struct Account {
    limit: u64,
    /// Whose limit it is, for messages.
    name: &'static str,
    taken: AtomicU64,
}

/// A part of an account, which goes back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// Nothing is taken yet. A limit of 0 is none; `name` goes into messages.
    pub fn new(limit: u64, name: &'static str) -> Arc<Account> {
        Arc::new(Account {
            limit: if limit == 0 { u64::MAX } else { limit },
            name,
            taken: AtomicU64::new(0),
        })
    }

    /// Without a limit.
    pub fn unlimited() -> Arc<Account> {
        Account::new(0, "memory")
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Takes bytes for `what`. Errors: `OutOfMemory` where the limit has no room for them.
    pub fn charge(self: &Arc<Account>, bytes: usize, what: &str) -> Result<Charge> {
        let bytes = bytes as u64;
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.taken.fetch_update(Relaxed, Relaxed, more) {
            Ok(_) => Ok(Charge {
                account: self.clone(),
                bytes,
            }),
            Err(taken) => fail!(
                OutOfMemory,
                "{what}: {bytes} bytes wanted, {} left of the {} of {}",
                self.limit - taken,
                self.name,
                self.limit
            ),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.taken.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Account;
    use crate::error::Status;

    #[test]
    fn a_limit_is_kept_to_the_byte() {
        let account = Account::new(100, "memory_limit");
        let first = account.charge(60, "weights").unwrap();
        let error = account.charge(41, "a batch").unwrap_err();
        assert_eq!(error.status, Status::OutOfMemory);
        assert_eq!(
            error.message,
            "a batch: 41 bytes wanted, 40 left of the memory_limit of 100"
        );
        let second = account.charge(40, "a batch").unwrap();
        assert_eq!(account.taken(), 100);
        drop(first);
        assert_eq!(account.taken(), 40);
        drop(second);
        assert_eq!(account.taken(), 0);
        assert!(account.charge(usize::MAX, "all").is_err());
        let unlimited = Account::unlimited();
        let all = unlimited.charge(usize::MAX, "all").unwrap();
        // Not even what cannot be counted goes around.
        assert!(unlimited.charge(1, "more").is_err());
        drop(all);
    }

    #[test]
    fn threads_never_take_more_than_there_is() {
        let account = Account::new(1000, "memory_limit");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..10_000 {
                        let charge = account.charge(300 + i % 7, "it");
                        assert!(account.taken() <= 1000);
                        drop(charge);
                    }
                });
            }
        });
        assert_eq!(account.taken(), 0);
    }
}
