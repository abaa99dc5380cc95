//! Hugging Face folders are read as the GGUF files that a converter would make of them.

mod common;

use common::repository_file;
use emberlm::format::{ModelFile, Tensor};
use emberlm::quant::dequantize_row;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The folders of `data/families`, each with a GGUF file of the same model.
fn families() -> Vec<PathBuf> {
    let all = std::fs::read_dir(repository_file("tests/data/families")).unwrap();
    let mut folders: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.join("config.json").exists());
    folders.sort();
    assert!(folders.len() >= 19, "{folders:?}");
    folders
}

fn elements(tensor: &Tensor) -> Vec<f32> {
    let mut elements = vec![0.0; tensor.row_len() * tensor.rows()];
    dequantize_row(tensor.ty, tensor.bytes(), &mut elements);
    elements
}

#[test]
fn folders_have_the_tensors_and_keys_of_their_gguf_files() {
    for folder in families() {
        let gguf = ModelFile::open(&folder.join("model.gguf")).unwrap();
        let file = ModelFile::open(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        file.make(2, &mut |_| Ok(())).unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();

        let mut expected: Vec<_> = gguf.tensors.keys().collect();
        let mut found: Vec<_> = file.tensors.keys().collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{name}");
        for (key, tensor) in &file.tensors {
            let expected = gguf.tensor(key).unwrap();
            assert_eq!(tensor.dims, expected.dims, "{name} {key}");
            let same = elements(tensor) == elements(expected);
            assert!(same, "{name} {key}: {tensor:?} and {expected:?}");
        }
        let architecture = gguf.str("general.architecture").unwrap();
        let own = |file: &ModelFile| -> BTreeMap<String, String> {
            let metadata = file.metadata.iter();
            let own = metadata.filter(|(key, _)| key.starts_with(architecture));
            own.map(|(k, v)| (k.clone(), format!("{v:?}"))).collect()
        };
        let (found, expected) = (own(&file), own(&gguf));
        for (key, value) in &expected {
            assert_eq!(found.get(key), Some(value), "{name}: {key}");
        }
        for key in found.keys().filter(|key| !expected.contains_key(*key)) {
            println!("{name}: {key} = {} is in the folder alone", found[key]);
        }
    }
}
