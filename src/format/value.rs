//! Metadata values of a GGUF file.

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned 8 to 64 bits, widened.
    U64(u64),
    /// Signed 8 to 64 bits, widened.
    I64(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// Boolean (0 or 1 in the file).
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Values of one type.
    Array(Array),
}

/// A homogeneous array. Strings and numbers are stored without a `Value` per element.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned integers of any width.
    U64(Vec<u64>),
    /// Signed integers of any width.
    I64(Vec<i64>),
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Text.
    String(Vec<String>),
    /// Arrays of arrays.
    Array(Vec<Array>),
}
