//! Sessions under a grammar.

use crate::common::{cpu, repository_file};
use crate::random_schemas;
use crate::support::{HAMLET, Random, Vocabulary};
use emberlm::Status;
use emberlm::backend::{LoadOptions, MAX_BATCH};
use emberlm::engine::sampling::{Input, Sampling, Scratch, TokenRules, choose};
use emberlm::engine::{Model, Session, SessionOptions};
use emberlm::grammar::{Grammar, GrammarKind, GrammarOptions};
use emberlm::text::EncodeOptions;
use serde_json::Value;
use std::sync::{Arc, LazyLock};

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let options = LoadOptions {
        threads: 1,
        ..Default::default()
    };
    Arc::new(Model::load(&path, cpu(), &options, &mut |_| Ok(())).unwrap())
});

const NPC: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 20}, "role": {"type": "string", "maxLength": 20},
    "place": {"type": "string", "maxLength": 30}, "item": {"type": "string", "maxLength": 30}},
    "required": ["name", "role", "place", "item"], "additionalProperties": false}"#;

fn tokens(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let options = EncodeOptions {
        parse_special: true,
        ..Default::default()
    };
    HAMLET.tokenizer.encode(text, options, &mut ids).unwrap();
    ids
}

fn prompt() -> Vec<u32> {
    tokens(
        "<|bos|><|system|>\nHanna the guard is at the lighthouse and has a white map.<|end|>\n\
         <|user|>\nDescribe Hanna as JSON.<|end|>\n<|assistant|>\n",
    )
}

fn session(sampling: Sampling) -> Session {
    let options = SessionOptions {
        context: 512,
        sampling,
        ..Default::default()
    };
    Session::create(MODEL.clone(), &options).unwrap()
}

fn with_grammar(sampling: Sampling, schema: &str) -> Session {
    let mut session = session(sampling);
    session.prefill(&prompt()).unwrap();
    set(&mut session, schema);
    session
}

fn set(session: &mut Session, schema: &str) {
    let options = GrammarOptions::default();
    session
        .set_grammar(GrammarKind::JsonSchema, schema, &options)
        .unwrap();
}

/// Hot enough for nonsense.
fn hot(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.5,
        seed,
        ..Sampling::GREEDY
    }
}

fn settings() -> Vec<Sampling> {
    let penalties = Sampling {
        repeat_penalty: 1.2,
        top_k: 30,
        min_p: 0.01,
        ..hot(3)
    };
    vec![Sampling::GREEDY, hot(1), hot(2), penalties]
}

fn decode(session: &mut Session, count: usize) -> Vec<u32> {
    (0..count).map(|_| session.decode().unwrap()).collect()
}

/// Up to the end token, which is left out; none if it does not come.
fn answer(session: &mut Session, limit: usize) -> Option<String> {
    let mut ids = Vec::new();
    for _ in 0..limit {
        let token = session.decode().unwrap();
        if HAMLET.tokenizer.is_end(token) {
            return Some(HAMLET.text(&ids));
        }
        ids.push(token);
    }
    None
}

/// The same by a session without a grammar, one evaluation for each token: its logits, the
/// matcher's mask and a choice.
fn step_by_step(sampling: Sampling, schema: &str, count: usize) -> (Vec<u32>, usize) {
    let options = GrammarOptions::default();
    let kind = GrammarKind::JsonSchema;
    let grammar = Grammar::compile(&HAMLET.tokens, kind, schema, &options).unwrap();
    let mut matcher = grammar.matcher();
    let n_vocab = MODEL.details().n_vocab;
    let mut session = session(sampling);
    let mut history = prompt();
    session.prefill(&history).unwrap();
    let (mut logits, mut mask) = (vec![0.0; n_vocab], vec![0; n_vocab.div_ceil(32)]);
    let mut scratch = Scratch::new(n_vocab).unwrap();
    let (mut made, mut forced) = (Vec::new(), 0);
    for _ in 0..count {
        forced += usize::from(matcher.next_forced(&HAMLET.tokenizer).unwrap().is_some());
        matcher.mask(&mut mask).unwrap();
        session.logits(&mut logits).unwrap();
        let input = Input {
            logits: &logits,
            history: &history,
            rules: None,
            mask: Some(&mask),
            position: history.len() as u64,
        };
        let token = choose(&input, &mut scratch, &sampling).unwrap();
        matcher.accept(token).unwrap();
        session.prefill(&[token]).unwrap();
        history.push(token);
        made.push(token);
    }
    (made, forced)
}

#[test]
fn forced_tokens_come_as_they_would_one_by_one() {
    for sampling in settings() {
        let (expected, forced) = step_by_step(sampling, NPC, 50);
        assert!(forced > 8, "only {forced} of 50 were forced");
        let mut session = with_grammar(sampling, NPC);
        assert_eq!(decode(&mut session, 50), expected);
        // Log-probabilities are made for each token, so there each is a choice.
        let mut session = with_grammar(
            Sampling {
                logprobs: 1,
                ..sampling
            },
            NPC,
        );
        for token in &expected {
            assert_eq!(session.decode().unwrap(), *token);
            assert!(session.logprobs().unwrap().chosen <= 0.0);
        }
    }
}

#[test]
fn rewinds_forks_queues_and_batches_give_the_same() {
    for sampling in settings() {
        let mut session = with_grammar(sampling, NPC);
        let start = session.position();
        let expected = decode(&mut session, 40);
        for back in (0..=40).rev() {
            session.rewind(start + back).unwrap();
            let mut fork = session.fork().unwrap();
            let n = (40 - back).min(6);
            assert_eq!(
                decode(&mut fork, n),
                expected[back..back + n],
                "fork at {back}"
            );
            // And from a fork of which some was decoded, back to before that.
            fork.rewind(start + back.saturating_sub(3)).unwrap();
            let again = decode(&mut fork, n);
            assert_eq!(
                again,
                expected[back.saturating_sub(3)..][..n],
                "fork back from {back}"
            );
            assert_eq!(
                decode(&mut session, n),
                expected[back..back + n],
                "from {back}"
            );
        }
        session.rewind(start).unwrap();
        session.decode_start(40).unwrap();
        let mut queued = Vec::new();
        while queued.len() < 40 {
            queued.extend(session.decode_poll().unwrap());
        }
        assert_eq!(queued, expected);
        assert_eq!(
            session.decode_poll().unwrap_err().status,
            Status::NothingPending
        );

        // Started decodes that are dropped take nothing along.
        session.rewind(start + 7).unwrap();
        session.decode_start(20).unwrap();
        session.rewind(start + 5).unwrap();
        assert_eq!(decode(&mut session, 10), expected[5..15]);
    }
    let mut sessions: Vec<Session> = settings()
        .into_iter()
        .map(|s| with_grammar(s, NPC))
        .collect();
    let mut plain = self::session(hot(9));
    plain.prefill(&prompt()).unwrap();
    let expected: Vec<_> = settings()
        .into_iter()
        .map(|s| decode(&mut with_grammar(s, NPC), 30))
        .chain([decode(&mut plain.fork().unwrap(), 30)])
        .collect();
    sessions.push(plain);
    let mut made = vec![Vec::new(); 5];
    for _ in 0..30 {
        let mut batch: Vec<&mut Session> = sessions.iter_mut().collect();
        let tokens = Session::decode_batch(&mut batch).unwrap();
        made.iter_mut()
            .zip(tokens)
            .for_each(|(made, t)| made.push(t.unwrap()));
    }
    assert_eq!(made, expected);
}

/// Session number `i` of a full batch: a grammar, log-probabilities, both or neither, and settings of each kind.
fn numbered(i: usize) -> Session {
    let all = settings();
    let sampling = Sampling {
        seed: i as u64,
        logprobs: (i % 3) as u32 * 2,
        ..all[i % all.len()]
    };
    let mut session = session(sampling);
    session.prefill(&prompt()[..4 + i % 20]).unwrap();
    if i % 5 < 2 {
        set(&mut session, NPC);
    }
    session
}

/// The bits of what a session says of its last choice.
fn reported(session: &Session) -> Option<Vec<u32>> {
    let logprobs = session.logprobs()?;
    let top = logprobs.top.iter();
    let top = top.flat_map(|(id, logprob)| [*id, logprob.to_bits()]);
    Some([logprobs.chosen.to_bits()].into_iter().chain(top).collect())
}

#[test]
fn each_of_a_full_batch_answers_as_alone() {
    assert_eq!(MAX_BATCH, 64);
    let mut together: Vec<Session> = (0..MAX_BATCH + 1).map(numbered).collect();
    let mut alone: Vec<Session> = (0..MAX_BATCH).map(numbered).collect();
    let too_many: &mut [&mut Session] = &mut together.iter_mut().collect::<Vec<_>>();
    for refused in [
        Session::decode_batch(too_many).map(drop),
        Session::decode_batch_start(too_many),
    ] {
        let e = refused.unwrap_err();
        assert_eq!(e.status, Status::InvalidArgument);
        assert_eq!(e.message, "count is 65; a batch has 1 to 64 sessions");
    }
    together.truncate(MAX_BATCH);
    let n_vocab = MODEL.details().n_vocab;
    for round in 0..12 {
        let mut batch: Vec<&mut Session> = together.iter_mut().collect();
        let tokens: Vec<u32> = match round % 3 {
            2 => {
                Session::decode_batch_start(&mut batch).unwrap();
                let poll = |session: &mut &mut Session| loop {
                    if let Some(token) = session.decode_poll().unwrap() {
                        break token;
                    }
                };
                batch.iter_mut().map(poll).collect()
            }
            _ => {
                let tokens = Session::decode_batch(&mut batch).unwrap();
                tokens.into_iter().map(|token| token.unwrap()).collect()
            }
        };
        for (i, (session, other)) in together.iter().zip(&mut alone).enumerate() {
            assert_eq!(tokens[i], other.decode().unwrap(), "session {i}");
            assert_eq!(reported(session), reported(other), "session {i}");
        }
    }
    let logits = |session: &mut Session| -> Vec<u32> {
        let mut logits = vec![0.0; n_vocab];
        session.logits(&mut logits).unwrap();
        logits.iter().map(|x| x.to_bits()).collect()
    };
    for (i, (session, other)) in together.iter_mut().zip(&mut alone).enumerate() {
        assert!(logits(session) == logits(other), "logits of session {i}");
    }
}

#[test]
fn each_prefill_begins_a_new_answer() {
    let mut session = with_grammar(Sampling::GREEDY, NPC);
    let first = answer(&mut session, 80).unwrap();
    let value: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(value["name"], "Hanna");
    assert_eq!(value["role"], "guard");
    // Behind the end there is only the end.
    let end = session.decode().unwrap();
    assert!(HAMLET.tokenizer.is_end(end));
    let position = session.position();
    session
        .prefill(&tokens(
            "\n<|user|>\nDescribe Hanna as JSON.<|end|>\n<|assistant|>\n",
        ))
        .unwrap();
    let second = answer(&mut session, 80).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&second).unwrap()["name"],
        "Hanna"
    );
    // Back into the first answer.
    session.rewind(position - 5).unwrap();
    let rest = answer(&mut session, 80).unwrap();
    assert!(first.ends_with(&rest), "{first} {rest}");
    // Setting it again begins anew, too, and so does another one.
    set(&mut session, r#"{"type": "boolean"}"#);
    let text = answer(&mut session, 10).unwrap();
    assert!(["true", "false"].contains(&text.as_str()), "{text}");
    session.clear_grammar().unwrap();
    let mut free = self::session(Sampling::GREEDY);
    free.prefill(&prompt()).unwrap();
    session.rewind(0).unwrap();
    session.prefill(&prompt()).unwrap();
    assert_eq!(decode(&mut session, 20), decode(&mut free, 20));
}

#[test]
fn errors_leave_the_grammar_as_it_was() {
    let mut session = with_grammar(hot(5), NPC);
    let expected = decode(&mut session.fork().unwrap(), 30);
    let options = GrammarOptions::default();
    let kind = GrammarKind::JsonSchema;
    let e = session
        .set_grammar(kind, "{\"type\": 5}", &options)
        .unwrap_err();
    assert_eq!(e.status, Status::Grammar);
    assert_eq!(decode(&mut session, 10), expected[..10]);
    session.decode_start(2).unwrap();
    let e = session.set_grammar(kind, "{}", &options).unwrap_err();
    assert_eq!(e.status, Status::DecodePending);
    assert_eq!(
        session.clear_grammar().unwrap_err().status,
        Status::DecodePending
    );
    session.rewind(session.position()).unwrap();
    assert_eq!(decode(&mut session, 20), expected[10..]);
}

#[test]
fn what_the_settings_forbid_is_not_forced() {
    let mut session = with_grammar(Sampling::GREEDY, r#"{"const": "lighthouse keeper"}"#);
    let forced = session.fork().unwrap().decode().unwrap();
    let n_vocab = MODEL.details().n_vocab;
    let none = std::iter::empty::<(u32, f32)>()
        .collect::<Vec<_>>()
        .into_iter();
    let rules = TokenRules::new(n_vocab, none, &[forced], &[], Default::default()).unwrap();
    session
        .set_sampling(Sampling::GREEDY, Some(Arc::new(rules)))
        .unwrap();
    assert_eq!(session.decode().unwrap_err().status, Status::Numeric);
    session.set_sampling(Sampling::GREEDY, None).unwrap();
    assert_eq!(answer(&mut session, 20).unwrap(), "\"lighthouse keeper\"");
}

#[test]
fn a_hot_model_keeps_to_random_schemas() {
    let check = |first: u64| {
        let mut ended = 0;
        for seed in first..first + 20 {
            let schema = random_schemas::whole(&mut Random::new(seed));
            let mut session = with_grammar(hot(seed), &schema.to_string());
            let Some(text) = answer(&mut session, 200) else {
                continue;
            };
            ended += 1;
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            let validator = jsonschema::options().should_validate_formats(true);
            let validator = validator.build(&schema).unwrap();
            assert!(validator.is_valid(&value), "{schema}\n{text}");
        }
        ended
    };
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> = [5000, 6000]
            .map(|first| scope.spawn(move || check(first)))
            .into();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .sum::<usize>()
    });
    assert!(ended > 25, "only {ended} answers came to an end");
}

/// A schema fixes what the model gets wrong about the form, and leaves what it gets right.
#[test]
fn hamlets_own_task_by_a_schema() {
    let packed = std::fs::read(repository_file("tests/data/hamlet_tasks.jsonl.xz")).unwrap();
    let lines = crate::common::xz::text(&packed);
    let tasks = lines
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap());
    let (mut right, mut asked) = (0, 0);
    let mut session = session(Sampling::GREEDY);
    for task in tasks.filter(|t| t["kind"] == "json").step_by(3) {
        let text = |key: &str| task[key].as_str().unwrap().to_owned();
        let prompt = format!(
            "<|bos|><|system|>\n{}<|end|>\n<|user|>\n{}<|end|>\n<|assistant|>\n",
            text("system"),
            text("user")
        );
        session.rewind(0).unwrap();
        session.prefill(&tokens(&prompt)).unwrap();
        set(&mut session, NPC);
        let answer = answer(&mut session, 100).unwrap();
        let made: Value = serde_json::from_str(&answer).unwrap();
        let expected: Value = serde_json::from_str(&text("answer")).unwrap();
        right += usize::from(made == expected);
        asked += 1;
    }
    assert!(right * 10 >= asked * 9, "{right} of {asked}");
}

#[test]
fn vocabularies_are_made_once() {
    let first = MODEL.grammar_vocabulary().unwrap();
    assert!(Arc::ptr_eq(&first, &MODEL.grammar_vocabulary().unwrap()));
    let Vocabulary { tokens, tokenizer } = &*HAMLET;
    assert_eq!(first.ends(), tokens.ends());
    assert!(tokens.ends().iter().all(|id| tokenizer.is_end(*id)));
}
