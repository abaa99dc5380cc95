//! Sessions that are saved and restored.
//!
//! | file | holds |
//! |---|---|
//! | `format` | the layout of a saved session: header, parts, settings |
//! | `output` | where it goes: a file that is replaced as a whole, or a callback |
//! | `input` | where it comes from, checked part by part |
//! | `convert` | keys and values in another element type |

mod convert;
mod format;
mod input;
mod output;
mod sums;

pub use format::{Kind, StateDetails};
pub use input::ReadFn;
pub use output::WriteFn;

use self::convert::Converter;
use self::format::{Header, SavedRules, Section, Settings};
use self::input::Input;
use self::output::Output;
use super::{Model, Session, WantedAdapter, adapter};
use crate::backend::state::{StateLayout, WindowState};
use crate::backend::{KvType, RunnerOptions, StateInfo, StateSink, StateSource, When};
use crate::engine::session::check_mark_interval;
use crate::error::{Result, fail, try_vec};
use std::path::Path;
use std::sync::Arc;

/// How a session is restored.
#[derive(Clone, Copy, Default)]
pub struct RestoreOptions<'a> {
    /// The most tokens the session can hold; 0 means as many as the saved one.
    pub context: usize,
    /// Element type of the KV cache; none means that of the saved one, or half precision where the
    /// device does not take it.
    pub kv_type: Option<KvType>,
    /// As in [`super::SessionOptions`].
    pub stream_priority: i32,
    /// As in [`super::SessionOptions`].
    pub mark_interval: usize,
    /// The adapters that the session was saved with, in the same order and with the same scales.
    pub adapters: &'a [WantedAdapter<'a>],
}

impl Session {
    /// Saves the session to a file, which is replaced as a whole or not at all.
    ///
    /// Errors: `DecodePending`; `Io` names what could not be done; those of the device. The session
    /// and an older file are as they were.
    pub fn save(&mut self, path: &Path, kind: Kind) -> Result<()> {
        self.begin()?;
        let mut file = output::NewFile::create(path)?;
        self.write_state(&mut file, kind)?;
        file.replace()
    }

    /// Saves the session through a function that takes the bytes in order.
    ///
    /// Errors: as [`Session::save`]; those of `write`.
    pub fn save_to(&mut self, write: &mut WriteFn<'_>, kind: Kind) -> Result<()> {
        self.begin()?;
        self.write_state(&mut output::Callback(write), kind)
    }

    fn write_state(&mut self, output: &mut dyn Output, kind: Kind) -> Result<()> {
        if kind == Kind::Everything {
            self.resume()?;
        }
        let mut writer = Writer {
            model: self.model.clone(),
            header: Header::new(&self.model, kind, self.options.context, self.tokens.len())
                .with_adapters(self.adapters.is_some()),
            settings: self.settings(),
            tokens: &self.tokens,
            parts: output::Parts::new(output)?,
        };
        match kind {
            Kind::Everything => self.residence.runner()?.save(&mut writer)?,
            Kind::Tokens => writer.begin(&StateInfo {
                kv_type: self.options.kv_type,
                len: 0,
                has_logits: false,
                windows: WindowState::of(self.model.weights().kv_layers()),
            })?,
        }
        writer.finish()
    }

    /// What is saved beside tokens, keys and values.
    fn settings(&self) -> Settings {
        Settings {
            info: None,
            sampling: self.sampling,
            rules: self.rules.as_deref().map(SavedRules::of),
            grammar: self.constraint.as_ref().map(|c| c.saved()),
            adapters: self.saved_adapters(),
            architecture: self.model.details().architecture.clone(),
            name: self.model.details().name.clone(),
        }
    }

    /// Restores a session of a model from a file.
    ///
    /// Errors: `FileNotFound`, `Io`; `NotState`, `StateVersion`, `StateForeign`, `FileTruncated`,
    /// `StateChecksum`, `FileCorrupt`, by what is wrong with the file; `InvalidArgument` for a
    /// context that is too short; those of [`Session::create`] and, if only tokens were saved, of
    /// `prefill`.
    pub fn restore(
        model: Arc<Model>,
        path: &Path,
        options: &RestoreOptions<'_>,
    ) -> Result<Session> {
        Session::read_state(model, Input::open(path)?, options)
    }

    /// The same through a function that gives the bytes in order.
    pub fn restore_from(
        model: Arc<Model>,
        read: &mut ReadFn<'_>,
        options: &RestoreOptions<'_>,
    ) -> Result<Session> {
        Session::read_state(model, Input::callback(read), options)
    }

    fn read_state(
        model: Arc<Model>,
        mut input: Input<'_>,
        options: &RestoreOptions<'_>,
    ) -> Result<Session> {
        let header = Header::read(&mut input)?;
        header.check_model(&model)?;
        let settings = Settings::read(&mut input, &header)?;
        let Some(info) = settings.info.clone() else {
            fail!(Internal, "settings without a state");
        };
        let weights = model.weights().clone();
        let n_vocab = model.details().n_vocab;
        let layout = StateLayout::new(weights.kv_layers(), &info, n_vocab)?;
        let layout = layout.with_fixed(weights.fixed_len());
        header.check_stream(&info, layout.bytes())?;
        let adapters = adapter::set_of(&model, options.adapters)?;
        adapter::check_saved(&settings.adapters, &adapter::saved(adapters.as_deref()))?;
        let tokens = header.read_tokens(&mut input)?;
        model.check_tokens(&tokens)?;
        let mut session = Session::for_saved(model.clone(), &header, options)?;
        session.tokens.extend_from_slice(&tokens);
        session.set_sampling_of(settings)?;
        if adapters.is_some() {
            session.residence.runner()?.set_adapters(adapters.clone())?;
            session.adapters = adapters;
        }
        match header.kind {
            Kind::Tokens if tokens.is_empty() => {}
            Kind::Tokens => {
                session.evaluate(When::Now)?;
                session.wait()?;
            }
            Kind::Everything => {
                input.section(Section::Stream, header.stream_bytes);
                let mut info = info.clone();
                let kv_type = session.options.kv_type;
                let runner = session.residence.runner()?;
                let mut converter;
                let source: &mut dyn StateSource = if info.kv_type == kv_type {
                    &mut input
                } else {
                    converter = Converter::new(&layout, &info, kv_type, &mut input);
                    &mut converter
                };
                info.kv_type = kv_type;
                runner.load(&info, &tokens[..info.len], source)?;
            }
        }
        input.finish()?;
        crate::memory::check()?;
        Ok(session)
    }

    /// An empty session that can take over a saved one.
    fn for_saved(
        model: Arc<Model>,
        header: &Header,
        options: &RestoreOptions<'_>,
    ) -> Result<Session> {
        let context = match options.context {
            0 => header.context,
            context => context,
        };
        let trained = model.details().context_length;
        if context > trained {
            fail!(
                InvalidArgument,
                "context is {context}, but the model was trained for {trained} positions"
            );
        }
        if context < header.n_tokens {
            fail!(
                InvalidArgument,
                "context is {context}, but the saved session has {} tokens",
                header.n_tokens
            );
        }
        model.check_alone()?;
        model.check_files()?;
        let weights = model.weights().clone();
        let kv_type = options.kv_type.unwrap_or({
            match weights.takes_kv_type(header.kv_type) {
                true => header.kv_type,
                false => KvType::F16,
            }
        });
        let options = RunnerOptions {
            context,
            kv_type,
            stream_priority: options.stream_priority,
            mark_interval: check_mark_interval(options.mark_interval)?,
        };
        let runner = weights.create_runner(&options)?;
        Session::of(model, runner, options)
    }

    /// Takes over how tokens are chosen.
    fn set_sampling_of(&mut self, settings: Settings) -> Result<()> {
        let sampling = settings.sampling;
        if let Err(e) = sampling.check() {
            fail!(FileCorrupt, "the saved settings: {}", e.message);
        }
        let n_vocab = self.model.details().n_vocab;
        let rules = match settings.rules.map(|rules| rules.make(n_vocab)) {
            Some(Ok(rules)) => Some(Arc::new(rules)),
            Some(Err(e)) if e.status == crate::Status::OutOfMemory => return Err(e),
            Some(Err(e)) => fail!(FileCorrupt, "the saved settings: {}", e.message),
            None => None,
        };
        self.residence.runner()?.set_rules(rules.clone())?;
        self.sampling = sampling;
        self.rules = rules;
        if let Some(saved) = settings.grammar {
            self.restore_grammar(saved)?;
        }
        Ok(())
    }
}

/// What a saved session is, by its file alone: nothing but its header and settings is read.
///
/// Errors: those of [`Session::restore`] that these show.
pub fn inspect(path: &Path) -> Result<StateDetails> {
    let mut input = Input::open(path)?;
    let header = Header::read(&mut input)?;
    let settings = Settings::read(&mut input, &header)?;
    Ok(StateDetails::new(&header, &settings))
}

/// Writes a saved session: what comes before the stream when that begins.
struct Writer<'a> {
    model: Arc<Model>,
    header: Header,
    settings: Settings,
    tokens: &'a [u32],
    parts: output::Parts<'a>,
}

impl Writer<'_> {
    fn finish(mut self) -> Result<()> {
        self.parts.end_section()?;
        self.parts.finish(self.header.total_bytes())
    }
}

impl StateSink for Writer<'_> {
    fn begin(&mut self, info: &StateInfo) -> Result<()> {
        let n_vocab = self.model.details().n_vocab;
        let weights = self.model.weights();
        let layout = StateLayout::new(weights.kv_layers(), info, n_vocab)?;
        let layout = layout.with_fixed(weights.fixed_len());
        let bytes = match self.header.kind {
            Kind::Everything => layout.bytes(),
            Kind::Tokens => Some(0),
        };
        let Some(bytes) = bytes else {
            fail!(OutOfMemory, "a state beyond all memory");
        };
        self.settings.info = Some(info.clone());
        let settings = self.settings.encode();
        self.header.settings_bytes = settings.len() as u64;
        self.header.stream_bytes = bytes;
        self.header.kv_type = info.kv_type;
        self.header.len = info.len;
        self.parts.raw(&self.header.encode())?;
        self.parts
            .begin_section(Section::Settings, settings.len() as u64);
        self.parts.write(&settings)?;
        self.parts.end_section()?;
        self.parts
            .begin_section(Section::Tokens, self.tokens.len() as u64 * 4);
        let mut bytes = try_vec(self.tokens.len() * 4, 0u8, "saved tokens")?;
        for (to, token) in bytes.chunks_exact_mut(4).zip(self.tokens) {
            to.copy_from_slice(&token.to_le_bytes());
        }
        self.parts.write(&bytes)?;
        self.parts.end_section()?;
        self.parts
            .begin_section(Section::Stream, self.header.stream_bytes);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.parts.write(bytes)
    }
}
