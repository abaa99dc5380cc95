//! `ember-bench`: how fast a model loads, reads and writes on this machine. `--help` says more.

mod args;
mod bandwidth;
mod memory;
mod random;
mod shapes;
mod stats;

fn main() {}
