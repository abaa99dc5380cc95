//! Methods of strings, mappings, sequences and loops.

use super::arguments::{Arguments, int, truth};
use super::text::{Builder, Char, Origin, find, find_last};
use super::value::{Object, Seq, SeqKind, Value};
use super::{Run, characters};
use crate::error::{Result, fail};

/// Which ends to strip.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Left,
    Right,
    Both,
}

/// Without the characters of `set` (white space if there is none) at the ends.
pub(super) fn strip<'t>(text: &'t [Char], set: Option<&[Char]>, ends: Ends) -> &'t [Char] {
    let drop = |c: &Char| match set {
        Some(set) => set.contains(c),
        None => c.is_space(),
    };
    let mut text = text;
    if ends != Ends::Right {
        let kept = text.iter().position(|c| !drop(c)).unwrap_or(text.len());
        text = &text[kept..];
    }
    if ends != Ends::Left {
        let kept = text
            .iter()
            .rposition(|c| !drop(c))
            .map_or(0, |last| last + 1);
        text = &text[..kept];
    }
    text
}

fn is_line_end(c: Char) -> bool {
    matches!(
        c.get(),
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The lines of a text, as `str.splitlines` cuts them.
pub(super) fn lines(text: &[Char], keep_ends: bool) -> Vec<&[Char]> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut at = 0;
    while at < text.len() {
        if !is_line_end(text[at]) {
            at += 1;
            continue;
        }
        let pair = text[at].is('\r') && text.get(at + 1).is_some_and(|c| c.is('\n'));
        let next = at + if pair { 2 } else { 1 };
        out.push(&text[start..if keep_ends { next } else { at }]);
        start = next;
        at = next;
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

/// Whether a sigma ends a word: a letter stands before it, and none behind, whatever marks there are
/// between them.
fn is_final(text: &[Char], at: usize) -> bool {
    let is_cased = |mut chars: &mut dyn Iterator<Item = &Char>| {
        let next = (&mut chars).find(|c| !characters::is_case_ignorable(c.get()));
        next.is_some_and(|c| characters::is_cased(c.get()))
    };
    is_cased(&mut text[..at].iter().rev()) && !is_cased(&mut text[at + 1..].iter())
}

/// How letters are to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Lower,
    /// Small, and the same for all ways to write a letter.
    Folded,
    Upper,
    Swapped,
    /// The first letter large, the rest small.
    Capital,
    /// The first letter of each run of letters large.
    Title,
}

impl Run<'_> {
    /// A text with other letters, each of the origin of the one it came from.
    pub fn with_case(&self, text: &[Char], case: Case) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        let mut inside = false;
        for (index, c) in text.iter().enumerate() {
            let letter = c.get();
            let upper = match case {
                Case::Lower | Case::Folded => false,
                Case::Upper => true,
                Case::Swapped => letter.is_lowercase(),
                Case::Capital => index == 0,
                Case::Title => !inside,
            };
            inside = letter.is_lowercase() || letter.is_uppercase();
            if case == Case::Folded && letter != 'ı' {
                let upper = letter.to_lowercase().flat_map(char::to_uppercase);
                for folded in upper.flat_map(char::to_lowercase) {
                    out.push(c.with(folded))?;
                }
                continue;
            }
            if !upper {
                if letter == 'Σ' && is_final(text, index) {
                    out.push(c.with('ς'))?;
                    continue;
                }
                for lower in letter.to_lowercase() {
                    out.push(c.with(lower))?;
                }
                continue;
            }
            // A letter that becomes several, like ß, is large only at its start in a title.
            let one = matches!(case, Case::Capital | Case::Title);
            for (place, upper) in letter.to_uppercase().enumerate() {
                if place == 0 || !one {
                    out.push(c.with(upper))?;
                } else {
                    for lower in upper.to_lowercase() {
                        out.push(c.with(lower))?;
                    }
                }
            }
        }
        Ok(Value::Str(out.finish()))
    }

    /// A list of strings.
    pub fn texts(&self, parts: &[&[Char]]) -> Result<Value> {
        let _room = self.budget.hold(parts.len() * size_of::<Value>())?;
        let items = parts.iter().map(|part| self.copy(part));
        self.list(items.collect::<Result<_>>()?)
    }

    /// The separator of a `split` and how often it may cut.
    fn split<'t>(
        &self,
        text: &'t [Char],
        arguments: Arguments,
        from_right: bool,
    ) -> Result<Vec<&'t [Char]>> {
        let [separator, limit] = arguments.bind("split", ["sep", "maxsplit"])?;
        let limit = int(&limit, "maxsplit", -1)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.budget.scan(text.len())?;
        let mut parts: Vec<&'t [Char]> = Vec::new();
        let mut rest = text;
        match separator {
            None | Some(Value::None) => {
                let ends = if from_right { Ends::Right } else { Ends::Left };
                rest = strip(rest, None, ends);
                while !rest.is_empty() {
                    let cut = match from_right {
                        _ if parts.len() == limit => None,
                        false => rest.iter().position(|c| c.is_space()),
                        true => rest.iter().rposition(|c| c.is_space()),
                    };
                    let Some(cut) = cut else {
                        let other = if from_right { Ends::Left } else { Ends::Right };
                        let last = if parts.len() == limit {
                            rest
                        } else {
                            strip(rest, None, other)
                        };
                        // What is left behind the last cut keeps the space at its far end.
                        parts.push(last);
                        break;
                    };
                    let (part, left) = match from_right {
                        false => (&rest[..cut], &rest[cut..]),
                        true => (&rest[cut + 1..], &rest[..=cut]),
                    };
                    parts.push(part);
                    rest = strip(left, None, ends);
                }
            }
            Some(Value::Str(separator)) => {
                if separator.is_empty() {
                    fail!(TemplateFailed, "empty separator");
                }
                while parts.len() < limit {
                    let found = match from_right {
                        false => find(&self.budget, rest, &separator, 0)?,
                        true => find_last(&self.budget, rest, &separator)?,
                    };
                    let Some(at) = found else { break };
                    let behind = at + separator.len();
                    let (part, left) = match from_right {
                        false => (&rest[..at], &rest[behind..]),
                        true => (&rest[behind..], &rest[..at]),
                    };
                    parts.push(part);
                    rest = left;
                }
                parts.push(rest);
            }
            Some(other) => fail!(
                TemplateFailed,
                "must be str or None, not {}",
                other.type_name()
            ),
        }
        if from_right {
            parts.reverse();
        }
        Ok(parts)
    }

    /// Calls a method that [`method_of`](super::attributes::method_of) has found.
    pub fn call_method(&mut self, of: &Value, name: &str, arguments: Arguments) -> Result<Value> {
        match of {
            Value::Str(text) if text.is_markup() => self.markup_method(text, name, arguments),
            Value::Str(text) => self.str_method(text, name, arguments),
            Value::Map(map) => match name {
                "get" => {
                    let [key, default] = arguments.bind("get", ["key", "default"])?;
                    let key = key.unwrap_or(Value::None);
                    let found = map.get(&key, &self.budget)?.cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "copy" => Ok(of.clone()),
                "keys" => self.view(map, SeqKind::Keys),
                "values" => self.view(map, SeqKind::Values),
                _ => self.view(map, SeqKind::Items),
            },
            Value::Seq(seq) => match name {
                "copy" => Ok(of.clone()),
                _ => {
                    let [item] = arguments.exactly(name)?;
                    let mut count = 0;
                    for (index, known) in seq.items.iter().enumerate() {
                        if known.same(&item, &self.budget)? {
                            if name == "index" {
                                return Ok(Value::Int(index as i128));
                            }
                            count += 1;
                        }
                    }
                    if name == "index" {
                        fail!(TemplateFailed, "the value is not in the list");
                    }
                    Ok(Value::Int(count))
                }
            },
            Value::Object(object) => match object.inner() {
                Object::Cycler { items, at, .. } => {
                    let now = at.get();
                    at.set(if name == "reset" {
                        0
                    } else {
                        (now + 1) % items.len()
                    });
                    Ok(match name {
                        "reset" => Value::None,
                        _ => items[now].clone(),
                    })
                }
                Object::Loop(state) if name == "cycle" => {
                    let items = arguments.positional;
                    match items.len() {
                        0 => fail!(TemplateFailed, "no items for cycling given"),
                        n => Ok(items[state.index.get() % n].clone()),
                    }
                }
                Object::Loop(state) => {
                    let asked = Seq::shared(&self.budget, SeqKind::Tuple, arguments.positional)?;
                    let mut last = state.last_asked.borrow_mut();
                    let same = match last.as_ref() {
                        Some(last) => Value::Seq(last.clone())
                            .same(&Value::Seq(asked.clone()), &self.budget)?,
                        None => false,
                    };
                    *last = Some(asked);
                    Ok(Value::Bool(!same))
                }
                _ => fail!(TemplateFailed, "there is no method '{name}'"),
            },
            _ => fail!(TemplateFailed, "there is no method '{name}'"),
        }
    }

    pub fn str_method(&mut self, text: &[Char], name: &str, arguments: Arguments) -> Result<Value> {
        self.budget.scan(text.len())?;
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [set] = arguments.bind(name, ["chars"])?;
                let set = match &set {
                    None | Some(Value::None) => None,
                    Some(Value::Str(set)) => {
                        self.budget.scan(set.len())?;
                        // A set of thousands would make this a product of two lengths.
                        self.budget
                            .work((text.len() as u64 / 16) * (set.len() as u64 / 16))?;
                        Some(&set[..])
                    }
                    Some(_) => fail!(TemplateFailed, "{name} arg must be None or str"),
                };
                let ends = match name {
                    "strip" => Ends::Both,
                    "lstrip" => Ends::Left,
                    _ => Ends::Right,
                };
                self.copy(strip(text, set, ends))
            }
            "split" => {
                let parts = self.split(text, arguments, false)?;
                self.texts(&parts)
            }
            "rsplit" => {
                let parts = self.split(text, arguments, true)?;
                self.texts(&parts)
            }
            "splitlines" => {
                let [keep] = arguments.bind(name, ["keepends"])?;
                self.texts(&lines(text, truth(&keep, false)))
            }
            "partition" | "rpartition" => {
                let [separator] = arguments.exactly(name)?;
                let separator = self.needle(&separator, name)?;
                let found = match name {
                    "partition" => find(&self.budget, text, &separator, 0)?,
                    _ => find_last(&self.budget, text, &separator)?,
                };
                let parts = match found {
                    Some(at) => {
                        let behind = at + separator.len();
                        [&text[..at], &text[at..behind], &text[behind..]]
                    }
                    None if name == "partition" => [text, &[], &[]],
                    None => [&[], &[], text],
                };
                let items = parts.into_iter().map(|part| self.copy(part));
                Seq::value(&self.budget, SeqKind::Tuple, items.collect::<Result<_>>()?)
            }
            "startswith" | "endswith" => {
                let [what, start, end] = arguments.bind(name, ["prefix", "start", "end"])?;
                let text = self.window(text, &start, &end)?;
                let fits = |what: &Value| match what {
                    Value::Str(part) if name == "startswith" => Ok(text.starts_with(part)),
                    Value::Str(part) => Ok(text.ends_with(part)),
                    _ => fail!(
                        TemplateFailed,
                        "{name} first arg must be str or a tuple of str, not {}",
                        what.type_name()
                    ),
                };
                let fits = match &what {
                    Some(Value::Seq(seq)) if seq.kind == SeqKind::Tuple => {
                        let mut any = false;
                        for part in &seq.items {
                            any |= fits(part)?;
                        }
                        any
                    }
                    Some(what) => fits(what)?,
                    None => fail!(TemplateFailed, "{name} takes a str"),
                };
                Ok(Value::Bool(fits))
            }
            "removeprefix" | "removesuffix" => {
                let [part] = arguments.exactly(name)?;
                let part = self.needle(&part, name)?;
                let left = match name {
                    "removeprefix" => text.strip_prefix(&part[..]),
                    _ => text.strip_suffix(&part[..]),
                };
                self.copy(left.unwrap_or(text))
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [what, start, end] = arguments.bind(name, ["sub", "start", "end"])?;
                let what = self.needle(&what.unwrap_or(Value::None), name)?;
                let window = self.window(text, &start, &end)?;
                let offset = window.as_ptr() as usize - text.as_ptr() as usize;
                let offset = offset / size_of::<Char>();
                if name == "count" {
                    return Ok(Value::Int(self.count(window, &what)? as i128));
                }
                let found = match name.starts_with('r') {
                    true => find_last(&self.budget, window, &what)?,
                    false => find(&self.budget, window, &what, 0)?,
                };
                match found {
                    Some(at) => Ok(Value::Int((at + offset) as i128)),
                    None if name.ends_with("find") => Ok(Value::Int(-1)),
                    None => fail!(TemplateFailed, "substring not found"),
                }
            }
            "replace" => {
                let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
                let old = self.needle(&old.unwrap_or(Value::None), name)?;
                let new = self.needle(&new.unwrap_or(Value::None), name)?;
                let count = int(&count, "count", -1)?;
                self.replace(
                    text,
                    &old,
                    &new,
                    usize::try_from(count).unwrap_or(usize::MAX),
                )
            }
            "join" => {
                let [list] = arguments.exactly(name)?;
                let mut out = Builder::new(&self.budget)?;
                for (index, item) in list.iterate(&self.budget)?.items.iter().enumerate() {
                    let Value::Str(item) = item else {
                        item.check_defined()?;
                        fail!(
                            TemplateFailed,
                            "sequence item {index}: expected str instance, {} found",
                            item.type_name()
                        );
                    };
                    if index > 0 {
                        out.extend(text)?;
                    }
                    out.extend(item)?;
                }
                Ok(Value::Str(out.finish()))
            }
            "lower" => self.with_case(text, Case::Lower),
            "casefold" => self.with_case(text, Case::Folded),
            "upper" => self.with_case(text, Case::Upper),
            "swapcase" => self.with_case(text, Case::Swapped),
            "capitalize" => self.with_case(text, Case::Capital),
            "title" => self.with_case(text, Case::Title),
            "center" | "ljust" | "rjust" => {
                let [width, fill] = arguments.bind(name, ["width", "fillchar"])?;
                let width = int(&width, "width", 0)?;
                let fill = match &fill {
                    None => Char::new(' ', Origin::Template),
                    Some(Value::Str(fill)) if fill.len() == 1 => fill[0],
                    Some(_) => fail!(
                        TemplateFailed,
                        "The fill character must be exactly one character long"
                    ),
                };
                let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
                let missing = width.saturating_sub(text.len());
                let left = match name {
                    "ljust" => 0,
                    "rjust" => missing,
                    // Python's rule for an odd rest.
                    _ => missing / 2 + (missing & width & 1),
                };
                let mut out = Builder::new(&self.budget)?;
                drop(
                    self.budget
                        .hold(missing.saturating_mul(size_of::<Char>()))?,
                );
                out.fill(fill, left)?;
                out.extend(text)?;
                out.fill(fill, missing - left)?;
                Ok(Value::Str(out.finish()))
            }
            "zfill" => {
                let [width] = arguments.exactly(name)?;
                let width = int(&Some(width), "width", 0)?;
                let missing = usize::try_from(width)
                    .unwrap_or(0)
                    .saturating_sub(text.len());
                let signed = text.first().is_some_and(|c| c.is('-') || c.is('+'));
                let (sign, rest) = text.split_at(usize::from(signed));
                let mut out = Builder::new(&self.budget)?;
                out.extend(sign)?;
                out.fill(Char::new('0', Origin::Template), missing)?;
                out.extend(rest)?;
                Ok(Value::Str(out.finish()))
            }
            "expandtabs" => {
                let [size] = arguments.bind(name, ["tabsize"])?;
                let size = usize::try_from(int(&size, "tabsize", 8)?).unwrap_or(0);
                let mut out = Builder::new(&self.budget)?;
                let mut column = 0usize;
                for c in text {
                    if c.is('\t') {
                        let n = size.checked_sub(column.checked_rem(size).unwrap_or(0));
                        out.fill(c.with(' '), n.unwrap_or(0))?;
                        column = 0;
                        continue;
                    }
                    column = if is_line_end(*c) { 0 } else { column + 1 };
                    out.push(*c)?;
                }
                Ok(Value::Str(out.finish()))
            }
            "format" => self.format_method(text, arguments),
            "format_map" => {
                let [map] = arguments.exactly(name)?;
                let Value::Map(map) = map else {
                    fail!(TemplateFailed, "format_map() takes a mapping");
                };
                let mut named = Arguments::default();
                for (key, value) in &map.entries {
                    named.named.push((self.shown(key)?.into(), value.clone()));
                }
                self.format_method(text, named)
            }
            _ => {
                let [] = arguments.exactly(name)?;
                Ok(Value::Bool(self.is_all(text, name)))
            }
        }
    }

    /// The methods that ask what kind of characters a text has.
    fn is_all(&self, text: &[Char], name: &str) -> bool {
        let all =
            |what: &dyn Fn(char) -> bool| !text.is_empty() && text.iter().all(|c| what(c.get()));
        let cased = |upper: bool| {
            let letters = || text.iter().map(|c| c.get());
            letters().any(|c| c.is_uppercase() || c.is_lowercase())
                && !letters().any(|c| {
                    if upper {
                        c.is_lowercase()
                    } else {
                        c.is_uppercase()
                    }
                })
        };
        match name {
            "isalnum" => all(&characters::is_alphanumeric),
            "isalpha" => all(&characters::is_alpha),
            "isascii" => text.iter().all(|c| c.get().is_ascii()),
            "isdecimal" => all(&characters::is_decimal),
            "isdigit" => all(&characters::is_digit),
            "isnumeric" => all(&characters::is_numeric),
            "isidentifier" => {
                all(&|c| c == '_' || c.is_alphanumeric())
                    && !text
                        .first()
                        .is_some_and(|c| characters::is_numeric(c.get()))
            }
            "islower" => cased(false),
            "isupper" => cased(true),
            "isspace" => !text.is_empty() && text.iter().all(|c| c.is_space()),
            "isprintable" => text.iter().all(|c| {
                let c = c.get();
                matches!(c, ' '..='~') || (!c.is_ascii() && self.is_printable(c))
            }),
            // istitle: every run of letters starts large and goes on small.
            _ => {
                let mut inside = false;
                let mut any = false;
                for c in text.iter().map(|c| c.get()) {
                    let (upper, lower) = (c.is_uppercase(), c.is_lowercase());
                    if (upper && inside) || (lower && !inside) {
                        return false;
                    }
                    inside = upper || lower;
                    any |= inside;
                }
                any
            }
        }
    }

    fn needle(&self, value: &Value, method: &str) -> Result<super::text::Text> {
        match value {
            Value::Str(text) => Ok(text.clone()),
            _ => {
                value.check_defined()?;
                fail!(
                    TemplateFailed,
                    "{method}() argument must be str, not {}",
                    value.type_name()
                )
            }
        }
    }

    /// `text[start:end]` of the methods that take these two.
    fn window<'t>(
        &self,
        text: &'t [Char],
        start: &Option<Value>,
        end: &Option<Value>,
    ) -> Result<&'t [Char]> {
        let length = text.len() as i128;
        let place = |value: &Option<Value>, default: i128| -> Result<usize> {
            let place = match value {
                Some(Value::None) => default,
                _ => int(value, "start or end", default)?,
            };
            let place = if place < 0 {
                place.saturating_add(length)
            } else {
                place
            };
            Ok(place.clamp(0, length) as usize)
        };
        let (start, end) = (place(start, 0)?, place(end, length)?);
        Ok(text.get(start..end).unwrap_or(&text[text.len()..]))
    }

    pub fn count(&self, text: &[Char], what: &[Char]) -> Result<usize> {
        if what.is_empty() {
            return Ok(text.len() + 1);
        }
        let (mut from, mut count) = (0, 0);
        while let Some(at) = find(&self.budget, text, what, from)? {
            from = at + what.len();
            count += 1;
        }
        Ok(count)
    }

    /// A text with up to `count` occurrences of `old` replaced.
    pub fn replace(
        &self,
        text: &[Char],
        old: &[Char],
        new: &[Char],
        count: usize,
    ) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        let mut from = 0;
        for _ in 0..count {
            if old.is_empty() {
                if from > 0 {
                    match text.get(from - 1) {
                        Some(c) => out.push(*c)?,
                        None => break,
                    }
                }
                out.extend(new)?;
                from += 1;
                continue;
            }
            let Some(at) = find(&self.budget, text, old, from)? else {
                break;
            };
            out.extend(&text[from..at])?;
            out.extend(new)?;
            from = at + old.len();
        }
        if old.is_empty() {
            from = from.saturating_sub(1);
        }
        out.extend(text.get(from..).unwrap_or_default())?;
        Ok(Value::Str(out.finish()))
    }
}
