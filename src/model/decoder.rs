//! What the families have in common: the hyperparameters and tensors that have the same names in
//! all of them, and how the parts of a network are put together from those.

use super::rope::Ramp;
use super::source::Source;
use super::{
    Activation, Attention, Block, Encoder, FeedForward, Linear, Mixer, Mlp, Network, Norm,
    NormKind, Rope, RopePairing, rope,
};
use crate::error::{Result, fail};
use crate::format::{ModelFile, Strings, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Largest head size that is taken seriously.
pub(super) const MAX_HEAD_DIM: usize = 1 << 16;

/// A model file, read as one family.
pub(super) struct Decoder<'a> {
    pub source: Source<'a>,
    /// Layers that run, first to last.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Elements of a head's values.
    pub value_dim: usize,
    /// Positions that the model was trained for.
    pub context_length: usize,
    /// Factor on attention's scores.
    pub scale: f32,
    norm: NormKind,
    pub eps: f32,
    /// Whether positions see none behind them.
    pub causal: bool,
    /// Layers behind those that guess further tokens ahead, and are known to this family.
    predictors: usize,
}

/// Which layers see a window only, where a file does not say so.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    /// All of them.
    Everywhere,
    /// Every n-th layer sees the whole context, the others a window.
    ButEvery(usize),
    /// The same with the first of as many layers.
    ButFirstOf(usize),
}

impl<'a> Decoder<'a> {
    /// Reads the sizes. `norm` is the kind of all norms, which decides whose epsilon is meant.
    pub(super) fn read(
        file: &'a ModelFile,
        architecture: &'static str,
        norm: NormKind,
    ) -> Result<Decoder<'a>> {
        Decoder::read_with(file, architecture, norm, Source::find_uniform_size)
    }

    /// The same of a family whose layers have different numbers of KV heads, which are left to it.
    pub(super) fn read_uneven(
        file: &'a ModelFile,
        architecture: &'static str,
        norm: NormKind,
    ) -> Result<Decoder<'a>> {
        Decoder::read_with(file, architecture, norm, |_, _, _| Ok(None))
    }

    /// The same, with KV heads that `kv_heads` finds, given their key and the number of layers.
    pub(super) fn read_with(
        file: &'a ModelFile,
        architecture: &'static str,
        norm: NormKind,
        kv_heads: impl Fn(&Source<'a>, &str, usize) -> Result<Option<usize>>,
    ) -> Result<Decoder<'a>> {
        const HEADS: &str = "attention.head_count";
        const KV_HEADS: &str = "attention.head_count_kv";
        let source = Source::new(file, architecture);
        let n_layers = n_layers(&source)?;
        let hidden = source.size("embedding_length")?;
        let n_heads = match architecture {
            // As many as in the layer with the most of them.
            "laguna" | "openelm" | "step35" => {
                let sizes = source.sizes(HEADS, n_layers)?;
                sizes.into_iter().max().unwrap_or(1)
            }
            // The same where some have none.
            "deci" => {
                let sizes = source.sizes_or_none(HEADS, n_layers)?;
                source.check_size(HEADS, sizes.into_iter().max().unwrap_or(0) as u64)?
            }
            _ => source.uniform_size(HEADS, n_layers)?,
        };
        let n_kv_heads = kv_heads(&source, KV_HEADS, n_layers)?.unwrap_or(n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let problem = format!("is {n_kv_heads}, which does not divide the {n_heads} heads");
            return Err(source.invalid(KV_HEADS, &problem));
        }
        let (head_dim, value_dim) = head_dims(&source, hidden, n_heads)?;
        source.product(HEADS, n_heads, head_dim)?;
        let scale = source.find_positive("attention.scale")?;
        let eps = epsilon(&source, norm)?;
        Ok(Decoder {
            n_layers,
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            value_dim,
            context_length: source.size("context_length")?,
            scale: scale.unwrap_or((1.0 / (head_dim as f64).sqrt()) as f32),
            norm,
            eps,
            causal: source.find("attention.causal")?.unwrap_or(true),
            predictors: 0,
            source,
        })
    }

    /// The same of a family in which no layer attends.
    pub(super) fn read_without_heads(
        file: &'a ModelFile,
        architecture: &'static str,
        norm: NormKind,
    ) -> Result<Decoder<'a>> {
        let source = Source::new(file, architecture);
        Ok(Decoder {
            n_layers: n_layers(&source)?,
            hidden: source.size("embedding_length")?,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            value_dim: 1,
            context_length: source.size("context_length")?,
            scale: 1.0,
            norm,
            eps: epsilon(&source, norm)?,
            causal: true,
            predictors: 0,
            source,
        })
    }

    /// Refuses a mixture of experts.
    pub(super) fn refuse_experts(&self) -> Result<()> {
        if let Some(experts) = self.source.find::<u64>("expert_count")?
            && experts > 0
        {
            fail!(
                Unsupported,
                "{} is {experts}; experts are not supported in this architecture",
                self.source.key_name("expert_count")
            );
        }
        Ok(())
    }

    /// The network of these blocks: embedding, final norm and head by their usual names, the head
    /// tied to the embedding where there is none.
    pub(super) fn network(&self, block: impl FnMut(usize) -> Result<Block>) -> Result<Network> {
        self.network_of(self.n_layers, block)
    }

    /// The same where the file's layers make another number of blocks.
    pub(super) fn network_of(
        &self,
        n_blocks: usize,
        block: impl FnMut(usize) -> Result<Block>,
    ) -> Result<Network> {
        let source = &self.source;
        let final_norm = || {
            // Files of this family have it by either name.
            let other = source.architecture().starts_with("lfm") && !source.has("output_norm");
            let name = if other {
                "token_embd_norm"
            } else {
                "output_norm"
            };
            source.norm(name, self.hidden, self.norm, self.eps)
        };
        self.network_with(n_blocks, final_norm, block)
    }

    /// The same with another final norm.
    pub(super) fn network_with(
        &self,
        n_blocks: usize,
        final_norm: impl FnOnce() -> Result<Norm>,
        mut block: impl FnMut(usize) -> Result<Block>,
    ) -> Result<Network> {
        let (source, hidden) = (&self.source, self.hidden);
        let embedding = source.file.tensor("token_embd.weight")?;
        let n_vocab = source.find_size("vocab_size")?.unwrap_or(embedding.rows());
        let embedding = source.matrix("token_embd.weight", hidden, n_vocab)?;
        if let Some(tokens) = source.file.find::<&Strings>("tokenizer.ggml.tokens")?
            && tokens.len() != n_vocab
        {
            fail!(
                InvalidModel,
                "tokenizer.ggml.tokens has {} tokens, but tensor token_embd.weight has {n_vocab} rows",
                tokens.len()
            );
        }
        let head = if source.file.tensors.contains_key("output.weight") {
            source.linear("output", hidden, n_vocab)?
        } else {
            Linear {
                weight: embedding.clone(),
                bias: source.find_vector("output.bias", n_vocab)?,
            }
        };
        self.check_biases()?;
        let mut blocks = Vec::new();
        if blocks.try_reserve_exact(n_blocks).is_err() {
            fail!(OutOfMemory, "{n_blocks} layers could not be allocated");
        }
        for index in 0..n_blocks {
            blocks.push(block(index)?);
        }
        let mut network = Network {
            architecture: source.architecture().to_owned(),
            hidden,
            n_vocab,
            context_length: self.context_length,
            embedding,
            embedding_scale: 1.0,
            positions: None,
            embedding_norm: None,
            per_layer: None,
            encoder: self.encoder(&blocks)?,
            streams: None,
            residual_unit: 1.0,
            blocks,
            final_norm: final_norm()?,
            head,
            logit_scale: 1.0,
            logit_cap: source.find_positive("final_logit_softcapping")?,
            readout: super::readouts::read(source, hidden)?,
            around: super::Surroundings::default(),
            host: None,
            cuts: None,
            entry: None,
            predictor: None,
        };
        if self.predictors > 0 && source.file.has_predictor {
            let head = self.predictor(&network, n_blocks, block(n_blocks)?)?;
            network.predictor = Some(Arc::new(head));
        }
        Ok(network)
    }

    /// What makes the network an encoder, if its attention is not causal.
    fn encoder(&self, blocks: &[Block]) -> Result<Option<Box<Encoder>>> {
        if self.causal {
            return Ok(None);
        }
        for (layer, block) in blocks.iter().enumerate() {
            match &block.mixer {
                Mixer::Attention(a) if !a.causal => {}
                mixer => fail!(
                    Unsupported,
                    "{} is false, but layer {layer} is {}, which is causal here",
                    self.source.key_name("attention.causal"),
                    mixer.name()
                ),
            }
        }
        Ok(Some(Box::default()))
    }

    /// Checks that every layer has these tensors.
    pub(super) fn require(&self, parts: &[&str]) -> Result<()> {
        for layer in 0..self.n_layers {
            for part in parts {
                self.source.file.tensor(&self.source.part(layer, part))?;
            }
        }
        Ok(())
    }

    /// Checks that a bias that some layers have is in all layers.
    fn check_biases(&self) -> Result<()> {
        let tensors = &self.source.file.tensors;
        let layer_and_part = |name: &str| {
            let (layer, part) = name.strip_prefix(self.source.layers())?.split_once('.')?;
            let part = part.strip_suffix(".bias")?;
            (layer.parse::<usize>().ok()? < self.n_layers).then(|| part.to_owned())
        };
        let parts: BTreeSet<_> = tensors.keys().filter_map(|n| layer_and_part(n)).collect();
        for part in parts {
            for layer in 0..self.n_layers {
                let name = self.source.part(layer, &format!("{part}."));
                let has = |end: &str| tensors.contains_key(format!("{name}{end}").as_str());
                if has("weight") && !has("bias") {
                    fail!(
                        MissingTensor,
                        "tensor {name}bias is missing, but other layers have one"
                    );
                }
            }
        }
        Ok(())
    }

    /// A norm of the residual stream's width.
    pub(super) fn norm(&self, layer: usize, part: &str) -> Result<Option<Norm>> {
        self.norm_of(layer, part, self.hidden)
    }

    /// Gives each head of queries and keys a Layer norm with weights of its own.
    pub(super) fn norm_each_head(&self, layer: usize, attention: &mut Attention) -> Result<()> {
        let norm = |part: &str, n_heads: usize| -> Result<Option<Norm>> {
            let weight = format!("{}.weight", self.source.part(layer, part));
            Ok(Some(Norm {
                kind: NormKind::Layer,
                weight: self
                    .source
                    .vector_in_rows(&weight, self.head_dim, n_heads)?,
                bias: None,
                eps: self.eps,
            }))
        };
        attention.own_head_norms = true;
        attention.q_norm = norm("attn_q_norm", self.n_heads)?;
        attention.k_norm = norm("attn_k_norm", self.n_kv_heads)?;
        Ok(())
    }

    /// A norm over `len` elements.
    pub(super) fn norm_of(&self, layer: usize, part: &str, len: usize) -> Result<Option<Norm>> {
        let name = self.source.part(layer, part);
        self.source.norm(&name, len, self.norm, self.eps).map(Some)
    }

    /// The rotary embedding by the usual keys.
    pub(super) fn rope(&self, pairing: RopePairing) -> Result<Rope> {
        // Unless a key says otherwise.
        let ramp = match self.source.architecture() {
            "gpt-oss" => Ramp::Exact,
            _ => Ramp::Rounded,
        };
        let (head_dim, context) = (self.head_dim, self.context_length);
        rope::from_source(&self.source, head_dim, context, pairing, ramp)
    }

    /// The rotary embedding of layers with a window, whose frequencies are not scaled.
    pub(super) fn local_rope(&self, pairing: RopePairing, base: f32) -> Result<Rope> {
        rope::local(&self.source, self.head_dim, pairing, base)
    }

    /// The same for heads of another size, with the keys of how many elements are rotated and of the
    /// size.
    pub(super) fn sized_local_rope(
        &self,
        pairing: RopePairing,
        sizes: (usize, &str, &str),
        base: f32,
    ) -> Result<Rope> {
        rope::local_sized(&self.source, sizes, pairing, base)
    }

    /// The same, of as many elements as a key of its own says, if the file has it.
    pub(super) fn own_local_rope(&self, pairing: RopePairing) -> Result<Rope> {
        const DIMENSIONS: &str = "rope.dimension_count_swa";
        let base = self.rope_base()?;
        if self.source.find_size(DIMENSIONS)?.is_none() {
            return self.local_rope(pairing, base);
        }
        let sizes = (self.head_dim, DIMENSIONS, "attention.key_length");
        self.sized_local_rope(pairing, sizes, base)
    }

    /// The base of the rotary embedding by its usual key.
    pub(super) fn rope_base(&self) -> Result<f32> {
        rope::base(&self.source)
    }

    /// The window of each layer, if the file has one: `attention.sliding_window` long, in the
    /// layers that `attention.sliding_window_pattern` (a boolean per layer, or the n of
    /// [`Windows::ButEvery`]) or else the family says.
    pub(super) fn windows(&self, family: Windows) -> Result<Vec<Option<usize>>> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let Some(window) = self.source.find_size("attention.sliding_window")? else {
            return Ok(vec![None; self.n_layers]);
        };
        let key = self.source.key(PATTERN);
        let but_every = |n: usize| move |layer: usize| n == 0 || !(layer + 1).is_multiple_of(n);
        let local: Vec<bool> = match self.source.file.metadata.get(&key) {
            Some(Value::Array(_)) => {
                let local = self.source.flags(PATTERN)?;
                if local.len() < self.n_layers {
                    let problem = format!(
                        "has {} values, but there are {} layers",
                        local.len(),
                        self.n_layers
                    );
                    return Err(self.source.invalid(PATTERN, &problem));
                }
                local
            }
            Some(_) => {
                let n = self.source.file.u32(&key)? as usize;
                (0..self.n_layers).map(but_every(n)).collect()
            }
            None => match family {
                Windows::Everywhere => vec![true; self.n_layers],
                Windows::ButEvery(n) => (0..self.n_layers).map(but_every(n)).collect(),
                Windows::ButFirstOf(n) => {
                    let local = |layer: usize| !layer.is_multiple_of(n);
                    (0..self.n_layers).map(local).collect()
                }
            },
        };
        let windows = local[..self.n_layers].iter();
        Ok(windows.map(|local| local.then_some(window)).collect())
    }

    /// The windows of a family whose files say which layers have one: nothing goes without saying.
    pub(super) fn listed_windows(&self) -> Result<Vec<Option<usize>>> {
        self.source.size("attention.sliding_window")?;
        self.source.flags("attention.sliding_window_pattern")?;
        self.windows(Windows::Everywhere)
    }

    /// Which layers rotate, if the file says so.
    pub(super) fn rope_pattern(&self) -> Result<Option<Vec<bool>>> {
        const PATTERN: &str = "attention.rope_pattern";
        match self.source.find_flags(PATTERN)? {
            Some(pattern) if pattern.len() != self.n_layers => {
                let (found, layers) = (pattern.len(), self.n_layers);
                let problem = format!("has {found} values, but there are {layers} layers");
                Err(self.source.invalid(PATTERN, &problem))
            }
            found => Ok(found),
        }
    }

    /// Attention whose matrices are apart, or one below the other in `attn_qkv`.
    pub(super) fn attention(&self, layer: usize, rope: Option<&Rope>) -> Result<Attention> {
        let lens = [
            self.n_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
            self.n_kv_heads * self.value_dim,
        ];
        let matrices = self.qkv(layer, lens)?;
        self.attention_with(layer, matrices, rope)
    }

    /// The matrices of queries, keys and values, of so many rows each: apart, or one below the other in `attn_qkv`.
    pub(super) fn qkv(&self, layer: usize, lens: [usize; 3]) -> Result<[Linear; 3]> {
        let (source, hidden) = (&self.source, self.hidden);
        let name = |part: &str| self.source.part(layer, part);
        let fused = name("attn_qkv");
        let parts = [name("attn_q"), name("attn_k"), name("attn_v")];
        if self.fused_qkv(layer) {
            return source.fused(&fused, hidden, lens, Some(&parts));
        }
        if !source.has(&parts[0]) {
            fail!(
                MissingTensor,
                "tensor {}.weight is missing, and there is no {fused}.weight",
                parts[0]
            );
        }
        Ok([
            source.linear(&parts[0], hidden, lens[0])?,
            source.linear(&parts[1], hidden, lens[1])?,
            source.linear(&parts[2], hidden, lens[2])?,
        ])
    }

    /// Whether a layer has queries, keys and values in one matrix.
    pub(super) fn fused_qkv(&self, layer: usize) -> bool {
        self.source.has(&self.source.part(layer, "attn_qkv"))
    }

    /// Attention with these matrices, without what only some families have.
    pub(super) fn attention_with(
        &self,
        layer: usize,
        matrices: [Linear; 3],
        rope: Option<&Rope>,
    ) -> Result<Attention> {
        self.attention_of(layer, (self.n_heads, self.n_kv_heads), matrices, rope)
    }

    /// The same with so many heads, and heads of keys.
    pub(super) fn attention_of(
        &self,
        layer: usize,
        (n_heads, n_kv_heads): (usize, usize),
        [q, k, v]: [Linear; 3],
        rope: Option<&Rope>,
    ) -> Result<Attention> {
        let output = self.source.part(layer, "attn_output");
        let values = n_heads * self.value_dim;
        Ok(Attention {
            n_heads,
            n_kv_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            q,
            k,
            v,
            gated: false,
            gate: None,
            softplus_gate: false,
            output: self.source.linear(&output, values, self.hidden)?,
            output_norm: None,
            q_norm: None,
            k_norm: None,
            own_head_norms: false,
            norm_after_rope: false,
            value_norm: None,
            value_scale: 1.0,
            shares: None,
            rope: rope.cloned(),
            scale: self.scale,
            temperature: None,
            window: None,
            chunk: None,
            clip: self.source.find_positive("attention.clamp_kqv")?,
            score_cap: self.source.find_positive("attn_logit_softcapping")?,
            sinks: None,
            causal: self.causal,
            slopes: None,
            distances: None,
        })
    }

    /// Heads of queries and of keys of each layer, where they differ between layers.
    pub(super) fn heads_by_layer(&self) -> Result<Vec<(usize, usize)>> {
        let n_heads = self.source.sizes("attention.head_count", self.n_layers)?;
        let n_kv_heads = (self.source).sizes("attention.head_count_kv", self.n_layers)?;
        let heads: Vec<_> = n_heads.into_iter().zip(n_kv_heads).collect();
        heads.iter().try_for_each(|own| self.check_heads(*own))?;
        Ok(heads)
    }

    /// Checks that heads of keys divide those of queries.
    pub(super) fn check_heads(&self, (n, kv): (usize, usize)) -> Result<()> {
        if n.is_multiple_of(kv) {
            return Ok(());
        }
        let problem = format!("has {n}, which the {kv} KV heads do not divide");
        Err(self.source.invalid("attention.head_count", &problem))
    }

    /// Attention of a layer with so many heads, and heads of keys.
    pub(super) fn attention_by_heads(
        &self,
        layer: usize,
        (n_heads, n_kv_heads): (usize, usize),
        rope: Option<&Rope>,
    ) -> Result<Attention> {
        let lens = [n_heads, n_kv_heads, n_kv_heads].map(|heads| heads * self.head_dim);
        let matrices = self.qkv(layer, lens)?;
        self.attention_of(layer, (n_heads, n_kv_heads), matrices, rope)
    }

    /// The same with norms of queries and keys over each head, if `normed`.
    pub(super) fn normed_attention(
        &self,
        layer: usize,
        rope: Option<&Rope>,
        normed: bool,
    ) -> Result<Attention> {
        let mut attention = self.attention(layer, rope)?;
        if normed {
            attention.q_norm = self.norm_of(layer, "attn_q_norm", self.head_dim)?;
            attention.k_norm = self.norm_of(layer, "attn_k_norm", self.head_dim)?;
        }
        Ok(attention)
    }

    /// Whether a layer has the tensor `part`, which some models of a family have and some have not.
    pub(super) fn has_part(&self, part: &str) -> bool {
        let mut layers = 0..self.n_layers;
        let tensors = &self.source.file.tensors;
        layers.any(|layer| tensors.contains_key(self.source.part(layer, part).as_str()))
    }

    /// Leaves out the layers at the end that guess further tokens ahead.
    pub(super) fn leave_out_predictors(&mut self) -> Result<()> {
        const PREDICTORS: &str = "nextn_predict_layers";
        let predictors = self.source.find::<u64>(PREDICTORS)?.unwrap_or(0);
        if predictors >= self.n_layers as u64 {
            let problem = format!("is {predictors}, but there are {} layers", self.n_layers);
            return Err(self.source.invalid(PREDICTORS, &problem));
        }
        let tensors = &self.source.file.tensors;
        if predictors > 0 && !tensors.keys().any(|name| name.starts_with("blk.0.")) {
            fail!(
                Unsupported,
                "the file has only what guesses further tokens ({} is {predictors}), and not the layers of the model",
                self.source.key_name(PREDICTORS)
            );
        }
        self.n_layers -= predictors as usize;
        Ok(())
    }

    /// Sets them apart: the first one is a head of the network, if the file was read with it.
    pub(super) fn set_predictors_apart(&mut self) -> Result<()> {
        let all = self.n_layers;
        self.leave_out_predictors()?;
        self.predictors = all - self.n_layers;
        Ok(())
    }

    /// Inner width of a feed-forward part.
    pub(super) fn n_ff(&self) -> Result<usize> {
        self.source
            .uniform_size("feed_forward_length", self.n_layers)
    }

    /// Gate, up and down.
    pub(super) fn gated(&self, layer: usize, activation: Activation) -> Result<FeedForward> {
        self.gated_of(layer, self.n_ff()?, activation)
    }

    /// The same with an inner width of its own.
    pub(super) fn gated_of(
        &self,
        layer: usize,
        n_ff: usize,
        activation: Activation,
    ) -> Result<FeedForward> {
        let (source, hidden) = (&self.source, self.hidden);
        let name = |part: &str| self.source.part(layer, part);
        let gate = source.linear(&name("ffn_gate"), hidden, n_ff)?;
        let up = source.linear(&name("ffn_up"), hidden, n_ff)?;
        self.mlp(layer, (Some(gate), up), n_ff, activation)
    }

    /// Gate and up one below the other in `ffn_up`, and down.
    pub(super) fn gated_fused(&self, layer: usize, activation: Activation) -> Result<FeedForward> {
        let (source, hidden, n_ff) = (&self.source, self.hidden, self.n_ff()?);
        let name = |part: &str| self.source.part(layer, part);
        source.product("feed_forward_length", n_ff, 2)?;
        let [gate, up] = source.fused(&name("ffn_up"), hidden, [n_ff; 2], None)?;
        self.mlp(layer, (Some(gate), up), n_ff, activation)
    }

    /// Up and down.
    pub(super) fn plain(&self, layer: usize, activation: Activation) -> Result<FeedForward> {
        self.plain_of(layer, self.n_ff()?, activation)
    }

    /// The same with an inner width of its own.
    pub(super) fn plain_of(
        &self,
        layer: usize,
        n_ff: usize,
        activation: Activation,
    ) -> Result<FeedForward> {
        let up = self.source.part(layer, "ffn_up");
        let up = self.source.linear(&up, self.hidden, n_ff)?;
        self.mlp(layer, (None, up), n_ff, activation)
    }

    /// A gate, perhaps, and up, with the layer's down.
    fn mlp(
        &self,
        layer: usize,
        (gate, up): (Option<Linear>, Linear),
        n_ff: usize,
        activation: Activation,
    ) -> Result<FeedForward> {
        let down = self.source.part(layer, "ffn_down");
        Ok(FeedForward::Dense(Box::new(Mlp {
            gate,
            up,
            down: self.source.linear(&down, n_ff, self.hidden)?,
            inner_norm: None,
            activation,
        })))
    }

    /// A block with a norm before the mixer and another before the feed-forward part.
    pub(super) fn pre_norm_block(
        &self,
        layer: usize,
        mixer: impl Into<Mixer>,
        feed_forward: FeedForward,
    ) -> Result<Block> {
        Ok(Block {
            mixer_norm: self.norm(layer, "attn_norm")?,
            feed_forward_norm: self.norm(layer, "ffn_norm")?,
            ..bare_block(mixer, feed_forward)
        })
    }
}

/// A sequential block without norms.
pub(super) fn bare_block(mixer: impl Into<Mixer>, feed_forward: FeedForward) -> Block {
    Block {
        mixer_norm: None,
        mixer: mixer.into(),
        mixer_post_norm: None,
        feed_forward_norm: None,
        feed_forward,
        feed_forward_post_norm: None,
        parallel: false,
        residual_scale: 1.0,
        per_layer: None,
        streams: None,
        output_scale: 1.0,
        mixer_sum_norm: None,
        feed_forward_sum_norm: None,
    }
}

fn n_layers(source: &Source) -> Result<usize> {
    const N_LAYERS: &str = "block_count";
    let (n_layers, n_tensors) = (source.size(N_LAYERS)?, source.file.tensors.len());
    if n_layers > n_tensors {
        let problem = format!("is {n_layers}, but the file has only {n_tensors} tensors");
        return Err(source.invalid(N_LAYERS, &problem));
    }
    Ok(n_layers)
}

/// What all norms add to the mean square or variance. Files of Nemotron-H and of ModernBERT may have it by the key of the
/// other kind of norm.
fn epsilon(source: &Source, norm: NormKind) -> Result<f32> {
    const RMS: &str = "attention.layer_norm_rms_epsilon";
    const LAYER: &str = "attention.layer_norm_epsilon";
    let (key, other) = match norm {
        NormKind::Rms => (RMS, LAYER),
        NormKind::Layer => (LAYER, RMS),
    };
    match source.find_positive(key)? {
        Some(eps) => Ok(eps),
        None => match source.find_positive(other)? {
            Some(eps) => Ok(eps),
            None => source.positive(key),
        },
    }
}

/// Elements of a head's queries and keys, and of its values.
fn head_dims(source: &Source, hidden: usize, n_heads: usize) -> Result<(usize, usize)> {
    const HEADS: &str = "attention.head_count";
    const KEY_LENGTH: &str = "attention.key_length";
    const VALUE_LENGTH: &str = "attention.value_length";
    const ROTATED: &str = "rope.dimension_count";
    // Files of this family say it so where heads are longer than their share of the width.
    let by_rope = source.architecture() == "bailingmoe";
    let rotated = if by_rope {
        source.find_size(ROTATED)?
    } else {
        None
    };
    let (head_dim, key) = match (source.find_size(KEY_LENGTH)?, rotated) {
        (Some(head_dim), _) => (head_dim, KEY_LENGTH),
        (None, Some(head_dim)) => (head_dim, ROTATED),
        (None, None) if hidden.is_multiple_of(n_heads) => (hidden / n_heads, HEADS),
        (None, None) => {
            let problem = format!("is {n_heads}, which does not divide the width {hidden}");
            return Err(source.invalid(HEADS, &problem));
        }
    };
    if head_dim > MAX_HEAD_DIM {
        let problem = format!("gives heads of {head_dim} elements; at most {MAX_HEAD_DIM} work");
        return Err(source.invalid(key, &problem));
    }
    let value_dim = source.find_size(VALUE_LENGTH)?.unwrap_or(head_dim);
    let fits = match source.architecture() {
        // What their latent attention has.
        "deepseek2" | "mistral4" | "minicpm3" | "plm" | "kimi-linear" | "bailingmoe3" => {
            return Ok((head_dim, head_dim));
        }
        "mimo2" => value_dim <= head_dim,
        _ => value_dim == head_dim,
    };
    if !fits {
        fail!(
            Unsupported,
            "{} is {value_dim}, but keys have {head_dim} elements; {}",
            source.key_name(VALUE_LENGTH),
            match source.architecture() {
                "mimo2" => "values must not have more",
                _ => "they must be the same",
            }
        );
    }
    Ok((head_dim, value_dim))
}
