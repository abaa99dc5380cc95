//! Known networks as lists of tensors: names, dimensions and quantization types.

use emberlm::quant::TensorType;

/// Dimensions of a decoder of the llama kind.
#[derive(Debug)]
pub struct Shape {
    /// The name on the command line.
    pub name: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Token ids.
    pub n_vocab: usize,
    /// The output head is the embedding.
    pub tied: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Positions of the context.
    pub context: usize,
    /// Experts in place of one feed-forward part for all tokens.
    pub experts: Option<Experts>,
}

/// A mixture of experts, and what else its family has that others don't.
#[derive(Debug)]
pub struct Experts {
    /// `general.architecture`: `qwen3moe` or `gpt-oss`.
    pub architecture: &'static str,
    /// Number of experts.
    pub count: usize,
    /// Experts that a token goes through.
    pub used: usize,
    /// Inner width of one.
    pub n_ff: usize,
}

/// The shapes that `--shape` knows.
pub const SHAPES: [Shape; 7] = [
    Shape {
        name: "hamlet",
        hidden: 256,
        n_layers: 8,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        n_ff: 768,
        n_vocab: 1424,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        context: 2048,
        experts: None,
    },
    Shape {
        name: "llama-3.2-1b",
        hidden: 2048,
        n_layers: 16,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        n_ff: 8192,
        n_vocab: 128_256,
        tied: true,
        qkv_bias: false,
        rope_theta: 5e5,
        norm_eps: 1e-5,
        context: 131_072,
        experts: None,
    },
    Shape {
        name: "llama-3.1-8b",
        hidden: 4096,
        n_layers: 32,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        n_ff: 14_336,
        n_vocab: 128_256,
        tied: false,
        qkv_bias: false,
        rope_theta: 5e5,
        norm_eps: 1e-5,
        context: 131_072,
        experts: None,
    },
    Shape {
        name: "qwen2.5-1.5b",
        hidden: 1536,
        n_layers: 28,
        n_heads: 12,
        n_kv_heads: 2,
        head_dim: 128,
        n_ff: 8960,
        n_vocab: 151_936,
        tied: true,
        qkv_bias: true,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        context: 32_768,
        experts: None,
    },
    Shape {
        name: "qwen3-4b",
        hidden: 2560,
        n_layers: 36,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        n_ff: 9728,
        n_vocab: 151_936,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        context: 40_960,
        experts: None,
    },
    Shape {
        name: "qwen3-30b-a3b",
        hidden: 2048,
        n_layers: 48,
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 128,
        n_ff: 6144,
        n_vocab: 151_936,
        tied: false,
        qkv_bias: false,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        context: 40_960,
        experts: Some(Experts {
            architecture: "qwen3moe",
            count: 128,
            used: 8,
            n_ff: 768,
        }),
    },
    Shape {
        name: "gpt-oss-20b",
        hidden: 2880,
        n_layers: 24,
        n_heads: 64,
        n_kv_heads: 8,
        head_dim: 64,
        n_ff: 2880,
        n_vocab: 201_088,
        tied: false,
        qkv_bias: true,
        rope_theta: 1.5e5,
        norm_eps: 1e-5,
        context: 131_072,
        experts: Some(Experts {
            architecture: "gpt-oss",
            count: 32,
            used: 4,
            n_ff: 2880,
        }),
    },
];

/// The shape of this name.
pub fn find(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name))
}

/// How the matrices of a network are quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// Every matrix.
    Throughout(TensorType),
    /// Every matrix but the output (or the embedding that serves as one), which is Q6_K.
    WithOutputQ6K(TensorType),
    /// A base type, and Q6_K for the output and for `attn_v` and `ffn_down` of half the layers.
    MoreBits(TensorType),
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let base = self.base().name();
        match self {
            Mix::MoreBits(_) => write!(f, "{base}_M"),
            _ => f.write_str(base),
        }
    }
}

impl Mix {
    /// llama.cpp's usual 4-bit mix.
    #[allow(non_upper_case_globals)]
    pub const Q4_K_M: Mix = Mix::MoreBits(TensorType::Q4K);

    /// The mix of this name.
    pub fn parse(name: &str) -> Option<Mix> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "q4_k_m" => return Some(Mix::Q4_K_M),
            "q5_k_m" => return Some(Mix::MoreBits(TensorType::Q5K)),
            _ => {}
        }
        let ty = TensorType::ALL
            .into_iter()
            .find(|t| t.name().eq_ignore_ascii_case(&name))?;
        Some(match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0 => {
                Mix::Throughout(ty)
            }
            _ => Mix::WithOutputQ6K(ty),
        })
    }

    fn base(self) -> TensorType {
        match self {
            Mix::Throughout(ty) | Mix::WithOutputQ6K(ty) | Mix::MoreBits(ty) => ty,
        }
    }

    fn output(self) -> TensorType {
        match self {
            Mix::Throughout(ty) => ty,
            _ => TensorType::Q6K,
        }
    }

    /// Type of `attn_v` and `ffn_down` in layer `i` of `n`: with `MoreBits`, the first and last
    /// eighth and every third between get more.
    fn sensitive(self, i: usize, n: usize) -> TensorType {
        let more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
        match self {
            Mix::MoreBits(_) if more => TensorType::Q6K,
            _ => self.base(),
        }
    }
}

/// What the elements of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Random, mean 0, variance 1 / row length.
    Weights,
    /// Random, a tenth in size.
    Bias,
    /// Ones.
    Ones,
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name in the file.
    pub name: String,
    /// Type in the file.
    pub ty: TensorType,
    /// Dimensions, the row length first.
    pub dims: Vec<usize>,
    /// Elements.
    pub fill: Fill,
}

impl Shape {
    /// `general.architecture` of the file.
    pub fn architecture(&self) -> &'static str {
        self.experts.as_ref().map_or("llama", |e| e.architecture)
    }

    /// All tensors of this shape, in the order in which they are written.
    pub fn tensors(&self, mix: Mix) -> Vec<Plan> {
        let mut plans = Vec::new();
        let q_dim = self.n_heads * self.head_dim;
        let kv_dim = self.n_kv_heads * self.head_dim;
        let embedding = if self.tied { mix.output() } else { mix.base() };
        // MXFP4 is for experts; the rest of such files has eight bits.
        let common = |ty| match (ty, &self.experts) {
            (TensorType::MXFP4, Some(_)) => TensorType::Q8_0,
            _ => ty,
        };
        let embedding = common(embedding);
        let mut matrix = |name: String, ty: TensorType, dims: Vec<usize>| {
            // The types of 256 elements per block need rows of whole blocks, as in llama.cpp.
            let ty = match ty.row_bytes(dims[0]) {
                Some(_) => ty,
                None => TensorType::Q8_0,
            };
            plans.push(Plan {
                name,
                ty,
                dims,
                fill: Fill::Weights,
            });
        };
        matrix(
            "token_embd.weight".into(),
            embedding,
            vec![self.hidden, self.n_vocab],
        );
        if !self.tied {
            matrix(
                "output.weight".into(),
                mix.output(),
                vec![self.hidden, self.n_vocab],
            );
        }
        for i in 0..self.n_layers {
            let sensitive = mix.sensitive(i, self.n_layers);
            let (base, sensitive) = (common(mix.base()), common(sensitive));
            matrix(
                format!("blk.{i}.attn_q.weight"),
                base,
                vec![self.hidden, q_dim],
            );
            matrix(
                format!("blk.{i}.attn_k.weight"),
                base,
                vec![self.hidden, kv_dim],
            );
            matrix(
                format!("blk.{i}.attn_v.weight"),
                sensitive,
                vec![self.hidden, kv_dim],
            );
            matrix(
                format!("blk.{i}.attn_output.weight"),
                base,
                vec![q_dim, self.hidden],
            );
            if let Some(e) = &self.experts {
                let (name, sensitive) = (
                    |part| format!("blk.{i}.{part}"),
                    mix.sensitive(i, self.n_layers),
                );
                let (hidden, n_ff, count) = (self.hidden, e.n_ff, e.count);
                matrix(
                    name("ffn_gate_exps.weight"),
                    mix.base(),
                    vec![hidden, n_ff, count],
                );
                matrix(
                    name("ffn_up_exps.weight"),
                    mix.base(),
                    vec![hidden, n_ff, count],
                );
                matrix(
                    name("ffn_down_exps.weight"),
                    sensitive,
                    vec![n_ff, hidden, count],
                );
                matrix(
                    name("ffn_gate_inp.weight"),
                    TensorType::F32,
                    vec![hidden, count],
                );
                continue;
            }
            matrix(
                format!("blk.{i}.ffn_gate.weight"),
                base,
                vec![self.hidden, self.n_ff],
            );
            matrix(
                format!("blk.{i}.ffn_up.weight"),
                base,
                vec![self.hidden, self.n_ff],
            );
            matrix(
                format!("blk.{i}.ffn_down.weight"),
                sensitive,
                vec![self.n_ff, self.hidden],
            );
        }
        let mut numbers = |name: String, dims: Vec<usize>, fill: Fill| {
            plans.push(Plan {
                name,
                ty: TensorType::F32,
                dims,
                fill,
            });
        };
        let gpt_oss = self
            .experts
            .as_ref()
            .filter(|e| e.architecture == "gpt-oss");
        let qk_norms = matches!(&self.experts, Some(e) if e.architecture == "qwen3moe");
        let ffn_norm = match gpt_oss {
            Some(_) => "post_attention_norm",
            None => "ffn_norm",
        };
        if let Some(e) = gpt_oss {
            for i in 0..self.n_layers {
                let name = |part: &str| format!("blk.{i}.{part}");
                numbers(name("attn_sinks.weight"), vec![self.n_heads], Fill::Bias);
                numbers(name("attn_output.bias"), vec![self.hidden], Fill::Bias);
                numbers(name("ffn_gate_inp.bias"), vec![e.count], Fill::Bias);
                numbers(
                    name("ffn_gate_exps.bias"),
                    vec![e.n_ff, e.count],
                    Fill::Bias,
                );
                numbers(name("ffn_up_exps.bias"), vec![e.n_ff, e.count], Fill::Bias);
                numbers(
                    name("ffn_down_exps.bias"),
                    vec![self.hidden, e.count],
                    Fill::Bias,
                );
            }
        }
        let mut vector = |name: String, len: usize, fill: Fill| numbers(name, vec![len], fill);
        vector("output_norm.weight".into(), self.hidden, Fill::Ones);
        for i in 0..self.n_layers {
            vector(format!("blk.{i}.attn_norm.weight"), self.hidden, Fill::Ones);
            vector(
                format!("blk.{i}.{ffn_norm}.weight"),
                self.hidden,
                Fill::Ones,
            );
            if qk_norms {
                vector(
                    format!("blk.{i}.attn_q_norm.weight"),
                    self.head_dim,
                    Fill::Ones,
                );
                vector(
                    format!("blk.{i}.attn_k_norm.weight"),
                    self.head_dim,
                    Fill::Ones,
                );
            }
            if self.qkv_bias {
                vector(format!("blk.{i}.attn_q.bias"), q_dim, Fill::Bias);
                vector(format!("blk.{i}.attn_k.bias"), kv_dim, Fill::Bias);
                vector(format!("blk.{i}.attn_v.bias"), kv_dim, Fill::Bias);
            }
        }
        plans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(name: &str) -> usize {
        let shape = find(name).expect(name);
        let tensors = shape.tensors(Mix::Q4_K_M);
        tensors
            .iter()
            .map(|t| t.dims.iter().product::<usize>())
            .sum()
    }

    /// The published counts (qwen3-4b's without the 2 * 36 * 128 weights of its q and k norms).
    #[test]
    fn parameter_counts() {
        assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400);
        assert_eq!(parameters("llama-3.1-8b"), 8_030_261_248);
        assert_eq!(parameters("qwen2.5-1.5b"), 1_543_714_304);
        assert_eq!(parameters("qwen3-4b"), 4_022_468_096 - 2 * 36 * 128);
        assert_eq!(parameters("hamlet"), 6_660_352);
        assert_eq!(parameters("qwen3-30b-a3b"), 30_532_122_624);
        assert_eq!(parameters("gpt-oss-20b"), 20_914_757_184);
    }

    #[test]
    fn the_four_bit_mix_gives_half_of_the_sensitive_tensors_more() {
        let shape = find("llama-3.1-8b").expect("known");
        let tensors = shape.tensors(Mix::Q4_K_M);
        let six = |part: &str| {
            let has = |t: &&Plan| t.name.contains(part) && t.ty == TensorType::Q6K;
            tensors.iter().filter(has).count()
        };
        assert_eq!(six("attn_v"), 16);
        assert_eq!(six("ffn_down"), 16);
        assert_eq!(six("attn_q"), 0);
        assert_eq!(six("output.weight"), 1);
        assert_eq!(six("token_embd"), 0);
    }

    #[test]
    fn mixes_by_name() {
        assert_eq!(Mix::parse("Q4_K_M"), Some(Mix::Q4_K_M));
        assert_eq!(Mix::parse("q8_0"), Some(Mix::Throughout(TensorType::Q8_0)));
        assert_eq!(
            Mix::parse("q4_0"),
            Some(Mix::WithOutputQ6K(TensorType::Q4_0))
        );
        assert_eq!(Mix::parse("q4"), None);
    }
}
