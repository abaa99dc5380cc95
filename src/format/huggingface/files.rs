//! Which files of a folder make up a model.

use super::stored::Stored;
use crate::error::{Error, Result, Status, fail, try_vec};
use crate::format::file::OpenFile;
use crate::format::input::{Access, Input};
use crate::format::safetensors::{self, MAX_TENSORS};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub(super) const CONFIG: &str = "config.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const TOKENIZER: &str = "tokenizer.json";
const INDEX: &str = "model.safetensors.index.json";
/// The longest `tokenizer.json` that is read, in bytes. Some are above 30 MB.
const MAX_TOKENIZER: usize = 100_000_000;
/// The longest index. The largest of published models have 15 MB.
const MAX_INDEX: usize = 32 << 20;
/// The longest of the other files that are read whole. What they become takes up to 20 times that.
const MAX_JSON: usize = 8 << 20;
/// The same for `config.json`, of which parts are copied.
const MAX_CONFIG: usize = 2 << 20;

/// The folder and, where the caller has named one, the file with the weights in it.
pub(in crate::format) struct Folder {
    path: PathBuf,
    weights: Option<PathBuf>,
    /// What was read.
    opened: RefCell<Vec<Arc<OpenFile>>>,
}

impl Folder {
    /// The folder that a path means: itself, or that of its `config.json` or safetensors file.
    /// `None` for any other file.
    pub(in crate::format) fn of(path: &Path) -> Option<Folder> {
        let parent = || match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
        let (path, weights) = if path.is_dir() {
            (path.to_owned(), None)
        } else if name == CONFIG || name == INDEX {
            (parent(), None)
        } else if name.ends_with(".safetensors") {
            (parent(), Some(path.to_owned()))
        } else {
            return None;
        };
        Some(Folder {
            path,
            weights,
            opened: RefCell::default(),
        })
    }

    /// All files that were opened.
    pub(super) fn opened(&self) -> Vec<Arc<OpenFile>> {
        self.opened.take()
    }

    /// The name of the folder, for models that have no other.
    pub(super) fn name(&self) -> String {
        let full = self.path.canonicalize().ok();
        let name = full.as_deref().unwrap_or(&self.path).file_name();
        name.map_or(String::new(), |name| name.to_string_lossy().into_owned())
    }

    pub(super) fn display(&self, file: &str) -> String {
        self.path.join(file).display().to_string()
    }

    /// Whether the folder has a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// A folder in this one.
    pub(super) fn inner(&self, name: &str) -> Folder {
        Folder {
            path: self.path.join(name),
            weights: None,
            opened: RefCell::default(),
        }
    }

    /// Takes over what another one has opened.
    pub(super) fn adopt(&self, other: &Folder) {
        self.opened.borrow_mut().extend(other.opened());
    }

    /// The content of a file of this folder. Errors name it.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.whole(name).map_err(|e| within(&self.display(name), e))
    }

    /// The content of a file of this folder, if it is there.
    pub(super) fn find(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.has(name) {
            true => self.read(name).map(Some),
            false => Ok(None),
        }
    }

    /// A whole file, unless it is unreasonably long. Errors do not name it.
    fn whole(&self, name: &str) -> Result<Vec<u8>> {
        let limit = match name {
            CONFIG => MAX_CONFIG,
            TOKENIZER => MAX_TOKENIZER,
            INDEX => MAX_INDEX,
            _ => MAX_JSON,
        };
        let file = Arc::new(OpenFile::open(&self.path.join(name))?);
        if file.len() > limit {
            fail!(
                Unsupported,
                "has {} bytes; at most {limit} are read",
                file.len()
            );
        }
        let mut text = try_vec(file.len(), 0, "the file")?;
        file.read(0, &mut text)?;
        self.opened.borrow_mut().push(file);
        Ok(text)
    }

    /// All tensors by name, and the bytes of their files together.
    pub(super) fn tensors(&self, access: Access) -> Result<(HashMap<String, Stored>, u64)> {
        let shards = match &self.weights {
            // One of several, or a file of another name.
            Some(path) if !self.has(INDEX) || path.file_name() == Some(OsStr::new(WEIGHTS)) => {
                return self.open_all([path.clone()], access);
            }
            _ if self.has(WEIGHTS) => return self.open_all([self.path.join(WEIGHTS)], access),
            _ if self.has(INDEX) => self.shards().map_err(|e| within(&self.display(INDEX), e))?,
            _ => fail!(
                FileNotFound,
                "{}: neither {WEIGHTS} nor {INDEX} is there",
                self.path.display()
            ),
        };
        let paths = shards.keys().map(|name| self.path.join(name));
        let (tensors, bytes) = self.open_all(paths, access)?;
        self.compare(&tensors, &shards)
            .map_err(|e| within(&self.display(INDEX), e))?;
        Ok((tensors, bytes))
    }

    /// The tensors of all files, and the bytes of these.
    fn open_all(
        &self,
        paths: impl IntoIterator<Item = PathBuf>,
        access: Access,
    ) -> Result<(HashMap<String, Stored>, u64)> {
        let mut tensors = HashMap::<String, Stored>::new();
        let mut bytes = 0;
        for path in paths {
            let in_file = |e| within(&path.display().to_string(), e);
            let input = Arc::new(Input::open(&path, access).map_err(in_file)?);
            self.opened.borrow_mut().extend(input.file().cloned());
            bytes += input.len() as u64;
            let found = open_input(&input, &path).map_err(in_file)?;
            if tensors.len() + found.len() > MAX_TENSORS {
                return Err(in_file(Error::new(
                    Status::Unsupported,
                    format!("the model has more than {MAX_TENSORS} tensors"),
                )));
            }
            for (name, stored) in found {
                if let Some(other) = tensors.insert(name, stored) {
                    return Err(in_file(Error::new(
                        Status::FileCorrupt,
                        format!("tensor {} is in {}, too", other.name, other.file.display()),
                    )));
                }
            }
        }
        Ok((tensors, bytes))
    }

    /// The tensors of each shard, as the index has them.
    fn shards(&self) -> Result<BTreeMap<String, Vec<String>>> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: WeightMap,
        }
        let text = self.whole(INDEX)?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|e| Error::new(Status::FileCorrupt, format!("is no valid index: {e}")))?;
        let mut shards = BTreeMap::<_, Vec<String>>::new();
        for (tensor, shard) in index.weight_map.0 {
            check_name(&shard)?;
            shards.entry(shard).or_default().push(tensor);
        }
        if shards.is_empty() {
            fail!(FileCorrupt, "weight_map names no tensor");
        }
        if let Some(shard) = shards.keys().find(|shard| !self.has(shard)) {
            fail!(FileNotFound, "shard {shard} is missing from the folder");
        }
        Ok(shards)
    }

    /// The index must say what the shards have.
    fn compare(
        &self,
        tensors: &HashMap<String, Stored>,
        shards: &BTreeMap<String, Vec<String>>,
    ) -> Result<()> {
        let mut listed = 0;
        for (shard, names) in shards {
            listed += names.len();
            for name in names {
                match tensors.get(name) {
                    None => fail!(MissingTensor, "tensor {name} is not in shard {shard}"),
                    Some(tensor) if *tensor.file != *self.path.join(shard) => fail!(
                        FileCorrupt,
                        "tensor {name} is in {}, not in shard {shard}",
                        tensor.file.display()
                    ),
                    Some(_) => {}
                }
            }
        }
        if listed < tensors.len() {
            let listed: HashSet<&String> = shards.values().flatten().collect();
            let extra = tensors.keys().find(|name| !listed.contains(name));
            fail!(
                FileCorrupt,
                "tensor {} is in a shard, but not in the index",
                extra.map_or("", |name| name)
            );
        }
        Ok(())
    }
}

/// Shards by tensor, no more than a model may have.
struct WeightMap(HashMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<WeightMap, D::Error> {
        struct Shards;

        impl<'de> Visitor<'de> for Shards {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<WeightMap, A::Error> {
                let mut shards = HashMap::new();
                while let Some((tensor, shard)) = map.next_entry()? {
                    if shards.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format!(
                            "there are more than {MAX_TENSORS} tensors"
                        )));
                    }
                    shards.insert(tensor, shard);
                }
                Ok(WeightMap(shards))
            }
        }

        from.deserialize_map(Shards)
    }
}

/// A shard must lie in the folder itself: its name is a file name and nothing else.
pub(super) fn check_name(shard: &str) -> Result<()> {
    let mut parts = Path::new(shard).components();
    let plain = matches!(parts.next(), Some(Component::Normal(name)) if name == shard)
        && parts.next().is_none()
        && !shard.contains(['/', '\\', ':', '\0']);
    if !plain {
        let shown: String = shard.chars().take(200).collect();
        fail!(
            FileCorrupt,
            "shard {shown:?} is not the name of a file in the folder"
        );
    }
    Ok(())
}

/// The tensors of one file.
pub(super) fn open_input(input: &Arc<Input>, path: &Path) -> Result<HashMap<String, Stored>> {
    let file: Arc<Path> = path.into();
    let entries = safetensors::parse(input)?;
    let stored = entries.iter().map(|entry| {
        let stored = Stored::new(entry, input, &file);
        (entry.name.clone(), stored)
    });
    Ok(stored.collect())
}

/// The error with the file's name before its message.
pub(super) fn within(file: &str, e: Error) -> Error {
    Error::new(e.status, format!("{file}: {}", e.message))
}
