//! Filters that write HTML, and the one that writes sizes.

use super::Run;
use super::arguments::{Arguments, truth};
use super::text::{Builder, Char, to_string};
use super::value::Value;
use crate::error::{Result, fail};
use fancy_regex::Regex;
use std::sync::OnceLock;

impl Run<'_> {
    /// `xmlattr`: a mapping as attributes of a tag.
    pub fn xml_attributes(&self, value: &Value, arguments: Arguments) -> Result<Value> {
        let [autospace] = arguments.bind("xmlattr", ["autospace"])?;
        let Value::Map(map) = value else {
            fail!(TemplateFailed, "xmlattr takes a mapping");
        };
        let mut out = Builder::new(&self.budget)?;
        for (key, value) in &map.entries {
            if matches!(value, Value::None | Value::Undefined(_)) {
                continue;
            }
            let Value::Str(name) = self.to_str(key)? else {
                continue;
            };
            let bad = |c: &Char| c.is_space() || "/>=".contains(c.get());
            if name.iter().any(bad) {
                fail!(
                    TemplateFailed,
                    "Invalid character in attribute name: '{}'",
                    self.shown(key)?
                );
            }
            if truth(&autospace, true) || !out.chars().is_empty() {
                out.plain(" ")?;
            }
            for (part, behind) in [(self.escape(key)?, "=\""), (self.escape(value)?, "\"")] {
                self.write_str(&part, &mut out)?;
                out.plain(behind)?;
            }
        }
        Ok(Value::Str(out.finish()))
    }

    /// `urlize`: links around what looks like an address.
    pub fn urlize(&self, text: &[Char], arguments: Arguments) -> Result<Value> {
        let names = [
            "trim_url_limit",
            "nofollow",
            "target",
            "rel",
            "extra_schemes",
        ];
        let [limit, nofollow, target, rel, schemes] = arguments.bind("urlize", names)?;
        let limit = match limit {
            None | Some(Value::None) => None,
            limit => usize::try_from(super::arguments::int(&limit, "trim_url_limit", 0)?).ok(),
        };
        if schemes.is_some_and(|schemes| schemes.is_true()) {
            fail!(TemplateFailed, "urlize: extra_schemes are not supported");
        }
        let given = |value: &Option<Value>| match value {
            None | Some(Value::None) => Ok(String::new()),
            Some(value) => self.shown(value),
        };
        let mut rels: Vec<String> = given(&rel)?.split_whitespace().map(str::to_owned).collect();
        if truth(&nofollow, false) {
            rels.push("nofollow".to_owned());
        }
        rels.push("noopener".to_owned());
        rels.sort();
        rels.dedup();
        let link = Link {
            limit,
            rel: rels.join(" "),
            target: given(&target)?,
        };
        let mut out = Builder::new(&self.budget)?;
        for word in text.chunk_by(|a, b| a.is_space() == b.is_space()) {
            let escaped = self.escaped(word)?;
            match word[0].is_space() {
                true => out.extend(&escaped)?,
                false => self.urlize_word(&escaped, &link, &mut out)?,
            }
        }
        Ok(Value::Str(out.finish()))
    }

    fn urlize_word(&self, word: &[Char], link: &Link, out: &mut Builder) -> Result<()> {
        let mut middle = word;
        // What opens a bracket in front, and what ends a sentence or closes a bracket behind.
        let head = leading(middle, &["(", "<", "&lt;"]);
        out.extend(&middle[..head])?;
        middle = &middle[head..];
        let mut kept = middle.len() - trailing(middle, &[")", ">", ".", ",", "\n", "&gt;"]);
        // Brackets that the word itself opens are its own.
        for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
            let count = |text: &[Char], what: &str| to_string(text).matches(what).count();
            let opened = count(&middle[..kept], open);
            let mut closed = count(&middle[..kept], close);
            while closed < opened {
                let tail = to_string(&middle[kept..]);
                let Some(at) = tail.find(close) else { break };
                kept += tail[..at + close.len()].chars().count();
                closed += 1;
            }
        }
        let (middle, tail) = middle.split_at(kept);
        self.budget.scan(8 * middle.len())?;
        let plain = to_string(middle);
        let href = match kind_of(&plain) {
            Some(Address::Url(prefix)) => Some((prefix, 0)),
            Some(Address::Mail(skipped)) => Some(("mailto:", skipped)),
            None => None,
        };
        let Some((prefix, skipped)) = href else {
            out.extend(middle)?;
            return out.extend(tail);
        };
        let shown = &middle[skipped..];
        out.plain("<a href=\"")?;
        out.plain(prefix)?;
        out.extend(shown)?;
        out.plain("\"")?;
        if prefix != "mailto:" {
            out.plain(&format!(" rel=\"{}\"", link.rel))?;
            if !link.target.is_empty() {
                out.plain(&format!(" target=\"{}\"", link.target))?;
            }
        }
        out.plain(">")?;
        match link.limit {
            Some(limit) if prefix != "mailto:" && shown.len() > limit => {
                out.extend(&shown[..limit])?;
                out.plain("...")?;
            }
            _ => out.extend(shown)?,
        }
        out.plain("</a>")?;
        out.extend(tail)
    }

    /// `filesizeformat`: a number of bytes in words.
    pub fn file_size(&self, value: &Value, arguments: Arguments) -> Result<Value> {
        let [binary] = arguments.bind("filesizeformat", ["binary"])?;
        let binary = truth(&binary, false);
        let parsed = match value {
            Value::Str(text) => to_string(text).trim().parse().ok(),
            other => other.as_float(),
        };
        let Some(bytes) = parsed else {
            fail!(TemplateFailed, "filesizeformat takes a number");
        };
        let base: f64 = if binary { 1024.0 } else { 1000.0 };
        if bytes == 1.0 {
            return self.text("1 Byte");
        }
        if bytes < base {
            return self.text(&format!("{} Bytes", bytes.trunc()));
        }
        let units = "KMGTPEZY".chars();
        let mut unit = base;
        let mut shown = String::new();
        for letter in units {
            let (name, step) = match (letter, binary) {
                (letter, true) => (format!("{letter}iB"), base),
                ('K', false) => ("kB".to_owned(), base),
                (letter, false) => (format!("{letter}B"), base),
            };
            shown = format!("{:.1} {name}", bytes / unit);
            unit *= step;
            if bytes < unit {
                break;
            }
        }
        self.text(&shown)
    }

    /// `random`: any item.
    pub fn random(&self, value: &Value) -> Result<Value> {
        use std::hash::{BuildHasher, RandomState};
        let items = value.iterate(&self.budget)?;
        match items.items.len() as u64 {
            0 => Ok(Value::Undefined(Some(
                "No random item, sequence was empty.".into(),
            ))),
            n => {
                let at = RandomState::new().hash_one(n) % n;
                Ok(items.items[at as usize].clone())
            }
        }
    }
}

/// How links are written.
struct Link {
    limit: Option<usize>,
    rel: String,
    target: String,
}

enum Address {
    /// What goes before it.
    Url(&'static str),
    /// Characters in front that are no part of it.
    Mail(usize),
}

/// Characters at the start that are any of these texts.
fn leading(text: &[Char], parts: &[&str]) -> usize {
    let mut at = 0;
    while let Some(part) = parts.iter().find(|part| starts_with(&text[at..], part)) {
        at += part.chars().count();
    }
    at
}

/// Characters at the end that are any of these texts.
fn trailing(text: &[Char], parts: &[&str]) -> usize {
    let mut end = text.len();
    let ends = |end: usize, part: &str| {
        let length = part.chars().count();
        end >= length && starts_with(&text[end - length..end], part)
    };
    while let Some(part) = parts.iter().find(|part| ends(end, part)) {
        end -= part.chars().count();
    }
    text.len() - end
}

fn starts_with(text: &[Char], part: &str) -> bool {
    let start = text.iter().map(|c| c.get()).take(part.len());
    start.eq(part.chars())
}

/// What kind of an address an escaped word is, by Jinja's own expressions.
fn kind_of(word: &str) -> Option<Address> {
    const URL: &str = concat!(
        r"(?i)^(?:(?:https?://|www\.)(?:(?:[\w%-]+\.)+)?(?:[a-z]{2,63}|xn--[\w%]{2,59})",
        r"|(?:[\w%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil)",
        r"|https?://(?:[\d]{1,3}(?:\.[\d]{1,3}){3}",
        r"|\[(?:[\da-f]{0,4}:){2}(?:[\da-f]{0,4}:?){1,6}\]))(?::[\d]{1,5})?(?:[/?#]\S*)?$"
    );
    const MAIL: &str = r"^\S+@\w[\w.-]*\.\w+$";
    static URLS: OnceLock<Option<Regex>> = OnceLock::new();
    static MAILS: OnceLock<Option<Regex>> = OnceLock::new();
    let fits = |cell: &'static OnceLock<Option<Regex>>, pattern: &str, text: &str| {
        let regex = cell.get_or_init(|| Regex::new(pattern).ok());
        regex
            .as_ref()
            .is_some_and(|regex| regex.is_match(text).unwrap_or(false))
    };
    if fits(&URLS, URL, word) {
        let has_scheme = word.starts_with("https://") || word.starts_with("http://");
        return Some(Address::Url(if has_scheme { "" } else { "https://" }));
    }
    if let Some(rest) = word.strip_prefix("mailto:")
        && fits(&MAILS, MAIL, rest)
    {
        return Some(Address::Mail("mailto:".len()));
    }
    let is_mail = word.contains('@')
        && !word.starts_with("www.")
        && !word.starts_with('@')
        && !word.contains(':')
        && fits(&MAILS, MAIL, word);
    is_mail.then_some(Address::Mail(0))
}
