//! `str` and `repr` of Python.

use super::Run;
use super::text::{Builder, Char};
use super::value::{Object, SeqKind, Value};
use crate::error::{Result, fail};
use regex_syntax::hir::{Class, HirKind};

/// A float as Python's `repr` writes it: the shortest digits that give it back.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

impl Run<'_> {
    /// Writes what `str(value)` is.
    pub fn write_str(&self, value: &Value, out: &mut Builder) -> Result<()> {
        match value {
            Value::Str(text) => out.extend(text),
            Value::Undefined(_) => Ok(()),
            _ => self.write_repr(value, out),
        }
    }

    /// `str(value)`.
    pub fn to_str(&self, value: &Value) -> Result<Value> {
        if let Value::Str(_) = value {
            return Ok(value.clone());
        }
        let mut out = Builder::new(&self.budget)?;
        self.write_str(value, &mut out)?;
        Ok(Value::Str(out.finish()))
    }

    /// Writes what `repr(value)` is.
    pub fn write_repr(&self, value: &Value, out: &mut Builder) -> Result<()> {
        self.budget.work(1)?;
        match value {
            Value::Undefined(_) => out.plain("Undefined"),
            Value::None => out.plain("None"),
            Value::Bool(true) => out.plain("True"),
            Value::Bool(false) => out.plain("False"),
            Value::Int(number) => out.plain(&number.to_string()),
            Value::Float(number) => out.plain(&float_repr(*number)),
            Value::Str(text) if text.is_markup() => {
                out.plain("Markup(")?;
                self.quote(text, out)?;
                out.plain(")")
            }
            Value::Str(text) => self.quote(text, out),
            Value::Seq(seq) => {
                let (open, close) = match seq.kind {
                    SeqKind::List => ("[", "]"),
                    SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
                    SeqKind::Tuple => ("(", ")"),
                    SeqKind::Keys => ("dict_keys([", "])"),
                    SeqKind::Values => ("dict_values([", "])"),
                    SeqKind::Items => ("dict_items([", "])"),
                    SeqKind::Generator => return out.plain("<generator object>"),
                    SeqKind::Range => return self.write_range(&seq.items, out),
                };
                out.plain(open)?;
                for (index, item) in seq.items.iter().enumerate() {
                    if index > 0 {
                        out.plain(", ")?;
                    }
                    self.write_repr(item, out)?;
                }
                out.plain(close)
            }
            Value::Map(map) => {
                out.plain("{")?;
                for (index, (key, value)) in map.entries.iter().enumerate() {
                    if index > 0 {
                        out.plain(", ")?;
                    }
                    self.write_repr(key, out)?;
                    out.plain(": ")?;
                    self.write_repr(value, out)?;
                }
                out.plain("}")
            }
            Value::Object(object) => match object.inner() {
                Object::Integer(digits) => out.plain(digits),
                Object::Macro(callee) => out.plain(&format!("<Macro '{}'>", callee.name)),
                Object::Loop(state) => out.plain(&format!(
                    "<LoopContext {}/{}>",
                    state.index.get() + 1,
                    state.items.items.len()
                )),
                _ => out.plain(&format!("<{}>", value.type_name())),
            },
        }
    }

    fn write_range(&self, items: &[Value], out: &mut Builder) -> Result<()> {
        let number = |item: Option<&Value>| item.and_then(Value::as_int).unwrap_or(0);
        let first = number(items.first());
        let step = match items {
            [a, b, ..] => number(Some(b)) - number(Some(a)),
            _ => 1,
        };
        let stop = first + step * items.len() as i128;
        match step {
            1 => out.plain(&format!("range({first}, {stop})")),
            _ => out.plain(&format!("range({first}, {stop}, {step})")),
        }
    }

    fn quote(&self, text: &[Char], out: &mut Builder) -> Result<()> {
        let has = |quote: char| text.iter().any(|c| c.is(quote));
        self.budget.scan(text.len())?;
        let quote = if has('\'') && !has('"') { '"' } else { '\'' };
        out.plain(quote.encode_utf8(&mut [0; 4]))?;
        for c in text {
            match c.get() {
                '\n' => out.plain("\\n")?,
                '\r' => out.plain("\\r")?,
                '\t' => out.plain("\\t")?,
                '\\' => out.plain("\\\\")?,
                plain if plain == quote => {
                    out.plain("\\")?;
                    out.push(*c)?;
                }
                ' '..='~' => out.push(*c)?,
                other if self.is_printable(other) => out.push(*c)?,
                other => {
                    let code = u32::from(other);
                    out.plain(&match code {
                        ..0x100 => format!("\\x{code:02x}"),
                        0x100..0x1_0000 => format!("\\u{code:04x}"),
                        _ => format!("\\U{code:08x}"),
                    })?;
                }
            }
        }
        out.plain(quote.encode_utf8(&mut [0; 4]))
    }

    /// Python's `str.isprintable` for one character that is not ASCII.
    pub fn is_printable(&self, c: char) -> bool {
        let mut ranges = self.unprintable.borrow_mut();
        let ranges = ranges.get_or_insert_with(|| {
            let hir = regex_syntax::parse(r"[\p{C}\p{Z}]");
            match hir.map(|hir| hir.into_kind()) {
                Ok(HirKind::Class(Class::Unicode(class))) => {
                    class.iter().map(|r| (r.start(), r.end())).collect()
                }
                _ => Vec::new(),
            }
        });
        let at = ranges.partition_point(|(_, end)| *end < c);
        ranges.get(at).is_none_or(|(start, _)| *start > c)
    }

    /// A short piece of `str(value)` for messages and names.
    pub fn shown(&self, value: &Value) -> Result<String> {
        let mut out = Builder::new(&self.budget)?;
        self.write_str(value, &mut out)?;
        let text: String = out.chars().iter().take(600).map(|c| c.get()).collect();
        if text.is_empty() && value.is_undefined() {
            fail!(TemplateFailed, "the template raised an undefined message");
        }
        Ok(text)
    }
}
