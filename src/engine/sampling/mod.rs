//! Choosing a token from logits.
//!
//! The choice is a pure function of (logits, settings, rules, tokens of the context, mask, position),
//! defined so that every backend can follow it to the bit. The stages, in this order:
//!
//! 1. A logit that is NaN or plus infinity is an error, whatever the settings are.
//! 2. The logits are adjusted, each on its own, in single precision (`adjust.rs`): bias is added;
//!    tokens that occur among the last `penalty_window` tokens of the context (prompt and output) get
//!    the repeat penalty (a positive logit is divided by it, another one multiplied), then minus
//!    `frequency_penalty` times the number of occurrences, then minus `presence_penalty`; tokens that
//!    would go on with a repetition get minus the DRY penalty; tokens that the rules ban, or that
//!    the mask does not allow, become minus infinity.
//! 3. Tokens are ranked by adjusted logit, the larger first; of equal logits the smaller id comes
//!    first. `temperature == 0` and `top_k == 1` take the first token of the ranking and end here.
//! 4. `top_k` keeps the first k tokens of the ranking.
//! 5. `typical_p` orders what is left by how far the surprise of a token, `-ln p` (temperature 1), is
//!    from its mean, the entropy, the nearest first, and keeps the shortest start of that order whose
//!    probabilities sum to at least `typical_p` (Meister et al., Locally Typical Sampling, 2022). The
//!    distance is rounded to single precision; of equal ones the smaller id comes first.
//! 6. `top_p` looks at the softmax of what is left (temperature 1) and keeps the shortest start of
//!    the ranking whose probabilities sum to at least p.
//! 7. `min_p` keeps the tokens whose probability is at least that share of the largest one left.
//!    Each of these stages keeps at least one token.
//! 8. Each kept token has the weight `exp((logit - max) / temperature)`, max being the largest logit
//!    left. The weights, in the order of token ids, share out the interval from 0 to 1, and a uniform
//!    number u picks one.
//! 9. u has 53 bits, from the first two words of Philox4x32-10 with the seed as key and the
//!    position as counter.
//!
//! Probabilities are summed as integers, multiples of 2^-40 of the largest one (`fixed.rs`), so that
//! sums have the same bits in whatever order a device adds.

mod adjust;
mod filter;
mod fixed;
mod logprobs;
mod random;
mod rules;

pub use adjust::dry_longest;
pub use logprobs::{LogprobBoxes, Logprobs, MAX_LOGPROBS};
#[cfg(test)]
pub(crate) use random::philox4x32;
pub use rules::{Breakers, TokenRules};

use crate::error::{Result, fail, try_vec};
use filter::{Candidate, largest};

/// How a token is chosen, as far as numbers say it; [`TokenRules`] has the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 chooses the largest logit.
    pub temperature: f32,
    /// Keep only the k largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Keep the most typical tokens that reach this probability; 1 keeps all.
    pub typical_p: f32,
    /// How many of the last tokens the three penalties look at; 0 none.
    pub penalty_window: u32,
    /// Divides the positive logits of tokens in the window, and multiplies the others; 1 is off.
    pub repeat_penalty: f32,
    /// Taken from the logits of tokens in the window; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logits of tokens in the window, times how often they occur; 0 is off.
    pub frequency_penalty: f32,
    /// The penalty on going on with a repetition.
    pub dry: Dry,
    /// How many of the most probable tokens to report with each choice; 0 reports nothing.
    pub logprobs: u32,
    /// Seed of the counter-based generator.
    pub seed: u64,
}

/// The penalty on tokens that would lengthen a repetition ("don't repeat yourself").
///
/// If the last n tokens of the context occur earlier in the window, n being the largest such number,
/// then the token that followed them there gets minus `multiplier * base^(n - allowed_length)`, if n
/// is at least `allowed_length`. Only tokens behind the last sequence breaker of the window count
/// among the n, and a token that is a breaker by itself gets no penalty. The penalty is computed in
/// double precision and at most the largest `f32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    /// 1 or more.
    pub base: f32,
    /// The longest repetition that costs nothing is one shorter than this; at least 1.
    pub allowed_length: u32,
    /// How many of the last tokens to look at.
    pub window: u32,
}

impl Dry {
    /// No penalty.
    pub const OFF: Dry = Dry {
        multiplier: 0.0,
        base: 1.75,
        allowed_length: 2,
        window: u32::MAX,
    };
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

impl Sampling {
    /// Always the largest logit of the model.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        penalty_window: 64,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        dry: Dry::OFF,
        logprobs: 0,
        seed: 0,
    };

    /// `InvalidArgument`, naming the field, if a value is out of range.
    pub fn check(&self) -> Result<()> {
        let from_0 = |name, value: f32| match value.is_finite() && value >= 0.0 {
            true => Ok(()),
            false => fail!(InvalidArgument, "{name} is {value}, but must be 0 or more"),
        };
        let share = |name, value: f32| match value > 0.0 && value <= 1.0 {
            true => Ok(()),
            false => fail!(
                InvalidArgument,
                "{name} is {value}, but must be more than 0 and at most 1"
            ),
        };
        let number = |name, value: f32| match value.is_finite() {
            true => Ok(()),
            false => fail!(InvalidArgument, "{name} is {value}, but must be finite"),
        };
        from_0("temperature", self.temperature)?;
        share("top_p", self.top_p)?;
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            fail!(
                InvalidArgument,
                "min_p is {}, but must be from 0 to 1",
                self.min_p
            );
        }
        share("typical_p", self.typical_p)?;
        if !(self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0) {
            fail!(
                InvalidArgument,
                "repeat_penalty is {}, but must be more than 0",
                self.repeat_penalty
            );
        }
        number("presence_penalty", self.presence_penalty)?;
        number("frequency_penalty", self.frequency_penalty)?;
        from_0("dry_multiplier", self.dry.multiplier)?;
        if !(self.dry.base.is_finite() && self.dry.base >= 1.0) {
            fail!(
                InvalidArgument,
                "dry_base is {}, but must be 1 or more",
                self.dry.base
            );
        }
        if self.dry.allowed_length == 0 {
            fail!(
                InvalidArgument,
                "dry_allowed_length is 0, but must be 1 or more"
            );
        }
        if self.logprobs as usize > MAX_LOGPROBS {
            fail!(
                InvalidArgument,
                "logprobs is {}, but at most {MAX_LOGPROBS} are reported",
                self.logprobs
            );
        }
        Ok(())
    }

    /// Whether tokens in the window get a penalty.
    pub fn penalizes(&self) -> bool {
        self.penalty_window > 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// Whether repetitions get a penalty.
    pub fn dries(&self) -> bool {
        self.dry.multiplier > 0.0 && self.dry.window > 0
    }

    /// Whether the choice depends on the tokens of the context.
    pub fn needs_history(&self) -> bool {
        self.penalizes() || self.dries()
    }
}

/// What a choice is made from, besides the settings.
#[derive(Clone, Copy, Default)]
pub struct Input<'a> {
    /// One per token id.
    pub logits: &'a [f32],
    /// All tokens of the context. Looked at only if [`Sampling::needs_history`].
    pub history: &'a [u32],
    /// What is said about single tokens.
    pub rules: Option<&'a TokenRules>,
    /// Bit `id % 32` of word `id / 32` says that token `id` may be chosen; all may if there is none.
    pub mask: Option<&'a [u32]>,
    /// Index of the draw.
    pub position: u64,
}

/// Memory that `choose` works in, so that it allocates nothing.
pub struct Scratch {
    candidates: Vec<Candidate>,
    adjusted: Vec<f32>,
    /// By token: how often it occurs in the window, or how long a repetition it would go on with.
    /// Zeros between calls.
    counts: Vec<u32>,
}

impl Scratch {
    /// Scratch for logits of up to `n_vocab` tokens. `OutOfMemory` if there is none.
    pub fn new(n_vocab: usize) -> Result<Scratch> {
        let mut candidates = try_vec(n_vocab, Candidate::default(), "sampling scratch")?;
        candidates.clear();
        Ok(Scratch {
            candidates,
            adjusted: try_vec(n_vocab, 0.0, "sampling scratch")?,
            counts: try_vec(n_vocab, 0, "sampling scratch")?,
        })
    }

    /// Bytes of [`Scratch::new`].
    pub fn bytes_for(n_vocab: usize) -> usize {
        n_vocab * (size_of::<Candidate>() + size_of::<f32>() + size_of::<u32>())
    }
}

/// The token that follows.
///
/// Errors: `Numeric` if a logit is NaN or plus infinity, or if all that may be chosen are minus
/// infinity; `InvalidArgument` if there are no logits or more than the scratch was made for.
/// Settings must have passed [`Sampling::check`].
pub fn choose(input: &Input, scratch: &mut Scratch, settings: &Sampling) -> Result<u32> {
    let best = largest(input.logits)?;
    let n = input.logits.len();
    if n > scratch.adjusted.len() {
        fail!(
            InvalidArgument,
            "{n} logits, but sampling was prepared for {}",
            scratch.adjusted.len()
        );
    }
    let (best, values) = if adjust::is_needed(input, settings) {
        let values = &mut scratch.adjusted[..n];
        adjust::adjust(input, settings, values, &mut scratch.counts);
        (largest(values)?, &*values)
    } else {
        (best, input.logits)
    };
    if best.value == f32::NEG_INFINITY {
        let all = input.mask.is_none() && input.rules.is_none();
        let which = if all { "" } else { " that may be chosen" };
        fail!(Numeric, "every logit{which} is minus infinity");
    }
    if settings.temperature == 0.0 || settings.top_k == 1 {
        return Ok(best.id);
    }
    let kept = filter::keep(values, best, settings, &mut scratch.candidates);
    Ok(filter::draw(kept, settings, input.position))
}

#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
