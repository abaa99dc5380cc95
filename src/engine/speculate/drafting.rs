//! What making drafts takes.

use std::time::Duration;

/// A share of all asks that the last one has in the averages, and that what came before keeps once an ask was much faster.
const NEW: f32 = 0.05;
const KEPT: f32 = 0.25;
/// A variance of the numbers of drafts, in squares of their average, that counts as much as the guess about the slope.
const GUESS: f32 = 0.001;

/// What making drafts takes: some time for each ask, and some for each draft. It is the line through the asks so far, of which later
/// ones count more. Where all were for the same number of drafts, half of the time is taken to be that of asks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drafting {
    /// Sums over the asks: of their weights, and with these of drafts, seconds, and products of the two.
    weight: f32,
    count: f32,
    seconds: f32,
    count_count: f32,
    count_seconds: f32,
}

impl Drafting {
    /// Whether there was an ask.
    pub fn is_known(&self) -> bool {
        self.weight > 0.0
    }

    /// Seconds of an ask for so many drafts; 0 if unknown.
    pub fn seconds(&self, count: usize) -> f32 {
        if count == 0 || !self.is_known() {
            return 0.0;
        }
        let [n, y] = [self.count, self.seconds].map(|sum| sum / self.weight);
        let variance = (self.count_count / self.weight - n * n).max(0.0);
        let covariance = self.count_seconds / self.weight - n * y;
        let guess = GUESS * n * n;
        let each = (covariance + guess * 0.5 * y / n) / (variance + guess);
        // Neither part is below 0.
        let each = each.clamp(0.0, y / n);
        y + each * (count as f32 - n)
    }

    /// An ask brought so many drafts in so long.
    pub fn took(&mut self, count: usize, time: Duration) {
        if count == 0 {
            return;
        }
        let (mut seconds, n) = (time.as_secs_f32(), count as f32);
        let mut kept = 1.0 - NEW;
        if self.is_known() {
            // The machine may have been busy, now or then.
            let usual = self.seconds(count);
            seconds = seconds.min(2.0 * usual);
            if seconds < 0.7 * usual {
                kept = KEPT;
            }
        }
        let sums = [
            (&mut self.weight, 1.0),
            (&mut self.count, n),
            (&mut self.seconds, seconds),
            (&mut self.count_count, n * n),
            (&mut self.count_seconds, n * seconds),
        ];
        for (sum, new) in sums {
            *sum = kept * *sum + new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(drafting: &mut Drafting, count: usize, seconds: f32) {
        drafting.took(count, Duration::from_secs_f32(seconds));
    }

    fn assert_near(a: f32, b: f32) {
        assert!((a - b).abs() < 0.05 * b, "{a}, not {b}");
    }

    #[test]
    fn half_is_of_the_ask_until_numbers_differ() {
        let mut drafting = Drafting::default();
        assert!(!drafting.is_known());
        assert_eq!(drafting.seconds(4), 0.0);
        took(&mut drafting, 0, 1.0);
        assert!(!drafting.is_known());
        took(&mut drafting, 2, 2.0);
        assert_eq!(drafting.seconds(0), 0.0);
        assert_near(drafting.seconds(2), 2.0);
        assert_near(drafting.seconds(4), 3.0);
        // 0.2 for an ask and 0.9 for each.
        took(&mut drafting, 4, 3.8);
        assert_near(drafting.seconds(8), 7.4);
        for count in [1, 6, 8, 3] {
            took(&mut drafting, count, 0.2 + 0.9 * count as f32);
        }
        for count in [1, 4, 16] {
            assert_near(drafting.seconds(count), 0.2 + 0.9 * count as f32);
        }
    }

    #[test]
    fn neither_part_is_below_zero() {
        let mut drafting = Drafting::default();
        (0..50).for_each(|i| took(&mut drafting, 4 + i % 3, 1.0));
        assert_near(drafting.seconds(1), 1.0);
        assert_near(drafting.seconds(16), 1.0);
        (0..200).for_each(|i| took(&mut drafting, 4 + i % 3, (4 + i % 3) as f32 - 3.5));
        assert!(drafting.seconds(1) > 0.0);
    }

    #[test]
    fn a_machine_that_is_busy_now_and_then_changes_little() {
        let mut drafting = Drafting::default();
        let seconds = |count: usize| 0.5 + 0.1 * count as f32;
        for i in 0..200 {
            let count = 1 + i % 8;
            let load = if i % 40 == 7 { 20.0 } else { 1.0 };
            took(&mut drafting, count, load * seconds(count));
        }
        assert!(drafting.seconds(8) < 1.1 * seconds(8));
        // It was busy all the time so far.
        let mut drafting = Drafting::default();
        (0..100).for_each(|i| took(&mut drafting, 1 + i % 8, 10.0 * seconds(1 + i % 8)));
        (0..8).for_each(|i| took(&mut drafting, 1 + i % 8, seconds(1 + i % 8)));
        assert!(drafting.seconds(8) < 1.3 * seconds(8));
    }
}
