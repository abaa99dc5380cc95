//! The C ABI as compilers see it: layouts, the header as C, its example.
//!
//! What the functions do is tested in C (tests/c) and, with backends that misbehave, in src/ffi.

use emberlm::ffi::*;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Sizes and offsets of programs that are compiled already. A field may be added at an end, with a
/// new size here; nothing else may change while `EMBER_ABI_VERSION` stays.
#[test]
fn layouts_stay() {
    assert_eq!(size_of::<ember_error>(), 1024);
    assert_eq!(
        (
            offset_of!(ember_error, code),
            offset_of!(ember_error, index),
            offset_of!(ember_error, message)
        ),
        (0, 4, 8)
    );

    assert_eq!(size_of::<ember_device>(), 480);
    assert_eq!(offset_of!(ember_device, kind), 4);
    assert_eq!(offset_of!(ember_device, usable), 8);
    assert_eq!(offset_of!(ember_device, cores), 12);
    assert_eq!(offset_of!(ember_device, memory_total), 16);
    assert_eq!(offset_of!(ember_device, memory_free), 24);
    assert_eq!(offset_of!(ember_device, name), 32);
    assert_eq!(offset_of!(ember_device, driver), 160);
    assert_eq!(offset_of!(ember_device, isa), 192);
    assert_eq!(offset_of!(ember_device, reason), 224);

    let pointer = size_of::<usize>();
    assert_eq!(size_of::<ember_model_options>(), 24 + 3 * pointer);
    assert_eq!(offset_of!(ember_model_options, device), 4);
    assert_eq!(offset_of!(ember_model_options, threads), 8);
    assert_eq!(offset_of!(ember_model_options, progress), 16);
    assert_eq!(offset_of!(ember_model_options, user), 16 + pointer);
    assert_eq!(
        offset_of!(ember_model_options, cuda_context),
        16 + 2 * pointer
    );
    assert_eq!(offset_of!(ember_model_options, files), 16 + 3 * pointer);

    assert_eq!(size_of::<ember_model_source>(), 16 + 4 * pointer);
    assert_eq!(offset_of!(ember_model_source, flags), 4);
    assert_eq!(offset_of!(ember_model_source, size), 8);
    assert_eq!(offset_of!(ember_model_source, bytes), 16);
    assert_eq!(offset_of!(ember_model_source, release), 16 + pointer);
    assert_eq!(offset_of!(ember_model_source, read), 16 + 2 * pointer);
    assert_eq!(offset_of!(ember_model_source, user), 16 + 3 * pointer);

    assert_eq!(size_of::<ember_model_details>(), 256);
    assert_eq!(offset_of!(ember_model_details, device), 4);
    assert_eq!(offset_of!(ember_model_details, vocab_size), 8);
    assert_eq!(offset_of!(ember_model_details, context_length), 12);
    assert_eq!(offset_of!(ember_model_details, layer_count), 16);
    assert_eq!(offset_of!(ember_model_details, hidden), 20);
    assert_eq!(offset_of!(ember_model_details, has_tokenizer), 24);
    assert_eq!(offset_of!(ember_model_details, metadata_count), 28);
    assert_eq!(offset_of!(ember_model_details, parameter_count), 32);
    assert_eq!(offset_of!(ember_model_details, file_bytes), 40);
    assert_eq!(offset_of!(ember_model_details, resident_bytes), 48);
    assert_eq!(offset_of!(ember_model_details, kv_bytes_per_token), 56);
    assert_eq!(offset_of!(ember_model_details, architecture), 64);
    assert_eq!(offset_of!(ember_model_details, quantization), 96);
    assert_eq!(offset_of!(ember_model_details, name), 128);

    assert_eq!(size_of::<ember_tokenizer_details>(), 40);
    assert_eq!(offset_of!(ember_tokenizer_details, token_count), 4);
    assert_eq!(offset_of!(ember_tokenizer_details, bos), 8);
    assert_eq!(offset_of!(ember_tokenizer_details, eos), 12);
    assert_eq!(offset_of!(ember_tokenizer_details, unknown), 16);
    assert_eq!(offset_of!(ember_tokenizer_details, padding), 20);
    assert_eq!(offset_of!(ember_tokenizer_details, adds_bos), 24);
    assert_eq!(offset_of!(ember_tokenizer_details, adds_eos), 28);
    assert_eq!(offset_of!(ember_tokenizer_details, end_token_count), 32);

    assert_eq!(size_of::<ember_session_options>(), 48 + pointer);
    assert_eq!(offset_of!(ember_session_options, sampling), 48);
    assert_eq!(offset_of!(ember_session_options, context), 4);
    assert_eq!(offset_of!(ember_session_options, kv_type), 8);
    assert_eq!(offset_of!(ember_session_options, top_k), 12);
    assert_eq!(offset_of!(ember_session_options, temperature), 16);
    assert_eq!(offset_of!(ember_session_options, top_p), 20);
    assert_eq!(offset_of!(ember_session_options, min_p), 24);
    assert_eq!(offset_of!(ember_session_options, seed), 32);
    assert_eq!(offset_of!(ember_session_options, stream_priority), 40);
    assert_eq!(offset_of!(ember_session_options, mark_interval), 44);

    assert_eq!(size_of::<ember_grammar_options>(), 8 + pointer);
    assert_eq!(offset_of!(ember_grammar_options, interrupt), 8);
    assert_eq!(size_of::<ember_tokenize_options>(), 8 + pointer);
    assert_eq!(offset_of!(ember_tokenize_options, flags), 4);
    assert_eq!(offset_of!(ember_tokenize_options, interrupt), 8);
    assert_eq!(offset_of!(ember_grammar_options, json_spacing), 4);

    assert_eq!(size_of::<ember_sampling_options>(), 72 + 8 * pointer);
    assert_eq!(offset_of!(ember_sampling_options, top_k), 4);
    assert_eq!(offset_of!(ember_sampling_options, temperature), 8);
    assert_eq!(offset_of!(ember_sampling_options, top_p), 12);
    assert_eq!(offset_of!(ember_sampling_options, min_p), 16);
    assert_eq!(offset_of!(ember_sampling_options, typical_p), 20);
    assert_eq!(offset_of!(ember_sampling_options, penalty_window), 24);
    assert_eq!(offset_of!(ember_sampling_options, repeat_penalty), 28);
    assert_eq!(offset_of!(ember_sampling_options, presence_penalty), 32);
    assert_eq!(offset_of!(ember_sampling_options, frequency_penalty), 36);
    assert_eq!(offset_of!(ember_sampling_options, dry_multiplier), 40);
    assert_eq!(offset_of!(ember_sampling_options, dry_base), 44);
    assert_eq!(offset_of!(ember_sampling_options, dry_allowed_length), 48);
    assert_eq!(offset_of!(ember_sampling_options, dry_window), 52);
    assert_eq!(offset_of!(ember_sampling_options, dry_no_breakers), 56);
    assert_eq!(offset_of!(ember_sampling_options, logprobs), 60);
    assert_eq!(offset_of!(ember_sampling_options, seed), 64);
    assert_eq!(offset_of!(ember_sampling_options, logit_bias), 72);
    assert_eq!(offset_of!(ember_sampling_options, banned), 72 + 2 * pointer);
    assert_eq!(
        offset_of!(ember_sampling_options, allowed),
        72 + 4 * pointer
    );
    assert_eq!(
        offset_of!(ember_sampling_options, dry_breakers),
        72 + 6 * pointer
    );
    assert_eq!(size_of::<ember_logit_bias>(), 8);
    assert_eq!(offset_of!(ember_logit_bias, bias), 4);
    assert_eq!(size_of::<ember_dry_breaker>(), 4 * pointer);
    assert_eq!(offset_of!(ember_dry_breaker, tokens), 2 * pointer);

    assert_eq!(size_of::<ember_session_details>(), 32);
    assert_eq!(offset_of!(ember_session_details, context), 8);
    assert_eq!(offset_of!(ember_session_details, position), 16);
    assert_eq!(offset_of!(ember_session_details, kv_bytes), 24);

    assert_eq!(size_of::<ember_save_options>(), 8);
    assert_eq!(offset_of!(ember_save_options, kind), 4);

    assert_eq!(size_of::<ember_restore_options>(), 20);
    assert_eq!(offset_of!(ember_restore_options, context), 4);
    assert_eq!(offset_of!(ember_restore_options, kv_type), 8);
    assert_eq!(offset_of!(ember_restore_options, stream_priority), 12);
    assert_eq!(offset_of!(ember_restore_options, mark_interval), 16);

    assert_eq!(size_of::<ember_state_details>(), 248);
    assert_eq!(offset_of!(ember_state_details, version), 4);
    assert_eq!(offset_of!(ember_state_details, kind), 8);
    assert_eq!(offset_of!(ember_state_details, kv_type), 12);
    assert_eq!(offset_of!(ember_state_details, context), 16);
    assert_eq!(offset_of!(ember_state_details, position), 24);
    assert_eq!(offset_of!(ember_state_details, file_bytes), 32);
    assert_eq!(offset_of!(ember_state_details, model_fingerprint), 40);
    assert_eq!(offset_of!(ember_state_details, tokenizer_fingerprint), 48);
    assert_eq!(offset_of!(ember_state_details, architecture), 56);
    assert_eq!(offset_of!(ember_state_details, model_name), 120);

    assert_eq!(size_of::<ember_estimate>(), 56);
    assert_eq!(offset_of!(ember_estimate, device), 4);
    assert_eq!(offset_of!(ember_estimate, context), 8);
    assert_eq!(offset_of!(ember_estimate, weights_bytes), 16);
    assert_eq!(offset_of!(ember_estimate, kv_bytes_per_token), 24);
    assert_eq!(offset_of!(ember_estimate, kv_bytes), 32);
    assert_eq!(offset_of!(ember_estimate, model_workspace_bytes), 40);
    assert_eq!(offset_of!(ember_estimate, session_workspace_bytes), 48);

    assert_eq!(size_of::<ember_text_stream_options>(), 8 + 2 * pointer);
    assert_eq!(offset_of!(ember_text_stream_options, flags), 4);
    assert_eq!(offset_of!(ember_text_stream_options, stops), 8);
    assert_eq!(
        offset_of!(ember_text_stream_options, stop_count),
        8 + pointer
    );

    assert_eq!(size_of::<ember_text_stream_details>(), 24);
    assert_eq!(offset_of!(ember_text_stream_details, stopped), 4);
    assert_eq!(offset_of!(ember_text_stream_details, stop), 8);
    assert_eq!(offset_of!(ember_text_stream_details, tokens), 16);

    assert_eq!(size_of::<ember_generate_options>(), 8 + 7 * pointer);
    assert_eq!(offset_of!(ember_generate_options, flags), 4);
    assert_eq!(offset_of!(ember_generate_options, prompt), 8);
    assert_eq!(
        offset_of!(ember_generate_options, prompt_count),
        8 + pointer
    );
    assert_eq!(offset_of!(ember_generate_options, limit), 8 + 2 * pointer);
    assert_eq!(offset_of!(ember_generate_options, stops), 8 + 3 * pointer);
    assert_eq!(
        offset_of!(ember_generate_options, stop_count),
        8 + 4 * pointer
    );
    assert_eq!(offset_of!(ember_generate_options, piece), 8 + 5 * pointer);
    assert_eq!(offset_of!(ember_generate_options, user), 8 + 6 * pointer);

    assert_eq!(size_of::<ember_generate_details>(), 40);
    assert_eq!(offset_of!(ember_generate_details, end), 4);
    assert_eq!(offset_of!(ember_generate_details, stop), 8);
    assert_eq!(offset_of!(ember_generate_details, token), 12);
    assert_eq!(offset_of!(ember_generate_details, position), 16);
    assert_eq!(offset_of!(ember_generate_details, token_count), 24);
    assert_eq!(offset_of!(ember_generate_details, text_bytes), 32);

    assert_eq!(size_of::<ember_chat_options>(), 16 + 6 * pointer);
    assert_eq!(offset_of!(ember_chat_options, interrupt), 16 + 4 * pointer);
    assert_eq!(offset_of!(ember_chat_options, reserved2), 16 + 5 * pointer);
    assert_eq!(offset_of!(ember_chat_options, source), 8);
    assert_eq!(offset_of!(ember_chat_options, source_len), 8 + pointer);
    assert_eq!(offset_of!(ember_chat_options, name), 8 + 2 * pointer);
    assert_eq!(offset_of!(ember_chat_options, name_len), 8 + 3 * pointer);
    assert_eq!(offset_of!(ember_chat_options, now), 8 + 4 * pointer);

    // Elements of an array: these may not grow.
    assert_eq!(size_of::<ember_stop>(), 2 * pointer);
    assert_eq!(size_of::<ember_profile_entry>(), 40);
    assert_eq!(offset_of!(ember_profile_entry, calls), 4);
    assert_eq!(offset_of!(ember_profile_entry, microseconds), 8);
    assert_eq!(offset_of!(ember_profile_entry, bytes), 16);
    assert_eq!(offset_of!(ember_profile_entry, name), 24);
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    std::fs::read_to_string(repository().join("include/emberlm.h")).unwrap()
}

#[test]
fn header_has_the_librarys_abi_version() {
    let header = header();
    let line = "#define EMBER_ABI_VERSION ";
    let version = header.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    assert_eq!(version.parse::<u32>().unwrap(), ember_abi_version());
}

/// The header's macros are the library's constants.
#[test]
fn header_has_the_librarys_constants() {
    let header = header();
    for (name, value) in [("EMBER_NO_INDEX", NO_INDEX), ("EMBER_NO_TOKEN", NO_TOKEN)] {
        let line = format!("#define {name} UINT32_MAX");
        assert!(header.lines().any(|l| l == line), "{line}");
        assert_eq!(value, u32::MAX);
    }
}

/// Every status of the header has its name and its number in the library.
#[test]
fn header_has_the_librarys_statuses() {
    let header = header();
    let (_, rest) = header.split_once("enum ember_status_code").unwrap();
    let (body, _) = rest.split_once("};").unwrap();
    let (mut count, mut last) = (0, -1);
    for line in body
        .lines()
        .map(str::trim)
        .filter(|l| l.starts_with("EMBER_"))
    {
        let (name, number) = line.trim_end_matches(',').split_once(" = ").unwrap();
        let number: i32 = number.parse().unwrap();
        // SAFETY: the function returns a NUL-ended string that lives forever.
        let known = unsafe { std::ffi::CStr::from_ptr(ember_status_name(number)) };
        assert_eq!(known.to_str().unwrap(), name);
        assert!(number > last, "{name} = {number}");
        (count, last) = (count + 1, number);
    }
    assert!(count >= 35, "only {count} statuses");
}

/// Compiles `source` as C99, without linking, and expects no warning. (C++ is a matter of `.ci/run`:
/// who builds the library needs no compiler for it.)
fn as_c(source: &Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-xc", "-std=c99", "-fsyntax-only"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-D_POSIX_C_SOURCE=200809L")
        .arg(format!("-I{}", repository().join("include").display()))
        .arg(source)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{compiler}: {e}; this test needs a C compiler, see CC"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", source.display());
}

/// All C sources of a folder of the repository.
fn sources(folder: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(repository().join(folder)).unwrap();
    let mut files: Vec<_> = files.map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "c"));
    files.sort();
    files
}

#[cfg(unix)]
#[test]
fn tests_and_header_are_c99() {
    let tests = sources("tests/c");
    assert!(tests.len() >= 5);
    for source in &tests {
        as_c(source);
    }
}

/// The program in the header's first comment compiles as it stands there.
#[cfg(unix)]
#[test]
fn example_in_the_header_compiles() {
    let header = header();
    let (comment, _) = header.split_once("*/").unwrap();
    let program: Vec<&str> = comment
        .lines()
        .skip_while(|l| !l.contains("#include <emberlm.h>"))
        .take_while(|l| !l.contains(" * Errors."))
        .map(|l| l.trim_start_matches(" *"))
        .collect();
    let program = program.join("\n") + "\n";
    assert!(program.contains("int main(void)"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join("header_example.c");
    std::fs::write(&file, program).unwrap();
    as_c(&file);
}
