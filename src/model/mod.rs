//! What a network is: hyperparameters and blocks described as data.
//!
//! One small file per family maps the names in a file to this description. Backends read it and
//! never ask for a family's name. All shapes are checked here, so a backend may rely on them.

mod experts;
mod llama;
mod network;
mod rope;
mod source;

pub use network::{
    Activation, Attention, Block, Experts, FeedForward, Linear, LongRope, Mlp, Network, Norm,
    NormKind, PlainBlock, Rope, RopePairing, Scoring, SharedExpert,
};

use crate::error::{Result, fail};
use crate::format::ModelFile;

/// Describes the network in a file, checking every key, shape and type that it uses.
type Describe = fn(&ModelFile) -> Result<Network>;

/// The families, by `general.architecture`. A new one is a file here and a line in this table.
const ARCHITECTURES: &[(&str, Describe)] = &[("llama", llama::describe)];

impl Network {
    /// Describes the network in `file`, checking every key, shape and type that it uses. Reads no
    /// tensor but the small `rope_freqs.weight`.
    ///
    /// Errors: `Unsupported` names an unknown architecture or feature; `MissingKey`,
    /// `MissingTensor`, `ShapeMismatch` and `InvalidModel` name the key or tensor.
    pub fn from_file(file: &ModelFile) -> Result<Network> {
        let architecture = file.str("general.architecture")?;
        match ARCHITECTURES.iter().find(|(name, _)| *name == architecture) {
            Some((_, describe)) => describe(file),
            None => {
                let known: Vec<_> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
                fail!(
                    Unsupported,
                    "general.architecture is {architecture:?}; supported: {}",
                    known.join(", ")
                )
            }
        }
    }
}
