//! Random schemas and random choices: every answer that comes to an end parses and validates.

use crate::support::{HAMLET, Random, Vocabulary, random_answer};
use emberlm::grammar::{Grammar, GrammarKind, GrammarOptions, JsonSpacing};
use serde_json::{Map, Value, json};

const NAMES: [&str; 8] = [
    "name",
    "role",
    "place",
    "item",
    "hit points",
    "größe",
    "a\"b",
    "x",
];

/// A random schema. `refs` allows references to `#/$defs/...`.
fn schema(random: &mut Random, depth: usize, refs: bool) -> Value {
    let leaf = depth == 0;
    match random.below(if leaf { 6 } else { 11 }) {
        0 => string(random),
        1 => integer(random),
        2 => number(random),
        3 => json!({"type": "boolean"}),
        4 => json!({"enum": ["sword", "shield", 3, null, true, {"a": [1, 2]}]}),
        5 => {
            let constants = [json!("a constant"), json!(1.5), json!({"k": "v"})];
            json!({"const": constants[random.below(3)]})
        }
        6 | 7 => object(random, depth, refs),
        8 => array(random, depth, refs),
        9 if refs => json!({"$ref": format!("#/$defs/{}", ["node", "list"][random.below(2)])}),
        _ => json!({"anyOf": [schema(random, depth - 1, refs), schema(random, depth - 1, refs)]}),
    }
}

fn string(random: &mut Random) -> Value {
    let mut schema = json!({"type": "string"});
    match random.below(6) {
        0 => schema["minLength"] = json!(random.below(4)),
        1 => {
            schema["minLength"] = json!(1);
            schema["maxLength"] = json!(1 + random.below(9));
        }
        2 => schema["maxLength"] = json!(random.below(12)),
        3 => {
            let patterns = [
                "^[a-z]{2,6}$",
                "^(red|green|blue)$",
                "^\\d{3}-\\d{2}$",
                "^A.*z$",
            ];
            schema["pattern"] = json!(patterns[random.below(4)]);
        }
        4 => schema["format"] = json!(["date", "time", "ipv4", "uuid"][random.below(4)]),
        _ => {}
    }
    schema
}

fn integer(random: &mut Random) -> Value {
    let mut schema = json!({"type": "integer"});
    let low = random.below(2000) as i64 - 1000;
    if random.chance(50) {
        schema["minimum"] = json!(low);
    }
    if random.chance(50) {
        schema["maximum"] = json!(low + random.below(500) as i64);
    }
    if random.chance(15) {
        schema = json!({"type": "integer", "multipleOf": 1 + random.below(9), "minimum": 0});
    }
    schema
}

fn number(random: &mut Random) -> Value {
    let mut schema = json!({"type": "number"});
    let low = random.below(1000) as f64 / 8.0 - 50.0;
    match random.below(4) {
        0 => schema["minimum"] = json!(low),
        1 => {
            schema["exclusiveMinimum"] = json!(low);
            schema["exclusiveMaximum"] = json!(low + 2.5);
        }
        2 => schema["maximum"] = json!(low),
        _ => {}
    }
    schema
}

fn object(random: &mut Random, depth: usize, refs: bool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..random.below(5) {
        let name = NAMES[random.below(NAMES.len())];
        properties.insert(name.to_owned(), schema(random, depth - 1, refs));
        if random.chance(60) && !required.contains(&name) {
            required.push(name);
        }
    }
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    match random.below(4) {
        0 => {}
        1 => schema["additionalProperties"] = json!({"type": "integer"}),
        _ => schema["additionalProperties"] = json!(false),
    }
    schema
}

fn array(random: &mut Random, depth: usize, refs: bool) -> Value {
    let low = random.below(3);
    let mut schema =
        json!({"type": "array", "items": schema(random, depth - 1, refs), "minItems": low});
    if random.chance(70) {
        schema["maxItems"] = json!(low + random.below(4));
    }
    if random.chance(20) {
        schema["prefixItems"] = json!([string(random), integer(random)]);
    }
    schema
}

/// A random schema with definitions that it may lead to, which lead to themselves.
pub fn whole(random: &mut Random) -> Value {
    let mut schema = schema(random, 3, true);
    schema["$defs"] = json!({
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["value"],
            "additionalProperties": false
        },
        "list": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
    });
    schema
}

/// Returns how many of `count` answers came to an end.
fn check(vocabulary: &Vocabulary, first: u64, count: u64, limit: usize) -> usize {
    let mut ended = 0;
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let schema = whole(&mut random);
        let text = schema.to_string();
        let spacing = [JsonSpacing::Spaced, JsonSpacing::Compact, JsonSpacing::Free];
        let options = GrammarOptions {
            spacing: spacing[random.below(3)],
            ..GrammarOptions::default()
        };
        let kind = GrammarKind::JsonSchema;
        let grammar = Grammar::compile(&vocabulary.tokens, kind, &text, &options);
        let grammar = grammar.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        let Some(answer) = random_answer(vocabulary, &grammar, &mut random, limit) else {
            continue;
        };
        ended += 1;
        let value: Value = serde_json::from_str(&answer)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}\n{answer}"));
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        if let Err(e) = validator.validate(&value) {
            panic!("seed {seed}: {e}\n{text}\n{answer}");
        }
        if options.spacing == JsonSpacing::Compact {
            assert_eq!(answer.trim(), answer);
        }
    }
    ended
}

#[test]
fn a_thousand_random_schemas() {
    let ended = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..4)
            .map(|part| scope.spawn(move || check(&HAMLET, part * 250, 250, 400)))
            .collect();
        parts.into_iter().map(|p| p.join().unwrap()).sum::<usize>()
    });
    assert!(ended > 700, "only {ended} answers came to an end");
}
