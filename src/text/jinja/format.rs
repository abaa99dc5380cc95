//! `%` and `str.format` of Python.

use super::Run;
use super::arguments::Arguments;
use super::print::float_repr;
use super::text::{Builder, Char, Origin, Text, to_string};
use super::value::{SeqKind, Value};
use crate::error::{Result, fail};

/// How a field is to be laid out.
#[derive(Default)]
struct Layout {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    comma: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

/// Most digits behind a point; more than a float has.
const MAX_PRECISION: usize = 400;

fn digits(chars: &[char], at: &mut usize) -> Result<Option<usize>> {
    let start = *at;
    let mut number = 0usize;
    while let Some(digit) = chars.get(*at).and_then(|c| c.to_digit(10)) {
        number = number.saturating_mul(10).saturating_add(digit as usize);
        *at += 1;
    }
    Ok((*at > start).then_some(number))
}

/// A float with so many digits behind the point, or in the form that `kind` names.
fn float_text(value: f64, layout: &Layout) -> String {
    if !value.is_finite() {
        let text = float_repr(value);
        return if layout.kind.is_uppercase() {
            text.to_uppercase()
        } else {
            text
        };
    }
    let precision = layout.precision.unwrap_or(6).min(MAX_PRECISION);
    let scientific = |precision: usize| {
        let text = format!("{value:.precision$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        (
            mantissa.to_owned(),
            exponent,
            format!("e{sign}{:02}", exponent.abs()),
        )
    };
    let text = match layout.kind.to_ascii_lowercase() {
        'e' => {
            let (mantissa, _, exponent) = scientific(precision);
            mantissa + &exponent
        }
        'g' => {
            let significant = precision.max(1);
            let (mantissa, exponent, shown) = scientific(significant - 1);
            let strip = |text: String| match text.contains('.') && !layout.alternate {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            };
            if exponent < -4 || exponent >= significant as i32 {
                strip(mantissa) + &shown
            } else {
                let behind = (significant as i32 - 1 - exponent).max(0) as usize;
                strip(format!("{value:.behind$}"))
            }
        }
        '%' => format!("{:.precision$}%", value * 100.0),
        _ => format!("{value:.precision$}"),
    };
    if layout.kind.is_uppercase() {
        text.to_uppercase()
    } else {
        text
    }
}

fn grouped(number: &str) -> String {
    let (sign, rest) = number.split_at(usize::from(number.starts_with('-')));
    let (whole, behind) = rest.split_at(rest.find(['.', 'e']).unwrap_or(rest.len()));
    let mut out = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + behind
}

impl Run<'_> {
    /// `format % values`.
    pub fn percent(&self, format: &[Char], values: &Value) -> Result<Value> {
        let one;
        let (list, map) = match values {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => (&seq.items[..], None),
            Value::Map(map) => {
                one = [values.clone()];
                (&one[..], Some(map))
            }
            other => {
                one = [other.clone()];
                (&one[..], None)
            }
        };
        let mut next = list.iter();
        let mut take = || match next.next() {
            Some(value) => Ok(value.clone()),
            None => fail!(TemplateFailed, "not enough arguments for format string"),
        };
        let mut out = Builder::new(&self.budget)?;
        let mut used_map = false;
        let mut at = 0;
        while at < format.len() {
            let c = format[at];
            at += 1;
            if !c.is('%') {
                out.push(c)?;
                continue;
            }
            let rest: Vec<char> = format[at..].iter().take(400).map(|c| c.get()).collect();
            let mut i = 0;
            let mut named = None;
            if rest.first() == Some(&'(') {
                let Some(end) = rest.iter().position(|c| *c == ')') else {
                    fail!(TemplateFailed, "incomplete format key");
                };
                let key: String = rest[1..end].iter().collect();
                let Some(map) = map else {
                    fail!(TemplateFailed, "format requires a mapping");
                };
                used_map = true;
                named = Some(match map.get_str(&key) {
                    Some(value) => value.clone(),
                    None => fail!(TemplateFailed, "format: there is no key '{key}'"),
                });
                i = end + 1;
            }
            let mut layout = Layout::default();
            while let Some(flag) = rest.get(i) {
                match flag {
                    '-' => layout.align = Some('<'),
                    '+' | ' ' => layout.sign = layout.sign.filter(|s| *s == '+').or(Some(*flag)),
                    '0' => layout.zero = true,
                    '#' => layout.alternate = true,
                    _ => break,
                }
                i += 1;
            }
            let starred = |i: &mut usize, take: &mut dyn FnMut() -> Result<Value>| {
                if rest.get(*i) != Some(&'*') {
                    return digits(&rest, i);
                }
                *i += 1;
                match take()?.as_int() {
                    Some(number) => Ok(Some(usize::try_from(number.max(0)).unwrap_or(usize::MAX))),
                    None => fail!(TemplateFailed, "* wants int"),
                }
            };
            layout.width = starred(&mut i, &mut take)?.unwrap_or(0);
            if rest.get(i) == Some(&'.') {
                i += 1;
                layout.precision = Some(starred(&mut i, &mut take)?.unwrap_or(0));
            }
            while matches!(rest.get(i), Some('h' | 'l' | 'L')) {
                i += 1;
            }
            let Some(kind) = rest.get(i).copied() else {
                fail!(TemplateFailed, "incomplete format");
            };
            at += i + 1;
            if kind == '%' {
                out.plain("%")?;
                continue;
            }
            let value = match named {
                Some(value) => value,
                None => take()?,
            };
            layout.kind = kind;
            self.percent_field(&value, layout, &mut out)?;
        }
        if !used_map && map.is_none() && next.next().is_some() {
            fail!(
                TemplateFailed,
                "not all arguments converted during string formatting"
            );
        }
        Ok(Value::Str(out.finish()))
    }

    fn percent_field(&self, value: &Value, mut layout: Layout, out: &mut Builder) -> Result<()> {
        layout.align = layout.align.or(Some('>'));
        let kind = layout.kind;
        match kind {
            's' | 'r' | 'a' => {
                let mut text = Builder::new(&self.budget)?;
                match kind {
                    's' => self.write_str(value, &mut text)?,
                    _ => self.write_repr(value, &mut text)?,
                }
                let length = layout
                    .precision
                    .unwrap_or(usize::MAX)
                    .min(text.chars().len());
                layout.zero = false;
                self.lay_out(&text.chars()[..length], &layout, out)
            }
            'c' => {
                let text = match value {
                    Value::Str(text) if text.len() == 1 => text.clone(),
                    _ => match value.as_int().and_then(|n| char::from_u32(n as u32)) {
                        Some(c) => Text::new(&self.budget, c.encode_utf8(&mut [0; 4]))?,
                        None => fail!(TemplateFailed, "%c requires int or char"),
                    },
                };
                self.lay_out(&text, &layout, out)
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let number = match value {
                    Value::Float(number) if matches!(kind, 'd' | 'i' | 'u') => {
                        Some(*number as i128)
                    }
                    _ => value.as_int(),
                };
                let Some(number) = number else {
                    value.check_defined()?;
                    fail!(
                        TemplateFailed,
                        "%{kind} format: a real number is required, not {}",
                        value.type_name()
                    );
                };
                self.number(&int_text(number, &layout), &layout, out)
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' => match value.as_float() {
                Some(number) => self.number(&float_text(number, &layout), &layout, out),
                None => {
                    value.check_defined()?;
                    fail!(
                        TemplateFailed,
                        "must be real number, not {}",
                        value.type_name()
                    )
                }
            },
            other => fail!(TemplateFailed, "unsupported format character '{other}'"),
        }
    }

    /// A number with its sign, filled up with zeros behind the sign or with spaces.
    fn number(&self, text: &str, layout: &Layout, out: &mut Builder) -> Result<()> {
        let mut text = text.to_owned();
        if let Some(sign @ ('+' | ' ')) = layout.sign
            && !text.starts_with('-')
        {
            text.insert(0, sign);
        }
        if layout.zero && layout.align != Some('<') {
            let missing = layout.width.saturating_sub(text.len());
            drop(self.budget.hold(missing)?);
            let at = usize::from(text.starts_with(['-', '+', ' ']));
            text.insert_str(at, &"0".repeat(missing));
        }
        let text = Text::new(&self.budget, &text)?;
        self.lay_out(&text, layout, out)
    }

    fn lay_out(&self, text: &[Char], layout: &Layout, out: &mut Builder) -> Result<()> {
        let missing = layout.width.saturating_sub(text.len());
        let before = match layout.align {
            Some('>' | '=') => missing,
            Some('^') => missing / 2,
            _ => 0,
        };
        let fill = Char::new(layout.fill.unwrap_or(' '), Origin::Template);
        out.fill(fill, before)?;
        out.extend(text)?;
        out.fill(fill, missing - before)
    }

    /// `format.format(arguments)`.
    pub fn format_method(&mut self, format: &[Char], arguments: Arguments) -> Result<Value> {
        let mut out = Builder::new(&self.budget)?;
        let mut counter = 0;
        let mut at = 0;
        while at < format.len() {
            let c = format[at];
            let doubled = format.get(at + 1).is_some_and(|next| *next == c);
            at += 1;
            if (c.is('{') || c.is('}')) && doubled {
                out.push(c)?;
                at += 1;
                continue;
            }
            if c.is('}') {
                fail!(TemplateFailed, "Single '}}' encountered in format string");
            }
            if !c.is('{') {
                out.push(c)?;
                continue;
            }
            let Some(length) = format[at..].iter().take(400).position(|c| c.is('}')) else {
                fail!(TemplateFailed, "expected '}}' before end of string");
            };
            let field = to_string(&format[at..at + length]);
            at += length + 1;
            let (field, layout) = field.split_once(':').unwrap_or((&field, ""));
            let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
            let mut value = self.field(path, &mut counter, &arguments)?;
            if conversion == "r" {
                let mut shown = Builder::new(&self.budget)?;
                self.write_repr(&value, &mut shown)?;
                value = Value::Str(shown.finish());
            } else if conversion == "s" {
                value = self.to_str(&value)?;
            }
            self.format_field(&value, layout, &mut out)?;
        }
        Ok(Value::Str(out.finish()))
    }

    /// The value that a replacement field names, like `0`, `name` or `name.key[0]`.
    fn field(&mut self, path: &str, counter: &mut usize, given: &Arguments) -> Result<Value> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (first, mut rest) = path.split_at(end);
        let position = match first {
            "" => {
                *counter += 1;
                Some(*counter - 1)
            }
            _ => first.parse::<usize>().ok(),
        };
        let found = match position {
            Some(index) => given.positional.get(index).cloned(),
            None => {
                let named = given.named.iter().find(|(name, _)| **name == *first);
                named.map(|(_, value)| value.clone())
            }
        };
        let Some(mut value) = found else {
            fail!(TemplateFailed, "format: there is no value for '{{{path}}}'");
        };
        while !rest.is_empty() {
            if let Some(name) = rest.strip_prefix('.') {
                let end = name.find(['.', '[']).unwrap_or(name.len());
                value = self.attribute(&value, &name[..end])?;
                rest = &name[end..];
            } else {
                let inside = rest.trim_start_matches('[');
                let Some((key, behind)) = inside.split_once(']') else {
                    fail!(TemplateFailed, "Missing ']' in format string");
                };
                let key = match key.parse() {
                    Ok(number) => Value::Int(number),
                    Err(_) => self.text(key)?,
                };
                value = self.item(&value, &key)?;
                rest = behind;
            }
            value.check_defined()?;
        }
        Ok(value)
    }

    /// Writes one value as `format(value, specification)` does.
    fn format_field(&self, value: &Value, specification: &str, out: &mut Builder) -> Result<()> {
        let chars: Vec<char> = specification.chars().collect();
        let mut layout = Layout::default();
        let mut i = 0;
        let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
        if is_align(chars.get(1)) {
            (layout.fill, layout.align, i) = (Some(chars[0]), Some(chars[1]), 2);
        } else if is_align(chars.first()) {
            (layout.align, i) = (Some(chars[0]), 1);
        }
        if let Some(sign @ ('+' | '-' | ' ')) = chars.get(i) {
            layout.sign = Some(*sign);
            i += 1;
        }
        if chars.get(i) == Some(&'#') {
            layout.alternate = true;
            i += 1;
        }
        if chars.get(i) == Some(&'0') && layout.align.is_none() {
            layout.zero = true;
            i += 1;
        }
        layout.width = digits(&chars, &mut i)?.unwrap_or(0);
        if chars.get(i) == Some(&',') {
            layout.comma = true;
            i += 1;
        }
        if chars.get(i) == Some(&'.') {
            i += 1;
            layout.precision = digits(&chars, &mut i)?;
        }
        layout.kind = chars.get(i).copied().unwrap_or('\0');
        if i + 1 < chars.len() {
            fail!(TemplateFailed, "Invalid format specifier '{specification}'");
        }
        let is_int = matches!(layout.kind, '\0' | 'd' | 'x' | 'X' | 'o' | 'b');
        let text = match value {
            Value::Int(number) if is_int => int_text(*number, &layout),
            Value::Int(_) | Value::Float(_)
                if matches!(layout.kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') =>
            {
                float_text(value.as_float().unwrap_or(0.0), &layout)
            }
            Value::Float(number) if layout.kind == '\0' && layout.precision.is_none() => {
                float_repr(*number)
            }
            Value::Float(number) if layout.kind == '\0' => {
                layout.kind = 'g';
                float_text(*number, &layout)
            }
            Value::Str(_) | Value::Bool(_) | Value::None | Value::Seq(_) | Value::Map(_)
                if matches!(layout.kind, '\0' | 's') =>
            {
                let Value::Str(text) = self.to_str(value)? else {
                    return Ok(());
                };
                let length = layout.precision.unwrap_or(usize::MAX).min(text.len());
                return self.lay_out(&text[..length], &layout, out);
            }
            _ => {
                value.check_defined()?;
                fail!(
                    TemplateFailed,
                    "Unknown format code '{specification}' for object of type '{}'",
                    value.type_name()
                )
            }
        };
        layout.align = layout.align.or(Some('>'));
        let text = if layout.comma { grouped(&text) } else { text };
        self.number(&text, &layout, out)
    }
}

fn int_text(number: i128, layout: &Layout) -> String {
    let sign = if number < 0 { "-" } else { "" };
    let size = number.unsigned_abs();
    let prefix = |prefix| if layout.alternate { prefix } else { "" };
    match layout.kind {
        'x' => format!("{sign}{}{size:x}", prefix("0x")),
        'X' => format!("{sign}{}{size:X}", prefix("0X")),
        'o' => format!("{sign}{}{size:o}", prefix("0o")),
        'b' => format!("{sign}{}{size:b}", prefix("0b")),
        _ => format!("{sign}{size}"),
    }
}
