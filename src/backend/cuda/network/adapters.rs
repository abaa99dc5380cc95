//! What sessions add to products: pairs of thin matrices of their adapters.
//!
//! An adapter is on the device once for a model. What a session uses is a table there, to which its device-side state
//! points, so that captured graphs serve any adapters. Steps whose sessions have none are captured without.

use super::evaluation::Evaluation;
use super::linears::AdaptedLinear;
use super::plan::Plan;
use crate::backend::cuda::driver::{Buffer, Context};
use crate::backend::cuda::launch::adapters::{
    Adaptation, AdaptedApart, AdaptedInput, Adapters, MOST_RANKS, OneSession, Reach, Room,
    THIN_ROWS,
};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::ExpertsPlan;
use crate::backend::cuda::launch::matrix::Matrix;
use crate::backend::cuda::launch::span::Span;
use crate::backend::row::Front;
use crate::error::{Result, fail, try_vec};
use crate::format::TensorId;
use crate::format::adapter::MAX_RANK;
use crate::model::{Adapter, AdapterSet, EmbeddingPair, Floats, LowRank, MatrixCut};
use crate::quant::TensorType;
use std::collections::HashMap;
use std::sync::Arc;

/// Behind the pairs of a product, these bytes are asked for, too: they are those of the next one, as a rule.
const PAIRS_BEHIND: usize = 256;
/// Rows of `B` have a multiple of so many elements.
const RANKS: usize = 8;
/// Numbers of pairs begin at a multiple of this.
const ALIGNMENT: usize = 256;

const _: () = assert!(MAX_RANK <= args::MOST_RANKS_OF_EACH as usize);

/// A pair on the device.
#[derive(Clone, Copy)]
struct DevicePair {
    a: u64,
    b: u64,
    a_type: u32,
    b_type: u32,
    rank: u32,
    scale: f32,
}

impl DevicePair {
    /// With a session's scale, and where its part of a thin row begins.
    fn used(&self, scale: f32, at: u32) -> args::AdapterPair {
        args::AdapterPair {
            a: self.a,
            b: self.b,
            rank: self.rank,
            at,
            a_type: self.a_type,
            b_type: self.b_type,
            scale: scale * self.scale,
            padding: 0,
        }
    }
}

/// An adapter on a device, as far as the network or its part there has linear layers for it.
pub struct DeviceAdapter {
    pairs: HashMap<TensorId, DevicePair>,
    /// For the token embedding: `A` has a row for each token, and `B` one for each rank.
    embedding: Option<DevicePair>,
    max_rank: usize,
    numbers: Buffer,
}

/// As `AdapterType` of adapters.cuh.
fn type_number(ty: TensorType) -> u32 {
    match ty {
        TensorType::F16 => 1,
        TensorType::BF16 => 2,
        _ => 0,
    }
}

/// Elements of a row of `B` on the device.
fn ranks(rank: usize) -> usize {
    rank.next_multiple_of(RANKS)
}

/// `B` as it is on the device, the rows of its matrices one after the other.
fn b_of(pair: &LowRank) -> Result<Vec<u8>> {
    fn rows<T: Copy, const N: usize>(
        pair: &LowRank,
        columns: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> Result<Vec<u8>> {
        let row = ranks(pair.rank) * N;
        let mut all = try_vec(pair.stack * pair.outputs * row, 0u8, "an adapter")?;
        let matrices = columns.chunks_exact(pair.rank * pair.outputs);
        for (all, columns) in all.chunks_exact_mut(pair.outputs * row).zip(matrices) {
            for (k, column) in columns.chunks_exact(pair.outputs).enumerate() {
                for (to, x) in all.chunks_exact_mut(row).zip(column) {
                    to[k * N..][..N].copy_from_slice(&bytes(*x));
                }
            }
        }
        Ok(all)
    }
    match &pair.b {
        Floats::F32(b) => rows(pair, b, |x| x.to_le_bytes()),
        Floats::F16(b) => rows(pair, b, |x| x.to_le_bytes()),
        Floats::BF16(b) => rows(pair, b, |x| x.to_le_bytes()),
    }
}

/// `count` rows, each with zeros behind it up to `row` bytes.
fn padded(rows: &[u8], count: usize, row: usize) -> Result<Vec<u8>> {
    let length = rows.len() / count;
    let mut padded = try_vec(row * count, 0u8, "an adapter")?;
    for (to, from) in padded.chunks_exact_mut(row).zip(rows.chunks_exact(length)) {
        to[..length].copy_from_slice(from);
    }
    Ok(padded)
}

/// Bytes of a row of `A` on the device, whose products read whole groups, and of all of `B`, of all matrices.
fn device_bytes(pair: &LowRank, cut: &MatrixCut) -> (usize, usize) {
    let row = cut.columns.len().next_multiple_of(32) * pair.a_type.block_bytes();
    let b = cut.rows.len() * ranks(pair.rank) * pair.b.ty().block_bytes();
    (row, b)
}

impl DeviceAdapter {
    /// Brings the pairs of an adapter that the plan has linear layers for to the device.
    ///
    /// Errors: `Unsupported` for pairs of a whole network's matrices that it has no linear layers for; `OutOfMemory`; those of the
    /// device.
    pub fn take(context: &Arc<Context>, plan: &Plan, adapter: &Adapter) -> Result<DeviceAdapter> {
        let what = "an adapter";
        for (id, what) in &plan.not_adaptable {
            if let Some(pair) = adapter.pairs.get(id) {
                fail!(Unsupported, "tensor {}: it is for {what}", pair.name);
            }
        }
        let _current = context.enter()?;
        let mine = plan.linears.iter().filter_map(|linear| {
            let pair = adapter.pairs.get(&linear.cut.whole)?;
            Some((linear, pair))
        });
        let mine: Vec<(&AdaptedLinear, &LowRank)> = mine.collect();
        let is_whole = plan.ends == (Front::Embeddings, true);
        let is_mine = |id: &TensorId| mine.iter().any(|(linear, _)| linear.cut.whole == *id);
        if is_whole && let Some((_, pair)) = adapter.pairs.iter().find(|(id, _)| !is_mine(id)) {
            fail!(
                Unsupported,
                "tensor {}: it is for a matrix that cannot have adapters on a GPU; it can on a CPU",
                pair.name
            );
        }
        let mut bytes = 0;
        for (linear, pair) in &mine {
            let (row, b) = device_bytes(pair, &linear.cut);
            for part in [row * pair.rank * linear.matrices, b] {
                bytes += part.next_multiple_of(ALIGNMENT);
            }
        }
        let embeds = plan.ends.0 == Front::Embeddings;
        let of_embedding = adapter.embedding.as_ref().filter(|_| embeds);
        let of_embedding = match of_embedding {
            Some(pair) => Some((pair, EmbeddingNumbers::of(plan, pair)?)),
            None => None,
        };
        if let Some((_, halves)) = &of_embedding {
            for half in [&halves.a, &halves.b] {
                bytes += half.len().next_multiple_of(ALIGNMENT);
            }
        }
        let numbers = Buffer::new(context, bytes, what)?;
        let mut pairs = HashMap::new();
        let mut at = 0;
        // Where some numbers are that are brought there.
        let mut put = |bytes: &[u8]| -> Result<u64> {
            numbers.write(at, bytes)?;
            let address = numbers.address() + at as u64;
            at += bytes.len().next_multiple_of(ALIGNMENT);
            Ok(address)
        };
        for (linear, whole) in mine {
            let cut = &linear.cut;
            let row = device_bytes(whole, cut).0;
            let own;
            let all = (whole.stack * whole.outputs, whole.inputs);
            let pair = match (cut.rows.len(), cut.columns.len()) == all {
                true => whole,
                false => {
                    own = whole.cut(cut)?;
                    &own
                }
            };
            if pair.stack != linear.matrices {
                fail!(Internal, "tensor {}: {} matrices", pair.name, pair.stack);
            }
            let rows = pair.stack * pair.rank;
            let a = match row * rows == pair.a.len() {
                true => put(&pair.a)?,
                false => put(&padded(&pair.a, rows, row)?)?,
            };
            let device = DevicePair {
                a,
                b: put(&b_of(pair)?)?,
                a_type: type_number(pair.a_type),
                b_type: type_number(pair.b.ty()),
                rank: pair.rank as u32,
                scale: pair.scale,
            };
            pairs.insert(cut.whole, device);
        }
        let mut embedding = None;
        if let Some((pair, halves)) = of_embedding {
            embedding = Some(DevicePair {
                a: put(&halves.a)?,
                b: put(&halves.b)?,
                a_type: type_number(pair.of_tokens.ty()),
                b_type: type_number(pair.rows.ty()),
                rank: pair.rank as u32,
                scale: pair.scale,
            });
        }
        Ok(DeviceAdapter {
            pairs,
            embedding,
            max_rank: adapter.max_rank,
            numbers,
        })
    }

    /// Those that are here.
    pub fn pairs(&self) -> impl Iterator<Item = TensorId> {
        self.pairs.keys().copied()
    }

    /// What weights whose sessions have this context took of an adapter: each part of a network has its own.
    fn of<'a>(adapter: &'a Adapter, sessions: &Arc<Context>) -> Result<&'a DeviceAdapter> {
        let mut all = adapter.device.iter();
        let is_it = |d: &&DeviceAdapter| Arc::ptr_eq(d.numbers.context(), sessions);
        match all.find_map(|d| d.downcast_ref::<DeviceAdapter>().filter(is_it)) {
            Some(device) => Ok(device),
            None => fail!(Internal, "an adapter that was not taken to the device"),
        }
    }
}

/// A pair for the token embedding as it is on the device.
struct EmbeddingNumbers {
    /// `[vocabulary][rank]`.
    a: Vec<u8>,
    /// `[rank][groups * 32]`, zeros behind the width of the network.
    b: Vec<u8>,
}

impl EmbeddingNumbers {
    fn of(plan: &Plan, pair: &EmbeddingPair) -> Result<EmbeddingNumbers> {
        let row = plan.embedding.groups as usize * 32 * pair.rows.ty().block_bytes();
        Ok(EmbeddingNumbers {
            a: bytes_of(&pair.of_tokens)?,
            b: padded(&bytes_of(&pair.rows)?, pair.rank, row)?,
        })
    }
}

/// Numbers one after the other.
fn bytes_of(floats: &Floats) -> Result<Vec<u8>> {
    let mut all = try_vec(floats.bytes(), 0u8, "an adapter")?;
    let to = all.chunks_exact_mut(floats.ty().block_bytes());
    match floats {
        Floats::F32(from) => to
            .zip(from)
            .for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes())),
        Floats::F16(from) => to
            .zip(from)
            .for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes())),
        Floats::BF16(from) => to
            .zip(from)
            .for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes())),
    }
    Ok(all)
}

/// The first of some adapters that adds to a matrix.
pub fn first_that_adapts(plan: &Plan, matrix: &Matrix, set: &AdapterSet) -> Option<usize> {
    let adapted = matrix.adapted.as_ref()?;
    let linears = &plan.linears[adapted.first as usize..][..adapted.n_linears as usize];
    set.iter().position(|used| {
        let pairs = &used.adapter.pairs;
        linears
            .iter()
            .any(|linear| pairs.contains_key(&linear.cut.whole))
    })
}

/// The adapters of a session.
pub struct SessionAdapters {
    /// Kept, with what is on the device of them.
    pub set: Arc<AdapterSet>,
    room: Room,
    /// Of each linear layer of the network.
    pairs: Buffer,
    /// `A x` of rows.
    thin: Buffer,
    thin_stride: usize,
    /// `A x` of the products that add themselves what adapters have for them, one after the other, if some do.
    words: Option<Buffer>,
    /// What goes to `pairs`.
    table: Vec<args::AdapterPair>,
    reach: Reach,
}

impl Room {
    /// Enough for these, and for others that are about as many.
    fn of(set: &AdapterSet) -> Room {
        let all: usize = set.iter().map(|u| ranks(u.adapter.max_rank)).sum();
        Room {
            uses: set.len().next_power_of_two(),
            ranks: all.next_power_of_two().max(16),
        }
    }

    fn holds(&self, other: Room) -> bool {
        self.uses >= other.uses && self.ranks >= other.ranks
    }
}

impl SessionAdapters {
    /// What a session needs that uses these.
    pub fn new(
        context: &Arc<Context>,
        plan: &Plan,
        set: Arc<AdapterSet>,
    ) -> Result<SessionAdapters> {
        let what = "the adapters of a session";
        let room = Room::of(&set);
        // Behind those of linear layers are the embedding's.
        let n = plan.linears.len() + 1;
        let pair = size_of::<args::AdapterPair>();
        let most = plan.linears.iter().map(|l| l.place + 1).max().unwrap_or(1);
        let thin_stride = most as usize * room.ranks;
        let mut adapters = SessionAdapters {
            room,
            pairs: Buffer::new(context, n * room.uses * pair + PAIRS_BEHIND, what)?,
            thin: Buffer::new(context, THIN_ROWS * thin_stride * 4, what)?,
            thin_stride,
            words: match room.ranks <= MOST_RANKS {
                true => Some(Buffer::new(
                    context,
                    thin_stride * args::LORA_DOWN_PARTS as usize * 8,
                    what,
                )?),
                false => None,
            },
            table: try_vec(n * room.uses, args::AdapterPair::default(), what)?,
            reach: Reach::None,
            set: set.clone(),
        };
        adapters.thin.clear(0, adapters.thin.bytes())?;
        adapters.write(plan, &set)?;
        Ok(adapters)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        let words = self.words.as_ref().map_or(0, Buffer::bytes);
        self.pairs.bytes() + self.thin.bytes() + words
    }

    /// Whether there is room for others.
    pub fn holds(&self, set: &AdapterSet) -> bool {
        self.room.holds(Room::of(set))
    }

    /// Takes others, for which there is room. Nothing that reads these is under way, and nothing is allocated.
    pub fn change(&mut self, plan: &Plan, set: Arc<AdapterSet>) -> Result<()> {
        self.write(plan, &set)?;
        self.set = set;
        Ok(())
    }

    fn write(&mut self, plan: &Plan, set: &AdapterSet) -> Result<()> {
        let room = self.room;
        self.table.fill(args::AdapterPair::default());
        self.reach = Reach::Common;
        let mut before = 0;
        for (i, used) in set.iter().enumerate() {
            let device = DeviceAdapter::of(&used.adapter, self.pairs.context())?;
            let tables = self.table.chunks_exact_mut(room.uses);
            for (linear, pairs) in plan.linears.iter().zip(tables) {
                let Some(pair) = device.pairs.get(&linear.cut.whole) else {
                    continue;
                };
                if linear.is_apart {
                    self.reach = Reach::All;
                }
                let at = linear.place * room.ranks as u32 + before;
                pairs[i] = pair.used(used.scale, at);
            }
            if let Some(pair) = &device.embedding {
                let own = plan.linears.len() * room.uses + i;
                self.table[own] = pair.used(used.scale, 0);
            }
            before += ranks(device.max_rank) as u32;
        }
        // What is behind the ranks of one set may be ranks of another.
        self.thin.clear(0, self.thin.bytes())?;
        self.pairs.write(0, &self.table)
    }

    /// Tells the device-side state.
    pub fn enter(&self, session: &mut args::Session) {
        session.adapters = self.pairs.address();
        session.thin = self.thin.address();
        session.adapter_uses = self.room.uses as u32;
        session.thin_stride = self.thin_stride as u32;
    }

    /// For products of the session alone.
    pub fn alone(&self) -> OneSession {
        OneSession {
            pairs: self.pairs.address(),
            words: self.words.as_ref().map_or(0, Buffer::address),
            n_words: self.words.as_ref().map_or(0, Buffer::bytes) as u32 / 8,
            room: self.room,
            reach: self.reach,
        }
    }

    /// Which products they add to.
    pub fn reach(&self) -> Reach {
        self.reach
    }
}

impl Evaluation<'_> {
    /// The arguments that embed tokens of the sessions, but for those of the rows.
    pub(in crate::backend::cuda) fn embed(&self) -> args::Embed {
        args::Embed {
            sessions: self.sessions,
            adapted: match self.adapters {
                Adapters::None => 0,
                Adapters::One(_) | Adapters::Any(_) => 1 + self.plan.linears.len() as u32,
            },
            ..self.plan.embed()
        }
    }

    /// What is launched for `rows` rows of a product; none where adapters add nothing.
    pub(super) fn adaptation(
        &self,
        matrix: &Matrix,
        input: AdaptedInput,
        out: Span,
        rows: u32,
    ) -> Option<Adaptation> {
        if matches!(self.adapters, Adapters::None) {
            return None;
        }
        let adapted = matrix.adapted.as_ref()?;
        let mut args = args::Adapt {
            sessions: self.sessions,
            out: out.address,
            out_stride: out.stride,
            groups: matrix.groups,
            rows: rows.min(THIN_ROWS as u32),
            outputs: matrix.rows,
            first_linear: adapted.first,
            n_linears: adapted.n_linears,
            pieces: adapted.pieces,
            ..Default::default()
        };
        let is_chunk = match input {
            AdaptedInput::Step(inputs) => {
                (args.q8, args.q8_scale) = (inputs.q8, inputs.q8_scale);
                // One form is enough.
                args.f32 = if inputs.q8 == 0 { inputs.f32 } else { 0 };
                false
            }
            AdaptedInput::Chunk { x, x_scale } => {
                (args.f16, args.f16_scale) = (x, x_scale);
                true
            }
        };
        Some(Adaptation {
            args,
            is_chunk,
            rows,
        })
    }

    /// Matrices that are not those of every token, if adapters may add to them.
    pub(super) fn reached<'a>(
        &self,
        adapted: &'a Option<AdaptedApart>,
    ) -> Option<&'a AdaptedApart> {
        adapted
            .as_ref()
            .filter(|_| self.adapters.reach() == Reach::All)
    }

    /// Adds what adapters have for `entries` entries of such matrices, if they may have something. `args` says where inputs and outputs
    /// are.
    ///
    /// # Safety
    /// *sessions*, *workspace*, of which `args` names parts.
    pub(super) unsafe fn adapt_each(
        &self,
        adapted: &Option<AdaptedApart>,
        args: &args::AdaptEach,
        entries: u32,
    ) -> Result<()> {
        let Some(adapted) = self.reached(adapted) else {
            return Ok(());
        };
        let args = args::AdaptEach {
            sessions: self.sessions,
            linear: adapted.linear,
            matrices: adapted.matrices,
            matrix_rows: adapted.matrix_rows,
            first: adapted.first,
            outputs: adapted.outputs,
            ..*args
        };
        // SAFETY: by contract, the addresses are those of the *sessions* and the *workspace*.
        unsafe { self.kernels.adapt_each(self.stream, &args, entries) }
    }

    /// Whether adapters may add to the products of a mixture, apart from those of its shared expert.
    pub(super) fn adapts_experts(&self, e: &ExpertsPlan) -> bool {
        self.adapters.reach() == Reach::All && e.adapted.any()
    }

    /// Adds what adapters have for a router's scores of `rows` rows, whose input is at `x`.
    ///
    /// # Safety
    /// As [`Evaluation::adapt_each`], of both addresses.
    pub(super) unsafe fn adapt_scores(
        &self,
        e: &ExpertsPlan,
        (x, scores): (u64, u64),
        rows: u32,
        one_session: bool,
    ) -> Result<()> {
        let firsts = [0, e.n_experts];
        for (adapted, first) in e.adapted.scores.iter().zip(firsts) {
            let args = args::AdaptEach {
                f32: x,
                x_stride: e.router.width,
                len: e.router.width,
                groups: e.router.groups(),
                out: scores + u64::from(first) * 4,
                out_stride: e.router.rows,
                out_scale: 1.0,
                per_row: 1,
                one_session: u32::from(one_session),
                ..Default::default()
            };
            // SAFETY: by contract.
            unsafe { self.adapt_each(adapted, &args, rows)? };
        }
        Ok(())
    }

    /// Adds what adapters have for a product of each of `n_heads` heads.
    ///
    /// # Safety
    /// As [`Evaluation::adapt_each`], of the product's addresses.
    pub(super) unsafe fn adapt_heads(
        &self,
        adapted: &Option<AdaptedApart>,
        product: &args::HeadProduct,
        n_heads: u32,
        one_session: bool,
    ) -> Result<()> {
        let halves = product.f16 != 0;
        let args = args::AdaptEach {
            f32: product.x,
            x_stride: product.x_stride,
            x_matrix: product.x_head,
            len: product.len,
            groups: product.groups,
            out: if halves { product.f16 } else { product.f32 },
            out_stride: product.out_stride,
            out_matrix: product.out_head,
            out_scale: product.scale,
            halves: u32::from(halves),
            per_row: n_heads,
            one_session: u32::from(one_session),
            ..Default::default()
        };
        // SAFETY: by contract.
        unsafe { self.adapt_each(adapted, &args, product.count * n_heads) }
    }
}
