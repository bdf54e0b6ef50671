//! Computes an upper bound of the work of an expression, before it is evaluated. Must not evaluate it.
//!
//! A unit is about one operation of the interpreter, or 16 bytes of text that are copied. Every part of the
//! result is at most as large as the result. The work of a macro on the elements of a list is at most its work on
//! that many elements of size one, or on one element as large as the whole list.

use cel::Value;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{arithmetic, members};

/// Maximum work of one evaluation: well under a second.
pub(super) const MAX_WORK: u64 = 1_000_000;
/// Maximum size of a result that is evaluated.
pub(super) const MAX_RESULT: u64 = 50_000;
/// Bytes of text per unit.
const TEXT: u64 = 16;

/// The size of a value.
pub(super) fn size(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + text.len() as u64 / TEXT,
        Value::List(list) => 1 + list.iter().map(size).sum::<u64>(),
        Value::Map(map) => 1 + map.map.iter().map(|(key, value)| key_size(key) + size(value)).sum::<u64>(),
        _ => 1,
    }
}

fn key_size(key: &cel::objects::Key) -> u64 {
    match key {
        cel::objects::Key::String(text) => 1 + text.len() as u64 / TEXT,
        _ => 1,
    }
}

/// The upper bound of the work for a result of this size.
pub(super) fn bound(expression: &IdedExpr, result: u64) -> u64 {
    Sizes { names: vec![("result", result)] }.of(expression).work
}

/// Upper bounds of the work of an evaluation, and of the size of its outcome.
#[derive(Clone, Copy)]
struct Bound {
    work: u64,
    size: u64,
}

/// The sizes of the variables in scope, the innermost last.
struct Sizes<'a> {
    names: Vec<(&'a str, u64)>,
}

impl<'a> Sizes<'a> {
    fn of(&mut self, expression: &'a IdedExpr) -> Bound {
        match &expression.expr {
            Expr::Ident(name) => {
                let size = self
                    .names
                    .iter()
                    .rev()
                    .find(|(declared, _)| declared == name)
                    .map_or(1, |(_, size)| *size);
                Bound { work: size.saturating_add(1), size }
            }
            Expr::Literal(LiteralValue::String(text)) => {
                let size = 1 + text.inner().len() as u64 / TEXT;
                Bound { work: size, size }
            }
            Expr::Select(select) => {
                let operand = self.of(&select.operand);
                Bound { work: operand.work.saturating_add(operand.size), size: operand.size }
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.all(&list.elements),
            Expr::Map(map) => {
                let mut bound = Bound { work: 1, size: 1 };
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        let (key, value) = (self.of(&entry.key), self.of(&entry.value));
                        bound = bound.and(key).and(value);
                    }
                }
                bound
            }
            Expr::Comprehension(all) => self.comprehension(all),
            Expr::Literal(_) | Expr::Unspecified | Expr::Struct(_) => Bound { work: 1, size: 1 },
        }
    }

    fn all(&mut self, expressions: &'a [IdedExpr]) -> Bound {
        expressions.iter().fold(Bound { work: 1, size: 1 }, |bound, item| bound.and(self.of(item)))
    }

    fn call(&mut self, call: &'a CallExpr) -> Bound {
        let target = call.target.as_deref().map(|target| self.of(target));
        let bound = self.all(&call.args);
        let bound = target.map_or(bound, |target| bound.and(target));
        // Every argument is read and copied at most twice.
        let work = bound.work.saturating_add(bound.size.saturating_mul(2));
        if call.func_name == members::ORDERED {
            return Bound { work, size: bound.size - 1 };
        }
        // Text made of a number is larger than the number; the outcome of every function that is not listed is a
        // number or a boolean.
        let grows = arithmetic::is_addition(&call.func_name)
            || matches!(
                call.func_name.as_str(),
                operators::CONDITIONAL | operators::INDEX | arithmetic::NO_TEXT | "string"
            );
        Bound { work, size: if grows { bound.size.saturating_add(2) } else { 1 } }
    }

    fn comprehension(&mut self, all: &'a ComprehensionExpr) -> Bound {
        let range = self.of(&all.iter_range);
        let start = self.of(&all.accu_init);
        let many = self.round(all, 1);
        let large = self.round(all, range.size);
        let rounds = many.work.saturating_mul(range.size).saturating_add(large.work);
        let size = many.size.saturating_mul(range.size).saturating_add(large.size).saturating_add(start.size);
        let work = [range.work, range.size, start.work, rounds, size]
            .iter()
            .fold(0_u64, |a, b| a.saturating_add(*b));
        Bound { work, size }
    }

    /// The work for one element of that size. The accumulated outcome is counted once, at the end.
    fn round(&mut self, all: &'a ComprehensionExpr, element: u64) -> Bound {
        let outer = self.names.len();
        self.names.push((&all.accu_var, 1));
        self.names.push((&all.iter_var, element));
        let bound = self.of(&all.loop_cond);
        let step = self.of(&all.loop_step);
        let result = self.of(&all.result);
        self.names.truncate(outer);
        Bound { work: bound.work.saturating_add(step.work).saturating_add(result.work), size: step.size }
    }
}

impl Bound {
    fn and(self, other: Self) -> Self {
        Self { work: self.work.saturating_add(other.work), size: self.size.saturating_add(other.size) }
    }
}
