//! How many drafts to verify: what a step with so many rows takes on this very device, and how many of them are right, are
//! measured on the way.

use super::drafting::Drafting;
use crate::backend::MAX_BATCH;
use std::time::Duration;

/// Kinds of drafts that are counted apart.
pub const CLASSES: usize = 4;

/// A share of the last value that a new one has in an average.
const NEW: f32 = 0.05;
/// What each draft adds to a step, in steps, before that was measured.
const GUESSED_COST: f32 = 0.15;
/// Steps without drafts before one of a class that was not worth it is tried again, at first and at most.
pub(super) const FIRST_PAUSE: u32 = 40;
pub(super) const LONGEST_PAUSE: u32 = 1024;
/// Drafts of such a trial.
pub(super) const TRIAL: usize = 2;
/// Times that a number of drafts is tried to see what it costs, and what it must promise for that, as a factor of the best rate.
const LOOKS: u8 = 2;
pub(super) const PROMISE: f32 = 1.02;

/// What steps take, by a size of theirs: drafts of a session's, or rows of a batch.
#[derive(Clone)]
pub struct StepTimes {
    /// Seconds; 0 if unknown.
    seconds: [f32; MAX_BATCH + 1],
    /// How often there was one, up to [`LOOKS`].
    looks: [u8; MAX_BATCH + 1],
}

impl Default for StepTimes {
    fn default() -> StepTimes {
        StepTimes {
            seconds: [0.0; MAX_BATCH + 1],
            looks: [0; MAX_BATCH + 1],
        }
    }
}

impl StepTimes {
    /// Seconds of a step of this size, as far as some were measured; 0 if none.
    pub fn known(&self, size: usize) -> f32 {
        self.seconds[size]
    }

    /// Whether a step of this size was hardly tried.
    pub fn is_new(&self, size: usize) -> bool {
        self.looks[size] < LOOKS
    }

    /// Whether there was none of this size.
    fn is_first(&self, size: usize) -> bool {
        self.looks[size] == 0
    }

    /// Seconds of a step of this size, where those of a smaller one, `least`, are known: measured, or on the line through what
    /// was measured next to it.
    pub fn cost(&self, least: usize, size: usize) -> f32 {
        let s = &self.seconds;
        if s[size] > 0.0 {
            return s[size];
        }
        let known = |n: &usize| s[*n] > 0.0;
        let below = (least..size).rev().find(known).unwrap_or(least);
        let above = (size + 1..=MAX_BATCH).find(known);
        let slope = match above {
            Some(above) => (s[above] - s[below]) / (above - below) as f32,
            None if below == least => GUESSED_COST * s[least],
            None => (s[below] - s[least]) / (below - least) as f32,
        };
        s[below] + slope.max(0.0) * (size - below) as f32
    }

    /// A step of this size took so long.
    pub fn took(&mut self, size: usize, time: Duration) {
        average(&mut self.seconds[size], time.as_secs_f32());
        self.looked(size);
    }

    /// There was a step of this size.
    fn looked(&mut self, size: usize) {
        self.looks[size] = LOOKS.min(self.looks[size] + 1);
    }
}

/// Chooses how many drafts to verify.
#[derive(Clone)]
pub struct Depth {
    /// By drafts.
    times: StepTimes,
    drafting: Drafting,
    classes: [Class; CLASSES],
    /// How many the last step had.
    present: usize,
}

#[derive(Clone, Copy)]
struct Class {
    /// Share of drafts that are right, of those behind right ones.
    right: f32,
    /// Drafts that it was measured with.
    tried: u32,
    /// Steps until the next trial, while drafts are not worth it.
    rest: u32,
    /// Steps between the last trial and the next one.
    pause: u32,
}

impl Depth {
    pub fn new() -> Depth {
        Depth {
            times: StepTimes::default(),
            drafting: Drafting::default(),
            classes: [Class {
                right: 0.6,
                tried: 0,
                rest: 0,
                pause: FIRST_PAUSE,
            }; CLASSES],
            present: 0,
        }
    }

    /// How many drafts the last step had.
    pub fn present(&self) -> usize {
        self.present
    }

    /// So many.
    pub fn fix(&mut self, count: usize) -> usize {
        self.present = count;
        count
    }

    /// How many of up to `most` drafts of a class to verify.
    pub fn choose(&mut self, class: usize, most: usize) -> usize {
        self.present = self.best(class, most);
        self.present
    }

    fn best(&mut self, class: usize, most: usize) -> usize {
        // What drafts are compared with comes first.
        if self.times.known(0) == 0.0 {
            return 0;
        }
        let index = class.min(CLASSES - 1);
        let right = self.classes[index].right;
        let base = self.times.known(0);
        let (mut best, mut rate) = (0, 1.0 / base);
        // The best of those that were hardly tried, if more drafts cost no more than fewer.
        let (mut hopeful, mut hope) = (0, 0.0);
        let (mut tokens, mut chance) = (1.0, 1.0);
        let mut least = base;
        for count in 1..=most {
            chance *= right;
            tokens += chance;
            least = self.times.known(count).max(least);
            let drafting = self.drafting.seconds(count);
            // What was measured when the machine had less to do is no reason for drafts.
            let cost = self.times.cost(0, count).max(base);
            let known = tokens / (cost + drafting);
            if known > rate.max(PROMISE / base) {
                (best, rate) = (count, known);
            }
            let hoped = tokens / (least + drafting);
            if self.times.is_new(count) && hoped > hope {
                (hopeful, hope) = (count, hoped);
            }
        }
        if best > 0 && hope > PROMISE * rate {
            best = hopeful;
        }
        let class = &mut self.classes[index];
        if best > 0 {
            class.pause = FIRST_PAUSE;
            class.rest = 0;
            return best;
        }
        if class.rest > 0 {
            class.rest -= 1;
            return 0;
        }
        class.rest = class.pause;
        class.pause = (2 * class.pause).min(LONGEST_PAUSE);
        // Those that are right may be worth it only where there are many.
        match expected(right, most) > 2.0 * expected(right, TRIAL) {
            true => most,
            false => TRIAL.min(most),
        }
    }

    /// Seconds of a step without drafts; 0 if unknown.
    pub fn plain(&self) -> f32 {
        self.times.known(0)
    }

    /// What a step with so many drafts takes, and making them, in steps without drafts, as far as that is known.
    pub fn steps(&self, count: usize) -> f32 {
        let base = self.times.known(0);
        let cost = self.times.cost(0, count).max(base);
        (cost + self.drafting.seconds(count)) / base
    }

    /// How many of up to `most` drafts take at most so many steps more than a step without drafts.
    pub fn within(&self, most: usize, steps: f32) -> usize {
        let fits = |count: &usize| self.steps(*count) - 1.0 <= steps;
        match self.times.known(0) {
            0.0 => most,
            _ => (1..=most).rev().find(fits).unwrap_or(0),
        }
    }

    /// Seconds that the best number of up to `most` drafts of a class saves a token, if numbers that were hardly tried cost no more than
    /// fewer.
    pub fn gain(&self, class: usize, most: usize) -> f32 {
        let right = self.classes[class.min(CLASSES - 1)].right;
        let (mut tokens, mut chance) = (1.0, 1.0);
        let base = self.times.known(0);
        let (mut least, mut hoped) = (base, base);
        for count in 1..=most {
            chance *= right;
            tokens += chance;
            hoped = self.times.known(count).max(hoped);
            let cost = match self.times.is_new(count) {
                true => hoped,
                false => self.times.cost(0, count).max(base),
            };
            let seconds = cost + self.drafting.seconds(count);
            least = least.min(seconds / tokens);
        }
        base - least
    }

    /// A step with so many drafts took so long.
    pub fn step_took(&mut self, count: usize, time: Duration) {
        match count > 0 && self.times.is_first(count) {
            // It makes ready what is there from then on.
            true => self.times.looked(count),
            false => self.times.took(count, time),
        }
    }

    /// Share of drafts of a class that are right, of those behind right ones.
    pub fn right(&self, class: usize) -> f32 {
        self.classes[class.min(CLASSES - 1)].right
    }

    /// What making drafts takes.
    pub fn drafting(&self) -> Drafting {
        self.drafting
    }

    /// Making so many drafts took so long.
    pub fn drafting_took(&mut self, count: usize, time: Duration) {
        self.drafting.took(count, time);
    }

    /// Of so many drafts of a class, the first `right` ones were right.
    pub fn came_to(&mut self, class: usize, count: usize, right: usize) {
        let class = &mut self.classes[class.min(CLASSES - 1)];
        for i in 0..count.min(right + 1) {
            class.tried = class.tried.saturating_add(1);
            // The first ones count more, so that a guess is forgotten.
            let new = NEW.max(1.0 / (class.tried as f32 + 3.0));
            class.right += new * (f32::from(u8::from(i < right)) - class.right);
        }
    }
}

/// Tokens of a step with so many drafts, each of which is right with a probability.
fn expected(right: f32, count: usize) -> f32 {
    (0..=count as i32).map(|n| right.powi(n)).sum()
}

/// An average of the last times that forgets what is longer than usual: the machine may have been busy, and the first step of
/// its kind makes ready what it needs.
fn average(average: &mut f32, seconds: f32) {
    *average = match *average {
        0.0 => seconds,
        a if seconds < 0.7 * a => seconds,
        a if seconds < a => a + 0.3 * (seconds - a),
        a => a + NEW * (seconds.min(2.0 * a) - a),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of `tokens` tokens, with drafts that are right with a probability and steps that take what `cost` says, over that
    /// of as many steps without drafts. Steps take twice that now and then if the machine is `busy`.
    fn slowdown(right: f32, cost: impl Fn(usize) -> f32, busy: bool, tokens: usize) -> f32 {
        let mut depth = Depth::new();
        let mut random = 1u32;
        let mut draw = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as f32 / (1 << 24) as f32
        };
        let (mut time, mut without, mut made) = (0.0, 0.0, 0);
        while made < tokens {
            let load = if busy && made / 100 % 2 == 1 {
                2.0
            } else {
                1.0
            };
            let count = depth.choose(0, 16);
            // Times are noisy.
            let took = load * cost(count) * (1.0 + 0.1 * draw());
            time += took;
            depth.step_took(count, Duration::from_secs_f32(took / 1e3));
            let accepted = (0..count).take_while(|_| draw() < right).count();
            depth.came_to(0, count, accepted);
            made += accepted + 1;
            without += (accepted + 1) as f32 * load * 1.05 * cost(0);
        }
        time / without
    }

    #[test]
    fn drafts_that_are_never_right_cost_at_most_two_hundredths() {
        // Rows that cost a quarter of a step each, as much as steps, and next to nothing.
        for row in [0.25, 1.0, 0.02] {
            for right in [0.0, 0.05] {
                for busy in [false, true] {
                    let slow = slowdown(right, |n| 1.0 + row * n as f32, busy, 6000);
                    assert!(
                        slow < 1.02,
                        "{slow} with rows of {row}, right {right}, busy: {busy}"
                    );
                }
            }
        }
    }

    #[test]
    fn drafts_that_are_mostly_right_gain_what_the_best_depth_gains() {
        for (right, row) in [(0.8, 0.05), (0.9, 0.1), (0.5, 0.05), (0.3, 0.3)] {
            let slow = slowdown(right, |n| 1.0 + row * n as f32, false, 4000);
            let fixed = |n: usize| {
                let tokens = (1.0 - f32::powi(right, n as i32 + 1)) / (1.0 - right);
                (1.0 + row * n as f32) / tokens
            };
            let best = (0..=16).map(fixed).fold(f32::MAX, f32::min);
            assert!(
                slow < 1.08 * best,
                "{slow} where {best} can be had, right {right}, rows of {row}"
            );
        }
    }

    #[test]
    fn what_drafts_gain_is_what_they_save_a_token() {
        let mut depth = Depth::new();
        for count in [0, 1, 2, 3, 4, 1, 2, 3, 4] {
            depth.step_took(count, Duration::from_secs_f32(1.0 + 0.25 * count as f32));
            depth.came_to(1, 200, 0);
        }
        (0..1000).for_each(|_| depth.came_to(0, 4, 4));
        // Five tokens in a step of two seconds, where one takes a second.
        assert!(
            (depth.gain(0, 4) - 0.6).abs() < 0.02,
            "{}",
            depth.gain(0, 4)
        );
        assert_eq!(depth.gain(1, 4), 0.0);
        depth.drafting_took(4, Duration::from_secs_f32(2.0));
        assert!(
            (depth.gain(0, 4) - 0.2).abs() < 0.02,
            "{}",
            depth.gain(0, 4)
        );
    }

    #[test]
    fn a_source_that_has_become_good_is_found_out() {
        let mut depth = Depth::new();
        let mut steps = 0;
        for step in 0..6000 {
            let count = depth.choose(1, 8);
            depth.step_took(count, Duration::from_secs_f32(1.0 + 0.1 * count as f32));
            let right = if step < 3000 { 0 } else { count };
            depth.came_to(1, count, right);
            steps += usize::from(step >= 5500 && count == 8);
        }
        assert!(steps > 450, "{steps} of the last 500 steps");
    }
}
