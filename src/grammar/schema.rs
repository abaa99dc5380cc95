//! JSON schemas before they are compiled: their limits, and where in them a fault is.

use super::limits::{MAX_DIVISOR, MAX_LEVELS};
use super::{JsonSpacing, conjunctions};
use crate::budget::Budget;
use crate::error::{Error, Result, Status, fail};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// llguidance's options, which a schema may bring along itself.
const OPTIONS: &str = "x-guidance";
/// Keywords whose values are no schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Bound of multiples without one.
const LARGEST_MULTIPLE: i64 = 999_999_999_999;
/// How long the search for the place of a fault may take.
const SEARCH: Duration = Duration::from_millis(200);

/// Reads a schema.
///
/// Errors: `Grammar` for what is not JSON, with line and column, and for a schema that is too
/// expensive, with its place.
pub(super) fn parse(text: &str, budget: &Budget) -> Result<Value> {
    let schema: Value = match serde_json::from_str(text) {
        Ok(schema) => schema,
        Err(e) => fail!(Grammar, "the schema is not valid JSON: {e}"),
    };
    if !schema.is_object() && !schema.is_boolean() {
        fail!(Grammar, "the schema is neither an object nor a boolean");
    }
    check(&schema, budget)?;
    let mut schema = schema;
    bound_multiples(&mut schema);
    Ok(schema)
}

/// Gives bounds to multiples that have none: each digit changes whether a number is one, so its end
/// cannot be left to the matcher, which ends long numbers.
fn bound_multiples(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("multipleOf").is_some_and(Value::is_number) {
                for (bound, exclusive, value) in [
                    ("minimum", "exclusiveMinimum", -LARGEST_MULTIPLE),
                    ("maximum", "exclusiveMaximum", LARGEST_MULTIPLE),
                ] {
                    if !map.contains_key(bound) && !map.contains_key(exclusive) {
                        map.insert(bound.to_owned(), value.into());
                    }
                }
            }
            let parts = map
                .iter_mut()
                .filter(|(key, _)| !DATA.contains(&key.as_str()));
            parts.for_each(|(_, part)| bound_multiples(part));
        }
        Value::Array(list) => list.iter_mut().for_each(bound_multiples),
        _ => {}
    }
}

/// Refuses what would take the compiler too much stack or time.
pub(super) fn check(schema: &Value, budget: &Budget) -> Result<()> {
    let mut facts = Facts::default();
    facts.collect(schema, false, &mut String::new())?;
    let mut levels = depth(schema);
    for reference in &facts.references {
        let target = reference.strip_prefix('#');
        levels += target.map_or(0, |path| resolve(schema, path).map_or(0, depth));
    }
    if levels > MAX_LEVELS {
        fail!(
            Grammar,
            "the schema is too deep: {levels} levels of nesting through its {} references, {MAX_LEVELS} are allowed",
            facts.references.len()
        );
    }
    let mut together = 1;
    for (divisor, path) in &facts.divisors {
        together = if facts.combines {
            lcm(together, *divisor)
        } else {
            *divisor
        };
        if together > MAX_DIVISOR {
            fail!(
                Grammar,
                "at {path}: multipleOf is too large: {together} (alone or with others that hold \
                 at the same time), {MAX_DIVISOR} is allowed"
            );
        }
    }
    conjunctions::check(schema, budget)
}

/// What the limits depend on.
#[derive(Default)]
struct Facts {
    references: BTreeSet<String>,
    /// Values of `multipleOf` as integers, with a place of each.
    divisors: BTreeMap<u64, String>,
    /// Whether two schemas may hold for the same value.
    combines: bool,
}

impl Facts {
    /// Looks at all of a schema. Takes more for a keyword than there is (a property may be called
    /// so, too), never less.
    /// `is_data` in values that are no schemas unless a reference leads there.
    fn collect(&mut self, value: &Value, is_data: bool, path: &mut String) -> Result<()> {
        let length = path.len();
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    push(path, key);
                    match (key.as_str(), value) {
                        ("$ref", Value::String(reference)) => {
                            self.combines = true;
                            self.references.insert(reference.clone());
                        }
                        ("allOf", _) => self.combines = true,
                        ("multipleOf", Value::Number(number)) => {
                            let Some(divisor) = divisor(&number.to_string()) else {
                                fail!(Grammar, "at {path}: multipleOf {number} is out of range");
                            };
                            if number.as_f64().is_some_and(|number| number < 0.0) && !is_data {
                                fail!(
                                    Grammar,
                                    "at {path}: multipleOf is {number}, but must be greater than 0"
                                );
                            }
                            self.divisors.entry(divisor).or_insert_with(|| path.clone());
                        }
                        _ => {}
                    }
                    let is_data = is_data || DATA.contains(&key.as_str());
                    self.collect(value, is_data, path)?;
                    path.truncate(length);
                }
            }
            Value::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    push(path, &index.to_string());
                    self.collect(value, is_data, path)?;
                    path.truncate(length);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A decimal number without its fraction's point and zeros at the end of the fraction: the number
/// of remainders that have to be told apart. 0 for 0.
fn divisor(number: &str) -> Option<u64> {
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let value: u64 = digits.parse().ok()?;
    let zeros = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    match u32::try_from(zeros) {
        Ok(zeros) => value.checked_mul(10u64.checked_pow(zeros)?),
        Err(_) => Some(value),
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a.max(1), b.max(1));
    let product = x.saturating_mul(y);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    product / x
}

/// Levels of nesting; the JSON reader allows no more than 128.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Object(map) => map.values().map(depth).max(),
        Value::Array(list) => list.iter().map(depth).max(),
        _ => return 0,
    };
    1 + below.unwrap_or(0)
}

/// What a reference like `#/$defs/item` leads to, as llguidance reads it.
pub(super) fn resolve<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    let path = path.strip_prefix('/').unwrap_or(path);
    if path.is_empty() {
        return Some(schema);
    }
    path.split('/').try_fold(schema, |value, part| match value {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => value.get(part),
    })
}

/// Appends a part of a JSON pointer.
pub(super) fn push(path: &mut String, part: &str) {
    path.push('/');
    let part: String = part.chars().take(64).collect();
    path.push_str(&part.replace('~', "~0").replace('/', "~1"));
}

/// The schema with the way of spacing, unless it says something about it itself.
pub(super) fn with_spacing(schema: Value, spacing: JsonSpacing) -> Value {
    let mut map = match schema {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    if !map.contains_key(OPTIONS) {
        let options = match spacing {
            JsonSpacing::Spaced => json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "
            }),
            JsonSpacing::Compact => json!({ "whitespace_flexible": false }),
            JsonSpacing::Free => json!({ "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}" }),
        };
        map.insert(OPTIONS.to_owned(), options);
    }
    Value::Object(map)
}

/// Adds to an error of a schema the place that it comes from: the smallest part that fails in the
/// same way by itself. `failure` compiles a schema.
pub(super) fn locate(
    schema: &Value,
    error: Error,
    failure: &dyn Fn(Value) -> Option<Error>,
) -> Error {
    if error.status != Status::Grammar {
        return error;
    }
    let mut search = Search {
        definitions: definitions(schema),
        failure,
        end: Instant::now() + SEARCH,
    };
    let mut path = String::new();
    let error = search.descend(schema, error, &mut path);
    let place = if path.is_empty() {
        "in the schema".to_owned()
    } else {
        format!("at {path}")
    };
    Error::new(error.status, format!("{place}: {}", error.message))
}

struct Search<'a> {
    definitions: Map<String, Value>,
    failure: &'a dyn Fn(Value) -> Option<Error>,
    end: Instant,
}

impl Search<'_> {
    fn descend(&mut self, schema: &Value, error: Error, path: &mut String) -> Error {
        for (keys, part) in parts(schema) {
            if Instant::now() > self.end {
                break;
            }
            let Some(found) = (self.failure)(self.alone(part)) else {
                continue;
            };
            // Else the part is not what the whole fails by: one of several choices, for example.
            if error.message.contains(&found.message) {
                for key in keys {
                    push(path, &key);
                }
                return self.descend(part, found, path);
            }
        }
        error
    }

    /// A part of the schema with what its references need.
    fn alone(&self, part: &Value) -> Value {
        let Value::Object(map) = part else {
            return part.clone();
        };
        let mut map = map.clone();
        for (key, value) in &self.definitions {
            map.entry(key.clone()).or_insert_with(|| value.clone());
        }
        Value::Object(map)
    }
}

fn definitions(schema: &Value) -> Map<String, Value> {
    let mut found = Map::new();
    for key in ["$defs", "definitions", OPTIONS] {
        if let Some(value) = schema.get(key) {
            found.insert(key.to_owned(), value.clone());
        }
    }
    found
}

/// The schemas within a schema, with the keys that lead there.
fn parts(schema: &Value) -> Vec<(Vec<String>, &Value)> {
    let mut parts = Vec::new();
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        if let Some(Value::Object(map)) = schema.get(key) {
            let named = map
                .iter()
                .map(|(name, part)| (vec![key.to_owned(), name.clone()], part));
            parts.extend(named);
        }
    }
    for key in ["prefixItems", "items", "allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(list)) = schema.get(key) {
            let listed = list.iter().enumerate();
            parts.extend(listed.map(|(i, part)| (vec![key.to_owned(), i.to_string()], part)));
        }
    }
    for key in ["items", "additionalProperties", "not"] {
        if let Some(part @ (Value::Object(_) | Value::Bool(_))) = schema.get(key) {
            parts.push((vec![key.to_owned()], part));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_what_is_left_of_a_number_without_its_point() {
        for (number, expected) in [
            ("5", Some(5)),
            ("0.01", Some(1)),
            ("2.50", Some(25)),
            ("1e3", Some(1000)),
            ("1.5e1", Some(15)),
            ("2.5e-7", Some(25)),
            ("1e30", None),
            ("123456789012345678901234567890", None),
        ] {
            assert_eq!(divisor(number), expected, "{number}");
        }
    }

    #[test]
    fn deep_chains_of_references_are_counted() {
        let chain = |n: usize| {
            let links = (0..n).map(|i| {
                let next = format!("#/$defs/a{}", i + 1);
                (format!("a{i}"), json!({"items": {"$ref": next}}))
            });
            let mut defs: Map<String, Value> = links.collect();
            defs.insert(format!("a{n}"), json!({"type": "string"}));
            json!({"$ref": "#/$defs/a0", "$defs": defs})
        };
        let budget = Budget::for_grammar(200_000);
        check(&chain(1000), &budget).unwrap();
        let e = check(&chain(4000), &budget).unwrap_err();
        assert!(e.message.contains("too deep"), "{}", e.message);
    }
}
