//! Arithmetic and its like, as Python does it.

use super::Run;
use super::text::{Builder, Char, find};
use super::value::{Seq, SeqKind, Value};
use crate::error::{Result, fail};
use minijinja::machinery::ast::{BinOpKind, CompareOpKind};

/// Two numbers of the same kind.
enum Pair {
    Ints(i128, i128),
    Floats(f64, f64),
}

fn numbers(left: &Value, right: &Value) -> Option<Pair> {
    match (left.as_int(), right.as_int()) {
        (Some(a), Some(b)) => Some(Pair::Ints(a, b)),
        _ => Some(Pair::Floats(left.as_float()?, right.as_float()?)),
    }
}

fn unsupported(sign: &str, left: &Value, right: &Value) -> Result<Value> {
    left.check_defined()?;
    right.check_defined()?;
    fail!(
        TemplateFailed,
        "unsupported operand type(s) for {sign}: '{}' and '{}'",
        left.type_name(),
        right.type_name()
    )
}

fn int(value: Option<i128>) -> Result<Value> {
    match value {
        Some(value) => Ok(Value::Int(value)),
        None => fail!(TemplateFailed, "a number becomes too large"),
    }
}

fn floor_div(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    let inexact = a.checked_rem(b)? != 0;
    Some(quotient - i128::from(inexact && (a < 0) != (b < 0)))
}

fn floor_rem(a: i128, b: i128) -> Option<i128> {
    let rest = a.checked_rem(b)?;
    Some(if rest != 0 && (rest < 0) != (b < 0) {
        rest + b
    } else {
        rest
    })
}

fn float_rem(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}

impl Run<'_> {
    pub fn negate(&self, value: &Value) -> Result<Value> {
        match (value.as_int(), value.as_float()) {
            (Some(number), _) => int(number.checked_neg()),
            (None, Some(number)) => Ok(Value::Float(-number)),
            _ => {
                value.check_defined()?;
                fail!(
                    TemplateFailed,
                    "bad operand type for unary -: '{}'",
                    value.type_name()
                )
            }
        }
    }

    pub fn binary(&mut self, operator: BinOpKind, left: Value, right: Value) -> Result<Value> {
        let compared = match operator {
            BinOpKind::Eq => CompareOpKind::Eq,
            BinOpKind::Ne => CompareOpKind::Ne,
            BinOpKind::Lt => CompareOpKind::Lt,
            BinOpKind::Lte => CompareOpKind::Lte,
            BinOpKind::Gt => CompareOpKind::Gt,
            BinOpKind::Gte => CompareOpKind::Gte,
            BinOpKind::In => CompareOpKind::In,
            BinOpKind::ScAnd | BinOpKind::ScOr => return Ok(right),
            BinOpKind::Add => return self.add(&left, &right),
            BinOpKind::Mul => return self.multiply(&left, &right),
            BinOpKind::Concat => return self.concatenate(&left, &right),
            BinOpKind::Rem => return self.remainder(&left, &right),
            BinOpKind::Sub => {
                return match numbers(&left, &right) {
                    Some(Pair::Ints(a, b)) => int(a.checked_sub(b)),
                    Some(Pair::Floats(a, b)) => Ok(Value::Float(a - b)),
                    None => unsupported("-", &left, &right),
                };
            }
            BinOpKind::Div => {
                return match (left.as_float(), right.as_float()) {
                    (Some(_), Some(0.0)) => fail!(TemplateFailed, "division by zero"),
                    (Some(a), Some(b)) => Ok(Value::Float(a / b)),
                    _ => unsupported("/", &left, &right),
                };
            }
            BinOpKind::FloorDiv => {
                return match numbers(&left, &right) {
                    Some(Pair::Ints(_, 0) | Pair::Floats(_, 0.0)) => {
                        fail!(TemplateFailed, "integer division or modulo by zero")
                    }
                    Some(Pair::Ints(a, b)) => int(floor_div(a, b)),
                    Some(Pair::Floats(a, b)) => Ok(Value::Float((a / b).floor())),
                    None => unsupported("//", &left, &right),
                };
            }
            BinOpKind::Pow => return power(&left, &right),
        };
        Ok(Value::Bool(self.compare(compared, &left, &right)?))
    }

    fn add(&self, left: &Value, right: &Value) -> Result<Value> {
        match (left, right) {
            (Value::Str(a), Value::Str(b)) if a.is_markup() || b.is_markup() => {
                let mut out = Builder::new(&self.budget)?;
                for part in [left, right] {
                    self.write_str(&self.escape(part)?, &mut out)?;
                }
                return Ok(Value::Str(out.finish().as_markup()));
            }
            (Value::Str(a), Value::Str(b)) => {
                let mut out = Builder::new(&self.budget)?;
                out.extend(a)?;
                out.extend(b)?;
                return Ok(Value::Str(out.finish()));
            }
            (Value::Str(_), other) => {
                other.check_defined()?;
                fail!(
                    TemplateFailed,
                    "can only concatenate str (not \"{}\") to str",
                    other.type_name()
                )
            }
            (Value::Seq(a), Value::Seq(b))
                if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
            {
                let n = a.items.len() + b.items.len();
                let _room = self.budget.hold(n * size_of::<Value>())?;
                let items = a.items.iter().chain(&b.items).cloned().collect();
                return Seq::value(&self.budget, a.kind, items);
            }
            _ => {}
        }
        match numbers(left, right) {
            Some(Pair::Ints(a, b)) => int(a.checked_add(b)),
            Some(Pair::Floats(a, b)) => Ok(Value::Float(a + b)),
            None => unsupported("+", left, right),
        }
    }

    fn multiply(&self, left: &Value, right: &Value) -> Result<Value> {
        let (sequence, times) = match (left, right) {
            (Value::Str(_) | Value::Seq(_), other) => (left, other.as_int()),
            (other, Value::Str(_) | Value::Seq(_)) => (right, other.as_int()),
            _ => {
                return match numbers(left, right) {
                    Some(Pair::Ints(a, b)) => int(a.checked_mul(b)),
                    Some(Pair::Floats(a, b)) => Ok(Value::Float(a * b)),
                    None => unsupported("*", left, right),
                };
            }
        };
        let Some(times) = times else {
            return unsupported("*", left, right);
        };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match sequence {
            Value::Str(text) => {
                let mut out = Builder::new(&self.budget)?;
                // Refused before the work is done, not behind it.
                let n = text.len().saturating_mul(times);
                drop(self.budget.hold(n.saturating_mul(size_of::<Char>()))?);
                for _ in 0..if text.is_empty() { 0 } else { times } {
                    out.extend(text)?;
                }
                let made = Value::Str(out.finish());
                if text.is_markup() {
                    return self.as_markup(made);
                }
                Ok(made)
            }
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                let n = seq.items.len().saturating_mul(times);
                let _room = self.budget.hold(n.saturating_mul(size_of::<Value>()))?;
                self.budget.work(n as u64)?;
                let items = seq.items.iter().cycle().take(n).cloned().collect();
                Seq::value(&self.budget, seq.kind, items)
            }
            _ => unsupported("*", left, right),
        }
    }

    fn concatenate(&self, left: &Value, right: &Value) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        self.write_str(left, &mut out)?;
        self.write_str(right, &mut out)?;
        Ok(Value::Str(out.finish()))
    }

    fn remainder(&self, left: &Value, right: &Value) -> Result<Value> {
        if let Value::Str(format) = left {
            if format.is_markup() {
                let values = self.values_for_markup(right)?;
                return self.as_markup(self.percent(format, &values)?);
            }
            return self.percent(format, right);
        }
        match numbers(left, right) {
            Some(Pair::Ints(_, 0) | Pair::Floats(_, 0.0)) => {
                fail!(TemplateFailed, "integer modulo by zero")
            }
            Some(Pair::Ints(a, b)) => int(floor_rem(a, b)),
            Some(Pair::Floats(a, b)) => Ok(Value::Float(float_rem(a, b))),
            None => unsupported("%", left, right),
        }
    }

    /// Python's `item in container`.
    pub fn contains(&self, container: &Value, item: &Value) -> Result<bool> {
        match container {
            Value::Undefined(_) => Ok(false),
            Value::Str(text) => match item {
                Value::Str(needle) => Ok(find(&self.budget, text, needle, 0)?.is_some()),
                _ => fail!(
                    TemplateFailed,
                    "'in <string>' requires string as left operand, not {}",
                    item.type_name()
                ),
            },
            Value::Seq(seq) => {
                for known in &seq.items {
                    if known.same(item, &self.budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Map(map) => Ok(map.get(item, &self.budget)?.is_some()),
            _ => fail!(
                TemplateFailed,
                "argument of type '{}' is not iterable",
                container.type_name()
            ),
        }
    }
}

fn power(left: &Value, right: &Value) -> Result<Value> {
    match numbers(left, right) {
        Some(Pair::Ints(base, exponent)) if exponent >= 0 => match u32::try_from(exponent) {
            Ok(exponent) => int(base.checked_pow(exponent)),
            Err(_) if base == 0 || base == 1 => Ok(Value::Int(base)),
            Err(_) => int(None),
        },
        Some(Pair::Ints(0, _)) => fail!(TemplateFailed, "0.0 cannot be raised to a negative power"),
        Some(Pair::Ints(a, b)) => Ok(Value::Float((a as f64).powf(b as f64))),
        Some(Pair::Floats(a, b)) => Ok(Value::Float(a.powf(b))),
        None => unsupported("**", left, right),
    }
}
