//! Whole texts that go through the layers together, packed one behind the other.
//!
//! No layer reads what another one has kept, so there is memory for the keys and values of one layer, in
//! single precision. Each text has whole tiles of 16 positions of it, so nothing that is computed of a
//! text depends on its neighbours.

use super::kv::Head;
use super::pages::Pages;
use super::rows::ROWS;
use super::simd::LANES;
use crate::backend::embedder::{check_texts, without_texts};
use crate::error::{Result, fail};
use crate::model::{Mixer, Network};

/// Positions of a text whose attention is computed by one thread at a time.
#[derive(Clone, Copy)]
pub(super) struct TextBlock {
    pub text: usize,
    /// The first one; there are [`ROWS`], or as many as the text has left.
    pub first: usize,
}

/// Where a text lies.
#[derive(Clone, Copy)]
struct Place {
    /// Its first token.
    start: usize,
    len: usize,
    /// The first position of its tiles.
    tile_start: usize,
}

/// The texts of a pass.
pub(super) struct Texts {
    tokens: Vec<u32>,
    /// Of each token.
    kinds: Vec<u8>,
    text_of: Vec<u32>,
    places: Vec<Place>,
    blocks: Vec<TextBlock>,
    keys: Pages,
    values: Pages,
    /// Positions that there are keys and values for.
    positions: usize,
    /// The longest text that may come.
    max_tokens: usize,
}

/// Floats of a position's keys, and of its values, in the layer that has the most.
fn kv_widths(network: &Network) -> (usize, usize) {
    let mut widths = (0, 0);
    for block in &network.blocks {
        if let Mixer::Attention(a) = &block.mixer {
            widths.0 = widths.0.max(a.n_kv_heads * a.head_dim);
            let values = a.n_kv_heads * a.head_dim.next_multiple_of(LANES);
            widths.1 = widths.1.max(values);
        }
    }
    widths
}

/// What of a network [`Texts`] are made for.
#[derive(Clone, Copy, Default)]
pub(super) struct TextSizes {
    keys: usize,
    values: usize,
    /// What the network has that is not there without a session.
    unsupported: Option<&'static str>,
}

impl TextSizes {
    pub fn of(network: &Network) -> TextSizes {
        let (keys, values) = kv_widths(network);
        TextSizes {
            keys,
            values,
            unsupported: without_texts(network),
        }
    }

    /// `Unsupported` for networks that have no vectors of texts here.
    pub fn check(&self) -> Result<()> {
        check_texts(self.unsupported)
    }
}

/// Positions of the tiles of so many tokens, in whatever texts they are, as long as these are not tiny.
fn tile_positions(tokens: usize) -> usize {
    tokens.saturating_mul(2).next_multiple_of(LANES)
}

impl Texts {
    /// Memory for `tokens` tokens, of texts of up to `max_tokens`. Errors: `OutOfMemory`.
    pub fn new(sizes: TextSizes, tokens: usize, max_tokens: usize) -> Result<Texts> {
        let positions = tile_positions(tokens);
        let pages = |width: usize| Pages::floats(positions.saturating_mul(width), "texts");
        let texts = positions / LANES;
        Ok(Texts {
            tokens: reserved(tokens)?,
            kinds: reserved(tokens)?,
            text_of: reserved(tokens)?,
            places: reserved(texts.min(tokens))?,
            blocks: reserved(positions / ROWS)?,
            keys: pages(sizes.keys)?,
            values: pages(sizes.values)?,
            positions,
            max_tokens,
        })
    }

    /// Bytes of [`Texts::new`].
    pub fn bytes_for(sizes: TextSizes, tokens: usize) -> usize {
        let positions = tile_positions(tokens);
        let each = (sizes.keys + sizes.values) * size_of::<f32>();
        let lists = (size_of::<Place>() + size_of::<TextBlock>()) / LANES;
        let ids = 2 * size_of::<u32>() + 1;
        positions
            .saturating_mul(each + lists)
            .saturating_add(tokens.saturating_mul(ids))
    }

    /// Forgets all texts.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.kinds.clear();
        self.text_of.clear();
        self.places.clear();
        self.blocks.clear();
    }

    /// Appends a text, whose tokens are of kind 1 from `second` on. False if there is no room for it.
    pub fn push(&mut self, tokens: &[u32], second: usize) -> bool {
        let tile_start = self.places.last().map_or(0, |place| {
            place.tile_start + place.len.next_multiple_of(LANES)
        });
        let fits = tokens.len() <= self.tokens.capacity() - self.tokens.len()
            && tile_start + tokens.len().next_multiple_of(LANES) <= self.positions;
        if !fits || self.places.len() == self.max_count() {
            return false;
        }
        let text = self.places.len();
        self.places.push(Place {
            start: self.tokens.len(),
            len: tokens.len(),
            tile_start,
        });
        // Within the capacities, so nothing is allocated.
        let firsts = (0..tokens.len()).step_by(ROWS);
        self.blocks
            .extend(firsts.map(|first| TextBlock { text, first }));
        self.tokens.extend_from_slice(tokens);
        self.text_of.resize(self.tokens.len(), text as u32);
        let kinds = (0..tokens.len()).map(|i| u8::from(i >= second));
        self.kinds.extend(kinds);
        true
    }

    /// The most texts of a pass.
    pub fn max_count(&self) -> usize {
        self.places.capacity().min(self.tokens.capacity())
    }

    /// How many texts there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The kind of a token.
    pub fn kind(&self, token: usize) -> usize {
        usize::from(self.kinds[token])
    }

    /// The text of a token.
    pub fn text_of(&self, token: usize) -> usize {
        self.text_of[token] as usize
    }

    /// The first token of a text.
    pub fn start_of(&self, text: usize) -> usize {
        self.places[text].start
    }

    /// Tokens of a text.
    pub fn len_of(&self, text: usize) -> usize {
        self.places[text].len
    }

    /// Tokens of a text, on average.
    pub fn mean_len(&self) -> usize {
        self.tokens.len() / self.places.len().max(1)
    }

    /// The position of a token in its text.
    pub fn position(&self, token: usize) -> usize {
        token - self.start_of(self.text_of(token))
    }

    pub fn blocks(&self) -> &[TextBlock] {
        &self.blocks
    }

    /// The keys and values of a text in KV head `head` of `heads` of the present layer.
    pub fn head(&self, text: usize, head: usize, heads: usize, head_dim: usize) -> Head<'_, f32> {
        let place = self.places[text];
        let stride = head_dim.next_multiple_of(LANES);
        // The tiles of all heads of a text lie together.
        let tiles = place.len.next_multiple_of(LANES);
        let at = |width: usize| (place.tile_start * heads + head * tiles) * width;
        let float = |pages: &Pages, at: usize| pages.base().cast::<f32>().wrapping_add(at);
        let keys = float(&self.keys, at(head_dim));
        let values = float(&self.values, at(stride));
        Head::flat(keys, values, head_dim, tiles)
    }
}

/// An empty list with room for so many.
fn reserved<T>(capacity: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    if list.try_reserve_exact(capacity).is_err() {
        fail!(OutOfMemory, "texts of {capacity} tokens");
    }
    Ok(list)
}
