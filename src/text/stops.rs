//! Stop strings in a text that comes in pieces.

use super::automaton::{Automaton, ROOT};
use crate::budget::Budget;
use crate::error::{Error, Result, Status, fail};
use std::fmt;
use std::sync::Arc;

/// Most stop strings, and the most bytes of each.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 4096;

/// Passes text on up to the first stop string. What may still become one is held back. Copies share
/// the strings.
#[derive(Clone, Default)]
pub struct StopFilter {
    /// None without stop strings.
    stops: Option<Arc<Automaton>>,
    /// Of `stops`, behind the text so far.
    state: u32,
    /// The end of the text so far that some stop string starts with.
    held: String,
    stopped: Option<usize>,
}

impl StopFilter {
    /// A filter for these strings.
    /// Errors: `InvalidArgument` if one is empty or longer than 4096 bytes, or for more than 256;
    /// `OutOfMemory`.
    pub fn new(stops: &[&str]) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            fail!(
                InvalidArgument,
                "{} stop strings, {MAX_STOPS} are allowed",
                stops.len()
            );
        }
        for (index, stop) in stops.iter().enumerate() {
            if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
                let message = format!(
                    "stop string {index} has {} bytes, 1 to {MAX_STOP_BYTES} are allowed",
                    stop.len()
                );
                return Err(Error::new(Status::InvalidArgument, message).at(index));
            }
        }
        if stops.is_empty() {
            return Ok(StopFilter::default());
        }
        // Of equal strings the last counts there, the first here.
        let numbered = stops.iter().enumerate().rev();
        let mut numbered: Vec<(&[u8], u32)> = numbered
            .map(|(index, stop)| (stop.as_bytes(), index as u32))
            .collect();
        let stops = Automaton::new(&mut numbered, &Budget::for_vocabulary(0))?;
        Ok(StopFilter {
            stops: Some(Arc::new(stops)),
            ..StopFilter::default()
        })
    }

    /// Which stop string has been met: of all occurrences the one that ends first, of several that
    /// end there the longest.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Takes the next text and appends to `out` what is known to be no part of a stop string.
    /// Behind one nothing comes any more. Takes each byte once.
    pub fn push(&mut self, text: &str, out: &mut String) {
        if self.stopped.is_some() {
            return;
        }
        let Some(stops) = &self.stops else {
            out.push_str(text);
            return;
        };
        let mut steps = 0;
        for (index, byte) in text.bytes().enumerate() {
            self.state = stops.step(self.state, byte, &mut steps);
            let found = stops.longest(self.state);
            if found != ROOT {
                let end = self.held.len() + index + 1;
                self.held.push_str(text);
                out.push_str(&self.held[..end - stops.length(found)]);
                self.held.clear();
                self.stopped = Some(stops.value(found) as usize);
                return;
            }
        }
        let kept = stops.length(self.state);
        let free = self.held.len() + text.len() - kept;
        // The strings begin with whole characters, and so does what is kept.
        match free.checked_sub(self.held.len()) {
            Some(of_text) => {
                out.push_str(&self.held);
                out.push_str(&text[..of_text]);
                self.held.clear();
                self.held.push_str(&text[of_text..]);
            }
            None => {
                out.push_str(&self.held[..free]);
                self.held.drain(..free);
                self.held.push_str(text);
            }
        }
    }

    /// Ends the text: what is held back is text after all. The filter can be used again then.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.state = ROOT;
        self.stopped = None;
    }
}

impl fmt::Debug for StopFilter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut shown = f.debug_struct("StopFilter");
        shown.field("held", &self.held);
        shown.field("stopped", &self.stopped).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the whole text gives: up to the occurrence that ends first.
    fn naive(text: &str, stops: &[&str]) -> (String, Option<usize>) {
        let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
        for end in ends {
            let longest = stops
                .iter()
                .enumerate()
                .filter(|(_, s)| text[..end].ends_with(**s));
            if let Some((index, stop)) = longest.max_by_key(|(i, s)| (s.len(), usize::MAX - i)) {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn every_cut_gives_what_the_whole_text_gives() {
        let mut state = 5u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut stopped = 0;
        for _ in 0..20_000 {
            let mut word = |most: usize| -> String {
                let letters = ['a', 'b', 'é', '🦙'];
                (0..1 + random(most)).map(|_| letters[random(4)]).collect()
            };
            let text = word(14);
            let stops: Vec<String> = (0..3).map(|_| word(5)).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let expected = naive(&text, &stops);
            let mut filter = StopFilter::new(&stops).unwrap();
            let mut out = String::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let n = 1 + random(rest.chars().count());
                let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
                filter.push(&rest[..end], &mut out);
                assert!(
                    expected.0.starts_with(&out),
                    "{text} {stops:?}: {out} leaks"
                );
                rest = &rest[end..];
            }
            assert_eq!(filter.stopped(), expected.1, "{text} {stops:?}");
            stopped += usize::from(filter.stopped().is_some());
            filter.finish(&mut out);
            assert_eq!(out, expected.0, "{text} {stops:?}");
        }
        assert!((1000..19_000).contains(&stopped), "{stopped}");
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        let long = "x".repeat(MAX_STOP_BYTES + 1);
        for stops in [vec!["a", ""], vec![long.as_str()], vec!["a"; MAX_STOPS + 1]] {
            let error = StopFilter::new(&stops).unwrap_err();
            assert_eq!(error.status, crate::Status::InvalidArgument);
        }
    }

    #[test]
    fn long_stop_strings_cost_no_more_than_short_ones() {
        let stops: Vec<String> = (0..MAX_STOPS)
            .map(|n| "a".repeat(MAX_STOP_BYTES - 1 - n) + "b")
            .collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let mut filter = StopFilter::new(&stops).unwrap();
        let automaton = filter.stops.clone().unwrap();
        let mut out = String::new();
        let mut steps = 0;
        let mut state = ROOT;
        for _ in 0..20_000 {
            filter.push("a", &mut out);
            state = automaton.step(state, b'a', &mut steps);
        }
        assert!(steps <= 40_000, "{steps}");
        assert_eq!(out.len(), 20_000 - (MAX_STOP_BYTES - 1));
        let copy = filter.clone();
        assert!(Arc::ptr_eq(copy.stops.as_ref().unwrap(), &automaton));
        filter.push("b", &mut out);
        assert_eq!(filter.stopped(), Some(0));
        assert_eq!(out.len(), 20_000 - (MAX_STOP_BYTES - 1));
    }

    #[test]
    fn of_equal_stop_strings_the_first_is_met() {
        let mut filter = StopFilter::new(&["b", "ab", "ab"]).unwrap();
        let mut out = String::new();
        filter.push("xab", &mut out);
        assert_eq!((filter.stopped(), out.as_str()), (Some(1), "x"));
    }
}
