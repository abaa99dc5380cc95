//! Strings that are known to be safe in HTML, as `safe` and `escape` make them: markupsafe's `Markup`.
//! What is put into them is escaped, and what is made of them is of the same kind.

use super::Run;
use super::arguments::Arguments;
use super::text::{Builder, Char, Text};
use super::value::{Map, Seq, SeqKind, Value};
use crate::error::Result;

/// Methods of a string that give strings.
const GIVE_STRINGS: [&str; 26] = [
    "capitalize",
    "casefold",
    "center",
    "expandtabs",
    "format",
    "format_map",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

impl Run<'_> {
    /// A text with the characters that mean something in HTML written otherwise.
    pub fn escaped(&self, text: &[Char]) -> Result<Text> {
        let mut out = Builder::new(&self.budget)?;
        for c in text {
            let escaped = match c.get() {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&#34;",
                '\'' => "&#39;",
                _ => {
                    out.push(*c)?;
                    continue;
                }
            };
            out.str(escaped, c.origin())?;
        }
        Ok(out.finish().as_markup())
    }

    /// `escape(value)`: markup stays what it is.
    pub fn escape(&self, value: &Value) -> Result<Value> {
        match self.to_str(value)? {
            Value::Str(text) if !text.is_markup() => Ok(Value::Str(self.escaped(&text)?)),
            other => Ok(other),
        }
    }

    /// A value as it goes into markup: numbers stay numbers.
    fn for_markup(&self, value: &Value) -> Result<Value> {
        match value {
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => Ok(value.clone()),
            _ => self.escape(value),
        }
    }

    /// The values that `%` puts into markup.
    pub fn values_for_markup(&self, values: &Value) -> Result<Value> {
        match values {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => {
                let items = seq.items.iter().map(|item| self.for_markup(item));
                Seq::value(&self.budget, SeqKind::Tuple, items.collect::<Result<_>>()?)
            }
            Value::Map(map) => {
                let entries = map.entries.iter();
                let entries =
                    entries.map(|(key, value)| Ok((key.clone(), self.for_markup(value)?)));
                Map::distinct(&self.budget, entries.collect::<Result<_>>()?)
            }
            other => self.for_markup(other),
        }
    }

    /// A method of markup.
    pub fn markup_method(
        &mut self,
        text: &Text,
        name: &str,
        mut arguments: Arguments,
    ) -> Result<Value> {
        match name {
            "join" => {
                for list in &mut arguments.positional {
                    let items = list.iterate(&self.budget)?;
                    let items = items.items.iter().map(|item| self.escape(item));
                    *list = self.list(items.collect::<Result<_>>()?)?;
                }
            }
            "replace" => {
                if let Some(new) = arguments.positional.get_mut(1) {
                    *new = self.escape(new)?;
                }
            }
            "format" | "format_map" => {
                for value in &mut arguments.positional {
                    *value = match name {
                        "format" => self.for_markup(value)?,
                        _ => self.values_for_markup(value)?,
                    };
                }
                for (_, value) in &mut arguments.named {
                    *value = self.for_markup(value)?;
                }
            }
            _ => {}
        }
        let result = self.str_method(text, name, arguments)?;
        match GIVE_STRINGS.contains(&name) {
            true => self.as_markup(result),
            false => Ok(result),
        }
    }

    /// A string as markup, or all strings of a list.
    pub fn as_markup(&self, value: Value) -> Result<Value> {
        match value {
            Value::Str(text) => Ok(Value::Str(text.as_markup())),
            Value::Seq(seq) => {
                let items = seq.items.iter().map(|item| self.as_markup(item.clone()));
                Seq::value(&self.budget, seq.kind, items.collect::<Result<_>>()?)
            }
            other => Ok(other),
        }
    }
}
