//! Vectors and scores of texts on the CPU: the layers over whole texts (see [`super::texts`]), the
//! final norm, pooling, and the layers behind it.

use super::adapters::{AdapterSpace, Sets};
use super::chunk::{Chunk, ChunkSpace, Places, chunk_bytes};
use super::elementwise::{gelu_mul, soft_cap};
use super::layer::{NormWeights, Product, product};
use super::matmul::Isa;
use super::pages::Span;
use super::pass::{Pass, Rows, Tokens};
use super::pool::PoolTurn;
use super::prefill::run_layers;
use super::texts::Texts;
use super::weights::CpuWeights;
use crate::backend::embedder::{ADAPTED_JUDGE, NO_JUDGE, NO_SCORES, share_of_first};
use crate::backend::{Embedder, EmbedderOptions, Output, TextTokens};
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::model::{self, AdapterSet, AdapterUse, DenseActivation, Encoder, Pooling, Readout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What an encoder has beside the layers.
pub(super) struct EncoderWeights {
    pub token_types: Option<super::matmul::Matrix>,
    pub embedding_norm: Option<NormWeights>,
}

impl EncoderWeights {
    pub fn new(encoder: &Encoder, isa: Isa) -> Result<EncoderWeights> {
        let kinds = encoder.token_types.clone();
        Ok(EncoderWeights {
            token_types: kinds.map(|kinds| super::matmul::Matrix::new(kinds, isa)),
            embedding_norm: NormWeights::find(&encoder.embedding_norm)?,
        })
    }
}

/// A layer behind the pooling.
struct Dense {
    product: Product,
    activation: Option<DenseActivation>,
    norm: Option<NormWeights>,
}

impl Dense {
    fn new(dense: &model::Dense, isa: Isa) -> Result<Dense> {
        Ok(Dense {
            product: product(&dense.linear, isa)?,
            activation: dense.activation,
            norm: NormWeights::find(&dense.norm)?,
        })
    }

    fn floats(&self) -> usize {
        self.product.bias_len() + self.norm.as_ref().map_or(0, NormWeights::floats)
    }
}

/// What vectors and scores are made with.
pub(super) struct ReadoutWeights {
    projections: Vec<Dense>,
    scores: Option<ScoreWeights>,
}

struct ScoreWeights {
    pooling: Pooling,
    layers: Vec<Dense>,
    softmax: bool,
}

impl ReadoutWeights {
    pub fn new(readout: &Readout, isa: Isa) -> Result<ReadoutWeights> {
        let layers = |layers: &[model::Dense]| -> Result<Vec<Dense>> {
            layers.iter().map(|dense| Dense::new(dense, isa)).collect()
        };
        Ok(ReadoutWeights {
            projections: layers(&readout.projections)?,
            scores: match &readout.scores {
                None => None,
                Some(scores) => Some(ScoreWeights {
                    pooling: scores.pooling,
                    layers: layers(&scores.layers)?,
                    softmax: scores.softmax,
                }),
            },
        })
    }

    /// Floats of its small vectors.
    pub fn floats(&self) -> usize {
        let scores = self.scores.iter().flat_map(|scores| &scores.layers);
        let layers = self.projections.iter().chain(scores);
        layers.map(Dense::floats).sum()
    }
}

/// See [`Embedder`].
pub(super) struct CpuEmbedder {
    weights: Arc<CpuWeights>,
    space: ChunkSpace,
    texts: Texts,
    /// Pooled vectors of the texts, and what a layer makes of them, as long as the longest.
    pooled: Vec<f32>,
    next: Vec<f32>,
    width: usize,
    /// Scores by two rows of the head, in place of the model's own.
    judge: Option<ScoreWeights>,
    adapters: Option<Arc<AdapterSet>>,
    bytes: u64,
}

impl CpuEmbedder {
    /// Errors: `Unsupported` names what the model has or lacks; `OutOfMemory`.
    pub fn new(weights: Arc<CpuWeights>, options: &EmbedderOptions) -> Result<CpuEmbedder> {
        weights.text_sizes.check()?;
        let tokens = options.batch_tokens;
        let texts = Texts::new(weights.text_sizes, tokens, options.max_tokens)?;
        let width = weights.sizes.hidden.max(weights.sizes.readout);
        let most = texts.max_count().saturating_mul(width);
        let judge = match options.judged_by {
            None => None,
            Some([no, yes]) => Some(judge(&weights, [yes, no], options.adapters.as_deref())?),
        };
        let threads = weights.pool.threads();
        let bytes = chunk_bytes(&weights.sizes, threads, tokens)
            .saturating_add(Texts::bytes_for(weights.text_sizes, tokens))
            .saturating_add(most.saturating_mul(2 * size_of::<f32>()));
        let sets = options.adapters.as_deref().map(Sets::One);
        let of_adapters = sets.map_or(0, |sets| AdapterSpace::bytes_for(&weights, tokens, sets));
        let mut space = ChunkSpace::new(&weights, tokens)?;
        space.reserve(&weights, sets)?;
        Ok(CpuEmbedder {
            space,
            texts,
            pooled: try_vec(most, 0.0, "vectors of texts")?,
            next: try_vec(most, 0.0, "vectors of texts")?,
            width,
            judge,
            adapters: options.adapters.clone(),
            bytes: bytes.saturating_add(of_adapters) as u64,
            weights,
        })
    }

    fn scores(&self) -> Option<&ScoreWeights> {
        self.judge.as_ref().or(self.weights.readout.scores.as_ref())
    }
}

/// Scores by the rows of the head for two tokens.
fn judge(
    weights: &CpuWeights,
    tokens: [u32; 2],
    adapters: Option<&AdapterSet>,
) -> Result<ScoreWeights> {
    if weights.encoder.is_some() {
        fail!(Unsupported, "{NO_JUDGE}");
    }
    let head = &weights.head;
    let id = head.tensor.id();
    let of_head = |used: &AdapterUse| used.adapter.pairs.contains_key(&id);
    if let Some(i) = adapters.and_then(|set| set.iter().position(of_head)) {
        return Err(Error::new(Status::Unsupported, ADAPTED_JUDGE).at(i));
    }
    let row = |token: u32| {
        let at = token as usize..token as usize + 1;
        let linear = model::Linear {
            weight: head.tensor.row_range(at.clone()),
            bias: None,
        };
        let mut product = product(&linear, weights.isa)?;
        product.bias = head.bias.as_ref().map(|bias| bias[at].to_vec());
        Ok(Dense {
            product,
            activation: None,
            norm: None,
        })
    };
    Ok(ScoreWeights {
        pooling: Pooling::Last,
        layers: tokens.into_iter().map(row).collect::<Result<_>>()?,
        softmax: true,
    })
}

impl Embedder for CpuEmbedder {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn width(&self, output: Output) -> usize {
        let rows = |dense: &Dense| dense.product.matrix.rows();
        match output {
            Output::Vectors(Pooling::None) => self.weights.hidden,
            Output::Vectors(_) => {
                let last = self.weights.readout.projections.last();
                last.map_or(self.weights.hidden, rows)
            }
            Output::Scores => match self.scores() {
                None => 0,
                Some(scores) if scores.softmax => 1,
                Some(scores) => scores.layers.last().map_or(0, rows),
            },
        }
    }

    fn run(
        &mut self,
        texts: &[TextTokens<'_>],
        output: Output,
        out: &mut [f32],
        interrupt: &AtomicBool,
    ) -> Result<usize> {
        self.texts.clear();
        for text in texts {
            if !self.texts.push(text.tokens, text.second) {
                break;
            }
        }
        let count = self.texts.count();
        if count == 0 {
            fail!(Internal, "no room for a text");
        }
        let width = self.width(output);
        let weights = Arc::clone(&self.weights);
        let chunk = Chunk::new(
            &weights,
            &mut self.space,
            self.texts.tokens(),
            Places::Texts(&self.texts),
            self.adapters.as_deref().map(Sets::One),
        )?;
        let mut turn = weights.pool.turn(interrupt)?;
        chunk.embed(&turn)?;
        turn = run_layers(&weights, &chunk, turn, (0, 0, None), interrupt)?;
        let pass = chunk.pass(&turn);
        pass.norm_residual(&weights.final_norm)?;
        let (hidden, x) = (weights.hidden, pass.tokens.buffers.x);
        let (scores, pooling, layers) = match output {
            Output::Vectors(pooling) => (None, pooling, &weights.readout.projections),
            Output::Scores => match self.judge.as_ref().or(weights.readout.scores.as_ref()) {
                Some(scores) => (Some(scores), scores.pooling, &scores.layers),
                None => fail!(Unsupported, "{NO_SCORES}"),
            },
        };
        if pooling == Pooling::None {
            let n = self.texts.tokens().len() * hidden;
            // SAFETY: no phase runs, so nobody else uses the residual stream.
            out[..n].copy_from_slice(unsafe { x.part(0, n) });
            return Ok(count);
        }
        for text in 0..count {
            let (start, len) = (self.texts.start_of(text), self.texts.len_of(text));
            // SAFETY: as above.
            let rows = unsafe { x.part(start * hidden, len * hidden) };
            pool(
                pooling,
                rows,
                &mut self.pooled[text * self.width..][..hidden],
            );
        }
        let readout = Behind {
            pass: &pass,
            turn: &turn,
            count,
            width: self.width,
        };
        let softmax = scores.is_some_and(|scores| scores.softmax);
        if self.judge.is_some() && scores.is_some() {
            // Layers beside each other.
            for (i, dense) in layers.iter().enumerate() {
                readout.layer(dense, &mut self.pooled, &mut self.next)?;
                for text in 0..count {
                    // The second one's is kept where the first result was read from.
                    out_pair(out, text, i, self.next[text * self.width]);
                }
            }
            return Ok(count);
        }
        for dense in layers {
            readout.layer(dense, &mut self.pooled, &mut self.next)?;
            std::mem::swap(&mut self.pooled, &mut self.next);
        }
        for text in 0..count {
            let from = &self.pooled[text * self.width..];
            if softmax {
                let rows = layers.last().map_or(0, |dense| dense.product.matrix.rows());
                out[text] = share_of_first(&from[..rows]);
            } else {
                out[text * width..][..width].copy_from_slice(&from[..width]);
            }
        }
        Ok(count)
    }
}

/// The first of two logits of a text, then what becomes of both: the first one's share.
fn out_pair(out: &mut [f32], text: usize, index: usize, logit: f32) {
    out[text] = match index {
        0 => logit,
        _ => share_of_first(&[out[text], logit]),
    };
}

/// Pools the hidden states of a text.
fn pool(pooling: Pooling, rows: &[f32], out: &mut [f32]) {
    let hidden = out.len();
    match pooling {
        Pooling::First => out.copy_from_slice(&rows[..hidden]),
        Pooling::Last | Pooling::None => out.copy_from_slice(&rows[rows.len() - hidden..]),
        Pooling::Mean => {
            out.fill(0.0);
            for row in rows.chunks_exact(hidden) {
                for (sum, x) in out.iter_mut().zip(row) {
                    *sum += x;
                }
            }
            let n = (rows.len() / hidden) as f32;
            out.iter_mut().for_each(|sum| *sum /= n);
        }
    }
}

/// What runs layers over pooled vectors.
struct Behind<'a, 't> {
    pass: &'a Pass<'a, 't>,
    turn: &'a PoolTurn<'t>,
    /// How many vectors, `width` apart.
    count: usize,
    width: usize,
}

impl Behind<'_, '_> {
    fn layer(&self, dense: &Dense, from: &mut [f32], to: &mut [f32]) -> Result<()> {
        let tokens = Tokens {
            count: self.count,
            // They are for layers.
            adapters: None,
            ..*self.pass.tokens
        };
        let pass = Pass {
            tokens: &tokens,
            turn: self.turn,
            ..*self.pass
        };
        let isa = tokens.isa();
        let (rows, cols) = (dense.product.matrix.rows(), dense.product.matrix.cols());
        let all = |span, width| Rows {
            span,
            width,
            stride: self.width,
        };
        let input = all(Span::new(from), cols);
        pass.encode(None, input, dense.product.matrix.encodings())?;
        pass.products([&dense.product], [all(Span::new(to), rows)])?;
        let mut scratch = try_vec(rows, 0.0, "vectors of texts")?;
        for text in 0..self.count {
            let x = &mut to[text * self.width..][..rows];
            super::elementwise::add_bias(x, dense.product.bias.as_deref());
            // SAFETY: the weights' instruction set is the processor's.
            unsafe {
                match dense.activation {
                    None => {}
                    Some(DenseActivation::Tanh) => soft_cap(isa, x, 1.0),
                    Some(DenseActivation::Gelu) => gelu_mul(isa, x, None),
                }
                if let Some(norm) = &dense.norm {
                    norm.apply_in_place(isa, x, &mut scratch);
                }
            }
        }
        Ok(())
    }
}
