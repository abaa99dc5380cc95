//! LoRA adapters, checked against the network that they are for.

use super::MatrixCut;
use super::network::{Block, FeedForward, Linear, Mixer, Network};
use crate::error::{Result, fail, try_vec};
use crate::format::adapter::{AdapterFile, AdapterPair, BaseShape, MAX_RANK};
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

/// What an adapter adds to a product `y = W x`: `y += scale * B (A x)`.
pub struct LowRank {
    /// Rows of `A`, columns of `B`; at least 1.
    pub rank: usize,
    /// Elements of `x`.
    pub inputs: usize,
    /// Elements of `y`.
    pub outputs: usize,
    /// Finite.
    pub scale: f32,
    /// `[rank][inputs]`, in the bytes of a file of that type, which is no quantized one.
    pub a: Vec<u8>,
    /// The type of `a`.
    pub a_type: TensorType,
    /// `B` transposed, `[rank][outputs]`.
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

    fn len(&self) -> usize {
        match self {
            Floats::F32(all) => all.len(),
            Floats::F16(all) => all.len(),
            Floats::BF16(all) => all.len(),
        }
    }
}

/// An adapter of a network.
pub struct Adapter {
    /// What the file calls it; may be empty.
    pub name: String,
    /// By the matrix that each is added to.
    pub pairs: HashMap<TensorId, LowRank>,
    /// The largest rank.
    pub max_rank: usize,
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
    /// By tensor of the file.
    targets: HashMap<String, Target>,
}

/// A tensor of a model file.
struct Target {
    inputs: usize,
    outputs: usize,
    /// The matrices that its rows are, none where no adapter can be added.
    parts: Vec<Part>,
}

/// A matrix of the network, as rows of a tensor.
struct Part {
    id: TensorId,
    first: usize,
    rows: usize,
}

/// The matrices of a block that adapters can be added to.
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

/// The linear layers of a network that adapters can be added to.
pub fn adaptable_linears(network: &Network) -> impl Iterator<Item = &Linear> {
    let head = network.ends().then_some(&network.head);
    network.blocks.iter().flat_map(linears).chain(head)
}

/// The same, and what each is of the matrix that an adapter has a pair for.
pub fn adaptable_cuts(network: &Network) -> impl Iterator<Item = (&Linear, MatrixCut)> {
    adaptable_linears(network).map(|linear| {
        let cuts = network.cuts.as_deref();
        let cut = cuts.and_then(|cuts| cuts.get(&linear.weight.id()));
        let cut = cut.cloned();
        (
            linear,
            cut.unwrap_or_else(|| MatrixCut::none(&linear.weight)),
        )
    })
}

impl Adaptable {
    /// Of a network and the file that it was made from.
    #[inline(never)]
    pub fn of(file: &ModelFile, network: &Network) -> Result<Adaptable> {
        let mut by_name = HashMap::<&str, Vec<&Linear>>::new();
        for linear in network.blocks.iter().flat_map(linears) {
            by_name.entry(&linear.weight.name).or_default().push(linear);
        }
        let mut targets = HashMap::new();
        for (key, tensor) in &file.tensors {
            if tensor.dims.len() < 2 {
                continue;
            }
            let mut parts = Vec::<Part>::new();
            for linear in by_name.get(&*tensor.name).into_iter().flatten() {
                if let Some(first) = linear.weight.first_row_in(tensor)
                    && !parts.iter().any(|part| part.id == linear.weight.id())
                {
                    parts.push(part(&linear.weight, first));
                }
            }
            parts.sort_unstable_by_key(|part| part.first);
            let target = Target {
                inputs: tensor.row_len(),
                outputs: tensor.rows(),
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
                parts: vec![part(head, 0)],
            };
            targets.insert("output.weight".to_owned(), target);
        }
        Ok(Adaptable {
            shape: BaseShape::of(file)?,
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
            max_rank: 0,
            n_tensors: 2 * file.pairs.len(),
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
            let covered: usize = target.parts.iter().map(|part| part.rows).sum();
            if covered != target.outputs {
                fail!(
                    Unsupported,
                    "tensor {name}: adapters of {} are not supported",
                    pair.target
                );
            }
            debug_assert!(pair.rank <= MAX_RANK);
            adapter.max_rank = adapter.max_rank.max(pair.rank);
            adapter.n_parameters += (pair.a.len() + pair.b.len()) as u64;
            for part in &target.parts {
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
        for number in [pair.rank, pair.inputs, pair.outputs] {
            hash.write(&(number as u64).to_le_bytes());
        }
        hash.write(&pair.scale.to_le_bytes());
        for x in pair.a.iter().chain(&pair.b) {
            hash.write(&x.to_le_bytes());
        }
    }
    hash.finish()
}

fn part(weight: &Tensor, first: usize) -> Part {
    Part {
        id: weight.id(),
        first,
        rows: weight.rows(),
    }
}

impl LowRank {
    /// Some rows of a pair.
    fn of(pair: &AdapterPair, part: &Part) -> Result<LowRank> {
        // What came from those types becomes the same again.
        let [a_type, b_type] = pair.types;
        let a = match a_type {
            TensorType::F16 => bytes(pair, |x| f16::from_f32(x).to_le_bytes()),
            TensorType::BF16 => bytes(pair, |x| bf16::from_f32(x).to_le_bytes()),
            _ => bytes(pair, f32::to_le_bytes),
        }?;
        Ok(LowRank {
            rank: pair.rank,
            inputs: pair.inputs,
            outputs: part.rows,
            scale: pair.scale,
            a,
            a_type,
            b: match b_type {
                TensorType::F16 => Floats::F16(transposed(pair, part, f16::from_f32)?),
                TensorType::BF16 => Floats::BF16(transposed(pair, part, bf16::from_f32)?),
                _ => Floats::F32(transposed(pair, part, |x| x)?),
            },
        })
    }

    /// What it adds to some rows of its matrix by some columns of that: those of all columns add up to what it adds.
    pub fn cut(&self, cut: &MatrixCut) -> Result<LowRank> {
        let element = self.a_type.block_bytes();
        let row = cut.columns.len() * element;
        let mut a = try_vec(self.rank * row, 0u8, "an adapter")?;
        let rows = self.a.chunks_exact(self.inputs * element);
        for (to, from) in a.chunks_exact_mut(row).zip(rows) {
            cut.columns.take(element, from, to);
        }
        Ok(LowRank {
            inputs: cut.columns.len(),
            outputs: cut.rows.len(),
            a,
            b: match &self.b {
                Floats::F32(b) => Floats::F32(self.rows(b, cut)?),
                Floats::F16(b) => Floats::F16(self.rows(b, cut)?),
                Floats::BF16(b) => Floats::BF16(self.rows(b, cut)?),
            },
            ..*self
        })
    }

    /// Of its columns `b`, some rows.
    fn rows<N: Copy + Default>(&self, b: &[N], cut: &MatrixCut) -> Result<Vec<N>> {
        let mut rows = try_vec(self.rank * cut.rows.len(), N::default(), "an adapter")?;
        let columns = b.chunks_exact(self.outputs);
        for (to, column) in rows.chunks_exact_mut(cut.rows.len()).zip(columns) {
            cut.rows.take(1, column, to);
        }
        Ok(rows)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.a.len() + self.b.len() * self.b.ty().block_bytes()
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

/// Some rows of `B`, as columns.
fn transposed<N: Copy + Default>(
    pair: &AdapterPair,
    part: &Part,
    of: impl Fn(f32) -> N,
) -> Result<Vec<N>> {
    let mut b = try_vec(pair.rank * part.rows, N::default(), "an adapter")?;
    let rows = pair.b.chunks_exact(pair.rank).skip(part.first);
    for (row, from) in rows.take(part.rows).enumerate() {
        for (k, x) in from.iter().enumerate() {
            b[k * part.rows + row] = of(*x);
        }
    }
    Ok(b)
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
