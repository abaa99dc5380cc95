//! What a session keeps on the CPU.
//!
//! | file | holds |
//! |---|---|
//! | `plan` | where the keys and values of each layer lie |
//! | `kv` | the cache that holds them |
//! | `fixed` | what layers keep of fixed size, and copies of it to go back to |
//! | `stream` | a cache to a stream of no device, and back |

pub mod fixed;
pub mod kv;
mod plan;
mod stream;
