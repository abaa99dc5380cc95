//! Arguments of a call.

use super::value::Value;
use crate::error::{Result, fail};

/// Values by place and by name.
#[derive(Default)]
pub(super) struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(Box<str>, Value)>,
}

impl Arguments {
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.named.iter().position(|(known, _)| **known == *name)?;
        Some(self.named.remove(index).1)
    }

    /// The values of parameters with these names; None for those that were not given.
    pub fn bind<const N: usize>(
        mut self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            fail!(
                TemplateFailed,
                "{function}() takes at most {N} arguments ({} given)",
                self.positional.len()
            );
        }
        let mut values = [const { None }; N];
        for (slot, value) in values.iter_mut().zip(std::mem::take(&mut self.positional)) {
            *slot = Some(value);
        }
        for (slot, name) in values.iter_mut().zip(names) {
            if let Some(value) = self.take(name) {
                if slot.is_some() {
                    fail!(
                        TemplateFailed,
                        "{function}() got multiple values for argument '{name}'"
                    );
                }
                *slot = Some(value);
            }
        }
        if let Some((name, _)) = self.named.first() {
            fail!(
                TemplateFailed,
                "{function}() got an unexpected keyword argument '{name}'"
            );
        }
        Ok(values)
    }

    /// Exactly as many values, by place.
    pub fn exactly<const N: usize>(self, function: &str) -> Result<[Value; N]> {
        let given = self.positional.len() + self.named.len();
        match self.positional.try_into() {
            Ok(values) if given == N => Ok(values),
            _ => fail!(
                TemplateFailed,
                "{function}() takes {N} arguments ({given} given)"
            ),
        }
    }
}

/// A parameter that is a whole number, with its default.
pub(super) fn int(value: &Option<Value>, name: &str, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => match value.as_int() {
            Some(number) => Ok(number),
            None => fail!(
                TemplateFailed,
                "'{}' object cannot be interpreted as an integer ({name})",
                value.type_name()
            ),
        },
    }
}

/// Whether a parameter is true, with its default.
pub(super) fn truth(value: &Option<Value>, default: bool) -> bool {
    value.as_ref().map_or(default, Value::is_true)
}
