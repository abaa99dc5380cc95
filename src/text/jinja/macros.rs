//! Macros, and calls of whatever can be called.

use super::Run;
use super::arguments::Arguments;
use super::scope::Scope;
use super::value::{Map, Object, Seq, SeqKind, Value};
use crate::error::{Result, fail};
use minijinja::machinery::{Span, ast};
use std::rc::Rc;

/// A macro of the template with the variables around it.
pub(super) struct Macro {
    /// Which of the template's macros.
    pub index: usize,
    pub name: Box<str>,
    pub parameters: Vec<Box<str>>,
    scope: Rc<Scope>,
    /// Whether its body names them: only then it takes more than its parameters.
    pub takes_more: bool,
    pub takes_names: bool,
    pub takes_caller: bool,
}

impl<'a> Run<'a> {
    /// A value for a macro that is declared here.
    pub fn declare(&mut self, node: &'a ast::Macro<'a>, span: Span) -> Result<Value> {
        let mut parameters = Vec::new();
        for parameter in &node.args {
            match parameter {
                ast::Expr::Var(variable) => parameters.push(variable.id.into()),
                _ => fail!(TemplateFailed, "a macro's parameter is not a name"),
            }
        }
        let index = match self
            .macros
            .iter()
            .position(|known| std::ptr::eq(*known, node))
        {
            Some(index) => index,
            None => {
                self.macros.push(node);
                self.macros.len() - 1
            }
        };
        self.budget.work(self.macros.len() as u64 / 16)?;
        let body = self
            .source
            .get(span.start_offset as usize..span.end_offset as usize)
            .unwrap_or_default();
        let callee = Macro {
            index,
            name: node.name.into(),
            parameters,
            scope: self.capture_scope(),
            takes_more: body.contains("varargs"),
            takes_names: body.contains("kwargs"),
            takes_caller: body.contains("caller"),
        };
        Value::object(&self.budget, Object::Macro(callee))
    }

    /// Calls a macro; what it writes is its value.
    fn call_macro(&mut self, callee: &Macro, mut arguments: Arguments) -> Result<Value> {
        let node = self.macros[callee.index];
        let name = &callee.name;
        let scope = Scope::new(&self.budget, Some(callee.scope.clone()))?;
        let caller = arguments.take("caller");
        let n_defaults = node.defaults.len();
        // Parameters are looked for among the names.
        let n_pairs = callee.parameters.len() as u64 * arguments.named.len() as u64;
        self.budget.work(n_pairs / 16)?;
        let mut given = std::mem::take(&mut arguments.positional).into_iter();
        let mut missing = Vec::new();
        for (index, parameter) in callee.parameters.iter().enumerate() {
            let named = arguments.take(parameter);
            match (given.next(), named) {
                (Some(_), Some(_)) => fail!(
                    TemplateFailed,
                    "macro '{name}' got multiple values for argument '{parameter}'"
                ),
                (Some(value), None) | (None, Some(value)) => scope.set(parameter, value)?,
                (None, None) => missing.push(index),
            }
        }
        let more: Vec<Value> = given.collect();
        if callee.takes_more {
            scope.set("varargs", Seq::value(&self.budget, SeqKind::Tuple, more)?)?;
        } else if !more.is_empty() {
            fail!(
                TemplateFailed,
                "macro '{name}' takes not more than {} argument(s)",
                callee.parameters.len()
            );
        }
        if callee.takes_names {
            let named = std::mem::take(&mut arguments.named);
            let entries = named
                .into_iter()
                .map(|(name, value)| Ok((self.text(&name)?, value)));
            let entries = entries.collect::<Result<_>>()?;
            scope.set("kwargs", Map::value(&self.budget, entries)?)?;
        } else if let Some((unknown, _)) = arguments.named.first() {
            fail!(
                TemplateFailed,
                "macro '{name}' takes no keyword argument '{unknown}'"
            );
        }
        match caller {
            Some(caller) if callee.takes_caller => scope.set("caller", caller)?,
            Some(_) if &**name != "caller" => fail!(
                TemplateFailed,
                "macro '{name}' was invoked with two values for the special caller argument"
            ),
            _ if callee.takes_caller && &**name != "caller" => {
                scope.set("caller", Value::Undefined(Some("No caller defined".into())))?;
            }
            _ => {}
        }
        let text = self.captured(|run| {
            run.within(scope, |run| {
                for index in missing {
                    let parameter = &callee.parameters[index];
                    let first = callee.parameters.len() - n_defaults;
                    let value = match index.checked_sub(first) {
                        Some(default) => run.evaluate(&node.defaults[default])?,
                        None => Value::Undefined(Some(
                            format!("parameter '{parameter}' was not provided").into(),
                        )),
                    };
                    run.scope.set(parameter, value)?;
                }
                run.statements(&node.body)
            })
        })?;
        Ok(Value::Str(text))
    }

    /// Calls any value.
    pub fn call(&mut self, callee: &Value, arguments: Arguments) -> Result<Value> {
        callee.check_defined()?;
        let Value::Object(object) = callee else {
            fail!(
                TemplateFailed,
                "'{}' object is not callable",
                callee.type_name()
            );
        };
        self.enter()?;
        let result = match object.inner() {
            Object::Macro(callee) => self.call_macro(callee, arguments),
            Object::Function(function) => self.call_function(*function, arguments),
            Object::Method { of, name, .. } => self.call_method(of, name, arguments),
            Object::Loop(state) => match state.recursive {
                Some(index) => {
                    let [items] = arguments.exactly("loop")?;
                    let (node, scope) = &self.recursive_loops[index];
                    let (node, scope, level) = (*node, scope.clone(), state.level + 1);
                    let text = self.captured(|run| {
                        run.within(scope, |run| run.for_loop(node, &items, Some(index), level))
                    })?;
                    Ok(Value::Str(text))
                }
                None => fail!(
                    TemplateFailed,
                    "The loop must have the 'recursive' marker to be called recursively."
                ),
            },
            Object::Joiner {
                separator, used, ..
            } => Ok(match used.replace(true) {
                true => separator.clone(),
                false => self.text("")?,
            }),
            Object::Integer(_) | Object::Cycler { .. } | Object::Namespace(_) => fail!(
                TemplateFailed,
                "'{}' object is not callable",
                callee.type_name()
            ),
        }?;
        self.leave();
        Ok(result)
    }
}
