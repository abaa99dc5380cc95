//! The checkable exchanges that hamlet was trained for, asked through the C ABI with greedy decode:
//! how many of each kind it answers word for word.

mod common;

use common::{TempDir, hamlet, repository_file};
use emberlm::ffi::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::{null, null_mut};

struct Task {
    kind: String,
    prompt: String,
    answer: String,
}

fn tasks() -> Vec<Task> {
    let packed = std::fs::read(repository_file("tests/data/hamlet_tasks.jsonl.xz")).unwrap();
    let lines = common::xz::text(&packed);
    let tasks: Vec<Task> = lines.lines().map(task).collect();
    assert_eq!(tasks.len(), 1100);
    tasks
}

fn task(line: &str) -> Task {
    let fields: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = |key: &str| fields[key].as_str().unwrap().to_owned();
    let system = match text("system") {
        facts if facts.is_empty() => facts,
        facts => format!("<|system|>\n{facts}<|end|>\n"),
    };
    let user = text("user");
    Task {
        kind: text("kind"),
        prompt: format!("{system}<|user|>\n{user}<|end|>\n<|assistant|>\n"),
        answer: text("answer"),
    }
}

/// A model and one session, as a C program would hold them.
struct Chat {
    model: *mut ember_model,
    session: *mut ember_session,
    error: Box<ember_error>,
}

impl Chat {
    fn open(path: &Path) -> Chat {
        let path = path.to_str().unwrap();
        let mut chat = Chat {
            model: null_mut(),
            session: null_mut(),
            // SAFETY: plain numbers, for which all bits zero is a value.
            error: unsafe { Box::new(std::mem::zeroed()) },
        };
        // SAFETY: pointers to live values of the right types.
        unsafe {
            let status = ember_model_load(
                path.as_ptr().cast(),
                path.len(),
                null(),
                &mut chat.model,
                &mut *chat.error,
            );
            chat.check(status);
            let status =
                ember_session_create(chat.model, null(), &mut chat.session, &mut *chat.error);
            chat.check(status);
        }
        chat
    }

    fn check(&self, status: ember_status) {
        if status != 0 {
            let message = self.error.message.map(|c| c as u8);
            panic!("status {status}: {}", String::from_utf8_lossy(&message));
        }
    }

    /// The text up to the first token that ends an answer, or of 100 tokens.
    fn answer(&mut self, prompt: &str) -> String {
        let mut tokens = vec![0_u32; prompt.len() + 1];
        let mut count = 0;
        let mut answer = Vec::new();
        let error: *mut ember_error = &mut *self.error;
        // SAFETY: pointers to live values of the right types, with their lengths.
        unsafe {
            self.check(ember_session_rewind(self.session, 0, error));
            self.check(ember_tokenize(
                self.model,
                prompt.as_ptr().cast(),
                prompt.len(),
                ember_tokenize_flags::EMBER_TOKENIZE_SPECIAL as u32,
                tokens.as_mut_ptr(),
                tokens.len(),
                &mut count,
                error,
            ));
            self.check(ember_prefill(self.session, tokens.as_ptr(), count, error));
            for _ in 0..100 {
                let mut token: ember_token = std::mem::zeroed();
                token.struct_size = size_of::<ember_token>() as u32;
                let mut len = 0;
                let mut text = [0_u8; 64];
                self.check(ember_decode(self.session, &mut token, error));
                let (ends, token) = (token.flags & 1, token.id);
                if ends == 1 {
                    break;
                }
                self.check(ember_token_text(
                    self.model,
                    token,
                    text.as_mut_ptr().cast(),
                    text.len(),
                    &mut len,
                    error,
                ));
                answer.extend(&text[..len]);
            }
        }
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: handles may be NULL or anything else here.
        unsafe {
            assert_eq!(ember_session_free(self.session), 0);
            assert_eq!(ember_model_free(self.model), 0);
        }
    }
}

/// At least `least` of the 100 tasks of each kind.
fn answers(path: &Path, least: usize) {
    let mut chat = Chat::open(path);
    let mut right: BTreeMap<String, usize> = BTreeMap::new();
    for task in tasks() {
        let correct = chat.answer(&task.prompt) == task.answer;
        *right.entry(task.kind).or_default() += usize::from(correct);
    }
    println!("{}: {right:?}", path.display());
    assert_eq!(right.len(), 11);
    for (kind, right) in right {
        assert!(right >= least, "{kind}: {right} of 100");
    }
}

#[test]
fn q4_k_m_answers() {
    answers(&repository_file("models/hamlet-7m-Q4_K_M.gguf"), 95);
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn q8_0_answers() {
    answers(
        &repository_file("../shared/models/hamlet/hamlet-7m-Q8_0.gguf"),
        99,
    );
}

#[test]
#[ignore = "needs ../shared/models/hamlet"]
fn f16_answers() {
    let folder = TempDir::new("tasks");
    let path = folder.file("hamlet-f16.gguf", &hamlet::f16_bytes());
    answers(&path, 99);
}
