//! The C ABI as compilers see it: layouts, the header as C, its example.
//!
//! What the functions do is tested in C (tests/c) and, with backends that misbehave, in src/ffi.

#[path = "abi/table.rs"]
mod table;

use emberlm::ffi::*;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use table::{Field, Header, Table};

/// What compiled programs count on since version 1 was frozen, for pointers of 8 bytes: values of macros and enums, sizes of structs,
/// offsets and types of fields, signatures of functions and callbacks. It is never edited.
const FROZEN: &str = include_str!("abi/v1.txt");

/// What came later, and the sizes of structs that have grown since.
const LATER: &str = include_str!("abi/later.txt");

/// Both together.
fn table() -> Table<'static> {
    let mut table = Table::parse(FROZEN);
    table.extend(LATER);
    table
}

/// Prints what the compiler has to compute: values, sizes and offsets, the last ones with the type of the field.
fn layout_program(header: &Header) -> String {
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <emberlm.h>\nint main(void)\n{\n",
    );
    let mut show = |label: &str, value: &str, kind: &str| {
        program += &format!("    printf(\"{label} %lld{kind}\\n\", (long long)({value}));\n");
    };
    for (name, _) in &header.values {
        show(name, name, "");
    }
    for (name, fields) in &header.structs {
        show(name, &format!("sizeof({name})"), "");
        for Field {
            name: field, kind, ..
        } in fields
        {
            let offset = format!("offsetof({name}, {field})");
            show(&format!("{name}.{field}"), &offset, &format!(" {kind}"));
        }
    }
    program + "    return 0;\n}\n"
}

/// The table is what the header says and a compiler makes of it. `EMBERLM_WRITE_ABI=1` writes `later.txt` anew, when something was added.
#[cfg(all(unix, target_pointer_width = "64"))]
#[test]
fn table_has_all_of_the_header() {
    let header = Header::parse(&header());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (dir.join("abi_layout.c"), dir.join("abi_layout"));
    std::fs::write(&source, layout_program(&header)).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let compiled = Command::new(&compiler)
        .arg(format!("-I{}", repository().join("include").display()))
        .args([source.as_os_str(), "-o".as_ref(), program.as_os_str()])
        .status();
    assert!(compiled.unwrap().success());
    let output = Command::new(&program).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap() + &header.lines().join("\n") + "\n";
    if std::env::var_os("EMBERLM_WRITE_ABI").is_some() {
        let later = found
            .lines()
            .filter(|line| FROZEN.lines().all(|old| old != *line));
        let later: String = later.map(|line| format!("{line}\n")).collect();
        std::fs::write(repository().join("tests/abi/later.txt"), later).unwrap();
        return;
    }
    let (found, table) = (Table::parse(&found), table());
    assert!(table.len() > 500, "only {} lines", table.len());
    let gone = table.without(&found);
    assert!(
        gone.is_empty(),
        "compiled programs count on {gone:#?}; EMBERLM_WRITE_ABI=1 writes the sizes of structs that have grown"
    );
    let new = found.without(&table);
    assert!(new.is_empty(), "not in tests/abi/later.txt: {new:#?}");
}

/// Whatever version 1 had is still there. What fails here would break programs that are compiled already.
#[test]
fn version_1_stays() {
    assert_eq!(ember_abi_version(), 1);
    let broken = table().broken(&Table::parse(FROZEN));
    assert!(
        broken.is_empty(),
        "version 1 does not allow this: {broken:#?}"
    );
    let fnv = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = FROZEN.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    assert_eq!(hash, 0x3121_6b86_e3cb_be27, "tests/abi/v1.txt was edited");
}

/// Each way to break the table is found and named, and what may be added is not.
#[test]
fn breaks_of_a_table_are_found() {
    const OLD: &str = "A 1\nember_a 16\nember_a.struct_size 0 uint32_t\nember_a.b 4 uint32_t\nember_a.c 8 uint64_t\nember_d 8\nember_d.e 0 uint64_t\nfunction ember_f ember_status (int32_t)\n";
    let broken = |from: &str, to: &str| {
        assert!(OLD.contains(from), "{from}");
        let new = OLD.replace(from, to);
        Table::parse(&new).broken(&Table::parse(OLD))
    };
    for (from, to, found) in [
        ("A 1", "A 2", "A was 1, is 2"),
        ("A 1\n", "", "A was 1, is gone"),
        (
            "ember_a.b 4 uint32_t",
            "ember_a.b 4 int32_t",
            "ember_a.b was 4 uint32_t, is 4 int32_t",
        ),
        ("ember_a 16", "ember_a 8", "ember_a was 16, is 8"),
        ("ember_d 8", "ember_d 16", "ember_d was 8, is 16"),
        (
            "ember_d 8",
            "ember_a.g 12 uint32_t\nember_d 8",
            "ember_a.g is new, but not at the end of the struct",
        ),
        (
            "(int32_t)",
            "(int32_t, int32_t)",
            "ember_f was ember_status (int32_t), is ember_status (int32_t, int32_t)",
        ),
    ] {
        assert_eq!(broken(from, to), [found]);
    }
    for (from, to) in [
        ("A 1", "A 1\nB 1"),
        ("ember_a 16", "ember_a 24\nember_a.g 16 uint64_t"),
        (
            "function ember_f",
            "function ember_g ember_status (void)\nfunction ember_f",
        ),
    ] {
        assert_eq!(broken(from, to), [""; 0]);
    }
}

/// What came after the frozen table says so in its comment.
#[test]
fn later_items_name_their_version() {
    let undated = Header::parse(&header()).undated(FROZEN);
    assert!(undated.is_empty(), "without \"Since\": {undated:?}");
    let planted = "/** Old. */\nember_status ember_embed(void);\n\n/** New. */\nember_status ember_x(void);\n\n/** Since 9.0.0. */\nember_status ember_y(void);\n\
        enum ember_log_level\n  : int32_t\n {\n    /** A. */\n    EMBER_LOG_ERROR = 1,\n    /** B. */\n    EMBER_LOG_TRACE = 5,\n};\n\
        typedef struct ember_token {\n    /** C. */\n    uint32_t id;\n    /** D. */\n    uint32_t text;\n    /** E. Since 9.0.0. */\n    uint32_t rank;\n} ember_token;\n";
    let undated = Header::parse(planted).undated(FROZEN);
    assert_eq!(undated, ["ember_token.text", "EMBER_LOG_TRACE", "ember_x"]);
}

/// Bytes of padding would have no defined value, so a struct that ends with some could not grow into them, and options that an older
/// library does not know could look as if they were set.
#[test]
fn structs_have_no_padding_on_any_platform() {
    let header = Header::parse(&header());
    // 64 bits; 32 bits of ARM and of Windows; 32 bits of other x86 systems.
    for (word, align) in [(8, 8), (4, 8), (4, 4)] {
        let padded = header.padded(word, align);
        assert!(padded.is_empty(), "words of {word} bytes: {padded:?}");
    }
    let planted =
        "typedef struct ember_a {\n    uint32_t b;\n    uint64_t c;\n    char d[4];\n} ember_a;\n";
    let padded = Header::parse(planted).padded(8, 8);
    assert_eq!(padded, ["ember_a.c", "the end of ember_a"]);
}

/// Flags have a bit each, and leave the sign of an `int` alone, which is the type of values of enums in C before C23.
#[test]
fn values_of_enums_are_ints() {
    let table = table();
    for (name, _) in &Header::parse(&header()).values {
        let value: i64 = table.get(name).unwrap().parse().unwrap();
        assert!((0..=i64::from(i32::MAX)).contains(&value), "{name}");
    }
}

/// Rust's structs are those of the header.
#[cfg(target_pointer_width = "64")]
#[test]
fn structs_have_the_headers_sizes() {
    let table = table();
    let number = |name: &str| -> usize {
        let line = table.get(name).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let mut known = 0;
    macro_rules! same {
        ($($name:ident { $($field:ident),* })*) => {$(
            assert_eq!(size_of::<$name>(), number(stringify!($name)), stringify!($name));
            $(assert_eq!(
                offset_of!($name, $field),
                number(concat!(stringify!($name), ".", stringify!($field)))
            );)*
            known += 1;
        )*};
    }
    same! {
        ember_error { code, index, message }
        ember_device_details { struct_size, kind, usable, cores, memory_total, memory_free, name, driver, isa, reason }
        ember_model_options { struct_size, device, threads, weights, files, flags, split, cpu_expert_layers, thread_priority, log_level, memory_limit, session_memory_limit, progress, user, cpus, cpu_count, devices, device_count, device_layers, group, log_callback, log_user, log_release, next }
        ember_group_options { struct_size, rank, rank_count, timeout_ms, address, address_len, id, id_len }
        ember_model_details { struct_size, device, vocab_size, context_length, layer_count, hidden_size, has_tokenizer, metadata_count, parameter_count, file_bytes, resident_bytes, kv_bytes_per_token, architecture, quantization, name, max_batch, device_layer_count, memory_bytes, session_memory_bytes, part_count, cpu_expert_layer_count }
        ember_part_details { struct_size, device, first_layer, layer_count, memory_bytes, session_memory_bytes }
        ember_model_source { struct_size, flags, size, bytes, release, read, user }
        ember_logit_bias { token, bias }
        ember_text { text, len }
        ember_adapter_details { struct_size, rank, tensor_count, parameter_count, file_bytes, memory_bytes, fingerprint, name }
        ember_adapter_use { adapter, scale, reserved }
        ember_embedder_options { struct_size, flags, pooling, normalize, dimension, max_tokens, batch_tokens, reserved, instruction, instruction_len, adapters, adapter_count }
        ember_embedder_details { struct_size, pooling, dimension, normalized, max_tokens, batch_tokens, memory_bytes }
        ember_dry_breaker { text, text_len, tokens, token_count }
        ember_sampling_options { struct_size, top_k, temperature, top_p, min_p, typical_p, penalty_window, repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base, dry_allowed_length, dry_window, dry_no_breakers, logprobs, seed, logit_bias, logit_bias_count, banned, banned_count, allowed, allowed_count, dry_breakers, dry_breaker_count }
        ember_session_options { struct_size, context, kv_type, mark_interval, sampling, next }
        ember_session_details { struct_size, vocab_size, context, position, kv_bytes }
        ember_token { struct_size, id, flags, status, logprob, reserved }
        ember_save_options { struct_size, kind }
        ember_restore_options { struct_size, context, kv_type, mark_interval, next, adapters, adapter_count }
        ember_state_details { struct_size, version, kind, kv_type, context, position, file_bytes, model_fingerprint, tokenizer_fingerprint, architecture, model_name, adapter_count, reserved, adapter_fingerprints, adapter_scales }
        ember_grammar_options { struct_size, json_spacing, interrupt }
        ember_speculation_options { struct_size, source, max_drafts, always, min_match, reserved, draft_model }
        ember_speculation_details { struct_size, source, max_drafts, depth, steps, drafted, accepted }
        ember_estimate { struct_size, device, context, part_count, weights_bytes, kv_bytes_per_token, kv_bytes, model_workspace_bytes, session_workspace_bytes, device_layer_count, first_layer, host_weights_bytes, host_session_bytes, host_workspace_bytes, cpu_expert_layer_count, reserved }
        ember_profile_entry { struct_size, calls, microseconds, bytes, name }
        ember_tokenize_options { struct_size, flags, interrupt }
        ember_tokenizer_details { struct_size, token_count, bos, eos, unknown, padding, adds_bos, adds_eos, end_token_count, reserved }
        ember_stop { text, len }
        ember_text_stream_options { struct_size, flags, stops, stop_count }
        ember_text_stream_details { struct_size, stopped, stop, reserved, token_count }
        ember_generate_options { struct_size, flags, max_tokens, prompt, prompt_count, stops, stop_count, piece, user }
        ember_generate_details { struct_size, end, stop, token, position, token_count, text_bytes }
        ember_chat_options { struct_size, reserved, source, source_len, name, name_len, now, interrupt, reserved2 }
        ember_cuda_model_options { struct_size, kind, next, context }
        ember_cuda_session_options { struct_size, kind, next, stream_priority, reserved }
    }
    assert_eq!(
        known,
        table.structs().count(),
        "structs of the header that are not compared"
    );
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

/// The header is that of this version.
#[test]
fn header_has_the_librarys_version() {
    let header = header();
    let line = "#define EMBER_VERSION_NUMBER ";
    let number = header.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    let number: u32 = number.parse().unwrap();
    assert_eq!(number, ember_version_number());
    let (major, minor, patch) = (number / 1_000_000, number / 1000 % 1000, number % 1000);
    assert_eq!(
        format!("{major}.{minor}.{patch}"),
        env!("CARGO_PKG_VERSION")
    );
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
