//! What in a JSON schema holds for the same value: patterns, whose intersection can be exponential,
//! and properties, for whose number the compiler takes the square of the time.
//!
//! A place of an answer has a set of schemas that hold for it: that of the place, what it takes in by
//! `allOf` and `$ref`, and what the schemas around it say about the place by other ways. Of the
//! alternatives of `anyOf` and `oneOf` one holds at a time.

use super::schema::{push, resolve};
use crate::budget::Budget;
use crate::error::{Result, fail};
use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Most properties of one object; the compiler looks at all others for each.
const MAX_PROPERTIES: usize = 2000;
/// Most properties that may be left out of the object with most of them, times all properties: for
/// each of the former the compiler looks at all rules.
const MAX_PAIRS: usize = 2_250_000;
/// Work that an intersection may take, which is what the compiler allows itself to find out whether
/// any text meets it.
const MAX_FUEL: u64 = 10_000;

/// Refuses schemas whose parts would take the compiler too long together. Errors: `Grammar` with the
/// place; those of the budget.
pub(super) fn check(schema: &Value, budget: &Budget) -> Result<()> {
    let mut places = Places {
        root: schema,
        budget,
        seen: HashSet::new(),
        todo: Vec::new(),
        intersections: HashSet::new(),
        n_properties: 0,
        most_optional: 0,
    };
    places.add(vec![schema], Vec::new(), String::new())?;
    while let Some(place) = places.todo.pop() {
        places.look_at(&place)?;
    }
    Ok(())
}

/// A place of an answer.
struct Place<'a> {
    /// The schemas that hold for it, without those that they take in.
    holding: Vec<&'a Value>,
    /// Schemas of which an alternative is among them.
    chosen: Vec<usize>,
    /// In the schema.
    path: String,
}

struct Places<'a> {
    root: &'a Value,
    budget: &'a Budget,
    /// Sets of schemas that were looked at, by their addresses.
    seen: HashSet<Vec<usize>>,
    todo: Vec<Place<'a>>,
    /// Sets of patterns that were looked at.
    intersections: HashSet<Vec<&'a str>>,
    /// Properties of all places, and those that may be left out of one of them.
    n_properties: usize,
    most_optional: usize,
}

/// The lists of alternatives of a schema, and an address of each.
fn alternatives(map: &Map<String, Value>) -> impl Iterator<Item = (usize, &Vec<Value>)> {
    let lists = ["anyOf", "oneOf"].into_iter();
    lists.filter_map(|key| match map.get(key) {
        Some(list @ Value::Array(ways)) => Some((address(list), ways)),
        _ => None,
    })
}

fn address(schema: &Value) -> usize {
    std::ptr::from_ref(schema).addr()
}

impl<'a> Places<'a> {
    /// Takes a place on that was not looked at yet.
    fn add(&mut self, mut holding: Vec<&'a Value>, chosen: Vec<usize>, path: String) -> Result<()> {
        holding.sort_by_key(|schema| address(schema));
        holding.dedup_by_key(|schema| address(schema));
        self.budget.work(holding.len() as u64 + 8)?;
        let key: Vec<usize> = holding.iter().map(|schema| address(schema)).collect();
        if !holding.is_empty() && self.seen.insert(key) {
            self.todo.push(Place {
                holding,
                chosen,
                path,
            });
        }
        Ok(())
    }

    /// All schemas that hold where these hold.
    fn closure(&self, holding: &[&'a Value]) -> Result<Vec<&'a Map<String, Value>>> {
        let mut todo = holding.to_vec();
        let mut seen = BTreeSet::new();
        let mut closure = Vec::new();
        while let Some(schema) = todo.pop() {
            self.budget.work(1)?;
            let Value::Object(map) = schema else { continue };
            if !seen.insert(address(schema)) {
                continue;
            }
            closure.push(map);
            if let Some(Value::Array(parts)) = map.get("allOf") {
                todo.extend(parts);
            }
            if let Some(Value::String(reference)) = map.get("$ref")
                && let Some(path) = reference.strip_prefix('#')
            {
                self.budget.scan(path.len())?;
                todo.extend(resolve(self.root, path));
            }
        }
        Ok(closure)
    }

    fn look_at(&mut self, place: &Place<'a>) -> Result<()> {
        let path = &place.path;
        let closure = self.closure(&place.holding)?;
        let mut patterns = BTreeSet::new();
        self.patterns(&closure, &place.chosen, 0, &mut patterns)?;
        self.check_patterns(&patterns, path)?;
        self.check_properties(&closure, path)?;
        self.add_properties(&closure, path)?;
        self.add_items(&closure, path)?;
        for (ways, list) in closure.iter().flat_map(|map| alternatives(map)) {
            if place.chosen.contains(&ways) {
                continue;
            }
            for way in list {
                let mut holding = place.holding.clone();
                holding.push(way);
                let mut chosen = place.chosen.clone();
                chosen.push(ways);
                self.add(holding, chosen, path.clone())?;
            }
        }
        Ok(())
    }

    /// The patterns of a string that may have to hold together: of alternatives those of the one with
    /// the most.
    fn patterns(
        &self,
        closure: &[&'a Map<String, Value>],
        chosen: &[usize],
        level: usize,
        found: &mut BTreeSet<&'a str>,
    ) -> Result<()> {
        for map in closure {
            self.budget.work(1)?;
            if let Some(Value::String(pattern)) = map.get("pattern") {
                found.insert(pattern);
            }
            for (ways, list) in alternatives(map) {
                if chosen.contains(&ways) {
                    continue;
                }
                let mut most = BTreeSet::new();
                for way in list.iter().filter(|_| level < 8) {
                    let mut of_way = BTreeSet::new();
                    self.patterns(&self.closure(&[way])?, chosen, level + 1, &mut of_way)?;
                    if of_way.len() > most.len() {
                        most = of_way;
                    }
                }
                found.extend(most);
            }
        }
        Ok(())
    }

    /// Intersects one pattern after the other, as the compiler does, until that takes too long.
    fn check_patterns(&mut self, patterns: &BTreeSet<&'a str>, path: &str) -> Result<()> {
        let list: Vec<&str> = patterns.iter().copied().collect();
        if list.len() < 3 || !self.intersections.insert(list.clone()) {
            return Ok(());
        }
        for count in 3..=list.len() {
            let bytes: usize = list[..count].iter().map(|pattern| pattern.len()).sum();
            self.budget.work(10_000 + bytes as u64)?;
            let ast = |pattern: &&str| RegexAst::SearchRegex((*pattern).to_owned());
            let all = RegexAst::And(list[..count].iter().map(ast).collect());
            let mut builder = RegexBuilder::new();
            // What is wrong with a pattern alone, the compiler says better.
            let Ok(expression) = builder.mk(&all) else {
                return Ok(());
            };
            if builder.to_regex_limited(expression, MAX_FUEL).is_err() {
                let place = if path.is_empty() { "/" } else { path };
                fail!(
                    Grammar,
                    "at {place}: it is too large: {} patterns have to hold together",
                    list.len()
                );
            }
        }
        Ok(())
    }

    fn check_properties(&mut self, closure: &[&'a Map<String, Value>], path: &str) -> Result<()> {
        let (mut names, mut needed) = (HashSet::new(), HashSet::new());
        for map in closure {
            if let Some(Value::Object(properties)) = map.get("properties") {
                self.budget.work(properties.len() as u64)?;
                names.extend(properties.keys().map(String::as_str));
            }
            if let Some(Value::Array(required)) = map.get("required") {
                self.budget.work(required.len() as u64)?;
                needed.extend(required.iter().filter_map(Value::as_str));
            }
        }
        names.extend(&needed);
        let n_required = needed.len();
        let count = names.len();
        self.n_properties += count;
        self.most_optional = self.most_optional.max(count - n_required);
        let pairs = self.most_optional * self.n_properties;
        if count > MAX_PROPERTIES || pairs > MAX_PAIRS {
            let place = if path.is_empty() { "/" } else { path };
            fail!(
                Grammar,
                "at {place}: it is too large: an object has {count} properties of {}; {MAX_PROPERTIES} \
                 are allowed, and fewer that may be left out",
                self.n_properties
            );
        }
        Ok(())
    }

    fn add_properties(&mut self, closure: &[&'a Map<String, Value>], path: &str) -> Result<()> {
        let mut by_name: BTreeMap<&'a str, Vec<&'a Value>> = BTreeMap::new();
        let mut others: Vec<&'a Value> = Vec::new();
        for map in closure {
            if let Some(Value::Object(properties)) = map.get("properties") {
                self.budget.work(properties.len() as u64)?;
                for (name, schema) in properties {
                    by_name.entry(name).or_default().push(schema);
                }
            }
            // A name may be of a pattern, or of none.
            if let Some(Value::Object(patterns)) = map.get("patternProperties") {
                others.extend(patterns.values());
            }
            others.extend(map.get("additionalProperties"));
        }
        for (name, mut holding) in by_name {
            if closure.len() > 1 {
                holding.extend(&others);
            }
            let mut path = path.to_owned();
            push(&mut path, "properties");
            push(&mut path, name);
            self.add(holding, Vec::new(), path)?;
        }
        let mut path = path.to_owned();
        push(&mut path, "additionalProperties");
        match closure.len() {
            1 => others
                .into_iter()
                .try_for_each(|schema| self.add(vec![schema], Vec::new(), path.clone())),
            _ => self.add(others, Vec::new(), path),
        }
    }

    fn add_items(&mut self, closure: &[&'a Map<String, Value>], path: &str) -> Result<()> {
        let mut rest = Vec::new();
        let mut by_place: BTreeMap<usize, Vec<&'a Value>> = BTreeMap::new();
        for map in closure {
            for key in ["prefixItems", "items"] {
                match map.get(key) {
                    Some(Value::Array(list)) => {
                        for (index, schema) in list.iter().enumerate() {
                            by_place.entry(index).or_default().push(schema);
                        }
                    }
                    Some(schema) => rest.push(schema),
                    None => {}
                }
            }
            rest.extend(map.get("additionalItems"));
        }
        for (index, mut holding) in by_place {
            if closure.len() > 1 {
                holding.extend(&rest);
            }
            let mut path = path.to_owned();
            push(&mut path, "prefixItems");
            push(&mut path, &index.to_string());
            self.add(holding, Vec::new(), path)?;
        }
        let mut path = path.to_owned();
        push(&mut path, "items");
        self.add(rest, Vec::new(), path)
    }
}
