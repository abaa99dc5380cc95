//! Conversations as text and as tokens, by the chat template of the model.

use super::jinja::{self, Environment, Origin, Rendered};
use super::keys::{Metadata, string};
use super::tokenizer::Tokenizer;
use super::vocabulary::TokenKind;
use crate::budget::{Budget, Interrupt};
use crate::error::{Result, fail};
use crate::format::{Array, Value};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

const TEMPLATE: &str = "tokenizer.chat_template";
const NAMES: &str = "tokenizer.chat_templates";

/// The templates of a model file.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplates {
    unnamed: Option<String>,
    named: Vec<(String, String)>,
}

/// Which template, and what it is given beside the conversation.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions<'a> {
    /// A template to use instead of the file's.
    pub template: Option<&'a str>,
    /// The name of one of the file's further templates, such as `tool_use`.
    pub name: Option<&'a str>,
    /// The moment that the template takes for now, in seconds since 1970 (UTC); None asks the clock.
    pub now: Option<i64>,
    /// Who may end the call.
    pub interrupt: Interrupt,
}

impl ChatTemplates {
    /// The keys `tokenizer.chat_template` and `tokenizer.chat_template.<name>`.
    /// Errors: `MissingKey` for one that is not a string.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let mut named = Vec::new();
        if let Some(Value::Array(Array::String(names))) = metadata.get(NAMES) {
            for name in names.iter() {
                if let Some(text) = string(metadata, &format!("{TEMPLATE}.{name}"))? {
                    named.push((name.to_owned(), text.to_owned()));
                }
            }
        }
        // Files that do not list the names have the keys all the same.
        let prefix = format!("{TEMPLATE}.");
        let mut unlisted: Vec<&str> = metadata
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix))
            .filter(|name| named.iter().all(|(known, _)| known != name))
            .collect();
        unlisted.sort_unstable();
        for name in unlisted {
            if let Some(text) = string(metadata, &format!("{TEMPLATE}.{name}"))? {
                named.push((name.to_owned(), text.to_owned()));
            }
        }
        Ok(ChatTemplates {
            unnamed: string(metadata, TEMPLATE)?.map(str::to_owned),
            named,
        })
    }

    /// The template of that name, or without a name the one that the file has for all purposes.
    /// Errors: `TemplateFailed` if there is none, with the names that there are.
    pub fn get(&self, name: Option<&str>) -> Result<&str> {
        let named = |name: &str| {
            let found = self.named.iter().find(|(known, _)| known == name);
            found.map(|(_, text)| text.as_str())
        };
        let found = match name {
            Some(name) => named(name),
            None => self.unnamed.as_deref().or_else(|| named("default")),
        };
        let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
        match (found, name) {
            (Some(text), _) => Ok(text),
            (None, Some(name)) if names.is_empty() => fail!(
                TemplateFailed,
                "the model has no chat template named {name:?}, nor any with a name"
            ),
            (None, Some(name)) => fail!(
                TemplateFailed,
                "the model has no chat template named {name:?}, but {}",
                names.join(", ")
            ),
            (None, None) if names.is_empty() => fail!(
                TemplateFailed,
                "the model has no chat template: there is no metadata key {TEMPLATE}"
            ),
            (None, None) => fail!(
                TemplateFailed,
                "the model has only chat templates with names: {}",
                names.join(", ")
            ),
        }
    }

    /// Renders a conversation: `document` is a JSON object with `messages`, `tools`,
    /// `add_generation_prompt` and whatever else the template knows.
    ///
    /// Errors: `InvalidArgument` for a document that is not a JSON object; `TemplateFailed` for a
    /// template that is missing, wrong, refuses the messages or goes beyond its limits;
    /// `OutOfMemory`.
    pub fn format(
        &self,
        tokenizer: &Tokenizer,
        document: &str,
        options: &ChatOptions,
    ) -> Result<Rendered> {
        let template = self.chosen(options)?;
        let environment = Environment {
            tokens: token_texts(tokenizer),
            now: options.now,
            interrupt: options.interrupt.clone(),
        };
        jinja::render(template, document, &environment)
    }

    /// Appends the tokens of a conversation to `out`; on an error `out` is as it was.
    ///
    /// Control tokens are recognized only where the template, the vocabulary or a role wrote every
    /// character of them, and those that end something only where no role had a part in it. In the
    /// words of others, user-defined tokens in angle or square brackets
    /// that the template itself uses (`<tool_response>`) are text as well; an assistant's message may
    /// spell them, because that is how the model wrote it. BOS and EOS are added where the file asks
    /// for them and the template has not written them.
    ///
    /// Errors: those of [`format`](Self::format) and of [`Tokenizer::encode`].
    pub fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        document: &str,
        options: &ChatOptions,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let template = self.chosen(options)?;
        let rendered = self.format(tokenizer, document, options)?;
        let budget = Budget::for_text(rendered.text.len());
        let budget = budget.with_interrupt(options.interrupt.clone());
        let writers = Writers {
            tokenizer,
            template,
            rendered: &rendered,
            budget: &budget,
            named: [
                tokenizer.bos(),
                tokenizer.eos(),
                tokenizer.unknown(),
                tokenizer.padding(),
            ],
            last: Cell::new(None),
            in_template: RefCell::new(HashMap::new()),
        };
        let may_parse = |start: usize, end: usize, id: u32| writers.may_parse(start, end, id);
        tokenizer.encode_chat(&budget, &rendered.text, &may_parse, out)
    }

    fn chosen<'a>(&'a self, options: &ChatOptions<'a>) -> Result<&'a str> {
        match options.template {
            Some(template) => Ok(template),
            None => self.get(options.name),
        }
    }
}

/// Who wrote the characters of a rendered conversation, and what they may stand for therefore.
struct Writers<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a str,
    rendered: &'a Rendered,
    budget: &'a Budget,
    /// The tokens that a template may write by their names.
    named: [Option<u32>; 4],
    /// The last range that was asked for and its origins, a bit each.
    last: Cell<Option<(usize, usize, u8)>>,
    /// Whether the template spells a token.
    in_template: RefCell<HashMap<u32, bool>>,
}

impl Writers<'_> {
    /// Whether a special token counts that is spelled here.
    fn may_parse(&self, start: usize, end: usize, id: u32) -> Result<bool> {
        let origins = self.origins(start, end)?;
        let has = |origin: Origin| origins >> origin as u8 & 1 == 1;
        let is_structure = self.tokenizer.is_end(id) || self.named.contains(&Some(id));
        // A role names a part of the conversation. It ends none.
        if has(Origin::Role) && is_structure {
            return Ok(false);
        }
        let written_by_others = has(Origin::Caller) || has(Origin::Assistant);
        if self.tokenizer.kind(id)? != TokenKind::UserDefined || is_structure {
            return Ok(!written_by_others);
        }
        let text = &self.rendered.text[start..end];
        let is_marker = (text.starts_with('<') && text.ends_with('>'))
            || (text.starts_with('[') && text.ends_with(']'));
        Ok(!(is_marker && has(Origin::Caller) && self.is_in_template(id)?))
    }

    /// The origins of the characters in a range.
    fn origins(&self, start: usize, end: usize) -> Result<u8> {
        if let Some((of_start, of_end, origins)) = self.last.get()
            && (of_start, of_end) == (start, end)
        {
            return Ok(origins);
        }
        let parts = &self.rendered.parts;
        let first = parts.partition_point(|(to, _)| *to <= start);
        let last = parts.partition_point(|(to, _)| *to < end);
        let parts = parts.get(first..=last).unwrap_or_default();
        self.budget.work(parts.len() as u64)?;
        let origins = parts.iter().fold(0, |bits, (_, of)| bits | 1 << *of as u8);
        self.last.set(Some((start, end, origins)));
        Ok(origins)
    }

    fn is_in_template(&self, id: u32) -> Result<bool> {
        let mut known = self.in_template.borrow_mut();
        if let Some(known) = known.get(&id) {
            return Ok(*known);
        }
        self.budget.scan(self.template.len())?;
        let text = self.tokenizer.token_bytes(id)?;
        let is_in = str::from_utf8(text).is_ok_and(|text| self.template.contains(text));
        known.insert(id, is_in);
        Ok(is_in)
    }
}

/// The texts of the tokens that templates know by name.
fn token_texts(tokenizer: &Tokenizer) -> Vec<(&'static str, String)> {
    let tokens = [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos()),
        ("unk_token", tokenizer.unknown()),
        ("pad_token", tokenizer.padding()),
    ];
    let text = |id: u32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let known = tokens.into_iter();
    known
        .filter_map(|(name, id)| Some((name, text(id?))))
        .collect()
}
