//! Makes macros in conditions visit the members of objects in the order of their names. Must not change any other
//! value.
//!
//! The interpreter stores an object in a hash map, whose order differs between evaluations. A condition such as
//! `result.map(name, name)[0] == "a"` would hold at random.

use std::sync::Arc;

use cel::common::ast::{CallExpr, Expr, IdedExpr};
use cel::objects::Key;
use cel::{Context, DeclarationError, Value};

/// The function to which a macro's range is passed. No source can spell it.
pub(super) const ORDERED: &str = "@ordered";

/// Makes a macro visit the elements of `range` in a fixed order.
pub(super) fn order(range: &mut IdedExpr) {
    let id = range.id;
    let args = vec![std::mem::take(range)];
    *range =
        IdedExpr { id, expr: Expr::Call(CallExpr { func_name: ORDERED.to_owned(), target: None, args }) };
}

/// Declares the function.
pub(super) fn declare(context: &mut Context<'_, '_>) -> Result<(), DeclarationError> {
    context.add_function(ORDERED, |value: Value| ordered(value))
}

/// The sorted names of an object's members. Other values have a fixed order already.
fn ordered(value: Value) -> Value {
    let Value::Map(map) = value else { return value };
    let mut keys: Vec<&Key> = map.map.keys().collect();
    keys.sort_unstable();
    Value::List(Arc::new(keys.into_iter().cloned().map(Value::from).collect()))
}
