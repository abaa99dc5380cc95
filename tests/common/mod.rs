//! What several tests share. Each test binary uses only part of it.
#![allow(dead_code)]

pub mod quantize;
pub mod reference_llama;
