//! Metadata values of a model file, and their conversion to the types that callers want.

use super::Strings;

/// What an empty array of any type is as an array of texts.
static NO_STRINGS: Strings = Strings::new();

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
    String(Strings),
    /// Arrays of arrays.
    Array(Vec<Array>),
}

impl Value {
    /// What the value is, as error messages say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U64(_) => "an unsigned integer",
            Value::I64(_) => "a signed integer",
            Value::F32(_) | Value::F64(_) => "a floating-point number",
            Value::Bool(_) => "a boolean",
            Value::String(_) => "a string",
            Value::Array(a) => a.type_name(),
        }
    }

    /// The integer, whichever width and sign it has in the file.
    fn integer(&self) -> Option<i128> {
        match self {
            Value::U64(v) => Some(i128::from(*v)),
            Value::I64(v) => Some(i128::from(*v)),
            _ => None,
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the array holds, as error messages say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U64(_) => "an array of unsigned integers",
            Array::I64(_) => "an array of signed integers",
            Array::F32(_) | Array::F64(_) => "an array of floating-point numbers",
            Array::Bool(_) => "an array of booleans",
            Array::String(_) => "an array of strings",
            Array::Array(_) => "an array of arrays",
        }
    }
}

/// A type that a metadata value can be read as. Integers are taken in any width and sign that
/// holds the number, floating-point numbers in either precision; nothing else is converted.
pub trait FromValue<'a>: Sized {
    /// What the value must be, as error messages say it.
    const EXPECTED: &'static str;

    /// The value as this type, or `None` if it is of another type or out of range.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! integers_from_value {
    ($($ty:ty: $one:literal, $many:literal;)*) => {$(
        impl FromValue<'_> for $ty {
            const EXPECTED: &'static str = $one;

            fn from_value(value: &Value) -> Option<Self> {
                value.integer()?.try_into().ok()
            }
        }

        impl FromValue<'_> for Vec<$ty> {
            const EXPECTED: &'static str = $many;

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Array(Array::U64(v)) => convert(v),
                    Value::Array(Array::I64(v)) => convert(v),
                    // The element type of an empty array says nothing.
                    Value::Array(a) if a.is_empty() => Some(Vec::new()),
                    _ => None,
                }
            }
        }
    )*};
}

integers_from_value! {
    u32: "an integer from 0 to 2^32-1", "an array of integers from 0 to 2^32-1";
    i32: "an integer from -2^31 to 2^31-1", "an array of integers from -2^31 to 2^31-1";
    u64: "an integer from 0 to 2^64-1", "an array of integers from 0 to 2^64-1";
    i64: "an integer from -2^63 to 2^63-1", "an array of integers from -2^63 to 2^63-1";
    usize: "an integer that fits a size", "an array of integers that fit a size";
}

fn convert<A: Copy, B: TryFrom<A>>(from: &[A]) -> Option<Vec<B>> {
    let mut to = Vec::new();
    to.try_reserve_exact(from.len()).ok()?;
    for &a in from {
        to.push(B::try_from(a).ok()?);
    }
    Some(to)
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a floating-point number";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::F32(v) => Some(*v),
            Value::F64(v) => Some(*v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for f64 {
    const EXPECTED: &'static str = "a floating-point number";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::F32(v) => Some(f64::from(*v)),
            Value::F64(v) => Some(*v),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(v) => Some(v),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of numbers in single precision";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<bool> {
    const EXPECTED: &'static str = "an array of booleans";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Bool(v)) => Some(v.clone()),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a Strings {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::String(v)) => Some(v),
            Value::Array(a) if a.is_empty() => Some(&NO_STRINGS),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [f32] {
    const EXPECTED: &'static str = "an array of single-precision numbers";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::F32(v)) => Some(v),
            Value::Array(a) if a.is_empty() => Some(&[]),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a Array {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }
}

macro_rules! value_from {
    ($($from:ty => |$v:ident| $value:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($v: $from) -> Value {
                $value
            }
        }
    )*};
}

value_from! {
    u32 => |v| Value::U64(v.into());
    u64 => |v| Value::U64(v);
    usize => |v| Value::U64(v as u64);
    i32 => |v| Value::I64(v.into());
    i64 => |v| Value::I64(v);
    f32 => |v| Value::F32(v);
    f64 => |v| Value::F64(v);
    bool => |v| Value::Bool(v);
    &str => |v| Value::String(v.to_owned());
    String => |v| Value::String(v);
    Array => |v| Value::Array(v);
    Vec<u64> => |v| Value::Array(Array::U64(v));
    Vec<i64> => |v| Value::Array(Array::I64(v));
    Vec<f32> => |v| Value::Array(Array::F32(v));
    Strings => |v| Value::Array(Array::String(v));
    Vec<String> => |v| Value::Array(Array::String(v.into_iter().collect()));
}
