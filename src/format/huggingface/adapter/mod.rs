//! LoRA adapters as the PEFT library writes them: a folder with `adapter_config.json` and
//! `adapter_model.safetensors`.

mod experts;
mod modules;
mod scales;

use super::files::{Folder, open_input};
use super::json::Config;
use super::stored::Stored;
use super::tensors::{layer_and_part, without_prefixes};
use crate::error::{Error, Result, fail};
use crate::format::adapter::{AdapterFile, AdapterPair, BaseShape, EMBEDDING, Halves};
use crate::format::input::{Access, Input};
use experts::{ExpertModule, Singles};
use modules::{Module, Rows, unknown};
use scales::Scales;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the names of a model's modules.
const PREFIX: &str = "base_model.model.";
/// What it puts behind them.
const HALVES: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];
/// The same of an embedding, whose rows are those of tokens.
const EMBEDDING_HALVES: [&str; 2] = [".lora_embedding_A", ".lora_embedding_B"];
/// What it puts behind the name of an embedding or head that has an adapter, and whose own matrix it saves beside it.
const WHOLE: &str = ".base_layer.weight";
/// Reads the folder that a path means: itself, or that of one of its two files. `None` for any other file.
pub(in crate::format) fn open_peft(path: &Path, base: &BaseShape) -> Option<Result<AdapterFile>> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
    let folder = match path.is_dir() {
        true => path.to_owned(),
        false if name == CONFIG || name == WEIGHTS => match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        },
        false => return None,
    };
    Some(open(&folder, base))
}

fn open(path: &Path, base: &BaseShape) -> Result<AdapterFile> {
    // Any path of a file in the folder makes one that reads its files.
    let Some(folder) = Folder::of(path) else {
        fail!(NotAFile, "is no folder");
    };
    if !folder.has(CONFIG) {
        fail!(UnknownFormat, "is a folder without {CONFIG}");
    }
    let config = Config::parse(&folder.read(CONFIG)?)
        .map_err(|e| Error::new(e.status, format!("{CONFIG}: {}", e.message)))?;
    let scales = Scales::read(&config).map_err(|e| {
        let message = e.message.replace("config.json: ", "");
        Error::new(e.status, format!("{CONFIG}: {message}"))
    })?;
    if !folder.has(WEIGHTS) {
        if folder.has("adapter_model.bin") {
            fail!(
                Unsupported,
                "adapter_model.bin is a pickle, which is not read; save the adapter as safetensors"
            );
        }
        fail!(FileNotFound, "{WEIGHTS} is not there");
    }
    let weights = path.join(WEIGHTS);
    let in_weights = |e: Error| Error::new(e.status, format!("{WEIGHTS}: {}", e.message));
    let input = Arc::new(Input::open(&weights, Access::Read).map_err(in_weights)?);
    let stored = open_input(&input, &weights).map_err(in_weights)?;
    let pairs = pairs(&stored, &scales, base)?;
    Ok(AdapterFile {
        name: folder.name(),
        pairs,
        n_tensors: stored.len(),
        file_bytes: input.len() as u64,
    })
}

/// All pairs.
fn pairs(
    stored: &HashMap<String, Stored>,
    scales: &Scales,
    base: &BaseShape,
) -> Result<Vec<AdapterPair>> {
    let mut modules = BTreeMap::<&str, Halves>::new();
    let mut wholes = Vec::new();
    let mut names: Vec<&String> = stored.keys().collect();
    names.sort_unstable();
    for name in names {
        let (module, half) = module_and_half(name)?;
        // An empty one is no tensor anywhere else.
        let shape = &stored[name].shape;
        if shape.contains(&0) {
            fail!(
                InvalidModel,
                "tensor {name} has shape {shape:?}: its rank is 0"
            );
        }
        let tensor = stored[name].tensor()?;
        match half {
            Some(half) => modules.entry(module).or_default().set(half, name, tensor)?,
            None => wholes.push((module, name, tensor)),
        }
    }
    let mut pairs = Vec::new();
    let mut singles = Singles::default();
    let mut tables = HashMap::new();
    let known: BTreeSet<&str> = modules.keys().copied().collect();
    for (module, halves) in modules {
        let is_embedding = EMBEDDING_HALVES
            .iter()
            .any(|end| stored.contains_key(&format!("{PREFIX}{module}{end}")));
        let ends = if is_embedding {
            EMBEDDING_HALVES
        } else {
            HALVES
        };
        let other = |half: usize| format!("{PREFIX}{module}{}", ends[half]);
        let experts = ExpertModule::find(module, &scales.parameters, |name| known.contains(name))?;
        if let Some(experts) = experts {
            let (Some(shape), Some((layer, _))) =
                (&base.experts, layer_and_part(without_prefixes(module)))
            else {
                return Err(unknown(module, base, "is not known"));
            };
            match experts {
                ExpertModule::Single(index, part) => {
                    let target = format!("blk.{layer}.{part}.weight");
                    let scale = |rank| scales.of(module, module, rank);
                    let pair = halves.pair(target, 1, other, scale, |row| row)?;
                    singles.add(index, pair, shape.count)?;
                }
                ExpertModule::Fused(parameter, fused) => {
                    let whole = module.strip_suffix(".base_layer").unwrap_or(module);
                    let whole = format!("{whole}.{parameter}");
                    let scale = |rank| scales.of(module, &whole, rank);
                    let target = format!("blk.{layer}.{parameter}");
                    let pair = halves.pair(target, shape.count, other, scale, |row| row)?;
                    pairs.extend(fused.pairs(pair, layer, base, shape)?);
                }
            }
            continue;
        }
        let target = Module::of(module, base)?;
        if is_embedding && target.name != EMBEDDING {
            return Err(unknown(module, base, "is no token embedding"));
        }
        let scale = |rank| scales.of(module, module, rank);
        let order = target.order;
        if let Some((outputs, name)) = halves.outputs() {
            target.check(outputs, name, base)?;
        }
        let pair = halves.pair(target.name, 1, other, scale, |row| order.source(row))?;
        let pair = match is_embedding {
            true => pair.transposed()?,
            false => pair,
        };
        if [EMBEDDING, "output.weight"].contains(&&*pair.target) {
            tables.insert(module, [pair.inputs, pair.outputs]);
        }
        match target.rows {
            Rows::One => pairs.push(pair),
            Rows::Halves(lower) => {
                let upper = pair.target.clone();
                pairs.extend(pair.halves(upper, lower, false)?);
            }
            Rows::Heads([keys, values]) => {
                let heads = pair.stacked(base.n_heads)?;
                let (plain, all) = (base.plain_dim, heads.outputs);
                if plain == 0 || plain >= all {
                    return Err(unknown(module, base, "is not of keys and values"));
                }
                pairs.push(heads.of_rows(keys, plain, |row| row)?.transposed()?);
                pairs.push(heads.of_rows(values, all - plain, |row| plain + row)?);
            }
        }
    }
    // Beside an adapter of an embedding or head, its matrix is the model's own.
    for (module, name, tensor) in wholes {
        match tables.get(module) {
            Some(dims) if tensor.dims == dims => {}
            Some(dims) => fail!(
                ShapeMismatch,
                "tensor {name} has shape {:?}, but its adapter is for {dims:?}",
                tensor.dims
            ),
            None => fail!(
                Unsupported,
                "tensor {name}: whole tensors in place of the model's are not supported"
            ),
        }
    }
    for pair in singles.stacked(base.experts.map_or(0, |shape| shape.count)) {
        pairs.push(pair?);
    }
    // Two spellings of one module.
    pairs.sort_unstable_by(|a, b| a.target.cmp(&b.target));
    let mut neighbours = pairs.iter().zip(pairs.iter().skip(1));
    if let Some((a, b)) = neighbours.find(|(a, b)| a.target == b.target) {
        fail!(
            FileCorrupt,
            "tensors {} and {} are for the same matrix",
            a.names[0],
            b.names[0]
        );
    }
    Ok(pairs)
}

/// The module that a tensor belongs to, and which half of its pair it is; neither, if it is the model's own matrix.
fn module_and_half(name: &str) -> Result<(&str, Option<usize>)> {
    let refuse = |what: &str| -> Result<(&str, Option<usize>)> {
        fail!(Unsupported, "tensor {name}: {what} not supported")
    };
    if name.contains("lora_magnitude_vector") {
        return refuse("DoRA is");
    }
    if name.ends_with(".lora_B.bias") || name.ends_with(".lora_A.bias") {
        return refuse("biases of adapters are");
    }
    let ends = |ends: &[&str; 2]| {
        let half = ends.iter().position(|end| name.ends_with(end))?;
        Some((half, ends[half].len()))
    };
    let half = ends(&HALVES).or_else(|| ends(&EMBEDDING_HALVES));
    let module = name.strip_prefix(PREFIX);
    if let Some(module) = module.and_then(|rest| rest.strip_suffix(WHOLE)) {
        return Ok((module, None));
    }
    match (module, half) {
        (Some(rest), Some((half, end))) => Ok((&rest[..rest.len() - end], Some(half))),
        (_, None) if !name.contains("lora_") => {
            refuse("whole tensors in place of the model's (modules_to_save, biases) are")
        }
        _ => refuse("tensors of this name are"),
    }
}
