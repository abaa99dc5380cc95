//! A model: a file's network resident on a device, and its text layer.

use super::background::Background;
use super::placement::{self, PartDetails, PlacedEstimate, Places};
use super::speculate::{BatchDepth, Drafter, HeadsBeside};
use super::{Metadata, SessionOptions, device, fingerprint};
use crate::backend::cpu::{self, MAX_THREADS};
use crate::backend::group::Work;
use crate::backend::{DeviceKind, KvType, LoadOptions, NO_PLACES, Progress, Weights};
use crate::error::{Error, Result, Status, fail};
use crate::format::{Access, MappedFiles, ModelFile, ModelSource, Tensor, Value};
use crate::grammar::GrammarVocabulary;
use crate::log::{ModelLog, log};
use crate::memory::{self, Room};
use crate::model::{Adaptable, Block, Linear, Network, Norm, Pooling};
use crate::text::{ChatTemplates, Tokenizer};
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Context of a session that names none, if the model was trained for more.
pub const DEFAULT_CONTEXT: usize = 4096;

/// The share of a load that converting the weights takes, if any are converted.
const MAKING_SHARE: f32 = 0.8;

/// Facts about a loaded model.
#[derive(Clone, Debug)]
pub struct Details {
    /// `general.architecture` of the file.
    pub architecture: String,
    /// `general.name` of the file; may be empty.
    pub name: String,
    /// The most frequent tensor type by bytes, for example `Q4_K`.
    pub quantization: String,
    /// Index of the device that holds the weights.
    pub device: usize,
    /// Number of token ids.
    pub n_vocab: usize,
    /// Positions that the model was trained for.
    pub context_length: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of weights; shared ones count once.
    pub n_parameters: u64,
    /// Bytes of the file, or of all files of a split one.
    pub file_bytes: u64,
    /// Bytes of memory that the weights take beyond mapped files.
    pub resident_bytes: u64,
    /// Layers on GPUs, of which the others are on the CPU; all of a model for CPUs.
    pub device_layers: usize,
    /// Layers on a GPU whose experts are on the CPU.
    pub host_experts: usize,
    /// What is where, the first layers first.
    pub parts: Vec<PartDetails>,
    /// Bytes of KV cache per position in half precision.
    pub kv_bytes_per_token: u64,
}

/// A loaded model. Shared by its sessions; immutable.
pub struct Model {
    weights: Arc<dyn Weights>,
    tokenizer: Result<Tokenizer>,
    /// Made by the first grammar.
    grammar_vocabulary: Mutex<Option<Arc<GrammarVocabulary>>>,
    chat_templates: Result<ChatTemplates>,
    details: Details,
    metadata: Metadata,
    /// Of the network and of the tokenizer.
    fingerprints: [u64; 2],
    files: MappedFiles,
    background: Background,
    /// How many drafts its batches verify.
    batch_depth: Arc<Mutex<BatchDepth>>,
    readout: ReadoutFacts,
    /// Its head that guesses further tokens, or why there is none.
    head: Result<Arc<dyn Weights>>,
    /// Set if it is itself a head for another model.
    drafter: Option<Box<Drafter>>,
    /// Heads that are models of their own and draft for it.
    heads_beside: HeadsBeside,
    /// It is on one device as a whole.
    is_whole: bool,
    /// Where adapters find its matrices; none for encoders.
    adaptable: Option<Adaptable>,
    log: Option<ModelLog>,
}

/// What the file says about vectors and scores of texts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadoutFacts {
    /// It reads texts as a whole, and has no sessions.
    pub encoder: bool,
    pub pooling: Option<Pooling>,
    pub normalized: Option<bool>,
    pub max_tokens: Option<usize>,
    /// It has a layer that scores texts, and whether that is by tokens of an answer.
    pub scores: Option<bool>,
}

impl Model {
    /// [`load_from`](Self::load_from) a path.
    pub fn load(
        path: &Path,
        device_index: usize,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Model> {
        Model::load_from(&ModelSource::Path(path), device_index, options, progress)
    }

    /// Loads a model onto a device.
    ///
    /// Errors: those of [`ModelFile::open`], [`Network::from_file`] and the backend; `NoDevice`;
    /// `InvalidArgument` for too many threads; `FileTruncated` and `FileCorrupt` for files that change
    /// meanwhile; whatever `progress` fails with. A tokenizer that is not supported is no error here
    /// but one of [`Model::tokenizer`].
    pub fn load_from(
        source: &ModelSource<'_>,
        device_index: usize,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Model> {
        if let Some(group) = &options.group {
            group.claim()?;
        }
        let loaded = Model::load_part(source, device_index, options, progress);
        if let Some(group) = &options.group {
            group.leave(loaded.as_ref().err());
        }
        loaded.map(|model| *model)
    }

    /// [`load_from`](Self::load_from), of which other ranks are not told how it ends.
    fn load_part(
        source: &ModelSource<'_>,
        device_index: usize,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Box<Model>> {
        check_options(options)?;
        let room = room_for(source)?;
        let _in_room = room.enter();
        let device_index = placement::main_device(device_index, options);
        let shares = options.split.iter().map(|share| share.device);
        for index in shares.chain([device_index]) {
            let info = device::info(index)?;
            if !info.usable {
                fail!(
                    NoDevice,
                    "device {index} ({}) cannot be used: {}",
                    info.name,
                    info.reason
                );
            }
        }
        let device_info = device::info(device_index)?;
        progress(0.0)?;
        let kind = device_info.kind;
        let access = match kind {
            DeviceKind::Cpu => options.access,
            // Some of it may stay on the CPU.
            _ if options.memory_limit > 0
                || options.host_experts > 0
                || !options.split.is_empty() =>
            {
                options.access
            }
            // What is uploaded is read once.
            _ => Access::Read,
        };
        // In memory of the model's own, whatever is made of it.
        let copied = match source {
            ModelSource::Copied(bytes) => bytes.len() as u64,
            _ => 0,
        };
        let memory_free = cpu::host::memory().free;
        if kind == DeviceKind::Cpu {
            check_memory(copied, memory_free)?;
        }
        let (mut file, mut network) = open(source, access, options)?;
        if access != options.access && network.fusion().is_some() {
            // It stays in host memory, from where a model takes it.
            (file, network) = open(source, options.access, options)?;
        }
        let drafter = Drafter::of(&network).map(Box::new);
        let mut for_drafter = None;
        let options = match drafter {
            // What drafts runs on the threads of another model.
            Some(_) => for_drafter.insert(alone(options)),
            None => options,
        };
        let opened = Opened {
            network,
            drafter,
            texts: texts(source, options, &file)?,
            file,
            device_index,
            copied,
            memory_free,
        };
        Model::load_opened(source, opened, options, progress)
    }

    /// The rest of it, with a frame of its own.
    #[inline(never)]
    fn load_opened(
        source: &ModelSource<'_>,
        opened: Opened,
        options: &LoadOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Box<Model>> {
        let Opened {
            mut file,
            mut network,
            texts,
            drafter,
            device_index,
            copied,
            memory_free,
        } = opened;
        let log = options.log.as_ref();
        let device_info = device::info(device_index)?;
        let predictor = network.predictor.take();
        keep_used(&mut file, [Some(&network), predictor.as_deref()]);
        let places = placement::places(&network, predictor.as_deref(), device_index, options)?;
        let kept = match drafter {
            Some(_) => Some(placement::on_host(&network)?),
            None => None,
        };
        let loaded = kept.as_ref().unwrap_or(&places);
        let mut on_host = tensors_on_host(loaded, &network)?;
        if let Some(predictor) = predictor.as_deref().filter(|_| places.ends_on_host()) {
            on_host.extend(predictor.tensors().map(|tensor| tensor.name.clone()));
        }
        let in_host_memory = !on_host.is_empty();
        let is_on_host = |tensor: &Tensor| on_host.contains(&*tensor.name);
        // Kept in order whatever is reported; the end is reported here alone.
        let mut reached = 0.0f32;
        let threads = match options.threads {
            0 => cpu::host::physical_cores(),
            threads => threads,
        };
        let mut making = |done: f32| {
            reached = reached.max(MAKING_SHARE * done.clamp(0.0, 1.0));
            progress(reached)
        };
        let made_bytes = file.made_bytes(is_on_host);
        if in_host_memory {
            check_memory(made_bytes, memory_free)?;
            file.make_some(is_on_host, threads, &mut making)?;
        }
        file.make_converted(threads, &mut making)?;
        let fingerprints = [
            fingerprint::network(&network)?,
            fingerprint::tokenizer(texts.tokenizer.as_ref().ok()),
        ];
        let adaptable = Adaptable::of(&file, &network)?;
        if let Some(group) = &options.group {
            let model = for_ranks(&file, &network, options, fingerprints);
            group.join(&model, &mut || progress(reached))?;
        }
        let made = reached;
        let weights = placement::load(loaded, &network, options, &mut |done| {
            reached = reached.max(made + (1.0 - made) * done.clamp(0.0, 1.0));
            if reached < 1.0 {
                progress(reached)
            } else {
                Ok(())
            }
        })?;
        let head = match &predictor {
            Some(predictor) => Ok(weights.clone().load_predictor(predictor)?),
            None => Err(no_head(&file, options)),
        };
        progress(1.0)?;
        file.check_unchanged()?;
        let mut details = Details::new(&file, &network, weights.as_ref(), device_index);
        details.device_layers = places.device_layers();
        details.parts = places.parts();
        details.host_experts = places.host_experts();
        if let Ok(head) = &head {
            details.resident_bytes += head.resident_bytes();
        }
        if in_host_memory {
            details.resident_bytes += made_bytes + copied;
        }
        log!(
            of: log,
            Info,
            "loaded {source}: {} {}, {} parameters, {} of {} layers on {}",
            details.architecture,
            details.quantization,
            details.n_parameters,
            details.device_layers,
            details.n_layers,
            device_info.name
        );
        // Those that are on the CPU.
        file.tensors
            .retain(|_, tensor| on_host.contains(&*tensor.name));
        Ok(Box::new(Model {
            weights,
            tokenizer: texts.tokenizer,
            grammar_vocabulary: Mutex::default(),
            chat_templates: texts.chat_templates,
            details,
            metadata: Metadata::new(std::mem::take(&mut file.metadata)),
            fingerprints,
            log: options.log.clone(),
            readout: ReadoutFacts {
                encoder: network.encoder.is_some(),
                pooling: network.readout.pooling,
                normalized: network.readout.normalized,
                max_tokens: network.readout.max_tokens,
                scores: network.readout.scores.as_ref().map(|s| s.softmax),
            },
            files: match in_host_memory {
                true => file.mapped_files(),
                false => MappedFiles::default(),
            },
            background: Background::new(options.placement),
            batch_depth: Arc::default(),
            head,
            drafter,
            heads_beside: HeadsBeside::default(),
            is_whole: places.is_whole(),
            adaptable: Some(adaptable),
        }))
    }

    /// What loading a model file onto a device and making one session of it would take: the
    /// estimate and the session's context. Reads the file's header only and reserves nothing; the
    /// device need not be usable.
    ///
    /// Errors: those of [`Model::load`] and [`super::Session::create`] that the header shows.
    pub fn estimate(
        path: &Path,
        device_index: usize,
        options: &LoadOptions,
        session: &SessionOptions,
    ) -> Result<(PlacedEstimate, usize)> {
        check_options(options)?;
        session.sampling.check()?;
        let room = room_for(&ModelSource::Path(path))?;
        let _in_room = room.enter();
        let device_index = placement::main_device(device_index, options);
        device::get(device_index)?;
        // Of any device: its data are not touched.
        let (_, mut network) = open(&ModelSource::Path(path), Access::Read, options)?;
        let predictor = network.predictor.take();
        let runner = session.for_runner(network.context_length)?;
        let places = placement::places(&network, predictor.as_deref(), device_index, options)?;
        let mut estimate = placement::estimate(&places, &network, options, &runner)?;
        if let Some(predictor) = &predictor {
            let both = (options, &runner);
            placement::add_head(&places, &network, predictor, both, &mut estimate)?;
        }
        placement::add_fused_states(&places, &network, &runner, &mut estimate);
        Ok((estimate, runner.context))
    }

    /// A model of any weights, for tests of what lies above.
    #[cfg(test)]
    pub(crate) fn from_weights(weights: Arc<dyn Weights>, n_vocab: usize, context: usize) -> Model {
        let details = Details {
            architecture: "test".into(),
            name: String::new(),
            quantization: "F32".into(),
            device: 0,
            n_vocab,
            context_length: context,
            n_layers: 1,
            hidden: 1,
            n_parameters: 0,
            file_bytes: 0,
            resident_bytes: 0,
            device_layers: 1,
            host_experts: 0,
            parts: Vec::new(),
            kv_bytes_per_token: weights.kv_bytes_per_token(KvType::F16),
        };
        Model {
            weights,
            tokenizer: Err(Error::new(crate::Status::Unsupported, "no tokenizer")),
            grammar_vocabulary: Mutex::default(),
            chat_templates: Ok(ChatTemplates::default()),
            details,
            metadata: Metadata::default(),
            fingerprints: [1, 2],
            files: MappedFiles::default(),
            background: Background::default(),
            batch_depth: Arc::default(),
            readout: ReadoutFacts::default(),
            head: Err(Error::new(Status::Unsupported, "no head")),
            drafter: None,
            heads_beside: HeadsBeside::default(),
            is_whole: false,
            adaptable: None,
            log: None,
        }
    }

    /// Where messages about it go, if not where all go.
    pub(super) fn log(&self) -> Option<&ModelLog> {
        self.log.as_ref()
    }

    /// Facts about the model.
    pub fn details(&self) -> &Details {
        &self.details
    }

    /// What the file says about itself; of a folder, what it becomes as a GGUF file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What tells the network and the tokenizer from others.
    pub(super) fn fingerprints(&self) -> [u64; 2] {
        self.fingerprints
    }

    /// What the file says about vectors and scores of texts.
    pub(super) fn readout(&self) -> &ReadoutFacts {
        &self.readout
    }

    /// Its head that guesses further tokens, or `Unsupported` with the reason why it has none.
    pub(super) fn head(&self) -> Result<&Arc<dyn Weights>> {
        self.head.as_ref().map_err(Error::clone)
    }

    /// What it drafts with, if it is a head for another model.
    pub(super) fn drafter(&self) -> Option<&Drafter> {
        self.drafter.as_deref()
    }

    /// `Unsupported` if it is a head for another model, which does nothing alone.
    pub(super) fn check_alone(&self) -> Result<()> {
        if self.drafter.is_some() {
            fail!(
                Unsupported,
                "the model is a head of EAGLE-3: it drafts for the model that it was trained for, and has no sessions and no embedders"
            );
        }
        Ok(())
    }

    /// Heads that are models of their own and draft for it.
    pub(super) fn heads_beside(&self) -> &HeadsBeside {
        &self.heads_beside
    }

    /// `Unsupported` if it is not on one device as a whole, as models are that such heads draft for.
    pub(super) fn check_whole(&self) -> Result<()> {
        match self.is_whole {
            true => Ok(()),
            false => fail!(Unsupported, "{NO_PLACES}"),
        }
    }

    /// Where adapters find its matrices.
    pub(super) fn adaptable(&self) -> Option<&Adaptable> {
        self.adaptable.as_ref()
    }

    /// Gives the device's memory of the weights back and keeps them in host memory. The model and its
    /// sessions stay good; the next call that needs the weights brings them back. Nothing to do where
    /// they are in host memory anyway.
    ///
    /// Errors: `Busy` while work of a session is under way; `OutOfMemory` for host memory; those of
    /// the device. The weights are where they were then.
    pub fn evict(&self) -> Result<()> {
        if let Ok(head) = &self.head {
            head.evict()?;
        }
        self.heads_beside.evict()?;
        self.weights.evict()
    }

    /// Brings evicted weights back to the device.
    ///
    /// Errors: `OutOfMemory`; those of the device. The weights are still evicted then.
    pub fn resume(&self) -> Result<()> {
        self.weights.resume()?;
        self.heads_beside.resume()?;
        match &self.head {
            Ok(head) => head.resume(),
            Err(_) => Ok(()),
        }
    }

    /// Whether the files that weights are mapped from are as they were: a call that goes on after an
    /// error of this could touch what is no longer there, which ends the process. One system call
    /// per mapped file, none for a model that was read.
    ///
    /// Errors: `FileTruncated` and `FileCorrupt`, naming the file.
    pub fn check_files(&self) -> Result<()> {
        self.files.check()
    }

    /// How many drafts its batches verify.
    pub(super) fn batch_depth(&self) -> &Arc<Mutex<BatchDepth>> {
        &self.batch_depth
    }

    /// What it does beside its callers.
    pub(super) fn background(&self) -> &Background {
        &self.background
    }

    /// The weights on their device.
    pub fn weights(&self) -> &Arc<dyn Weights> {
        &self.weights
    }

    /// The chat templates of the file, of which there may be none, or `TemplateFailed` with the message
    /// that reading them ended with.
    pub fn chat_templates(&self) -> Result<&ChatTemplates> {
        self.chat_templates.as_ref().map_err(Error::clone)
    }

    /// The tokenizer, or `Unsupported` with the message that its loading ended with.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().map_err(Error::clone)
    }

    /// The tokens that end an answer; none without a tokenizer.
    pub fn end_tokens(&self) -> &[u32] {
        match &self.tokenizer {
            Ok(tokenizer) => tokenizer.end_tokens(),
            Err(_) => &[],
        }
    }

    /// The tokens as grammars see them. Made by the first call, which takes a fraction of a second for
    /// a large vocabulary, and about 300 bytes a token.
    ///
    /// Errors: those of [`Model::tokenizer`] and [`GrammarVocabulary::new`].
    pub fn grammar_vocabulary(&self) -> Result<Arc<GrammarVocabulary>> {
        let tokenizer = self.tokenizer()?;
        let n_vocab = self.details.n_vocab;
        if tokenizer.n_vocab() > n_vocab {
            fail!(
                Unsupported,
                "grammars: the tokenizer has {} tokens, but the network {n_vocab}",
                tokenizer.n_vocab()
            );
        }
        let place = &self.grammar_vocabulary;
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vocabulary) = &*place {
            return Ok(vocabulary.clone());
        }
        // 300 bytes a token stay; what making them takes, such as vectors that grow, is gone after.
        let room = Room::new((32 << 20) + 1024 * n_vocab)?;
        let _in_room = room.enter();
        let vocabulary = Arc::new(GrammarVocabulary::new(tokenizer)?);
        // Nothing that is kept was made with memory of the reserve.
        memory::check()?;
        Ok(place.insert(vocabulary).clone())
    }

    /// `InvalidToken`, naming the first id that is not in the vocabulary and its index.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.details.n_vocab;
        for (i, &token) in tokens.iter().enumerate() {
            if token as usize >= n_vocab {
                let message =
                    format!("token {token} at index {i} is not in the vocabulary of {n_vocab}");
                return Err(Error::new(Status::InvalidToken, message).at(i));
            }
        }
        Ok(())
    }
}

/// Room for what is read of a model's files beside its weights, and made of it, such as a tokenizer.
pub(super) fn room_for(source: &ModelSource<'_>) -> Result<Room> {
    const LEAST: u64 = 16 << 20;
    /// Of a GGUF file, whose metadata are as much of it as they like.
    const MOST: u64 = 256 << 20;
    let room = |bytes| Room::new(usize::try_from(LEAST + bytes).unwrap_or(usize::MAX));
    let path = match source {
        ModelSource::Path(path) => *path,
        _ => return room((8 * source.file_bytes().unwrap_or(0) as u64).min(MOST)),
    };
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |of| of.len());
    let is_gguf = path
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let bytes = if is_gguf {
        (8 * len(path)).min(MOST)
    } else {
        // The files of a folder that are JSON, which takes much more in memory.
        let folder = if path.is_dir() {
            Some(path)
        } else {
            path.parent()
        };
        let files = folder.and_then(|folder| std::fs::read_dir(folder).ok());
        let files = files
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let json = files.filter(|file| file.extension().is_some_and(|e| e == "json"));
        json.map(|file| 24 * len(&file))
            .sum::<u64>()
            .max((8 * len(path)).min(MOST))
    };
    room(bytes)
}

/// `OutOfMemory` where so many bytes are not free: the system would grant them all the same, and end
/// the process when they are used.
fn check_memory(bytes: u64, free: u64) -> Result<()> {
    if free > 0 && bytes > free {
        fail!(
            OutOfMemory,
            "the weights take {bytes} bytes of memory, but only {free} are free"
        );
    }
    Ok(())
}

/// Why a model has no head that guesses further tokens.
fn no_head(file: &ModelFile, options: &LoadOptions) -> Error {
    let architecture = file.str("general.architecture").unwrap_or_default();
    let key = format!("{architecture}.nextn_predict_layers");
    let has_some = matches!(file.find::<u64>(&key), Ok(Some(1..)));
    let message = match (has_some, options.draft_heads) {
        (false, _) => "the model has no heads that guess further tokens (multi-token prediction)".to_owned(),
        (true, false) => "the model was loaded without its heads that guess further tokens; EMBER_MODEL_DRAFT_HEADS loads them".to_owned(),
        (true, true) => format!("architecture {architecture}: heads that guess further tokens are not supported"),
    };
    Error::new(Status::Unsupported, message)
}

/// The names of the tensors that are in places on the CPU.
#[inline(never)]
fn tensors_on_host(places: &Places, network: &Network) -> Result<HashSet<Arc<str>>> {
    let mut names = HashSet::new();
    for part in places.networks_on_host(network)? {
        names.extend(part.tensors().map(|tensor| tensor.name.clone()));
    }
    Ok(names)
}

/// A model that was opened and described, and where it is to be.
struct Opened {
    file: Box<ModelFile>,
    network: Box<Network>,
    texts: Box<Texts>,
    drafter: Option<Box<Drafter>>,
    device_index: usize,
    /// Bytes that were copied from the source.
    copied: u64,
    memory_free: u64,
}

/// Opens and describes a model. On small stacks this comes apart from what is done with it, as descriptions take much of them.
#[inline(never)]
fn open(
    source: &ModelSource<'_>,
    access: Access,
    options: &LoadOptions,
) -> Result<(Box<ModelFile>, Box<Network>)> {
    let file = ModelFile::open_source(source, access)?.with_weights(options.weights)?;
    let mut file = Box::new(file);
    file.has_predictor = options.draft_heads;
    let network = Network::from_file(&file)?;
    Ok((file, Box::new(network)))
}

/// What text calls of a model need, or why there are none.
struct Texts {
    tokenizer: Result<Tokenizer>,
    chat_templates: Result<ChatTemplates>,
}

/// Reads these, apart for the same reason.
#[inline(never)]
fn texts(source: &ModelSource<'_>, options: &LoadOptions, file: &ModelFile) -> Result<Box<Texts>> {
    let log = options.log.as_ref();
    let tokenizer = Tokenizer::from_file(file);
    let chat_templates = ChatTemplates::from_metadata(&file.metadata);
    // What memory ran out for must not be missing afterwards.
    memory::check()?;
    let failed = [tokenizer.as_ref().err(), chat_templates.as_ref().err()];
    if let Some(e) = failed
        .into_iter()
        .flatten()
        .find(|e| e.status == Status::OutOfMemory)
    {
        return Err(e.clone());
    }
    if let Err(e) = &tokenizer {
        log!(of: log, Warn, "{source}: no text calls: {}", e.message);
    }
    // Whatever is wrong with the file's, what was asked for is what this model cannot do.
    let tokenizer = tokenizer.map_err(|e| Error::new(Status::Unsupported, e.message));
    let chat_templates = chat_templates.map_err(|e| Error::new(Status::TemplateFailed, e.message));
    Ok(Box::new(Texts {
        tokenizer,
        chat_templates,
    }))
}

/// Forgets tensors that none of these networks uses: parts for images, for example.
#[inline(never)]
fn keep_used(file: &mut ModelFile, networks: [Option<&Network>; 2]) {
    let tensors = networks.into_iter().flatten().flat_map(|n| n.tensors());
    let used: HashSet<&str> = tensors.map(|tensor| &*tensor.name).collect();
    file.tensors
        .retain(|_, tensor| used.contains(&*tensor.name));
}

/// The options with one thread.
#[inline(never)]
fn alone(options: &LoadOptions) -> Box<LoadOptions> {
    Box::new(LoadOptions {
        threads: 1,
        ..options.clone()
    })
}

/// What ranks that are loaded by themselves have to have in common.
#[inline(never)]
fn for_ranks(
    file: &ModelFile,
    network: &Network,
    options: &LoadOptions,
    fingerprints: [u64; 2],
) -> Work {
    Work::new("a model")
        .said("the version of the library", env!("CARGO_PKG_VERSION"))
        .said("the architecture", &network.architecture)
        .said("the number of layers", network.blocks.len())
        .said("the type of most weights", main_type(file))
        .said("what weights become", format!("{:?}", options.weights))
        .hash("the weights", fingerprints[0])
        .hash("the tokenizer", fingerprints[1])
}

/// `InvalidArgument` for values that no device takes.
fn check_options(options: &LoadOptions) -> Result<()> {
    if options.threads > MAX_THREADS {
        fail!(
            InvalidArgument,
            "threads is {}, but must be at most {MAX_THREADS}",
            options.threads
        );
    }
    if options.group.is_some() && !options.split.is_empty() {
        fail!(
            InvalidArgument,
            "devices are for a model that one load brings to all of them; with a group, each rank is loaded onto its own device"
        );
    }
    if options.cuda_context != 0 && !options.split.is_empty() {
        fail!(
            InvalidArgument,
            "a CUcontext belongs to one GPU, and a model that several devices share has none"
        );
    }
    Ok(())
}

impl Details {
    #[inline(never)]
    fn new(file: &ModelFile, network: &Network, weights: &dyn Weights, device: usize) -> Details {
        let name = match file.metadata.get("general.name") {
            Some(Value::String(name)) => name.clone(),
            _ => String::new(),
        };
        Details {
            architecture: network.architecture.clone(),
            name,
            quantization: main_type(file),
            device,
            n_vocab: network.n_vocab,
            context_length: network.context_length,
            n_layers: network.blocks.len(),
            hidden: network.hidden,
            n_parameters: parameters(network),
            file_bytes: file.file_bytes,
            resident_bytes: weights.resident_bytes(),
            device_layers: network.blocks.len(),
            host_experts: 0,
            parts: Vec::new(),
            kv_bytes_per_token: weights.kv_bytes_per_token(KvType::F16),
        }
    }
}

/// The tensor type with the most bytes.
fn main_type(file: &ModelFile) -> String {
    let bytes_of = |ty| -> usize {
        let of_type = file.tensors.values().filter(|t| t.ty == ty);
        of_type.map(|t| t.byte_len()).sum()
    };
    crate::quant::TensorType::ALL
        .into_iter()
        .max_by_key(|&ty| bytes_of(ty))
        .map_or(String::new(), |ty| ty.name().to_owned())
}

/// Number of weights that the network uses.
fn parameters(network: &Network) -> u64 {
    let vector = |t: &Tensor| t.row_len() as u64 * t.rows() as u64;
    let norm = |n: &Norm| vector(&n.weight) + n.bias.as_ref().map_or(0, vector);
    let matrix = |l: &Linear| {
        let bias = l.bias.as_ref().map_or(0, vector);
        vector(&l.weight) + bias
    };
    let block = |b: &Block| {
        let others = b.vectors().map(vector).sum::<u64>();
        let matrices = b.linears().into_iter().map(matrix).sum::<u64>();
        b.norms().map(norm).sum::<u64>() + matrices + others
    };
    let embedding = &network.embedding;
    let head = if network.head.weight.same_data(embedding) {
        network.head.bias.as_ref().map_or(0, vector)
    } else {
        matrix(&network.head)
    };
    let entry = network.entry.iter().map(|entry| {
        let norms = entry.norms().map(norm);
        norms.iter().sum::<u64>() + matrix(&entry.projection)
    });
    vector(embedding)
        + entry.sum::<u64>()
        + network.positions.as_ref().map_or(0, vector)
        + network.blocks.iter().map(block).sum::<u64>()
        + network
            .streams
            .iter()
            .flat_map(|s| s.begin.iter().chain(&s.end))
            .map(matrix)
            .sum::<u64>()
        + norm(&network.final_norm)
        + network
            .encoder
            .iter()
            .flat_map(|e| e.tensors())
            .map(vector)
            .sum::<u64>()
        + network.readout.tensors().map(vector).sum::<u64>()
        + head
}
