//! Variables, and the state of loops.

use super::names::{Names, names};
use super::value::{Seq, Value};
use crate::budget::{Budget, Hold};
use crate::error::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The variables of a block that has its own, and where to look on.
pub(super) struct Scope {
    variables: RefCell<Names>,
    parent: Option<Rc<Scope>>,
    /// Whether a macro refers to this scope, so that it may outlive its block.
    pub captured: Cell<bool>,
    hold: RefCell<Hold>,
}

impl Scope {
    pub fn new(budget: &Rc<Budget>, parent: Option<Rc<Scope>>) -> Result<Rc<Scope>> {
        Ok(Rc::new(Scope {
            variables: RefCell::new(names()),
            parent,
            captured: Cell::new(false),
            hold: RefCell::new(budget.hold(128)?),
        }))
    }

    pub fn set(&self, name: &str, value: Value) -> Result<()> {
        let mut variables = self.variables.borrow_mut();
        match variables.get_mut(name) {
            Some(variable) => *variable = value,
            None => {
                let bytes = 2 * size_of::<(Box<str>, Value)>() + name.len();
                self.hold.borrow_mut().grow(bytes)?;
                variables.insert(name.into(), value);
            }
        }
        Ok(())
    }

    /// The variable of this scope or of the closest one around it that has it.
    pub fn get(&self, name: &str, budget: &Budget) -> Result<Option<Value>> {
        let mut scope = self;
        loop {
            let variables = scope.variables.borrow();
            budget.work(1)?;
            if let Some(value) = variables.get(name) {
                return Ok(Some(value.clone()));
            }
            match &scope.parent {
                Some(parent) => scope = parent,
                None => return Ok(None),
            }
        }
    }

    /// Forgets all variables, which breaks cycles through macros.
    pub fn clear(&self) -> Vec<(Box<str>, Value)> {
        self.variables.borrow_mut().drain().collect()
    }
}

/// Where a loop is.
pub(super) struct LoopState {
    pub items: Rc<Seq>,
    pub index: Cell<usize>,
    /// How many loops of the same recursion are around this one.
    pub level: usize,
    pub depth_of_items: u32,
    /// What `changed` was asked about last.
    pub last_asked: RefCell<Option<Rc<Seq>>>,
    /// Index of the loop in the list of recursive loops, if it is one.
    pub recursive: Option<usize>,
}
