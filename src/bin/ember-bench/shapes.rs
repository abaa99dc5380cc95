//! Known networks as lists of tensors: names, dimensions and quantization types.

mod gemma4;
mod latent;
mod layers;
mod mamba;

use emberlm::format::Value;
use emberlm::quant::TensorType;
pub use gemma4::Gemma4;
pub use latent::Latent;
pub use layers::Layers;
pub use mamba::Mamba;

/// Dimensions of a decoder of the llama kind.
#[derive(Clone, Copy, Debug)]
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
    /// Layers with another mixer than attention.
    pub hybrid: Option<Hybrid>,
}

/// Layers with states of fixed size, or attention of another kind.
#[derive(Clone, Copy, Debug)]
pub enum Hybrid {
    /// Gated delta nets in all layers but every fourth, whose attention has gates.
    DeltaNet {
        /// Heads of keys.
        key_heads: usize,
        /// Heads of values.
        value_heads: usize,
        /// Elements of both.
        dim: usize,
        /// Positions that a convolution sees.
        width: usize,
    },
    /// Gated short convolutions in all layers but these.
    ShortConv {
        /// Positions that a convolution sees.
        width: usize,
        /// Layers that attend.
        attending: &'static [usize],
    },
    /// Mamba 2 in all layers but these.
    Mamba2 {
        /// Heads.
        heads: usize,
        /// Groups of heads that share keys and queries.
        groups: usize,
        /// Elements of a head.
        head_dim: usize,
        /// Elements of a head's state, for each of its own.
        state: usize,
        /// Positions that a convolution sees.
        width: usize,
        /// Layers that attend.
        attending: &'static [usize],
    },
    /// Attention with windows in most layers, and inputs of layers.
    Gemma4(&'static Gemma4),
    /// Latent attention in all layers.
    Latent(&'static Latent),
    /// The first Mamba in all layers.
    Mamba(&'static Mamba),
    /// Layers of Mamba 2, attention and feed-forward parts in any order.
    Layers(&'static Layers),
}

/// A mixture of experts, and what else its family has that others don't.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `general.architecture`: `qwen3moe`, `qwen35moe` or `gpt-oss`.
    pub architecture: &'static str,
    /// Number of experts.
    pub count: usize,
    /// Experts that a token goes through.
    pub used: usize,
    /// Inner width of one.
    pub n_ff: usize,
    /// Inner width of one that all tokens go through, beside them; 0 if there is none.
    pub shared_ff: usize,
}

/// The shapes that `--shape` knows.
pub const SHAPES: &[Shape] = &[
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
        hybrid: None,
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
        hybrid: None,
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
        hybrid: None,
    },
    Shape {
        name: "llama-3.1-70b",
        hidden: 8192,
        n_layers: 80,
        n_heads: 64,
        n_kv_heads: 8,
        head_dim: 128,
        n_ff: 28_672,
        n_vocab: 128_256,
        tied: false,
        qkv_bias: false,
        rope_theta: 5e5,
        norm_eps: 1e-5,
        context: 131_072,
        experts: None,
        hybrid: None,
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
        hybrid: None,
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
        hybrid: None,
    },
    Shape {
        name: "qwen3-embedding-0.6b",
        hidden: 1024,
        n_layers: 28,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        n_ff: 3072,
        n_vocab: 151_669,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e6,
        norm_eps: 1e-6,
        context: 32_768,
        experts: None,
        hybrid: None,
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
            shared_ff: 0,
        }),
        hybrid: None,
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
            shared_ff: 0,
        }),
        hybrid: None,
    },
    Shape {
        name: "qwen3.5-4b",
        hidden: 2560,
        n_layers: 32,
        n_heads: 16,
        n_kv_heads: 4,
        head_dim: 256,
        n_ff: 9216,
        n_vocab: 248_320,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e7,
        norm_eps: 1e-6,
        context: 262_144,
        experts: None,
        hybrid: Some(QWEN_3_5),
    },
    Shape {
        name: "qwen3.5-9b",
        hidden: 4096,
        n_layers: 32,
        n_heads: 16,
        n_kv_heads: 4,
        head_dim: 256,
        n_ff: 12_288,
        n_vocab: 248_320,
        tied: false,
        qkv_bias: false,
        rope_theta: 1e7,
        norm_eps: 1e-6,
        context: 262_144,
        experts: None,
        hybrid: Some(QWEN_3_5),
    },
    Shape {
        name: "qwen3.5-35b-a3b",
        hidden: 2048,
        n_layers: 40,
        n_heads: 16,
        n_kv_heads: 2,
        head_dim: 256,
        n_ff: 512,
        n_vocab: 248_320,
        tied: false,
        qkv_bias: false,
        rope_theta: 1e7,
        norm_eps: 1e-6,
        context: 262_144,
        experts: Some(Experts {
            architecture: "qwen35moe",
            count: 256,
            used: 8,
            n_ff: 512,
            shared_ff: 512,
        }),
        hybrid: Some(QWEN_3_5),
    },
    Shape {
        name: "lfm2-2.6b",
        hidden: 2048,
        n_layers: 30,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        n_ff: 10_752,
        n_vocab: 65_536,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e6,
        norm_eps: 1e-5,
        context: 128_000,
        experts: None,
        hybrid: Some(Hybrid::ShortConv {
            width: 3,
            attending: &[2, 5, 9, 13, 16, 20, 24, 27],
        }),
    },
    Shape {
        name: "granite-4-micro",
        hidden: 2048,
        n_layers: 40,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        n_ff: 8192,
        n_vocab: 100_352,
        tied: true,
        qkv_bias: false,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        context: 131_072,
        experts: None,
        hybrid: Some(Hybrid::Mamba2 {
            heads: 64,
            groups: 1,
            head_dim: 64,
            state: 128,
            width: 4,
            attending: &[5, 15, 25, 35],
        }),
    },
    gemma4::E4B,
    latent::DEEPSEEK_V2_LITE,
    mamba::FALCON_MAMBA_7B,
    layers::MAMBA2_2_7B,
    layers::NEMOTRON_NANO_9B,
    layers::FALCON_H1_1_5B,
];

const QWEN_3_5: Hybrid = Hybrid::DeltaNet {
    key_heads: 16,
    value_heads: 32,
    dim: 128,
    width: 4,
};

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
    /// All the same.
    Constant(f32),
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

/// Tensors in the order in which they are written.
struct Tensors {
    plans: Vec<Plan>,
}

impl Tensors {
    /// Weights, in eight bits where the type has blocks that do not fit the rows.
    fn matrix(&mut self, name: &str, ty: TensorType, dims: &[usize]) {
        let ty = match ty.row_bytes(dims[0]) {
            Some(_) => ty,
            None => TensorType::Q8_0,
        };
        self.add(name, ty, dims, Fill::Weights);
    }

    /// Numbers that are all the same.
    fn constant(&mut self, name: &str, len: usize, number: f32) {
        self.add(name, TensorType::F32, &[len], Fill::Constant(number));
    }

    /// Numbers by their whole name.
    fn numbers(&mut self, name: String, dims: &[usize], fill: Fill) {
        self.plans.push(Plan {
            name,
            ty: TensorType::F32,
            dims: dims.to_vec(),
            fill,
        });
    }

    fn add(&mut self, name: &str, ty: TensorType, dims: &[usize], fill: Fill) {
        self.plans.push(Plan {
            name: format!("{name}.weight"),
            ty,
            dims: dims.to_vec(),
            fill,
        });
    }
}

impl Shape {
    /// The first layers alone, if it is to be cut; the error is a sentence.
    pub fn cut(self, layers: Option<usize>) -> Result<Shape, String> {
        let least = match &self.hybrid {
            // Layers that share keys and values read those of one without a window and of one with it.
            Some(Hybrid::Gemma4(gemma)) => gemma.shared + gemma.interval,
            _ => 1,
        };
        let n_layers = layers.unwrap_or(self.n_layers);
        match (least..=self.n_layers).contains(&n_layers) {
            true => Ok(Shape { n_layers, ..self }),
            false => Err(format!(
                "--cut is {n_layers}, but {} has from {least} to {} layers",
                self.name, self.n_layers
            )),
        }
    }

    /// The keys that this kind of attention has beside those of all, or in place of them.
    pub fn own_keys(&self) -> Vec<(&'static str, Value)> {
        match &self.hybrid {
            Some(Hybrid::Gemma4(gemma)) => gemma.keys(self),
            Some(Hybrid::Latent(latent)) => latent.keys(self),
            Some(Hybrid::Mamba(mamba)) => mamba.keys(),
            Some(Hybrid::Layers(layers)) => layers.keys(self),
            _ => Vec::new(),
        }
    }

    /// `general.architecture` of the file.
    pub fn architecture(&self) -> &'static str {
        match (&self.experts, &self.hybrid) {
            (Some(experts), _) => experts.architecture,
            (None, Some(Hybrid::Gemma4(_))) => "gemma4",
            (None, Some(Hybrid::Latent(_))) => "deepseek2",
            (None, Some(Hybrid::Mamba(_))) => "mamba",
            (None, Some(Hybrid::Layers(layers))) => layers.architecture,
            (None, Some(Hybrid::DeltaNet { .. })) => "qwen35",
            (None, Some(Hybrid::ShortConv { .. })) => "lfm2",
            (None, Some(Hybrid::Mamba2 { .. })) => "granitehybrid",
            (None, None) => "llama",
        }
    }

    /// Whether a layer attends.
    pub fn attends(&self, layer: usize) -> bool {
        match &self.hybrid {
            None | Some(Hybrid::Gemma4(_) | Hybrid::Latent(_)) => true,
            Some(Hybrid::Mamba(_)) => false,
            Some(Hybrid::Layers(layers)) => layers.attends(layer),
            Some(Hybrid::DeltaNet { .. }) => (layer + 1).is_multiple_of(4),
            Some(Hybrid::ShortConv { attending, .. } | Hybrid::Mamba2 { attending, .. }) => {
                attending.contains(&layer)
            }
        }
    }

    /// Whether attention has gates.
    fn gated(&self) -> bool {
        matches!(self.hybrid, Some(Hybrid::DeltaNet { .. }))
    }

    /// All tensors of this shape, in the order in which they are written.
    pub fn tensors(&self, mix: Mix) -> Vec<Plan> {
        match &self.hybrid {
            Some(Hybrid::Gemma4(gemma)) => return gemma.tensors(self, mix),
            Some(Hybrid::Latent(latent)) => return latent.tensors(self, mix),
            Some(Hybrid::Mamba(mamba)) => return mamba.tensors(self, mix),
            Some(Hybrid::Layers(layers)) => return layers.tensors(self, mix),
            _ => {}
        }
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
            let hidden = self.hidden;
            let name = |part: &str| format!("blk.{i}.{part}.weight");
            match &self.hybrid {
                _ if self.attends(i) => {
                    let q_rows = if self.gated() { 2 * q_dim } else { q_dim };
                    matrix(name("attn_q"), base, vec![hidden, q_rows]);
                    matrix(name("attn_k"), base, vec![hidden, kv_dim]);
                    matrix(name("attn_v"), sensitive, vec![hidden, kv_dim]);
                    matrix(name("attn_output"), base, vec![q_dim, hidden]);
                }
                Some(Hybrid::DeltaNet {
                    key_heads,
                    value_heads,
                    dim,
                    ..
                }) => {
                    let (keys, values) = (key_heads * dim, value_heads * dim);
                    matrix(name("attn_qkv"), base, vec![hidden, 2 * keys + values]);
                    matrix(name("attn_gate"), base, vec![hidden, values]);
                    matrix(name("ssm_beta"), base, vec![hidden, *value_heads]);
                    matrix(name("ssm_alpha"), base, vec![hidden, *value_heads]);
                    matrix(name("ssm_out"), base, vec![values, hidden]);
                }
                Some(Hybrid::Mamba2 {
                    heads,
                    groups,
                    head_dim,
                    state,
                    ..
                }) => {
                    let inner = heads * head_dim;
                    let rows = 2 * inner + 2 * groups * state + heads;
                    matrix(name("ssm_in"), base, vec![hidden, rows]);
                    matrix(name("ssm_out"), base, vec![inner, hidden]);
                }
                _ => {
                    matrix(name("shortconv.in_proj"), base, vec![hidden, 3 * hidden]);
                    matrix(name("shortconv.out_proj"), base, vec![hidden, hidden]);
                }
            }
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
                if e.shared_ff > 0 {
                    let (f32, shared_ff) = (TensorType::F32, e.shared_ff);
                    matrix(name("ffn_gate_inp_shexp.weight"), f32, vec![hidden, 1]);
                    matrix(name("ffn_gate_shexp.weight"), base, vec![hidden, shared_ff]);
                    matrix(name("ffn_up_shexp.weight"), base, vec![hidden, shared_ff]);
                    let down = common(sensitive);
                    matrix(name("ffn_down_shexp.weight"), down, vec![shared_ff, hidden]);
                }
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
        let architecture = self.architecture();
        let qk_norms = ["qwen3moe", "qwen35", "qwen35moe", "lfm2"].contains(&architecture);
        let ffn_norm = match architecture {
            "gpt-oss" | "qwen35" | "qwen35moe" => "post_attention_norm",
            _ => "ffn_norm",
        };
        for i in (0..self.n_layers).filter(|i| !self.attends(*i)) {
            let name = |part: &str| format!("blk.{i}.{part}");
            let ones = Fill::Constant(1.0);
            match &self.hybrid {
                Some(Hybrid::DeltaNet {
                    key_heads,
                    value_heads,
                    dim,
                    width,
                }) => {
                    let (heads, channels) = (*value_heads, (2 * key_heads + value_heads) * dim);
                    numbers(name("ssm_a"), vec![heads], Fill::Constant(-0.1));
                    numbers(name("ssm_dt.bias"), vec![heads], Fill::Bias);
                    numbers(name("ssm_norm.weight"), vec![*dim], ones);
                    let conv = vec![*width, channels];
                    numbers(name("ssm_conv1d.weight"), conv, Fill::Weights);
                }
                Some(Hybrid::ShortConv { width, .. }) => {
                    let conv = vec![*width, self.hidden];
                    numbers(name("shortconv.conv.weight"), conv, Fill::Weights);
                }
                Some(Hybrid::Mamba2 {
                    heads,
                    groups,
                    head_dim,
                    state,
                    width,
                    ..
                }) => {
                    let inner = heads * head_dim;
                    let channels = inner + 2 * groups * state;
                    numbers(name("ssm_a"), vec![1, *heads], Fill::Constant(-0.1));
                    numbers(name("ssm_d"), vec![1, *heads], ones);
                    numbers(name("ssm_dt.bias"), vec![*heads], Fill::Bias);
                    let norm = vec![inner / groups, *groups];
                    numbers(name("ssm_norm.weight"), norm, ones);
                    let conv = vec![*width, channels];
                    numbers(name("ssm_conv1d.weight"), conv, Fill::Weights);
                    numbers(name("ssm_conv1d.bias"), vec![channels], Fill::Bias);
                }
                None
                | Some(
                    Hybrid::Gemma4(_) | Hybrid::Latent(_) | Hybrid::Mamba(_) | Hybrid::Layers(_),
                ) => {}
            }
        }
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
        let final_norm = match architecture {
            "lfm2" => "token_embd_norm.weight",
            _ => "output_norm.weight",
        };
        vector(final_norm.into(), self.hidden, Fill::Constant(1.0));
        for i in 0..self.n_layers {
            vector(
                format!("blk.{i}.attn_norm.weight"),
                self.hidden,
                Fill::Constant(1.0),
            );
            vector(
                format!("blk.{i}.{ffn_norm}.weight"),
                self.hidden,
                Fill::Constant(1.0),
            );
            if qk_norms && self.attends(i) {
                vector(
                    format!("blk.{i}.attn_q_norm.weight"),
                    self.head_dim,
                    Fill::Constant(1.0),
                );
                vector(
                    format!("blk.{i}.attn_k_norm.weight"),
                    self.head_dim,
                    Fill::Constant(1.0),
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

    /// The published counts (of qwen3, without the weights of its norms of q and k).
    #[test]
    fn parameter_counts() {
        assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400);
        assert_eq!(parameters("llama-3.1-8b"), 8_030_261_248);
        assert_eq!(parameters("llama-3.1-70b"), 70_553_706_496);
        assert_eq!(parameters("qwen2.5-1.5b"), 1_543_714_304);
        assert_eq!(parameters("qwen3-4b"), 4_022_468_096 - 2 * 36 * 128);
        assert_eq!(
            parameters("qwen3-embedding-0.6b"),
            595_776_512 - 2 * 28 * 128
        );
        assert_eq!(parameters("hamlet"), 6_660_352);
        assert_eq!(parameters("qwen3-30b-a3b"), 30_532_122_624);
        assert_eq!(parameters("gpt-oss-20b"), 20_914_757_184);
        // As told in billions.
        assert_eq!(parameters("qwen3.5-4b") / 100_000_000, 42);
        assert_eq!(parameters("qwen3.5-9b") / 100_000_000, 89);
        assert_eq!(parameters("qwen3.5-35b-a3b") / 1_000_000_000, 34);
        assert_eq!(parameters("lfm2-2.6b") / 100_000_000, 25);
        assert_eq!(parameters("granite-4-micro") / 100_000_000, 31);
        assert_eq!(parameters("deepseek-v2-lite") / 100_000_000, 157);
        assert_eq!(parameters("falcon-mamba-7b") / 100_000_000, 72);
        assert_eq!(parameters("mamba2-2.7b") / 100_000_000, 27);
        assert_eq!(parameters("nemotron-nano-9b-v2") / 100_000_000, 88);
        assert_eq!(parameters("falcon-h1-1.5b") / 10_000_000, 147);
        // Of which 2.8 billion are the embeddings of layers.
        assert_eq!(parameters("gemma-4-e4b") / 100_000_000, 74);
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
