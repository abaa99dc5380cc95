//! Model files with a few things changed.

use emberlm::format::writer::Writer;
use emberlm::format::{ModelFile, Value};
use emberlm::quant::TensorType;
use std::collections::BTreeMap;

/// A tensor to be written.
#[derive(Clone)]
pub struct EditedTensor {
    pub ty: TensorType,
    pub dims: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The parts of a file, in the order of their names.
#[derive(Clone)]
pub struct Edited {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, EditedTensor>,
}

impl Edited {
    /// The parts of this file.
    pub fn of(file: &ModelFile) -> Edited {
        let tensors = file.tensors.iter().map(|(name, t)| {
            let mut bytes = vec![0; t.byte_len()];
            t.read_rows(0, &mut bytes).unwrap();
            let tensor = EditedTensor {
                ty: t.ty,
                dims: t.dims.clone(),
                bytes,
            };
            (name.to_string(), tensor)
        });
        Edited {
            metadata: file
                .metadata
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            tensors: tensors.collect(),
        }
    }

    /// Puts gate and up of experts into one matrix, each expert's gate above its up.
    pub fn fuse_experts(&mut self) -> &mut Edited {
        let gates: Vec<String> = self.tensors.keys().cloned().collect();
        for name in gates.iter().filter(|n| n.ends_with("ffn_gate_exps.weight")) {
            let gate = self.tensors.remove(name).unwrap();
            let up = self.tensors.remove(&name.replace("gate", "up")).unwrap();
            let [columns, n_ff, count] = gate.dims[..] else {
                panic!("{name} has shape {:?}", gate.dims);
            };
            let each = gate.bytes.len() / count;
            let pairs = gate.bytes.chunks(each).zip(up.bytes.chunks(each));
            let fused = EditedTensor {
                ty: gate.ty,
                dims: vec![columns, 2 * n_ff, count],
                bytes: pairs.flat_map(|(gate, up)| [gate, up].concat()).collect(),
            };
            let name = name.replace("gate_exps", "gate_up_exps");
            self.tensors.insert(name, fused);
        }
        self
    }

    /// Gives it another architecture, with the keys of the one that it had.
    pub fn rename(&mut self, architecture: &str) -> &mut Edited {
        let old = match &self.metadata["general.architecture"] {
            Value::String(old) => format!("{old}."),
            other => panic!("{other:?}"),
        };
        self.metadata = std::mem::take(&mut self.metadata)
            .into_iter()
            .map(|(key, value)| match key.strip_prefix(&old) {
                Some(rest) => (format!("{architecture}.{rest}"), value),
                None => (key, value),
            })
            .collect();
        self.set("general.architecture", architecture)
    }

    /// Calls a part of all layers by another name.
    pub fn rename_tensors(&mut self, old: &str, new: &str) {
        self.tensors = std::mem::take(&mut self.tensors)
            .into_iter()
            .map(|(name, tensor)| (name.replace(old, new), tensor))
            .collect();
    }

    /// Puts parts of each layer that has them all one below the other.
    pub fn join(&mut self, parts: &[String], joined: &str) {
        let layers = self
            .tensors
            .keys()
            .filter_map(|name| name.strip_suffix(&parts[0]))
            .filter(|layer| {
                let has = |part| self.tensors.contains_key(&format!("{layer}{part}"));
                parts.iter().all(has)
            });
        let layers: Vec<String> = layers.map(str::to_owned).collect();
        for layer in layers {
            let take = |part: &String| self.tensors.remove(&format!("{layer}{part}")).unwrap();
            let found: Vec<EditedTensor> = parts.iter().map(take).collect();
            let mut all = found[0].clone();
            for part in &found[1..] {
                *all.dims.last_mut().unwrap() += part.dims.last().unwrap();
                all.bytes.extend(&part.bytes);
            }
            self.tensors.insert(format!("{layer}{joined}"), all);
        }
    }

    /// Sets a value of the metadata.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Edited {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.set(key, value.clone());
        }
        for (name, t) in &self.tensors {
            writer.tensor(name, t.ty, &t.dims).unwrap();
        }
        let mut file = Vec::new();
        let mut contents = self.tensors.values();
        writer
            .write(&mut file, |_, out| {
                out.write_all(&contents.next().unwrap().bytes)
            })
            .unwrap();
        file
    }

    /// The file, opened.
    pub fn open(&self) -> ModelFile {
        ModelFile::from_bytes(&self.bytes()).unwrap()
    }
}
