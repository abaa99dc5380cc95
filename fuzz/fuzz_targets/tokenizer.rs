//! A `tokenizer.json` and a text: an error, or tokens of the vocabulary, which decode again; never a
//! panic. The input is the file, a zero byte, and the text.
#![no_main]

use emberlm::Status;
use emberlm::text::{DecodeOptions, EncodeOptions, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let tokenizer = match Tokenizer::from_json(&bytes[..end], None) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert_ne!(error.status, Status::Internal, "{error}");
            return;
        }
    };
    let text = String::from_utf8_lossy(bytes.get(end + 1..).unwrap_or_default());
    let mut ids = Vec::new();
    if tokenizer
        .encode(&text, EncodeOptions::default(), &mut ids)
        .is_err()
    {
        return;
    }
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.n_vocab()));
    let mut decoded = Vec::new();
    let result = tokenizer.decode(&ids, DecodeOptions::default(), &mut decoded);
    assert!(result.is_ok(), "{result:?}");
});
