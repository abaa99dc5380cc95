//! Tiny models with random weights, as GGUF files in memory.

use emberlm::format::writer::{TensorEntry, Writer};
use emberlm::quant::TensorType;
use std::io::{self, Write};

/// The shape of a llama model. Change what the test is about and call [`Tiny::bytes`].
#[derive(Clone, Debug)]
pub struct Tiny {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub hidden: usize,
    pub ff: usize,
    pub vocab: usize,
    pub context: usize,
    /// Type of the matrices: F32, F16 or BF16.
    pub ty: TensorType,
    /// Adds a bias to every matrix but the embedding.
    pub biases: bool,
    /// Leaves `output.weight` out.
    pub tied: bool,
    pub rope_base: f32,
    /// Elements per head that are rotated, if not all.
    pub rotated: Option<usize>,
    /// Adds `rope_freqs.weight` with these factors.
    pub rope_factors: Option<Vec<f32>>,
    /// Type and factor of the rope scaling.
    pub rope_scaling: Option<(&'static str, f32)>,
    /// Number of experts of width `ff`, and how many a token goes through, in place of one
    /// feed-forward for all.
    pub experts: Option<(usize, usize)>,
    /// Whether the file has the tensors of a shared expert, too, which the architecture does not
    /// use: a network of it cannot be described.
    pub shared_expert: bool,
    pub seed: u64,
}

impl Default for Tiny {
    /// Two layers, four heads in two groups, 32 wide, 48 tokens, F32.
    fn default() -> Self {
        Tiny {
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            hidden: 32,
            ff: 64,
            vocab: 48,
            context: 128,
            ty: TensorType::F32,
            biases: false,
            tied: false,
            rope_base: 10_000.0,
            rotated: None,
            rope_factors: None,
            rope_scaling: None,
            experts: None,
            shared_expert: false,
            seed: 1,
        }
    }
}

impl Tiny {
    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        self.write(&self.writer())
    }

    /// Bytes of the file after its header, without the padding between the two.
    pub fn data_bytes(&self) -> usize {
        let sizes = self.writer();
        let sizes = sizes.tensors().iter().map(|t| t.size as usize);
        sizes.map(|size| size.next_multiple_of(32)).sum()
    }

    /// The metadata and the tensor list, for a test to change before [`Tiny::write`].
    pub fn writer(&self) -> Writer {
        let mut w = Writer::new();
        self.set_metadata(&mut w);
        self.add_tensors(&mut w);
        w
    }

    /// The file of a changed writer: weights by this model's seed and the tensors' names.
    pub fn write(&self, writer: &Writer) -> Vec<u8> {
        let mut bytes = Vec::new();
        writer
            .write(&mut bytes, |tensor, out| self.put_data(tensor, out))
            .unwrap();
        bytes
    }

    /// Sets all metadata of the model.
    pub fn set_metadata(&self, w: &mut Writer) {
        w.set("general.architecture", "llama")
            .set("general.name", "tiny")
            .set("llama.block_count", self.layers)
            .set("llama.context_length", self.context)
            .set("llama.embedding_length", self.hidden)
            .set("llama.feed_forward_length", self.ff)
            .set("llama.attention.head_count", self.heads)
            .set("llama.attention.head_count_kv", self.kv_heads)
            .set("llama.attention.key_length", self.head_dim)
            .set("llama.attention.value_length", self.head_dim)
            .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
            .set(
                "llama.rope.dimension_count",
                self.rotated.unwrap_or(self.head_dim),
            )
            .set("llama.rope.freq_base", self.rope_base)
            .set("llama.vocab_size", self.vocab);
        if let Some((ty, factor)) = self.rope_scaling {
            w.set("llama.rope.scaling.type", ty)
                .set("llama.rope.scaling.factor", factor);
        }
        if let Some((count, used)) = self.experts {
            w.set("llama.expert_count", count)
                .set("llama.expert_used_count", used);
        }
        // Byte-level BPE: single characters, then pairs, and an end-of-text token at last.
        let letters: Vec<char> = ('!'..='~').take(self.vocab.saturating_sub(1)).collect();
        let mut tokens: Vec<String> = letters.iter().map(|c| c.to_string()).collect();
        let mut merges = Vec::new();
        'pairs: for a in &letters {
            for b in &letters {
                if tokens.len() + 1 >= self.vocab {
                    break 'pairs;
                }
                tokens.push(format!("{a}{b}"));
                merges.push(format!("{a} {b}"));
            }
        }
        tokens.push("<|end|>".to_owned());
        assert_eq!(tokens.len(), self.vocab, "vocabulary too large");
        let mut types = vec![1i64; self.vocab];
        types[self.vocab - 1] = 3;
        w.set("tokenizer.ggml.model", "gpt2")
            .set("tokenizer.ggml.pre", "gpt-2")
            .set("tokenizer.ggml.tokens", tokens)
            .set("tokenizer.ggml.token_type", types)
            .set("tokenizer.ggml.merges", merges)
            .set("tokenizer.ggml.eos_token_id", self.vocab - 1);
    }

    /// Adds all tensors of the model.
    pub fn add_tensors(&self, w: &mut Writer) {
        let (hidden, ff) = (self.hidden, self.ff);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let vector = |w: &mut Writer, name: String, len| {
            w.tensor(&name, TensorType::F32, &[len]).unwrap();
        };
        let linear = |w: &mut Writer, name: String, inputs, outputs| {
            w.tensor(&format!("{name}.weight"), self.ty, &[inputs, outputs])
                .unwrap();
            if self.biases {
                w.tensor(&format!("{name}.bias"), TensorType::F32, &[outputs])
                    .unwrap();
            }
        };
        w.tensor("token_embd.weight", self.ty, &[hidden, self.vocab])
            .unwrap();
        if let Some(factors) = &self.rope_factors {
            vector(w, "rope_freqs.weight".into(), factors.len());
        }
        for i in 0..self.layers {
            let name = |part: &str| format!("blk.{i}.{part}");
            vector(w, name("attn_norm.weight"), hidden);
            linear(w, name("attn_q"), hidden, q);
            linear(w, name("attn_k"), hidden, kv);
            linear(w, name("attn_v"), hidden, kv);
            linear(w, name("attn_output"), q, hidden);
            vector(w, name("ffn_norm.weight"), hidden);
            if let Some((count, _)) = self.experts {
                linear(w, name("ffn_gate_inp"), hidden, count);
                self.add_stack(w, name("ffn_gate_exps"), [hidden, ff, count]);
                self.add_stack(w, name("ffn_up_exps"), [hidden, ff, count]);
                self.add_stack(w, name("ffn_down_exps"), [ff, hidden, count]);
                vector(w, name("exp_probs_b.bias"), count);
                if self.shared_expert {
                    // Another width, whole blocks where the others have them.
                    let shared_ff =
                        ff + [256, 32, 7][[256, 32, 1].iter().position(|n| ff % n == 0).unwrap()];
                    linear(w, name("ffn_gate_inp_shexp"), hidden, 1);
                    linear(w, name("ffn_gate_shexp"), hidden, shared_ff);
                    linear(w, name("ffn_up_shexp"), hidden, shared_ff);
                    linear(w, name("ffn_down_shexp"), shared_ff, hidden);
                }
                continue;
            }
            linear(w, name("ffn_gate"), hidden, ff);
            linear(w, name("ffn_up"), hidden, ff);
            linear(w, name("ffn_down"), ff, hidden);
        }
        vector(w, "output_norm.weight".into(), hidden);
        if !self.tied {
            linear(w, "output".into(), hidden, self.vocab);
        }
    }

    fn add_stack(&self, w: &mut Writer, name: String, dims: [usize; 3]) {
        w.tensor(&format!("{name}.weight"), self.ty, &dims).unwrap();
        if self.biases {
            w.tensor(&format!("{name}.bias"), TensorType::F32, &dims[1..])
                .unwrap();
        }
    }

    /// Random values with a spread that keeps activations of the order of 1.
    fn put_data(&self, tensor: &TensorEntry, out: &mut dyn Write) -> io::Result<()> {
        let mut random = Random::new(self.seed, &tensor.name);
        let is_norm = tensor.name.ends_with("norm.weight");
        // Uniform numbers from -a to a have variance a^2 / 3.
        let spread = (3.0 / tensor.dims[0] as f32).sqrt();
        for i in 0..tensor.dims.iter().product() {
            let x = match &self.rope_factors {
                Some(factors) if tensor.name == "rope_freqs.weight" => factors[i],
                _ if is_norm => 1.0 + 0.1 * random.signed_unit(),
                _ if tensor.name.ends_with(".bias") => 0.1 * random.signed_unit(),
                _ if tensor.name == "token_embd.weight" => random.signed_unit(),
                _ => spread * random.signed_unit(),
            };
            match tensor.ty {
                TensorType::F32 => out.write_all(&x.to_le_bytes())?,
                TensorType::F16 => out.write_all(&half::f16::from_f32(x).to_le_bytes())?,
                TensorType::BF16 => out.write_all(&half::bf16::from_f32(x).to_le_bytes())?,
                other => panic!("tiny models cannot be {}", other.name()),
            }
        }
        Ok(())
    }
}

/// Numbers from -1 to 1 that depend on a seed and a name alone (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, name: &str) -> Random {
        // FNV-1a over the name.
        let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = name.bytes().fold(start, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        Random(hash)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from -1 to 1.
    pub fn signed_unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
