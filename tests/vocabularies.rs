//! Published vocabularies of `../shared/vocabs` against the ids of the models' own tokenizers. A
//! test per vocabulary, reported as ignored where the folder is missing.

use emberlm::format::ModelFile;
use emberlm::text::{DecodeOptions, EncodeOptions, TextStream, Tokenizer};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};

const NAMES: [&str; 5] = ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"];

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vocabs");
    let mut trials = Vec::new();
    for name in NAMES {
        let file = folder.join(format!("{name}.gguf.xz"));
        let missing = !file.exists();
        let test = move || same_ids(&file);
        trials.push(Trial::test(format!("same_ids_{name}"), test).with_ignored_flag(missing));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn open(path: &PathBuf) -> Result<ModelFile, Failed> {
    let mut bytes = Vec::new();
    lzma_rs::xz_decompress(&mut std::fs::read(path)?.as_slice(), &mut bytes)
        .map_err(|error| format!("{}: {error:?}", path.display()))?;
    Ok(ModelFile::from_bytes(&bytes)?)
}

/// The text beside a vocabulary, for example `gpt-2.inp` beside `gpt-2.gguf.xz`.
fn beside(path: &Path, extension: &str) -> Result<String, Failed> {
    let path = path.with_extension("").with_extension(extension);
    Ok(std::fs::read_to_string(path)?)
}

fn same_ids(path: &PathBuf) -> Result<(), Failed> {
    let tokenizer = Tokenizer::from_file(&open(path)?)?;
    let input = beside(path, "inp")?;
    const END: &str = "\n__ggml_vocab_test__\n";
    let texts = input.strip_suffix(END).unwrap_or(&input);
    let texts: Vec<&str> = texts.split(END).collect();
    let expected = beside(path, "out")?;
    let expected: Vec<&str> = expected.lines().collect();
    assert!(texts.len() > 40, "only {} texts", texts.len());
    assert_eq!(texts.len(), expected.len(), "texts and lines of ids");
    for (text, line) in texts.iter().zip(expected) {
        let want: Result<Vec<u32>, _> = line.split_whitespace().map(str::parse).collect();
        let mut ids = Vec::new();
        tokenizer.encode(text, EncodeOptions::default(), &mut ids)?;
        assert_eq!(ids, want?, "{text:?}");

        let mut bytes = Vec::new();
        tokenizer.decode(&ids, DecodeOptions::default(), &mut bytes)?;
        assert_eq!(bytes, text.as_bytes(), "{text:?}");
        let (mut stream, mut streamed) = (TextStream::new(), String::new());
        for id in &ids {
            stream.push(tokenizer.token_bytes(*id)?, &mut streamed);
        }
        stream.finish(&mut streamed);
        // A space that the tokenizer puts before a text stays where text goes on.
        let continued = DecodeOptions {
            continued: true,
            ..DecodeOptions::default()
        };
        bytes.clear();
        tokenizer.decode(&ids, continued, &mut bytes)?;
        assert_eq!(streamed.as_bytes(), bytes);
        assert_eq!(
            streamed.strip_suffix(text).map(str::trim),
            Some(""),
            "{text:?}"
        );
    }
    Ok(())
}
