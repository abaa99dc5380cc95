//! A network turned into matrices and vectors in one allocation: where everything of it is.

#![expect(missing_docs, reason = "fields are named as those of the network")]

use super::fixed_plan::FixedPlan;
use super::jobs::Jobs;
use super::kv_plan::{CHUNK, KvPlan};
use super::linears::{AdaptedLinear, Linears, ON_HOST};
use super::mixer::{AttentionPlan, LatentPlan, Mamba1Plan, MixerPlan, RecurrentPlan};
use super::readout::{EncoderPlan, ReadoutPlan};
use super::rows::AllRows;
use super::streams::{StreamLayerPlan, StreamsPlan};
use crate::backend::KvType;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::experts::ExpertsPlan;
use crate::backend::cuda::launch::feed_forward::{MlpPlan, activation};
use crate::backend::cuda::launch::matrix::{self, Matrix};
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::backend::embedder::without_texts;
use crate::backend::row::Front;
use crate::error::{Result, Status, fail};
use crate::format::{Tensor, TensorId};
use crate::model::{
    Block, Entry, FeedForward, KvShape, Linear, Mixer, Network, adaptable_linears,
    linears_adaptable_apart,
};
use std::sync::Arc;

/// Positions that a head reads together.
const HEAD_CHUNK: usize = 256;

/// A layer on the device.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    pub mixer_norm: Option<args::Norm>,
    pub mixer: MixerPlan,
    pub mixer_post_norm: Option<args::Norm>,
    /// In a parallel block without one of its own, that of the mixer.
    pub feed_forward_norm: Option<args::Norm>,
    pub feed_forward: FeedForwardPlan,
    pub feed_forward_post_norm: Option<args::Norm>,
    pub parallel: bool,
    pub residual_scale: f32,
    /// What it makes of its own input, if layers have those.
    pub input: Option<LayerInputPlan>,
    /// Its part in several residual streams: it is sequential then.
    pub streams: Option<Box<StreamLayerPlan>>,
    /// Factor on the residual stream after the layer.
    pub output_scale: f32,
    /// Of the residual stream, after the mixer and after the feed-forward part.
    pub mixer_sum_norm: Option<args::Norm>,
    pub feed_forward_sum_norm: Option<args::Norm>,
    /// The mixer, which is attention, reads embeddings and hidden states side by side in place of the residual stream.
    pub reads_entry: bool,
}

/// The inputs of layers beside the residual stream on the device.
#[derive(Clone, Debug)]
pub struct InputsPlan {
    pub embedding: Matrix,
    pub embedding_scale: f32,
    /// Of the embedding of a token, to the parts of all layers.
    pub projection: Matrix,
    pub projection_scale: f32,
    /// Over the part of a layer.
    pub norm: args::Norm,
    pub scale: f32,
    /// Elements of a layer's part.
    pub len: u32,
}

/// The part of a layer after the mixer.
#[derive(Clone, Debug)]
pub enum FeedForwardPlan {
    /// One for all tokens.
    Dense(MlpPlan),
    /// A mixture of experts.
    Experts(Box<ExpertsPlan>),
    /// Both side by side.
    Both(Box<BothPlan>),
    /// The same, with experts of a width of their own.
    Latent(Box<LatentExpertsPlan>),
    /// The host evaluates it, as the layer of this number.
    OnHost(usize),
    /// Nothing.
    None,
}

/// A feed-forward part for all tokens and a mixture of experts.
#[derive(Clone, Debug)]
pub struct BothPlan {
    pub mlp: MlpPlan,
    pub mlp_post_norm: args::Norm,
    pub experts_norm: args::Norm,
    /// With a norm of what its router reads.
    pub experts: ExpertsPlan,
    pub experts_post_norm: args::Norm,
}

/// A feed-forward part for all tokens, and a mixture of experts whose inputs and outputs are of another width.
#[derive(Clone, Debug)]
pub struct LatentExpertsPlan {
    /// From the layer's input to that of the experts.
    pub enter: Matrix,
    /// Of a width of their own.
    pub experts: ExpertsPlan,
    /// From the sum of their outputs.
    pub leave: Matrix,
    pub mlp: MlpPlan,
}

/// What a head that guesses further tokens has in front of its layers.
#[derive(Clone, Debug)]
pub struct EntryPlan {
    /// Of the embedding of a token, and of the hidden state.
    pub norms: [args::Norm; 2],
    /// Of both, one behind the other; of a head with a fusion, of the model's hidden states.
    pub projection: Matrix,
    /// What is different in a head of EAGLE-3.
    pub fusion: Option<FusionPlan>,
}

/// What is different in a head of EAGLE-3 on the device.
#[derive(Clone, Debug)]
pub struct FusionPlan {
    /// Floats of the model's hidden states of a position.
    pub width: u32,
    /// The residual stream begins as the norm of the joined state.
    pub normed_stream: bool,
    /// u32, `[n_vocab]`: the row of the output matrix that a token has, or how many rows there are for one without; 0 where that has a row
    /// for each token.
    pub place_of: u64,
}

/// A network on the device, whose allocation begins at the address that the plan was made for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the layers begin with, and whether they end the network.
    pub ends: (Front, bool),
    pub entry: Option<EntryPlan>,
    pub hidden: u32,
    pub n_vocab: u32,
    /// Without segments where the network does not embed tokens, as the head where the layers do not end it.
    pub embedding: Matrix,
    pub embedding_scale: f32,
    /// As of the network.
    pub residual_unit: f32,
    /// Of the rows of tokens, before the first layer.
    pub embedding_norm: Option<args::Norm>,
    pub positions: Option<Matrix>,
    pub inputs: Option<InputsPlan>,
    /// How several residual streams begin and end, if there are several.
    pub streams: Option<StreamsPlan>,
    pub layers: Vec<LayerPlan>,
    /// Layers of the host's as they are when their weights visit the device, all in one place, one at a time: for long pieces of
    /// prompts. None where the device cannot evaluate them.
    pub guests: Vec<LayerPlan>,
    pub final_norm: args::Norm,
    pub head: Matrix,
    pub logit_scale: f32,
    pub logit_cap: Option<f32>,
    /// What an encoder has beside; none of a decoder.
    pub encoder: Option<EncoderPlan>,
    /// What follows the final norm where vectors or scores of texts are wanted.
    pub readout: ReadoutPlan,
    /// What of the network has no vectors of texts.
    pub without_texts: Option<&'static str>,
    /// What layers keep of fixed size.
    pub fixed: Arc<FixedPlan>,
    /// The linear layers that adapters can be added to elsewhere, but not here, and what they are.
    pub not_adaptable: Vec<(TensorId, &'static str)>,
    /// The linear layers that adapters can be added to.
    pub linears: Vec<AdaptedLinear>,
    /// What embedding and head are, which a head that guesses further tokens may share.
    tables: [(TensorId, bool); 2],
    /// Steps of many sessions have products in f16.
    pub f16_batches: bool,
    /// Bytes of the whole allocation.
    pub bytes: u64,
}

impl Jobs {
    /// Lays out the layers of the host's as guests, each in the same place.
    fn guests(&mut self, network: &Network) -> Result<Vec<LayerPlan>> {
        let Some(host) = &network.host else {
            return Ok(Vec::new());
        };
        let base = self.base + self.reserve(0);
        let (mut plans, mut guests, mut most) = (Vec::new(), Vec::new(), 0);
        for (i, block) in host.blocks.iter().enumerate() {
            let mut jobs = Jobs {
                base,
                ..Jobs::default()
            };
            match jobs.layer(i, block, host.context_length) {
                Ok(plan) => plans.push(plan),
                // They stay with the host.
                Err(e) if e.status == Status::Unsupported => return Ok(Vec::new()),
                Err(e) => return Err(e),
            }
            most = most.max(jobs.bytes);
            guests.push(jobs);
        }
        self.reserve(most);
        self.guests = guests;
        Ok(plans)
    }

    fn layer(&mut self, index: usize, block: &Block, context_length: usize) -> Result<LayerPlan> {
        if let Mixer::SideBySide(_) = block.mixer
            && (block.parallel || block.mixer_post_norm.is_some())
        {
            fail!(
                Unsupported,
                "layer {index}: {} in a parallel block or with a norm of their sum is not supported on a GPU; it is on a CPU",
                block.mixer.name()
            );
        }
        let state = block.mixer.state(context_length);
        let mixer_norm = self.find_norm(&block.mixer_norm)?;
        let feed_forward_norm = match &block.feed_forward_norm {
            None if block.parallel => mixer_norm,
            norm => self.find_norm(norm)?,
        };
        Ok(LayerPlan {
            mixer_norm,
            mixer: self.mixer(index, &block.mixer, state)?,
            mixer_post_norm: self.find_norm(&block.mixer_post_norm)?,
            feed_forward_norm,
            feed_forward: match &block.feed_forward {
                FeedForward::Dense(mlp) => FeedForwardPlan::Dense(MlpPlan {
                    cutoff: block.streams.as_ref().and_then(|streams| streams.cutoff),
                    ..self.mlp(mlp)?
                }),
                FeedForward::Experts(experts) => {
                    FeedForwardPlan::Experts(Box::new(self.experts(experts)?))
                }
                FeedForward::Both(both) => FeedForwardPlan::Both(Box::new(BothPlan {
                    mlp: self.mlp(&both.mlp)?,
                    mlp_post_norm: self.norm(&both.mlp_post_norm)?,
                    experts_norm: self.norm(&both.experts_norm)?,
                    experts: ExpertsPlan {
                        router_norm: Some(self.norm(&both.router_norm)?),
                        ..self.experts(&both.experts)?
                    },
                    experts_post_norm: self.norm(&both.experts_post_norm)?,
                })),
                FeedForward::Latent(latent) => {
                    let enter = self.fuse(&[&latent.enter])?;
                    FeedForwardPlan::Latent(Box::new(LatentExpertsPlan {
                        experts: ExpertsPlan {
                            own_width: Some(enter.rows),
                            ..self.experts(&latent.experts)?
                        },
                        enter,
                        leave: self.fuse(&[&latent.leave])?,
                        mlp: self.mlp(&latent.mlp)?,
                    }))
                }
                FeedForward::OnHost(layer) => FeedForwardPlan::OnHost(*layer),
                FeedForward::None => FeedForwardPlan::None,
            },
            feed_forward_post_norm: self.find_norm(&block.feed_forward_post_norm)?,
            parallel: block.parallel,
            residual_scale: block.residual_scale,
            input: match &block.per_layer {
                Some(input) => Some(LayerInputPlan {
                    gate: self.fuse(&[&input.gate])?,
                    activation: activation(input.activation)?,
                    projection: self.fuse(&[&input.projection])?,
                    post_norm: self.find_norm(&input.post_norm)?,
                }),
                None => None,
            },
            streams: match &block.streams {
                Some(streams) => Some(Box::new(self.stream_layer(streams)?)),
                None => None,
            },
            output_scale: block.output_scale,
            mixer_sum_norm: self.find_norm(&block.mixer_sum_norm)?,
            feed_forward_sum_norm: self.find_norm(&block.feed_forward_sum_norm)?,
            reads_entry: false,
        })
    }

    /// What a head has in front of its layers, whose output matrix has so many rows.
    fn entry(&mut self, entry: &Entry, (n_vocab, rows): (usize, usize)) -> Result<EntryPlan> {
        let [token_norm, state_norm] = entry.norms();
        Ok(EntryPlan {
            norms: [self.norm(token_norm)?, self.norm(state_norm)?],
            projection: self.fuse(&[&entry.projection])?,
            fusion: entry.fusion.as_ref().map(|fusion| FusionPlan {
                width: entry.projection.weight.row_len() as u32,
                normed_stream: fusion.normed_stream,
                place_of: match &fusion.ids {
                    Some(ids) => {
                        let mut places = vec![rows as u32; n_vocab];
                        for (place, id) in (0..).zip(ids.iter()) {
                            places[*id as usize] = place;
                        }
                        // As they are in memory.
                        self.vector(places.into_iter().map(f32::from_bits).collect())
                    }
                    None => 0,
                },
            }),
        })
    }
}

impl LayerInputPlan {
    /// The arguments that make the input of the projection from what the gate has left, but for its form.
    pub(super) fn weighted(&self, layer: usize, rows: &AllRows) -> args::QuantizeInput {
        let len = self.gate.rows;
        args::QuantizeInput {
            x: rows.wide.address,
            x_stride: rows.wide.stride,
            len,
            groups: self.projection.groups,
            gate: rows.inputs.address + layer as u64 * u64::from(len) * 4,
            gate_stride: rows.inputs.stride,
            source: args::Source::Weighted as u32,
            activation: self.activation,
            ..Default::default()
        }
    }
}

impl MlpPlan {
    /// The arguments that make the input of `down` from the output of `up`, but for its forms.
    pub(super) fn inner(&self, rows: &AllRows) -> args::QuantizeInput {
        args::QuantizeInput {
            x: rows.wide.address,
            x_stride: rows.wide.stride,
            norm: self.inner_norm.unwrap_or_default(),
            len: self.n_ff,
            groups: self.down.groups,
            source: self.source() as u32,
            inverse_len: 1.0 / self.n_ff as f32,
            activation: self.activation,
            ..Default::default()
        }
    }
}

/// A matrix whose rows are looked up.
fn table(m: &Matrix) -> args::Table {
    args::Table {
        matrix: m.segments[0].address,
        ty: m.segments[0].ty.number(),
        rows: m.rows,
    }
}

impl Plan {
    /// Lays a network out in an allocation at `base`; what it takes does not depend on where.
    ///
    /// Errors: `Unsupported` names what the kernels cannot do.
    pub fn new(network: &Network, base: u64) -> Result<(Plan, Jobs)> {
        Plan::beside(None, network, base)
    }

    /// The same of a head that guesses further tokens of a network, with whose plan it shares embedding and head, where they are
    /// the same. A head from a file of its own has nothing of the network's but for the embedding, if it has none.
    pub fn beside(of: Option<&Plan>, network: &Network, base: u64) -> Result<(Plan, Jobs)> {
        let fusion = network.fusion();
        let borrows = fusion.is_some_and(|fusion| !fusion.own_embedding);
        // Tensors of other files that are gone may have been where those of this one are.
        let shared = |linear: &Linear| match fusion {
            None => of.and_then(|plan| plan.table(linear)),
            Some(_) => None,
        };
        let mut jobs = Jobs {
            base,
            linears: Linears::of(network),
            bounds: true,
            ..Jobs::default()
        };
        if network.blocks.is_empty() {
            fail!(InvalidModel, "the network has no layers");
        }
        let table = |weight: &Tensor| Linear {
            weight: weight.clone(),
            bias: None,
        };
        let absent = Matrix {
            groups: matrix::groups(network.hidden),
            ..Matrix::default()
        };
        let own_embedding = table(&network.embedding);
        let embedding = match (network.embeds(), shared(&own_embedding)) {
            // Without the network, its place is left.
            (true, _) if borrows => of.map_or(absent.clone(), |plan| Matrix {
                adapted: None,
                ..plan.embedding.clone()
            }),
            (true, Some(theirs)) => theirs,
            (true, None) => jobs.fuse(&[&own_embedding])?,
            (false, _) => absent.clone(),
        };
        let embedding_norm = match network.embeds() {
            true => jobs.find_norm(&network.embedding_norm)?,
            false => None,
        };
        let output_rows = network.head.weight.rows();
        let entry = match &network.entry {
            Some(entry) => Some(jobs.entry(entry, (network.n_vocab, output_rows))?),
            None => None,
        };
        let positions = match &network.positions {
            Some(positions) if network.begins() => Some(jobs.fuse(&[&table(positions)])?),
            _ => None,
        };
        let inputs = match &network.per_layer {
            Some(inputs) => Some(InputsPlan {
                embedding: jobs.fuse(&[&table(&inputs.embedding)])?,
                embedding_scale: inputs.embedding_scale,
                projection: jobs.fuse(&[&inputs.projection])?,
                projection_scale: inputs.projection_scale,
                norm: jobs.norm(&inputs.norm)?,
                scale: inputs.scale,
                len: inputs.norm.weight.row_len() as u32,
            }),
            None => None,
        };
        let streams = match &network.streams {
            Some(streams) => Some(jobs.streams(streams)?),
            None => None,
        };
        let mut layers = Vec::new();
        for (i, block) in network.blocks.iter().enumerate() {
            layers.push(LayerPlan {
                reads_entry: fusion.is_some(),
                ..jobs.layer(i, block, network.context_length)?
            });
        }
        let guests = jobs.guests(network)?;
        let final_norm = match network.ends() {
            true => jobs.norm(&network.final_norm)?,
            false => args::Norm::default(),
        };
        let same = network.head.weight.same_data(&network.embedding);
        let tied = same && network.head.bias.is_none() && !borrows;
        let head = match (network.ends(), shared(&network.head)) {
            (true, _) if tied && network.embeds() => embedding.clone(),
            (true, Some(theirs)) => theirs,
            (true, None) => jobs.fuse(&[&network.head])?,
            (false, _) => absent,
        };
        let host = network.host.iter();
        let host = host.flat_map(|n| adaptable_linears(n).chain(linears_adaptable_apart(n)));
        let host = host.map(|linear| (linear.weight.id(), ON_HOST));
        let plan = Plan {
            not_adaptable: host.collect(),
            ends: (Front::of(network), network.ends()),
            entry,
            hidden: network.hidden as u32,
            n_vocab: network.n_vocab as u32,
            embedding,
            embedding_scale: network.embedding_scale,
            residual_unit: network.residual_unit,
            embedding_norm,
            positions,
            inputs,
            streams,
            layers,
            guests,
            final_norm,
            head,
            logit_scale: network.logit_scale,
            logit_cap: network.logit_cap,
            encoder: match &network.encoder {
                Some(encoder) => Some(jobs.encoder(encoder)?),
                None => None,
            },
            readout: match network.ends() {
                true => jobs.readout(&network.readout)?,
                false => ReadoutPlan::default(),
            },
            without_texts: without_texts(network),
            fixed: Arc::new(std::mem::take(&mut jobs.fixed)),
            linears: std::mem::take(&mut jobs.linears.found),
            tables: [own_embedding, network.head.clone()]
                .map(|l| (l.weight.id(), l.bias.is_none())),
            f16_batches: false,
            bytes: jobs.bytes,
        };
        Ok((plan, jobs))
    }

    /// The embedding or the head, if that is what this is.
    fn table(&self, linear: &Linear) -> Option<Matrix> {
        let key = (linear.weight.id(), linear.bias.is_none());
        let all = self.tables.iter().zip([&self.embedding, &self.head]);
        let mut same =
            all.filter(|((id, plain), m)| (*id, *plain) == key && *plain && !m.segments.is_empty());
        same.next().map(|(_, matrix)| Matrix {
            adapted: None,
            ..matrix.clone()
        })
    }

    /// Most positions of a prompt that are evaluated together. A head has few to read at a time.
    pub fn chunk(&self) -> usize {
        match &self.entry {
            None => CHUNK,
            Some(_) => HEAD_CHUNK,
        }
    }

    /// Whether sessions read prompts: an encoder has none.
    pub fn prefills(&self) -> bool {
        self.encoder.is_none()
    }

    /// Elements of the logits: none where the layers do not end the network.
    pub fn logits_len(&self) -> u32 {
        if self.ends.1 { self.n_vocab } else { 0 }
    }

    /// The layers, and those that visit.
    fn all_layers(&self) -> impl Iterator<Item = &LayerPlan> {
        self.layers.iter().chain(&self.guests)
    }

    /// Every matrix of the layers but those of experts.
    pub fn layer_matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.all_layers().flat_map(|l| {
            let mut matrices = l.mixer.matrices();
            match &l.feed_forward {
                FeedForwardPlan::Dense(mlp) => matrices.extend([&mlp.up, &mlp.down]),
                FeedForwardPlan::Experts(experts) => matrices.extend(experts.common_matrices()),
                FeedForwardPlan::Both(both) => {
                    matrices.extend([&both.mlp.up, &both.mlp.down]);
                    matrices.extend(both.experts.common_matrices());
                }
                FeedForwardPlan::Latent(latent) => {
                    matrices.extend([&latent.enter, &latent.leave]);
                    matrices.extend([&latent.mlp.up, &latent.mlp.down]);
                }
                FeedForwardPlan::OnHost(_) | FeedForwardPlan::None => {}
            }
            if let Some(input) = &l.input {
                matrices.extend([&input.gate, &input.projection]);
            }
            if let Some(streams) = &l.streams {
                matrices.extend([&streams.left, &streams.right]);
            }
            matrices
        })
    }

    /// The same, and those of the inputs of layers and of residual streams.
    pub fn inner_matrices(&self) -> impl Iterator<Item = &Matrix> {
        let inputs = self.inputs.iter().map(|inputs| &inputs.projection);
        let streams = self.streams.iter().flat_map(StreamsPlan::matrices);
        let entry = self.entry.iter().map(|entry| &entry.projection);
        let all = self.layer_matrices().chain(inputs);
        all.chain(streams).chain(entry)
    }

    /// Elements of a row of the residual stream, a multiple of 32; those beyond the network's width count for nothing.
    pub fn residual_stride(&self) -> u32 {
        self.embedding.groups * 32
    }

    /// Residual streams beside which there is a row of one; 0 where it is the only one.
    pub fn n_streams(&self) -> u32 {
        self.streams.as_ref().map_or(0, |streams| streams.count)
    }

    /// Elements of a row of embeddings and hidden states side by side, if the layers read those.
    pub fn entry_stride(&self) -> u32 {
        match self.fusion() {
            Some(_) => matrix::groups(2 * self.hidden as usize) * 32,
            None => 0,
        }
    }

    fn fusion(&self) -> Option<&FusionPlan> {
        self.entry.as_ref()?.fusion.as_ref()
    }

    /// Floats of the hidden states of a position that a chunk reads.
    pub fn states_width(&self) -> usize {
        let fused = self.fusion().map(|fusion| fusion.width);
        fused.unwrap_or(self.hidden) as usize
    }

    /// Where the tokens of the logits are told, if there are not those of all.
    pub fn place_of(&self) -> Option<u64> {
        let place_of = self.fusion().map(|fusion| fusion.place_of);
        place_of.filter(|address| *address != 0)
    }

    /// How many these are; 0 where there are those of all.
    pub fn known_len(&self) -> u32 {
        match self.place_of() {
            Some(_) => self.head.rows,
            None => 0,
        }
    }

    /// Elements of the inputs of all layers; 0 without.
    pub fn inputs_len(&self) -> u32 {
        self.inputs.as_ref().map_or(0, |i| i.projection.rows)
    }

    /// The layers' mixtures of experts.
    pub fn experts(&self) -> impl Iterator<Item = &ExpertsPlan> {
        self.all_layers().filter_map(|l| match &l.feed_forward {
            FeedForwardPlan::Dense(_) | FeedForwardPlan::OnHost(_) | FeedForwardPlan::None => None,
            FeedForwardPlan::Experts(experts) => Some(&**experts),
            FeedForwardPlan::Both(both) => Some(&both.experts),
            FeedForwardPlan::Latent(latent) => Some(&latent.experts),
        })
    }

    /// Most groups of 32 that an input row of a product has.
    pub fn widest_input(&self) -> u32 {
        // Experts of a width of their own have inputs of their own.
        let firsts = self.experts().map(|e| &e.up);
        self.inner_matrices()
            .chain([&self.head])
            .chain(firsts)
            .map(|m| m.groups)
            .max()
            .unwrap_or(1)
    }

    /// Elements of the widest f32 row between two kernels.
    pub fn widest_row(&self) -> u32 {
        // The products of all streams but the first are one behind the other.
        let streams = self.n_streams().saturating_sub(1) * self.residual_stride();
        // And so are an embedding and a hidden state, or hidden states.
        let entry = self.entry.as_ref().map_or(0, |entry| match &entry.fusion {
            Some(fusion) => fusion.width,
            None => 2 * self.hidden,
        });
        let rows = self.layer_matrices().map(|m| m.rows);
        let heads = self.attention().map(|a| a.heads.row_len());
        let rows = rows.chain(heads).chain([streams, entry]);
        // Kernels load four floats at a time.
        rows.max().unwrap_or(0).max(1).next_multiple_of(4)
    }

    /// The layers' attentions.
    pub fn attention(&self) -> impl Iterator<Item = &AttentionPlan> {
        self.layers.iter().filter_map(|l| l.mixer.as_attention())
    }

    /// Most of a number that attention has of its own in each layer.
    pub fn most(&self, number: impl Fn(&AttentionPlan) -> u32) -> u32 {
        self.attention().map(number).max().unwrap_or(1)
    }

    /// The layers' latent attentions.
    pub fn latent(&self) -> impl Iterator<Item = &LatentPlan> {
        self.layers.iter().filter_map(|l| match &l.mixer {
            MixerPlan::Latent(latent) => Some(&**latent),
            _ => None,
        })
    }

    /// The layers' recurrences and convolutions, but for those of the first Mamba.
    pub fn recurrent(&self) -> impl Iterator<Item = &RecurrentPlan> {
        self.layers.iter().filter_map(|l| match &l.mixer {
            MixerPlan::Recurrent(recurrent) => Some(&**recurrent),
            MixerPlan::SideBySide(both) => Some(&both.recurrent),
            _ => None,
        })
    }

    /// The layers that are the first Mamba.
    pub fn mamba1(&self) -> impl Iterator<Item = &Mamba1Plan> {
        self.layers.iter().filter_map(|l| match &l.mixer {
            MixerPlan::Mamba1(mamba) => Some(&**mamba),
            _ => None,
        })
    }

    /// Whether sums come together beside the residual stream.
    pub fn has_branch(&self) -> bool {
        let mut layers = self.all_layers();
        layers.any(|l| {
            l.parallel
                || l.streams.is_some()
                || matches!(
                    l.feed_forward,
                    FeedForwardPlan::Both(_) | FeedForwardPlan::Latent(_)
                )
                || matches!(l.mixer, MixerPlan::SideBySide(_))
        })
    }

    /// The KV caches with elements of this type.
    pub fn kv(&self, kv_type: KvType) -> Result<KvPlan> {
        let layers: Vec<KvShape> = self.layers.iter().map(|l| l.mixer.kv()).collect();
        KvPlan::new(&layers, kv_type)
    }

    /// The arguments that embed tokens, but for those of the rows.
    pub fn embed(&self) -> args::Embed {
        args::Embed {
            embedding: table(&self.embedding),
            positions: self.positions.as_ref().map(table).unwrap_or_default(),
            kinds: match &self.encoder {
                Some(encoder) => encoder.token_types.as_ref().map(table).unwrap_or_default(),
                None => args::Table::default(),
            },
            groups: self.embedding.groups,
            scale: self.embedding_scale,
            ..Default::default()
        }
    }

    /// The arguments that make the inputs of layers, but for those of the rows.
    pub fn layer_inputs(&self, inputs: &InputsPlan) -> args::LayerInputs {
        args::LayerInputs {
            embedding: table(&inputs.embedding),
            norm: inputs.norm,
            len: inputs.len,
            stride: inputs.projection.rows,
            groups: inputs.embedding.groups,
            embedding_scale: inputs.embedding_scale,
            projection_scale: inputs.projection_scale,
            scale: inputs.scale,
            ..Default::default()
        }
    }

    /// The arguments that add rows, so many floats apart, to the residual stream, but for their addresses.
    pub fn residual_add(
        &self,
        x_stride: u32,
        norm: Option<args::Norm>,
        scale: f32,
    ) -> args::ResidualAdd {
        args::ResidualAdd {
            norm: norm.unwrap_or_default(),
            scale,
            len: self.hidden,
            out_scale: 1.0,
            x_stride,
            stride: self.embedding.groups * 32,
            ..Default::default()
        }
    }
}
