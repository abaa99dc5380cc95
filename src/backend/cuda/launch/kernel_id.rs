//! Which kernels there are: the file of `kernels/` that each is in, and its name there.

use super::matrix::Types;
use super::record::RecordType;

macro_rules! kernels {
    (
        plain { $($file:ident: $($plain:ident $plain_name:ident),+;)+ }
        others { $($(#[$doc:meta])* $other:ident $({ $($field:ident: $ty:ty),+ })? => ($other_file:expr, $other_name:expr);)+ }
    ) => {
        /// A kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum KernelId {
            $($($plain,)+)+
            $($(#[$doc])* $other $({ $($field: $ty),+ })?,)+
        }

        impl KernelId {
            /// Those that every device can run and that take no dynamic shared memory.
            pub const PLAIN: &[KernelId] = &[$($(KernelId::$plain),+),+];

            /// Its file, without the extension, and its name.
            pub fn source(self) -> (String, String) {
                match self {
                    $($(KernelId::$plain => (stringify!($file).into(), stringify!($plain_name).into()),)+)+
                    $(KernelId::$other $({ $($field),+ })? => ($other_file.into(), $other_name.into()),)+
                }
            }
        }
    };
}

kernels! {
    plain {
        repack: Repack repack, Unpack unpack, UnpackF32 unpack_f32, LargestWeight largest_weight;
        embed: Embed embed, LayerInputs layer_inputs;
        norm: QuantizeInput quantize_input, ResidualAdd residual_add, NormParts norm_parts, FinishLogits finish_logits;
        rope: RopeAppend rope_append;
        attention: AttendCombine attend_combine;
        attention_long: AttendJoin attend_join;
        latent: LatentPlace latent_place;
        heads: ReadyHeads ready_heads, FinishHeads finish_heads;
        texts: PoolTexts pool_texts, DenseTexts dense_texts;
        experts: Route route, ExpertSort expert_sort, ExpertTiles expert_tiles, WeighInner weigh_inner, ExpertCombine expert_combine;
        sparse: SparseMixer sparse_mixer;
        recurrent: Convolve recurrent_convolve, ConvolveStep recurrent_convolve_step, ConvolveChain recurrent_convolve_chain,
            RecurrentLengths recurrent_lengths, GatedNorm gated_norm, ShortConv short_conv, ShortConvChain short_conv_chain;
        selective: SelectiveStep selective_step, SelectiveChain selective_chain,
            SelectiveScan16 selective_scan_16, SelectiveScan64 selective_scan_64;
        sample: Penalize penalize, Best best, Finish finish;
        draw: Draw draw, Logprobs logprobs;
        adapters: LoraDown lora_down, LoraDown8 lora_down_8, LoraUp lora_up, LoraUp8 lora_up_8, AdaptEach adapt_each;
        ranks: RankSum rank_sum, RankSumPulled rank_sum_pulled, RankLogits rank_logits,
            RankPack rank_pack, RankAdd rank_add, RankPlace rank_place;
        streams: StreamsBegin streams_begin, StreamsEnd streams_end, StreamsPredict streams_predict, StreamsAround streams_around,
            StreamsCorrect streams_correct, StreamsSpread streams_spread, SparseGates sparse_gates;
        drafts: DraftRows draft_rows, AcceptDrafts accept_drafts;
        predictor: KeepStates keep_states, EnterHead enter_head;
        fusion: KeepPlace keep_place, GatherStates gather_states, JoinHead join_head, SpreadLogits spread_logits;
    }
    others {
        Matmul => ("matmul", "matmul");
        /// By warpgroups, in tiles of `width` columns; of gates and ups by turns where `gated`.
        MatmulWgmma { gated: bool, width: u32 } =>
            ("matmul_wgmma", format!("matmul_{}_{width}", if gated { "gated" } else { "wgmma" }));
        /// Of up to `rows` rows of input.
        Matvec { types: Types, rows: usize } => (types.file("matvec"), format!("matvec_{types}_{rows}"));
        /// Of up to `rows` rows of input, by tensor cores.
        MatvecBatch { types: Types, rows: usize } => (types.file("matvec_batch"), format!("matvec_batch_{types}_{rows}"));
        /// Of up to `columns` rows of input in f16, by warpgroups.
        BatchF16 { types: Types, columns: u32 } => (types.file("batch_f16"), format!("batch_f16_{types}_{columns}"));
        /// Of one row of input. Blocks have rows by turns where `spread`.
        Product { kind: ProductKind, spread: bool, types: Types } => (
            match kind { ProductKind::Linked => "product_linked".into(), _ => types.file("product") },
            format!("product{}{}_{types}", if spread { "_spread" } else { "" }, kind.suffix()));
        /// Of up to `rows` rows of input.
        ProductFew { types: Types, rows: usize } => (types.file("product_few"), format!("product_few_{types}_{rows}"));
        /// Of two rows of input, which it makes.
        ProductOfTwo { types: Types } => (types.file("product_few"), format!("product_few_own_{types}_2"));
        OwnInput { ty: RecordType } => ("own_input", format!("own_input_{}", ty.name()));

        /// Without tensor cores, for `queries` queries of a KV head.
        AttendFma { queries: u32 } => ("attention_fma", format!("attend_fma_{queries}"));
        /// The same for long heads.
        AttendFmaLong { queries: u32 } => ("attention_fma", format!("attend_fma_long_{queries}"));
        /// For heads of up to `dim` elements, with so many stages of tiles; of a quantized cache where `q8`. Blocks have twice as many warps
        /// where `wide`.
        Attend { q8: bool, wide: bool, dim: usize, stages: usize } => ("attention", format!("attend_{}_{dim}_{stages}", tiles(q8, wide)));
        /// The same for rows of one session.
        AttendRows { q8: bool, wide: bool, dim: usize, stages: usize } => ("attention", format!("attend_rows_{}_{dim}_{stages}", tiles(q8, wide)));
        /// Of a prefill, for heads of up to `dim` elements; of a quantized cache where `q8`.
        Flash { q8: bool, dim: usize } => ("attention_prefill", format!("flash_{}{dim}", if q8 { "q8_" } else { "" }));
        FlashWgmma { dim: usize } => ("attention_wgmma", format!("flash_wgmma_{dim}"));
        FlashTexts { dim: usize } => ("attention_texts", format!("flash_texts_{dim}"));
        FlashTextsWgmma { dim: usize } => ("attention_wgmma", format!("flash_texts_wgmma_{dim}"));
        AttendLong => ("attention_long", "attend_long_2");
        /// For 16 queries of a KV head, or 32.
        AttendLatent16 => ("attention_long", "attend_latent_2");
        AttendLatent32 => ("attention_long", "attend_latent_4");
        FlashLong => ("attention_prefill_long", "flash_long");
        FlashLatent => ("attention_prefill_long", "flash_latent");
        HeadProduct { outputs: u32 } => ("latent", format!("head_product_{outputs}"));

        RouterRow => ("experts", "router_row");
        RouterRows => ("experts", "router_rows");
        RoutePairs => ("experts", "route_pairs");
        /// A step's product with experts.
        Experts { product: ExpertProduct, ty: RecordType } =>
            (Types::One(ty).file("experts"), format!("experts_{}_{}", product.name(), ty.name()));
        /// The same where every device can run it.
        MatvecExperts { ty: RecordType } =>
            (format!("matvec_experts_{}", if ty.is_float() { "k" } else { ty.row().file }), format!("matvec_experts_{}", ty.name()));
        /// Of many rows, with records.
        MatmulExperts { ty: RecordType } => (Types::One(ty).file("matmul_experts"), format!("matmul_experts_{}", ty.name()));
        /// And in f16.
        MatmulExpertsF16 => ("matmul_experts", "matmul_experts");
        /// By warpgroups, with records.
        ExpertsWgmma { ty: RecordType } => (Types::One(ty).file("experts_wgmma"), format!("experts_wgmma_{}", ty.name()));
        /// And in f16.
        ExpertsWgmmaF16 => ("experts_wgmma", "experts_wgmma_f16");

        /// A token of each session, or with `chains` of rows that may go on from each other. Several blocks share a head where `shared`.
        RecurrentStep { chains: bool, shared: bool, state: StateKind } => ("recurrent", format!(
            "recurrent_{}{}_{}", if chains { "chain" } else { "step" }, if shared { "_shared" } else { "" }, state.name()));
        /// A token of each of many sessions, by bulk copies.
        RecurrentBatch { delta: bool } => ("recurrent", format!("recurrent_batch_{}", if delta { "delta" } else { "plain" }));
        RecurrentScan { state: StateKind } => ("recurrent", format!("recurrent_scan_{}", state.name()));
    }
}

/// What the kernels that attend in tiles are called by their caches and their warps.
fn tiles(q8: bool, wide: bool) -> &'static str {
    match (q8, wide) {
        (false, false) => "tiles",
        (false, true) => "wide",
        (true, false) => "tiles_q8",
        (true, true) => "wide_q8",
    }
}

/// What a product of one row does beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductKind {
    /// Nothing.
    Plain,
    /// It adds what adapters have.
    Adapted,
    /// It adds its input up first.
    Summed,
    /// It adds its output up over all ranks.
    Linked,
}

impl ProductKind {
    fn suffix(self) -> &'static str {
        match self {
            ProductKind::Plain => "",
            ProductKind::Adapted => "_adapted",
            ProductKind::Summed => "_summed",
            ProductKind::Linked => "_linked",
        }
    }
}

/// A step's product with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertProduct {
    /// Of one row, with gates and ups of the shared expert beside the router's scores.
    Shared,
    /// Of one row, with gates and ups.
    Up,
    /// Of one row, the last.
    Down,
    /// Of several rows.
    Rows,
}

impl ExpertProduct {
    pub(super) const ALL: [ExpertProduct; 4] = [
        ExpertProduct::Shared,
        ExpertProduct::Up,
        ExpertProduct::Down,
        ExpertProduct::Rows,
    ];

    fn name(self) -> &'static str {
        match self {
            ExpertProduct::Shared => "shared",
            ExpertProduct::Up => "up",
            ExpertProduct::Down => "down",
            ExpertProduct::Rows => "rows",
        }
    }
}

/// What states of fixed size a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// Of so many columns at most.
    Columns(u32),
    /// Whose columns each have a step of their own.
    Channels,
}

impl StateKind {
    fn name(self) -> String {
        match self {
            StateKind::Columns(columns) => columns.to_string(),
            StateKind::Channels => "channels".into(),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    /// Every kernel.
    fn all() -> Vec<KernelId> {
        use KernelId::*;
        let mut all = KernelId::PLAIN.to_vec();
        all.extend([Matmul, RouterRow, RouterRows, RoutePairs]);
        all.extend([MatmulExpertsF16, ExpertsWgmmaF16]);
        all.extend([AttendLong, AttendLatent16, AttendLatent32]);
        all.extend([FlashLong, FlashLatent]);
        for gated in [false, true] {
            all.extend([128, 256].map(|width| MatmulWgmma { gated, width }));
        }
        for ty in RecordType::ALL {
            all.push(MatvecExperts { ty });
            if ty.is_float() {
                let types = Types::One(ty);
                all.push(Matvec { types, rows: 1 });
                continue;
            }
            all.extend([MatmulExperts { ty }, ExpertsWgmma { ty }]);
            all.extend(ExpertProduct::ALL.map(|product| Experts { product, ty }));
        }
        for types in Types::quantized() {
            all.extend([1, 4].map(|rows| Matvec { types, rows }));
            all.extend([8, 16, 32].map(|rows| MatvecBatch { types, rows }));
            all.extend([32, 64].map(|columns| BatchF16 { types, columns }));
            all.extend([2, 4].map(|rows| ProductFew { types, rows }));
            all.push(ProductOfTwo { types });
        }
        for kind in [
            ProductKind::Plain,
            ProductKind::Adapted,
            ProductKind::Summed,
            ProductKind::Linked,
        ] {
            let types = match kind {
                ProductKind::Plain | ProductKind::Adapted => &RecordType::ALL[..],
                _ => &RecordType::SUMMED,
            };
            for &ty in types.iter().filter(|ty| !ty.is_float()) {
                all.extend([false, true].map(|spread| Product {
                    kind,
                    spread,
                    types: Types::One(ty),
                }));
            }
            if kind != ProductKind::Linked {
                all.push(Product {
                    kind,
                    spread: false,
                    types: Types::Pair,
                });
            }
        }
        all.extend(RecordType::SUMMED.map(|ty| OwnInput { ty }));
        all.extend([1, 2, 4, 8].map(|queries| AttendFma { queries }));
        all.extend([1, 2].map(|queries| AttendFmaLong { queries }));
        let attend = |(q8, wide, dim, stages)| Attend {
            q8,
            wide,
            dim,
            stages,
        };
        for (q8, wide, dim, stages) in [
            (false, false, 64, 3),
            (false, false, 128, 3),
            (false, false, 256, 2),
            (false, true, 64, 3),
            (false, true, 128, 3),
            (true, false, 64, 5),
            (true, false, 128, 5),
            (true, false, 256, 3),
            (true, true, 64, 5),
            (true, true, 128, 5),
        ] {
            all.push(attend((q8, wide, dim, stages)));
            all.push(AttendRows {
                q8,
                wide,
                dim,
                stages,
            });
        }
        // Of devices with less shared memory.
        all.extend([(128, 2), (128, 1), (256, 1)].map(|(dim, n)| attend((false, false, dim, n))));
        all.extend([(128, 3), (256, 2), (256, 1)].map(|(dim, n)| attend((true, false, dim, n))));
        for dim in [64, 128, 256] {
            all.extend([false, true].map(|q8| Flash { q8, dim }));
            all.push(FlashTexts { dim });
        }
        for dim in [64, 128] {
            all.extend([FlashWgmma { dim }, FlashTextsWgmma { dim }]);
        }
        all.extend([16, 64].map(|outputs| HeadProduct { outputs }));
        all.extend([false, true].map(|delta| RecurrentBatch { delta }));
        for state in [
            StateKind::Columns(128),
            StateKind::Columns(256),
            StateKind::Channels,
        ] {
            all.push(RecurrentScan { state });
            for chains in [false, true] {
                all.extend([false, true].map(|shared| RecurrentStep {
                    chains,
                    shared,
                    state,
                }));
            }
        }
        all
    }

    /// The kernels of kernels/ for an architecture, as the preprocessor makes them: files and names.
    fn there_for(architecture: &str) -> BTreeSet<(String, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = format!("emberlm-kernels-{}-{architecture}", std::process::id());
        let out = std::env::temp_dir().join(out);
        let mut list = Command::new("bash");
        list.arg(root.join("tests/driver/kernels")).arg(&out);
        assert!(list.arg(architecture).status().unwrap().success());
        let text = std::fs::read_to_string(&out).unwrap();
        std::fs::remove_file(&out).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        lines
            .map(|(file, name)| (file.into(), name.into()))
            .collect()
    }

    /// With little shared memory and with much.
    #[test]
    fn every_kernel_is_there_and_has_an_id() {
        let there = &there_for("750") | &there_for("900");
        let all = all();
        let known: BTreeSet<(String, String)> = all.iter().map(|id| id.source()).collect();
        assert_eq!(&known - &there, BTreeSet::new(), "not in kernels/");
        assert_eq!(&there - &known, BTreeSet::new(), "without an id");
        assert_eq!(known.len(), all.len(), "two of one name");
    }
}
