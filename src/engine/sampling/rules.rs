//! What the settings say about single tokens: bias, bans, sequence breakers.

use crate::error::{Error, Result, Status, fail, try_vec};

/// Rules for the tokens of one vocabulary.
#[derive(Debug, Default)]
pub struct TokenRules {
    /// By token: added to its logit; minus infinity if it is banned. Empty if there is nothing to add.
    bias: Vec<f32>,
    breakers: Breakers,
}

/// Sequences of tokens that end repetitions.
#[derive(Debug, Default)]
pub struct Breakers {
    single: Vec<u32>,
    heads: Vec<u32>,
    sequences: Vec<Box<[u32]>>,
}

impl TokenRules {
    /// Rules for a vocabulary of `n_vocab` tokens: what to add to the logits of tokens (a token that
    /// is there twice gets the sum), which cannot be chosen, and, unless empty, which alone can.
    ///
    /// Errors: `InvalidToken`; `InvalidArgument` for a bias that is NaN or plus infinity, for an
    /// empty breaker, and if no token is left; `OutOfMemory`. They name the list and the index.
    pub fn new(
        n_vocab: usize,
        bias: impl ExactSizeIterator<Item = (u32, f32)>,
        banned: &[u32],
        forced: &[u32],
        breakers: Breakers,
    ) -> Result<TokenRules> {
        let mut all = Vec::new();
        if bias.len() > 0 || !banned.is_empty() || !forced.is_empty() {
            all = try_vec(n_vocab, 0.0f32, "logit bias")?;
        }
        for (i, (token, value)) in bias.enumerate() {
            check("logit_bias", i, token, n_vocab)?;
            if value.is_nan() || value == f32::INFINITY {
                let message = format!("logit_bias of index {i} (token {token}) is {value}");
                return Err(Error::new(Status::InvalidArgument, message).at(i));
            }
            let sum = all[token as usize] + value;
            all[token as usize] = sum.min(f32::MAX);
        }
        for (i, &token) in banned.iter().enumerate() {
            check("banned", i, token, n_vocab)?;
            all[token as usize] = f32::NEG_INFINITY;
        }
        if !forced.is_empty() {
            let mut may = try_vec(n_vocab.div_ceil(32), 0u32, "allowed tokens")?;
            for (i, &token) in forced.iter().enumerate() {
                check("allowed", i, token, n_vocab)?;
                set(&mut may, token);
            }
            for (id, b) in all.iter_mut().enumerate() {
                if !has(&may, id as u32) {
                    *b = f32::NEG_INFINITY;
                }
            }
        }
        if !all.is_empty() && all.iter().all(|&b| b == f32::NEG_INFINITY) {
            fail!(
                InvalidArgument,
                "no token can be chosen: logit_bias, banned and allowed exclude all {n_vocab}"
            );
        }
        Ok(TokenRules {
            bias: all,
            breakers,
        })
    }

    /// By token, what is added to its logit; empty if nothing is.
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// The sequence breakers.
    pub fn breakers(&self) -> &Breakers {
        &self.breakers
    }
}

impl Breakers {
    /// The tokens that are breakers by themselves.
    pub fn single_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.single.len() as u32 * 32).filter(|id| has(&self.single, *id))
    }

    /// Breakers of a vocabulary of `n_vocab` tokens.
    ///
    /// Errors: `InvalidToken`; `InvalidArgument` for an empty sequence; `OutOfMemory`. They name the
    /// index.
    pub fn new<'a>(
        n_vocab: usize,
        sequences: impl IntoIterator<Item = &'a [u32]>,
    ) -> Result<Breakers> {
        let mut breakers = Breakers {
            single: try_vec(n_vocab.div_ceil(32), 0, "sequence breakers")?,
            heads: try_vec(n_vocab.div_ceil(32), 0, "sequence breakers")?,
            sequences: Vec::new(),
        };
        for (i, sequence) in sequences.into_iter().enumerate() {
            for &token in sequence {
                check("dry_breakers", i, token, n_vocab)?;
            }
            match *sequence {
                [] => fail!(InvalidArgument, "dry_breakers of index {i} is empty"),
                [token] => set(&mut breakers.single, token),
                [head, ..] => {
                    set(&mut breakers.heads, head);
                    breakers.sequences.push(sequence.into());
                }
            }
        }
        breakers.sequences.sort_unstable();
        breakers.sequences.dedup();
        Ok(breakers)
    }

    /// A bit per token that is a breaker by itself. Empty if there are no breakers.
    pub fn single(&self) -> &[u32] {
        &self.single
    }

    /// A bit per token that a longer breaker starts with. Empty if there are no breakers.
    pub fn heads(&self) -> &[u32] {
        &self.heads
    }

    /// The breakers of more than one token, sorted.
    pub fn sequences(&self) -> &[Box<[u32]>] {
        &self.sequences
    }

    /// Whether a token is a breaker by itself.
    pub fn is_single(&self, token: u32) -> bool {
        has(&self.single, token)
    }

    /// The length of the longest breaker that `tokens` start with.
    pub fn starting(&self, tokens: &[u32]) -> Option<usize> {
        let first = *tokens.first()?;
        let single = self.is_single(first).then_some(1);
        if !has(&self.heads, first) {
            return single;
        }
        let from = self.sequences.partition_point(|s| s[0] < first);
        let alike = self.sequences[from..].iter().take_while(|s| s[0] == first);
        let longer = alike.filter(|s| tokens.starts_with(s)).map(|s| s.len());
        longer.max().or(single)
    }
}

fn set(bits: &mut [u32], token: u32) {
    bits[token as usize / 32] |= 1 << (token % 32);
}

fn has(bits: &[u32], token: u32) -> bool {
    let word = bits.get(token as usize / 32);
    word.is_some_and(|w| w >> (token % 32) & 1 == 1)
}

fn check(list: &str, index: usize, token: u32, n_vocab: usize) -> Result<()> {
    if token as usize >= n_vocab {
        let message = format!("{list} of index {index}: token {token} is not below {n_vocab}");
        return Err(Error::new(Status::InvalidToken, message).at(index));
    }
    Ok(())
}
