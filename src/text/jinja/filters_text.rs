//! Filters over strings.

use super::Run;
use super::arguments::{Arguments, int, truth};
use super::methods::{Case, Ends, lines, strip};
use super::text::{Builder, Char, Origin, Text};
use super::value::{Map, Seq, SeqKind, Value};
use crate::error::{Result, fail};

/// Filters that make markup of markup.
const KEEP_MARKUP: [&str; 8] = [
    "lower",
    "upper",
    "capitalize",
    "trim",
    "indent",
    "center",
    "truncate",
    "format",
];

impl Run<'_> {
    /// The value of a filter over strings. Other values count as what they print as.
    pub fn text_filter(
        &mut self,
        name: &str,
        value: &Value,
        arguments: Arguments,
    ) -> Result<Value> {
        let Value::Str(text) = self.to_str(value)? else {
            return Ok(Value::None);
        };
        self.budget.scan(text.len())?;
        let values = match name {
            "format" if text.is_markup() => {
                let mut values = arguments;
                for value in &mut values.positional {
                    *value = self.values_for_markup(value)?;
                }
                for (_, value) in &mut values.named {
                    *value = self.values_for_markup(value)?;
                }
                values
            }
            _ => arguments,
        };
        let made = self.plain_text_filter(name, &text, values)?;
        match text.is_markup() && KEEP_MARKUP.contains(&name) {
            true => self.as_markup(made),
            false => Ok(made),
        }
    }

    fn plain_text_filter(
        &mut self,
        name: &str,
        text: &Text,
        arguments: Arguments,
    ) -> Result<Value> {
        let text = text.clone();
        match name {
            "lower" | "upper" | "capitalize" | "title" => {
                let [] = arguments.exactly(name)?;
                match name {
                    "lower" => self.with_case(&text, Case::Lower),
                    "upper" => self.with_case(&text, Case::Upper),
                    "capitalize" => self.with_case(&text, Case::Capital),
                    _ => self.title(&text),
                }
            }
            "trim" => {
                let [set] = arguments.bind(name, ["chars"])?;
                let set = set.filter(|set| !matches!(set, Value::None));
                let named = set.map(|set| ("chars", set));
                let positional = named.into_iter().map(|(_, set)| set).collect();
                let arguments = Arguments {
                    positional,
                    named: Vec::new(),
                };
                let text = Value::Str(text);
                self.call_method(&text, "strip", arguments)
            }
            "replace" => {
                let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
                let part = |value: Option<Value>| match value {
                    Some(value) => self.to_str(&value),
                    None => fail!(TemplateFailed, "replace takes two strings"),
                };
                let (Value::Str(old), Value::Str(new)) = (part(old)?, part(new)?) else {
                    return Ok(Value::None);
                };
                let count = match count {
                    None | Some(Value::None) => -1,
                    count => int(&count, "count", -1)?,
                };
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                self.replace(&text, &old, &new, count)
            }
            "indent" => {
                let [width, first, blank] = arguments.bind(name, ["width", "first", "blank"])?;
                let indent = match &width {
                    Some(Value::Str(text)) => text.clone(),
                    width => {
                        let width = int(width, "width", 4)?;
                        let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX / 64);
                        let mut out = Builder::new(&self.budget)?;
                        out.fill(Char::new(' ', Origin::Template), width)?;
                        out.finish()
                    }
                };
                self.indent(&text, &indent, truth(&first, false), truth(&blank, false))
            }
            "center" => {
                let [width] = arguments.bind(name, ["width"])?;
                let arguments = Arguments {
                    positional: vec![width.unwrap_or(Value::Int(80))],
                    named: Vec::new(),
                };
                let text = Value::Str(text);
                self.call_method(&text, "center", arguments)
            }
            "format" => {
                let values = if arguments.named.is_empty() {
                    Seq::value(&self.budget, SeqKind::Tuple, arguments.positional)?
                } else if arguments.positional.is_empty() {
                    let named = arguments.named.into_iter();
                    let named = named.map(|(name, value)| Ok((self.text(&name)?, value)));
                    Map::value(&self.budget, named.collect::<Result<_>>()?)?
                } else {
                    fail!(
                        TemplateFailed,
                        "can't handle positional and keyword arguments at the same time"
                    );
                };
                self.percent(&text, &values)
            }
            "urlize" => self.urlize(&text, arguments),
            "urlencode" => {
                let [] = arguments.exactly(name)?;
                let mut out = Builder::new(&self.budget)?;
                for c in text.iter() {
                    let letter = c.get();
                    if letter.is_ascii_alphanumeric() || "_.-~/".contains(letter) {
                        out.push(*c)?;
                        continue;
                    }
                    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                        out.str(&format!("%{byte:02X}"), c.origin())?;
                    }
                }
                Ok(Value::Str(out.finish()))
            }
            "wordcount" => {
                let [] = arguments.exactly(name)?;
                let is_word = |c: &Char| c.is('_') || c.get().is_alphanumeric();
                let starts =
                    |at: &usize| is_word(&text[*at]) && (*at == 0 || !is_word(&text[at - 1]));
                Ok(Value::Int((0..text.len()).filter(starts).count() as i128))
            }
            "truncate" => {
                let names = ["length", "killwords", "end", "leeway"];
                let [length, kill, end, leeway] = arguments.bind(name, names)?;
                let length = usize::try_from(int(&length, "length", 255)?).unwrap_or(0);
                let leeway = usize::try_from(int(&leeway, "leeway", 5)?).unwrap_or(0);
                let end = match &end {
                    Some(end) => self.to_str(end)?,
                    None => self.text("...")?,
                };
                let Value::Str(end) = end else {
                    return Ok(Value::None);
                };
                if text.len() <= length.saturating_add(leeway) {
                    return Ok(Value::Str(text));
                }
                let mut kept = &text[..length.saturating_sub(end.len())];
                if !truth(&kill, false)
                    && let Some(space) = kept.iter().rposition(|c| c.is(' '))
                {
                    kept = &kept[..space];
                }
                let mut out = Builder::new(&self.budget)?;
                out.extend(kept)?;
                out.extend(&end)?;
                Ok(Value::Str(out.finish()))
            }
            "striptags" => {
                let [] = arguments.exactly(name)?;
                let mut out = Builder::new(&self.budget)?;
                let (mut inside, mut space) = (false, false);
                for c in text.iter() {
                    match c.get() {
                        '<' => inside = true,
                        '>' if inside => inside = false,
                        _ if inside => {}
                        _ if c.is_space() => space = true,
                        _ => {
                            if space && !out.chars().is_empty() {
                                out.plain(" ")?;
                            }
                            space = false;
                            out.push(*c)?;
                        }
                    }
                }
                Ok(Value::Str(out.finish()))
            }
            "wordwrap" => {
                let [width] = arguments.bind(name, ["width"])?;
                let width = usize::try_from(int(&width, "width", 79)?.max(1)).unwrap_or(usize::MAX);
                self.wrap(&text, width)
            }
            _ => fail!(TemplateFailed, "No filter named '{name}'."),
        }
    }

    /// Jinja's `title`: large letters behind white space and opening brackets.
    fn title(&self, text: &[Char]) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        let is_break = |c: &Char| c.is_space() || "-({[<".contains(c.get());
        for word in text.chunk_by(|a, b| is_break(a) == is_break(b)) {
            let (first, rest) = word.split_at(1);
            for (part, case) in [(first, Case::Upper), (rest, Case::Lower)] {
                self.write_str(&self.with_case(part, case)?, &mut out)?;
            }
        }
        Ok(Value::Str(out.finish()))
    }

    fn indent(&self, text: &[Char], indent: &Text, first: bool, blank: bool) -> Result<Value> {
        // Jinja adds a line end before it cuts, so that a last empty line counts.
        let mut all = lines(text, false);
        if text.is_empty() || text.last().is_some_and(|c| c.is('\n')) {
            all.push(&[]);
        }
        let mut out = Builder::new(&self.budget)?;
        for (index, line) in all.iter().enumerate() {
            if index > 0 {
                out.plain("\n")?;
            }
            if (index > 0 && (blank || !line.is_empty())) || (index == 0 && first) {
                out.extend(indent)?;
            }
            out.extend(line)?;
        }
        Ok(Value::Str(out.finish()))
    }

    /// Each line broken at spaces so that none is longer than `width`, where words allow it.
    fn wrap(&self, text: &[Char], width: usize) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        for (index, line) in lines(text, false).into_iter().enumerate() {
            if index > 0 {
                out.plain("\n")?;
            }
            let mut rest = line;
            while rest.len() > width {
                let space = rest[..=width].iter().rposition(|c| c.is(' '));
                let cut = space.filter(|at| *at > 0).unwrap_or(width);
                out.extend(strip(&rest[..cut], None, Ends::Right))?;
                out.plain("\n")?;
                rest = strip(&rest[cut..], None, Ends::Left);
            }
            out.extend(rest)?;
        }
        Ok(Value::Str(out.finish()))
    }
}
