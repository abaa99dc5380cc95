//! The functions that templates find by name.

use super::arguments::{Arguments, int};
use super::names::names;
use super::text::to_string;
use super::value::{Function, Held, Map, Object, Seq, SeqKind, Value, nested};
use super::{Cycle, Run, clock};
use crate::error::{Result, fail};
use std::cell::{Cell, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest range, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

impl Run<'_> {
    pub fn call_function(&mut self, function: Function, arguments: Arguments) -> Result<Value> {
        match function {
            Function::Range => self.range(arguments),
            Function::Dict => self.dict(arguments),
            Function::Namespace => {
                let Value::Map(map) = self.dict(arguments)? else {
                    fail!(TemplateFailed, "namespace() takes names");
                };
                let object = Object::Namespace(RefCell::new(names()));
                let object = Held::new(&self.budget, object)?;
                self.cycles.push(Cycle::Namespace(object.clone()));
                if let Object::Namespace(entries) = object.inner() {
                    for (key, value) in &map.entries {
                        let name = self.shown(key)?;
                        self.set_in_namespace(entries, &name, value.clone())?;
                    }
                }
                Ok(Value::Object(object))
            }
            Function::Cycler => {
                let items = arguments.positional;
                if items.is_empty() {
                    fail!(TemplateFailed, "at least one item has to be provided");
                }
                let depth = nested(items.iter())?;
                let at = Cell::new(0);
                Value::object(&self.budget, Object::Cycler { items, at, depth })
            }
            Function::Joiner => {
                let [separator] = arguments.bind("joiner", ["sep"])?;
                let separator = match separator {
                    Some(separator) => separator,
                    None => self.text(", ")?,
                };
                let object = Object::Joiner {
                    depth: nested(std::iter::once(&separator))?,
                    separator,
                    used: Cell::new(false),
                };
                Value::object(&self.budget, object)
            }
            Function::RaiseException => {
                let [message] = arguments.bind("raise_exception", ["message"])?;
                let message = self.shown(&message.unwrap_or(Value::None))?;
                fail!(TemplateFailed, "{message}")
            }
            Function::StrftimeNow => {
                let [format] = arguments.bind("strftime_now", ["format"])?;
                let Some(Value::Str(format)) = format else {
                    fail!(TemplateFailed, "strftime_now() takes a format");
                };
                self.budget.work(format.len() as u64)?;
                let now = self.now.unwrap_or_else(|| {
                    let since = SystemTime::now().duration_since(UNIX_EPOCH);
                    since.map_or(0, |since| since.as_secs() as i64)
                });
                let text = clock::strftime(&to_string(&format), now)?;
                self.text(&text)
            }
            Function::Generation => {
                let [caller] = arguments.bind("generation", ["caller"])?;
                self.call(&caller.unwrap_or(Value::None), Arguments::default())
            }
        }
    }

    fn range(&mut self, arguments: Arguments) -> Result<Value> {
        let given = arguments.positional.len();
        let [a, b, step] = arguments.bind("range", ["start", "stop", "step"])?;
        if given == 0 {
            fail!(TemplateFailed, "range expected at least 1 argument, got 0");
        }
        let (start, stop) = match b {
            Some(_) => (int(&a, "start", 0)?, int(&b, "stop", 0)?),
            None => (0, int(&a, "stop", 0)?),
        };
        let step = int(&step, "step", 1)?;
        if step == 0 {
            fail!(TemplateFailed, "range() arg 3 must not be zero");
        }
        let span = match step > 0 {
            true => stop.saturating_sub(start),
            false => start.saturating_sub(stop),
        };
        let count = match span {
            1.. => (span - 1) / step.saturating_abs() + 1,
            _ => 0,
        };
        if count > MAX_RANGE {
            fail!(
                TemplateFailed,
                "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."
            );
        }
        self.budget.work(count as u64)?;
        let items = (0..count).map(|index| Value::Int(start + index * step));
        Seq::value(&self.budget, SeqKind::Range, items.collect())
    }

    /// `dict(mapping or pairs, names)`.
    fn dict(&mut self, arguments: Arguments) -> Result<Value> {
        let mut entries = Vec::new();
        for value in &arguments.positional {
            match value {
                Value::Map(map) => {
                    self.budget.work(map.entries.len() as u64)?;
                    entries.extend(map.entries.iter().cloned());
                }
                other => {
                    for pair in &other.iterate(&self.budget)?.items {
                        match &pair.iterate(&self.budget)?.items[..] {
                            [key, value] => entries.push((key.clone(), value.clone())),
                            _ => fail!(TemplateFailed, "dict() takes pairs"),
                        }
                    }
                }
            }
        }
        for (name, value) in arguments.named {
            entries.push((self.text(&name)?, value));
        }
        Map::value(&self.budget, entries)
    }
}
