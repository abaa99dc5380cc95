//! Answers by expressions and grammars match them, and what matches is accepted.

use crate::support::{HAMLET, Random, accepts, allowed, random_answer};
use emberlm::grammar::GrammarKind::{Gbnf, JsonSchema, Lark, Regex};
use emberlm::text::EncodeOptions;

#[test]
fn expressions_match_whole_answers() {
    for (grammar, good, bad) in [
        (
            "[0-9]{2,4}",
            &["12", "1234"][..],
            &["", "1", "12345", "1a"][..],
        ),
        ("", &[""], &["a"]),
        ("a*", &["", "aaa"], &["b", "aab"]),
        ("(?i)yes|no", &["yes", "YeS", "no"], &["y", "nope"]),
        (
            "^(red|green) (apple|pear)$",
            &["red apple", "green pear"],
            &["red", "blue pear"],
        ),
        (r"\d+\.\d{2} €", &["3.50 €"], &["3.5 €", "3.50 $"]),
        ("a/b\\/c", &["a/b/c"], &["a/b"]),
        (
            "héllo|日本(語)?",
            &["héllo", "日本", "日本語"],
            &["hello", "日"],
        ),
    ] {
        for text in good {
            assert!(
                accepts(Regex, grammar, text),
                "/{grammar}/ refuses {text:?}"
            );
        }
        for text in bad {
            assert!(
                !accepts(Regex, grammar, text),
                "/{grammar}/ lets {text:?} through"
            );
        }
    }
}

#[test]
fn random_answers_match_their_expressions() {
    for (i, pattern) in [
        "[a-c]{3,9}",
        r"([a-zé]{1,5}, ){2}[^ ]{1,3}\.",
        r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8})?",
        "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        "(sword|shield|bow) of (fire|ice)",
        "[^a-zA-Z]{1,20}",
        "x*y+z?",
    ]
    .into_iter()
    .enumerate()
    {
        let grammar = HAMLET.grammar(Regex, pattern).unwrap();
        let regex = fancy(pattern);
        let mut ended = 0;
        for seed in 0..40 {
            let mut random = Random::new(seed * 100 + i as u64);
            if let Some(answer) = random_answer(&HAMLET, &grammar, &mut random, 100) {
                assert!(regex(&answer), "/{pattern}/: {answer:?}");
                ended += 1;
            }
        }
        assert!(ended > 10, "/{pattern}/: {ended} ended");
    }
}

/// Another engine's opinion: the pattern of a schema, which the validator looks at.
fn fancy(pattern: &str) -> impl Fn(&str) -> bool {
    let schema = serde_json::json!({"pattern": format!("^(?:{pattern})$")});
    let validator = jsonschema::validator_for(&schema).unwrap();
    move |text| validator.is_valid(&serde_json::json!(text))
}

#[test]
fn any_json() {
    for text in ["{}", "true"] {
        for (json, good) in [
            (r#"{"a": 1}"#, true),
            (r#"{"a": [1, null]}"#, true),
            (r#"[2.5e-3]"#, true),
            (r#""d\n""#, true),
            // Escapes only where there is no other way.
            (r#""\u001f""#, true),
            (r#"{"a": [1, 2.5e-3, null], "b": {"c": "d\n"}}"#, true),
            ("[]", true),
            ("\"text\"", true),
            ("-0.5", true),
            ("nul", false),
            ("{\"a\": 1,}", false),
            ("01", false),
            ("", false),
        ] {
            assert_eq!(accepts(JsonSchema, text, json), good, "{json}");
        }
    }
}

#[test]
fn lark_grammars() {
    let calls = r#"
        start: call (";" call)*
        call: NAME "(" [argument ("," argument)*] ")"
        argument: NUMBER | STRING | call
        NAME: /[a-z_]+/
        NUMBER: /-?[0-9]+/
        STRING: /"[^"]*"/
        %ignore / /
    "#;
    for (text, good) in [
        ("go(north)", false),
        ("go(\"north\", 3)", true),
        ("say(\"hi\") ; take(find(\"key\"),-1)", true),
        ("say(\"hi\"", false),
        ("say(\"hi\");", false),
    ] {
        assert_eq!(accepts(Lark, calls, text), good, "{text}");
    }
    let schema = r#"start: "Answer: " object
        object: %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}"#;
    assert!(accepts(Lark, schema, r#"Answer: {"a": 5}"#));
    assert!(!accepts(Lark, schema, r#"Answer: {"b": 5}"#));
}

#[test]
fn control_tokens_are_no_text() {
    let grammar = HAMLET.grammar(Regex, "(?s).*").unwrap();
    let mut mask = vec![0; HAMLET.tokens.mask_words()];
    grammar.matcher().mask(&mut mask).unwrap();
    for id in allowed(&mask) {
        let is_text = HAMLET.tokenizer.kind(id).unwrap() != emberlm::text::TokenKind::Control;
        assert!(is_text || HAMLET.tokenizer.is_end(id), "{id}");
    }
    // Spelled out it is text like any other.
    assert!(accepts(Gbnf, r#"root ::= "<|end|>" [a-z]*"#, "<|end|>abc"));
}

#[test]
fn behind_the_end_there_is_only_the_end() {
    let grammar = HAMLET.grammar(Regex, "yes|no").unwrap();
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; HAMLET.tokens.mask_words()];
    let mut tokens = Vec::new();
    HAMLET
        .tokenizer
        .encode("yes", EncodeOptions::default(), &mut tokens)
        .unwrap();
    for token in tokens {
        matcher.accept(token).unwrap();
    }
    for end in [
        HAMLET.tokens.ends()[0],
        *HAMLET.tokens.ends().last().unwrap(),
    ] {
        matcher.mask(&mut mask).unwrap();
        assert_eq!(allowed(&mask), HAMLET.tokens.ends());
        matcher.accept(end).unwrap();
    }
    assert!(matcher.accept(0).is_err() || HAMLET.tokens.ends().contains(&0));
}
