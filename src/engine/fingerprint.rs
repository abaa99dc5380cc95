//! What tells a model from others, cheap enough for every load: a saved session goes with the model
//! that it was saved with.

use crate::error::{Result, try_vec};
use crate::format::Tensor;
use crate::model::{Linear, Mamba2, Mixer, Network, Norm, Rope, Scoring};
use crate::text::Tokenizer;
use twox_hash::XxHash3_64;

/// Samples of a tensor's bytes, and how long they are.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 64;

/// Adds up what is said about a model.
struct Fingerprint(XxHash3_64);

impl Fingerprint {
    fn new() -> Fingerprint {
        Fingerprint(XxHash3_64::with_seed(0))
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    fn number(&mut self, number: u64) {
        std::hash::Hasher::write(&mut self.0, &number.to_le_bytes());
    }

    fn float(&mut self, number: f32) {
        self.number(u64::from(number.to_bits()));
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        self.bytes(tensor.ty.name().as_bytes());
        self.number(tensor.row_len() as u64);
        self.number(tensor.rows() as u64);
        let mut row = try_vec(tensor.row_bytes(), 0u8, "a row of a tensor")?;
        let last = tensor.rows().saturating_sub(1);
        for i in 0..SAMPLES {
            tensor.read_rows(last * i / (SAMPLES - 1), &mut row)?;
            let n = row.len().min(SAMPLE_BYTES);
            self.bytes(&row[..n]);
        }
        Ok(())
    }

    fn tensors<'t>(&mut self, tensors: impl IntoIterator<Item = &'t Tensor>) -> Result<()> {
        tensors.into_iter().try_for_each(|t| self.tensor(t))
    }

    fn linear(&mut self, linear: &Linear) -> Result<()> {
        self.tensor(&linear.weight)?;
        self.tensors(&linear.bias)
    }

    fn norm(&mut self, norm: &Norm) -> Result<()> {
        self.number(norm.kind as u64);
        self.tensor(&norm.weight)?;
        self.tensors(&norm.bias)?;
        self.float(norm.eps);
        Ok(())
    }

    fn mamba2(&mut self, m: &Mamba2) {
        for number in [
            m.n_heads,
            m.head_dim,
            m.n_groups,
            m.state_dim,
            m.norm_groups,
        ] {
            self.number(number as u64);
        }
        self.number(u64::from(m.norm_before_gate));
        self.float(m.dt_min);
        self.float(m.dt_max);
    }

    fn mixer(&mut self, mixer: &Mixer) {
        let a = match mixer {
            Mixer::Attention(a) => a,
            Mixer::Latent(a) => {
                for number in [a.n_heads, a.rank, a.plain_dim, a.value_dim] {
                    self.number(number as u64);
                }
                self.float(a.scale);
                self.rope(&a.rope);
                if let Some(temperature) = &a.temperature {
                    self.float(temperature.scale);
                    self.float(temperature.length);
                }
                return;
            }
            // Its tensors say everything.
            Mixer::ShortConv(_) | Mixer::Mamba1(_) | Mixer::Absent => return,
            Mixer::DeltaNet(m) => {
                for number in [m.n_key_heads, m.n_value_heads, m.key_dim, m.value_dim] {
                    self.number(number as u64);
                }
                self.number(u64::from(m.tiled));
                return;
            }
            Mixer::Mamba2(m) => return self.mamba2(m),
            Mixer::SideBySide(both) => {
                self.mamba2(&both.mamba);
                &both.attention
            }
        };
        for number in [a.n_heads, a.n_kv_heads, a.head_dim, a.window.unwrap_or(0)] {
            self.number(number as u64);
        }
        self.float(a.scale);
        self.float(a.score_cap.unwrap_or(0.0));
        // As before for models that have none of these.
        if a.gated {
            self.number(2);
        }
        if a.norm_after_rope {
            self.number(1);
        }
        if a.own_head_norms {
            self.number(3);
        }
        if a.softplus_gate {
            self.number(4);
        }
        if let Some(temperature) = &a.temperature {
            self.float(temperature.scale);
            self.float(temperature.length);
            if temperature.offset > 0 {
                self.number(temperature.offset as u64);
            }
        }
        if let Some(chunk) = a.chunk {
            self.number(chunk as u64);
        }
        if let Some(clip) = a.clip {
            self.float(clip);
        }
        if let Some(eps) = a.value_norm {
            self.float(eps);
        }
        if a.value_scale != 1.0 {
            self.float(a.value_scale);
        }
        if let Some(layer) = a.shares {
            self.number(layer as u64);
        }
        if let Some(rope) = &a.rope {
            self.rope(rope);
        }
    }

    fn rope(&mut self, rope: &Rope) {
        rope.inv_freq.iter().for_each(|f| self.float(*f));
        self.float(rope.magnitude);
        self.number(rope.pairing as u64);
        if let Some(long) = &rope.long {
            self.number(long.above as u64);
            long.inv_freq.iter().for_each(|f| self.float(*f));
        }
    }
}

/// Of a network: its hyperparameters, the types and shapes of its tensors, and samples of their bytes.
///
/// Errors: those of reading the file.
#[inline(never)]
pub(super) fn network(network: &Network) -> Result<u64> {
    let mut f = Fingerprint::new();
    f.bytes(network.architecture.as_bytes());
    for number in [network.hidden, network.n_vocab, network.blocks.len()] {
        f.number(number as u64);
    }
    f.tensor(&network.embedding)?;
    f.float(network.embedding_scale);
    f.tensors(&network.positions)?;
    if let Some(inputs) = &network.per_layer {
        f.tensor(&inputs.embedding)?;
        f.linear(&inputs.projection)?;
        f.norm(&inputs.norm)?;
        for scale in [
            inputs.embedding_scale,
            inputs.projection_scale,
            inputs.scale,
        ] {
            f.float(scale);
        }
    }
    if let Some(streams) = &network.streams {
        let linears = streams.begin.iter().chain(&streams.end);
        linears.into_iter().try_for_each(|l| f.linear(l))?;
    }
    for block in &network.blocks {
        f.mixer(&block.mixer);
        f.tensors(block.vectors())?;
        if let Some(streams) = &block.streams {
            f.number(streams.active as u64);
            f.float(streams.cutoff.unwrap_or(f32::NEG_INFINITY));
        }
        block.norms().try_for_each(|n| f.norm(n))?;
        block.linears().into_iter().try_for_each(|l| f.linear(l))?;
        if let Some(e) = block.feed_forward.experts() {
            f.number(e.n_used as u64);
            f.float(e.weight_scale);
            if let Scoring::SparseMixer { jitter } = e.scoring {
                f.float(jitter);
            }
        }
        f.number(u64::from(block.parallel));
        f.float(block.residual_scale);
        if block.output_scale != 1.0 {
            f.float(block.output_scale);
        }
    }
    f.norm(&network.final_norm)?;
    f.linear(&network.head)?;
    f.float(network.logit_scale);
    f.float(network.logit_cap.unwrap_or(0.0));
    Ok(std::hash::Hasher::finish(&f.0))
}

/// Of a tokenizer: the bytes of its tokens. 0 where there is none.
pub(super) fn tokenizer(tokenizer: Option<&Tokenizer>) -> u64 {
    let Some(tokenizer) = tokenizer else {
        return 0;
    };
    let mut f = Fingerprint::new();
    for id in 0..tokenizer.n_vocab() as u32 {
        f.bytes(tokenizer.token_bytes(id).unwrap_or_default());
    }
    std::hash::Hasher::finish(&f.0)
}
