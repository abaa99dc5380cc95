//! `json.dumps` of Python, which is what the filter `tojson` is.

use super::Run;
use super::arguments::{Arguments, truth};
use super::print::float_repr;
use super::text::{Builder, Char, Text, to_string};
use super::value::{SeqKind, Value};
use crate::error::{Error, Result, fail};
use std::cmp::Ordering;

/// How to write.
struct Style {
    ascii: bool,
    sort: bool,
    /// What one level is indented by; None writes one line.
    indent: Option<String>,
    item_separator: Text,
    key_separator: Text,
}

impl Run<'_> {
    pub fn to_json(&self, value: &Value, arguments: Arguments) -> Result<Value> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sort] = arguments.bind("tojson", names)?;
        let indent = match indent {
            None | Some(Value::None) => None,
            Some(Value::Str(text)) => Some(to_string(&text)),
            Some(other) => match other.as_int() {
                Some(n) => {
                    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
                    drop(self.budget.hold(n)?);
                    Some(" ".repeat(n))
                }
                None => fail!(TemplateFailed, "tojson: indent is no number"),
            },
        };
        let (item, key) = match separators {
            None | Some(Value::None) => {
                let item = if indent.is_some() { "," } else { ", " };
                let text = |text| Text::new(&self.budget, text);
                (text(item)?, text(": ")?)
            }
            Some(Value::Seq(seq)) => match &seq.items[..] {
                [Value::Str(item), Value::Str(key)] => (item.clone(), key.clone()),
                _ => fail!(TemplateFailed, "tojson: separators are not two strings"),
            },
            Some(_) => fail!(TemplateFailed, "tojson: separators are not two strings"),
        };
        let style = Style {
            ascii: truth(&ascii, false),
            sort: truth(&sort, false),
            indent,
            item_separator: item,
            key_separator: key,
        };
        let mut out = Builder::new(&self.budget)?;
        self.write_json(value, &style, 0, &mut out)?;
        Ok(Value::Str(out.finish()))
    }

    fn write_json(
        &self,
        value: &Value,
        style: &Style,
        level: usize,
        out: &mut Builder,
    ) -> Result<()> {
        self.budget.work(1)?;
        match value {
            Value::None => out.plain("null"),
            Value::Bool(value) => out.plain(if *value { "true" } else { "false" }),
            Value::Int(number) => out.plain(&number.to_string()),
            Value::Float(number) => out.plain(&float_json(*number)),
            Value::Str(text) => write_string(text, style.ascii, out),
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                out.plain("[")?;
                for (index, item) in seq.items.iter().enumerate() {
                    self.separate(index, style, level + 1, out)?;
                    self.write_json(item, style, level + 1, out)?;
                }
                if !seq.items.is_empty() {
                    new_line(style, level, out)?;
                }
                out.plain("]")
            }
            Value::Map(map) => {
                let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
                if style.sort {
                    self.sort_keys(&mut entries)?;
                }
                out.plain("{")?;
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    self.separate(index, style, level + 1, out)?;
                    match key {
                        Value::Str(text) => write_string(text, style.ascii, out)?,
                        Value::None => out.plain("\"null\"")?,
                        Value::Bool(true) => out.plain("\"true\"")?,
                        Value::Bool(false) => out.plain("\"false\"")?,
                        Value::Int(number) => out.plain(&format!("\"{number}\""))?,
                        Value::Float(number) => {
                            out.plain(&format!("\"{}\"", float_json(*number)))?;
                        }
                        _ => fail!(
                            TemplateFailed,
                            "keys must be str, int, float, bool or None, not {}",
                            key.type_name()
                        ),
                    }
                    out.extend(&style.key_separator)?;
                    self.write_json(value, style, level + 1, out)?;
                }
                if !map.entries.is_empty() {
                    new_line(style, level, out)?;
                }
                out.plain("}")
            }
            _ => match value.as_digits() {
                Some(digits) => out.plain(digits),
                None => fail!(
                    TemplateFailed,
                    "Object of type {} is not JSON serializable",
                    value.type_name()
                ),
            },
        }
    }

    fn separate(&self, index: usize, style: &Style, level: usize, out: &mut Builder) -> Result<()> {
        if index > 0 {
            out.extend(&style.item_separator)?;
        }
        new_line(style, level, out)
    }

    fn sort_keys(&self, entries: &mut [&(Value, Value)]) -> Result<()> {
        let mut failed: Option<Error> = None;
        entries.sort_by(|(a, _), (b, _)| match a.order(b, "<", &self.budget) {
            Ok(order) => order.unwrap_or(Ordering::Equal),
            Err(error) => {
                failed.get_or_insert(error);
                Ordering::Equal
            }
        });
        failed.map_or(Ok(()), Err)
    }
}

fn new_line(style: &Style, level: usize, out: &mut Builder) -> Result<()> {
    if let Some(indent) = &style.indent {
        out.plain("\n")?;
        for _ in 0..level {
            out.plain(indent)?;
        }
    }
    Ok(())
}

fn float_json(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => float_repr(value),
    }
}

fn write_string(text: &[Char], ascii: bool, out: &mut Builder) -> Result<()> {
    out.plain("\"")?;
    for c in text {
        // An escape is of the origin of what it stands for.
        let escaped = match c.get() {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            control if control < ' ' => format!("\\u{:04x}", u32::from(control)),
            other if ascii && other > '\u{7f}' => {
                let mut units = [0; 2];
                let units = other.encode_utf16(&mut units).iter();
                units.map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => {
                out.push(*c)?;
                continue;
            }
        };
        out.str(&escaped, c.origin())?;
    }
    out.plain("\"")
}
