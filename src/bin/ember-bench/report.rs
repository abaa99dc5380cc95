//! The figures as a table for people and as JSON for programs.

use crate::args::{Args, Kv};
use crate::bandwidth::Bandwidth;
use crate::measure::{Decode, Measured};
use crate::states::Moves;
use crate::stats::Samples;
use crate::traffic::Traffic;
use emberlm::backend::{DeviceKind, Profile, ProfileEntry};
use serde_json::{Value, json};
use std::fmt::Write;

/// Everything known after a run.
pub struct Report<'a> {
    /// The command line.
    pub args: &'a Args,
    /// What was run: a path, or a shape and its mix.
    pub model: &'a str,
    /// The times.
    pub measured: &'a Measured,
    /// What a token reads.
    pub traffic: &'a Traffic,
    /// This machine's memory; `None` if there was too little for the buffer.
    pub bandwidth: Option<&'a Bandwidth>,
    /// The most memory that the process had resident before the bandwidth was measured.
    pub peak_bytes: Option<u64>,
}

impl Report<'_> {
    /// 10^9 bytes per second that a decode streamed, by its median rate.
    fn gb_per_s(&self, decode: &Decode) -> f64 {
        let kv = self.measured.kv_bytes_per_token;
        let bytes = self.traffic.per_token(kv, decode.depth, decode.generated);
        bytes * decode.tokens_per_s.median() / 1e9
    }

    /// Share of the memory bandwidth. Only for a CPU: a GPU does not read this memory.
    fn share(&self, decode: &Decode) -> Option<f64> {
        if self.measured.device.kind != DeviceKind::Cpu {
            return None;
        }
        let wall = self.bandwidth?.gb_per_s.greatest();
        Some(self.gb_per_s(decode) / wall)
    }

    fn kv_name(&self) -> &'static str {
        match self.args.kv {
            Kv::F16 => "f16",
            Kv::F32 => "f32",
            Kv::Q8_0 => "q8_0",
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let m = self.measured;
        let mut out = String::new();
        let mut line = |text: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{text}");
        };
        line(format!("model      {}", self.model));
        line(format!(
            "           {} in the file, {} read per token",
            bytes(self.traffic.file_bytes),
            bytes(self.traffic.weight_bytes)
        ));
        line(format!(
            "device     {} ({}), {} threads, KV {}, sampling {}",
            m.device.name,
            m.device.isa,
            m.threads,
            self.kv_name(),
            self.args.sampling.0
        ));
        line(format!("load       {} ms", spread(&m.load_ms, 1)));
        line(format!(
            "           {} ms to the first token (first load {:.1} ms)",
            spread(&m.first_token_ms, 1),
            m.first_token_ms.values()[0]
        ));
        let kv = self.measured.kv_bytes;
        let on_gpu = m.device.kind != DeviceKind::Cpu;
        let weights = match on_gpu {
            // The file is read once, in pieces.
            true => m.resident_bytes,
            // It is mapped.
            false => self.traffic.file_bytes + m.resident_bytes,
        };
        let host = match self.peak_bytes {
            Some(peak) => format!("{} resident at most", bytes(peak)),
            None => "not told by this system".to_owned(),
        };
        let more = match self.peak_bytes {
            Some(peak) if !on_gpu => {
                let ratio = peak as f64 / (weights + kv) as f64;
                format!(" ({:+.1} %)", (ratio - 1.0) * 100.0)
            }
            _ => String::new(),
        };
        line(format!(
            "memory     {host}; weights {} and KV {} are {}{}{more}",
            bytes(weights),
            bytes(kv),
            bytes(weights + kv),
            if on_gpu { " on the GPU" } else { "" }
        ));
        line(match self.bandwidth {
            Some(b) => format!(
                "bandwidth  {} GB/s, {} threads reading {}",
                spread(&b.gb_per_s, 1),
                b.threads,
                bytes(b.bytes as u64)
            ),
            None => "bandwidth  not measured: too little memory (--bandwidth-mib)".to_owned(),
        });
        for p in &m.prefill {
            line(format!(
                "prefill    {:>6} tokens  {:>34} tokens/s",
                p.tokens,
                spread(&p.tokens_per_s, 1)
            ));
        }
        for d in &m.decode {
            let share = match self.share(d) {
                Some(share) => format!(", {:.0} % of the bandwidth", share * 100.0),
                None => String::new(),
            };
            line(format!(
                "decode     {:>6} deep    {:>34} tokens/s {:>8.2} GB/s{share}",
                d.depth,
                spread(&d.tokens_per_s, 1),
                self.gb_per_s(d),
            ));
            if let Some((at_once, rate)) = &d.queued {
                line(format!(
                    "  {at_once:>6} at a time   {:>36} tokens/s",
                    spread(rate, 1)
                ));
            }
            if let Some(rate) = &d.adapted {
                let more = d.tokens_per_s.median() / rate.median() - 1.0;
                line(format!(
                    "  with an adapter     {:>34} tokens/s {:>+7.1} % time",
                    spread(rate, 1),
                    more * 100.0
                ));
            }
            if let Some(rate) = &d.grammar {
                let more = d.tokens_per_s.median() / rate.median() - 1.0;
                line(format!(
                    "  with a grammar      {:>34} tokens/s {:>+7.1} % time",
                    spread(rate, 1),
                    more * 100.0
                ));
            }
            let Some(profile) = &d.profile else { continue };
            let total: f64 = profile.done().map(|(_, e)| e.microseconds).sum();
            for (work, e) in profile.done() {
                line(format!(
                    "  {:<10} {:>4} calls {:>10.1} us {:>5.1} % {:>9.2} MB {:>8.2} GB/s",
                    work.name(),
                    e.calls,
                    e.microseconds,
                    e.microseconds / total * 100.0,
                    e.bytes as f64 / 1e6,
                    profile_gb_per_s(&e),
                ));
            }
        }
        for d in &m.drafted {
            let s = d.stats;
            let each = d.step_ms.map(|ms| format!(" of {ms:.3} ms"));
            let how = match d.sessions {
                1 => "right".to_owned(),
                n => format!("right, {n} together"),
            };
            line(format!(
                "drafts     {:>6} {how:<19} {:>22} tokens/s, {:.3} times {}; {} of {} right in {} steps{}",
                d.source,
                spread(&d.tokens_per_s, 1),
                d.ratio,
                spread(&d.plain, 1),
                s.accepted,
                s.drafted,
                s.steps,
                each.unwrap_or_default()
            ));
        }
        for b in &m.batch {
            line(format!(
                "decode     {:>6} together {:>32} tokens/s",
                b.sessions,
                spread(&b.tokens_per_s, 1)
            ));
            if let Some(rate) = &b.adapted {
                let more = b.tokens_per_s.median() / rate.median() - 1.0;
                line(format!(
                    "  with {:>4} adapters  {:>34} tokens/s {:>+7.1} % time",
                    self.args.adapters,
                    spread(rate, 1),
                    more * 100.0
                ));
            }
        }
        for s in &m.sessions {
            line(format!(
                "decode     {:>6} on threads {:>31} tokens/s",
                s.sessions,
                spread(&s.tokens_per_s, 1)
            ));
        }
        if let Some((decoded, read)) = &m.beside_prefill {
            line(format!(
                "decode     beside a prompt {:>35} tokens/s",
                spread(decoded, 1)
            ));
            line(format!(
                "prefill    beside it       {:>35} tokens/s",
                spread(read, 1)
            ));
        }
        if let Some(s) = &m.states {
            line(format!(
                "states     {:>6} deep, {} saved: save {}, restore {}, from a file {} GB/s; fork {} ms",
                s.depth,
                bytes(s.saved_bytes),
                spread(&s.save, 2),
                spread(&s.restore, 2),
                spread(&s.restore_file, 2),
                spread(&s.fork_ms, 3)
            ));
            let moved = [("session", &s.session), ("weights", &s.weights)];
            for (what, moves) in moved {
                if let Some(m) = moves {
                    let (evict, resume) = (spread(&m.evict, 1), spread(&m.resume, 1));
                    line(format!("  {what}  evict {evict}, resume {resume} GB/s"));
                }
            }
        }
        for e in &m.embedded {
            line(format!(
                "vectors    {:>6} tokens  {:>34} tokens/s; {} texts, {} tokens at a time, {}",
                e.tokens,
                spread(&e.tokens_per_s, 1),
                e.texts,
                e.batch_tokens,
                bytes(e.bytes)
            ));
        }
        for what in &m.left_out {
            line(format!(
                "left out   {what}: the model's context is too short"
            ));
        }
        out
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let m = self.measured;
        let prefill = m
            .prefill
            .iter()
            .map(|p| json!({ "tokens": p.tokens, "tokens_per_s": samples(&p.tokens_per_s) }));
        let decode = m.decode.iter().map(|d| {
            json!({
                "depth": d.depth,
                "generated": d.generated,
                "tokens_per_s": samples(&d.tokens_per_s),
                "gb_per_s": self.gb_per_s(d),
                "bandwidth_share": self.share(d),
                "queued": d.queued.as_ref().map(|(at_once, rate)| {
                    json!({ "at_once": at_once, "tokens_per_s": samples(rate) })
                }),
                "adapter_tokens_per_s": d.adapted.as_ref().map(samples),
                "grammar_tokens_per_s": d.grammar.as_ref().map(samples),
                "profile": d.profile.as_ref().map(profile),
            })
        });
        let drafted = m.drafted.iter().map(|d| {
            json!({
                "source": d.source,
                "sessions": d.sessions,
                "tokens_per_s": samples(&d.tokens_per_s),
                "without_tokens_per_s": samples(&d.plain),
                "ratio": d.ratio,
                "steps": d.stats.steps,
                "drafted": d.stats.drafted,
                "accepted": d.stats.accepted,
                "step_ms": d.step_ms,
            })
        });
        let batch = m
            .batch
            .iter()
            .map(|b| json!({ "sessions": b.sessions, "tokens_per_s": samples(&b.tokens_per_s) }));
        let sessions = m
            .sessions
            .iter()
            .map(|s| json!({ "sessions": s.sessions, "tokens_per_s": samples(&s.tokens_per_s) }));
        let beside = m.beside_prefill.as_ref().map(|(decoded, read)| {
            json!({
                "decode_tokens_per_s": samples(decoded),
                "prefill_tokens_per_s": samples(read),
            })
        });
        let moves = |m: &Moves| json!({ "evict_gb_per_s": samples(&m.evict), "resume_gb_per_s": samples(&m.resume) });
        let states = m.states.as_ref().map(|s| {
            json!({
                "depth": s.depth,
                "saved_bytes": s.saved_bytes,
                "save_gb_per_s": samples(&s.save),
                "restore_gb_per_s": samples(&s.restore),
                "restore_file_gb_per_s": samples(&s.restore_file),
                "fork_ms": samples(&s.fork_ms),
                "session": s.session.as_ref().map(moves),
                "weight_bytes": s.weight_bytes,
                "weights": s.weights.as_ref().map(moves),
            })
        });
        let embedded = m.embedded.iter().map(|e| {
            json!({
                "tokens": e.tokens,
                "texts": e.texts,
                "batch_tokens": e.batch_tokens,
                "bytes": e.bytes,
                "tokens_per_s": samples(&e.tokens_per_s),
            })
        });
        let bandwidth = self.bandwidth.map(|b| {
            json!({
                "gb_per_s": samples(&b.gb_per_s),
                "threads": b.threads,
                "bytes": b.bytes,
            })
        });
        json!({
            "ember_bench": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "file_bytes": self.traffic.file_bytes,
            "weight_bytes_per_token": self.traffic.weight_bytes,
            "device": { "name": m.device.name, "isa": m.device.isa, "threads": m.threads },
            "sampling": self.args.sampling.0,
            "kv": {
                "type": self.kv_name(),
                "bytes_per_token": m.kv_bytes_per_token,
                "bytes": m.kv_bytes,
            },
            "load_ms": samples(&m.load_ms),
            "first_token_ms": samples(&m.first_token_ms),
            "memory": { "peak_bytes": self.peak_bytes, "weights_beyond_file_bytes": m.resident_bytes },
            "bandwidth": bandwidth,
            "prefill": prefill.collect::<Vec<_>>(),
            "decode": decode.collect::<Vec<_>>(),
            "drafts": drafted.collect::<Vec<_>>(),
            "batch": batch.collect::<Vec<_>>(),
            "sessions": sessions.collect::<Vec<_>>(),
            "beside_prefill": beside,
            "states": states,
            "embed": embedded.collect::<Vec<_>>(),
            "busy_threads": self.args.busy,
            "left_out": m.left_out,
        })
    }
}

/// 10^9 bytes per second of a kind of work; 0 where it took no time.
fn profile_gb_per_s(entry: &ProfileEntry) -> f64 {
    match entry.microseconds > 0.0 {
        true => entry.bytes as f64 / entry.microseconds / 1e3,
        false => 0.0,
    }
}

fn profile(profile: &Profile) -> Value {
    let entries = profile.done().map(|(work, e)| {
        json!({
            "work": work.name(),
            "calls": e.calls,
            "microseconds": e.microseconds,
            "bytes": e.bytes,
            "gb_per_s": profile_gb_per_s(&e),
        })
    });
    entries.collect()
}

fn samples(s: &Samples) -> Value {
    json!({ "median": s.median(), "min": s.least(), "max": s.greatest(), "samples": s.values() })
}

/// The median, and the range if there is one.
fn spread(s: &Samples, digits: usize) -> String {
    match s.values().len() {
        1 => format!("{:.digits$}", s.median()),
        _ => format!(
            "{:.digits$} ({:.digits$} to {:.digits$})",
            s.median(),
            s.least(),
            s.greatest()
        ),
    }
}

/// 10^6 or 10^9 bytes.
fn bytes(n: u64) -> String {
    match n {
        0..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}
