//! JSON files of a folder, and checked access to the values of `config.json`.

use crate::error::{Error, Result, Status, fail};
use serde_json::{Map, Value};

/// Largest number that any size may be.
const MAX_SIZE: u64 = i32::MAX as u64;

/// Where [`Config::parse`] leaves the `model_type` of a text part, if the whole has another.
pub(super) const TEXT_MODEL_TYPE: &str = "text_config.model_type";

/// An object whose values are read by key. `null` is as good as no value.
pub(super) struct Config {
    values: Map<String, Value>,
}

impl Config {
    /// The object in `text`. Of a model with several parts (`text_config`), that of the text part,
    /// with what it lacks taken from the whole.
    pub(super) fn parse(text: &[u8]) -> Result<Config> {
        let mut values = object(text)?;
        if let Some(Value::Object(part)) = values.remove("text_config") {
            for (key, value) in part {
                // The whole names the class that both are loaded as.
                let inner = matches!(key.as_str(), "architectures" | "model_type");
                if !(inner && values.contains_key(&key)) {
                    values.insert(key, value);
                } else if key == "model_type" {
                    values.insert(TEXT_MODEL_TYPE.to_owned(), value);
                }
            }
        }
        Ok(Config { values })
    }

    /// A value, if it is there.
    pub(super) fn find(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Whether a value is `null`.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(Value::is_null)
    }

    /// Sets a value that is not there.
    pub(super) fn set_default(&mut self, key: &str, value: Value) {
        if self.find(key).is_none() {
            self.values.insert(key.to_owned(), value);
        }
    }

    /// Copies values that are there by old names to new ones that are not.
    pub(super) fn rename(&mut self, names: &[(&str, &str)]) {
        for (old, new) in names {
            if let Some(value) = self.find(old).cloned() {
                self.set_default(new, value);
            }
        }
    }

    /// Sets a value, whatever was there.
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.values.insert(key.to_owned(), value);
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.find(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(wrong(key, value, expected)),
            },
        }
    }

    /// An integer from 1 to 2^31-1, if it is there.
    pub(super) fn find_size(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer from 1 to 2^31-1", |v| {
            v.as_u64().filter(|v| (1..=MAX_SIZE).contains(v))
        })
    }

    /// The first of several names of a size that is there. `MissingKey` if none is.
    pub(super) fn size(&self, keys: &[&str]) -> Result<u64> {
        for key in keys {
            if let Some(size) = self.find_size(key)? {
                return Ok(size);
            }
        }
        fail!(MissingKey, "config.json: key {} is missing", keys[0])
    }

    /// A number, if it is there.
    pub(super) fn find_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a number", |v| v.as_f64().map(|v| v as f32))
    }

    /// A number that must be there.
    pub(super) fn f32(&self, key: &str) -> Result<f32> {
        match self.find_f32(key)? {
            Some(number) => Ok(number),
            None => fail!(MissingKey, "config.json: key {key} is missing"),
        }
    }

    /// A boolean; false if it is not there.
    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        Ok(self
            .typed(key, "a boolean", Value::as_bool)?
            .unwrap_or(false))
    }

    /// A string, if it is there.
    pub(super) fn find_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An object, if it is there.
    pub(super) fn find_object(&self, key: &str) -> Result<Option<&Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }

    /// An array, if it is there.
    pub(super) fn find_array(&self, key: &str) -> Result<Option<&Vec<Value>>> {
        self.typed(key, "an array", Value::as_array)
    }

    /// An object as a config of its own.
    pub(super) fn nested(&self, key: &str) -> Result<Option<Config>> {
        let values = self.find_object(key)?;
        Ok(values.map(|values| Config {
            values: values.clone(),
        }))
    }
}

/// An `InvalidModel` error that names the key, its value and what it must be.
pub(super) fn wrong(key: &str, value: &Value, expected: &str) -> Error {
    let shown: String = value.to_string().chars().take(60).collect();
    Error::new(
        Status::InvalidModel,
        format!("config.json: key {key} is {shown}; it must be {expected}"),
    )
}

/// The object that a JSON text is. Bare `NaN`, `Infinity` and `-Infinity`, which Python writes and
/// reads, become texts, so that they are no error unless they stand where a number is needed.
pub(super) fn object(text: &[u8]) -> Result<Map<String, Value>> {
    let plain = serde_json::from_slice(text);
    let object = match plain {
        Ok(object) => Ok(object),
        Err(e) => match quoted(text) {
            Some(text) => serde_json::from_slice(&text),
            None => Err(e),
        },
    };
    object.map_err(|e| Error::new(Status::FileCorrupt, format!("is no valid JSON object: {e}")))
}

/// The text with quotes around the numbers that JSON does not have, or `None` if there are none.
fn quoted(text: &[u8]) -> Option<Vec<u8>> {
    const NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let mut out = Vec::new();
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while at < text.len() {
        match text[at] {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            _ if in_string => {}
            _ => {
                let rest = &text[at..];
                if let Some(number) = NUMBERS.iter().find(|n| rest.starts_with(n)) {
                    out.try_reserve(at - copied + number.len() + 2).ok()?;
                    out.extend_from_slice(&text[copied..at]);
                    out.push(b'"');
                    out.extend_from_slice(number);
                    out.push(b'"');
                    at += number.len();
                    copied = at;
                    continue;
                }
            }
        }
        at += 1;
    }
    if copied == 0 {
        return None;
    }
    out.try_reserve(text.len() - copied).ok()?;
    out.extend_from_slice(&text[copied..]);
    Some(out)
}

impl From<Map<String, Value>> for Config {
    fn from(values: Map<String, Value>) -> Config {
        Config { values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_are_read() {
        let text = br#"{"a": NaN, "b": [0.0, Infinity], "c": -Infinity, "d": "x\" NaN", "e": 1}"#;
        let config = Config::from(object(text).unwrap());
        assert_eq!(config.find("a"), Some(&"NaN".into()));
        assert_eq!(config.find("b").unwrap()[1], "Infinity");
        assert_eq!(config.find("d"), Some(&"x\" NaN".into()));
        assert_eq!(config.find_f32("e").unwrap(), Some(1.0));
        let e = config.find_f32("c").unwrap_err();
        assert_eq!(
            e.message,
            "config.json: key c is \"-Infinity\"; it must be a number"
        );
        for text in [
            "{\"a\": Nan}",
            "{\"a\": \"NaN}",
            "{NaN: 1}x",
            "NaN",
            "[Infinity",
        ] {
            assert!(object(text.as_bytes()).is_err(), "{text}");
        }
    }
}
