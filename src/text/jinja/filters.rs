//! What may stand behind `|`.

use super::Run;
use super::arguments::{Arguments, int, truth};
use super::value::{Seq, SeqKind, Value};
use crate::error::{Result, fail};

/// The filters that there are.
const FILTERS: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

pub(super) fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name)
}

impl Run<'_> {
    /// `value|name(arguments)`.
    pub fn filter(&mut self, name: &str, value: Value, arguments: Arguments) -> Result<Value> {
        match name {
            "default" | "d" => {
                let [default, falsy] = arguments.bind(name, ["default_value", "boolean"])?;
                if value.is_undefined() || truth(&falsy, false) && !value.is_true() {
                    return match default {
                        Some(default) => Ok(default),
                        None => self.text(""),
                    };
                }
                Ok(value)
            }
            "tojson" => self.to_json(&value, arguments),
            "string" | "pprint" => {
                let [] = arguments.exactly(name)?;
                if name == "pprint" {
                    let mut out = super::text::Builder::new(&self.budget)?;
                    self.write_repr(&value, &mut out)?;
                    return Ok(Value::Str(out.finish()));
                }
                self.to_str(&value)
            }
            "length" | "count" => {
                let [] = arguments.exactly(name)?;
                Ok(Value::Int(value.length()? as i128))
            }
            "list" => {
                let [] = arguments.exactly(name)?;
                let items = value.iterate(&self.budget)?;
                if items.kind == SeqKind::List {
                    return Ok(Value::Seq(items));
                }
                let _room = self.budget.hold(items.items.len() * size_of::<Value>())?;
                self.list(items.items.clone())
            }
            "items" => {
                let [] = arguments.exactly(name)?;
                match &value {
                    Value::Map(map) => {
                        let Value::Seq(items) = self.view(map, SeqKind::Items)? else {
                            return Ok(Value::None);
                        };
                        Seq::value(&self.budget, SeqKind::Generator, items.items.clone())
                    }
                    Value::Undefined(_) => Seq::value(&self.budget, SeqKind::Generator, Vec::new()),
                    _ => fail!(TemplateFailed, "Can only get item pairs from a mapping."),
                }
            }
            "int" => {
                let [default, base] = arguments.bind(name, ["default", "base"])?;
                let base = u32::try_from(int(&base, "base", 10)?).unwrap_or(10);
                let converted = match &value {
                    Value::Str(text) => whole(&super::text::to_string(text), base),
                    Value::Float(number) if number.is_finite() => Some(*number as i128),
                    other => other.as_int(),
                };
                Ok(match converted {
                    Some(number) => Value::Int(number),
                    None => default.unwrap_or(Value::Int(0)),
                })
            }
            "float" => {
                let [default] = arguments.bind(name, ["default"])?;
                let converted = match &value {
                    Value::Str(text) => fraction(&super::text::to_string(text)),
                    other => other.as_float(),
                };
                Ok(match converted {
                    Some(number) => Value::Float(number),
                    None => default.unwrap_or(Value::Float(0.0)),
                })
            }
            "abs" => {
                let [] = arguments.exactly(name)?;
                match (value.as_int(), value.as_float()) {
                    (Some(number), _) => Ok(Value::Int(number.saturating_abs())),
                    (None, Some(number)) => Ok(Value::Float(number.abs())),
                    _ => fail!(
                        TemplateFailed,
                        "bad operand type for abs(): '{}'",
                        value.type_name()
                    ),
                }
            }
            "round" => self.round(&value, arguments),
            "attr" => {
                let [attribute] = arguments.exactly(name)?;
                let attribute = self.shown(&attribute)?;
                // Only attributes: an entry of a mapping is none.
                match value {
                    Value::Map(_) if super::attributes::method_of(&value, &attribute).is_none() => {
                        Ok(Value::Undefined(Some(
                            format!("'dict object' has no attribute '{attribute}'").into(),
                        )))
                    }
                    _ => self.attribute(&value, &attribute),
                }
            }
            "dictsort" => {
                let names = ["case_sensitive", "by", "reverse"];
                let [case, by, reverse] = arguments.bind(name, names)?;
                let Value::Map(map) = &value else {
                    fail!(TemplateFailed, "dictsort takes a mapping");
                };
                let by_value = match by {
                    None => false,
                    Some(by) => self.shown(&by)? == "value",
                };
                let Value::Seq(items) = self.view(map, SeqKind::Items)? else {
                    return Ok(Value::None);
                };
                let key = |pair: &Value| match pair {
                    Value::Seq(pair) => pair.items[usize::from(by_value)].clone(),
                    other => other.clone(),
                };
                let keys = items.items.iter().map(key).collect();
                let sorted = self.sorted(
                    &items.items,
                    keys,
                    truth(&case, false),
                    truth(&reverse, false),
                );
                self.list(sorted?)
            }
            "xmlattr" => self.xml_attributes(&value, arguments),
            "filesizeformat" => self.file_size(&value, arguments),
            "random" => {
                let [] = arguments.exactly(name)?;
                self.random(&value)
            }
            "escape" | "e" => {
                let [] = arguments.exactly(name)?;
                self.escape(&value)
            }
            "forceescape" => {
                let [] = arguments.exactly(name)?;
                match self.to_str(&value)? {
                    Value::Str(text) => Ok(Value::Str(self.escaped(&text)?)),
                    other => Ok(other),
                }
            }
            "safe" => {
                let [] = arguments.exactly(name)?;
                self.as_markup(self.to_str(&value)?)
            }
            _ if FILTERS.contains(&name) => match self.list_filter(name, &value, arguments)? {
                Ok(result) => Ok(result),
                Err(arguments) => self.text_filter(name, &value, arguments),
            },
            _ => fail!(TemplateFailed, "No filter named '{name}'."),
        }
    }

    fn round(&self, value: &Value, arguments: Arguments) -> Result<Value> {
        let [precision, method] = arguments.bind("round", ["precision", "method"])?;
        let precision = int(&precision, "precision", 0)?.clamp(-400, 400) as i32;
        let Some(number) = value.as_float() else {
            value.check_defined()?;
            fail!(
                TemplateFailed,
                "type {} doesn't define __round__ method",
                value.type_name()
            );
        };
        let method = match &method {
            Some(method) => self.shown(method)?,
            None => "common".to_owned(),
        };
        let scale = 10f64.powi(precision);
        let rounded = match method.as_str() {
            // Python rounds the exact decimal value, half to even; so does the formatting of floats.
            "common" if precision >= 0 => {
                let text = format!("{number:.*}", precision as usize);
                text.parse().unwrap_or(number)
            }
            "common" => (number * scale).round_ties_even() / scale,
            "ceil" => (number * scale).ceil() / scale,
            "floor" => (number * scale).floor() / scale,
            _ => fail!(TemplateFailed, "method must be common, ceil or floor"),
        };
        if method == "common" && value.as_int().is_some() {
            return Ok(Value::Int(rounded as i128));
        }
        Ok(Value::Float(rounded))
    }
}

/// `int(text, base)` of Python, and of a text with a fraction what is before the point.
fn whole(text: &str, base: u32) -> Option<i128> {
    let text = text.trim();
    let digits = text.replace('_', "");
    let digits = match base {
        16 => digits.replacen("0x", "", 1).replacen("0X", "", 1),
        8 => digits.replacen("0o", "", 1).replacen("0O", "", 1),
        2 => digits.replacen("0b", "", 1).replacen("0B", "", 1),
        _ => digits,
    };
    let parsed = match base {
        2..=36 => i128::from_str_radix(&digits, base).ok(),
        _ => None,
    };
    parsed.or_else(|| {
        let number = fraction(text)?;
        number.is_finite().then_some(number as i128)
    })
}

/// `float(text)` of Python.
fn fraction(text: &str) -> Option<f64> {
    let text = text.trim().replace('_', "");
    // Rust reads the same numbers, and words like "infinity" in any case, as Python does.
    text.parse().ok()
}
