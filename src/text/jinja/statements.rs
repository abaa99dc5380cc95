//! Running statements.

use super::names::Names;
use super::scope::{LoopState, Scope};
use super::text::{Builder, Text};
use super::value::{Held, Object, Seq, SeqKind, Value, nested};
use super::{Cycle, Run};
use crate::error::{Result, fail};
use minijinja::machinery::ast::{Expr, ForLoop, Stmt};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How a list of statements ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Continue,
    Break,
}

impl<'a> Run<'a> {
    /// Runs the whole template.
    pub fn template(&mut self, tree: &'a Stmt<'a>) -> Result<()> {
        self.statement(tree).map(|_| ())
    }

    pub fn statements(&mut self, list: &'a [Stmt<'a>]) -> Result<Flow> {
        for statement in list {
            let flow = self.statement(statement)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) -> Result<Flow> {
        self.enter()?;
        let flow = self.run_statement(statement)?;
        self.leave();
        Ok(flow)
    }

    fn run_statement(&mut self, statement: &'a Stmt<'a>) -> Result<Flow> {
        match statement {
            Stmt::Template(template) => return self.statements(&template.children),
            Stmt::EmitRaw(raw) => self.out.plain(raw.raw)?,
            Stmt::EmitExpr(emit) => {
                self.line = u32::from(emit.span().start_line);
                let value = self.evaluate(&emit.expr)?;
                self.emit(&value)?;
            }
            Stmt::IfCond(condition) => {
                self.line = u32::from(condition.span().start_line);
                let body = match self.evaluate(&condition.expr)?.is_true() {
                    true => &condition.true_body,
                    false => &condition.false_body,
                };
                return self.statements(body);
            }
            Stmt::ForLoop(node) => {
                self.line = u32::from(node.span().start_line);
                let items = self.evaluate(&node.iter)?;
                let scope = self.scope.clone();
                let recursive = node.recursive.then(|| {
                    self.recursive_loops.push((&**node, scope.clone()));
                    self.recursive_loops.len() - 1
                });
                self.for_loop(node, &items, recursive, 0)?;
            }
            Stmt::Set(set) => {
                self.line = u32::from(set.span().start_line);
                let value = self.evaluate(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            Stmt::SetBlock(set) => {
                self.line = u32::from(set.span().start_line);
                let text = self.captured(|run| run.scoped(|run| run.statements(&set.body)))?;
                let mut value = Value::Str(text);
                if let Some(filter) = &set.filter {
                    value = self.filter_chain(filter, value)?;
                }
                self.assign(&set.target, value)?;
            }
            Stmt::FilterBlock(block) => {
                self.line = u32::from(block.span().start_line);
                let text = self.captured(|run| run.scoped(|run| run.statements(&block.body)))?;
                let value = self.filter_chain(&block.filter, Value::Str(text))?;
                self.emit(&value)?;
            }
            Stmt::WithBlock(with) => {
                let mut values = Vec::new();
                for (_, expression) in &with.assignments {
                    values.push(self.evaluate(expression)?);
                }
                return self.scoped(|run| {
                    for ((target, _), value) in with.assignments.iter().zip(values) {
                        run.assign(target, value)?;
                    }
                    run.statements(&with.body)
                });
            }
            Stmt::AutoEscape(block) => {
                if self.evaluate(&block.enabled)?.is_true() {
                    fail!(TemplateFailed, "a chat template cannot escape HTML");
                }
                return self.scoped(|run| run.statements(&block.body));
            }
            Stmt::Macro(node) => {
                let value = self.declare(node, node.span())?;
                self.scope.set(node.name, value)?;
            }
            Stmt::CallBlock(block) => {
                self.line = u32::from(block.span().start_line);
                let caller = self.declare(&block.macro_decl, block.macro_decl.span())?;
                let value = self.call_node(&block.call, Some(caller))?;
                self.emit(&value)?;
            }
            Stmt::Do(node) => {
                self.call_node(&node.call, None)?;
            }
            Stmt::Block(block) => {
                self.line = u32::from(block.span().start_line);
                let span = block.span();
                let tag = self
                    .source
                    .get(span.start_offset as usize..)
                    .unwrap_or_default();
                let tag = tag.split("%}").next().unwrap_or_default();
                // Others see the template's variables, not those of loops.
                let outer = match tag.split_whitespace().any(|word| word == "scoped") {
                    true => self.scope.clone(),
                    false => self.top.clone(),
                };
                let scope = Scope::new(&self.budget, Some(outer))?;
                self.within(scope, |run| run.statements(&block.body))?;
            }
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                fail!(TemplateFailed, "no loader for this environment specified")
            }
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Break(_) => return Ok(Flow::Break),
        }
        Ok(Flow::Next)
    }

    /// Writes a value as `{{ }}` does.
    fn emit(&mut self, value: &Value) -> Result<()> {
        let mut out = std::mem::replace(&mut self.out, Builder::new(&self.budget)?);
        let result = self.write_str(value, &mut out);
        self.out = out;
        result
    }

    /// Runs `work` and gives what it wrote, instead of writing it.
    pub fn captured<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<Text> {
        let outer = std::mem::replace(&mut self.out, Builder::new(&self.budget)?);
        let result = work(self);
        let inner = std::mem::replace(&mut self.out, outer);
        result?;
        Ok(inner.finish())
    }

    /// Runs `work` with variables of its own.
    pub fn scoped<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let inner = Scope::new(&self.budget, Some(self.scope.clone()))?;
        self.within(inner, work)
    }

    /// Runs `work` in another scope.
    pub fn within<T>(
        &mut self,
        scope: Rc<Scope>,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = std::mem::replace(&mut self.scope, scope);
        let result = work(self);
        self.scope = outer;
        result
    }

    /// Marks the current scope as one that a macro refers to.
    pub fn capture_scope(&mut self) -> Rc<Scope> {
        if !self.scope.captured.replace(true) {
            self.cycles.push(Cycle::Scope(self.scope.clone()));
        }
        self.scope.clone()
    }

    fn assign(&mut self, target: &'a Expr<'a>, value: Value) -> Result<()> {
        match target {
            Expr::Var(variable) => self.scope.set(variable.id, value),
            Expr::GetAttr(attribute) => {
                let of = self.evaluate(&attribute.expr)?;
                if let Value::Object(object) = &of
                    && let Object::Namespace(entries) = object.inner()
                {
                    return self.set_in_namespace(entries, attribute.name, value);
                }
                fail!(
                    TemplateFailed,
                    "cannot assign attribute on non-namespace object"
                )
            }
            Expr::List(list) => {
                let values = value.iterate(&self.budget)?;
                if values.items.len() != list.items.len() {
                    fail!(
                        TemplateFailed,
                        "{} values for {} names",
                        values.items.len(),
                        list.items.len()
                    );
                }
                for (target, value) in list.items.iter().zip(&values.items) {
                    self.assign(target, value.clone())?;
                }
                Ok(())
            }
            _ => fail!(TemplateFailed, "cannot assign to {}", target.description()),
        }
    }

    pub fn set_in_namespace(
        &mut self,
        entries: &RefCell<Names>,
        name: &str,
        value: Value,
    ) -> Result<()> {
        if name.starts_with('_') {
            fail!(
                TemplateFailed,
                "chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'"
            );
        }
        let mut entries = entries.borrow_mut();
        match entries.get_mut(name) {
            Some(entry) => *entry = value,
            None => {
                let bytes = 2 * size_of::<(Box<str>, Value)>() + name.len();
                self.held.push(self.budget.hold(bytes)?);
                entries.insert(name.into(), value);
            }
        }
        Ok(())
    }

    /// Runs a loop in the current scope, which is the one around it.
    pub fn for_loop(
        &mut self,
        node: &'a ForLoop<'a>,
        items: &Value,
        recursive: Option<usize>,
        level: usize,
    ) -> Result<()> {
        let mut items = items.iterate(&self.budget)?;
        if let Some(filter) = &node.filter_expr {
            let mut kept = Vec::new();
            for item in &items.items {
                let keep = self.scoped(|run| {
                    run.assign(&node.target, item.clone())?;
                    run.evaluate(filter)
                })?;
                if keep.is_true() {
                    kept.push(item.clone());
                }
            }
            items = Seq::shared(&self.budget, SeqKind::List, kept)?;
        }
        if items.items.is_empty() {
            self.scoped(|run| run.statements(&node.else_body))?;
            return Ok(());
        }
        let state = LoopState {
            items: items.clone(),
            index: Cell::new(0),
            level,
            depth_of_items: nested(items.items.iter())?,
            last_asked: RefCell::new(None),
            recursive,
        };
        let state = Held::new(&self.budget, Object::Loop(state))?;
        for (index, item) in items.items.iter().enumerate() {
            if let Object::Loop(state) = state.inner() {
                state.index.set(index);
            }
            let flow = self.scoped(|run| {
                run.scope.set("loop", Value::Object(state.clone()))?;
                run.assign(&node.target, item.clone())?;
                run.statements(&node.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }
}
