//! Hugging Face folders in memory, to be changed and loaded.

use super::{TempDir, repository_file};
use emberlm::Result;
use emberlm::format::{ModelFile, Tensor};
use emberlm::quant::dequantize_row;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor as a safetensors file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub ty: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Stored {
    pub fn f32(shape: &[usize], values: &[f32]) -> Stored {
        Stored {
            ty: "F32".into(),
            shape: shape.to_vec(),
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}

/// `config.json` and the tensors of a folder.
#[derive(Clone)]
pub struct Folder {
    pub config: Map<String, Value>,
    pub tensors: BTreeMap<String, Stored>,
}

impl Folder {
    /// One of `data/families`.
    pub fn family(name: &str) -> Folder {
        let folder = family_path(name);
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
        Folder {
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: tensors(&read("model.safetensors")),
        }
    }

    /// One of `data/embeddings`.
    pub fn encoder(name: &str) -> Folder {
        let folder = repository_file(&format!("tests/data/embeddings/{name}"));
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
        Folder {
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: tensors(&read("model.safetensors")),
        }
    }

    /// Sets a value of the config.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Folder {
        self.config.insert(key.into(), value);
        self
    }

    pub fn config_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&self.config).unwrap()
    }

    /// Reads it from memory.
    pub fn open(&self) -> Result<ModelFile> {
        ModelFile::from_folder(&self.config_bytes(), &safetensors(&self.tensors))
    }

    /// Reads it from memory, ready to use.
    pub fn ready(&self) -> ModelFile {
        let file = self.open().unwrap();
        file.make(2, &mut |_| Ok(())).unwrap();
        file
    }

    /// Writes it to a folder in one file.
    pub fn write(&self, dir: &TempDir) {
        dir.file("config.json", &self.config_bytes());
        dir.file("model.safetensors", &safetensors(&self.tensors));
    }

    /// Writes it to a folder, spread over so many files, with an index. Returns their names.
    pub fn write_shards(&self, dir: &TempDir, count: usize) -> Vec<String> {
        dir.file("config.json", &self.config_bytes());
        let names: Vec<String> = (1..=count)
            .map(|i| format!("model-{i:05}-of-{count:05}.safetensors"))
            .collect();
        let mut weight_map = Map::new();
        for (i, name) in names.iter().enumerate() {
            let own = self.tensors.iter().enumerate();
            let own = own.filter(|(t, _)| t % count == i);
            let own: BTreeMap<_, _> = own.map(|(_, (k, v))| (k.clone(), v.clone())).collect();
            weight_map.extend(own.keys().map(|k| (k.clone(), name.as_str().into())));
            dir.file(name, &safetensors(&own));
        }
        write_index(dir.path(), weight_map);
        names
    }
}

/// All elements of a tensor.
pub fn elements(tensor: &Tensor) -> Vec<f32> {
    let mut elements = vec![0.0; tensor.row_len() * tensor.rows()];
    dequantize_row(tensor.ty, tensor.bytes(), &mut elements);
    elements
}

/// Writes the index of a folder.
pub fn write_index(dir: &Path, weight_map: Map<String, Value>) {
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    let path = dir.join("model.safetensors.index.json");
    std::fs::write(path, index.to_string()).unwrap();
}

/// A folder of `data/families`.
pub fn family_path(name: &str) -> PathBuf {
    repository_file(&format!("tests/data/families/{name}"))
}

/// The names of all folders of `data/families`.
pub fn families() -> Vec<String> {
    folders_of("tests/data/families", 19)
}

/// The names of all folders of `data/embeddings`.
pub fn encoders() -> Vec<String> {
    folders_of("tests/data/embeddings", 15)
}

/// The names of the folders with a config there, at least so many.
fn folders_of(folder: &str, least: usize) -> Vec<String> {
    let all = std::fs::read_dir(repository_file(folder)).unwrap();
    let mut names: Vec<String> = all
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= least, "{names:?}");
    names
}

/// A safetensors file of these tensors.
pub fn safetensors(tensors: &BTreeMap<String, Stored>) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (name, t) in tensors {
        let start = data.len();
        data.extend(&t.bytes);
        let info = json!({"dtype": t.ty, "shape": t.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), info);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file of this header and data.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// The tensors of a safetensors file.
pub fn tensors(file: &[u8]) -> BTreeMap<String, Stored> {
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let number = |v: &Value| v.as_u64().unwrap() as usize;
    tensors
        .map(|(name, info)| {
            let list = |key: &str| info[key].as_array().unwrap().iter().map(number);
            let range: Vec<usize> = list("data_offsets").collect();
            let stored = Stored {
                ty: info["dtype"].as_str().unwrap().into(),
                shape: list("shape").collect(),
                bytes: data[range[0]..range[1]].to_vec(),
            };
            (name.clone(), stored)
        })
        .collect()
}
