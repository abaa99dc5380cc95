//! Stop strings in a text that comes in pieces.

use crate::error::{Result, fail};

/// Most stop strings, and the most bytes of each.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 4096;

/// Passes text on up to the first stop string. What may still become one is held back.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<Box<str>>,
    /// The end of the text so far that some stop string starts with.
    held: String,
    stopped: Option<usize>,
}

impl StopFilter {
    /// A filter for these strings.
    /// Errors: `InvalidArgument` if one is empty or longer than 4096 bytes, or for more than 256.
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
                fail!(
                    InvalidArgument,
                    "stop string {index} has {} bytes, 1 to {MAX_STOP_BYTES} are allowed",
                    stop.len()
                );
            }
        }
        Ok(StopFilter {
            stops: stops.iter().map(|stop| (*stop).into()).collect(),
            ..StopFilter::default()
        })
    }

    /// Which stop string has been met: of all occurrences the one that ends first, of several that
    /// end there the longest.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Takes the next text and appends to `out` what is known to be no part of a stop string.
    /// Behind one nothing comes any more.
    pub fn push(&mut self, text: &str, out: &mut String) {
        if self.stopped.is_some() {
            return;
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(&**stop)?;
            Some((start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = found.min() {
            out.push_str(&self.held[..start]);
            self.held.clear();
            self.stopped = Some(index);
            return;
        }
        let kept = self.stops.iter().map(|stop| overlap(&self.held, stop));
        let free = self.held.len() - kept.max().unwrap_or(0);
        out.push_str(&self.held[..free]);
        self.held.drain(..free);
    }

    /// Ends the text: what is held back is text after all. The filter can be used again then.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.stopped = None;
    }
}

/// Bytes at the end of `text` that `stop` starts with, without being whole.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let fits = |n: &usize| text.as_bytes()[text.len() - n..] == stop.as_bytes()[..*n];
    (1..=longest).rev().find(fits).unwrap_or(0)
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
}
