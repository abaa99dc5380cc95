//! Values of a template, which are those of Python.

use super::MAX_DEPTH;
use super::macros::Macro;
use super::names::{Index, Names};
use super::scope::LoopState;
use super::text::{Char, Text};
use crate::budget::{Budget, Hold};
use crate::error::{Result, fail};
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;

/// Any value. Copies share what is large.
#[derive(Clone)]
pub(super) enum Value {
    /// Nothing was found; what was looked for, for messages.
    Undefined(Option<Rc<str>>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    Seq(Rc<Seq>),
    Map(Rc<Map>),
    Object(Rc<Held>),
}

/// What a sequence is in Python, which decides how it prints and what may be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    /// What filters like `map` give: no length, no items, only to be walked through.
    Generator,
    Range,
    Keys,
    Values,
    Items,
}

pub(super) struct Seq {
    pub kind: SeqKind,
    pub items: Vec<Value>,
    depth: u32,
    _hold: Hold,
}

/// A mapping in the order of insertion.
pub(super) struct Map {
    pub entries: Vec<(Value, Value)>,
    /// Made when it is needed.
    index: OnceCell<Index>,
    depth: u32,
    _hold: Hold,
}

/// Values that are neither text nor numbers nor collections.
pub(super) enum Object {
    /// A whole number beyond 128 bits, in decimal: it can be passed on and printed, not reckoned with.
    Integer(Box<str>),
    Namespace(RefCell<Names>),
    Macro(Macro),
    /// A function of the environment.
    Function(Function),
    /// A method with the value that it is of.
    Method {
        of: Value,
        name: &'static str,
        depth: u32,
    },
    Loop(LoopState),
    Cycler {
        items: Vec<Value>,
        at: Cell<usize>,
        depth: u32,
    },
    Joiner {
        separator: Value,
        used: Cell<bool>,
        depth: u32,
    },
}

/// An object and the memory that it takes.
pub(super) struct Held {
    object: Object,
    _hold: Hold,
}

impl Held {
    pub fn new(budget: &Rc<Budget>, object: Object) -> Result<Rc<Held>> {
        let hold = budget.hold(size_of::<Held>() + 64)?;
        Ok(Rc::new(Held {
            object,
            _hold: hold,
        }))
    }

    pub fn inner(&self) -> &Object {
        &self.object
    }
}

/// The functions that templates find by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
    Generation,
}

impl Seq {
    pub fn value(budget: &Rc<Budget>, kind: SeqKind, items: Vec<Value>) -> Result<Value> {
        Ok(Value::Seq(Seq::shared(budget, kind, items)?))
    }

    pub fn shared(budget: &Rc<Budget>, kind: SeqKind, items: Vec<Value>) -> Result<Rc<Seq>> {
        budget.work(items.len() as u64 / 4)?;
        let hold = budget.hold(80 + items.capacity() * size_of::<Value>())?;
        let depth = nested(items.iter())?;
        Ok(Rc::new(Seq {
            kind,
            items,
            depth,
            _hold: hold,
        }))
    }
}

/// What an entry of a mapping takes: key, value, and their share of the index.
const ENTRY_BYTES: usize = size_of::<(Value, Value)>() + 16;
/// Mappings of up to so many entries are searched one by one.
const FEW: usize = 8;

impl Map {
    /// Later entries with the same key replace the value of earlier ones.
    pub fn value(budget: &Rc<Budget>, list: Vec<(Value, Value)>) -> Result<Value> {
        let hold = budget.hold(80 + list.capacity() * ENTRY_BYTES)?;
        let depth = nested(list.iter().flat_map(|(key, value)| [key, value]))?;
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(list.len());
        let mut index = Index::new();
        for (key, value) in list {
            key.check_hashable()?;
            budget.work(1)?;
            match index.find(&entries, &key, budget)? {
                Some(known) => entries[known].1 = value,
                None => {
                    entries.push((key, value));
                    index.add(&entries, entries.len() - 1);
                }
            }
        }
        Ok(Value::Map(Rc::new(Map {
            entries,
            index: OnceCell::from(index),
            depth,
            _hold: hold,
        })))
    }

    /// Entries whose keys are known to differ, as those of a JSON object.
    pub fn distinct(budget: &Rc<Budget>, entries: Vec<(Value, Value)>) -> Result<Value> {
        let hold = budget.hold(80 + entries.capacity() * ENTRY_BYTES)?;
        let depth = nested(entries.iter().map(|(_, value)| value))?;
        Ok(Value::Map(Rc::new(Map {
            entries,
            index: OnceCell::new(),
            depth,
            _hold: hold,
        })))
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::of(&self.entries))
    }

    pub fn get(&self, key: &Value, budget: &Budget) -> Result<Option<&Value>> {
        if self.entries.len() > FEW {
            let place = self.index().find(&self.entries, key, budget)?;
            return Ok(place.map(|place| &self.entries[place].1));
        }
        for (known, value) in &self.entries {
            if known.same(key, budget)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value of a key that is short, which costs nothing to speak of.
    pub fn get_str(&self, key: &str) -> Option<&Value> {
        if self.entries.len() > FEW {
            let place = self.index().find_str(&self.entries, key)?;
            return Some(&self.entries[place].1);
        }
        let is = |known: &Value| matches!(known, Value::Str(text) if text.is(key));
        let found = self.entries.iter().find(|(known, _)| is(known));
        found.map(|(_, value)| value)
    }
}

/// The depth of a collection of `items`; an error if that is too deep.
pub(super) fn nested<'a>(items: impl Iterator<Item = &'a Value>) -> Result<u32> {
    let depth = items.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH {
        fail!(TemplateFailed, "values are nested deeper than {MAX_DEPTH}");
    }
    Ok(depth)
}

impl Value {
    fn depth(&self) -> u32 {
        match self {
            Value::Seq(seq) => seq.depth,
            Value::Map(map) => map.depth,
            Value::Object(object) => match object.inner() {
                Object::Method { depth, .. }
                | Object::Cycler { depth, .. }
                | Object::Joiner { depth, .. } => *depth,
                Object::Loop(state) => state.depth_of_items,
                Object::Integer(_)
                | Object::Namespace(_)
                | Object::Macro(_)
                | Object::Function(_) => 0,
            },
            _ => 0,
        }
    }

    /// The digits of a whole number beyond 128 bits.
    pub fn as_digits(&self) -> Option<&str> {
        match self {
            Value::Object(object) => match object.inner() {
                Object::Integer(digits) => Some(digits),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn object(budget: &Rc<Budget>, object: Object) -> Result<Value> {
        Ok(Value::Object(Held::new(budget, object)?))
    }

    /// The name of the type, as Python has it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple => "tuple",
                SeqKind::Generator => "generator",
                SeqKind::Range => "range",
                SeqKind::Keys => "dict_keys",
                SeqKind::Values => "dict_values",
                SeqKind::Items => "dict_items",
            },
            Value::Map(_) => "dict",
            Value::Object(object) => match object.inner() {
                Object::Integer(_) => "int",
                Object::Namespace(_) => "Namespace",
                Object::Macro(_) => "Macro",
                Object::Function(_) => "function",
                Object::Method { .. } => "builtin_function_or_method",
                Object::Loop(_) => "LoopContext",
                Object::Cycler { .. } => "Cycler",
                Object::Joiner { .. } => "Joiner",
            },
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's truth.
    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::Seq(seq) => seq.kind == SeqKind::Generator || !seq.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Object(_) => true,
        }
    }

    /// A number that booleans count as, too.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// Equality, as Python's `==`. Pays for its work.
    pub fn same(&self, other: &Value, budget: &Budget) -> Result<bool> {
        budget.work(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                budget.scan(a.len())?;
                a[..] == b[..]
            }
            (Value::Seq(a), Value::Seq(b)) => {
                if Rc::ptr_eq(a, b) {
                    return Ok(true);
                }
                if a.kind != b.kind
                    || a.kind == SeqKind::Generator
                    || a.items.len() != b.items.len()
                {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.same(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key, budget)? {
                        Some(other) if other.same(value, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Object(a), Value::Object(b)) => match (a.inner(), b.inner()) {
                (Object::Integer(a), Object::Integer(b)) => a == b,
                _ => Rc::ptr_eq(a, b),
            },
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            },
        })
    }

    /// Order, as Python's `<` and its like have it; None for a NaN. Pays for its work.
    /// Errors: values of types that have no order.
    pub fn order(&self, other: &Value, sign: &str, budget: &Budget) -> Result<Option<Ordering>> {
        budget.work(1)?;
        match (self, other) {
            (Value::Str(a), Value::Str(b)) => {
                budget.scan(a.len().min(b.len()))?;
                return Ok(Some(a[..].cmp(&b[..])));
            }
            (Value::Seq(a), Value::Seq(b))
                if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
            {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.same(b, budget)? {
                        return a.order(b, sign, budget);
                    }
                }
                return Ok(Some(a.items.len().cmp(&b.items.len())));
            }
            _ => {}
        }
        match (self.as_int(), other.as_int()) {
            (Some(a), Some(b)) => Ok(Some(a.cmp(&b))),
            _ => match (self.as_float(), other.as_float()) {
                (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
                _ => {
                    self.check_defined()?;
                    other.check_defined()?;
                    fail!(
                        TemplateFailed,
                        "'{sign}' not supported between instances of '{}' and '{}'",
                        self.type_name(),
                        other.type_name()
                    )
                }
            },
        }
    }

    /// An error that says what is undefined.
    pub fn check_defined(&self) -> Result<()> {
        match self {
            Value::Undefined(Some(what)) => fail!(TemplateFailed, "{what}"),
            Value::Undefined(None) => fail!(TemplateFailed, "a value is undefined"),
            _ => Ok(()),
        }
    }

    fn check_hashable(&self) -> Result<()> {
        match self {
            Value::Map(_) => fail!(TemplateFailed, "unhashable type: 'dict'"),
            Value::Seq(seq) if seq.kind == SeqKind::List => {
                fail!(TemplateFailed, "unhashable type: 'list'")
            }
            _ => Ok(()),
        }
    }

    /// The items that a loop over this value sees.
    pub fn iterate(&self, budget: &Rc<Budget>) -> Result<Rc<Seq>> {
        let items = match self {
            Value::Seq(seq) => return Ok(seq.clone()),
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                let one = |c: &Char| Text::copy(budget, &[*c]).map(Value::Str);
                text.iter().map(one).collect::<Result<Vec<_>>>()?
            }
            Value::Map(map) => map.entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => fail!(
                TemplateFailed,
                "'{}' object is not iterable",
                self.type_name()
            ),
        };
        Seq::shared(budget, SeqKind::List, items)
    }

    /// What `len` says.
    pub fn length(&self) -> Result<usize> {
        match self {
            Value::Undefined(_) => Ok(0),
            Value::Str(text) => Ok(text.len()),
            Value::Seq(seq) if seq.kind != SeqKind::Generator => Ok(seq.items.len()),
            Value::Map(map) => Ok(map.entries.len()),
            Value::Object(object) => match object.inner() {
                Object::Loop(state) => Ok(state.items.items.len()),
                _ => self.no_length(),
            },
            _ => self.no_length(),
        }
    }

    fn no_length(&self) -> Result<usize> {
        fail!(
            TemplateFailed,
            "object of type '{}' has no len()",
            self.type_name()
        )
    }
}
