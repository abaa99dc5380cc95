//! Compiles `kernels/*.cu` with nvcc, one compressed fat binary a file, for the feature `cuda`.
//!
//! `EMBERLM_CUDA_ARCHS` names the architectures, separated by commas: a number with an optional
//! letter (`90a`, which `90` stands for, too) for machine code, `ptx80` for code that the driver compiles, `80:90` for
//! the code of 8.0 as machine code of 9.0, with which tests run it there. The default is what a developer needs; release
//! builds say `all`.
//!
//! What was compiled is kept in `target/kernels` (or `EMBERLM_KERNEL_CACHE`) under a hash of everything
//! that went into it, so that other profiles and features of this crate need not compile it again.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const DEFAULT: &str = "90a";
// The code of 8.0 runs on 8.6 and 8.9, too.
const ALL: &str = "75,80,90a,100,120,ptx120";

/// Writes `<name>.fatbin` for every kernel file and `cuda_modules.rs`, the list of them, to `OUT_DIR`.
pub fn compile() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=build");
    for name in [
        "NVCC",
        "CUDA_HOME",
        "EMBERLM_CUDA_ARCHS",
        "EMBERLM_KERNEL_CACHE",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let nvcc = find_nvcc();
    let version = Command::new(&nvcc).arg("--version").output();
    let version = version.map_or(Vec::new(), |output| output.stdout);
    let cache = cache_folder(&out);
    let archs = std::env::var("EMBERLM_CUDA_ARCHS").unwrap_or_default();
    let archs = &with_warpgroups(match archs.as_str() {
        "" => DEFAULT,
        "all" => ALL,
        other => other,
    });
    let mut files: Vec<PathBuf> = std::fs::read_dir("kernels")
        .expect("the folder kernels/")
        .map(|entry| entry.expect("an entry of kernels/").path())
        .filter(|path| path.extension().is_some_and(|e| e == "cu"))
        .collect();
    // The largest first, so that the last ones to finish are short.
    files.sort_by_key(|path| (!stem(path).starts_with("matvec_"), stem(path)));
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1usize).clamp(1, files.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(file) = files.get(i) else { return };
                    let mut key = DefaultHasher::new();
                    (&version, archs, FLAGS).hash(&mut key);
                    hash_sources(file, &mut BTreeSet::new(), &mut key);
                    let name = stem(file);
                    let kept = cache.join(format!("{name}-{:016x}.fatbin", key.finish()));
                    if !kept.is_file() {
                        compile_file(&nvcc, archs, file, &kept);
                    }
                    std::fs::copy(&kept, out.join(format!("{name}.fatbin")))
                        .expect("OUT_DIR is writable");
                }
            });
        }
    });
    files.sort();
    let list: String = files
        .iter()
        .map(|file| {
            let name = stem(file);
            format!("    (\"{name}\", include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))),\n")
        })
        .collect();
    let text = format!(
        "/// Kernel files by name: machine code for several architectures.\npub const MODULES: &[(&str, &[u8])] = &[\n{list}];\n"
    );
    std::fs::write(out.join("cuda_modules.rs"), text).expect("OUT_DIR is writable");
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

const FLAGS: [&str; 7] = [
    "-O3",
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "-fatbin",
    "--compress-mode=size",
    "-Werror",
    "all-warnings",
];

/// `target/kernels`, found from `target/<profile>/build/<package>/out`.
fn cache_folder(out: &Path) -> PathBuf {
    let folder = match std::env::var_os("EMBERLM_KERNEL_CACHE").filter(|v| !v.is_empty()) {
        Some(folder) => folder.into(),
        None => out.ancestors().nth(4).unwrap_or(out).join("kernels"),
    };
    std::fs::create_dir_all(&folder)
        .unwrap_or_else(|e| panic!("{} cannot be made: {e}", folder.display()));
    folder
}

/// Hashes a kernel file and the files of this folder that it includes.
fn hash_sources(file: &Path, seen: &mut BTreeSet<PathBuf>, key: &mut DefaultHasher) {
    if !seen.insert(file.to_owned()) {
        return;
    }
    let text = std::fs::read_to_string(file)
        .unwrap_or_else(|e| panic!("{} cannot be read: {e}", file.display()));
    text.hash(key);
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix("#include \"")
            && let Some(name) = name.strip_suffix('"')
        {
            hash_sources(&file.with_file_name(name), seen, key);
        }
    }
}

/// The architectures `archs`, checked for GPUs of capability 9.0. Kernels of warpgroup instructions, which
/// these run, are empty unless compiled for `90a`: their results would be wrong without an error.
fn with_warpgroups(archs: &str) -> String {
    let archs: Vec<&str> = archs
        .split(',')
        .map(|arch| match arch.trim() {
            "90" => "90a",
            arch => arch,
        })
        .collect();
    let runs_on_90 = |arch: &&str| {
        let number = arch.strip_prefix("ptx").and_then(|n| n.parse().ok());
        number.is_some_and(|n: u32| n <= 90)
    };
    if let Some(ptx) = archs.iter().find(|arch| runs_on_90(arch))
        && !archs.contains(&"90a")
    {
        panic!(
            "EMBERLM_CUDA_ARCHS: GPUs of capability 9.0 would run {ptx}, which lacks their kernels; add 90a"
        );
    }
    archs.join(",")
}

fn compile_file(nvcc: &Path, archs: &str, file: &Path, to: &Path) {
    let mut command = Command::new(nvcc);
    command.args(FLAGS);
    for arch in archs.split(',') {
        let (arch, code) = match (arch.strip_prefix("ptx"), arch.split_once(':')) {
            (Some(number), _) => (number, format!("compute_{number}")),
            (None, Some((arch, of))) => (arch, format!("sm_{of}")),
            (None, None) => (arch, format!("sm_{arch}")),
        };
        command.arg(format!("-gencode=arch=compute_{arch},code={code}"));
    }
    // Another build may be making the same file.
    let unfinished = to.with_extension(format!("{}.tmp", std::process::id()));
    let result = command.arg("-o").arg(&unfinished).arg(file).output();
    let result = result.unwrap_or_else(|e| panic!("{} did not start: {e}", nvcc.display()));
    assert!(
        result.status.success(),
        "{} failed on {}:\n{}{}",
        nvcc.display(),
        file.display(),
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
    std::fs::rename(&unfinished, to).expect("the folder of kernels is writable");
}

fn find_nvcc() -> PathBuf {
    let exe = if cfg!(windows) { "nvcc.exe" } else { "nvcc" };
    if let Some(path) = std::env::var_os("NVCC").filter(|v| !v.is_empty()) {
        return path.into();
    }
    let in_folder = |folder: PathBuf| Some(folder.join(exe)).filter(|path| path.is_file());
    let home =
        std::env::var_os("CUDA_HOME").and_then(|home| in_folder(PathBuf::from(home).join("bin")));
    let on_path = || std::env::split_paths(&std::env::var_os("PATH")?).find_map(in_folder);
    let fetched = || {
        let root = std::env::var_os("CARGO_MANIFEST_DIR")?;
        in_folder(Path::new(&root).join("target/nvcc/nvidia/cu13/bin"))
    };
    home.or_else(on_path).or_else(fetched).unwrap_or_else(|| {
        panic!(
            "the CUDA kernels need nvcc, which is not in NVCC, CUDA_HOME, PATH or target/nvcc.\n\
             Either run `make nvcc`, which fetches it from PyPI into target/nvcc,\n\
             or build for the CPU alone: cargo build --no-default-features"
        )
    })
}
