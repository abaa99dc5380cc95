//! A rank that is loaded by itself: the others are in other processes, or in this one.
//!
//! Before each piece of work the ranks agree on it (`backend::group`). Work of which one rank drops out is ended by the watch, which hears
//! from the meeting that a rank is gone.

use super::Cut;
use super::gathered::{Gathered, WORK, connect};
use crate::backend::cuda::driver::Context;
use crate::backend::cuda::driver::nccl::{Communicator, Id, Watch};
use crate::backend::group::{Meeting, Stop, Work};
use crate::backend::{Apart, Ranks};
use crate::error::{Error, Result, Status, fail};
use std::slice;
use std::sync::{Arc, Mutex};

/// What a rank has together with the others.
struct Companions {
    meeting: Arc<Meeting>,
    watch: Watch,
    turn: Mutex<()>,
}

impl Drop for Companions {
    fn drop(&mut self) {
        self.meeting.farewell();
    }
}

impl Ranks for Companions {
    fn begin(&self) -> Result<()> {
        self.watch.begin()
    }

    fn end(&self) {
        self.watch.end();
    }

    fn check(&self) -> Result<()> {
        let checked = self.watch.check();
        if let Err(e) = &checked {
            self.meeting.fail(e);
        }
        checked
    }

    fn apart(&self) -> Option<&dyn Apart> {
        Some(self)
    }
}

impl Apart for Companions {
    fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    fn agree(&self, ready: Result<&Work>) -> Result<()> {
        self.check()?;
        let agreed = self.meeting.agree(ready, &[]).map(drop);
        if let Err(e) = &agreed
            && self.meeting.is_lost()
        {
            self.watch.fail(e);
        }
        agreed
    }

    fn fail(&self, e: &Error) {
        self.meeting.fail(e);
        let e = Error::new(Status::DeviceLost, e.message.clone());
        self.watch.fail(&e);
    }
}

/// Where a rank gathers what all have, and what it has together with the others. All ranks do this at the same time.
pub(super) fn rank(
    context: &Arc<Context>,
    cut: &Cut,
    meeting: &Arc<Meeting>,
    stop: &mut Stop<'_>,
) -> Result<(Gathered, Arc<dyn Ranks>)> {
    let patience = meeting.patience();
    // Rank 0 makes the id that NCCL knows them by, and the others get it with the answer.
    let own = match cut.rank.index {
        0 => Id::new().map(|id| id.0.to_vec()),
        _ => Ok(Vec::new()),
    };
    let loaded = Work::new("the end of a load");
    let gift = own.as_deref().unwrap_or_default();
    let ready = own.as_ref().map(|_| &loaded).map_err(Error::clone);
    let id = meeting.agree_unless(ready, gift, stop)?;
    let Ok(id) = id.try_into().map(Id) else {
        fail!(Internal, "an id of NCCL that has other bytes");
    };
    let with = (cut.rank, Some(meeting.clone()));
    let communicator = Communicator::begin_among(context, &id, with, patience)?;
    let communicators = vec![communicator];
    let one = (slice::from_ref(context), slice::from_ref(cut));
    let Some(rank) = connect(one.0, one.1, &communicators)?.pop() else {
        fail!(Internal, "a rank that is none");
    };
    let what = (patience, WORK);
    let watch = Watch::among(communicators, what, Some(meeting.clone()))?;
    meeting.agree_unless(Ok(&Work::new("the beginning of work")), &[], stop)?;
    let companions = Companions {
        meeting: meeting.clone(),
        watch,
        turn: Mutex::new(()),
    };
    Ok((rank, Arc::new(companions)))
}
