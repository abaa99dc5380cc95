//! What may stand behind `is`.

use super::Run;
use super::arguments::Arguments;
use super::value::{Object, SeqKind, Value};
use crate::error::{Result, fail};
use minijinja::machinery::ast::CompareOpKind;
use std::rc::Rc;

impl Run<'_> {
    /// Whether `value is name(arguments)`.
    pub fn check(&mut self, name: &str, value: &Value, arguments: Arguments) -> Result<bool> {
        let operator = match name {
            "eq" | "equalto" | "==" => Some(CompareOpKind::Eq),
            "ne" | "!=" => Some(CompareOpKind::Ne),
            "lt" | "lessthan" | "<" => Some(CompareOpKind::Lt),
            "le" | "<=" => Some(CompareOpKind::Lte),
            "gt" | "greaterthan" | ">" => Some(CompareOpKind::Gt),
            "ge" | ">=" => Some(CompareOpKind::Gte),
            "in" => Some(CompareOpKind::In),
            _ => None,
        };
        if let Some(operator) = operator {
            let [other] = arguments.exactly(name)?;
            return self.compare(operator, value, &other);
        }
        match name {
            "divisibleby" => {
                let [by] = arguments.exactly(name)?;
                return match (value.as_int(), by.as_int()) {
                    (Some(_), Some(0)) => fail!(TemplateFailed, "integer modulo by zero"),
                    (Some(a), Some(b)) => Ok(a.checked_rem(b) == Some(0)),
                    _ => fail!(TemplateFailed, "divisibleby takes whole numbers"),
                };
            }
            "sameas" => {
                let [other] = arguments.exactly(name)?;
                return self.is_same_object(value, &other);
            }
            _ => {}
        }
        let [] = arguments.exactly(name)?;
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)) || value.as_digits().is_some(),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.as_float().is_some() || value.as_digits().is_some(),
            "string" => matches!(value, Value::Str(_)),
            "mapping" => matches!(value, Value::Map(_)),
            "iterable" => matches!(
                value,
                Value::Undefined(_) | Value::Str(_) | Value::Seq(_) | Value::Map(_)
            ),
            // In Python: has a length and can be indexed.
            "sequence" => match value {
                Value::Undefined(_) | Value::Str(_) | Value::Map(_) => true,
                Value::Seq(seq) => {
                    matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Range)
                }
                _ => false,
            },
            "callable" => match value {
                Value::Undefined(_) => true,
                Value::Object(object) => !matches!(
                    object.inner(),
                    Object::Integer(_) | Object::Namespace(_) | Object::Cycler { .. }
                ),
                _ => false,
            },
            "odd" | "even" => match value.as_int() {
                Some(number) => (number % 2 != 0) == (name == "odd"),
                None => fail!(
                    TemplateFailed,
                    "'{name}' takes a whole number, not {}",
                    value.type_name()
                ),
            },
            "lower" | "upper" => {
                let text = self.to_str(value)?;
                let is = if name == "lower" {
                    "islower"
                } else {
                    "isupper"
                };
                self.call_method(&text, is, Arguments::default())?.is_true()
            }
            "filter" => match value {
                Value::Str(text) => super::filters::is_filter(&super::text::to_string(text)),
                _ => false,
            },
            "test" => match value {
                Value::Str(text) => is_test(&super::text::to_string(text)),
                _ => false,
            },
            "escaped" => matches!(value, Value::Str(text) if text.is_markup()),
            _ => fail!(TemplateFailed, "No test named '{name}'."),
        })
    }

    fn is_same_object(&self, a: &Value, b: &Value) -> Result<bool> {
        Ok(match (a, b) {
            (Value::Seq(a), Value::Seq(b)) => Rc::ptr_eq(a, b),
            (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
            _ => a.type_name() == b.type_name() && a.same(b, &self.budget)?,
        })
    }
}

/// The names that [`Run::check`] knows.
const TESTS: [&str; 39] = [
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "divisibleby",
    "sameas",
    "defined",
    "undefined",
    "none",
    "boolean",
    "true",
    "false",
    "integer",
    "float",
    "number",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "callable",
    "odd",
    "even",
    "lower",
    "upper",
    "filter",
    "test",
    "escaped",
];

fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}
