//! Filters over sequences.

use super::Run;
use super::arguments::{Arguments, int, truth};
use super::methods::Case;
use super::text::{Builder, to_string};
use super::value::{Seq, SeqKind, Value};
use crate::error::{Error, Result, fail};
use std::cmp::Ordering;

impl Run<'_> {
    /// The value of a filter over sequences, or the arguments back if `name` is none.
    pub fn list_filter(
        &mut self,
        name: &str,
        value: &Value,
        mut arguments: Arguments,
    ) -> Result<std::result::Result<Value, Arguments>> {
        let is_lazy = matches!(
            name,
            "map" | "select" | "reject" | "selectattr" | "rejectattr"
        );
        if is_lazy && !value.is_true() {
            return Ok(Ok(self.generator(Vec::new())?));
        }
        Ok(Ok(match name {
            "first" => {
                let [] = arguments.exactly(name)?;
                let items = value.iterate(&self.budget)?;
                let first = items.items.first().cloned();
                first.unwrap_or_else(|| {
                    Value::Undefined(Some("No first item, sequence was empty.".into()))
                })
            }
            "last" => {
                let [] = arguments.exactly(name)?;
                if let Value::Seq(seq) = value
                    && seq.kind == SeqKind::Generator
                {
                    fail!(TemplateFailed, "'generator' object is not reversible");
                }
                let items = value.iterate(&self.budget)?;
                let last = items.items.last().cloned();
                last.unwrap_or_else(|| {
                    Value::Undefined(Some("No last item, sequence was empty.".into()))
                })
            }
            "join" => {
                let [separator, attribute] = arguments.bind(name, ["d", "attribute"])?;
                let separator = match separator {
                    Some(separator) => self.to_str(&separator)?,
                    None => self.text("")?,
                };
                let mut out = Builder::new(&self.budget)?;
                for (index, item) in value.iterate(&self.budget)?.items.iter().enumerate() {
                    if index > 0 {
                        self.write_str(&separator, &mut out)?;
                    }
                    match &attribute {
                        Some(path) => {
                            let item = self.by_path(item, path)?;
                            self.write_str(&item, &mut out)?;
                        }
                        None => self.write_str(item, &mut out)?,
                    }
                }
                Value::Str(out.finish())
            }
            "reverse" => {
                let [] = arguments.exactly(name)?;
                let items = value.iterate(&self.budget)?;
                if let Value::Str(text) = value {
                    let mut out = Builder::new(&self.budget)?;
                    for c in text.iter().rev() {
                        out.push(*c)?;
                    }
                    let made = out.finish();
                    return Ok(Ok(Value::Str(match text.is_markup() {
                        true => made.as_markup(),
                        false => made,
                    })));
                }
                let _room = self.budget.hold(items.items.len() * size_of::<Value>())?;
                self.generator(items.items.iter().rev().cloned().collect())?
            }
            "map" => {
                let attribute = arguments.take("attribute");
                let default = attribute.as_ref().and_then(|_| arguments.take("default"));
                let items = value.iterate(&self.budget)?;
                let mut out = Vec::new();
                if let Some(path) = attribute {
                    for item in &items.items {
                        let mut found = self.by_path(item, &path)?;
                        if let (true, Some(default)) = (found.is_undefined(), &default) {
                            found = default.clone();
                        }
                        out.push(found);
                    }
                } else {
                    let filter =
                        self.first_name(&mut arguments, "map requires a filter argument")?;
                    for item in &items.items {
                        let copy = copy(&arguments);
                        out.push(self.filter(&filter, item.clone(), copy)?);
                    }
                }
                self.generator(out)?
            }
            "select" | "reject" | "selectattr" | "rejectattr" => {
                let path = match name.ends_with("attr") {
                    true if arguments.positional.is_empty() => {
                        fail!(TemplateFailed, "Missing parameter for attribute name")
                    }
                    true => Some(arguments.positional.remove(0)),
                    false => None,
                };
                let test = match arguments.positional.is_empty() {
                    true => None,
                    false => Some(self.first_name(&mut arguments, "a test has a name")?),
                };
                let items = value.iterate(&self.budget)?;
                let mut out = Vec::new();
                for item in &items.items {
                    let looked_at = match &path {
                        Some(path) => self.by_path(item, path)?,
                        None => item.clone(),
                    };
                    let passes = match &test {
                        Some(test) => {
                            let copy = copy(&arguments);
                            self.check(test, &looked_at, copy)?
                        }
                        None => looked_at.is_true(),
                    };
                    if passes == name.starts_with("select") {
                        out.push(item.clone());
                    }
                }
                self.generator(out)?
            }
            "sort" => {
                let names = ["reverse", "case_sensitive", "attribute"];
                let [reverse, case, attribute] = arguments.bind(name, names)?;
                let items = value.iterate(&self.budget)?;
                let mut keys = Vec::new();
                for item in &items.items {
                    keys.push(match &attribute {
                        Some(path) => self.by_path(item, path)?,
                        None => item.clone(),
                    });
                }
                let sorted = self.sorted(
                    &items.items,
                    keys,
                    truth(&case, false),
                    truth(&reverse, false),
                )?;
                self.list(sorted)?
            }
            "unique" => {
                let [case, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
                let items = value.iterate(&self.budget)?;
                let mut seen: Vec<Value> = Vec::new();
                let mut out = Vec::new();
                for item in &items.items {
                    let key = match &attribute {
                        Some(path) => self.by_path(item, path)?,
                        None => item.clone(),
                    };
                    let key = self.sort_key(key, truth(&case, false))?;
                    let mut known = false;
                    for other in &seen {
                        known = known || other.same(&key, &self.budget)?;
                    }
                    if !known {
                        seen.push(key);
                        out.push(item.clone());
                    }
                }
                self.generator(out)?
            }
            "min" | "max" => {
                let [case, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
                let items = value.iterate(&self.budget)?;
                let mut best: Option<(Value, Value)> = None;
                for item in &items.items {
                    let key = match &attribute {
                        Some(path) => self.by_path(item, path)?,
                        None => item.clone(),
                    };
                    let key = self.sort_key(key, truth(&case, false))?;
                    let better = match &best {
                        Some((best, _)) => {
                            let order = key.order(best, "<", &self.budget)?;
                            order
                                == Some(if name == "min" {
                                    Ordering::Less
                                } else {
                                    Ordering::Greater
                                })
                        }
                        None => true,
                    };
                    if better {
                        best = Some((key, item.clone()));
                    }
                }
                match best {
                    Some((_, item)) => item,
                    None => {
                        Value::Undefined(Some("No aggregated item, sequence was empty.".into()))
                    }
                }
            }
            "sum" => {
                let [attribute, start] = arguments.bind(name, ["attribute", "start"])?;
                let mut sum = start.unwrap_or(Value::Int(0));
                for item in &value.iterate(&self.budget)?.items {
                    let item = match &attribute {
                        Some(path) if !matches!(path, Value::None) => self.by_path(item, path)?,
                        _ => item.clone(),
                    };
                    sum = self.binary(minijinja::machinery::ast::BinOpKind::Add, sum, item)?;
                }
                sum
            }
            "batch" => {
                let [size, fill] = arguments.bind(name, ["linecount", "fill_with"])?;
                let size = usize::try_from(int(&size, "linecount", 0)?).unwrap_or(0);
                if size == 0 {
                    fail!(TemplateFailed, "batch takes a number above 0");
                }
                let items = value.iterate(&self.budget)?;
                let mut out = Vec::new();
                for chunk in items.items.chunks(size) {
                    let mut chunk = chunk.to_vec();
                    if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
                        let _room = self.budget.hold(size.saturating_mul(size_of::<Value>()))?;
                        chunk.resize(size, fill.clone());
                    }
                    out.push(self.list(chunk)?);
                }
                self.generator(out)?
            }
            "slice" => {
                let [count, fill] = arguments.bind(name, ["slices", "fill_with"])?;
                let count = usize::try_from(int(&count, "slices", 0)?).unwrap_or(0);
                if count == 0 {
                    fail!(TemplateFailed, "slice takes a number above 0");
                }
                let items = value.iterate(&self.budget)?;
                let _room = self.budget.hold(count.saturating_mul(size_of::<Value>()))?;
                self.budget.work(count as u64)?;
                let (each, more) = (items.items.len() / count, items.items.len() % count);
                let mut out = Vec::new();
                let mut from = 0;
                for index in 0..count {
                    let to = from + each + usize::from(index < more);
                    let mut part = items.items[from..to].to_vec();
                    if let (Some(fill), true) = (&fill, index >= more)
                        && !matches!(fill, Value::None)
                    {
                        part.push(fill.clone());
                    }
                    out.push(self.list(part)?);
                    from = to;
                }
                self.generator(out)?
            }
            "groupby" => {
                let names = ["attribute", "default", "case_sensitive"];
                let [path, default, case] = arguments.bind(name, names)?;
                let path = path.unwrap_or(Value::None);
                let items = value.iterate(&self.budget)?;
                let mut keys = Vec::new();
                for item in &items.items {
                    let key = self.by_path(item, &path)?;
                    keys.push(match (&default, key.is_undefined()) {
                        (Some(default), true) => default.clone(),
                        _ => key,
                    });
                }
                self.groups(&items.items, keys, truth(&case, false))?
            }
            _ => return Ok(Err(arguments)),
        }))
    }

    fn generator(&self, items: Vec<Value>) -> Result<Value> {
        Seq::value(&self.budget, SeqKind::Generator, items)
    }

    fn first_name(&self, arguments: &mut Arguments, missing: &'static str) -> Result<String> {
        if arguments.positional.is_empty() {
            fail!(TemplateFailed, "{missing}");
        }
        match arguments.positional.remove(0) {
            Value::Str(text) => {
                self.budget.scan(text.len())?;
                Ok(to_string(&text))
            }
            _ => fail!(TemplateFailed, "{missing}"),
        }
    }

    /// What lies at a path like `function.name` or `0`.
    fn by_path(&mut self, value: &Value, path: &Value) -> Result<Value> {
        let Value::Str(text) = path else {
            return self.item(value, path);
        };
        let mut value = value.clone();
        self.budget.scan(text.len())?;
        for part in to_string(text).split('.') {
            let key = match part.parse::<u32>() {
                Ok(number) => Value::Int(number.into()),
                Err(_) => self.text(part)?,
            };
            value = self.item(&value, &key)?;
        }
        Ok(value)
    }

    /// What a value is sorted by: letters count as small unless they must not.
    fn sort_key(&self, value: Value, case_sensitive: bool) -> Result<Value> {
        match &value {
            Value::Str(text) if !case_sensitive => self.with_case(text, Case::Lower),
            _ => Ok(value),
        }
    }

    /// `items` in the order of their keys; equal ones stay in order.
    pub fn sorted(
        &self,
        items: &[Value],
        keys: Vec<Value>,
        case_sensitive: bool,
        reverse: bool,
    ) -> Result<Vec<Value>> {
        let _room = self.budget.hold(items.len() * 2 * size_of::<Value>())?;
        let keys = keys
            .into_iter()
            .map(|key| self.sort_key(key, case_sensitive));
        let mut pairs: Vec<(Value, Value)> = keys
            .zip(items)
            .map(|(key, item)| Ok((key?, item.clone())))
            .collect::<Result<_>>()?;
        let mut failed: Option<Error> = None;
        pairs.sort_by(|(a, _), (b, _)| {
            let (a, b) = if reverse { (b, a) } else { (a, b) };
            match a.order(b, "<", &self.budget) {
                Ok(order) => order.unwrap_or(Ordering::Equal),
                Err(error) => {
                    failed.get_or_insert(error);
                    Ordering::Equal
                }
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(pairs.into_iter().map(|(_, item)| item).collect()),
        }
    }

    /// Pairs of a key and the list of its items, in the order of the keys.
    fn groups(&self, items: &[Value], keys: Vec<Value>, case_sensitive: bool) -> Result<Value> {
        let pair = |(key, item): (&Value, &Value)| {
            Seq::value(
                &self.budget,
                SeqKind::Tuple,
                vec![key.clone(), item.clone()],
            )
        };
        let pairs = keys
            .iter()
            .zip(items)
            .map(pair)
            .collect::<Result<Vec<_>>>()?;
        let pairs = self.sorted(&pairs, keys, case_sensitive, false)?;
        let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
        for pair in pairs {
            let Value::Seq(pair) = pair else { continue };
            let (key, item) = (pair.items[0].clone(), pair.items[1].clone());
            let compared = self.sort_key(key.clone(), case_sensitive)?;
            match groups.last_mut() {
                Some((known, _, group)) if known.same(&compared, &self.budget)? => group.push(item),
                _ => groups.push((compared, key, vec![item])),
            }
        }
        let group = |(_, key, items)| {
            let items = self.list(items)?;
            Seq::value(&self.budget, SeqKind::Tuple, vec![key, items])
        };
        let groups = groups.into_iter().map(group);
        self.list(groups.collect::<Result<_>>()?)
    }
}

fn copy(arguments: &Arguments) -> Arguments {
    Arguments {
        positional: arguments.positional.clone(),
        named: arguments.named.clone(),
    }
}
