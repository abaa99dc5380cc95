//! Vectors and scores of texts on a GPU: texts go through the layers of a prefill packed one behind the other, with attention
//! within each, and what comes out is pooled.
//!
//! No layer reads what another one has kept, so there are keys and values of one layer at a time. An embedder has memory and
//! a stream of its own, and takes turns with the steps of sessions as a prompt does.

use super::weights::CudaWeights;
use crate::backend::cuda::driver::arena::{Arena, Placed};
use crate::backend::cuda::driver::{Buffer, Context, Stream};
use crate::backend::cuda::launch::adapters::Adapters;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::matrix::MatrixSegment;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::launch::texts::{DensePlan, Tiles};
use crate::backend::cuda::network::adapters::{SessionAdapters, first_that_adapts};
use crate::backend::cuda::network::crossing;
use crate::backend::cuda::network::evaluation::Evaluation;
use crate::backend::cuda::network::hidden::Keeps;
use crate::backend::cuda::network::kv_plan::KvPlan;
use crate::backend::cuda::network::plan::Plan;
use crate::backend::cuda::network::prefill::{ChunkOperations, ChunkPlaces, Meetings};
use crate::backend::cuda::network::texts::{TextPlaces, most_texts};
use crate::backend::cuda::network::walk::{Addition, walk};
use crate::backend::embedder::{ADAPTED_JUDGE, NO_JUDGE, NO_SCORES, check_texts, share_of_first};
use crate::backend::row::Front;
use crate::backend::{Embedder, EmbedderOptions, KvType, Output, TextTokens};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::model::Pooling;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What is wrong where there is no memory.
const WHAT: &str = "memory of an embedder";
/// Most rows of a pass: what a grid of blocks can have.
const MAX_ROWS: usize = 65_535;
/// Bytes of a workspace that is not asked for, and the rows that it has at least and at most.
const USUAL_BYTES: u64 = 256 << 20;
const USUAL_ROWS: [u64; 2] = [2048, 16384];
/// Where the table of sessions is behind the one that stands for the texts.
const TABLE: usize = size_of::<args::Session>().next_multiple_of(256);

/// All of an embedder's workspace.
struct Places {
    chunk: ChunkPlaces,
    texts: TextPlaces,
    /// f32, `[2][groups * 32]`: rows of the head.
    judge: u64,
}

impl Places {
    fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> Places {
        Places {
            chunk: ChunkPlaces::place(arena, plan, rows),
            texts: TextPlaces::place(arena, plan, rows),
            judge: arena.array::<f32>(2 * u64::from(plan.head.groups) * 32),
        }
    }

    fn bytes(plan: &Plan, rows: u64) -> u64 {
        Arena::count(|arena| Places::place(arena, plan, rows as u32))
    }
}

/// Tokens of texts that are evaluated together, where nobody says how many: more of small networks than of large ones.
pub(super) fn usual_rows(plan: &Plan) -> usize {
    let [least, most] = USUAL_ROWS;
    let each = (Places::bytes(plan, most) - Places::bytes(plan, least)) / (most - least);
    let rows = (USUAL_BYTES / each.max(1)).clamp(least, most);
    // A power of two fills the tiles of products.
    1 << rows.ilog2()
}

/// What the device gets to know of the texts of a pack.
#[derive(Default)]
struct Pack {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    kinds: Vec<u32>,
    spans: Vec<args::TextSpan>,
    tiles: Vec<args::TextTile>,
}

impl Pack {
    /// Errors: `OutOfMemory`.
    fn new(rows: u32) -> Result<Pack> {
        fn reserve<T>(list: &mut Vec<T>, n: u32) -> Result<()> {
            match list.try_reserve_exact(n as usize) {
                Ok(()) => Ok(()),
                Err(_) => fail!(OutOfMemory, "texts of {n} tokens"),
            }
        }
        let (mut pack, texts) = (Pack::default(), most_texts(rows));
        for list in [&mut pack.tokens, &mut pack.positions, &mut pack.kinds] {
            reserve(list, rows)?;
        }
        reserve(&mut pack.spans, texts)?;
        reserve(&mut pack.tiles, Tiles::most(rows, texts))?;
        Ok(pack)
    }

    /// Takes as many of the texts as there is room for in `rows` rows.
    fn fill(&mut self, texts: &[TextTokens<'_>], rows: u32) {
        for list in [&mut self.tokens, &mut self.positions, &mut self.kinds] {
            list.clear();
        }
        self.spans.clear();
        for text in texts.iter().take(most_texts(rows) as usize) {
            let (start, len) = (self.tokens.len(), text.tokens.len());
            if start + len > rows as usize {
                return;
            }
            // Within the capacities, so nothing is allocated.
            self.tokens.extend_from_slice(text.tokens);
            self.positions.extend(0..len as u32);
            let kinds = (0..len).map(|i| u32::from(i >= text.second));
            self.kinds.extend(kinds);
            self.spans.push(args::TextSpan {
                start: start as u32,
                len: len as u32,
            });
        }
    }
}

/// See [`Embedder`].
pub(super) struct CudaEmbedder {
    weights: Arc<CudaWeights>,
    memory: Placed<Buffer, Places>,
    /// What stands for a session, and behind it a table with its address.
    session: Buffer,
    adapters: Option<SessionAdapters>,
    stream: Stream,
    kv: KvPlan,
    rows: u32,
    pack: Pack,
    tiles: Tiles,
    /// Scores by two rows of the head, that of yes first, in place of the model's own.
    judge: Option<[DensePlan; 2]>,
}

/// How texts become vectors.
struct Route<'a> {
    pooling: Pooling,
    layers: &'a [DensePlan],
    /// Whether the layers are beside each other, of one output each.
    beside: bool,
    softmax: bool,
}

impl Route<'_> {
    /// Elements of what comes out behind the layers.
    fn width(&self, plan: &Plan) -> u32 {
        match (self.beside, self.layers.last()) {
            (true, _) => self.layers.len() as u32,
            (false, Some(last)) => last.outputs,
            (false, None) => plan.hidden,
        }
    }
}

impl CudaEmbedder {
    /// Errors: `Unsupported` names what the model or the device lacks; `OutOfMemory`; those of the device.
    pub fn new(weights: Arc<CudaWeights>, options: &EmbedderOptions) -> Result<CudaEmbedder> {
        let plan = weights.plan();
        check_texts(plan.without_texts)?;
        if plan.ends != (Front::Embeddings, true) {
            fail!(Internal, "an embedder of a part of a network");
        }
        if plan.attention().any(|a| a.chunk.is_some()) {
            fail!(
                Unsupported,
                "vectors of texts on a GPU are not supported for attention within chunks; they are on a CPU"
            );
        }
        if let Some(long) = plan.attention().find(|a| a.is_long()) {
            fail!(
                Unsupported,
                "vectors of texts on a GPU are not supported for heads of {} elements; they are on a CPU",
                long.head_dim
            );
        }
        if options.batch_tokens > MAX_ROWS {
            fail!(
                Unsupported,
                "{} tokens of texts at a time; a GPU takes {MAX_ROWS}, a CPU more",
                options.batch_tokens
            );
        }
        let rows = options.batch_tokens as u32;
        let adapters = options.adapters.as_ref();
        if options.judged_by.is_some() {
            if plan.encoder.is_some() {
                fail!(Unsupported, "{NO_JUDGE}");
            }
            if let Some(i) = adapters.and_then(|set| first_that_adapts(plan, &plan.head, set)) {
                return Err(Error::new(Status::Unsupported, ADAPTED_JUDGE).at(i));
            }
        }
        let device = weights.sessions().clone();
        let _current = device.enter()?;
        let memory = Placed::new(
            |arena| Places::place(arena, plan, rows),
            |bytes| Buffer::new(&device, bytes, WHAT),
        )?;
        let adapters = match adapters {
            Some(set) => Some(SessionAdapters::new(&device, plan, set.clone())?),
            None => None,
        };
        let mut session = args::Session {
            kv: memory.at().texts.kv,
            // What its rotations are for.
            context: options.max_tokens as u32,
            ..Default::default()
        };
        if let Some(adapters) = &adapters {
            adapters.enter(&mut session);
        }
        let mut embedder = CudaEmbedder {
            session: session_on(&device, &session)?,
            memory,
            adapters,
            stream: Stream::new(&device, 0)?,
            kv: plan.kv(KvType::F16)?,
            rows,
            pack: Pack::new(rows)?,
            tiles: Tiles::default(),
            judge: None,
            weights: weights.clone(),
        };
        if let Some([no, yes]) = options.judged_by {
            embedder.judge = Some(embedder.judge([yes, no])?);
        }
        Ok(embedder)
    }

    /// Scores by the rows of the head for two tokens.
    fn judge(&self, tokens: [u32; 2]) -> Result<[DensePlan; 2]> {
        let _resident = self.weights.resident()?;
        let plan = self.weights.plan();
        let (head, to) = (&plan.head, self.memory.at().judge);
        let row = |i: u64, token: u32| DensePlan {
            w: to + i * u64::from(head.groups) * 32 * 4,
            bias: match head.bias {
                0 => 0,
                bias => bias + u64::from(token) * 4,
            },
            inputs: plan.hidden,
            outputs: 1,
            activation: args::DenseKind::Plain as u32,
            norm: None,
        };
        let rows = [row(0, tokens[0]), row(1, tokens[1])];
        for (token, row) in tokens.into_iter().zip(rows) {
            let of = |s: &&MatrixSegment| (s.out_offset..s.out_offset + s.rows).contains(&token);
            let Some(segment) = head.segments.iter().find(of) else {
                fail!(Internal, "the head has no row {token}");
            };
            let unpack = args::Unpack {
                matrix: segment.address,
                out: row.w,
                ty: segment.ty.number(),
                groups: head.groups,
                matrix_rows: segment.rows,
                first_row: token - segment.out_offset,
                rows: 1,
                to_f32: 1,
                ..Default::default()
            };
            // SAFETY: the weights are on the device, and the row has its place in this memory.
            unsafe { self.weights.kernels().unpack(&self.stream, &unpack)? };
        }
        self.stream.synchronize()?;
        Ok(rows)
    }

    fn route(&self, output: Output) -> Result<Route<'_>> {
        let readout = &self.weights.plan().readout;
        Ok(match (output, &self.judge, &readout.scores) {
            (Output::Vectors(pooling), ..) => Route {
                pooling,
                layers: &readout.projections,
                beside: false,
                softmax: false,
            },
            (Output::Scores, Some(judge), _) => Route {
                pooling: Pooling::Last,
                layers: judge,
                beside: true,
                softmax: true,
            },
            (Output::Scores, None, Some(scores)) => Route {
                pooling: scores.pooling,
                layers: &scores.layers,
                beside: false,
                softmax: scores.softmax,
            },
            (Output::Scores, None, None) => fail!(Unsupported, "{NO_SCORES}"),
        })
    }

    /// Enqueues the evaluation of the texts of the pack, up to the residual stream behind the last layer.
    fn enqueue(
        &self,
        eval: &Evaluation<'_>,
        pause: &mut dyn FnMut() -> Result<()>,
    ) -> Result<TextPlaces> {
        let (places, pack) = (self.memory.at(), &self.pack);
        let (chunk, rows) = (&places.chunk, pack.tokens.len() as u32);
        let lists = [
            (chunk.tokens, &pack.tokens),
            (places.texts.positions, &pack.positions),
            (places.texts.kinds, &pack.kinds),
        ];
        for (to, list) in lists {
            // SAFETY: the list is read before the call returns, as it is not pinned, and there is room for it; what the stream has
            // done before no longer reads what was there.
            unsafe { copy_in(&self.stream, to, list)? };
        }
        // SAFETY: as above.
        unsafe {
            copy_in(&self.stream, places.texts.spans, &pack.spans)?;
            copy_in(&self.stream, places.texts.tile_list, &pack.tiles)?;
        }
        let texts = TextPlaces {
            tiles: self.tiles,
            ..places.texts
        };
        let embed = args::Embed {
            tokens: chunk.tokens,
            text_positions: texts.positions,
            text_kinds: texts.kinds,
            out: chunk.rows.residual.address,
            ..eval.embed()
        };
        // SAFETY: addresses of the weights, which `run` keeps on the device, and of this memory.
        unsafe { eval.kernels.embed(&self.stream, &embed, rows)? };
        let encoder = eval.plan.encoder.as_ref();
        let of_encoder = encoder.and_then(|encoder| encoder.embedding_norm);
        if let Some(norm) = of_encoder.or(eval.plan.embedding_norm) {
            // SAFETY: as above.
            unsafe { eval.add(&chunk.rows, &Addition::norm_of_residual(Some(norm)), rows)? };
        }
        let ops = ChunkOperations {
            places: chunk,
            eval: *eval,
            rows,
            texts: Some(&texts),
            host: None,
            meetings: Meetings::default(),
            pause: RefCell::new(pause),
        };
        ops.layer_inputs()?;
        ops.begin_streams()?;
        for (i, layer) in eval.plan.layers.iter().enumerate() {
            walk(&ops, i, layer)?;
        }
        ops.end_streams()?;
        Ok(texts)
    }

    /// Enqueues what comes behind the last layer. Where the results are.
    fn finish(&self, eval: &Evaluation<'_>, texts: &TextPlaces, route: &Route<'_>) -> Result<Span> {
        let (plan, stream) = (eval.plan, &self.stream);
        let (rows, count) = (self.pack.tokens.len() as u32, self.pack.spans.len() as u32);
        let chunk = &self.memory.at().chunk;
        let [mut from, mut to] = texts.pooled;
        let pool = |pooling: args::PoolingKind| args::Pool {
            x: chunk.rows.residual.address,
            texts: texts.spans,
            out: from.address,
            x_stride: chunk.rows.residual.stride,
            out_stride: from.stride,
            len: plan.hidden,
            pooling: pooling as u32,
        };
        // Of what is a vector already, the norm of the one row is enough.
        let of_one_row = match route.pooling {
            Pooling::First => Some(args::PoolingKind::First),
            Pooling::Last => Some(args::PoolingKind::Last),
            Pooling::Mean | Pooling::None => None,
        };
        let normed = match of_one_row {
            Some(_) => from,
            None => chunk.rows.residual,
        };
        let norm = args::ResidualAdd {
            x: normed.address,
            out: normed.address,
            stride: normed.stride,
            ..plan.residual_add(normed.stride, Some(plan.final_norm), 1.0)
        };
        // SAFETY: addresses of the weights, which `run` keeps on the device, and of this memory.
        unsafe {
            match of_one_row {
                Some(pooling) => {
                    eval.kernels.pool_texts(stream, &pool(pooling), count)?;
                    eval.kernels.residual_add(stream, &norm, count)?;
                }
                None => {
                    eval.kernels.residual_add(stream, &norm, rows)?;
                    if route.pooling == Pooling::None {
                        return Ok(normed);
                    }
                    let mean = pool(args::PoolingKind::Mean);
                    eval.kernels.pool_texts(stream, &mean, count)?;
                }
            }
            for (i, dense) in route.layers.iter().enumerate() {
                let mut out = to;
                if route.beside {
                    out.address += i as u64 * 4;
                }
                eval.kernels
                    .dense_texts(stream, dense, (from, out), count)?;
                if !route.beside {
                    (from, to) = (to, from);
                }
            }
        }
        Ok(if route.beside { to } else { from })
    }
}

impl Embedder for CudaEmbedder {
    fn bytes(&self) -> u64 {
        let adapters = self.adapters.as_ref().map_or(0, SessionAdapters::bytes);
        (self.memory.memory().bytes() + self.session.bytes() + adapters) as u64
    }

    fn width(&self, output: Output) -> usize {
        let plan = self.weights.plan();
        match (output, self.route(output)) {
            (Output::Vectors(Pooling::None), _) => plan.hidden as usize,
            (_, Ok(route)) if route.softmax => 1,
            (_, Ok(route)) => route.width(plan) as usize,
            (_, Err(_)) => 0,
        }
    }

    fn run(
        &mut self,
        texts: &[TextTokens<'_>],
        output: Output,
        out: &mut [f32],
        interrupt: &AtomicBool,
    ) -> Result<usize> {
        self.pack.fill(texts, self.rows);
        let count = self.pack.spans.len();
        if count == 0 {
            fail!(Internal, "no room for a text");
        }
        self.tiles = Tiles::of(&self.pack.spans, &mut self.pack.tiles);
        let weights = self.weights.clone();
        let _resident = weights.resident()?;
        let device = weights.context().clone();
        let _current = device.enter()?;
        let route = self.route(output)?;
        let eval = Evaluation {
            kernels: weights.kernels(),
            plan: weights.plan(),
            kv: &self.kv,
            stream: &self.stream,
            sessions: self.session.address() + TABLE as u64,
            adapters: match &self.adapters {
                Some(adapters) => Adapters::One(adapters.alone()),
                None => Adapters::None,
            },
            link: None,
            keeps: Keeps::default(),
            guests: None,
        };
        let (width, rows) = match route.pooling {
            Pooling::None => (weights.plan().hidden, self.pack.tokens.len()),
            _ => (route.width(weights.plan()), count),
        };
        let width = width as usize;
        let mut logits = Vec::new();
        let results = match route.softmax {
            false => &mut out[..rows * width],
            true => {
                logits = try_vec(rows * width, 0.0, "scores of texts")?;
                &mut logits[..]
            }
        };
        let mut prompt = weights.gate().prompt(&self.stream, interrupt, false)?;
        let enqueued = self
            .enqueue(&eval, &mut || prompt.pause())
            .and_then(|texts| self.finish(&eval, &texts, &route));
        let left = match enqueued {
            // SAFETY: what was enqueued leaves rows of `width` elements there.
            Ok(from) => unsafe { crossing::leave(&self.stream, from, width, results) },
            Err(e) => Err(e),
        };
        // After an error, too, the device is done with the weights and with the memory before anybody else is.
        left.and(self.stream.synchronize())?;
        if route.softmax {
            for (score, logits) in out.iter_mut().zip(logits.chunks_exact(width)) {
                *score = share_of_first(logits);
            }
        }
        Ok(count)
    }
}

impl Drop for CudaEmbedder {
    fn drop(&mut self) {
        if let Ok(_current) = self.weights.context().enter() {
            // The memory goes when the device is done with it; errors are reported elsewhere.
            let _ = self.stream.synchronize();
        }
    }
}

/// A session on the device, and behind it a table with its address.
fn session_on(device: &Arc<Context>, session: &args::Session) -> Result<Buffer> {
    let buffer = Buffer::new(device, TABLE + size_of::<u64>(), WHAT)?;
    buffer.write(0, &[*session])?;
    buffer.write(TABLE, &[buffer.address()])?;
    Ok(buffer)
}

/// Enqueues the copy of a list, which is read before this returns.
///
/// # Safety
/// There is room for it at `to`, which no other work uses until the copy is done.
unsafe fn copy_in<T: Copy>(stream: &Stream, to: u64, list: &[T]) -> Result<()> {
    // SAFETY: by contract.
    unsafe { stream.copy_in(to, list.as_ptr().cast(), size_of_val(list)) }
}
