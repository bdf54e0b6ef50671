//! Evaluates any condition over any result: it is refused, undecided, true or false. It must not panic or take
//! long.

use inplace::hook::condition::Condition;
use inplace::hook::value::Value;

pub(super) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    // The first line is the condition, the rest is the measured result.
    let (source, result) = text.split_once('\n').unwrap_or((text, "7"));
    let Ok(condition) = Condition::compile(source) else { return };
    let numbers: Vec<f64> = result.split(',').filter_map(|number| number.parse().ok()).collect();
    for value in [Value::Text(result.to_owned()), Value::of_body(result.as_bytes()), Value::Numbers(numbers)]
    {
        let first = condition.holds(&value);
        assert_eq!(first, condition.holds(&value), "the same condition over the same result says the same");
    }
}
