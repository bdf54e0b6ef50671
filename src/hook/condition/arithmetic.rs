//! Numbers in conditions: `asInt`, `asFloat`, arithmetic on mixed integers and floats, and the comparison of a text with a
//! number. Must not bound the work (`work` does).
//!
//! CEL refuses `2 * 0.5`. A member of a result may be 2 in one measurement and 2.5 in the next, so here `+ - * /`
//! accept any two numbers: two integers give an integer (and never wrap around); with a float the result is a
//! float.
//!
//! In CEL a text never equals a number or a boolean. The result of a command or of a `jsonPath` is a text, so
//! `result == 0`, `result == false` and `result in [1, 2]` would be false whatever was measured, and a hook with that
//! `failureCondition` would approve. For such a result they are an error, as `<` is.

use std::sync::Arc;

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, DeclarationError, ExecutionError, Value};

use super::members;
use crate::hook::value::cut;

/// The operators, and the names of their replacements. No source can spell these names.
const WIDENED: [(&str, &str); 6] = [
    (operators::ADD, "@add"),
    (operators::SUBSTRACT, "@subtract"),
    (operators::MULTIPLY, "@multiply"),
    (operators::DIVIDE, "@divide"),
    (operators::EQUALS, "@equals"),
    (operators::NOT_EQUALS, "@differs"),
];

/// The function to which the left side of `in [1, 2]` is passed. No source can spell it.
pub(super) const NO_TEXT: &str = "@no_text";

/// True for addition, under CEL's name or the replacement's.
pub(super) fn is_addition(name: &str) -> bool {
    name == operators::ADD || name == "@add"
}

/// Replaces the operators of an expression, and makes its macros visit members in order. The additions that the
/// expansion of a macro generates are not replaced: they append lists to lists.
pub(super) fn widen(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => {
            let of_macro = matches!(call.args.first().map(|arg| &arg.expr), Some(Expr::Ident(name)) if name.starts_with('@'));
            if let Some((_, ours)) = WIDENED.iter().find(|(name, _)| *name == call.func_name)
                && call.args.len() == 2
                && !of_macro
            {
                (*ours).clone_into(&mut call.func_name);
            }
            call.target.iter_mut().for_each(|target| widen(target));
            call.args.iter_mut().for_each(widen);
            if call.func_name == operators::IN
                && let [of, list] = call.args.as_mut_slice()
                && has_no_text(list)
            {
                let (id, args) = (of.id, vec![std::mem::take(of)]);
                let call = CallExpr { func_name: NO_TEXT.to_owned(), target: None, args };
                *of = IdedExpr { id, expr: Expr::Call(call) };
            }
        }
        Expr::Comprehension(all) => {
            members::order(&mut all.iter_range);
            for part in [
                &mut all.iter_range,
                &mut all.accu_init,
                &mut all.loop_cond,
                &mut all.loop_step,
                &mut all.result,
            ] {
                widen(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(widen),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    widen(&mut entry.key);
                    widen(&mut entry.value);
                }
            }
        }
        Expr::Select(select) => widen(&mut select.operand),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
    }
}

/// True for a list of numbers and booleans that are written out.
fn has_no_text(list: &IdedExpr) -> bool {
    let is_plain = |expression: &IdedExpr| match &expression.expr {
        Expr::Literal(literal) => matches!(
            literal,
            LiteralValue::Boolean(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)
        ),
        Expr::Call(call) => call.func_name == operators::NEGATE,
        _ => false,
    };
    matches!(&list.expr, Expr::List(list) if list.elements.iter().all(is_plain))
}

/// Declares the functions that a condition may use in addition to CEL's own. `of_text`: the result is a text.
pub(super) fn declare(context: &mut Context<'_, '_>, of_text: bool) -> Result<(), DeclarationError> {
    context.add_function("@equals", move |a: Value, b: Value| equals("==", &a, &b, of_text))?;
    context.add_function("@differs", move |a: Value, b: Value| {
        let equal = equals("!=", &a, &b, of_text)?;
        Ok::<_, ExecutionError>(Value::Bool(equal == Value::Bool(false)))
    })?;
    context.add_function(NO_TEXT, move |value: Value| match value {
        Value::String(_) if of_text => Err(compares_text(&value, "in", "a list of numbers")),
        value => Ok(value),
    })?;
    context.add_function("asInt", |value: Value| as_int(&value))?;
    context.add_function("asFloat", |value: Value| as_float(&value))?;
    context.add_function("@add", |a: Value, b: Value| add(&a, &b))?;
    context.add_function("@subtract", |a: Value, b: Value| {
        numbers("-", &a, &b, i128::checked_sub, |a, b| a - b)
    })?;
    context.add_function("@multiply", |a: Value, b: Value| {
        numbers("*", &a, &b, i128::checked_mul, |a, b| a * b)
    })?;
    context
        .add_function("@divide", |a: Value, b: Value| numbers("/", &a, &b, i128::checked_div, |a, b| a / b))
}

fn error(message: String) -> ExecutionError {
    ExecutionError::FunctionError { function: String::new(), message }
}

fn as_int(value: &Value) -> Result<Value, ExecutionError> {
    let whole = match value {
        Value::Int(_) => return Ok(value.clone()),
        Value::UInt(number) => i64::try_from(*number).ok(),
        Value::Float(number) => whole(*number),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    whole.map(Value::Int).ok_or_else(|| error(format!("asInt: {} is not a 64-bit integer", printed(value))))
}

/// The integer that a float without a fraction stands for.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "checked right here")]
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < i64::MAX as f64).then_some(number as i64)
}

fn as_float(value: &Value) -> Result<Value, ExecutionError> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok(),
        other => float(other),
    };
    number.map(Value::Float).ok_or_else(|| error(format!("asFloat: {} is not a number", printed(value))))
}

#[expect(clippy::cast_precision_loss, reason = "that is what a fraction is")]
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::UInt(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number) => Some(i128::from(*number)),
        Value::UInt(number) => Some(i128::from(*number)),
        _ => None,
    }
}

fn equals(operator: &str, a: &Value, b: &Value, of_text: bool) -> Result<Value, ExecutionError> {
    let is_text = |value: &Value| matches!(value, Value::String(_));
    let is_plain = |value: &Value| float(value).is_some() || matches!(value, Value::Bool(_));
    if of_text && (is_text(a) && is_plain(b) || is_plain(a) && is_text(b)) {
        return Err(compares_text(a, operator, &printed(b)));
    }
    Ok(Value::Bool(a == b))
}

fn compares_text(a: &Value, operator: &str, b: &str) -> ExecutionError {
    error(format!(
        "{} {operator} {b} compares a text with something else: use asInt(...) or asFloat(...) on a text, or compare it with a \
         text such as 'true'",
        printed(a)
    ))
}

fn add(a: &Value, b: &Value) -> Result<Value, ExecutionError> {
    match (a, b) {
        (Value::String(a), Value::String(b)) => Ok(Value::String(Arc::new(format!("{a}{b}")))),
        (Value::List(a), Value::List(b)) => {
            Ok(Value::List(Arc::new(a.iter().chain(b.iter()).cloned().collect())))
        }
        _ => numbers("+", a, b, i128::checked_add, |a, b| a + b),
    }
}

fn numbers(
    operator: &str,
    a: &Value,
    b: &Value,
    whole: fn(i128, i128) -> Option<i128>,
    fraction: fn(f64, f64) -> f64,
) -> Result<Value, ExecutionError> {
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        let result = whole(a, b);
        return match result.map(|result| (i64::try_from(result), u64::try_from(result))) {
            Some((Ok(number), _)) => Ok(Value::Int(number)),
            Some((_, Ok(number))) => Ok(Value::UInt(number)),
            Some(_) => Err(error(format!("{a} {operator} {b} exceeds 64 bits"))),
            None => Err(error("division by zero".to_owned())),
        };
    }
    match (float(a), float(b)) {
        (Some(a), Some(b)) => Ok(Value::Float(fraction(a, b))),
        _ => Err(error(format!(
            "the operands of {} {operator} {} are not both numbers: use asInt(...) or asFloat(...) on a text",
            printed(a),
            printed(b)
        ))),
    }
}

/// A value for people, limited in length.
pub(super) fn printed(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(yes) => yes.to_string(),
        Value::String(text) => format!("{:?}", cut(text, 64)),
        Value::Null => "nothing".to_owned(),
        Value::List(list) => format!("a list of {}", list.len()),
        Value::Map(map) => format!("an object of {} members", map.map.len()),
        _ => "something else".to_owned(),
    }
}
