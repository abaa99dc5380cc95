//! The CPU backend: where there is no GPU, and the oracle of the tests.
//!
//! | file | holds |
//! |---|---|
//! | `weights`, `layer` | a network made ready, with its threads and scratch memory; its blocks |
//! | `runner` | a session: its cache and logits |
//! | `pass` | the walk through a block's parts, for one token and for many |
//! | `attention_layer`, `experts` | attention as a block's mixer; mixtures of experts |
//! | `short_conv` | a gated short convolution as a block's mixer |
//! | `mamba1`, `mamba2`, `delta_net` | recurrent mixers; `convolution` and `recurrence` are what they have in common |
//! | `forward`, `profile` | the decode step of one token, and its time by kind of work |
//! | `chunk`, `prefill`, `batch` | many tokens at once, of one session or several |
//! | `embedder`, `texts` | vectors and scores of whole texts, without sessions |
//! | `token` | what is done to single tokens in all forward passes |
//! | `host_layers` | parts of layers for another device |
//! | `estimate` | what a network would take |
//! | `matmul` | products of weights and activations |
//! | `attention`, `rows` | attention, and what it computes together |
//! | `state` | what a session keeps |
//! | `elementwise`, `simd` | norms and the like, over lanes that exist on every processor |
//! | `device`, `host` | the CPU in the list of devices, what the system says about it |
//! | `pool`, `phase`, `turn`, `pages` | threads, how they share work, whose turn it is; memory |

mod adapters;
mod attention;
mod attention_layer;
mod batch;
mod both;
mod chunk;
mod convolution;
mod delta_net;
mod device;
mod elementwise;
mod embedder;
mod entry;
mod estimate;
mod experts;
mod forward;
pub mod host;
mod host_layers;
mod latent_experts;
mod latent_layer;
mod layer;
mod mamba1;
mod mamba2;
pub mod matmul;
mod pages;
mod pass;
mod phase;
mod pool;
mod prefill;
mod profile;
mod recurrence;
mod rows;
mod runner;
mod short_conv;
mod simd;
mod state;
mod streams;
mod texts;
mod token;
mod turn;
mod verify;
mod weights;

use state::{fixed, kv};

pub use device::{BACKEND, CpuBackend};
pub use pool::MAX_THREADS;
pub use runner::CpuRunner;
pub use weights::CpuWeights;
