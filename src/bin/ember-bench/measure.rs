//! Runs a model and takes times.

use crate::adapters;
use crate::args::{Args, Drafts, Kv, Lengths};
use crate::beside::{BusyHost, beside_prefill, sessions_rate};
use crate::drafts::{self, Drafted};
use crate::embed::{self, Embedded};
use crate::random::Random;
use crate::states::{self, States};
use crate::stats::Samples;
use emberlm::backend::{DeviceInfo, DeviceKind, KvType, LoadOptions, Profile, RunnerOptions};
use emberlm::engine::{Adapter, Model, Session, SessionOptions, WantedAdapter, device};
use emberlm::grammar::{GrammarKind, GrammarOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// All times of one model.
pub struct Measured {
    /// The device that ran it.
    pub device: DeviceInfo,
    /// Threads of the model.
    pub threads: usize,
    /// From the path to a model that can make sessions, in milliseconds.
    pub load_ms: Samples,
    /// From the path to the first token after a prompt of one, in milliseconds.
    pub first_token_ms: Samples,
    /// Prompt lengths.
    pub prefill: Vec<Prefill>,
    /// Decode depths.
    pub decode: Vec<Decode>,
    /// Decodes with drafts.
    pub drafted: Vec<Drafted>,
    /// Sessions that decode together.
    pub batch: Vec<Batch>,
    /// Sessions that decode on a thread each.
    pub sessions: Vec<Batch>,
    /// Decodes while another session reads prompts, and that session's rate, if that was asked for.
    pub beside_prefill: Option<(Samples, Samples)>,
    /// A session that is saved, restored, forked and evicted, if that was asked for.
    pub states: Option<States>,
    /// Vectors of texts.
    pub embedded: Vec<Embedded>,
    /// Lengths that the context does not hold.
    pub left_out: Vec<String>,
    /// Bytes of KV cache per position.
    pub kv_bytes_per_token: u64,
    /// Bytes of KV cache of the measured session.
    pub kv_bytes: u64,
    /// Bytes that the weights take besides the mapped file.
    pub resident_bytes: u64,
}

/// One prompt length.
pub struct Prefill {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Rate.
    pub tokens_per_s: Samples,
}

/// Several sessions in one pass over the weights.
pub struct Batch {
    /// Sessions.
    pub sessions: usize,
    /// Tokens of all sessions together.
    pub tokens_per_s: Samples,
    /// The same with adapters, if that was asked for.
    pub adapted: Option<Samples>,
}

/// One depth.
pub struct Decode {
    /// Tokens in the context before the first one decoded.
    pub depth: usize,
    /// Tokens decoded per sample.
    pub generated: usize,
    /// Rate.
    pub tokens_per_s: Samples,
    /// Rate of decodes that are started so many at a time, if that was asked for.
    pub queued: Option<(usize, Samples)>,
    /// Rate with an adapter, if that was asked for.
    pub adapted: Option<Samples>,
    /// Rate under a grammar, if that was asked for.
    pub grammar: Option<Samples>,
    /// Where the time of one token goes, if that was asked for.
    pub profile: Option<Profile>,
}

/// Never comes to an end, and leaves the model a choice for nearly every token.
const SCHEMA: &str =
    r#"{"type": "array", "minItems": 1000000, "items": {"type": "string", "minLength": 200}}"#;

/// Measures everything that `args` asks for. `say` is told what is going on.
pub fn run(args: &Args, path: &Path, say: &dyn Fn(&str)) -> emberlm::Result<Measured> {
    let device = device::info(args.device)?;
    let _busy = BusyHost::start(args.busy);
    let kv_type = match args.kv {
        Kv::F16 => KvType::F16,
        Kv::F32 => KvType::F32,
        Kv::Q8_0 => KvType::Q8_0,
    };
    let load = |context: usize| -> emberlm::Result<(Arc<Model>, f64, f64)> {
        let start = Instant::now();
        let model = Arc::new(Model::load(
            path,
            args.device,
            &LoadOptions {
                threads: args.threads as usize,
                memory_limit: args.memory_limit,
                host_experts: args.cpu_experts,
                split: args.split.clone(),
                by_tensors: args.by_tensors,
                draft_heads: args.speculate.contains(&Drafts::Heads),
                f16_batches: args.f16_batches,
                nccl: args.nccl,
                ..Default::default()
            },
            &mut |_| Ok(()),
        )?);
        let loaded = start.elapsed();
        if args.has_sessions() {
            let mut session = session(&model, context, kv_type, args)?;
            session.prefill(&[0])?;
            session.decode()?;
        }
        let first = start.elapsed();
        Ok((model, loaded.as_secs_f64() * 1e3, first.as_secs_f64() * 1e3))
    };
    say("loading");
    let mut load_ms = Vec::new();
    let mut first_token_ms = Vec::new();
    let mut model = None;
    for _ in 0..args.reps {
        // The one before is freed first, or two would be resident.
        drop(model.take());
        let (loaded, ms, first) = load(256)?;
        load_ms.push(ms);
        first_token_ms.push(first);
        model = Some(loaded);
    }
    let model = model.expect("at least one repetition");

    let mut embedded = Vec::new();
    for &tokens in &args.embed {
        say(&format!("texts of {tokens} tokens"));
        let texts = embed::measure(&model, tokens, args.embed_batch, args.reps)?;
        embedded.push(texts);
    }
    let threads = match args.threads {
        0 => device.cores as usize,
        n => n as usize,
    };
    let alone = |embedded| Measured {
        threads,
        load_ms: Samples::new(load_ms.clone()),
        first_token_ms: Samples::new(first_token_ms.clone()),
        prefill: Vec::new(),
        decode: Vec::new(),
        drafted: Vec::new(),
        batch: Vec::new(),
        sessions: Vec::new(),
        beside_prefill: None,
        states: None,
        embedded,
        left_out: Vec::new(),
        kv_bytes_per_token: model.weights().kv_bytes_per_token(kv_type),
        kv_bytes: 0,
        resident_bytes: model.details().resident_bytes,
        device: device.clone(),
    };
    if !args.has_sessions() {
        return Ok(alone(embedded));
    }

    let trained = model.details().context_length;
    let mut left_out = Vec::new();
    let prompts = fitting(&args.prompt, 0, trained, "prompt of", &mut left_out)?;
    let extra = args.generate + 2;
    let depths = fitting(
        &args.depth,
        extra,
        trained,
        "decode at depth",
        &mut left_out,
    )?;
    let context = prompts
        .iter()
        .copied()
        .chain(depths.iter().map(|d| d + extra))
        .max()
        .unwrap_or(0)
        .clamp(1, trained);
    let mut session = session(&model, context, kv_type, args)?;
    let tokens = random_tokens(context, model.details().n_vocab);

    let adapters = adapters::random(&model, path, args.adapters, args.adapter_kind)?;

    let mut prefill = Vec::new();
    for tokens_in_prompt in prompts {
        say(&format!("prompt of {tokens_in_prompt} tokens"));
        prefill.push(Prefill {
            tokens: tokens_in_prompt,
            tokens_per_s: prefill_rate(&mut session, &tokens[..tokens_in_prompt], args.reps)?,
        });
    }
    let mut decode = Vec::new();
    for depth in depths {
        say(&format!("decode at depth {depth}"));
        decode.push(Decode {
            depth,
            generated: args.generate,
            tokens_per_s: decode_rate(&mut session, &tokens[..depth.max(1)], args)?,
            queued: match args.queue {
                Some(n) => Some((n, queued_rate(&mut session, depth.max(1), n, args)?)),
                None => None,
            },
            adapted: match adapters.first() {
                Some(adapter) => {
                    session.set_adapters(&[whole(adapter)], false)?;
                    let rate = decode_rate(&mut session, &tokens[..depth.max(1)], args)?;
                    session.set_adapters(&[], false)?;
                    Some(rate)
                }
                None => None,
            },
            grammar: match args.grammar {
                true => Some(grammar_rate(&mut session, depth.max(1), args)?),
                false => None,
            },
            profile: match args.profile {
                true => Some(fastest_profile(&mut session, depth.max(1), args.reps)?),
                false => None,
            },
        });
    }
    let mut drafted = Vec::new();
    for source in &args.speculate {
        say(&format!("decode with drafts: {source}"));
        let depth = decode.first().map_or(1, |d| d.depth.max(1));
        session.rewind(0)?;
        session.prefill(&tokens[..depth])?;
        drafted.push(drafts::measure(
            &mut session,
            source,
            args.generate,
            args.reps,
        )?);
        if let Some(path) = &args.tasks {
            drafted.extend(drafts::measure_tasks(
                &mut session,
                source,
                path,
                args.reps,
            )?);
        }
    }
    let mut batch = Vec::new();
    for &sessions in &args.batch {
        say(&format!("decode of {sessions} sessions"));
        batch.push(Batch {
            sessions,
            tokens_per_s: batch_rate(&model, sessions, kv_type, &tokens, &[], args)?,
            adapted: match &adapters[..] {
                [] => None,
                all => Some(batch_rate(&model, sessions, kv_type, &tokens, all, args)?),
            },
        });
        for source in &args.speculate {
            say(&format!(
                "decode of {sessions} sessions with drafts: {source}"
            ));
            let make = |i: usize| {
                let mut session = self::session(&model, args.generate + 2, kv_type, args)?;
                session.prefill(&[tokens[i % tokens.len()]])?;
                Ok(session)
            };
            let made = || {
                (0..sessions)
                    .map(make)
                    .collect::<emberlm::Result<Vec<Session>>>()
            };
            let mut made = [made()?, made()?];
            let measured = drafts::measure_batch(&mut made, source, args.generate, args.reps)?;
            drafted.push(measured);
        }
    }
    // Sessions with one token in their context.
    let made = |count: usize| -> emberlm::Result<Vec<Session>> {
        let context = (args.generate + 3).max(args.beside_prefill.unwrap_or(0));
        let make = |_| {
            let mut session = self::session(&model, context, kv_type, args)?;
            session.prefill(&tokens[..1])?;
            Ok(session)
        };
        (0..count).map(make).collect()
    };
    let mut on_threads = Vec::new();
    for &count in &args.sessions {
        say(&format!("decode of {count} sessions on threads"));
        let mut sessions = made(count)?;
        on_threads.push(Batch {
            sessions: count,
            tokens_per_s: sessions_rate(&mut sessions, args.generate, args.reps)?,
            adapted: None,
        });
    }
    let mut beside = None;
    if let Some(n) = args.beside_prefill {
        say(&format!("decode beside prompts of {n} tokens"));
        let n = n.min(trained);
        let mut sessions = made(2)?;
        if let [decoding, reading] = &mut sessions[..] {
            let prompt = random_tokens(n, model.details().n_vocab);
            let rates = beside_prefill(decoding, reading, &prompt, args.generate, args.reps)?;
            beside = Some(rates);
        }
    }
    let mut of_states = None;
    if let Some(n) = args.states {
        say(&format!("states of {n} tokens"));
        let on_gpu = device.kind == DeviceKind::Cuda;
        drop(session);
        let mut session = self::session(&model, n, kv_type, args)?;
        session.prefill(&random_tokens(n, model.details().n_vocab))?;
        of_states = Some(states::measure(&mut session, kv_type, args.reps, on_gpu)?);
    }
    Ok(Measured {
        prefill,
        decode,
        drafted,
        batch,
        sessions: on_threads,
        beside_prefill: beside,
        states: of_states,
        left_out,
        kv_bytes: model.weights().kv_bytes(&RunnerOptions {
            context,
            kv_type,
            ..RunnerOptions::default()
        }),
        ..alone(embedded)
    })
}

fn session(
    model: &Arc<Model>,
    context: usize,
    kv_type: KvType,
    args: &Args,
) -> emberlm::Result<Session> {
    Session::create(
        model.clone(),
        &SessionOptions {
            context: context.min(model.details().context_length),
            kv_type,
            sampling: args.sampling.1,
            ..SessionOptions::default()
        },
    )
}

/// An adapter as it is.
fn whole(adapter: &Adapter) -> WantedAdapter<'_> {
    WantedAdapter {
        adapter,
        scale: 1.0,
    }
}

/// The lengths that leave `extra` positions of the context. One that the caller named and that
/// does not is an error; a default one is noted in `left_out`.
fn fitting(
    lengths: &Lengths,
    extra: usize,
    context: usize,
    what: &str,
    left_out: &mut Vec<String>,
) -> emberlm::Result<Vec<usize>> {
    let mut fit = Vec::new();
    for &n in &lengths.list {
        if n + extra <= context {
            fit.push(n);
        } else if lengths.explicit {
            return Err(emberlm::Error::new(
                emberlm::Status::ContextFull,
                format!("{what} {n}: needs {} of {context} positions", n + extra),
            ));
        } else {
            left_out.push(format!("{what} {n}"));
        }
    }
    Ok(fit)
}

pub fn random_tokens(count: usize, n_vocab: usize) -> Vec<u32> {
    let mut random = Random::new(1);
    let mut token = || (random.bits() % n_vocab as u64) as u32;
    (0..count).map(|_| token()).collect()
}

/// Tokens per second of one call with the whole prompt, after one that warms up.
fn prefill_rate(session: &mut Session, prompt: &[u32], reps: usize) -> emberlm::Result<Samples> {
    let mut rates = Vec::new();
    for rep in 0..=reps {
        session.rewind(0)?;
        let start = Instant::now();
        session.prefill(prompt)?;
        let seconds = start.elapsed().as_secs_f64();
        if rep > 0 {
            rates.push(prompt.len() as f64 / seconds);
        }
    }
    Ok(Samples::new(rates))
}

/// Tokens per second of what `generate` does, which decodes so many tokens behind the first `depth` of the
/// context; `warm_ups` go before. The first decode is not timed: its logits are there already, so it
/// is no forward pass.
fn rates(
    session: &mut Session,
    depth: usize,
    warm_ups: usize,
    args: &Args,
    generate: impl Fn(&mut Session, usize) -> emberlm::Result<()>,
) -> emberlm::Result<Samples> {
    let mut rates = Vec::new();
    for rep in 0..warm_ups + args.reps {
        session.rewind(depth)?;
        session.decode()?;
        let start = Instant::now();
        generate(session, args.generate)?;
        if rep >= warm_ups {
            rates.push(args.generate as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(Samples::new(rates))
}

fn decode_singly(session: &mut Session, count: usize) -> emberlm::Result<()> {
    for _ in 0..count {
        session.decode()?;
    }
    Ok(())
}

/// Of single decodes after `prompt`.
fn decode_rate(session: &mut Session, prompt: &[u32], args: &Args) -> emberlm::Result<Samples> {
    session.rewind(0)?;
    session.prefill(prompt)?;
    rates(session, prompt.len(), 0, args, decode_singly)
}

/// Of decodes that are started `at_once` at a time.
fn queued_rate(
    session: &mut Session,
    depth: usize,
    at_once: usize,
    args: &Args,
) -> emberlm::Result<Samples> {
    rates(session, depth, 0, args, |session, count| {
        for first in (0..count).step_by(at_once) {
            let started = at_once.min(count - first);
            session.decode_start(started)?;
            for _ in 0..started {
                while session.decode_poll()?.is_none() {
                    std::thread::yield_now();
                }
            }
        }
        Ok(())
    })
}

/// Of single decodes under a grammar.
fn grammar_rate(session: &mut Session, depth: usize, args: &Args) -> emberlm::Result<Samples> {
    session.rewind(depth)?;
    let options = GrammarOptions::default();
    session.set_grammar(GrammarKind::JsonSchema, SCHEMA, &options)?;
    // In the first, the grammar learns the states of its lexer.
    let rates = rates(session, depth, 1, args, decode_singly)?;
    session.clear_grammar()?;
    Ok(rates)
}

/// Tokens per second of all sessions together, each with another token in its context.
fn batch_rate(
    model: &Arc<Model>,
    count: usize,
    kv_type: KvType,
    tokens: &[u32],
    adapters: &[Adapter],
    args: &Args,
) -> emberlm::Result<Samples> {
    let mut sessions = Vec::new();
    for i in 0..count {
        let mut session = session(model, args.generate + 2, kv_type, args)?;
        if !adapters.is_empty() {
            session.set_adapters(&[whole(&adapters[i % adapters.len()])], false)?;
        }
        session.prefill(&[tokens[i % tokens.len()]])?;
        sessions.push(session);
    }
    let mut rates = Vec::new();
    for _ in 0..args.reps {
        for session in &mut sessions {
            session.rewind(1)?;
        }
        let mut together: Vec<&mut Session> = sessions.iter_mut().collect();
        let mut batch = || {
            let tokens = Session::decode_batch(&mut together)?;
            tokens.into_iter().try_for_each(|token| token.map(drop))
        };
        batch()?;
        let start = Instant::now();
        for _ in 0..args.generate {
            batch()?;
        }
        rates.push((count * args.generate) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(Samples::new(rates))
}

/// Of several profiles of the token at `depth` the one that took the least time.
fn fastest_profile(session: &mut Session, depth: usize, reps: usize) -> emberlm::Result<Profile> {
    session.rewind(depth)?;
    let total = |p: &Profile| -> f64 { p.done().map(|(_, e)| e.microseconds).sum() };
    let mut fastest = session.profile()?;
    for _ in 0..reps {
        let profile = session.profile()?;
        if total(&profile) < total(&fastest) {
            fastest = profile;
        }
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(list: &[usize], explicit: bool) -> Lengths {
        Lengths {
            list: list.to_vec(),
            explicit,
        }
    }

    #[test]
    fn default_lengths_are_left_out_and_named_ones_are_errors() {
        let mut left_out = Vec::new();
        let fit = fitting(
            &lengths(&[5, 90, 95], false),
            10,
            100,
            "depth",
            &mut left_out,
        );
        assert_eq!(fit.as_deref(), Ok(&[5, 90][..]));
        assert_eq!(left_out, ["depth 95"]);
        let error = fitting(&lengths(&[95], true), 10, 100, "depth", &mut left_out).unwrap_err();
        assert!(error.message.contains("95") && error.message.contains("105"));
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_repeatable() {
        let tokens = random_tokens(1000, 7);
        assert!(tokens.iter().all(|t| *t < 7) && tokens.contains(&6) && tokens.contains(&0));
        assert_eq!(tokens, random_tokens(1000, 7));
    }
}
