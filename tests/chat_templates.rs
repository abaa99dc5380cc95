//! Chat templates against the texts that Python's Jinja2 makes of them with the settings of the
//! transformers library (tests/data/chat/make_chat.py). Published templates lie in
//! `../shared/templates`; a test per template, reported as ignored where the folder is missing.

#[path = "common/xz.rs"]
mod xz;

use emberlm::Status;
use emberlm::text::{Environment, render};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// 2024-07-26 15:04:05, which the reference was given as now.
const NOW: i64 = 1_722_006_245;
const FEATURES: &[u8] = include_bytes!("data/chat/features.jsonl.xz");
const PUBLISHED: &[u8] = include_bytes!("data/chat/published.jsonl.xz");
const CONVERSATIONS: &[u8] = include_bytes!("data/chat/conversations.jsonl.xz");

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/templates");
    let mut cases: Vec<(String, Vec<Value>)> = Vec::new();
    for case in lines(&xz::text(PUBLISHED)) {
        let template = case["template"].as_str().unwrap().to_owned();
        match cases.last_mut() {
            Some((known, list)) if *known == template => list.push(case),
            _ => cases.push((template, vec![case])),
        }
    }
    let mut trials = vec![Trial::test("features", features)];
    for (template, cases) in cases {
        let path = folder.join(format!("{template}.jinja"));
        let missing = !path.exists();
        let test = move || published(&path, &cases);
        let name = format!("published_{template}");
        trials.push(Trial::test(name, test).with_ignored_flag(missing));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// What differs from the reference, if anything.
fn difference(template: &str, document: &Value, expected: &Value) -> Option<String> {
    let token = |text: &str| text.to_owned();
    let environment = Environment {
        tokens: vec![("bos_token", token("<bos>")), ("eos_token", token("<eos>"))],
        now: Some(NOW),
        ..Environment::default()
    };
    let result = render(template, &document.to_string(), &environment);
    match (
        result,
        expected["text"].as_str(),
        expected["error"].as_str(),
    ) {
        (Ok(rendered), Some(text), _) if rendered.text == text => None,
        (Ok(rendered), Some(text), _) => Some(format!("{:?}\ninstead of\n{text:?}", rendered.text)),
        (Err(error), None, Some(message))
            if error.status == Status::TemplateFailed && error.message.contains(message) =>
        {
            None
        }
        (Ok(rendered), None, _) => Some(format!("{:?}\ninstead of {expected}", rendered.text)),
        (Err(error), ..) => Some(format!("{error}\ninstead of\n{expected}")),
    }
}

fn report(all: usize, differences: Vec<String>) -> Result<(), Failed> {
    match differences.len() {
        0 => Ok(()),
        n => Err(format!("{n} of {all} differ:\n{}", differences.join("\n\n")).into()),
    }
}

fn features() -> Result<(), Failed> {
    let cases: Vec<Value> = lines(&xz::text(FEATURES)).collect();
    assert!(cases.len() > 60, "only {} features", cases.len());
    let differs = |case: &Value| {
        let template = case["template"].as_str()?;
        let difference = difference(template, &case["document"], case)?;
        Some(format!("{template}\n{difference}"))
    };
    report(cases.len(), cases.iter().filter_map(differs).collect())
}

fn published(path: &Path, cases: &[Value]) -> Result<(), Failed> {
    let template = std::fs::read_to_string(path)?;
    let named = |line: Value| (line["name"].as_str().unwrap().to_owned(), line);
    let documents: HashMap<String, Value> = lines(&xz::text(CONVERSATIONS)).map(named).collect();
    assert!(cases.len() == documents.len(), "{} cases", cases.len());
    let differs = |case: &Value| {
        let name = case["name"].as_str()?;
        let difference = difference(&template, &documents[name]["document"], case)?;
        Some(format!("{name}:\n{difference}"))
    };
    report(cases.len(), cases.iter().filter_map(differs).collect())
}
