//! Grammars: what they let through, what they refuse, and sessions that are held to them.

#[path = "../common/mod.rs"]
mod common;

mod gbnf;
mod hostile;
mod random_schemas;
mod samples;
mod session;
mod support;
