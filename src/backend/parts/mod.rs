//! A network in parts, one behind the other: weights made of weights, runners made of runners.
//!
//! | file | holds |
//! |---|---|
//! | `weights` | the parts, and steps of several sessions together |
//! | `runner` | a session: a runner of each part, and what is under way |
//! | `core` | what its work is done with |
//! | `pipeline` | prompts: pieces go through the parts, of which several are at work |
//! | `ranks` | parts that are not one behind the other: each has a share of every layer |
//! | `rank_states` | the stream of a state from those of such parts, and back |
//! | `stream` | the stream of a state from those of the parts, and back |
//!
//! The residual stream goes from each part to the next in memory of the host. The last part has the logits and
//! chooses. A state's stream is the one that a single device would write, so that it can be loaded with any cuts.

mod core;
mod pipeline;
mod rank_states;
mod ranks;
mod runner;
mod stream;
mod weights;

pub use weights::{Devices, PartsWeights};
