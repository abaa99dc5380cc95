//! What drafts may still cost a session: a token bucket, which tokens fill a little and drafts that save time fill more, and from which
//! drafts are paid. So a session with drafts is never slower than without by more than [`SHARE`] and [`FIRST`] say.
//!
//! The unit is the time of a step without drafts.

/// What each token adds.
const SHARE: f32 = 0.01;
/// What there is at first.
const FIRST: f32 = 3.0;
/// What something of which nobody knows what it takes costs at most.
const TRY: f32 = 0.5 * FIRST;
/// A share of the last value that a new one has in the average of the lengths of answers.
const NEW: f32 = 0.25;

/// The allowance of a session, and how long its answers are, which says what drafts may save of the present one.
#[derive(Clone, Debug)]
pub struct Allowance {
    steps: f32,
    /// Tokens of the present answer so far, and of an answer on average.
    answer: usize,
    usual: f32,
}

impl Allowance {
    pub fn new() -> Allowance {
        Allowance {
            steps: FIRST,
            answer: 0,
            usual: 0.0,
        }
    }

    /// That of a fork: what drafts have saved the session is not the fork's to spend.
    pub fn fork(&self) -> Allowance {
        Allowance {
            steps: self.steps.min(FIRST),
            answer: 0,
            ..*self
        }
    }

    /// Steps that there are; below 0 if there are none.
    pub fn steps(&self) -> f32 {
        self.steps
    }

    /// Whether there is enough for what takes so many steps and may bring nothing.
    pub fn covers(&self, steps: f32) -> bool {
        steps <= self.steps
    }

    /// Whether there is as much as at first, so that something may be tried of which nobody knows what it costs.
    pub fn covers_a_try(&self) -> bool {
        self.covers(FIRST)
    }

    pub fn spend(&mut self, steps: f32) {
        self.steps -= steps;
    }

    /// Something was tried that took so many steps, perhaps because it made ready what is there from then on.
    pub fn spend_on_a_try(&mut self, steps: f32) {
        self.spend(steps.min(TRY));
    }

    /// A token was decoded, for which drafts saved so many steps.
    pub fn token(&mut self, saved: f32) {
        self.answer += 1;
        self.steps += SHARE + saved;
    }

    /// Tokens that were decoded so are not wanted.
    pub fn take_back(&mut self, tokens: usize, saved: f32) {
        self.answer = self.answer.saturating_sub(tokens);
        self.steps -= (SHARE + saved) * tokens as f32;
    }

    /// A prompt was read, behind which an answer begins.
    pub fn prompted(&mut self) {
        // A prompt may come in pieces.
        if self.answer > 0 {
            let new = self.answer as f32;
            self.usual = match self.usual {
                0.0 => new,
                usual => usual + NEW * (new - usual),
            };
            self.answer = 0;
        }
    }

    /// Tokens that are still to come in the present answer: what is left of a usual one, or as many again as there are.
    pub fn to_come(&self) -> f32 {
        let so_far = self.answer as f32;
        so_far.max(self.usual - so_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_as_long_as_they_were() {
        let mut allowance = Allowance::new();
        let mut answer = |tokens: usize| {
            allowance.prompted();
            (0..tokens).for_each(|_| allowance.token(0.0));
            allowance.to_come()
        };
        assert_eq!(answer(10), 10.0);
        // A second prompt without an answer changes nothing.
        assert_eq!(answer(0), 10.0);
        assert_eq!(answer(3), 7.0);
        assert_eq!(answer(0), 10.0 + NEW * (3.0 - 10.0));
        for _ in 0..40 {
            answer(2);
        }
        assert!((answer(1) - 1.0).abs() < 0.1);
    }

    #[test]
    fn what_is_spent_comes_back_by_tokens() {
        let mut allowance = Allowance::new();
        assert!(allowance.covers_a_try());
        allowance.spend(2.5);
        assert!(allowance.covers(0.4) && !allowance.covers(0.6));
        (0..50).for_each(|_| allowance.token(0.0));
        assert!(allowance.covers(0.9) && !allowance.covers(1.1));
        // A step with two drafts that were right, of which one was not wanted.
        (0..3).for_each(|_| allowance.token(1.0));
        allowance.take_back(1, 1.0);
        assert!(allowance.covers(2.9) && !allowance.covers(3.1));
        (0..100).for_each(|_| allowance.token(1.0));
        assert!(allowance.covers(50.0) && !allowance.fork().covers(FIRST + 0.1));
    }
}
