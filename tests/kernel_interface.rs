//! Kernels and host share structures and constants, which are generated for the kernels from those of the host. Here both texts are
//! read, and must say the same. No GPU and no compiler of its kernels is needed.

use emberlm::quant::TensorType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The files of a folder with this start and this end of their names, and what they contain.
fn files(folder: &str, start: &str, end: &str) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with(start) && name.ends_with(end) {
            let text = read(&root().join(folder).join(&name));
            files.insert(name, text);
        }
    }
    files
}

/// The host's side of what is generated.
fn host_files() -> BTreeMap<String, String> {
    files("src/backend/cuda/launch/args", "", ".rs")
}

/// What is generated of it.
fn generated_files() -> BTreeMap<String, String> {
    files("kernels", "args_", ".h")
}

/// The text without `//` comments and without attributes.
fn code(text: &str) -> String {
    let line = |line: &str| {
        line.split("//")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let lines = text.lines().map(line);
    lines
        .filter(|l| !l.starts_with("#["))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A field: its name, its type as the kernels write it, and how many of it there are.
type Field = (String, String, String);

/// What the kernels call a type of the host; `names` has its structures.
fn device_type(ty: &str, names: &BTreeMap<String, String>) -> String {
    let inside = |start: &str| ty.strip_prefix(start)?.strip_suffix('>');
    if let Some(inner) = inside("ConstPtr<") {
        return match device_type(inner, names) {
            pointer if pointer.ends_with('*') => format!("{pointer} const*"),
            other => format!("const {other}*"),
        };
    }
    if let Some(inner) = inside("Ptr<") {
        return format!("{}*", device_type(inner, names));
    }
    let name = match ty {
        "u64" => "uint64_t",
        "u32" => "uint32_t",
        "u16" => "uint16_t",
        "u8" => "uint8_t",
        "i8" => "int8_t",
        "f32" => "float",
        "Half" => "__half",
        "c_void" => "void",
        other => names.get(other).map_or(other, |name| name),
    };
    name.to_owned()
}

/// A structure of the host: its name, the name that its comment begins with, and the text of its fields.
fn structures_of_the_host(text: &str) -> Vec<(String, String, String)> {
    let parts: Vec<&str> = text.split("\npub struct ").collect();
    let mut structures = Vec::new();
    for pair in parts.windows(2) {
        let (name, body) = pair[1].split_once(" {").expect("fields");
        let comment = pair[0].rfind("\n\n").expect("a comment");
        let twin = pair[0][comment..].trim().strip_prefix("/// `");
        let twin = twin.unwrap_or_else(|| panic!("{name}: no comment that names the twin"));
        let twin = twin.split('`').next().unwrap_or_default();
        let body = code(body.split_once("\n}").expect("their end").0);
        structures.push((name.to_owned(), twin.to_owned(), body));
    }
    structures
}

/// All structures of the host by the names of their twins.
fn of_the_host() -> BTreeMap<String, Vec<Field>> {
    let mut all = Vec::new();
    for text in host_files().values() {
        all.extend(structures_of_the_host(text));
    }
    let names = all
        .iter()
        .map(|(name, twin, _)| (name.clone(), twin.clone()));
    let names: BTreeMap<String, String> = names.collect();
    let mut structures = BTreeMap::new();
    for (_, twin, body) in all {
        let fields = body.split(",\n").map(|f| f.trim().trim_end_matches(','));
        let fields = fields.filter(|f| !f.is_empty()).map(|text| {
            let (name, ty) = text.split_once(": ").expect("name: type");
            let array = ty.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
            let (ty, n) = array.and_then(|a| a.split_once("; ")).unwrap_or((ty, "1"));
            let name = name.trim_start_matches("pub ");
            // The one name that is a word of the language.
            let name = if name == "ty" { "type" } else { name };
            (name.to_owned(), device_type(ty, &names), n.to_owned())
        });
        let before = structures.insert(twin.clone(), fields.collect());
        assert!(before.is_none(), "two twins of {twin}");
    }
    structures
}

/// All generated structures.
fn of_the_device() -> BTreeMap<String, Vec<Field>> {
    let mut structures = BTreeMap::new();
    for text in generated_files().values() {
        for part in code(text).split("\nstruct ").skip(1) {
            let Some((name, body)) = part.split_once(" {") else {
                continue;
            };
            let body = body.split_once("\n};").expect("their end").0;
            let before = structures.insert(name.to_owned(), plain_fields(body));
            assert!(before.is_none(), "two structures {name}");
        }
    }
    structures
}

/// `const float* a; uint32_t b; NormArgs d[2];` as fields.
fn plain_fields(body: &str) -> Vec<Field> {
    let statements = body.split(';').map(str::trim).filter(|s| !s.is_empty());
    let field = |statement: &str| {
        let (ty, name) = statement.rsplit_once(' ').expect("a type and a name");
        let array = name.strip_suffix(']').and_then(|n| n.split_once('['));
        let (name, n) = array.unwrap_or((name, "1"));
        (name.to_owned(), ty.to_owned(), n.to_owned())
    };
    statements.map(field).collect()
}

/// The number that a name is given in a file of either language.
fn constant(path: &Path, name: &str) -> usize {
    let text = code(&read(path));
    let values = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '=' && c != ':');
    let words: Vec<&str> = values.filter(|w| !w.is_empty()).collect();
    let at = words.windows(2).position(|w| {
        // `NAME = 1` and `NAME: u32 = 1`.
        w[0].trim_end_matches(':') == name && (w[1] == "=" || w[0].ends_with(':'))
    });
    let at = at.unwrap_or_else(|| panic!("{}: no {name}", path.display()));
    let value = words[at..].iter().skip_while(|w| **w != "=").nth(1);
    let value = value.map(|v| v.replace('_', ""));
    let value = value.and_then(|v| match v.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => v.parse().ok(),
    });
    value.unwrap_or_else(|| panic!("{}: {name} is no number", path.display()))
}

#[test]
fn structures_have_the_same_fields() {
    let (host, device) = (of_the_host(), of_the_device());
    assert!(host.len() >= 67, "{} structures were found", host.len());
    for (name, fields) in &host {
        let twin = device.get(name);
        let twin = twin.unwrap_or_else(|| panic!("kernels/ has no structure {name}: make header"));
        assert_eq!(fields, twin, "{name}: host and device: make header");
    }
    assert_eq!(host.len(), device.len(), "make header");
}

/// What kernels take is generated.
#[test]
fn no_structure_of_arguments_is_written_by_hand() {
    let host = of_the_host();
    let mut kernels = 0;
    for (file, text) in files("kernels", "", "")
        .iter()
        .filter(|f| f.0.contains(".cu"))
    {
        let text = code(text);
        for part in text.split("\nstruct ").skip(1) {
            let name = part.split(' ').next().unwrap_or_default();
            let by_hand = host.contains_key(name) || name.ends_with("Args");
            assert!(!by_hand, "{file}: {name}");
        }
        for part in text.split("const __grid_constant__ ").skip(1) {
            let name = part.split([' ', ')']).next().unwrap_or_default();
            // `args` is a macro's.
            let known = host.contains_key(name) || name == "args";
            assert!(known, "{file}: args/ has no {name}");
            kernels += 1;
        }
    }
    assert!(kernels >= 70, "{kernels} kernels were found");
}

#[test]
fn generated_constants_have_the_same_values() {
    let mut found = 0;
    for (file, text) in host_files() {
        let generated = format!("kernels/args_{}.h", file.trim_end_matches(".rs"));
        for part in code(&text).split("\npub const ").skip(1) {
            let name = part.split(':').next().unwrap_or_default();
            let host = constant(
                &root().join("src/backend/cuda/launch/args").join(&file),
                name,
            );
            assert_eq!(host, constant(&root().join(&generated), name), "{name}");
            found += 1;
        }
    }
    assert!(found >= 45, "{found} constants were found");
}

/// The table of element types: numbers are places in it.
#[test]
fn element_types_are_the_same() {
    let text = code(&read(&root().join("kernels/blocks.cuh")));
    let body = text.split_once("enum Type : uint32_t {").unwrap().1;
    let names = body.split_once('}').unwrap().0.split(',').map(str::trim);
    let names: Vec<&str> = names.collect();
    let rows = text.split_once("TypeRow row_of(").unwrap().1;
    let rows = rows.split_once("default:").unwrap().0;
    let device: BTreeMap<&str, &str> = rows
        .split("case ")
        .skip(1)
        .map(|row| row.trim().split_once(": return ").unwrap())
        .collect();

    let text = read(&root().join("src/backend/cuda/launch/record.rs"));
    let table = text.split_once("\nrecords! {").unwrap().1;
    let table = table.split_once("\n}").unwrap().0;
    let mut host = Vec::new();
    for line in table.lines().filter(|line| line.contains('[')) {
        let parts: Vec<&str> = line.split(['"', '[', ']']).map(str::trim).collect();
        let [_, name, unit, bytes, ..] = parts[..] else {
            panic!("{line}");
        };
        let row = format!("{{{unit}, {}}};", bytes.replace(' ', ", "));
        assert_eq!(device.get(name), Some(&row.as_str()), "{name}");
        host.push(name);
    }
    assert!(host.len() >= 19);
    assert_eq!(device.len(), host.len());
    assert_eq!(names, [&host[..], &["TYPE_COUNT"]].concat());
}

/// The types with codebooks as GGUF numbers them.
#[test]
fn types_of_files_have_the_same_numbers() {
    let text = code(&read(&root().join("kernels/repack.cu")));
    let body = text.split_once("enum FileType : uint32_t {").unwrap().1;
    let mut n = 0;
    for entry in body.split_once('}').unwrap().0.split(',') {
        let (name, id) = entry.trim().split_once(" = ").unwrap();
        let ty = TensorType::from_gguf_id(id.parse().unwrap()).unwrap();
        assert_eq!(ty.name(), name);
        n += 1;
    }
    assert_eq!(n, 9);
}

#[test]
fn differences_are_seen() {
    let fields = |text: &str| plain_fields(&code(text));
    let field = |name: &str, ty: &str, n: &str| (name.to_owned(), ty.to_owned(), n.to_owned());
    let both = [field("a", "const float*", "1"), field("b", "uint32_t", "1")];
    assert_eq!(fields("const float* a;  // [rows]\nuint32_t b;"), both);
    assert_ne!(fields("const float* a; float b;"), both);
    assert_ne!(fields("float* a; uint32_t b;"), both);
    assert_ne!(fields("uint32_t b; const float* a;"), both);
    assert_ne!(fields("const float* a; uint32_t b[2];"), both);
    assert_eq!(fields("NormArgs n[2];"), [field("n", "NormArgs", "2")]);
    let names = BTreeMap::from([("Norm".to_owned(), "NormArgs".to_owned())]);
    let types = [
        "Ptr<f32>",
        "ConstPtr<Ptr<Norm>>",
        "ConstPtr<ConstPtr<Half>>",
    ];
    let on_device = types.map(|ty| device_type(ty, &names));
    let expected = ["float*", "NormArgs* const*", "const __half* const*"];
    assert_eq!(on_device, expected);
}
