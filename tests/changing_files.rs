//! Model files that change while they are loaded or used: a status that names the file, whatever
//! happens and whenever, and never a signal. Everything happens in child processes, which a signal
//! would end.

mod common;

use common::folder::{Folder, family_path};
use common::{TempDir, repository_file};
use emberlm::Status::{self, FileCorrupt, FileTruncated};
use emberlm::backend::{DeviceKind, LoadOptions};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::format::{Access, ModelFile, WeightType};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const ACCESSES: [Access; 2] = [Access::Mapped, Access::Read];
/// Set in the children, to the name of the test.
const CHILD: &str = "EMBERLM_TEST_CHANGING_FILES";

/// Runs `work` in a child process and passes on what it says if it fails or is killed.
fn in_child(test: &str, work: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}\n{said}", out.status);
    assert!(said.contains("1 passed"), "{said}");
}

fn cpu() -> usize {
    (0..device::count().unwrap())
        .find(|&i| device::info(i).unwrap().kind == DeviceKind::Cpu)
        .unwrap()
}

fn options(access: Access) -> LoadOptions {
    LoadOptions {
        threads: 2,
        access,
        ..Default::default()
    }
}

fn cut(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

/// Tokens of a new session.
fn tokens(model: &Arc<Model>) -> emberlm::Result<Vec<u32>> {
    let options = SessionOptions {
        context: 32,
        ..Default::default()
    };
    let mut session = Session::create(model.clone(), &options)?;
    session.prefill(&[1, 2, 3])?;
    (0..8).map(|_| session.decode()).collect()
}

/// A model in files of its own: the path to load, and the file that will change.
struct Files {
    _dir: TempDir,
    path: PathBuf,
    weights: PathBuf,
}

impl Files {
    fn gguf(test: &str) -> Files {
        let dir = TempDir::new(test);
        let bytes = fs::read(repository_file("models/hamlet-7m-Q4_K_M.gguf")).unwrap();
        let path = dir.file("model.gguf", &bytes);
        Files {
            weights: path.clone(),
            path,
            _dir: dir,
        }
    }

    /// In two shards, with rows in another order and norms that are copied.
    fn shards(test: &str) -> Files {
        let dir = TempDir::new(test);
        let names = Folder::family("mistral").write_shards(&dir, 2);
        Files {
            path: dir.path().to_owned(),
            weights: dir.path().join(&names[1]),
            _dir: dir,
        }
    }

    /// Loads with a change at the `at`-th call of progress; the result, and how often it was called.
    fn load(
        &self,
        options: &LoadOptions,
        at: usize,
        change: &mut dyn FnMut(),
    ) -> (emberlm::Result<Model>, usize) {
        let mut calls = 0;
        let result = Model::load(&self.path, cpu(), options, &mut |_| {
            if calls == at {
                change();
            }
            calls += 1;
            Ok(())
        });
        (result, calls)
    }

    fn refused(&self, result: emberlm::Result<Model>, status: Status, what: &str) {
        let error = match result {
            Ok(_) => panic!("{what}: loaded"),
            Err(error) => error,
        };
        assert_eq!(error.status, status, "{what}: {error}");
        let name = self.weights.file_name().unwrap().to_str().unwrap();
        assert!(error.message.contains(name), "{what}: {error}");
    }
}

/// Cuts the file at every call of progress, to every length that could matter.
fn cut_while_loaded(files: &Files, options: &LoadOptions) {
    let whole = fs::read(&files.weights).unwrap();
    let (loaded, calls) = files.load(options, usize::MAX, &mut || {});
    let expected = tokens(&Arc::new(loaded.unwrap())).unwrap();
    for at in 0..calls {
        for len in [0, 1, 4096, whole.len() as u64 / 2, whole.len() as u64 - 1] {
            let what = format!("{options:?}: {len} bytes from call {at} of {calls} on");
            let (result, calls) = files.load(options, at, &mut || cut(&files.weights, len));
            match result {
                // How often progress is called depends on how threads share the work.
                Ok(_) if calls <= at => {}
                // The first call comes before the file is opened.
                Err(e) if at == 0 && len == 0 => assert_eq!(e.status, Status::FileEmpty, "{what}"),
                result => files.refused(result, FileTruncated, &what),
            }
            fs::write(&files.weights, &whole).unwrap();
        }
    }
    let (loaded, _) = files.load(options, usize::MAX, &mut || {});
    assert_eq!(tokens(&Arc::new(loaded.unwrap())).unwrap(), expected);
}

#[test]
fn a_gguf_that_is_cut_while_it_is_loaded() {
    in_child("a_gguf_that_is_cut_while_it_is_loaded", || {
        let files = Files::gguf("cut-gguf");
        for access in ACCESSES {
            cut_while_loaded(&files, &options(access));
            let weights = WeightType::Q8_0;
            cut_while_loaded(
                &files,
                &LoadOptions {
                    weights,
                    ..options(access)
                },
            );
        }
    });
}

#[test]
fn a_folder_that_is_cut_while_it_is_loaded() {
    in_child("a_folder_that_is_cut_while_it_is_loaded", || {
        let files = Files::shards("cut-folder");
        for access in ACCESSES {
            cut_while_loaded(&files, &options(access));
        }
    });
}

#[test]
fn a_file_that_is_cut_after_it_was_read_does_not_matter() {
    in_child(
        "a_file_that_is_cut_after_it_was_read_does_not_matter",
        || {
            for files in [Files::gguf("cut-after"), Files::shards("cut-after-folder")] {
                let (loaded, _) = files.load(&options(Access::Read), usize::MAX, &mut || {});
                let model = Arc::new(loaded.unwrap());
                let expected = tokens(&model).unwrap();
                cut(&files.weights, 0);
                assert_eq!(tokens(&model).unwrap(), expected);
                fs::remove_file(&files.weights).unwrap();
                assert_eq!(tokens(&model).unwrap(), expected);
            }
        },
    );
}

#[test]
fn calls_refuse_a_mapped_file_that_was_cut() {
    in_child("calls_refuse_a_mapped_file_that_was_cut", || {
        let files = Files::gguf("cut-mapped");
        let (loaded, _) = files.load(&options(Access::Mapped), usize::MAX, &mut || {});
        let model = Arc::new(loaded.unwrap());
        let mut session = Session::create(model.clone(), &SessionOptions::default()).unwrap();
        session.prefill(&[1, 2, 3]).unwrap();
        session.decode().unwrap();
        cut(&files.weights, 4096);
        let mut logits = vec![0.0; model.details().n_vocab];
        let options = SessionOptions::default();
        for error in [
            session.prefill(&[4]).unwrap_err(),
            session.decode().unwrap_err(),
            session.decode_start(1).unwrap_err(),
            session.logits(&mut logits).unwrap_err(),
            session.fork().map(drop).unwrap_err(),
            Session::create(model.clone(), &options)
                .map(drop)
                .unwrap_err(),
        ] {
            assert_eq!(error.status, FileTruncated, "{error}");
            assert!(error.message.contains("model.gguf"), "{error}");
        }
        assert_eq!(session.position(), 4);
    });
}

#[test]
fn a_file_that_is_written_to_or_replaced_while_it_is_loaded() {
    in_child(
        "a_file_that_is_written_to_or_replaced_while_it_is_loaded",
        || {
            for files in [Files::gguf("written"), Files::shards("written-folder")] {
                let other = files.weights.with_extension("new");
                for access in ACCESSES {
                    let write = &mut || {
                        let file = OpenOptions::new().write(true).open(&files.weights).unwrap();
                        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
                        file.set_modified(then).unwrap();
                    };
                    let (result, _) = files.load(&options(access), 1, write);
                    files.refused(result, FileCorrupt, "written");
                    let replace = &mut || {
                        fs::copy(&files.weights, &other).unwrap();
                        fs::rename(&other, &files.weights).unwrap();
                    };
                    let (result, _) = files.load(&options(access), 1, replace);
                    files.refused(result, FileCorrupt, "replaced");
                    // Before it is opened, and when it is loaded, that is fine.
                    let (result, _) = files.load(&options(access), 0, replace);
                    let model = Arc::new(result.unwrap());
                    let expected = tokens(&model).unwrap();
                    fs::copy(&files.weights, &other).unwrap();
                    File::create(files.weights.with_extension("x")).unwrap();
                    fs::rename(files.weights.with_extension("x"), &files.weights).unwrap();
                    assert_eq!(tokens(&model).unwrap(), expected);
                    fs::rename(&other, &files.weights).unwrap();
                }
            }
        },
    );
}

/// What is computed does not depend on how the files are reached.
#[test]
fn mapped_and_read_models_are_the_same() {
    let split = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let folders = ["gpt2", "mixtral", "gpt_oss", "qwen3moe"].map(family_path);
    for path in folders.iter().chain([&split]) {
        for weights in [WeightType::Keep, WeightType::Q8_0] {
            let [mapped, read] = ACCESSES.map(|access| {
                let options = LoadOptions {
                    weights,
                    ..options(access)
                };
                let model = Model::load(path, cpu(), &options, &mut |_| Ok(())).unwrap();
                let resident = model.details().resident_bytes;
                (tokens(&Arc::new(model)).unwrap(), resident)
            });
            assert_eq!(mapped.0, read.0, "{} {weights:?}", path.display());
            assert!(mapped.1 <= read.1, "{} {weights:?}", path.display());
        }
    }
}

/// A device with its own memory reads what is in the file as it is, and makes the rest.
#[test]
fn what_is_in_the_file_need_not_be_made() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let file = ModelFile::open_with(&path, Access::Read).unwrap();
    assert!(!file.is_ready());
    file.make_converted(1, &mut |_| panic!("nothing to make"))
        .unwrap();
    assert!(!file.is_ready());
    let mapped = ModelFile::open(&path).unwrap();
    assert!(mapped.is_ready() && mapped.made_bytes(|_| true) == 0);
    let mut rows = Vec::new();
    for (name, tensor) in &file.tensors {
        rows.resize(tensor.byte_len(), 0);
        tensor.read_rows(0, &mut rows).unwrap();
        assert!(rows == mapped.tensors[name].bytes(), "{name}");
        assert_eq!(
            tensor.to_f32().unwrap(),
            mapped.tensors[name].to_f32().unwrap()
        );
    }
    file.make(2, &mut |_| Ok(())).unwrap();
    assert!(file.is_ready());
    for (name, tensor) in &file.tensors {
        assert!(tensor.bytes() == mapped.tensors[name].bytes(), "{name}");
    }
}
