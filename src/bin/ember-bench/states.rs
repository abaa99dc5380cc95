//! What it takes to save, restore, fork and evict a session, and to evict a model's weights.

use crate::stats::Samples;
use emberlm::backend::KvType;
use emberlm::engine::state::{Kind, RestoreOptions};
use emberlm::engine::{Model, Session};
use emberlm::{Error, Result, Status};
use std::sync::Arc;
use std::time::Instant;

/// Figures of one session.
pub struct States {
    /// Positions of the session.
    pub depth: usize,
    /// Bytes of its saved state.
    pub saved_bytes: u64,
    /// 10^9 bytes per second, into the memory of the program.
    pub save: Samples,
    /// 10^9 bytes per second, from there into a new session.
    pub restore: Samples,
    /// 10^9 bytes per second, from a file that was just written into a new session.
    pub restore_file: Samples,
    /// Milliseconds of a fork.
    pub fork_ms: Samples,
    /// 10^9 bytes per second of a session's state, to host memory and back.
    pub session: Option<Moves>,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// 10^9 bytes per second of the weights.
    pub weights: Option<Moves>,
}

/// Eviction and its reverse.
pub struct Moves {
    /// Off the device.
    pub evict: Samples,
    /// Back.
    pub resume: Samples,
}

/// Repetitions of `run`, of which one more goes before: the seconds that it tells of each.
fn each(reps: usize, mut run: impl FnMut() -> Result<f64>) -> Result<Samples> {
    let mut seconds = Vec::new();
    for rep in 0..=reps {
        let took = run()?;
        if rep > 0 {
            seconds.push(took);
        }
    }
    Ok(Samples::new(seconds))
}

/// Seconds to 10^9 bytes per second.
fn rate(bytes: u64, seconds: &Samples) -> Samples {
    let rates = seconds.values().iter().map(|s| bytes as f64 / 1e9 / s);
    Samples::new(rates.collect())
}

fn timed<T>(run: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let made = run()?;
    Ok((start.elapsed().as_secs_f64(), made))
}

/// Measures a session that has read its prompt. `on_gpu`: whether there is something to evict.
pub fn measure(
    session: &mut Session,
    kv_type: KvType,
    reps: usize,
    on_gpu: bool,
) -> Result<States> {
    let model = session.model().clone();
    let mut saved: Vec<u8> = Vec::new();
    let save = each(reps, || {
        saved.clear();
        let mut write = |part: &[u8]| {
            saved.extend_from_slice(part);
            Ok(())
        };
        let (seconds, ()) = timed(|| session.save_to(&mut write, Kind::Everything))?;
        Ok(seconds)
    })?;
    let saved_bytes = saved.len() as u64;
    let restore = each(reps, || {
        let mut rest = &saved[..];
        let mut read = |to: &mut [u8]| {
            let n = to.len().min(rest.len());
            to[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            Ok(n)
        };
        let options = RestoreOptions::default();
        let restored = timed(|| Session::restore_from(model.clone(), &mut read, &options))?;
        Ok(restored.0)
    })?;
    let file = tempfile::NamedTempFile::new()
        .map_err(|e| Error::new(Status::Io, format!("no temporary file: {e}")))?;
    session.save(file.path(), Kind::Everything)?;
    let restore_file = each(reps, || {
        let options = RestoreOptions::default();
        let restored = timed(|| Session::restore(model.clone(), file.path(), &options))?;
        Ok(restored.0)
    })?;
    let fork = each(reps, || Ok(timed(|| session.fork())?.0))?;
    let fork_ms = Samples::new(fork.values().iter().map(|s| s * 1e3).collect());
    let state_bytes = model
        .weights()
        .kv_bytes_per_token(kv_type)
        .saturating_mul(session.position() as u64);
    let weight_bytes = model.details().resident_bytes;
    let (mut of_session, mut of_weights) = (None, None);
    if on_gpu {
        of_session = Some(moves(
            state_bytes,
            reps,
            session,
            Session::evict,
            Session::resume,
        )?);
        let mut model = model.clone();
        let (evict, resume) = (
            |m: &mut Arc<Model>| m.evict(),
            |m: &mut Arc<Model>| m.resume(),
        );
        of_weights = Some(moves(weight_bytes, reps, &mut model, evict, resume)?);
    }
    Ok(States {
        depth: session.position(),
        saved_bytes,
        save: rate(saved_bytes, &save),
        restore: rate(saved_bytes, &restore),
        restore_file: rate(saved_bytes, &restore_file),
        fork_ms,
        session: of_session,
        weight_bytes,
        weights: of_weights,
    })
}

fn moves<T>(
    bytes: u64,
    reps: usize,
    of: &mut T,
    evict: fn(&mut T) -> Result<()>,
    resume: fn(&mut T) -> Result<()>,
) -> Result<Moves> {
    let mut back = Vec::new();
    let away = each(reps, || {
        let (seconds, ()) = timed(|| evict(of))?;
        back.push(timed(|| resume(of))?.0);
        Ok(seconds)
    })?;
    back.remove(0);
    Ok(Moves {
        evict: rate(bytes, &away),
        resume: rate(bytes, &Samples::new(back)),
    })
}
