//! Whole texts in the layers of a prefill: where they are, and attention within each.

use super::mixer::AttentionPlan;
use super::plan::Plan;
use super::prefill::ChunkOperations;
use crate::backend::KvType;
use crate::backend::cuda::driver::arena::Arena;
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::attention::KV_TILE;
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::launch::texts::Tiles;
use crate::backend::state::row_bytes;
use crate::error::Result;

/// Rows for each text that there is room for.
const ROWS_OF_A_TEXT: u32 = 8;
/// Elements of a row begin at multiples of this.
const ROW_UNIT: u32 = 4;

/// Texts that there is room for in so many rows.
pub(in crate::backend::cuda) fn most_texts(rows: u32) -> u32 {
    (rows / ROWS_OF_A_TEXT).max(1)
}

/// Where texts are, and what is made of them.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct TextPlaces {
    /// u32, `[rows]`.
    pub(in crate::backend::cuda) positions: u64,
    pub(in crate::backend::cuda) kinds: u64,
    /// `TextSpan`, a text each.
    pub(in crate::backend::cuda) spans: u64,
    /// `TextTile`.
    pub(in crate::backend::cuda) tile_list: u64,
    pub(in crate::backend::cuda) tiles: Tiles,
    /// f16, keys and values of a layer.
    pub(in crate::backend::cuda) kv: u64,
    /// Rows that they are for.
    pub(in crate::backend::cuda) kv_rows: u32,
    /// f32, a row for each text: pooled vectors, and what layers make of them.
    pub(in crate::backend::cuda) pooled: [Span; 2],
}

impl TextPlaces {
    pub(in crate::backend::cuda) fn place(arena: &mut Arena, plan: &Plan, rows: u32) -> TextPlaces {
        let (n, texts) = (u64::from(rows), most_texts(rows));
        let kv = plan.attention().map(|a| {
            let layout = layout_of(a);
            2 * u64::from(layout.n_kv_heads) * u64::from(layout.row_bytes)
        });
        let stride = plan.hidden.max(plan.readout.widest());
        let stride = stride.next_multiple_of(ROW_UNIT);
        let positions = arena.array::<u32>(n);
        let kinds = arena.array::<u32>(n);
        let spans = arena.array::<args::TextSpan>(texts.into());
        let tile_list = arena.array::<args::TextTile>(Tiles::most(rows, texts).into());
        let kv = arena.take(n * kv.max().unwrap_or(0));
        let mut pooled = || Span {
            address: arena.array::<f32>(u64::from(texts) * u64::from(stride)),
            stride,
        };
        TextPlaces {
            positions,
            kinds,
            spans,
            tile_list,
            tiles: Tiles::default(),
            kv,
            kv_rows: rows,
            pooled: [pooled(), pooled()],
        }
    }
}

/// Keys and values of a layer as `texts.cuh` has them.
fn layout_of(attention: &AttentionPlan) -> args::KvLayout {
    let row_bytes = row_bytes(KvType::F16, attention.kv.head_dim) as u32;
    args::KvLayout {
        tile_bytes: KV_TILE as u64 * u64::from(row_bytes),
        layer_offset: 0,
        row_bytes,
        n_kv_heads: attention.n_kv_heads,
        head_dim: attention.head_dim,
        q8: 0,
        ring: 0,
        window: attention.kv.window.map_or(args::NO_WINDOW, |w| w as u32),
    }
}

impl ChunkOperations<'_> {
    /// From queries, keys and values of whole texts to the input of the output product.
    pub(super) fn attention_in_texts(
        &self,
        texts: &TextPlaces,
        attention: &AttentionPlan,
    ) -> Result<()> {
        let e = &self.eval;
        let (at, qkv) = (&self.at().attention, self.at().rows.wide);
        let layout = layout_of(attention);
        let [q_norm, k_norm] = attention.head_norms;
        // Attention writes the input of the output's product itself, where nothing comes between and tiles are whole.
        let width = attention.n_heads * attention.head_dim;
        let direct = attention.gate == 0
            && !attention.heads.finishes()
            && attention.head_dim.is_multiple_of(8)
            && width.is_multiple_of(args::TILE_K)
            && attention.output.groups * 32 == width;
        let rope = args::Rope {
            sessions: e.sessions,
            qkv: qkv.address,
            q_f16: at.q,
            positions: texts.positions,
            rotation: attention.rotation,
            q_norm,
            k_norm,
            v_norm: attention.value_norm,
            layout,
            q_scale: attention.scores.scale,
            qkv_stride: qkv.stride,
            n_heads: attention.n_heads,
            prefill: 1,
            value_head: attention.value_head,
            text_rows: texts.kv_rows,
            ..Default::default()
        };
        let flash = args::TextFlash {
            flash: args::Flash {
                sessions: e.sessions,
                q: at.q,
                out: at.attended,
                layout,
                scores: args::Scores {
                    // What stands for slopes is none in texts.
                    cap: match attention.slopes {
                        0 => attention.scores.cap,
                        _ => 0.0,
                    },
                    ..attention.scores
                },
                slopes: attention.slopes,
                first_row: 0,
                rows: self.rows,
                n_heads: attention.n_heads,
                value_dim: attention.head_dim,
            },
            tiles: texts.tile_list,
            kv: texts.kv,
            f16: if direct { self.at().x } else { 0 },
            f16_scale: self.at().x_scale,
            kv_rows: texts.kv_rows,
            ahead: match attention.causal {
                true => 1,
                false => layout.window,
            },
        };
        self.ready(attention)?;
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            e.kernels.rope_append(e.stream, &rope, self.rows)?;
            e.kernels.flash_texts(e.stream, &flash, texts.tiles)?;
        }
        match direct {
            true => Ok(()),
            false => self.attended(attention),
        }
    }
}
