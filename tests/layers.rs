//! The folders of the CUDA backend are layers: none uses one that comes after it in this list. The texts of its files are read.

use std::path::{Path, PathBuf};

/// From the lowest one on.
const LAYERS: [&str; 4] = ["driver", "launch", "network", "run"];
/// Where they are.
const FOLDER: &str = "src/backend/cuda";

/// The text without `//` comments, which may name whoever uses a file.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next());
    lines
        .map(Option::unwrap_or_default)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first names of what follows `::`: one, or those between braces.
fn first_names(rest: &str) -> Vec<&str> {
    let name = |text: &str| {
        text.find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len())
    };
    let Some(inside) = rest.strip_prefix('{') else {
        return vec![&rest[..name(rest)]];
    };
    let (mut names, mut depth, mut is_first) = (Vec::new(), 0, true);
    for (i, c) in inside.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && !c.is_whitespace() => {
                names.push(&inside[i..i + name(&inside[i..])]);
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

/// What a file that is a module of this path has of the backend: the names behind its own.
fn used<'a>(module: &[&str], text: &'a str) -> Vec<&'a str> {
    let mut used = Vec::new();
    for (at, _) in text.match_indices("backend::cuda::") {
        used.extend(first_names(&text[at + "backend::cuda::".len()..]));
    }
    // As many words `super` as the path has names lead to the backend's own.
    let up = "super::".repeat(module.len());
    for (at, _) in text.match_indices(&up) {
        let rest = &text[at + up.len()..];
        if !text[..at].ends_with("super::") && !rest.starts_with("super::") {
            used.extend(first_names(rest));
        }
    }
    used
}

/// Names of layers that come after that of a file, at this path in the backend's folder, and other things that are not its to have.
fn upward(path: &Path, text: &str) -> Vec<String> {
    let path = path.with_extension("");
    let mut module: Vec<&str> = path.iter().map(|name| name.to_str().unwrap()).collect();
    if module.last() == Some(&"mod") {
        module.pop();
    }
    let text = code(text);
    let place = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let mine = place(module[0]).unwrap_or_else(|| panic!("{} is no layer", module[0]));
    // What the backend shows of itself is of its last layer.
    let of = |name: &str| place(name).unwrap_or(LAYERS.len());
    let mut wrong: Vec<String> = used(&module, &text)
        .into_iter()
        .filter(|name| of(name) > mine)
        .map(str::to_owned)
        .collect();
    // Their methods need no path.
    if module[0] != "launch" && text.contains("impl Kernels") {
        wrong.push("launches".into());
    }
    wrong
}

/// All files of a folder, from there on.
fn files(root: &Path, folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => files(root, &path, all),
            false => all.push(path),
        }
    }
}

#[test]
fn layers_of_the_cuda_backend_use_none_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    files(&root, Path::new(""), &mut all);
    all.retain(|path| path != Path::new("mod.rs"));
    for path in &all {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        let names = upward(path, &text);
        wrong.extend(
            names
                .iter()
                .map(|name| format!("{}: {name}", path.display())),
        );
    }
    assert!(all.len() > 80, "{} files were found", all.len());
    assert!(wrong.is_empty(), "layers use others above them: {wrong:#?}");
}

#[test]
fn uses_of_layers_above_are_seen() {
    let seen = |path: &str, text: &str| upward(Path::new(path), text);
    let launch = "launch/experts/products.rs";
    assert_eq!(
        seen(launch, "use crate::backend::cuda::run::Core;"),
        ["run"]
    );
    assert_eq!(
        seen(launch, "let n = super::super::super::network::plan::N;"),
        ["network"]
    );
    let several = "use crate::backend::cuda::{\n    driver::{self, Stream},\n    run::{Core, Kind},\n    network,\n};";
    assert_eq!(seen(launch, several), ["run", "network"]);
    assert_eq!(
        seen("driver/mod.rs", "use super::{launch, run};"),
        ["launch", "run"]
    );
    assert_eq!(
        seen("network/plan.rs", "use crate::backend::cuda::CudaBackend;"),
        ["CudaBackend"]
    );
    assert_eq!(seen("network/plan.rs", "impl Kernels {"), ["launches"]);
    let right = "// As of `crate::backend::cuda::run`.\nuse super::super::plan;\nuse crate::backend::cuda::driver::Stream;";
    assert!(seen("network/step/experts.rs", right).is_empty());
    assert!(
        seen(
            "run/weights.rs",
            "use crate::backend::cuda::network::plan::Plan;"
        )
        .is_empty()
    );
}
