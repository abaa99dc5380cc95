//! A chat template: a text or an error that is the template's, within bounded time and memory. The input
//! is the template.
#![no_main]

use emberlm::Status;
use emberlm::text::{Environment, render};
use libfuzzer_sys::fuzz_target;

const DOCUMENT: &str = r#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello, 'you'!"},
{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"add","arguments":{"a":1,"b":[2.5,null]}}}]},
{"role":"tool","content":"3"}],"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}],
"add_generation_prompt":true}"#;

fuzz_target!(|template: &str| {
    let environment = Environment {
        tokens: vec![("bos_token", "<s>".into()), ("eos_token", "</s>".into())],
        now: Some(1_700_000_000),
        ..Environment::default()
    };
    match render(template, DOCUMENT, &environment) {
        Ok(rendered) => {
            let end = rendered.parts.last().map_or(0, |part| part.0);
            assert_eq!(end, rendered.text.len());
            assert!(rendered.parts.is_sorted_by_key(|part| part.0));
        }
        Err(error) => assert_eq!(error.status, Status::TemplateFailed, "{error}"),
    }
});
