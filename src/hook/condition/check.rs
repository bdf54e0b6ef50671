//! Checks that a condition has only known names, known functions and a bounded depth.
//!
//! Reads only the parsed expression. Must not recurse: the depth of an expression can be as large as the length of its
//! source.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr};

/// Maximum depth of an expression, and so of the recursion of its evaluation.
const MAX_DEPTH: usize = 96;
/// Maximum nesting of macros.
const MAX_MACROS: usize = 2;
/// Maximum nesting of brackets, checked before parsing.
const MAX_BRACKETS: usize = 32;
/// Functions by name; operators are spelled with `_`, `@` or `-`.
const FUNCTIONS: [&str; 10] =
    ["asInt", "asFloat", "size", "contains", "startsWith", "endsWith", "int", "double", "string", "bool"];

/// Bounds the memory of the parser. Brackets in strings are counted as well, since only an upper bound is needed.
pub(super) fn brackets(source: &str) -> Result<(), String> {
    let mut depth = 0_usize;
    for (index, character) in source.char_indices() {
        match character {
            '(' | '[' | '{' | '?' => depth += 1,
            ')' | ']' | '}' | ':' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_BRACKETS {
            return Err(format!("column {}: more than {MAX_BRACKETS} nested brackets", index + 1));
        }
    }
    Ok(())
}

/// An expression that is still to be checked.
struct Left<'a> {
    expression: &'a IdedExpr,
    depth: usize,
    variables: Vec<&'a str>,
}

/// Finds the first element that a condition must not contain.
pub(super) fn expression(expression: &IdedExpr, source: &str) -> Result<(), String> {
    let mut left = vec![Left { expression, depth: 0, variables: Vec::new() }];
    while let Some(Left { expression, depth, variables }) = left.pop() {
        let wrong = |problem: &str| Err(problem.to_owned());
        if depth > MAX_DEPTH {
            return Err(format!("the expression is nested deeper than {MAX_DEPTH} levels"));
        }
        let mut inside: Vec<&IdedExpr> = Vec::new();
        let mut within_macro: Option<&ComprehensionExpr> = None;
        match &expression.expr {
            Expr::Literal(_) => {}
            Expr::Ident(name) if is_known(name, &variables) => {}
            Expr::Ident(name) => {
                let place = place(source, name);
                return Err(format!("{place}`{name}` is unknown: the measured value is called `result`"));
            }
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                if !FUNCTIONS.contains(&name) && !is_operator(name) {
                    let functions = FUNCTIONS.join(", ");
                    let place = place(source, name);
                    return Err(format!(
                        "{place}there is no function `{name}`; the functions are {functions}"
                    ));
                }
                inside.extend(call.target.as_deref());
                inside.extend(&call.args);
            }
            Expr::Comprehension(all) => {
                if variables.len() >= MAX_MACROS {
                    return Err(format!("more than {MAX_MACROS} nested macros"));
                }
                inside.extend([&all.iter_range, &all.accu_init]);
                within_macro = Some(all);
            }
            Expr::List(list) => inside.extend(&list.elements),
            Expr::Map(map) => {
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return wrong("typed objects are not supported");
                    };
                    inside.extend([&entry.key, &entry.value]);
                }
            }
            Expr::Select(select) => inside.push(&select.operand),
            Expr::Struct(_) => return wrong("typed objects are not supported"),
            Expr::Unspecified => return wrong("an expression is missing"),
        }
        if let Some(all) = within_macro {
            let mut variables = variables.clone();
            variables.push(&all.iter_var);
            for expression in [&all.loop_cond, &all.loop_step, &all.result] {
                left.push(Left { expression, depth: depth + 1, variables: variables.clone() });
            }
        }
        for expression in inside {
            left.push(Left { expression, depth: depth + 1, variables: variables.clone() });
        }
    }
    Ok(())
}

fn is_known(name: &str, variables: &[&str]) -> bool {
    name == "result" || name.starts_with('@') || variables.contains(&name)
}

fn is_operator(name: &str) -> bool {
    name.contains(['_', '@'])
        && name.contains(['!', '+', '-', '*', '/', '%', '<', '>', '=', '&', '|', '?', '[', '@'])
        || name == "-_"
}

/// The position of a name in the source: its first occurrence as a word.
fn place(source: &str, name: &str) -> String {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let alone =
        |start: usize| !source[..start].ends_with(word) && !source[start + name.len()..].starts_with(word);
    let Some((start, _)) = source.match_indices(name).find(|(start, _)| alone(*start)) else {
        return String::new();
    };
    let before = &source[..start];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: ")
}
