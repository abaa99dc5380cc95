//! What a session keeps on the CPU.
//!
//! | file | holds |
//! |---|---|
//! | `plan` | where the keys and values of each layer lie |
//! | `kv` | the cache that holds them |
//! | `stream` | a cache to a stream of no device, and back |

pub mod kv;
mod plan;
mod stream;
