//! What networks compute on a CPU, and the states of sessions. In one binary, because each takes seconds to build.

#[path = "../common/mod.rs"]
mod common;

mod cpu_forward;
mod cpu_sessions;
mod drafts;
mod experts;
mod fused;
mod heads;
mod host_layers;
mod limits;
mod matmul;
mod numerics;
mod oracle;
mod parts;
mod rope;
mod states;
