//! Host and device write the structures and constants that they share each in its own language. Here
//! both texts are read, and must say the same. No GPU and no compiler of its kernels is needed.

use emberlm::quant::TensorType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The Rust side of the structures.
const STRUCTURES: [&str; 9] = [
    "src/backend/cuda/args.rs",
    "src/backend/cuda/args/adapters.rs",
    "src/backend/cuda/args/experts.rs",
    "src/backend/cuda/args/latent.rs",
    "src/backend/cuda/args/predictor.rs",
    "src/backend/cuda/args/ranks.rs",
    "src/backend/cuda/args/recurrent.rs",
    "src/backend/cuda/args/streams.rs",
    "src/backend/cuda/args/texts.rs",
];

/// Constants of both sides: file and name on the host, file and name on the device.
const CONSTANTS: [[&str; 4]; 34] = [
    ["args/ranks.rs", "MAX_RANKS", "ranks.cu", "MAX_RANKS"],
    [
        "args/ranks.rs",
        "MAX_SUM_BLOCKS",
        "ranks.cu",
        "MAX_SUM_BLOCKS",
    ],
    ["adapters.rs", "PARTS", "adapters.cuh", "NARROW_PARTS"],
    [
        "args/adapters.rs",
        "MAX_LINEARS",
        "adapters.cuh",
        "MAX_LINEARS",
    ],
    ["attention.rs", "KV_TILE", "common.cuh", "KV_TILE"],
    ["attention.rs", "MAX_PARTS", "attend.cuh", "MAX_PARTS"],
    ["attention.rs", "MAX_HEAD_DIM", "rope.cu", "LONGEST"],
    [
        "attention/long.rs",
        "MAX_LATENT_KEY",
        "latent.cu",
        "LONGEST_KEY",
    ],
    [
        "attention/long.rs",
        "HEAD_ROWS",
        "latent.cu",
        "PRODUCT_ROWS",
    ],
    ["args.rs", "MAX_SEGMENTS", "matvec.cuh", "MAX_SEGMENTS"],
    [
        "runner/drafts.rs",
        "ASKED_TOKENS",
        "drafts.cu",
        "ASKED_TOKENS",
    ],
    ["experts.rs", "MAX_EXPERTS", "route.cuh", "MAX_EXPERTS"],
    ["experts.rs", "MAX_USED", "route.cuh", "MAX_USED"],
    [
        "experts/launch.rs",
        "SCORE_WARPS",
        "experts.cu",
        "SCORE_WARPS",
    ],
    [
        "experts/launch.rs",
        "SCORES_AT_ONCE",
        "experts.cu",
        "SCORES_AT_ONCE",
    ],
    [
        "experts/products.rs",
        "PAIRS_AT_ONCE",
        "route.cuh",
        "PAIRS_AT_ONCE",
    ],
    [
        "experts/products.rs",
        "PAIR_WARPS",
        "experts.cu",
        "PAIR_WARPS",
    ],
    [
        "experts/products.rs",
        "MOST_PAIRS",
        "experts.cu",
        "MOST_PAIRS",
    ],
    ["experts.rs", "TILE_ROWS", "matmul.cuh", "TILE_ROWS"],
    [
        "experts.rs",
        "EXPERT_SLOTS",
        "experts_wgmma.cuh",
        "EXPERT_SLOTS",
    ],
    ["kernels.rs", "WARPS", "matvec.cuh", "WARPS"],
    ["recurrent.rs", "CONV_ROWS", "recurrent.cu", "CONV_ROWS"],
    ["recurrent.rs", "MAX_COLS", "recurrent.cuh", "MAX_COLS"],
    ["recurrent.rs", "SCAN_ROWS", "recurrent.cu", "SCAN_ROWS"],
    ["recurrent.rs", "STEP_BLOCKS", "recurrent.cu", "STEP_BLOCKS"],
    [
        "recurrent.rs",
        "STEP_THREADS",
        "recurrent.cu",
        "STEP_THREADS",
    ],
    [
        "recurrent.rs",
        "STEP_CHANNELS",
        "selective.cu",
        "STEP_CHANNELS",
    ],
    [
        "recurrent.rs",
        "SCAN_CHANNELS",
        "selective.cu",
        "SCAN_CHANNELS",
    ],
    ["recurrent.rs", "MAX_STATES", "selective.cu", "MAX_STATES"],
    ["sampling.rs", "GROUPS", "sample.cuh", "GROUPS"],
    [
        "../../model/network.rs",
        "MAX_STREAMS",
        "streams.cu",
        "MAX_STREAMS",
    ],
    ["embedder.rs", "TILE_K", "matmul.cuh", "TILE_K"],
    [
        "embedder/launch.rs",
        "DENSE_OUTPUTS",
        "texts.cu",
        "DENSE_OUTPUTS",
    ],
    [
        "embedder/launch.rs",
        "DENSE_TEXTS",
        "texts.cu",
        "DENSE_TEXTS",
    ],
];

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text without `//` comments, without attributes and without methods of one line.
fn code(text: &str) -> String {
    let line = |line: &str| {
        line.split("//")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let lines = text.lines().map(line);
    let is_method = |l: &String| l.starts_with("__device__") && l.ends_with('}');
    lines
        .filter(|l| !l.starts_with("#[") && !is_method(l))
        .collect::<Vec<_>>()
        .join("\n")
}

/// What a field is for both sides.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// An address, or a number of eight bytes.
    Wide,
    /// `uint32_t`.
    Whole,
    /// `uint8_t`.
    Byte,
    /// `float`.
    Float,
    /// A structure, by its name on the device.
    Structure(String),
}

/// A field: its name, what it is, and how many of it there are.
type Field = (String, Kind, usize);

fn count(text: &str) -> usize {
    text.trim().parse().unwrap_or_else(|_| match text.trim() {
        "MAX_SEGMENTS" => constant(&root().join("src/backend/cuda/args.rs"), "MAX_SEGMENTS"),
        "MAX_RANKS" => constant(&root().join("kernels/ranks.cu"), "MAX_RANKS"),
        "MAX_LINEARS" => constant(&root().join("kernels/adapters.cuh"), "MAX_LINEARS"),
        "MAX_LOGPROBS" => constant(&root().join("kernels/sample.cuh"), "MAX_LOGPROBS"),
        other => panic!("an array of {other}"),
    })
}

/// The structures of the host by the names of their twins, which the first word of each one's comment
/// is.
fn of_the_host() -> BTreeMap<String, Vec<Field>> {
    let texts: Vec<String> = STRUCTURES.iter().map(|f| read(&root().join(f))).collect();
    let all = texts.join("\n");
    let parts: Vec<&str> = all.split("\npub struct ").collect();
    let twin = |before: &str| {
        let comment = before
            .rfind("\n/// `")
            .expect("a comment that names the twin");
        let name = before[comment + 6..].split('`').next();
        name.expect("a name").to_owned()
    };
    let name = |part: &str| part.split(' ').next().unwrap_or_default().to_owned();
    let twins: BTreeMap<String, String> = parts
        .windows(2)
        .map(|pair| (name(pair[1]), twin(pair[0])))
        .collect();
    let field = |text: &str| -> Field {
        let (name, ty) = text.split_once(':').expect("name: type");
        let ty = ty.trim();
        let (ty, n) = match ty.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            Some(array) => {
                let (ty, n) = array.split_once(';').expect("[type; count]");
                (ty.trim(), count(n))
            }
            None => (ty, 1),
        };
        let kind = match ty {
            "u64" => Kind::Wide,
            "u32" => Kind::Whole,
            "u8" => Kind::Byte,
            "f32" => Kind::Float,
            other => Kind::Structure(twins[other].clone()),
        };
        let name = name.trim().trim_start_matches("pub ");
        // The one name that is a word of the language.
        let name = if name == "ty" { "type" } else { name };
        (name.to_owned(), kind, n)
    };
    let mut structures = BTreeMap::new();
    for part in &parts[1..] {
        let body = part.split_once('{').expect("fields").1;
        let body = code(body.split_once('}').expect("their end").0);
        let fields = body.split(',').map(str::trim).filter(|f| !f.is_empty());
        let before = structures.insert(twins[&name(part)].clone(), fields.map(field).collect());
        assert!(before.is_none(), "two twins of {}", twins[&name(part)]);
    }
    structures
}

/// All structures of the kernels that consist of plain fields.
fn of_the_device() -> BTreeMap<String, Vec<Field>> {
    let mut structures = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("kernels")).unwrap() {
        let text = code(&read(&entry.unwrap().path()));
        for part in text.split("\nstruct ").skip(1) {
            let Some((name, body)) = part.split_once(" {") else {
                continue;
            };
            let body = body.split_once("\n};").map_or(body, |(body, _)| body);
            if let Some(fields) = plain_fields(body) {
                let before = structures.insert(name.trim().to_owned(), fields);
                assert!(before.is_none(), "two structures {name}");
            }
        }
    }
    structures
}

/// `const float* a; uint32_t b, c; Norm d[2];` as fields; `None` where there is more than that.
fn plain_fields(body: &str) -> Option<Vec<Field>> {
    if body.contains(['(', '=']) {
        return None;
    }
    let mut fields = Vec::new();
    for statement in body.split(';').map(str::trim).filter(|s| !s.is_empty()) {
        let first = statement.split(',').next()?;
        let end = first.rfind([' ', '*', '\n'])?;
        let ty = statement[..=end].trim().trim_start_matches("const ").trim();
        let kind = match ty {
            _ if ty.ends_with('*') => Kind::Wide,
            "uint64_t" => Kind::Wide,
            "uint32_t" => Kind::Whole,
            "uint8_t" => Kind::Byte,
            "float" => Kind::Float,
            other => Kind::Structure(other.to_owned()),
        };
        for name in statement[end + 1..].split(',').map(str::trim) {
            let (name, n) = match name.split_once('[') {
                Some((name, n)) => (name, count_of(n.trim_end_matches(']'))?),
                None => (name, 1),
            };
            fields.push((name.to_owned(), kind.clone(), n));
        }
    }
    Some(fields)
}

fn count_of(text: &str) -> Option<usize> {
    let known = ["MAX_SEGMENTS", "MAX_LOGPROBS", "MAX_LINEARS", "MAX_RANKS"].contains(&text);
    (known || text.parse::<usize>().is_ok()).then(|| count(text))
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
    let value = value.and_then(|v| v.parse().ok());
    value.unwrap_or_else(|| panic!("{}: {name} is no number", path.display()))
}

#[test]
fn structures_have_the_same_fields() {
    let (host, device) = (of_the_host(), of_the_device());
    assert!(host.len() >= 30, "{} structures were found", host.len());
    for (name, fields) in &host {
        let twin = device.get(name);
        let twin = twin.unwrap_or_else(|| panic!("the kernels have no structure {name}"));
        assert_eq!(fields, twin, "{name}: host and device");
    }
    // What a kernel takes by that name comes from the host.
    for name in device.keys().filter(|name| name.ends_with("Args")) {
        assert!(host.contains_key(name), "args.rs has no twin of {name}");
    }
}

#[test]
fn constants_have_the_same_values() {
    for [file, name, kernel_file, kernel_name] in CONSTANTS {
        let host = constant(&root().join("src/backend/cuda").join(file), name);
        let device = constant(&root().join("kernels").join(kernel_file), kernel_name);
        assert_eq!(
            host, device,
            "{name} of {file}, {kernel_name} of {kernel_file}"
        );
    }
    let longest = constant(&root().join("kernels/sample.cuh"), "MAX_LOGPROBS");
    assert_eq!(longest, emberlm::engine::sampling::MAX_LOGPROBS);
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

    let text = read(&root().join("src/backend/cuda/record.rs"));
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
    let fields = |text: &str| plain_fields(&code(text)).unwrap();
    let wide = |name: &str| (name.to_owned(), Kind::Wide, 1);
    let both = [wide("a"), ("b".to_owned(), Kind::Whole, 1)];
    assert_eq!(fields("const float* a;  // [rows]\nuint32_t b;"), both);
    assert_ne!(fields("const float* a; float b;"), both);
    assert_ne!(fields("uint32_t b; const float* a;"), both);
    assert_ne!(fields("const float* a; uint32_t b[2];"), both);
    let norms = ("n".to_owned(), Kind::Structure("NormArgs".to_owned()), 2);
    assert_eq!(fields("NormArgs n[2];"), [norms]);
    assert_eq!(fields("uint64_t a, b;"), [wide("a"), wide("b")]);
    let method = "__device__ uint32_t twice() const { return 2 * b; }";
    let with_method = format!("const float* a; uint32_t b;\n{method}");
    assert_eq!(fields(&with_method), both);
}
