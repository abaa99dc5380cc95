//! GBNF: what it means, and what it refuses.

use crate::support::{HAMLET, Random, accepts, random_answer};
use emberlm::grammar::GrammarKind::Gbnf;

/// JSON as it is commonly written in GBNF.
const JSON: &str = r#"# any JSON object
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws

ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn grammars_without_recursion_are_exact() {
    for (grammar, good, bad) in [
        (
            r#"root ::= "yes" | "no""#,
            &["yes", "no"][..],
            &["", "ye", "yesno"][..],
        ),
        (
            "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"",
            &["- a\n", "- a\n- b c\n"],
            &["", "- \n", "- a"],
        ),
        // The longest identifier does not swallow what follows it.
        (
            "root ::= [a-z]+ \"ly\"",
            &["quickly", "lyly"],
            &["ly", "quick"],
        ),
        (
            "root ::= (\"f\" | \"foo\" \"x\") \"o\"?",
            &["f", "fo", "foox", "fooxo"],
            &["foo", "x"],
        ),
        (
            "root ::= [\\x41-\\x43]{2} \"\\u00e9\"? .{,2}",
            &["AB", "CCé", "ABxy"],
            &["AD", "A"],
        ),
        (
            "root ::= a-b\n  | [-\\]^]{1,}\na-b ::= ()\n",
            &["", "-]^"],
            &["a"],
        ),
    ] {
        for text in good {
            assert!(accepts(Gbnf, grammar, text), "{grammar} refuses {text:?}");
        }
        for text in bad {
            assert!(
                !accepts(Gbnf, grammar, text),
                "{grammar} lets {text:?} through"
            );
        }
    }
}

#[test]
fn grammars_with_recursion() {
    for (text, good) in [
        (r#"{"a": [1, {"b": -2.5e3}], "c": "x\"y"}"#, true),
        ("{}", true),
        ("{\n  \"a\": null}", true),
        ("[]", false),
        (r#"{"a": 1,}"#, false),
    ] {
        assert_eq!(accepts(Gbnf, JSON, text), good, "{text}");
    }
    let expression = r#"
        root ::= expr
        expr ::= term ([-+*/] term)*
        term ::= "-"? [0-9]+ | "(" expr ")"
    "#;
    for (text, good) in [
        ("1+2*(3-4)", true),
        ("((7))", true),
        ("1+", false),
        ("(1", false),
    ] {
        assert_eq!(accepts(Gbnf, expression, text), good, "{text}");
    }
    let grammar = HAMLET.grammar(Gbnf, JSON).unwrap();
    let answers =
        (0..60).filter_map(|s| random_answer(&HAMLET, &grammar, &mut Random::new(s), 300));
    let answers: Vec<String> = answers.collect();
    assert!(answers.len() > 20, "{} ended", answers.len());
    for answer in answers {
        let value: Result<serde_json::Value, _> = serde_json::from_str(&answer);
        assert!(value.is_ok_and(|v| v.is_object()), "{answer}");
    }
}

#[test]
fn faults_are_named_with_line_and_column() {
    for (grammar, message) in [
        (
            "root ::= foo",
            "line 1, column 10 (\"foo\"): there is no rule foo",
        ),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1"),
        (
            "root ::= \"a",
            "line 1, column 10 (\"\\\"a\"): a text is not closed",
        ),
        ("root ::= [a", "a \"[\" is not closed"),
        ("root ::= [z-a]", "backwards"),
        ("root ::= []", "no character"),
        ("root ::= \"\\q\"", "column 11"),
        ("root ::= \"\\ud800\"", "not the number of a character"),
        ("root ::= \"a\"{3,2}", "repetitions"),
        ("root ::= \"a\"{99999999999}", "repetitions"),
        ("root ::= (\"a\"", "a bracket is not closed"),
        ("root ::= \"a\" )", "belongs to no rule"),
        ("root \"a\"", "\"::=\" is missing"),
        ("::= \"a\"", "the name of a rule is missing"),
        ("root ::= <[5]>", "not supported"),
        ("other ::= \"a\"", "there is no rule root"),
        ("", "there is no rule root"),
    ] {
        let e = HAMLET.grammar(Gbnf, grammar).err().expect(grammar);
        assert!(e.message.contains(message), "{grammar}: {e}");
    }
}
