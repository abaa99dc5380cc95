//! What lies behind a dot and in brackets.

use super::Run;
use super::text::{Builder, to_string};
use super::value::{Object, Seq, SeqKind, Value};
use crate::error::{Result, fail};
use std::rc::Rc;

const STR_METHODS: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "format_map",
];
const MAP_METHODS: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LIST_METHODS: [&str; 3] = ["copy", "count", "index"];
const TUPLE_METHODS: [&str; 2] = ["count", "index"];
const CYCLER_METHODS: [&str; 2] = ["next", "reset"];
const LOOP_METHODS: [&str; 2] = ["cycle", "changed"];
/// Methods that would change a value, which no template may do.
const LIST_MUTATORS: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];
const MAP_MUTATORS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The method of that name, if values like this one have it.
pub(super) fn method_of(of: &Value, name: &str) -> Option<&'static str> {
    let methods: &'static [&'static str] = match of {
        Value::Str(_) => &STR_METHODS,
        Value::Map(_) => &MAP_METHODS,
        Value::Seq(seq) => match seq.kind {
            SeqKind::List => &LIST_METHODS,
            SeqKind::Tuple | SeqKind::Range => &TUPLE_METHODS,
            _ => &[],
        },
        Value::Object(object) => match object.inner() {
            Object::Cycler { .. } => &CYCLER_METHODS,
            Object::Loop(_) => &LOOP_METHODS,
            _ => &[],
        },
        _ => &[],
    };
    methods.iter().find(|known| **known == name).copied()
}

fn is_mutator(of: &Value, name: &str) -> bool {
    match of {
        Value::Map(_) => MAP_MUTATORS.contains(&name),
        Value::Seq(seq) => seq.kind == SeqKind::List && LIST_MUTATORS.contains(&name),
        _ => false,
    }
}

/// The start, the step and the number of items that a slice takes from `length`.
fn slice_of(length: usize, bounds: [Option<i128>; 3]) -> Result<(usize, i128, usize)> {
    let length = length as i128;
    let [start, stop, step] = bounds;
    let step = step.unwrap_or(1);
    if step == 0 {
        fail!(TemplateFailed, "slice step cannot be zero");
    }
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let place = |bound: i128| {
        let from_start = if bound < 0 {
            bound.saturating_add(length)
        } else {
            bound
        };
        from_start.clamp(low, high)
    };
    let start = start.map_or(if step > 0 { low } else { high }, place);
    let stop = stop.map_or(if step > 0 { high } else { low }, place);
    let span = if step > 0 { stop - start } else { start - stop };
    let count = match span {
        1.. => (span - 1) / step.saturating_abs() + 1,
        _ => 0,
    };
    Ok((start.max(0) as usize, step, count as usize))
}

impl Run<'_> {
    /// `of.name`: an attribute first, then an item.
    pub fn attribute(&mut self, of: &Value, name: &str) -> Result<Value> {
        of.check_defined()?;
        if let Some(method) = method_of(of, name) {
            let depth = super::value::nested(std::iter::once(of))?;
            let object = Object::Method {
                of: of.clone(),
                name: method,
                depth,
            };
            return Value::object(&self.budget, object);
        }
        match of {
            _ if is_mutator(of, name) => {
                return Ok(Value::Undefined(Some(
                    format!(
                        "access to attribute '{name}' of '{}' object is unsafe.",
                        of.type_name()
                    )
                    .into(),
                )));
            }
            Value::Map(map) => {
                if let Some(value) = map.get_str(name) {
                    return Ok(value.clone());
                }
            }
            Value::Object(object) => {
                if let Some(value) = self.object_attribute(object.inner(), name)? {
                    return Ok(value);
                }
            }
            _ => {}
        }
        Ok(self.no_attribute(of, name))
    }

    fn no_attribute(&self, of: &Value, name: &str) -> Value {
        let of = match of {
            Value::None => "None".to_owned(),
            _ => format!("{} object", of.type_name()),
        };
        Value::Undefined(Some(format!("'{of}' has no attribute '{name}'").into()))
    }

    fn object_attribute(&mut self, object: &Object, name: &str) -> Result<Option<Value>> {
        Ok(match object {
            Object::Namespace(entries) => entries.borrow().get(name).cloned(),
            Object::Macro(callee) => match name {
                "name" => Some(self.text(&callee.name)?),
                "arguments" => {
                    let names = callee.parameters.iter().map(|name| self.text(name));
                    let names = names.collect::<Result<_>>()?;
                    Some(Seq::value(&self.budget, SeqKind::Tuple, names)?)
                }
                "catch_kwargs" => Some(Value::Bool(callee.takes_names)),
                "catch_varargs" => Some(Value::Bool(callee.takes_more)),
                "caller" => Some(Value::Bool(callee.takes_caller)),
                _ => None,
            },
            Object::Loop(state) => {
                let (index, length) = (state.index.get(), state.items.items.len());
                let int = |number: usize| Some(Value::Int(number as i128));
                let beside = |index: Option<usize>, which: &str| {
                    let item = index.and_then(|index| state.items.items.get(index));
                    let none =
                        || Value::Undefined(Some(format!("there is no {which} item").into()));
                    Some(item.cloned().unwrap_or_else(none))
                };
                match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "revindex" => int(length - index),
                    "revindex0" => int(length - index - 1),
                    "first" => Some(Value::Bool(index == 0)),
                    "last" => Some(Value::Bool(index + 1 == length)),
                    "length" => int(length),
                    "depth" => int(state.level + 1),
                    "depth0" => int(state.level),
                    "previtem" => beside(index.checked_sub(1), "previous"),
                    "nextitem" => beside(Some(index + 1), "next"),
                    _ => None,
                }
            }
            Object::Cycler { items, at, .. } if name == "current" => Some(items[at.get()].clone()),
            _ => None,
        })
    }

    /// `of[key]`: an item first, then an attribute.
    pub fn item(&mut self, of: &Value, key: &Value) -> Result<Value> {
        of.check_defined()?;
        let at = |length: usize| {
            let index = key.as_int()?;
            let from_start = if index < 0 {
                index + length as i128
            } else {
                index
            };
            usize::try_from(from_start)
                .ok()
                .filter(|index| *index < length)
        };
        let found = match of {
            Value::Map(map) => map.get(key, &self.budget)?.cloned(),
            Value::Seq(seq)
                if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range) =>
            {
                at(seq.items.len()).map(|index| seq.items[index].clone())
            }
            Value::Str(text) => match at(text.len()) {
                Some(index) => Some(self.part(text, index..index + 1)?),
                None => None,
            },
            _ => None,
        };
        if let Some(value) = found {
            return Ok(value);
        }
        if let Value::Str(name) = key {
            self.budget.scan(name.len())?;
            let name = to_string(name);
            return match of {
                // Looked up already, and an entry's name is no attribute.
                Value::Map(_) if method_of(of, &name).is_none() => Ok(self.no_attribute(of, &name)),
                _ => self.attribute(of, &name),
            };
        }
        let mut shown = Builder::new(&self.budget)?;
        self.write_repr(key, &mut shown)?;
        Ok(Value::Undefined(Some(
            format!(
                "{} object has no element {}",
                of.type_name(),
                to_string(shown.chars())
            )
            .into(),
        )))
    }

    /// `of[start:stop:step]`.
    pub fn slice(&mut self, of: &Value, bounds: [Option<Value>; 3]) -> Result<Value> {
        of.check_defined()?;
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(&bounds) {
            *number = match bound {
                None | Some(Value::None) => None,
                Some(value) => match value.as_int() {
                    Some(number) => Some(number),
                    None => {
                        value.check_defined()?;
                        return Ok(Value::Undefined(Some(
                            "slice indices must be integers".into(),
                        )));
                    }
                },
            };
        }
        match of {
            Value::Str(text) => {
                let (start, step, count) = slice_of(text.len(), numbers)?;
                if step == 1 {
                    return self.part(text, start..start + count);
                }
                let mut out = Builder::new(&self.budget)?;
                for index in 0..count {
                    out.push(text[(start as i128 + index as i128 * step) as usize])?;
                }
                let made = out.finish();
                Ok(Value::Str(match text.is_markup() {
                    true => made.as_markup(),
                    false => made,
                }))
            }
            Value::Seq(seq)
                if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range) =>
            {
                let (start, step, count) = slice_of(seq.items.len(), numbers)?;
                let _room = self.budget.hold(count * size_of::<Value>())?;
                let place = |index: usize| (start as i128 + index as i128 * step) as usize;
                let items = (0..count).map(|index| seq.items[place(index)].clone());
                Seq::value(&self.budget, seq.kind, items.collect())
            }
            _ => Ok(self.no_attribute(of, "slice")),
        }
    }

    /// A part of a string, which is markup if the string is.
    fn part(&self, text: &super::text::Text, range: std::ops::Range<usize>) -> Result<Value> {
        let part = super::text::Text::copy(&self.budget, &text[range])?;
        Ok(Value::Str(match text.is_markup() {
            true => part.as_markup(),
            false => part,
        }))
    }

    /// A string of these characters.
    pub fn copy(&self, chars: &[super::text::Char]) -> Result<Value> {
        Ok(Value::Str(super::text::Text::copy(&self.budget, chars)?))
    }

    /// The entries of a mapping as pairs, its keys or its values.
    pub fn view(&self, map: &Rc<super::value::Map>, kind: SeqKind) -> Result<Value> {
        let _room = self.budget.hold(map.entries.len() * size_of::<Value>())?;
        let one = |(key, value): &(Value, Value)| match kind {
            SeqKind::Keys => Ok(key.clone()),
            SeqKind::Values => Ok(value.clone()),
            _ => Seq::value(
                &self.budget,
                SeqKind::Tuple,
                vec![key.clone(), value.clone()],
            ),
        };
        let items = map.entries.iter().map(one).collect::<Result<_>>()?;
        Seq::value(&self.budget, kind, items)
    }
}
