//! Loads onto the GPU from files that stay as they are, and from files that do not: what goes to a
//! GPU is read and never mapped.

use crate::common::folder::Folder;
use crate::common::work::Driven;
use crate::common::{TempDir, repository_file};
use crate::gpu::*;
use emberlm::Status;
use emberlm::backend::cuda::run::weights::CudaWeights;
use emberlm::backend::{DeviceKind, LoadOptions, RunnerOptions, Weights};
use emberlm::engine::{Model, Session, SessionOptions, device};
use emberlm::format::{Access, Lent, ModelFile, ModelSource, ReadAt, WeightType};
use emberlm::model::Network;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn tests(tests: &mut Tests) {
    tests.push((
        "files::same".into(),
        Box::new(every_way_to_load_gives_the_same),
    ));
    tests.push(("files::sources".into(), Box::new(models_without_a_path)));
    tests.push(("files::cut".into(), Box::new(files_that_are_cut)));
    tests.push(("files::resident".into(), Box::new(nothing_stays_resident)));
}

fn first(kind: DeviceKind) -> usize {
    (0..device::count().unwrap())
        .find(|&i| device::info(i).unwrap().kind == kind)
        .unwrap()
}

fn load(
    path: &Path,
    device: usize,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32) -> emberlm::Result<()>,
) -> emberlm::Result<Arc<Model>> {
    Model::load(path, device, options, progress).map(Arc::new)
}

fn tokens(model: &Arc<Model>) -> Vec<u32> {
    let options = SessionOptions {
        context: 64,
        ..Default::default()
    };
    let mut session = Session::create(model.clone(), &options).unwrap();
    session.prefill(&[1, 2, 3, 4, 5]).unwrap();
    (0..32).map(|_| session.decode().unwrap()).collect()
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let mut session = Session::create(model.clone(), &SessionOptions::default()).unwrap();
    session.prefill(&[1, 2, 3, 4, 5]).unwrap();
    let mut logits = vec![0.0; model.details().n_vocab];
    session.logits(&mut logits).unwrap();
    logits
}

/// The logits of weights that were in memory before they were uploaded.
fn logits_of_memory(file: &ModelFile) -> Vec<f32> {
    let network = Network::from_file(file).unwrap();
    let weights = CudaWeights::load_into(&context(), &network, &mut |_| Ok(())).unwrap();
    let options = RunnerOptions {
        context: 64,
        ..Default::default()
    };
    let weights: Arc<dyn Weights> = weights;
    let mut runner = Driven::new(&weights, &options).unwrap();
    let interrupt = Arc::new(AtomicBool::new(false));
    runner.extend(&[1, 2, 3, 4, 5], &interrupt).unwrap();
    let mut logits = vec![0.0; network.n_vocab];
    runner.logits(&mut logits).unwrap();
    logits
}

/// Whatever the options say of files, and of one file or shards, as it is or converted: the same bits
/// as from memory.
fn every_way_to_load_gives_the_same() {
    let dir = TempDir::new("gpu-shards");
    let folder = Folder::family("mixtral");
    folder.write_shards(&dir, 2);
    let hamlet = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let bytes = std::fs::read(&hamlet).unwrap();
    for weights in [WeightType::Keep, WeightType::Q8_0] {
        let converted = |file: ModelFile| {
            let file = file.with_weights(weights).unwrap();
            file.make(2, &mut |_| Ok(())).unwrap();
            file
        };
        for (path, memory) in [
            (hamlet.as_path(), ModelFile::from_bytes(&bytes).unwrap()),
            (dir.path(), folder.open().unwrap()),
        ] {
            let expected = logits_of_memory(&converted(memory));
            for access in [Access::Mapped, Access::Read] {
                let options = LoadOptions {
                    threads: 2,
                    weights,
                    access,
                    ..Default::default()
                };
                let gpu = first(DeviceKind::Cuda);
                let model = load(path, gpu, &options, &mut |_| Ok(())).unwrap();
                let what = format!("{} {weights:?} {access:?}", path.display());
                assert!(logits(&model) == expected, "{what}");
            }
        }
    }
}

/// Bytes in memory of somebody else's.
struct Bytes(Vec<u8>);

impl Lent for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ReadAt for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> emberlm::Result<()> {
        out.copy_from_slice(&self.0[offset..offset + out.len()]);
        Ok(())
    }
}

/// From memory and by a reader, as it is or converted: the bits of the file; and when it is loaded, the GPU needs
/// the bytes no longer.
fn models_without_a_path() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let bytes = Arc::new(Bytes(std::fs::read(&path).unwrap()));
    let gpu = first(DeviceKind::Cuda);
    for weights in [WeightType::Keep, WeightType::Q8_0] {
        let options = LoadOptions {
            threads: 2,
            weights,
            ..Default::default()
        };
        let expected = logits(&load(&path, gpu, &options, &mut |_| Ok(())).unwrap());
        let sources = [
            ModelSource::Copied(&bytes.0),
            ModelSource::Lent(bytes.clone()),
            ModelSource::Reader(bytes.clone()),
        ];
        for source in sources {
            let model = Model::load_from(&source, gpu, &options, &mut |_| Ok(())).unwrap();
            let what = format!("{source} {weights:?}");
            drop(source);
            let model = Arc::new(model);
            assert!(logits(&model) == expected, "{what}");
        }
        assert_eq!(Arc::strong_count(&bytes), 1);
        let lent = ModelSource::Lent(bytes.clone());
        let model = Model::load_from(&lent, gpu, &options, &mut |_| Ok(())).unwrap();
        drop(lent);
        assert_eq!(
            Arc::strong_count(&bytes),
            1,
            "a model on a GPU keeps the bytes"
        );
        drop(model);
    }
}

/// Cut at each call of progress, to nothing, to the half and by a byte; and when it is loaded, which
/// does not matter.
fn files_that_are_cut() {
    let dir = TempDir::new("gpu-cut");
    let whole = std::fs::read(repository_file("models/hamlet-7m-Q4_K_M.gguf")).unwrap();
    let path = dir.file("model.gguf", &whole);
    let gpu = first(DeviceKind::Cuda);
    let cut = |len: usize| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(len as u64).unwrap();
    };
    for weights in [WeightType::Keep, WeightType::Q8_0] {
        let options = LoadOptions {
            weights,
            ..Default::default()
        };
        let mut calls = 0;
        let model = load(&path, gpu, &options, &mut |_| {
            calls += 1;
            Ok(())
        })
        .unwrap();
        let expected = tokens(&model);
        cut(0);
        assert_eq!(tokens(&model), expected);
        for at in 0..calls {
            for len in [4096, whole.len() / 2, whole.len() - 1] {
                std::fs::write(&path, &whole).unwrap();
                let (mut call, mut was_cut) = (0, false);
                let result = load(&path, gpu, &options, &mut |_| {
                    // How often it is called differs from load to load.
                    if call == at {
                        cut(len);
                        was_cut = true;
                    }
                    call += 1;
                    Ok(())
                });
                match result {
                    Ok(_) => assert!(!was_cut, "cut to {len} at call {at} of {call}"),
                    Err(e) => {
                        assert!(was_cut, "{e}");
                        assert_eq!(e.status, Status::FileTruncated, "{e}");
                        assert!(e.message.contains("model.gguf"), "{e}");
                    }
                }
            }
        }
        std::fs::write(&path, &whole).unwrap();
        let again = load(&path, gpu, &options, &mut |_| Ok(())).unwrap();
        assert_eq!(tokens(&again), expected);
    }
}

/// No mapping of the file is left, nor made.
fn nothing_stays_resident() {
    let path = repository_file("models/hamlet-7m-Q4_K_M.gguf");
    let path = path.canonicalize().unwrap();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        maps.contains(path.to_str().unwrap())
    };
    let gpu = first(DeviceKind::Cuda);
    let model = load(&path, gpu, &LoadOptions::default(), &mut |_| {
        assert!(!mapped(), "while it is loaded");
        Ok(())
    });
    assert!(!mapped(), "when it is loaded");
    drop(model.unwrap());
}
