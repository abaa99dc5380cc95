//! todo
use crate::error::Result;
pub(super) fn to_lark(_: &str) -> Result<String> { Ok(String::new()) }
