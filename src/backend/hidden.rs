//! Hidden states of a session's last positions, which heads that guess further tokens read.

use crate::error::{Result, fail, try_vec};
use crate::memory::Charge;
use std::any::Any;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The residual stream of a run of positions: the last ones that a runner has evaluated, as many as there is room for. It is that behind the
/// final norm, or what it is at some places between layers. The states are in memory of the runner's device.
pub struct HiddenStates {
    width: usize,
    rows: usize,
    /// The layers before which it is read, or how many layers there are for behind the last one; none for behind the final norm.
    places: Vec<usize>,
    run: Mutex<Run>,
    memory: StateMemory,
}

/// Where they are.
enum StateMemory {
    /// Rows by their position, modulo how many there are.
    Host {
        floats: Mutex<Vec<f32>>,
        _charge: Option<Charge>,
    },
    /// As the device has them.
    Device(Box<dyn DeviceStates>),
}

/// Hidden states in memory of a device that is not the host.
pub trait DeviceStates: Send + Sync {
    /// Itself, for its backend.
    fn as_any(&self) -> &dyn Any;

    /// Reads those of a position, which are there.
    ///
    /// Errors: those of the device.
    fn read(&self, position: usize, out: &mut [f32]) -> Result<()>;

    /// Writes those of a position.
    ///
    /// Errors: those of the device.
    fn write(&self, position: usize, state: &[f32]) -> Result<()>;

    /// Becomes a copy of others of the same kind and size.
    ///
    /// Errors: those of the device; `Internal` for others.
    fn copy(&self, other: &dyn DeviceStates) -> Result<()>;
}

/// The positions that are there.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    end: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Rows are written before the run says that they are there.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HiddenStates {
    /// Room for so many positions, of `width` floats each, in host memory. Errors: `OutOfMemory`.
    pub fn new(width: usize, rows: usize, charge: Option<Charge>) -> Result<HiddenStates> {
        let floats = try_vec(width.saturating_mul(rows), 0.0, "hidden states")?;
        let memory = StateMemory::Host {
            floats: Mutex::new(floats),
            _charge: charge,
        };
        Ok(HiddenStates::with(width, rows, memory))
    }

    /// Of these places instead, of each of which a position has `hidden` floats, in their order. Errors: `OutOfMemory`.
    pub fn of_places(
        hidden: usize,
        places: &[usize],
        rows: usize,
        charge: Option<Charge>,
    ) -> Result<HiddenStates> {
        let width = hidden.saturating_mul(places.len());
        HiddenStates::new(width, rows, charge)?.at(places)
    }

    /// The same in memory of a device, of these places or behind the final norm. Errors: `OutOfMemory`.
    pub fn on_device(
        width: usize,
        places: &[usize],
        rows: usize,
        memory: Box<dyn DeviceStates>,
    ) -> Result<HiddenStates> {
        HiddenStates::with(width, rows, StateMemory::Device(memory)).at(places)
    }

    fn at(mut self, places: &[usize]) -> Result<HiddenStates> {
        self.places = try_vec(places.len(), 0, "places of hidden states")?;
        self.places.copy_from_slice(places);
        Ok(self)
    }

    fn with(width: usize, rows: usize, memory: StateMemory) -> HiddenStates {
        HiddenStates {
            width,
            rows,
            places: Vec::new(),
            run: Mutex::new(Run { start: 0, end: 0 }),
            memory,
        }
    }

    /// Floats of a position.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The places that they are of; none for behind the final norm.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Positions that there is room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Memory of a device.
    pub fn device(&self) -> Option<&dyn DeviceStates> {
        match &self.memory {
            StateMemory::Host { .. } => None,
            StateMemory::Device(memory) => Some(&**memory),
        }
    }

    /// Forgets the states that those of `count` positions from `position` on take the place of, and those of all further ones.
    pub fn make_room(&self, position: usize, count: usize) {
        let mut run = lock(&self.run);
        run.end = run.end.min(position);
        let first = (position + count).saturating_sub(self.rows);
        run.start = run.start.max(first).min(run.end);
    }

    /// Takes what the residual stream of `count` positions from `position` on is at a place, the i-th, in host memory, which `write`
    /// writes, each by its number among them. There is room for them ([`make_room`](HiddenStates::make_room)), and they are there when all
    /// places were taken and [`evaluated`](HiddenStates::evaluated) has said so.
    pub fn put_place(
        &self,
        (position, count): (usize, usize),
        place: usize,
        mut write: impl FnMut(usize, &mut [f32]),
    ) {
        if let StateMemory::Host { floats, .. } = &self.memory {
            let mut floats = lock(floats);
            let hidden = self.width / self.places.len().max(1);
            for i in count.saturating_sub(self.rows)..count {
                let at = (position + i) % self.rows * self.width + place * hidden;
                write(i, &mut floats[at..at + hidden]);
            }
        }
    }

    /// Takes those of `count` positions from `position` on in host memory, which `write` writes, each by its number among them, and
    /// forgets those of all further ones.
    pub fn put(&self, position: usize, count: usize, mut write: impl FnMut(usize, &mut [f32])) {
        if let StateMemory::Host { floats, .. } = &self.memory {
            let mut floats = lock(floats);
            for i in count.saturating_sub(self.rows)..count {
                let slot = (position + i) % self.rows * self.width;
                write(i, &mut floats[slot..slot + self.width]);
            }
        }
        self.evaluated(position, count);
    }

    /// Those of `count` positions from `position` on are there, and none of further ones.
    pub fn evaluated(&self, position: usize, count: usize) {
        let mut run = lock(&self.run);
        if !(run.start..=run.end).contains(&position) {
            run.start = position;
        }
        run.end = position + count;
        run.start = run.start.max(run.end.saturating_sub(self.rows));
    }

    /// Forgets those of the positions from `len` on.
    pub fn keep(&self, len: usize) {
        let mut run = lock(&self.run);
        run.end = run.end.min(len);
        run.start = run.start.min(run.end);
    }

    /// The first position from which on all before `end` are there; none if that before `end` is not.
    pub fn first(&self, end: usize) -> Option<usize> {
        let run = lock(&self.run);
        (run.start < end && end <= run.end).then_some(run.start)
    }

    /// Whether those of `count` positions from `position` on are there.
    pub fn has(&self, position: usize, count: usize) -> bool {
        let run = lock(&self.run);
        run.start <= position && position + count <= run.end
    }

    /// The positions that are there.
    pub fn run(&self) -> Range<usize> {
        let run = lock(&self.run);
        run.start..run.end
    }

    /// Takes those of positions from `position` on, of which so many floats are.
    ///
    /// Errors: those of the device.
    pub fn write(&self, position: usize, states: &[f32]) -> Result<()> {
        for (at, state) in (position..).zip(states.chunks_exact(self.width)) {
            match &self.memory {
                StateMemory::Host { floats, .. } => {
                    let slot = at % self.rows * self.width;
                    lock(floats)[slot..slot + self.width].copy_from_slice(state);
                }
                StateMemory::Device(memory) => memory.write(at, state)?,
            }
        }
        self.evaluated(position, states.len() / self.width);
        Ok(())
    }

    /// Reads those of positions from `position` on, as many as there is room for in `out`.
    ///
    /// Errors: `Internal` if one is not there; those of the device.
    pub fn read(&self, position: usize, out: &mut [f32]) -> Result<()> {
        let count = out.len() / self.width;
        if !self.has(position, count) {
            fail!(
                Internal,
                "hidden states of {count} positions from {position} on are not there"
            );
        }
        for (at, row) in (position..).zip(out.chunks_exact_mut(self.width)) {
            match &self.memory {
                StateMemory::Host { floats, .. } => {
                    let slot = at % self.rows * self.width;
                    row.copy_from_slice(&lock(floats)[slot..slot + self.width]);
                }
                StateMemory::Device(memory) => memory.read(at, row)?,
            }
        }
        Ok(())
    }

    /// Becomes a copy of others of the same device and size.
    ///
    /// Errors: `Internal` for others; those of the device. None are there then.
    pub fn copy(&self, other: &HiddenStates) -> Result<()> {
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        self.keep(0);
        match (&self.memory, &other.memory) {
            (StateMemory::Host { floats: to, .. }, StateMemory::Host { floats: from, .. })
                if self.rows == other.rows =>
            {
                lock(to).copy_from_slice(&lock(from));
            }
            (StateMemory::Device(to), StateMemory::Device(from)) => to.copy(&**from)?,
            _ => fail!(Internal, "hidden states of another kind"),
        }
        *lock(&self.run) = *lock(&other.run);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::HiddenStates;

    fn of(p: usize) -> [f32; 2] {
        [p as f32, -(p as f32)]
    }

    fn rows(first: usize, count: usize) -> Vec<f32> {
        (first..first + count).flat_map(of).collect()
    }

    fn put(states: &HiddenStates, position: usize, first: usize, count: usize) {
        states.put(position, count, |i, row| {
            row.copy_from_slice(&of(first + i))
        });
    }

    #[test]
    fn the_last_positions_are_there() {
        let states = HiddenStates::new(2, 4, None).unwrap();
        let mut out = [0.0; 6];
        assert_eq!(states.first(0), None);
        assert!(states.read(0, &mut out).is_err());
        put(&states, 0, 0, 3);
        assert_eq!(states.first(3), Some(0));
        assert_eq!(states.first(4), None);
        states.read(0, &mut out).unwrap();
        assert_eq!(out[..], rows(0, 3));
        // More than there is room for.
        put(&states, 3, 3, 6);
        assert_eq!(states.first(9), Some(5));
        states.read(6, &mut out).unwrap();
        assert_eq!(out[..], rows(6, 3));
        assert!(states.read(4, &mut out).is_err());
        // Going back forgets what comes behind.
        put(&states, 6, 60, 1);
        assert_eq!(states.first(7), Some(5));
        assert_eq!(states.first(8), None);
        let mut two = [0.0; 4];
        states.read(5, &mut two).unwrap();
        assert_eq!(two, [5.0, -5.0, 60.0, -60.0]);
        // A gap begins another run.
        put(&states, 9, 9, 1);
        assert_eq!(states.first(10), Some(9));
        put(&states, 2, 2, 1);
        assert_eq!(states.first(3), Some(2));
        let copy = HiddenStates::new(2, 4, None).unwrap();
        copy.copy(&states).unwrap();
        copy.read(2, &mut two[..2]).unwrap();
        assert_eq!(two[..2], [2.0, -2.0]);
        // What a session goes back from is gone.
        put(&copy, 3, 3, 1);
        copy.keep(3);
        assert_eq!((copy.first(3), copy.first(4)), (Some(2), None));
        copy.keep(0);
        assert_eq!(copy.first(3), None);
    }
}
