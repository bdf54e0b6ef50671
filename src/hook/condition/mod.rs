//! Conditions: CEL over `result`, with `asInt` and `asFloat`. Compiled once, evaluated often. Must not measure.
//!
//! A condition is a program of the template's author that runs on the node. Its length, depth and macros are bounded
//! when it is compiled, and `work` bounds its cost before each evaluation. So every evaluation ends soon, without a
//! timeout.

mod arithmetic;
mod check;
mod members;
mod work;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::objects::{Key, Map};
use cel::parser::PrattParser;
use cel::{Context, Env, ExecutionError};

use crate::hook::json::Json;
use crate::hook::value::{Value, cut};

/// Maximum length of the source, in bytes.
const MAX_SOURCE: usize = 2048;
/// Maximum length of a text that a condition evaluates, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Maximum number of values in a result that a condition evaluates.
const MAX_VALUES: usize = 10_000;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Condition {
    source: String,
    expression: Arc<IdedExpr>,
}

/// Why a text is not a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{source_text}` is not a condition: {problem}")]
pub struct InvalidCondition {
    source_text: String,
    problem: String,
}

/// Why a condition cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{condition}` could not be evaluated: {problem}")]
pub struct Undecided {
    condition: String,
    problem: String,
}

impl Condition {
    /// Compiles a source; the error contains the position of the problem.
    pub fn compile(source: &str) -> Result<Self, InvalidCondition> {
        let wrong = |problem: String| InvalidCondition { source_text: cut(source, 256), problem };
        if source.len() > MAX_SOURCE {
            return Err(wrong(format!("it is longer than {MAX_SOURCE} bytes")));
        }
        check::brackets(source).map_err(wrong)?;
        // Not the default parser: it uses 16 times the stack, and a mebibyte of memory that is not freed.
        let mut expression = PrattParser::new().parse(source).map_err(|errors| {
            let first = errors.errors.first();
            wrong(first.map_or_else(String::new, |error| {
                format!("line {}, column {}: {}", error.pos.0, error.pos.1, cut(&error.msg, 256))
            }))
        })?;
        check::expression(&expression, source).map_err(wrong)?;
        arithmetic::widen(&mut expression);
        if work::bound(&expression, 1) > work::MAX_WORK {
            return Err(wrong("it is too expensive even for one number".to_owned()));
        }
        Ok(Self { source: source.to_owned(), expression: Arc::new(expression) })
    }

    /// The condition as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the condition holds for `result`.
    pub fn holds(&self, result: &Value) -> Result<bool, Undecided> {
        self.evaluate(result)
            .map_err(|problem| Undecided { condition: cut(&self.source, 256), problem: cut(&problem, 256) })
    }

    fn evaluate(&self, result: &Value) -> Result<bool, String> {
        let of_text = matches!(result, Value::Text(_));
        let (result, size) = convert(result)?;
        if work::bound(&self.expression, size) > work::MAX_WORK {
            return Err(
                "it is too expensive for a result of this size: shorten the list, or nest fewer macros"
                    .into(),
            );
        }
        let mut context = Context::with_env(Arc::clone(&ENV));
        let declared =
            arithmetic::declare(&mut context, of_text).and_then(|()| members::declare(&mut context));
        declared.map_err(|error| error.to_string())?;
        context.add_variable_from_value("result", result);
        match cel::Value::resolve(&self.expression, &context) {
            Ok(cel::Value::Bool(yes)) => Ok(yes),
            Ok(other) => {
                Err(format!("it evaluates to {}, not to true or false", arithmetic::printed(&other)))
            }
            Err(error) => Err(problem(&error)),
        }
    }
}

/// An evaluation error in terms of the condition. A value is printed in short and never as the interpreter prints
/// it: that text is long, and the order of an object's members in it differs between evaluations.
fn problem(error: &ExecutionError) -> String {
    let printed = arithmetic::printed;
    match error {
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::NoSuchKey(key) => format!("the result has no `{key}`"),
        ExecutionError::IndexOutOfBounds(index) => {
            format!("the list has no element {}", printed(index))
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            let (left, right) = (printed(left), printed(right));
            format!("{left} and {right} cannot be compared: use asInt(...) or asFloat(...) on a text")
        }
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!("`{operator}` cannot be applied to {} and {}", printed(left), printed(right))
        }
        ExecutionError::Overflow(operator, left, right) => {
            format!("`{operator}` of {} and {} exceeds 64 bits", printed(left), printed(right))
        }
        ExecutionError::UnsupportedTargetType { target } => {
            format!("{} is of the wrong type", printed(target))
        }
        ExecutionError::NotSupportedAsMethod { method, target } => {
            format!("{} has no method `{method}`", printed(target))
        }
        ExecutionError::UnsupportedKeyType(key) => format!("{} cannot be the name of a member", printed(key)),
        ExecutionError::DuplicateKey(key) => format!("the member {} is given twice", printed(key)),
        ExecutionError::UnsupportedIndex(index, of) => {
            format!("{} is not an index of {}", printed(index), printed(of))
        }
        ExecutionError::NoSuchOverload(_) => {
            format!("{error}: use asInt(...) or asFloat(...) to convert a text to a number")
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "division by zero".to_owned()
        }
        other => other.to_string(),
    }
}

/// The value for CEL, and its size in the units of `work`.
fn convert(value: &Value) -> Result<(cel::Value, u64), String> {
    let too_large =
        |what: &str, most: usize| format!("the result is too large to evaluate: more than {most} {what}");
    let converted = match value {
        Value::Text(text) if text.len() > MAX_TEXT => return Err(too_large("bytes", MAX_TEXT)),
        Value::Text(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Number(number) => cel::Value::Float(*number),
        Value::Numbers(numbers) if numbers.len() > MAX_VALUES => return Err(too_large("values", MAX_VALUES)),
        Value::Numbers(numbers) => {
            cel::Value::List(Arc::new(numbers.iter().map(|number| cel::Value::Float(*number)).collect()))
        }
        Value::Json(json) => {
            let mut left = MAX_VALUES;
            from_json(json, &mut left).ok_or_else(|| too_large("values", MAX_VALUES))?
        }
        Value::None => cel::Value::Null,
    };
    let size = work::size(&converted);
    if size > work::MAX_RESULT {
        return Err(too_large("bytes", MAX_TEXT));
    }
    Ok((converted, size))
}

fn from_json(json: &Json, left: &mut usize) -> Option<cel::Value> {
    *left = left.checked_sub(1)?;
    Some(match json {
        Json::Null => cel::Value::Null,
        Json::Bool(yes) => cel::Value::Bool(*yes),
        Json::Number(spelling) => number(spelling),
        Json::Text(text) => cel::Value::String(Arc::new(text.clone())),
        Json::List(list) => {
            let list: Option<Vec<_>> = list.iter().map(|item| from_json(item, left)).collect();
            cel::Value::List(Arc::new(list?))
        }
        Json::Map(members) => {
            let map: Option<HashMap<Key, cel::Value>> = members
                .iter()
                .map(|(name, value)| Some((Key::from(name.clone()), from_json(value, left)?)))
                .collect();
            cel::Value::Map(Map { map: Arc::new(map?) })
        }
    })
}

/// An integer if it fits, so that it keeps all digits.
fn number(spelling: &str) -> cel::Value {
    if let Ok(number) = spelling.parse::<i64>() {
        cel::Value::Int(number)
    } else if let Ok(number) = spelling.parse::<u64>() {
        cel::Value::UInt(number)
    } else {
        spelling.parse::<f64>().map_or(cel::Value::Null, cel::Value::Float)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn json(text: &str) -> Value {
        Value::Json(Json::parse(text.as_bytes()).unwrap())
    }

    fn holds(source: &str, result: &Value) -> bool {
        Condition::compile(source).unwrap().holds(result).unwrap()
    }

    fn undecided(source: &str, result: &Value) -> String {
        Condition::compile(source).unwrap().holds(result).unwrap_err().to_string()
    }

    fn refused(source: &str) -> String {
        Condition::compile(source).unwrap_err().to_string()
    }

    #[test]
    fn every_documented_form_works() {
        let vector = |numbers: &[f64]| Value::Numbers(numbers.to_vec());
        for (source, result, expect) in [
            ("asInt(result) > 30", text("45"), true),
            ("asInt(result) > 30", text("30"), false),
            ("asInt(result) == 1", text("1"), true),
            ("asFloat(result) >= 0.95", text("0.95"), true),
            ("asFloat(result) > 1", text("1.5"), true),
            ("result == 0", Value::Number(0.0), true),
            ("result == 0", Value::Number(0.5), false),
            ("result == 0", json("0"), true),
            ("result[0] == 0", vector(&[0.0, 1.0]), true),
            ("result[0] == 0", vector(&[1.0, 0.0]), false),
            ("0 in result", vector(&[1.0, 0.0]), true),
            ("0 in result", vector(&[1.0, 2.0]), false),
            ("result < 0.5 && result >= 0", Value::Number(0.25), true),
            ("result > 1", Value::Number(1.5), true),
            ("1 < result", Value::Number(1.5), true),
            ("(result.a * result.b / 100) >= 90", json(r#"{"a":95,"b":100}"#), true),
            ("(result.a * result.b / 100) >= 90", json(r#"{"a":89,"b":100}"#), false),
            ("(result.a * result.b / 100) >= 90", json(r#"{"a":90.5,"b":100}"#), true),
            ("(result.a * result.b / 100) >= 90", json(r#"{"a":0.5,"b":200.5}"#), false),
            ("result == \"ok\"", text("ok"), true),
            ("result == 'ok'", text("no"), false),
            ("result in ['ok', 'done']", text("done"), true),
            ("result in ['ok', 1]", text("1"), false),
            ("asInt(result) in [1, -2]", text("-2"), true),
            ("result.a in [1, 2]", json(r#"{"a":2}"#), true),
            ("result.startsWith('rea') && result.contains('ad')", text("ready"), true),
            ("result.items.all(x, x.ready)", json(r#"{"items":[{"ready":true},{"ready":true}]}"#), true),
            ("result.items.exists(x, x.n > 2)", json(r#"{"items":[{"n":1},{"n":2.5}]}"#), true),
            ("size(result.filter(x, x > 1)) == 2", json("[1,2,3]"), true),
            ("result.map(x, x * 2) == [2, 4]", json("[1,2]"), true),
            ("has(result.a) && !has(result.b)", json(r#"{"a":null}"#), true),
            ("result['my-name'] == 1", json(r#"{"my-name":1}"#), true),
            ("result == null", Value::None, true),
            ("result == null", text("null"), false),
            ("result != 'false'", text("true"), true),
            ("result.state == 'none' || result.state > 3", json(r#"{"state":4}"#), true),
            ("asInt(result) > 0 ? true : false", text(" 7\n"), true),
            ("asInt(result.n) == 7", json(r#"{"n":7.0}"#), true),
        ] {
            assert_eq!(holds(source, &result), expect, "{source} of {result:?}");
        }
    }

    #[test]
    fn integers_keep_their_digits() {
        for (source, result) in [
            ("asInt(result) == 9007199254740993", text("9007199254740993")),
            ("asInt(result) == 1234567", text("1234567")),
            ("result.id == 9007199254740993", json(r#"{"id":9007199254740993}"#)),
            ("result.id != 9007199254740992", json(r#"{"id":9007199254740993}"#)),
            ("result.id - 1 == 9007199254740992", json(r#"{"id":9007199254740993}"#)),
            ("result.id == 18446744073709551615u", json(r#"{"id":18446744073709551615}"#)),
            ("result.a + result.b == 9223372036854775808u", json(r#"{"a":9223372036854775807,"b":1}"#)),
            ("result > 1000000", Value::Number(1_234_567.0)),
        ] {
            assert!(holds(source, &result), "{source} of {result:?}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_neither_yes_nor_no() {
        for (source, result, expect) in [
            ("asInt(result) > 1", text("1.5"), "asInt: \"1.5\" is not a 64-bit integer"),
            ("asInt(result) > 1", text(""), "asInt: \"\" is not a 64-bit integer"),
            ("asInt(result) > 1", text("9223372036854775808"), "is not a 64-bit integer"),
            ("asInt(result) > 1", Value::Number(1.5), "asInt: 1.5 is not a 64-bit integer"),
            ("asFloat(result) > 1.0", text("abc"), "asFloat: \"abc\" is not a number"),
            ("result > 30", text("45"), "asInt(...)"),
            ("result == 0", text("0"), "\"0\" == 0 compares a text with something else"),
            ("0.5 != result", text("0.5"), "asFloat(...) on a text"),
            ("result == false", text("false"), "such as 'true'"),
            ("!(result != true)", text("true"), "compares a text"),
            ("result in [1, -2]", text("1"), "\"1\" in a list of numbers compares a text"),
            ("!(result in [true])", text("true"), "compares a text"),
            ("result.a > 1", json(r#"{"b":1}"#), "the result has no `a`"),
            ("result[3] == 0", Value::Numbers(vec![]), "the list has no element 3"),
            ("result", text("true"), "evaluates to \"true\", not to true or false"),
            ("asInt(result)", text("1"), "evaluates to 1, not to true or false"),
            ("1 / asInt(result) > 0", text("0"), "division by zero"),
            ("1 % asInt(result) > 0", text("0"), "division by zero"),
            ("result.a * result.b > 0", json(r#"{"a":"x","b":1}"#), "are not both numbers"),
            ("result * result * result * result > 0", json("9223372036854775807"), "exceeds 64 bits"),
            ("result == 'x'", text(&"x".repeat(70_000)), "too large"),
            ("size(result) > 0", json(&format!("[{}0]", "0,".repeat(20_000))), "too large"),
        ] {
            let error = undecided(source, &result);
            assert!(error.contains(expect), "{source} -> {error}");
            assert!(error.len() < 700, "{}", error.len());
        }
    }

    /// The interpreter's order of an object's members differs between evaluations.
    #[test]
    fn the_order_of_members_decides_nothing() {
        let object = r#"{"a":1,"b":0,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}"#;
        for source in [
            format!("90 % {object}"),
            format!("90 in [{object}][{object}]"),
            format!("{{{object}: 1}}.a"),
            format!("{object} < {object}"),
            format!("-{object} == 1"),
            format!("asInt({object}) == 1"),
            format!("size(1 % {object}) == 1"),
            format!("{object}.startsWith('a')"),
            format!("'a'.startsWith({object})"),
            format!("{object}.exists(x, {object}[x] / {object}[x] > 1 || asInt(x) == 1)"),
            format!("{object}.map(x, x)[0] == 'a'"),
            format!("string({object}) == ''"),
        ] {
            let first = Condition::compile(&source).unwrap().holds(&json("1"));
            for _ in 0..50 {
                assert_eq!(Condition::compile(&source).unwrap().holds(&json("1")), first, "{source}");
            }
        }
        assert!(holds("result.map(x, x) == ['a', 'b', 'c']", &json(r#"{"c":1,"a":2,"b":3}"#)));
    }

    #[test]
    fn what_does_not_compile_is_refused_with_its_place() {
        for (source, expect) in [
            ("asInt(result) >", "line 1, column 16"),
            ("asInt(result) > 30 &&\n foo == 1", "line 2, column 2: `foo` is unknown"),
            ("asint(result) > 1", "line 1, column 1: there is no function `asint`"),
            ("", "line 1"),
            ("result.map(x, y) == [1]", "`y` is unknown"),
            ("result.exists(x, x > 1) && x > 2", "`x` is unknown"),
            ("[1].all(1, true)", "argument must be a simple name"),
            ("result == 99999999999999999999", "invalid int literal"),
            ("a.B{c: 1} == 1", "is not supported"),
            ("result.matches('a+')", "no function `matches`"),
            ("result @ 1", "line 1, column 8"),
        ] {
            let error = refused(source);
            assert!(
                error.contains(expect) || (expect == "is not supported" && error.contains("not supported")),
                "{source} -> {error}"
            );
        }
    }

    #[test]
    fn nothing_that_is_written_makes_it_work_for_long() {
        for (source, expect) in [
            ("(".repeat(2000), "nested brackets"),
            ("[".repeat(2000), "nested brackets"),
            ("true?".repeat(400), "nested brackets"),
            (format!("{}1 > 0", "1+".repeat(1000)), "deeper than"),
            (format!("result{} > 0", ".a".repeat(1000)), "deeper than"),
            (format!("result{} > 0", "[0]".repeat(600)), "deeper than"),
            (format!("{}1", "1<".repeat(900)), "deeper than"),
            ("result.all(a, a.all(b, b.all(c, c)))".to_owned(), "nested macros"),
            (" ".repeat(4000), "longer than 2048"),
        ] {
            let error = refused(&source);
            assert!(error.contains(expect), "{source:.40} -> {error}");
        }
        let list = Value::Numbers(vec![1.0; 10_000]);
        assert!(holds("result.all(x, x > 0)", &list));
        let nested = undecided("result.all(x, result.exists(y, y == x + 1.0))", &list);
        assert!(nested.contains("too expensive"), "{nested}");
        let doubled =
            undecided(&format!("size({}result) > 0", "result + ".repeat(90)), &text(&"x".repeat(60_000)));
        assert!(doubled.contains("too expensive"), "{doubled}");
        let few = Value::Numbers((0_u8..100).map(f64::from).collect());
        assert!(holds("result.all(x, result.exists(y, y == x))", &few));
    }
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn any_text_is_refused_or_judges(
            source in r#"(asInt\(|asFloat\(|result|size\(|all\(x,|map\(x,|x|has\(|[-+*/%<>=!&|?:.,()\[\]{}'"0-9u ]){0,14}"#,
            number in any::<f64>(),
        ) {
            if let Ok(condition) = Condition::compile(&source) {
                for result in [Value::Number(number), text("7"), json(r#"{"a":[1,{"b":2}],"x":0.5}"#), json("[1,2]")] {
                    let _verdict = condition.holds(&result);
                }
            }
        }
    }
}
