//! Ranks of a model that are in several processes, or loaded one by one in one: how they find each other, and agree on what to do.
//!
//! | file | holds |
//! |---|---|
//! | `meeting` | what ranks say to each other before each piece of work, and how one learns that another is gone |
//! | `work` | a description of a piece of work, and what differs between two of them |
//! | `line` | frames on a connection |
//! | `wait` | a wait for others, which the caller may stop |
//!
//! Rank 0 listens, and the others connect to it. What the ranks compute does not go this way, but by NCCL.

mod line;
mod meeting;
mod wait;
mod work;

#[cfg(test)]
mod tests;

pub use meeting::Meeting;
pub use wait::Stop;
pub use work::{History, Work};

use crate::error::{Error, Result, Status, fail};
use crate::model::Rank;
use line::SECRET_BYTES;
use std::hash::{BuildHasher, Hasher};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most ranks of a group.
pub const MAX_GROUP: usize = 8;
/// How long a rank waits for others if nothing is said.
const PATIENCE: Duration = Duration::from_secs(30);
/// What an id begins with: the version of how ranks talk.
const VERSION: &str = "emberlm-1";

/// Which part a rank has, and how it finds the others.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions<'a> {
    /// Its number and how many there are.
    pub rank: Rank,
    /// How long it waits for others; zero for the default.
    pub patience: Duration,
    /// The id that rank 0 has made; none for rank 0.
    pub id: Option<&'a str>,
    /// For rank 0: the IP address that it listens on, with a port or without. Empty: this machine alone.
    pub address: &'a str,
}

/// A rank's place in a group. It is good for one model.
#[derive(Debug)]
pub struct Group {
    rank: Rank,
    patience: Duration,
    id: String,
    secret: [u8; SECRET_BYTES],
    is_claimed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Rank 0 before a model is loaded.
    Listening(TcpListener),
    /// Another one: where rank 0 is.
    Apart(SocketAddr),
    /// A model is being loaded with it, or was.
    Taken(Option<Arc<Meeting>>),
}

impl Group {
    /// Takes a place in a group, without waiting for anybody.
    ///
    /// Errors: `InvalidArgument` for numbers that are no rank, for ids that are none or of other groups, and for addresses that are
    /// not this machine's; `OutOfMemory` if the process has no descriptor left.
    pub fn new(options: &GroupOptions<'_>) -> Result<Group> {
        let Rank { index, count } = options.rank;
        if !(2..=MAX_GROUP).contains(&count) {
            fail!(
                InvalidArgument,
                "rank_count is {count}, but a group has 2 to {MAX_GROUP} ranks"
            );
        }
        if index >= count {
            fail!(
                InvalidArgument,
                "rank is {index}, but rank_count {count}: ranks are counted from 0"
            );
        }
        let patience = match options.patience {
            Duration::ZERO => PATIENCE,
            patience => patience,
        };
        let (id, secret, state) = match (index, options.id) {
            (0, None) => {
                let listener = listen(options.address)?;
                let secret = secret();
                let address = listener.local_addr().map_err(no_socket)?;
                let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
                let id = format!("{VERSION}/{count}/{hex}/{address}");
                (id, secret, State::Listening(listener))
            }
            (0, Some(_)) => fail!(
                InvalidArgument,
                "rank 0 has an id, but it makes that of the group"
            ),
            (_, None) => fail!(
                InvalidArgument,
                "rank {index} has no id; rank 0 makes that of the group"
            ),
            (_, Some(_)) if !options.address.is_empty() => fail!(
                InvalidArgument,
                "rank {index} has an address, but only rank 0 listens; the id says where"
            ),
            (_, Some(id)) => {
                let Some((of, secret, address)) = parse(id) else {
                    fail!(InvalidArgument, "id is none of a group of this version");
                };
                if of != count {
                    fail!(
                        InvalidArgument,
                        "rank_count is {count}, but the id is of a group of {of} ranks"
                    );
                }
                (id.to_owned(), secret, State::Apart(address))
            }
        };
        crate::memory::check()?;
        Ok(Group {
            rank: options.rank,
            patience,
            id,
            secret,
            is_claimed: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    /// What the other ranks need to join.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Which one it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How long a rank waits for others.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the load that the group is for.
    ///
    /// Errors: `InvalidArgument` if there was one before.
    pub fn claim(&self) -> Result<()> {
        if self.is_claimed.swap(true, Ordering::Relaxed) {
            fail!(
                InvalidArgument,
                "the group was used before; each load needs one of its own"
            );
        }
        Ok(())
    }

    /// Meets the other ranks, all of which are to load what `model` describes.
    ///
    /// Errors: `InvalidArgument` for ranks that load something else; `DeviceLost` if one does not come in time; that of `stop`.
    pub fn join(&self, model: &Work, stop: &mut Stop<'_>) -> Result<()> {
        let before = std::mem::replace(&mut *self.lock(), State::Taken(None));
        let meeting = match before {
            State::Listening(listener) => {
                Meeting::host(&listener, self.rank, &self.secret, self.patience, stop)
            }
            State::Apart(address) => {
                Meeting::visit(address, self.rank, &self.secret, self.patience, stop)
            }
            State::Taken(_) => fail!(Internal, "a group that has met before"),
        }?;
        let meeting = Arc::new(meeting);
        *self.lock() = State::Taken(Some(meeting.clone()));
        meeting.agree_unless(Ok(model), &[], stop)?;
        Ok(())
    }

    /// The other ranks, once they are met.
    pub fn meeting(&self) -> Result<Arc<Meeting>> {
        match &*self.lock() {
            State::Taken(Some(meeting)) => Ok(meeting.clone()),
            _ => fail!(Internal, "a group that has not met"),
        }
    }

    /// Its load has failed or is over: the group keeps nothing of it. After an error the others are told, as far as they can be now.
    pub fn leave(&self, error: Option<&Error>) {
        let before = std::mem::replace(&mut *self.lock(), State::Taken(None));
        match (before, error) {
            (State::Taken(Some(meeting)), Some(e)) => meeting.refuse(e, true),
            (State::Taken(Some(meeting)), None) => meeting.loaded(),
            (State::Apart(address), Some(e)) => {
                let stop: &mut Stop<'_> = &mut || Ok(());
                let met = Meeting::visit(address, self.rank, &self.secret, meeting::GRACE, stop);
                if let Ok(meeting) = met {
                    // Rank 0 may come much later.
                    meeting.refuse(e, false);
                }
            }
            // Whoever waits for rank 0 sees that it is gone.
            _ => {}
        }
    }
}

/// Listens on an IP address of this machine.
fn listen(address: &str) -> Result<TcpListener> {
    let parsed = match address {
        "" => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        text => text
            .parse::<IpAddr>()
            .map(|ip| SocketAddr::from((ip, 0)))
            .or_else(|_| text.parse()),
    };
    let Ok(parsed) = parsed else {
        fail!(
            InvalidArgument,
            "address is {address:?}, which is no IP address"
        );
    };
    if parsed.ip().is_unspecified() {
        fail!(
            InvalidArgument,
            "address is {address}, which does not say where other ranks find this one"
        );
    }
    TcpListener::bind(parsed).map_err(|e| match e.kind() {
        ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse | ErrorKind::PermissionDenied => {
            let message = format!("address {parsed}: {e}");
            Error::new(Status::InvalidArgument, message)
        }
        _ => no_socket(e),
    })
}

fn no_socket(e: std::io::Error) -> Error {
    let message = format!("a socket by which ranks meet: {e}");
    Error::new(Status::OutOfMemory, message)
}

/// Bytes that nobody guesses: of keys that the standard library has from the system.
fn secret() -> [u8; SECRET_BYTES] {
    let mut secret = [0; SECRET_BYTES];
    for (i, part) in secret.chunks_mut(8).enumerate() {
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_usize(i);
        part.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    secret
}

/// What an id says: how many ranks, their secret, and where rank 0 is.
fn parse(id: &str) -> Option<(usize, [u8; SECRET_BYTES], SocketAddr)> {
    let mut parts = id.split('/');
    if parts.next()? != VERSION {
        return None;
    }
    let count = parts.next()?.parse().ok()?;
    let hex = parts.next()?;
    let address = parts.next()?.parse().ok()?;
    if hex.len() != 2 * SECRET_BYTES || !hex.is_ascii() || parts.next().is_some() {
        return None;
    }
    let mut secret = [0; SECRET_BYTES];
    for (i, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..][..2], 16).ok()?;
    }
    Some((count, secret, address))
}
