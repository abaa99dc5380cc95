//! Evaluating expressions.

use super::Run;
use super::arguments::Arguments;
use super::attributes::method_of;
use super::text::Text;
use super::value::{Function, Map, Object, Seq, SeqKind, Value};
use crate::error::{Result, fail};
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CompareOpKind, Const, Expr, UnaryOpKind,
};
use minijinja::value::ValueKind;

/// The functions of the environment, by name.
const FUNCTIONS: [(&str, Function); 8] = [
    ("range", Function::Range),
    ("dict", Function::Dict),
    ("namespace", Function::Namespace),
    ("cycler", Function::Cycler),
    ("joiner", Function::Joiner),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
    ("_generation", Function::Generation),
];

impl<'a> Run<'a> {
    /// A string of this library.
    pub fn text(&self, text: &str) -> Result<Value> {
        Ok(Value::Str(Text::new(&self.budget, text)?))
    }

    /// A list of these values.
    pub fn list(&self, items: Vec<Value>) -> Result<Value> {
        Seq::value(&self.budget, SeqKind::List, items)
    }

    /// The value of an expression.
    pub fn evaluate(&mut self, expression: &'a Expr<'a>) -> Result<Value> {
        self.enter()?;
        let value = self.evaluate_here(expression)?;
        self.leave();
        Ok(value)
    }

    fn evaluate_here(&mut self, expression: &'a Expr<'a>) -> Result<Value> {
        match expression {
            Expr::Var(variable) => self.variable(variable.id),
            Expr::Const(constant) => self.constant(constant),
            Expr::UnaryOp(node) => {
                let value = self.evaluate(&node.expr)?;
                match node.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => self.negate(&value),
                }
            }
            Expr::BinOp(node) => {
                let left = self.evaluate(&node.left)?;
                match node.op {
                    BinOpKind::ScAnd if !left.is_true() => return Ok(left),
                    BinOpKind::ScOr if left.is_true() => return Ok(left),
                    _ => {}
                }
                let right = self.evaluate(&node.right)?;
                self.line = u32::from(node.span().start_line);
                self.binary(node.op, left, right)
            }
            Expr::Compare(node) => {
                let mut left = self.evaluate(&node.expr)?;
                for step in &node.ops {
                    let right = self.evaluate(&step.expr)?;
                    if !self.compare(step.op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::IfExpr(node) => {
                if self.evaluate(&node.test_expr)?.is_true() {
                    return self.evaluate(&node.true_expr);
                }
                match &node.false_expr {
                    Some(expression) => self.evaluate(expression),
                    None => Ok(Value::Undefined(Some(
                        "the inline if-expression evaluated to false and no else section was defined."
                            .into(),
                    ))),
                }
            }
            Expr::GetAttr(node) => {
                let of = self.evaluate(&node.expr)?;
                self.line = u32::from(node.span().start_line);
                self.attribute(&of, node.name)
            }
            Expr::GetItem(node) => {
                let of = self.evaluate(&node.expr)?;
                let key = self.evaluate(&node.subscript_expr)?;
                self.line = u32::from(node.span().start_line);
                self.item(&of, &key)
            }
            Expr::Slice(node) => {
                let of = self.evaluate(&node.expr)?;
                let mut bounds = [None, None, None];
                for (bound, expression) in
                    bounds.iter_mut().zip([&node.start, &node.stop, &node.step])
                {
                    if let Some(expression) = expression {
                        *bound = Some(self.evaluate(expression)?);
                    }
                }
                self.line = u32::from(node.span().start_line);
                self.slice(&of, bounds)
            }
            Expr::Filter(node) => {
                let Some(expression) = &node.expr else {
                    fail!(TemplateFailed, "filter '{}' has no value", node.name);
                };
                let value = self.evaluate(expression)?;
                let arguments = self.arguments(&node.args)?;
                self.line = u32::from(node.span().start_line);
                self.filter(node.name, value, arguments)
            }
            Expr::Test(node) => {
                let value = self.evaluate(&node.expr)?;
                let arguments = self.arguments(&node.args)?;
                self.line = u32::from(node.span().start_line);
                Ok(Value::Bool(self.check(node.name, &value, arguments)?))
            }
            Expr::Call(node) => self.call_node(node, None),
            Expr::List(node) => {
                let items = self.evaluate_all(&node.items)?;
                self.list(items)
            }
            Expr::Tuple(node) => {
                let items = self.evaluate_all(&node.items)?;
                Seq::value(&self.budget, SeqKind::Tuple, items)
            }
            Expr::Map(node) => {
                let mut entries = Vec::new();
                for (key, value) in node.keys.iter().zip(&node.values) {
                    entries.push((self.evaluate(key)?, self.evaluate(value)?));
                }
                Map::value(&self.budget, entries)
            }
        }
    }

    fn evaluate_all(&mut self, list: &'a [Expr<'a>]) -> Result<Vec<Value>> {
        list.iter().map(|item| self.evaluate(item)).collect()
    }

    fn variable(&mut self, name: &str) -> Result<Value> {
        if let Some(value) = self.scope.get(name, &self.budget)? {
            return Ok(value);
        }
        match FUNCTIONS.iter().find(|(known, _)| *known == name) {
            Some((_, function)) => Value::object(&self.budget, Object::Function(*function)),
            None => Ok(Value::Undefined(Some(
                format!("'{name}' is undefined").into(),
            ))),
        }
    }

    fn constant(&mut self, constant: &Const) -> Result<Value> {
        let value = &constant.value;
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => Ok(Value::None),
            ValueKind::Bool => Ok(Value::Bool(value.is_true())),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            _ if value.is_integer() => match i128::try_from(value.clone()) {
                Ok(number) => Ok(Value::Int(number)),
                Err(_) => fail!(TemplateFailed, "the number {value} is too large"),
            },
            _ => match f64::try_from(value.clone()) {
                Ok(number) => Ok(Value::Float(number)),
                Err(_) => fail!(TemplateFailed, "{value} is not a constant"),
            },
        }
    }

    /// The arguments of a call, a filter or a test.
    fn arguments(&mut self, list: &'a [CallArg<'a>]) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        for argument in list {
            match argument {
                CallArg::Pos(expression) => {
                    let value = self.evaluate(expression)?;
                    arguments.positional.push(value);
                }
                CallArg::Kwarg(name, expression) => {
                    let value = self.evaluate(expression)?;
                    arguments.named.push(((*name).into(), value));
                }
                CallArg::PosSplat(expression) => {
                    let values = self.evaluate(expression)?.iterate(&self.budget)?;
                    self.budget.work(values.items.len() as u64)?;
                    arguments.positional.extend(values.items.iter().cloned());
                }
                CallArg::KwargSplat(expression) => {
                    let Value::Map(map) = self.evaluate(expression)? else {
                        fail!(TemplateFailed, "argument after ** must be a mapping");
                    };
                    for (key, value) in &map.entries {
                        let Value::Str(name) = key else {
                            fail!(TemplateFailed, "keywords must be strings");
                        };
                        self.budget.scan(name.len())?;
                        let name = super::text::to_string(name);
                        arguments.named.push((name.into(), value.clone()));
                    }
                }
            }
        }
        Ok(arguments)
    }

    /// A call in the template, with the block that `{% call %}` adds.
    pub fn call_node(&mut self, node: &'a Call<'a>, caller: Option<Value>) -> Result<Value> {
        let (callee, method) = match &node.expr {
            Expr::GetAttr(attribute) => {
                let of = self.evaluate(&attribute.expr)?;
                match method_of(&of, attribute.name) {
                    Some(method) => (of, Some(method)),
                    None => (self.attribute(&of, attribute.name)?, None),
                }
            }
            expression => (self.evaluate(expression)?, None),
        };
        let mut arguments = self.arguments(&node.args)?;
        if let Some(caller) = caller {
            arguments.named.push(("caller".into(), caller));
        }
        match method {
            Some(method) => self.call_method(&callee, method, arguments),
            None => self.call(&callee, arguments),
        }
    }

    /// The filters of a `{% filter %}` or `{% set %}` block, which have no expression at their start.
    pub fn filter_chain(&mut self, chain: &'a Expr<'a>, value: Value) -> Result<Value> {
        let Expr::Filter(node) = chain else {
            fail!(TemplateFailed, "{} is not a filter", chain.description());
        };
        self.enter()?;
        let value = match &node.expr {
            Some(before) => self.filter_chain(before, value)?,
            None => value,
        };
        let arguments = self.arguments(&node.args)?;
        let value = self.filter(node.name, value, arguments)?;
        self.leave();
        Ok(value)
    }

    /// A comparison, which gives a truth.
    pub fn compare(
        &mut self,
        operator: CompareOpKind,
        left: &Value,
        right: &Value,
    ) -> Result<bool> {
        let budget = &self.budget;
        Ok(match operator {
            CompareOpKind::Eq => left.same(right, budget)?,
            CompareOpKind::Ne => !left.same(right, budget)?,
            CompareOpKind::Lt => left.order(right, "<", budget)?.is_some_and(|o| o.is_lt()),
            CompareOpKind::Lte => left.order(right, "<=", budget)?.is_some_and(|o| o.is_le()),
            CompareOpKind::Gt => left.order(right, ">", budget)?.is_some_and(|o| o.is_gt()),
            CompareOpKind::Gte => left.order(right, ">=", budget)?.is_some_and(|o| o.is_ge()),
            CompareOpKind::In => self.contains(right, left)?,
            CompareOpKind::NotIn => !self.contains(right, left)?,
        })
    }
}
