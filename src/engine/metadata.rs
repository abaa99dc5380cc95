//! What a model's file says about itself, as text.

use crate::error::{Result, fail};
use crate::format::{Array, Value};
use crate::memory::Room;
use std::collections::HashMap;
use std::fmt::Write;

/// Arrays that are kept have at most this many elements. Vocabularies and their merges have more.
const MOST_ELEMENTS: usize = 1024;
/// The longest text that is kept, of a string or of all strings of an array, in bytes. The largest chat templates have some
/// dozens of thousands.
const MOST_BYTES: usize = 1 << 20;
/// The longest number as text, about.
const NUMBER_BYTES: usize = 32;

/// The metadata of a model's file that are kept with the model, sorted by key.
#[derive(Debug, Default)]
pub struct Metadata(Vec<(String, Kept)>);

/// What is kept of a value.
#[derive(Debug)]
enum Kept {
    Value(Value),
    /// What it was, for the error.
    TooLarge(String),
}

impl Metadata {
    /// Takes values over; of large ones, only what they are is kept.
    pub fn new(values: HashMap<String, Value>) -> Metadata {
        let mut kept: Vec<(String, Kept)> = values
            .into_iter()
            .map(|(key, value)| (key, Kept::of(value)))
            .collect();
        kept.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Metadata(kept)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of this index, in the order of their bytes.
    pub fn key(&self, index: usize) -> Option<&str> {
        self.0.get(index).map(|(key, _)| key.as_str())
    }

    /// Calls `with` with the value of a key as text: a string as it is, anything else as JSON, with `NaN`, `inf` and `-inf` for
    /// the numbers that JSON does not have.
    ///
    /// Errors: `MissingKey`; `Unsupported` for a large value, saying what it is; `OutOfMemory`; those of `with`.
    pub fn with_text<R>(&self, key: &str, with: impl FnOnce(&str) -> Result<R>) -> Result<R> {
        let found = self.0.binary_search_by(|(k, _)| k.as_str().cmp(key));
        match found.map(|index| &self.0[index].1) {
            Err(_) => fail!(MissingKey, "there is no metadata key {key:?}"),
            Ok(Kept::TooLarge(what)) => {
                fail!(
                    Unsupported,
                    "metadata key {key} is {what}, which is not kept"
                )
            }
            Ok(Kept::Value(Value::String(text))) => with(text),
            Ok(Kept::Value(value)) => {
                let room = Room::for_input(match value {
                    Value::Array(array) => bytes(array) + NUMBER_BYTES * elements(array),
                    _ => NUMBER_BYTES,
                })?;
                let _in_room = room.enter();
                let mut text = String::new();
                write_value(value, &mut text);
                with(&text)
            }
        }
    }
}

impl Kept {
    fn of(value: Value) -> Kept {
        match &value {
            Value::String(text) if text.len() > MOST_BYTES => {
                Kept::TooLarge(format!("a string of {} bytes", text.len()))
            }
            Value::Array(array) if elements(array) > MOST_ELEMENTS || bytes(array) > MOST_BYTES => {
                Kept::TooLarge(format!(
                    "{} with {} elements",
                    array.type_name(),
                    array.len()
                ))
            }
            _ => Kept::Value(value),
        }
    }
}

/// The elements of an array, or of all arrays in it.
fn elements(array: &Array) -> usize {
    match array {
        Array::Array(arrays) => arrays.iter().map(elements).sum::<usize>() + arrays.len(),
        _ => array.len(),
    }
}

/// The bytes of the strings of an array.
fn bytes(array: &Array) -> usize {
    match array {
        Array::Array(arrays) => arrays.iter().map(bytes).sum(),
        Array::String(strings) => strings.text_bytes(),
        _ => 0,
    }
}

fn write_value(value: &Value, out: &mut String) {
    let result = match value {
        Value::U64(v) => write!(out, "{v}"),
        Value::I64(v) => write!(out, "{v}"),
        Value::F32(v) => write!(out, "{v:?}"),
        Value::F64(v) => write!(out, "{v:?}"),
        Value::Bool(v) => write!(out, "{v}"),
        Value::String(v) => write!(out, "{}", serde_json::Value::from(v.as_str())),
        Value::Array(array) => {
            write_array(array, out);
            Ok(())
        }
    };
    debug_assert!(result.is_ok(), "a String takes everything");
}

fn write_array(array: &Array, out: &mut String) {
    fn list(values: impl Iterator<Item = Value>, out: &mut String) {
        for (i, value) in values.enumerate() {
            out.push_str(if i == 0 { "" } else { "," });
            write_value(&value, out);
        }
    }
    out.push('[');
    match array {
        Array::U64(v) => list(v.iter().map(|v| Value::U64(*v)), out),
        Array::I64(v) => list(v.iter().map(|v| Value::I64(*v)), out),
        Array::F32(v) => list(v.iter().map(|v| Value::F32(*v)), out),
        Array::F64(v) => list(v.iter().map(|v| Value::F64(*v)), out),
        Array::Bool(v) => list(v.iter().map(|v| Value::Bool(*v)), out),
        Array::String(v) => list(v.iter().map(Value::from), out),
        Array::Array(v) => {
            for (i, inner) in v.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "," });
                write_array(inner, out);
            }
        }
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    fn metadata() -> Metadata {
        let floats = vec![0.5, 1e-5, f32::NAN, f32::NEG_INFINITY, 3.0];
        let words: Vec<String> = vec!["a\"b".into(), "é\n".into()];
        let nested = vec![Array::U64(vec![1, 2]), Array::Bool(vec![false])];
        let deep = vec![Array::U64(vec![1; MOST_ELEMENTS])];
        let long = vec!["x".repeat(MOST_BYTES), "y".into()];
        let values: [(&str, Value); 15] = [
            ("z", 7u32.into()),
            ("a.signed", (-7i64).into()),
            ("a.float", 10000.0f32.into()),
            ("a.small", 1e-5f64.into()),
            ("a.bool", true.into()),
            ("a.string", "as \"it\" is\n".into()),
            ("a.floats", floats.into()),
            ("a.words", words.into()),
            ("a.none", Vec::<u64>::new().into()),
            ("a.nested", Array::Array(nested).into()),
            ("a.most", vec![1u64; MOST_ELEMENTS].into()),
            ("a.many", vec![1u64; MOST_ELEMENTS + 1].into()),
            ("a.long", "x".repeat(MOST_BYTES + 1).into()),
            ("a.long_words", long.into()),
            ("a.deep", Array::Array(deep).into()),
        ];
        Metadata::new(values.map(|(key, value)| (key.to_owned(), value)).into())
    }

    fn text(m: &Metadata, key: &str) -> Result<String> {
        m.with_text(key, |text| Ok(text.to_owned()))
    }

    #[test]
    fn values_are_text() {
        let m = metadata();
        for (key, wanted) in [
            ("z", "7"),
            ("a.signed", "-7"),
            ("a.float", "10000.0"),
            ("a.small", "1e-5"),
            ("a.bool", "true"),
            ("a.string", "as \"it\" is\n"),
            ("a.floats", "[0.5,1e-5,NaN,-inf,3.0]"),
            ("a.words", r#"["a\"b","é\n"]"#),
            ("a.none", "[]"),
            ("a.nested", "[[1,2],[false]]"),
        ] {
            assert_eq!(text(&m, key).unwrap(), wanted, "{key}");
        }
        assert_eq!(text(&m, "a.most").unwrap().len(), 2 * MOST_ELEMENTS + 1);
    }

    #[test]
    fn of_large_values_it_is_told_what_they_are() {
        let m = metadata();
        for (key, wanted) in [
            ("a.many", "an array of unsigned integers with 1025 elements"),
            ("a.long", "a string of 1048577 bytes"),
            ("a.long_words", "an array of strings with 2 elements"),
            ("a.deep", "an array of arrays with 1 elements"),
        ] {
            let e = text(&m, key).unwrap_err();
            assert_eq!(e.status, Status::Unsupported);
            assert!(e.message.contains(wanted), "{}", e.message);
        }
        for missing in ["", "a", "a.string ", "zz"] {
            assert_eq!(text(&m, missing).unwrap_err().status, Status::MissingKey);
        }
    }

    #[test]
    fn keys_are_sorted() {
        let m = metadata();
        let keys: Vec<&str> = (0..m.len()).map(|i| m.key(i).unwrap()).collect();
        assert_eq!(keys.len(), 15);
        assert!(keys.is_sorted() && keys[0] == "a.bool");
        assert_eq!(m.key(15), None);
        assert!(Metadata::default().is_empty());
    }
}
