//! A network as the CPU runs it, with its threads and their memory.

use super::attention::AttentionScratch;
use super::batch::{BatchSpace, submit};
use super::chunk::ChunkSpace;
use super::delta_net::DeltaNetLayer;
use super::embedder::{CpuEmbedder, EncoderWeights, ReadoutWeights};
use super::entry::EntryWeights;
use super::experts::ExpertSizes;
use super::fixed::FixedStates;
use super::forward::DecodeSpace;
use super::kv::{KvCache, Shape};
use super::latent_layer::{LatentSizes, TOGETHER};
use super::layer::{InputWeights, Layer, NormWeights, Product, product, table_len};
use super::matmul::{Encodings, Isa, Matrix, Scratch};
use super::pass::product_cost;
use super::pool::{Pool, PoolOptions, useful_threads};
use super::runner::CpuRunner;
use super::streams::StreamWeights;
use super::texts::TextSizes;
use super::turn::Turns;
use crate::backend::embedder::NO_SESSIONS;
use crate::backend::row::{Front, submit_parts};
use crate::backend::{
    Embedder, EmbedderOptions, HiddenStates, HostPart, KvType, MAX_DRAFTS, Row, RowResult, Runner,
    RunnerOptions, Taken, Weights, When,
};
use crate::error::{Result, fail, try_vec};
use crate::format::TensorId;
use crate::memory::Account;
use crate::model::{
    Adapter, Attention, Block, FeedForward, KvShape, LatentAttention, Mamba1, Mamba2, Mixer,
    Network, Rope, adaptable_linears,
};
use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A network on the CPU, with the threads that run it.
pub struct CpuWeights {
    pub(super) isa: Isa,
    /// What the layers begin with, and whether they end the network.
    pub(super) ends: (Front, bool),
    pub(super) hidden: usize,
    pub(super) n_vocab: usize,
    pub(super) embedding: Matrix,
    pub(super) embedding_scale: f32,
    /// As of the network.
    pub(super) residual_unit: f32,
    /// Learned positions.
    pub(super) positions: Option<Matrix>,
    /// Norm of embeddings.
    pub(super) embedding_norm: Option<NormWeights>,
    /// What the layers get beside the residual stream.
    pub(super) inputs: Option<InputWeights>,
    pub(super) streams: Option<StreamWeights>,
    /// Of a head that guesses further tokens.
    pub(super) entry: Option<EntryWeights>,
    /// The tokens of the head's rows, where these are not all tokens.
    pub(super) ids: Option<Arc<[u32]>>,
    pub(super) layers: Vec<Layer>,
    /// The linear layers that adapters can be added to.
    linears: HashSet<TensorId>,
    /// What each layer keeps of a position.
    pub(super) kv_layers: Vec<KvShape>,
    /// Floats of fixed size that each layer keeps.
    pub(super) fixed_layers: Vec<usize>,
    pub(super) final_norm: NormWeights,
    pub(super) head: Product,
    pub(super) logit_scale: f32,
    pub(super) logit_cap: Option<f32>,
    /// What an encoder has beside the layers; `None` for a decoder.
    pub(super) encoder: Option<EncoderWeights>,
    pub(super) readout: ReadoutWeights,
    pub(super) text_sizes: TextSizes,
    /// The different rotary embeddings of the layers, mostly one.
    pub(super) ropes: Vec<Rope>,
    pub(super) sizes: Sizes,
    /// That of the weights that it was loaded beside, where it is a head of theirs.
    pub(super) pool: Arc<Pool>,
    /// Threads that a decode step makes good use of.
    pub(super) useful_threads: usize,
    /// Memory of decode steps: of the one that has the pool's turn, and of those that run alone, by
    /// their seats.
    pub(super) decode: Vec<Mutex<DecodeSpace>>,
    /// One prefill at a time has the memory for chunks, also while it lets others use the pool.
    pub(super) prefill_turns: Turns,
    pub(super) prefill: Mutex<Option<ChunkSpace>>,
    /// Bytes of the matrices that every prompt streams, and the head.
    pub(super) matrix_bytes: usize,
    /// Memory of a batch. Used by the holder of the pool's turn.
    pub(super) batch: Mutex<Option<BatchSpace>>,
    pub(super) threads: ThreadSpaces,
    /// Memory of the sessions.
    pub(super) sessions: Arc<Account>,
}

/// Largest extents over all layers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub hidden: usize,
    /// Elements of all queries, and of the keys, of a token.
    pub q: usize,
    pub kv: usize,
    pub n_ff: usize,
    pub head_dim: usize,
    pub group: usize,
    /// Floats of attention's partial results per segment.
    pub partial: usize,
    /// Numbers of a recurrence's heads of a token.
    pub steps: usize,
    /// Floats that a recurrence's head needs beside.
    pub recurrent: usize,
    /// Floats of all rope tables of a position.
    pub rope: usize,
    /// Floats of a token's residual streams, where there are several.
    pub streams: usize,
    /// Floats of a token's residual stream that are kept for a second reader.
    pub held: usize,
    /// Floats of the inputs of all blocks of a token, and of one of them.
    pub inputs: usize,
    pub input: usize,
    /// Floats of an embedding and a hidden state together, in a head that guesses further tokens.
    pub entry: usize,
    /// Floats of the queries of latent attention of a token.
    pub latents: usize,
    pub heads: LatentSizes,
    /// Longest row of queries by way of which others come.
    pub q_rank: usize,
    /// Longest inner row of a feed-forward part that has a norm.
    pub inner: usize,
    /// Longest row that a layer behind the pooling reads or makes.
    pub readout: usize,
    pub encodings: Encodings,
    pub experts: ExpertSizes,
}

impl Sizes {
    /// Longest row that a product reads.
    pub fn cols(&self) -> usize {
        let n_ff = self.n_ff.max(self.experts.n_ff);
        let longest = self.hidden.max(self.q).max(n_ff).max(self.heads.cols);
        longest.max(self.readout).max(self.entry)
    }

    /// Longest row that a norm takes.
    pub fn normed(&self) -> usize {
        let inputs = self.inputs + self.input;
        let longest = self.hidden.max(self.q).max(self.kv);
        let longest = longest.max(inputs).max(self.inner);
        longest.max(self.q_rank).max(self.recurrent)
    }

    /// Floats of a token beside the rows that all networks have.
    pub fn beside(&self) -> usize {
        let entry = self.latents + self.entry;
        self.steps + self.rope + self.held + self.streams + self.inputs + entry
    }
}

/// What each thread has for itself in a phase.
pub(super) struct ThreadSpace {
    /// Which thread it is.
    pub index: usize,
    pub unpacked: Scratch,
    pub attention: AttentionScratch,
    /// As many floats as the longest row that a norm takes.
    pub row: Vec<f32>,
}

/// One [`ThreadSpace`] per thread that phases run on.
pub(super) struct ThreadSpaces(Vec<Padded>);

#[repr(align(128))]
struct Padded(UnsafeCell<ThreadSpace>);

// SAFETY: only `get` gives access, and `get` demands that nobody else uses it.
unsafe impl Sync for ThreadSpaces {}

impl ThreadSpaces {
    /// The space of one thread.
    ///
    /// # Safety
    /// Nobody else uses this one as long as the reference lives: the caller runs in a phase as this
    /// thread.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self, index: usize) -> &mut ThreadSpace {
        // SAFETY: by contract, nobody else uses this one while the reference lives.
        unsafe { &mut *self.0[index].0.get() }
    }
}

/// The network's different ropes.
fn ropes(network: &Network) -> Vec<&Rope> {
    let mut ropes: Vec<&Rope> = Vec::new();
    for block in &network.blocks {
        if let Some(rope) = block.mixer.rope()
            && !ropes.contains(&rope)
        {
            ropes.push(rope);
        }
    }
    ropes
}

impl Sizes {
    fn include_attention(&mut self, a: &Attention) {
        let q = a.n_heads * a.head_dim;
        self.q = self.q.max(a.q.weight.rows());
        if a.gated || a.gate.is_some() {
            self.n_ff = self.n_ff.max(q);
        }
        self.kv = self.kv.max(a.n_kv_heads * a.head_dim);
        self.head_dim = self.head_dim.max(a.head_dim);
        self.group = self.group.max(a.n_heads / a.n_kv_heads);
        let partial = super::attention::partial_len(a.n_heads, a.head_dim);
        self.partial = self.partial.max(partial);
    }

    fn include_mamba1(&mut self, m: &Mamba1) {
        let (channels, rank) = (m.channels(), m.rank());
        self.q = self.q.max(channels).max(rank).max(m.state_dim);
        self.kv = self.kv.max(channels);
        self.n_ff = self.n_ff.max(channels);
        self.steps = self.steps.max(m.short.weight.rows());
    }

    fn include_mamba2(&mut self, m: &Mamba2) {
        let (inner, states) = (m.z.weight.rows(), m.b.weight.rows());
        self.q = self.q.max(states);
        self.kv = self.kv.max(inner).max(states);
        self.n_ff = self.n_ff.max(inner);
        self.steps = self.steps.max(m.n_heads);
    }

    fn include_latent(&mut self, a: &LatentAttention) {
        let key = a.rank + a.rotated();
        self.q = self.q.max(a.q.weight.rows());
        self.q = self.q.max(a.n_heads * a.value_dim);
        self.kv = self.kv.max(key);
        self.head_dim = self.head_dim.max(key);
        self.group = self.group.max(TOGETHER.min(a.n_heads));
        self.latents = self.latents.max(a.n_heads * key);
        self.heads.include(a);
        if a.gate.is_some() {
            self.steps = self.steps.max(a.n_heads);
        }
        if let Some(q_a) = &a.q_a {
            self.q_rank = self.q_rank.max(q_a.weight.rows());
            self.n_ff = self.n_ff.max(q_a.weight.rows());
        }
    }

    /// Of a network.
    pub fn of(network: &Network) -> Sizes {
        let mut s = Sizes {
            hidden: network.hidden,
            // At least, where no layer attends.
            head_dim: 1,
            group: 1,
            encodings: Encodings::for_type(network.head.weight.ty),
            ..Sizes::default()
        };
        for block in &network.blocks {
            match &block.mixer {
                Mixer::Attention(a) => s.include_attention(a),
                Mixer::Latent(a) => s.include_latent(a),
                Mixer::ShortConv(_) => {
                    s.q = s.q.max(s.hidden);
                    s.kv = s.kv.max(s.hidden);
                }
                Mixer::DeltaNet(m) => {
                    let (keys, values) = (m.q.weight.rows(), m.z.weight.rows());
                    s.q = s.q.max(keys);
                    s.kv = s.kv.max(keys).max(values);
                    s.n_ff = s.n_ff.max(values);
                    s.steps = s.steps.max(DeltaNetLayer::step_floats(m));
                    s.recurrent = s.recurrent.max(3 * m.key_dim + m.value_dim);
                    // What products read.
                    let short = DeltaNetLayer::short_rows(m).into_iter().max();
                    s.q = s.q.max(short.unwrap_or(0));
                }
                Mixer::Mamba1(m) => s.include_mamba1(m),
                Mixer::Mamba2(m) => s.include_mamba2(m),
                Mixer::SideBySide(both) => {
                    s.held = s.hidden;
                    s.include_attention(&both.attention);
                    s.include_mamba2(&both.mamba);
                }
                Mixer::Absent => {}
            }
            match &block.feed_forward {
                FeedForward::Dense(mlp) => {
                    let n_ff = mlp.up.weight.rows();
                    s.n_ff = s.n_ff.max(n_ff);
                    if mlp.inner_norm.is_some() {
                        s.inner = s.inner.max(n_ff);
                    }
                }
                FeedForward::Experts(_) if block.parallel => s.held = s.hidden,
                FeedForward::Both(both) => {
                    s.n_ff = s.n_ff.max(both.mlp.up.weight.rows());
                    s.held = s.hidden;
                }
                FeedForward::Latent(latent) => {
                    s.n_ff = s.n_ff.max(latent.mlp.up.weight.rows());
                    s.kv = s.kv.max(latent.enter.weight.rows());
                }
                FeedForward::Experts(_) | FeedForward::OnHost(_) | FeedForward::None => {}
            }
            s.experts.include(block);
            for matrix in block.linears() {
                s.encodings = s.encodings.union(Encodings::for_type(matrix.weight.ty));
            }
        }
        if let Some(streams) = &network.streams {
            s.streams = streams.count.saturating_mul(s.hidden);
            s.held = s.hidden;
            for linear in streams.begin.iter().chain(&streams.end) {
                s.encodings = s.encodings.union(Encodings::for_type(linear.weight.ty));
            }
            let ranks = network.blocks.iter().filter_map(|b| b.streams.as_ref());
            let ranks = ranks.map(|layer| layer.left.weight.rows());
            s.n_ff = ranks.fold(s.n_ff, usize::max);
        }
        if let Some(inputs) = &network.per_layer {
            s.inputs = inputs.projection.weight.rows();
            s.input = inputs.norm.weight.row_len();
            s.n_ff = s.n_ff.max(s.input);
            let encodings = Encodings::for_type(inputs.projection.weight.ty);
            s.encodings = s.encodings.union(encodings);
        }
        if let Some(entry) = &network.entry {
            s.entry = (2 * s.hidden).max(entry.projection.weight.row_len());
            let encodings = Encodings::for_type(entry.projection.weight.ty);
            s.encodings = s.encodings.union(encodings);
        }
        for dense in network.readout.layers() {
            let weight = &dense.linear.weight;
            s.readout = s.readout.max(weight.rows()).max(weight.row_len());
            s.encodings = s.encodings.union(Encodings::for_type(weight.ty));
        }
        s.rope = ropes(network).into_iter().map(table_len).sum();
        s
    }
}

/// Bytes of the matrices that every prompt streams, and the head.
pub(super) fn matrix_bytes(network: &Network) -> usize {
    let blocks = network.blocks.iter().flat_map(Block::linears);
    let inputs = network.per_layer.iter().map(|inputs| &inputs.projection);
    let streams = network.streams.iter();
    let streams = streams.flat_map(|s| s.begin.iter().chain(&s.end));
    let entry = network.entry.iter().map(|entry| &entry.projection);
    blocks
        .chain(inputs)
        .chain(streams)
        .chain(entry)
        .chain(network.ends().then_some(&network.head))
        .map(|m| m.weight.byte_len())
        .sum()
}

impl CpuWeights {
    /// Makes a network ready to run on `threads` threads, the caller of a step being one of them.
    /// Reads only the small tensors. `progress` is told the done share, and its error is passed on.
    ///
    /// Errors: `InvalidArgument` for a bad number of threads, `OutOfMemory`, `DeviceError` if a
    /// thread cannot be started, `Unsupported` for a norm or bias of a quantized type.
    pub fn load(
        network: &Network,
        threads: usize,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<Arc<CpuWeights>> {
        CpuWeights::load_for(Isa::detect(), network, threads, progress)
    }

    /// [`load`](Self::load) for a given instruction set, which must be one of
    /// [`Isa::available`]; if not, the plain one takes its place.
    pub fn load_for(
        isa: Isa,
        network: &Network,
        threads: usize,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<Arc<CpuWeights>> {
        let sessions = Account::unlimited();
        CpuWeights::load_with(isa, network, PoolOptions::of(threads), sessions, progress)
    }

    /// The same, with a pool that is made as it says, and an account for the memory of sessions.
    pub fn load_with(
        isa: Isa,
        network: &Network,
        pool: PoolOptions,
        sessions: Arc<Account>,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<Arc<CpuWeights>> {
        let isa = if Isa::available().contains(&isa) {
            isa
        } else {
            Isa::Scalar
        };
        let pool = Arc::new(Pool::with(pool)?);
        CpuWeights::load_in(isa, network, pool, sessions, progress)
    }

    /// The same in a pool that others have, too.
    fn load_in(
        isa: Isa,
        network: &Network,
        pool: Arc<Pool>,
        sessions: Arc<Account>,
        progress: &mut dyn FnMut(f32) -> Result<()>,
    ) -> Result<Arc<CpuWeights>> {
        progress(0.0)?;
        let (mut layers, mut ropes) = (Vec::new(), Vec::new());
        for (i, block) in network.blocks.iter().enumerate() {
            let context = network.context_length;
            layers.push(Layer::new((i, block), context, &mut ropes, isa)?);
            progress((i + 1) as f32 / (network.blocks.len() + 1) as f32)?;
        }
        let head = product(&network.head, isa)?;
        let sizes = Sizes::of(network);
        let positions = network.positions.as_ref();
        let mut spaces = Vec::new();
        for index in 0..pool.indices() {
            spaces.push(Padded(UnsafeCell::new(ThreadSpace {
                index,
                unpacked: Scratch::new(sizes.cols())?,
                attention: AttentionScratch::new(sizes.group, sizes.head_dim)?,
                row: try_vec(sizes.normed(), 0.0, "scratch")?,
            })));
        }
        let mut decode = Vec::new();
        for _ in 0..=pool.indices() - pool.threads() {
            decode.push(Mutex::new(DecodeSpace::new(&sizes)?));
        }
        let matrix_bytes = matrix_bytes(network);
        let weights = Arc::new(CpuWeights {
            isa,
            ends: (Front::of(network), network.ends()),
            hidden: network.hidden,
            n_vocab: network.n_vocab,
            embedding: Matrix::new(network.embedding.clone(), isa),
            embedding_scale: network.embedding_scale,
            residual_unit: network.residual_unit,
            positions: positions.map(|p| Matrix::new(p.clone(), isa)),
            embedding_norm: match network.embeds() {
                true => NormWeights::find(&network.embedding_norm)?,
                false => None,
            },
            inputs: match &network.per_layer {
                Some(inputs) => Some(InputWeights::new(inputs, isa)?),
                None => None,
            },
            streams: match &network.streams {
                Some(streams) => Some(StreamWeights::new(streams, isa)?),
                None => None,
            },
            entry: match &network.entry {
                Some(entry) => Some(EntryWeights::new(entry, isa)?),
                None => None,
            },
            ids: network.fusion().and_then(|fusion| fusion.ids.clone()),
            layers,
            linears: adaptable_linears(network).map(|l| l.weight.id()).collect(),
            kv_layers: kv_layers(network).collect(),
            fixed_layers: fixed_layers(network).collect(),
            final_norm: NormWeights::new(&network.final_norm)?,
            head,
            logit_scale: network.logit_scale,
            logit_cap: network.logit_cap,
            encoder: match &network.encoder {
                Some(encoder) => Some(EncoderWeights::new(encoder, isa)?),
                None => None,
            },
            readout: ReadoutWeights::new(&network.readout, isa)?,
            text_sizes: TextSizes::of(network),
            ropes,
            sizes,
            pool,
            // Products of about the same size: four a layer, and the head.
            useful_threads: useful_threads(product_cost(
                matrix_bytes / (4 * network.blocks.len() + 1),
                1,
            )),
            decode,
            prefill_turns: Turns::new(0),
            prefill: Mutex::new(None),
            matrix_bytes,
            batch: Mutex::new(None),
            threads: ThreadSpaces(spaces),
            sessions,
        });
        progress(1.0)?;
        Ok(weights)
    }

    /// Elements of the logits: none where the layers do not end the network.
    pub(super) fn logits_len(&self) -> usize {
        if self.ends.1 { self.n_vocab } else { 0 }
    }

    pub(super) fn kv_shape(&self, kv_type: KvType) -> Result<Shape> {
        Shape::new(self.kv_layers.iter().copied(), kv_type)
    }
}

/// What the layers of a network have in a cache.
pub(super) fn kv_layers(network: &Network) -> impl Iterator<Item = KvShape> {
    let state = |block: &Block| block.mixer.state(network.context_length);
    network.blocks.iter().map(move |block| state(block).kv())
}

/// Floats of fixed size that the layers of a network keep.
pub(super) fn fixed_layers(network: &Network) -> impl Iterator<Item = usize> {
    let state = |block: &Block| block.mixer.state(network.context_length);
    network
        .blocks
        .iter()
        .map(move |block| state(block).fixed_len())
}

/// `Unsupported` for what a cache cannot have here.
pub(super) fn check_kv_type(kv_type: KvType) -> Result<()> {
    if kv_type == KvType::Q8_0 {
        fail!(
            Unsupported,
            "a KV cache in q8_0 is not supported on a CPU; f16 and f32 are"
        );
    }
    Ok(())
}

impl Weights for CpuWeights {
    fn create_embedder(self: Arc<Self>, options: &EmbedderOptions) -> Result<Box<dyn Embedder>> {
        Ok(Box::new(CpuEmbedder::new(self, options)?))
    }

    fn host_layers(self: Arc<Self>) -> Option<HostPart> {
        Some(HostPart(self))
    }

    fn create_runner(self: Arc<Self>, options: &RunnerOptions) -> Result<Box<dyn Runner>> {
        if self.encoder.is_some() {
            fail!(Unsupported, "{NO_SESSIONS}");
        }
        check_kv_type(options.kv_type)?;
        let shape = self.kv_shape(options.kv_type)?;
        let (marks, account) = (options.marks(), &self.sessions);
        let fixed = FixedStates::new(&self.fixed_layers, self.logits_len(), marks, account)?;
        let kv = KvCache::with_fixed(shape, options.context, fixed, account)?;
        let mut decode = self.decode[0].lock().unwrap_or_else(|e| e.into_inner());
        decode.reserve(&self, options.context)?;
        drop(decode);
        Ok(Box::new(CpuRunner::new(self, kv)?))
    }

    fn check_adapters(&self) -> Result<()> {
        Ok(())
    }

    fn take_adapter(&self, adapter: &mut Adapter) -> Result<()> {
        // The others are for parts of the network that are elsewhere.
        let mine = adapter
            .pairs
            .iter()
            .filter(|(id, _)| self.linears.contains(id));
        let bytes = mine.map(|(_, pair)| pair.bytes()).sum();
        let charge = self.sessions.charge(bytes, "an adapter")?;
        adapter.charges.push(charge);
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        let layers = self.layers.iter().map(Layer::floats).sum::<usize>();
        let inputs = self.inputs.as_ref().map_or(0, |i| i.norm.floats());
        let of_encoder = self
            .encoder
            .as_ref()
            .and_then(|e| e.embedding_norm.as_ref());
        let norm = of_encoder.or(self.embedding_norm.as_ref());
        let norm = norm.map_or(0, NormWeights::floats);
        let entry = self.entry.as_ref().map_or(0, EntryWeights::floats);
        let inputs = inputs + norm + self.readout.floats() + entry;
        ((layers + inputs + self.final_norm.floats()) * size_of::<f32>()) as u64
    }

    fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        match self.encoder {
            Some(_) => 0,
            None => self.kv_shape(kv_type).map_or(0, |s| s.bytes_per_token()),
        }
    }

    fn kv_bytes(&self, options: &RunnerOptions) -> u64 {
        let kv = self.kv_shape(options.kv_type);
        let kv = kv.map_or(0, |s| s.bytes(options.context));
        let fixed = FixedStates::bytes_for(self.fixed_len(), self.logits_len(), options.marks());
        kv.saturating_add(fixed)
    }

    fn fixed_len(&self) -> usize {
        self.fixed_layers.iter().sum()
    }

    fn taken(&self) -> Taken {
        Taken {
            sessions: self.sessions.taken(),
            ..Taken::default()
        }
    }

    fn kv_layers(&self) -> &[KvShape] {
        &self.kv_layers
    }

    fn takes_kv_type(&self, kv_type: KvType) -> bool {
        check_kv_type(kv_type).is_ok()
    }

    fn max_drafts(&self) -> usize {
        MAX_DRAFTS
    }

    fn load_predictor(self: Arc<Self>, network: &Network) -> Result<Arc<dyn Weights>> {
        let (pool, sessions) = (self.pool.clone(), self.sessions.clone());
        let with_embedding;
        let network = match network.fusion() {
            Some(fusion) if !fusion.own_embedding => {
                with_embedding = Network {
                    embedding: self.embedding.tensor().clone(),
                    ..network.clone()
                };
                &with_embedding
            }
            _ => network,
        };
        let weights = CpuWeights::load_in(self.isa, network, pool, sessions, &mut |_| Ok(()))?;
        Ok(weights)
    }

    fn hidden_states(&self, rows: usize) -> Result<Arc<HiddenStates>> {
        let bytes = self
            .hidden
            .saturating_mul(rows)
            .saturating_mul(size_of::<f32>());
        let charge = self.sessions.charge(bytes, "hidden states")?;
        Ok(Arc::new(HiddenStates::new(
            self.hidden,
            rows,
            Some(charge),
        )?))
    }

    fn states_at(&self, places: &[usize], rows: usize) -> Result<Arc<HiddenStates>> {
        if self.streams.is_some() || places.iter().any(|place| *place > self.layers.len()) {
            fail!(
                Unsupported,
                "the network's layers have no hidden states at {places:?}"
            );
        }
        let floats = self
            .hidden
            .saturating_mul(places.len())
            .saturating_mul(rows);
        let bytes = floats.saturating_mul(size_of::<f32>());
        let charge = Some(self.sessions.charge(bytes, "hidden states")?);
        let states = HiddenStates::of_places(self.hidden, places, rows, charge)?;
        Ok(Arc::new(states))
    }

    fn drafts_in_batches(&self) -> bool {
        true
    }

    fn submit(&self, rows: &mut [Row<'_>], when: When) -> RowResult<()> {
        submit_parts(
            rows,
            |runner: &mut CpuRunner| runner.takes_work(self),
            |work| {
                let residual = &*work.residual;
                residual.check(self.ends, work.tokens.len(), self.hidden)
            },
            |runner, work| runner.submit(work, when),
            |parts| submit(self, parts, when),
        )
    }
}
