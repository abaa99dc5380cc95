//! LoRA adapters, checked against the network that they are for.

use super::network::{Block, FeedForward, Linear, Mixer, Network};
use super::{MatrixCut, Pieces};
use crate::error::{Result, fail, try_vec};
use crate::format::adapter::{AdapterFile, AdapterPair, BaseShape, EMBEDDING, MAX_RANK, swapped};
use crate::format::{ModelFile, Tensor, TensorId};
use crate::memory::Charge;
use crate::quant::TensorType;
use half::{bf16, f16};
use std::any::Any;
use std::collections::HashMap;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// What an adapter adds to a product `y = W x`: `y += scale * B (A x)`. Of a tensor that has the matrices of all experts of a layer, or
/// of all heads, each has a pair of its own.
pub struct LowRank {
    /// What the file calls `A`.
    pub name: Arc<str>,
    /// Matrices of the tensor: at least 1.
    pub stack: usize,
    /// Rows of `A`, columns of `B`; at least 1.
    pub rank: usize,
    /// Elements of `x`.
    pub inputs: usize,
    /// Elements of `y`.
    pub outputs: usize,
    /// Finite.
    pub scale: f32,
    /// `[stack][rank][inputs]`, in the bytes of a file of that type, which is no quantized one.
    pub a: Vec<u8>,
    /// The type of `a`.
    pub a_type: TensorType,
    /// `B` transposed, `[stack][rank][outputs]`.
    pub b: Floats,
}

/// Numbers of the type that a file has.
pub enum Floats {
    /// Single precision.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// Bfloat16.
    BF16(Vec<bf16>),
}

impl Floats {
    /// Their type.
    pub fn ty(&self) -> TensorType {
        match self {
            Floats::F32(_) => TensorType::F32,
            Floats::F16(_) => TensorType::F16,
            Floats::BF16(_) => TensorType::BF16,
        }
    }

    /// Numbers in a type, exactly if they come from it.
    fn of(numbers: &[f32], ty: TensorType) -> Result<Floats> {
        fn all<N: Copy + Default>(numbers: &[f32], of: impl Fn(f32) -> N) -> Result<Vec<N>> {
            let mut all = try_vec(numbers.len(), N::default(), "an adapter")?;
            for (to, x) in all.iter_mut().zip(numbers) {
                *to = of(*x);
            }
            Ok(all)
        }
        Ok(match ty {
            TensorType::F16 => Floats::F16(all(numbers, f16::from_f32)?),
            TensorType::BF16 => Floats::BF16(all(numbers, bf16::from_f32)?),
            _ => Floats::F32(all(numbers, |x| x)?),
        })
    }

    /// Some of them, as many as `out` has.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        match self {
            Floats::F32(all) => out.copy_from_slice(&all[range]),
            Floats::F16(all) => {
                for (to, x) in out.iter_mut().zip(&all[range]) {
                    *to = x.to_f32();
                }
            }
            Floats::BF16(all) => {
                for (to, x) in out.iter_mut().zip(&all[range]) {
                    *to = x.to_f32();
                }
            }
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.len() * self.ty().block_bytes()
    }

    fn len(&self) -> usize {
        match self {
            Floats::F32(all) => all.len(),
            Floats::F16(all) => all.len(),
            Floats::BF16(all) => all.len(),
        }
    }
}

/// What an adapter adds to the embedding of a token `t`: `scale * sum over k of rows[k] * of_tokens[t][k]`.
pub struct EmbeddingPair {
    /// What the file calls `A`.
    pub name: Arc<str>,
    /// At least 1.
    pub rank: usize,
    /// Finite.
    pub scale: f32,
    /// `[vocabulary][rank]`.
    pub of_tokens: Floats,
    /// `[rank][hidden]`.
    pub rows: Floats,
}

/// An adapter of a network.
pub struct Adapter {
    /// What the file calls it; may be empty.
    pub name: String,
    /// By the matrix that each is added to.
    pub pairs: HashMap<TensorId, LowRank>,
    /// What is added to the token embedding, but not to a head that is the same matrix.
    pub embedding: Option<EmbeddingPair>,
    /// The largest rank.
    pub max_rank: usize,
    /// Whether there are pairs for experts that a router chooses.
    pub has_experts: bool,
    /// Whether there are pairs for the heads of latent attention.
    pub has_heads: bool,
    /// Tensors of the file.
    pub n_tensors: usize,
    /// Numbers in them.
    pub n_parameters: u64,
    /// Bytes of the file with the tensors.
    pub file_bytes: u64,
    /// Bytes of the pairs in memory.
    pub bytes: u64,
    /// What those in host memory are charged to, as long as anybody has them.
    pub charges: Vec<Charge>,
    /// What devices have of it. The pairs that are there have no numbers here.
    pub device: Vec<Box<dyn Any + Send + Sync>>,
    /// Of what it adds to which tensors, whatever the form of its file.
    pub fingerprint: u64,
}

impl Adapter {
    /// Devices have the numbers of these pairs: they are not needed here.
    pub fn leave(&mut self, pairs: impl Iterator<Item = TensorId>) {
        for id in pairs {
            if let Some(pair) = self.pairs.get_mut(&id) {
                (pair.a, pair.b) = (Vec::new(), Floats::F32(Vec::new()));
            }
        }
    }
}

/// Where a network's matrices are in its file, as far as adapters can be added to them. Kept beside a
/// loaded network.
pub struct Adaptable {
    shape: BaseShape,
    /// Whether it has a token embedding.
    embeds: bool,
    /// By tensor of the file.
    targets: HashMap<String, Target>,
}

/// What a linear layer is a matrix of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// All experts that a router chooses from.
    Experts,
    /// All heads of latent attention.
    Heads,
}

/// A tensor of a model file.
struct Target {
    inputs: usize,
    outputs: usize,
    /// Matrices of this shape, of experts or heads; 1 for a plain one.
    stack: usize,
    /// The matrices that its rows are, none where no adapter can be added.
    parts: Vec<Part>,
}

/// A matrix of the network, as rows of a tensor.
struct Part {
    id: TensorId,
    kind: Kind,
    first: usize,
    rows: usize,
}

/// The matrices of a block that every token is multiplied with, and that adapters can be added to.
fn linears(block: &Block) -> Vec<&Linear> {
    // Thin matrices beside attention and several streams have ways of their own.
    if block.streams.is_some() {
        return Vec::new();
    }
    let mut all = match &block.mixer {
        // What takes heads into the space of latent vectors and out of it is made of another matrix.
        Mixer::Latent(latent) => latent.projections(),
        mixer => mixer.linears(),
    };
    match &block.feed_forward {
        FeedForward::Dense(mlp) => all.extend(mlp.linears()),
        FeedForward::Both(both) => all.extend(both.mlp.linears()),
        FeedForward::Latent(latent) => {
            all.extend([&latent.enter, &latent.leave]);
            all.extend(latent.mlp.linears());
        }
        FeedForward::Experts(_) | FeedForward::OnHost(_) | FeedForward::None => {}
    }
    // Of experts, only what every token goes through.
    let shared = block.feed_forward.experts().and_then(|e| e.shared.as_ref());
    all.extend(shared.into_iter().flat_map(|shared| shared.mlp.linears()));
    all
}

/// The others that adapters can be added to: of routers, of experts that these choose, and of heads of latent attention.
fn linears_apart(block: &Block) -> Vec<(Kind, &Linear)> {
    if block.streams.is_some() {
        return Vec::new();
    }
    let mut all = Vec::new();
    if let Mixer::Latent(latent) = &block.mixer {
        all.extend([&latent.to_latent, &latent.from_latent].map(|l| (Kind::Heads, l)));
    }
    if let Some(experts) = block.feed_forward.experts() {
        let chosen = [&experts.up, &experts.down].into_iter();
        all.extend(chosen.chain(&experts.gate).map(|l| (Kind::Experts, l)));
        let shared = experts.shared.as_ref().and_then(|s| s.gate.as_ref());
        let scorers = std::iter::once(&experts.router).chain(shared);
        all.extend(scorers.map(|l| (Kind::Plain, l)));
    }
    all
}

/// The linear layers of a network that adapters can be added to, apart from [`adaptable_linears`]: of routers, of experts that
/// these choose, and of heads of latent attention.
pub fn linears_adaptable_apart(network: &Network) -> impl Iterator<Item = &Linear> {
    let all = network.blocks.iter().flat_map(linears_apart);
    all.map(|(_, linear)| linear)
}

/// The linear layers of a network that every token is multiplied with, and that adapters can be added to.
pub fn adaptable_linears(network: &Network) -> impl Iterator<Item = &Linear> {
    let head = network.ends().then_some(&network.head);
    network.blocks.iter().flat_map(linears).chain(head)
}

/// What a linear layer of a network is of the matrix that an adapter has a pair for.
pub fn adaptable_cut(network: &Network, linear: &Linear) -> MatrixCut {
    let cuts = network.cuts.as_deref();
    let cut = cuts.and_then(|cuts| cuts.get(&linear.weight.id()));
    cut.cloned()
        .unwrap_or_else(|| MatrixCut::none(&linear.weight))
}

impl Adaptable {
    /// Of a network and the file that it was made from.
    #[inline(never)]
    pub fn of(file: &ModelFile, network: &Network) -> Result<Adaptable> {
        let mut by_name = HashMap::<&str, Vec<(Kind, &Linear)>>::new();
        for block in &network.blocks {
            let plain = linears(block).into_iter().map(|l| (Kind::Plain, l));
            for (kind, linear) in plain.chain(linears_apart(block)) {
                let all = by_name.entry(&linear.weight.name).or_default();
                all.push((kind, linear));
            }
        }
        let mut targets = HashMap::new();
        for (key, tensor) in &file.tensors {
            if tensor.dims.len() < 2 {
                continue;
            }
            let mut parts = Vec::<Part>::new();
            for (kind, linear) in by_name.get(&*tensor.name).into_iter().flatten() {
                if let Some(first) = linear.weight.first_row_in(tensor)
                    && !parts.iter().any(|part| part.id == linear.weight.id())
                {
                    parts.push(part(&linear.weight, first, *kind));
                }
            }
            parts.sort_unstable_by_key(|part| part.first);
            let stack = tensor.dims[2..].iter().product::<usize>().max(1);
            let target = Target {
                inputs: tensor.row_len(),
                outputs: tensor.rows() / stack,
                stack,
                parts,
            };
            targets.insert(key.to_string(), target);
        }
        // The head goes by this name, also where it is the embedding. Encoders have none.
        if network.encoder.is_none() {
            let head = &network.head.weight;
            let target = Target {
                inputs: head.row_len(),
                outputs: head.rows(),
                stack: 1,
                parts: vec![part(head, 0, Kind::Plain)],
            };
            targets.insert("output.weight".to_owned(), target);
        }
        Ok(Adaptable {
            shape: BaseShape::of(file)?,
            embeds: network.embeds(),
            targets,
        })
    }

    /// Reads an adapter of this network.
    ///
    /// Errors: those of [`AdapterFile::open`]; `MissingTensor` for pairs of tensors that the network does not
    /// have; `Unsupported` for those that cannot have any; `ShapeMismatch`. Messages name the tensor.
    pub fn read(&self, path: &Path) -> Result<Adapter> {
        let file = AdapterFile::open(path, &self.shape)?;
        let within = |e: crate::Error| {
            crate::Error::new(e.status, format!("{}: {}", path.display(), e.message))
        };
        self.check(&file).map_err(within)
    }

    fn check(&self, file: &AdapterFile) -> Result<Adapter> {
        let mut adapter = Adapter {
            name: file.name.clone(),
            pairs: HashMap::new(),
            embedding: None,
            max_rank: 0,
            has_experts: false,
            has_heads: false,
            n_tensors: file.n_tensors,
            n_parameters: 0,
            file_bytes: file.file_bytes,
            bytes: 0,
            charges: Vec::new(),
            device: Vec::new(),
            fingerprint: fingerprint(&file.pairs),
        };
        for pair in &file.pairs {
            let name = &pair.names[0];
            let Some(target) = self.targets.get(&pair.target) else {
                fail!(
                    MissingTensor,
                    "tensor {name} is for {}, which the model does not have",
                    pair.target
                );
            };
            if [pair.inputs, pair.outputs] != [target.inputs, target.outputs] {
                return Err(pair.misfit(target.inputs, target.outputs));
            }
            if pair.stack != target.stack {
                return Err(pair.other_stack(target.stack));
            }
            debug_assert!(pair.rank <= MAX_RANK);
            adapter.max_rank = adapter.max_rank.max(pair.rank);
            adapter.n_parameters += (pair.a.len() + pair.b.len()) as u64;
            if pair.target == EMBEDDING && self.embeds {
                let own = EmbeddingPair::of(pair)?;
                adapter.bytes += own.bytes() as u64;
                adapter.embedding = Some(own);
                continue;
            }
            let covered: usize = target.parts.iter().map(|part| part.rows).sum();
            if covered != target.outputs * target.stack {
                fail!(
                    Unsupported,
                    "tensor {name}: adapters of {} are not supported",
                    pair.target
                );
            }
            for part in &target.parts {
                adapter.has_experts |= part.kind == Kind::Experts;
                adapter.has_heads |= part.kind == Kind::Heads;
                let low = LowRank::of(pair, part)?;
                adapter.bytes += low.bytes() as u64;
                if adapter.pairs.try_reserve(1).is_err() {
                    fail!(OutOfMemory, "an adapter of {} pairs", file.pairs.len());
                }
                adapter.pairs.insert(part.id, low);
            }
        }
        Ok(adapter)
    }
}

/// Tells what the pairs add from what others do.
fn fingerprint(pairs: &[AdapterPair]) -> u64 {
    let mut hash = XxHash3_64::with_seed(0);
    for pair in pairs {
        hash.write(pair.target.as_bytes());
        // As it was before there were several matrices of a target.
        let stack = (pair.stack > 1).then_some(pair.stack);
        for number in [pair.rank, pair.inputs, pair.outputs]
            .into_iter()
            .chain(stack)
        {
            hash.write(&(number as u64).to_le_bytes());
        }
        hash.write(&pair.scale.to_le_bytes());
        for x in pair.a.iter().chain(&pair.b) {
            hash.write(&x.to_le_bytes());
        }
    }
    hash.finish()
}

fn part(weight: &Tensor, first: usize, kind: Kind) -> Part {
    Part {
        id: weight.id(),
        kind,
        first,
        rows: weight.rows(),
    }
}

impl EmbeddingPair {
    fn of(pair: &AdapterPair) -> Result<EmbeddingPair> {
        let [rows, of_tokens] = pair.types;
        Ok(EmbeddingPair {
            name: Arc::from(&*pair.names[0]),
            rank: pair.rank,
            scale: pair.scale,
            of_tokens: Floats::of(&pair.b, of_tokens)?,
            rows: Floats::of(&pair.a, rows)?,
        })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.of_tokens.bytes() + self.rows.bytes()
    }
}

impl LowRank {
    /// Some rows of a pair. Of several matrices, these are all rows of each.
    fn of(pair: &AdapterPair, part: &Part) -> Result<LowRank> {
        let rows = &pair.b[part.first * pair.rank..][..part.rows * pair.rank];
        // What came from those types becomes the same again.
        let [a_type, b_type] = pair.types;
        let a = match a_type {
            TensorType::F16 => bytes(pair, |x| f16::from_f32(x).to_le_bytes()),
            TensorType::BF16 => bytes(pair, |x| bf16::from_f32(x).to_le_bytes()),
            _ => bytes(pair, f32::to_le_bytes),
        }?;
        Ok(LowRank {
            name: Arc::from(&*pair.names[0]),
            stack: pair.stack,
            rank: pair.rank,
            inputs: pair.inputs,
            outputs: part.rows / pair.stack,
            scale: pair.scale,
            a,
            a_type,
            b: Floats::of(&swapped(rows, pair.stack, pair.rank)?, b_type)?,
        })
    }

    /// `A` of a matrix of the tensor.
    pub fn a_of(&self, index: usize) -> &[u8] {
        let each = self.a.len() / self.stack;
        &self.a[index * each..][..each]
    }

    /// What it adds to some rows of its matrices, as many of each that has any, by some columns of these: those of all columns add up to
    /// what it adds.
    pub fn cut(&self, cut: &MatrixCut) -> Result<LowRank> {
        // Matrices, and their rows.
        let own = |index: usize| {
            let first = index * self.outputs;
            let inside = cut.rows.within(first..first + self.outputs);
            let ranges = inside.ranges().iter();
            Pieces::new(ranges.map(|range| range.start - first..range.end - first))
        };
        let all = (0..self.stack).map(|index| (index, own(index)));
        let mine: Vec<(usize, Pieces)> = all.filter(|(_, rows)| !rows.is_empty()).collect();
        let outputs = cut.rows.len() / mine.len().max(1);
        if mine.iter().any(|(_, rows)| rows.len() != outputs) || outputs == 0 {
            fail!(Internal, "tensor {}: rows of unlike matrices", self.name);
        }
        let element = self.a_type.block_bytes();
        let row = cut.columns.len() * element;
        let mut a = try_vec(mine.len() * self.rank * row, 0u8, "an adapter")?;
        let rows = mine
            .iter()
            .flat_map(|(index, _)| self.a_of(*index).chunks_exact(self.inputs * element));
        for (to, from) in a.chunks_exact_mut(row).zip(rows) {
            cut.columns.take(element, from, to);
        }
        Ok(LowRank {
            name: self.name.clone(),
            stack: mine.len(),
            inputs: cut.columns.len(),
            outputs,
            a,
            b: match &self.b {
                Floats::F32(b) => Floats::F32(self.rows(b, &mine)?),
                Floats::F16(b) => Floats::F16(self.rows(b, &mine)?),
                Floats::BF16(b) => Floats::BF16(self.rows(b, &mine)?),
            },
            ..*self
        })
    }

    /// Of the columns `b` of some matrices, some rows.
    fn rows<N: Copy + Default>(&self, b: &[N], mine: &[(usize, Pieces)]) -> Result<Vec<N>> {
        let all: usize = mine.iter().map(|(_, rows)| rows.len()).sum();
        let mut rows = try_vec(self.rank * all, N::default(), "an adapter")?;
        let mut at = 0;
        for (index, pieces) in mine {
            let matrix = &b[index * self.rank * self.outputs..][..self.rank * self.outputs];
            for column in matrix.chunks_exact(self.outputs) {
                pieces.take(1, column, &mut rows[at..at + pieces.len()]);
                at += pieces.len();
            }
        }
        Ok(rows)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.a.len() + self.b.bytes()
    }
}

/// `A`, each element as so many bytes.
fn bytes<const N: usize>(pair: &AdapterPair, of: impl Fn(f32) -> [u8; N]) -> Result<Vec<u8>> {
    let mut a = try_vec(N * pair.a.len(), 0u8, "an adapter")?;
    for (to, x) in a.as_chunks_mut().0.iter_mut().zip(&pair.a) {
        *to = of(*x);
    }
    Ok(a)
}

/// An adapter, and how much it counts.
#[derive(Clone)]
pub struct AdapterUse {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// Factor on what it adds. Finite.
    pub scale: f32,
}

/// Adapters that are added one after another.
pub type AdapterSet = Vec<AdapterUse>;
