//! Selects the result in a JSON body: `{$.age}`, `{.age}` or `$.age`.
//!
//! The grammar is RFC 9535 as `jsonpath-rust` parses it, without functions. Must not judge the result.
//!
//! The evaluation is implemented here and not by `jsonpath-rust`, because the body comes from an untrusted server.
//! Its evaluator has no limit, and stores the path of each visited value as text: one `$..*` takes 300 MiB for a
//! body of 200 KiB that nests 60 levels, and `$..*..*..*..*` visits a million values of a body of 250 bytes. Refusing
//! `..`, unions and nested filters would refuse paths that are in use. It also takes two numbers for equal that
//! differ by less than 2e-16, so that `@.rate == 0` holds for 1e-17, and `serde_json`'s numbers lose their spelling.
//! Here each step is counted, and numbers keep their spelling.

use std::cmp::Ordering;

use jsonpath_rust::parser::model::{
    Comparable, Comparison, Filter, FilterAtom, Literal, Segment, Selector, SingularQuery,
    SingularQuerySegment, Test,
};
use jsonpath_rust::parser::parse_json_path;

use crate::hook::json::{Json, NotJson};

/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 512;
/// Maximum nesting of brackets.
const MAX_NESTING: usize = 8;
/// Maximum number of values that the evaluation of one path may visit.
const MAX_STEPS: usize = 200_000;
/// So many bytes of a text or number that is compared count as one value.
const BYTES_OF_A_STEP: usize = 64;
/// Maximum length of a result, in bytes.
const MAX_RESULT: usize = 64 * 1024;

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path is not valid.
    #[error("jsonPath `{path}` is not valid: {problem}")]
    Path {
        /// The path as it was written.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The body is not JSON.
    #[error("the body is not JSON: {0}")]
    Body(#[from] NotJson),
    /// The path selects nothing.
    #[error("the body has nothing at `{0}`")]
    Nothing(String),
    /// The path visits too many values of this body.
    #[error("`{0}` visits more than {MAX_STEPS} values of this body")]
    TooMuch(String),
    /// The result is too long.
    #[error("the value at `{0}` is longer than {MAX_RESULT} bytes")]
    TooLong(String),
}

/// A parsed path.
#[derive(Clone, Debug)]
pub struct Path {
    spelling: String,
    segments: Vec<Segment>,
}

/// The result as text: several hits are joined by a space; a string is used as it is, everything else is JSON
/// with its original spelling.
pub fn select(body: &[u8], path: &str) -> Result<String, PathError> {
    Path::parse(path)?.select(body)
}

impl Path {
    /// Parses a path in any of its spellings.
    pub fn parse(spelling: &str) -> Result<Self, PathError> {
        let wrong = |problem: &str| PathError::Path {
            path: crate::hook::value::cut(spelling, 128),
            problem: problem.to_owned(),
        };
        if spelling.len() > MAX_PATH {
            return Err(wrong("it is longer than 512 bytes"));
        }
        let inner = spelling.trim();
        let inner = match inner.strip_prefix('{') {
            Some(rest) => rest
                .strip_suffix('}')
                .ok_or_else(|| wrong("write one path, as `{$.name}` or `$.name`"))?
                .trim(),
            None => inner,
        };
        let path = if inner.starts_with(['.', '[']) { format!("${inner}") } else { inner.to_owned() };
        if !path.starts_with('$') {
            return Err(wrong("it must begin with `$`, as in `{$.name}` or `$.name`"));
        }
        if nesting(&path) > MAX_NESTING {
            return Err(wrong("too many nested brackets"));
        }
        let query = parse_json_path(&path).map_err(|_| wrong(&hint(&path)))?;
        if query.segments.iter().any(has_function) {
            return Err(wrong("functions are not supported"));
        }
        Ok(Self { spelling: spelling.to_owned(), segments: query.segments })
    }

    /// The result of this path in `body`.
    pub fn select(&self, body: &[u8]) -> Result<String, PathError> {
        let body = Json::parse(body)?;
        let mut walk = Walk { root: &body, steps: 0 };
        let hits = walk
            .segments(&self.segments, vec![&body])
            .map_err(|Spent| PathError::TooMuch(self.spelling.clone()))?;
        if hits.is_empty() {
            return Err(PathError::Nothing(self.spelling.clone()));
        }
        let mut result = String::new();
        for (index, hit) in hits.iter().enumerate() {
            if index > 0 {
                result.push(' ');
            }
            result.push_str(&hit.text());
            if result.len() > MAX_RESULT {
                return Err(PathError::TooLong(self.spelling.clone()));
            }
        }
        Ok(result)
    }
}

/// The nesting depth of brackets. Brackets in strings are counted as well, since only an upper bound is needed.
fn nesting(path: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    for character in path.chars() {
        match character {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn hint(path: &str) -> String {
    if path.contains('-') || path.contains('\\') {
        "a name with other characters than letters, digits and `_` is written as `$['my-name']`".to_owned()
    } else {
        "it must follow RFC 9535, as in `$.a.b`, `$.list[0]`, `$['my-name']`, `$.list[?@.ready == true].name`"
            .to_owned()
    }
}

fn has_function(segment: &Segment) -> bool {
    fn in_selector(selector: &Selector) -> bool {
        matches!(selector, Selector::Filter(filter) if in_filter(filter))
    }
    fn in_filter(filter: &Filter) -> bool {
        match filter {
            Filter::Or(list) | Filter::And(list) => list.iter().any(in_filter),
            Filter::Atom(FilterAtom::Filter { expr, .. }) => in_filter(expr),
            Filter::Atom(FilterAtom::Test { expr, .. }) => match &**expr {
                Test::RelQuery(segments) => segments.iter().any(has_function),
                Test::AbsQuery(query) => query.segments.iter().any(has_function),
                Test::Function(_) => true,
            },
            Filter::Atom(FilterAtom::Comparison(comparison)) => {
                let (left, right) = comparison.vals();
                [left, right].into_iter().any(|side| matches!(side, Comparable::Function(_)))
            }
        }
    }
    match segment {
        Segment::Descendant(inner) => has_function(inner),
        Segment::Selector(selector) => in_selector(selector),
        Segment::Selectors(list) => list.iter().any(in_selector),
    }
}

/// The evaluation has visited too many values.
struct Spent;

/// The evaluation of a path in one document.
struct Walk<'a> {
    root: &'a Json,
    steps: usize,
}

impl<'a> Walk<'a> {
    fn step(&mut self) -> Result<(), Spent> {
        self.spend(1)
    }

    /// Counts the bytes that a comparison reads.
    fn read(&mut self, bytes: usize) -> Result<(), Spent> {
        self.spend(bytes / BYTES_OF_A_STEP)
    }

    fn spend(&mut self, steps: usize) -> Result<(), Spent> {
        self.steps += steps;
        if self.steps > MAX_STEPS { Err(Spent) } else { Ok(()) }
    }

    /// The member of that name. The search in a map counts as work as well.
    fn member(&mut self, node: &'a Json, name: &str) -> Result<Option<&'a Json>, Spent> {
        if let Json::Map(members) = node {
            self.spend(members.len() / 8)?;
        }
        self.step()?;
        Ok(node.get(name))
    }

    fn segments(&mut self, segments: &[Segment], mut nodes: Vec<&'a Json>) -> Result<Vec<&'a Json>, Spent> {
        for segment in segments {
            let mut next = Vec::new();
            for node in nodes {
                self.segment(segment, node, &mut next)?;
            }
            nodes = next;
        }
        Ok(nodes)
    }

    fn segment(&mut self, segment: &Segment, node: &'a Json, hits: &mut Vec<&'a Json>) -> Result<(), Spent> {
        self.step()?;
        match segment {
            Segment::Descendant(inner) => {
                self.segment(inner, node, hits)?;
                for child in children(node) {
                    self.segment(segment, child, hits)?;
                }
                Ok(())
            }
            Segment::Selector(selector) => self.selector(selector, node, hits),
            Segment::Selectors(list) => {
                list.iter().try_for_each(|selector| self.selector(selector, node, hits))
            }
        }
    }

    fn selector(
        &mut self,
        selector: &Selector,
        node: &'a Json,
        hits: &mut Vec<&'a Json>,
    ) -> Result<(), Spent> {
        self.step()?;
        match (selector, node) {
            (Selector::Name(name), _) => hits.extend(self.member(node, name)?),
            (Selector::Index(index), Json::List(list)) => hits.extend(at(list, *index)),
            (Selector::Slice(start, end, step), Json::List(list)) => {
                for index in slice(list.len(), *start, *end, *step) {
                    self.step()?;
                    hits.extend(list.get(index));
                }
            }
            (Selector::Wildcard, _) => {
                for child in children(node) {
                    self.step()?;
                    hits.push(child);
                }
            }
            (Selector::Filter(filter), _) => {
                for child in children(node) {
                    if self.holds(filter, child)? {
                        hits.push(child);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn holds(&mut self, filter: &Filter, node: &'a Json) -> Result<bool, Spent> {
        self.step()?;
        match filter {
            Filter::Or(list) => {
                for item in list {
                    if self.holds(item, node)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Filter::And(list) => {
                for item in list {
                    if !self.holds(item, node)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Filter::Atom(FilterAtom::Filter { expr, not }) => Ok(self.holds(expr, node)? != *not),
            Filter::Atom(FilterAtom::Test { expr, not }) => {
                let hits = match &**expr {
                    Test::RelQuery(segments) => self.segments(segments, vec![node])?,
                    Test::AbsQuery(query) => self.segments(&query.segments, vec![self.root])?,
                    Test::Function(_) => Vec::new(),
                };
                Ok(hits.is_empty() == *not)
            }
            Filter::Atom(FilterAtom::Comparison(comparison)) => {
                let (left, right) = comparison.vals();
                let (left, right) = (self.side(left, node)?, self.side(right, node)?);
                let order = self.order(left.as_ref(), right.as_ref())?;
                Ok(match **comparison {
                    Comparison::Eq(..) => order.is_some_and(Ordering::is_eq),
                    Comparison::Ne(..) => order.is_none_or(Ordering::is_ne),
                    Comparison::Lt(..) => order.is_some_and(Ordering::is_lt),
                    Comparison::Lte(..) => order.is_some_and(Ordering::is_le),
                    Comparison::Gt(..) => order.is_some_and(Ordering::is_gt),
                    Comparison::Gte(..) => order.is_some_and(Ordering::is_ge),
                })
            }
        }
    }

    fn side(&mut self, side: &Comparable, node: &'a Json) -> Result<Option<Scalar<'a>>, Spent> {
        let found = match side {
            Comparable::Literal(literal) => return Ok(Some(Scalar::literal(literal))),
            Comparable::SingularQuery(SingularQuery::Current(segments)) => self.single(node, segments)?,
            Comparable::SingularQuery(SingularQuery::Root(segments)) => self.single(self.root, segments)?,
            Comparable::Function(_) => None,
        };
        if let Some(Json::Number(spelling)) = found {
            self.read(spelling.len())?;
        }
        Ok(found.map(Scalar::json))
    }

    fn single(
        &mut self,
        mut node: &'a Json,
        segments: &[SingularQuerySegment],
    ) -> Result<Option<&'a Json>, Spent> {
        for segment in segments {
            let next = match (segment, node) {
                (SingularQuerySegment::Name(name), _) => self.member(node, name)?,
                (SingularQuerySegment::Index(index), Json::List(list)) => {
                    self.step()?;
                    at(list, *index)
                }
                (SingularQuerySegment::Index(_), _) => None,
            };
            match next {
                Some(next) => node = next,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// How two operands are ordered; `None` if they are neither equal nor ordered. Two missing values are equal, a
    /// missing value and a present one are not.
    fn order(
        &mut self,
        left: Option<&Scalar<'_>>,
        right: Option<&Scalar<'_>>,
    ) -> Result<Option<Ordering>, Spent> {
        let (Some(left), Some(right)) = (left, right) else {
            return Ok((left.is_none() && right.is_none()).then_some(Ordering::Equal));
        };
        if let (Some(left), Some(right)) = (left.text(), right.text()) {
            self.read(left.len().min(right.len()))?;
            return Ok(Some(left.cmp(right)));
        }
        let equal = match (left, right) {
            (Scalar::Number(left), Scalar::Number(right)) => return Ok(left.partial_cmp(right)),
            (Scalar::Other(left), Scalar::Other(right)) => self.equal(left, right)?,
            _ => left == right,
        };
        Ok(equal.then_some(Ordering::Equal))
    }

    /// Whether two values are equal. Each value that is compared counts as work.
    fn equal(&mut self, left: &Json, right: &Json) -> Result<bool, Spent> {
        self.step()?;
        match (left, right) {
            (Json::List(left), Json::List(right)) if left.len() == right.len() => {
                for (left, right) in left.iter().zip(right) {
                    if !self.equal(left, right)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Json::Map(left), Json::Map(right)) if left.len() == right.len() => {
                for ((name, left), (other, right)) in left.iter().zip(right) {
                    self.read(name.len())?;
                    if name != other || !self.equal(left, right)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Json::Text(text) | Json::Number(text), _) => {
                self.read(text.len())?;
                Ok(left == right)
            }
            _ => Ok(left == right),
        }
    }
}

fn children(node: &Json) -> impl Iterator<Item = &Json> {
    let (list, map): (&[Json], &[(String, Json)]) = match node {
        Json::List(list) => (list, &[]),
        Json::Map(map) => (&[], map),
        _ => (&[], &[]),
    };
    list.iter().chain(map.iter().map(|(_, value)| value))
}

fn at(list: &[Json], index: i64) -> Option<&Json> {
    let index = if index < 0 { index.checked_add(i64::try_from(list.len()).ok()?)? } else { index };
    list.get(usize::try_from(index).ok()?)
}

/// The indexes of a slice, with the bounds of RFC 9535 2.3.4.2.2.
fn slice(length: usize, start: Option<i64>, end: Option<i64>, step: Option<i64>) -> Vec<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1);
    let from_end = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let mut indexes = Vec::new();
    let mut add = |index: i64| indexes.extend(usize::try_from(index));
    if step > 0 {
        let end = from_end(end.unwrap_or(length)).clamp(0, length);
        let mut index = from_end(start.unwrap_or(0)).clamp(0, length);
        while index < end {
            add(index);
            index = index.saturating_add(step);
        }
    } else if step < 0 {
        let mut index = from_end(start.unwrap_or(length - 1)).clamp(-1, length - 1);
        let end = end.map_or(-1, |end| from_end(end).clamp(-1, length - 1));
        while index > end {
            add(index);
            index = index.saturating_add(step);
        }
    }
    indexes
}

/// An operand of a comparison in a filter.
#[derive(Debug, PartialEq)]
enum Scalar<'a> {
    Null,
    Bool(bool),
    Number(f64),
    Text(&'a str),
    Owned(String),
    Other(&'a Json),
}

impl<'a> Scalar<'a> {
    fn json(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(yes) => Self::Bool(*yes),
            Json::Number(spelling) => spelling.parse().map_or(Self::Other(json), Self::Number),
            Json::Text(text) => Self::Text(text),
            other => Self::Other(other),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "integers of a path are at most 2^53")]
    fn literal(literal: &Literal) -> Self {
        match literal {
            Literal::Int(number) => Self::Number(*number as f64),
            Literal::Float(number) => Self::Number(*number),
            Literal::String(text) => Self::Owned(text.clone()),
            Literal::Bool(yes) => Self::Bool(*yes),
            Literal::Null => Self::Null,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Owned(text) => Some(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"name":"bryan","male":"yes","age":45,"big":1234567,"id":9007199254740993,"rate":1.50,"ok":true,
        "none":null,"my-name":"x","list":[1,2,3],"deep":{"a":{"b":"c"}},
        "pods":[{"name":"a","ready":true,"n":1},{"name":"b","ready":false,"n":2},{"name":"c","n":3}]}"#;

    fn found(path: &str) -> String {
        select(BODY.as_bytes(), path).unwrap()
    }

    fn error(path: &str) -> String {
        select(BODY.as_bytes(), path).unwrap_err().to_string()
    }

    #[test]
    fn every_spelling_of_a_path_finds_the_same() {
        for path in ["{$.age}", "$.age", "{.age}", ".age", " { $.age } ", "$['age']", "{['age']}"] {
            assert_eq!(found(path), "45", "{path}");
        }
    }

    #[test]
    fn results_are_text_and_numbers_keep_their_digits() {
        for (path, expect) in [
            ("$.big", "1234567"),
            ("$.id", "9007199254740993"),
            ("$.rate", "1.50"),
            ("$.ok", "true"),
            ("$.none", "null"),
            ("$.name", "bryan"),
            ("$.list", "[1,2,3]"),
            ("$.deep.a", r#"{"b":"c"}"#),
            ("$['my-name']", "x"),
            ("$.list[*]", "1 2 3"),
            ("$.list[-1]", "3"),
            ("$.list[0:2]", "1 2"),
            ("$.list[::-1]", "3 2 1"),
            ("$.list[0,0,2]", "1 1 3"),
            ("$..b", "c"),
            ("$.pods[*].name", "a b c"),
            ("$.pods[?@.ready == true].name", "a"),
            ("$.pods[?(@.ready)].name", "a b"),
            ("$.pods[?!@.ready].name", "c"),
            ("$.pods[?@.n >= 2 && @.name != 'c'].name", "b"),
            ("$.pods[?@.n < 2 || @.n > 2].name", "a c"),
            ("$.pods[?(@.n == $.list[1])].name", "b"),
            ("$.pods[?@.name >= 'b'].n", "2 3"),
        ] {
            assert_eq!(found(path), expect, "{path}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (path, expect) in [
            ("$.nothing", "the body has nothing at `$.nothing`"),
            ("$.list[7]", "nothing"),
            ("{$.age", "write one path"),
            ("{.a} {.b}", "is not valid"),
            ("age", "it must begin with `$`"),
            ("", "it must begin with `$`"),
            ("$.", "is not valid"),
            ("$.my-name", "`$['my-name']`"),
            ("$.list[?length(@) > 1]", "functions are not supported"),
            ("$.list[?match(@, 'a')]", "functions are not supported"),
        ] {
            assert!(error(path).contains(expect), "{path} -> {}", error(path));
        }
        assert!(error(&format!("${}", "[?(@".repeat(100))).contains("nested brackets"));
        assert!(error(&format!("$.{}", "a".repeat(600))).contains("longer than 512"));
        assert_eq!(
            select(b"<html>", "$.a").unwrap_err().to_string(),
            "the body is not JSON: a value is missing at byte 0"
        );
    }

    /// Compares the same two values again and again, for each value of `$[2]`.
    fn repeated(comparison: &str) -> String {
        format!("$[2][?{}]", [comparison; 35].join("||"))
    }

    #[test]
    fn work_and_result_are_bounded() {
        let nested = format!("{}1{}", "[1,".repeat(60), "]".repeat(60));
        for path in [format!("${}", "[*,*]".repeat(60)), format!("${}", "..*".repeat(60))] {
            assert_eq!(select(nested.as_bytes(), &path), Err(PathError::TooMuch(path.clone())), "{path}");
        }
        let members = (0..30_000).map(|n| format!("\"k{n}\":{n}")).collect::<Vec<_>>().join(",");
        let wide = format!("{{\"l\":[{}0],{members},\"z\":0}}", "0,".repeat(30_000));
        let path = "$.l[?@ == $.z]".to_owned();
        assert_eq!(select(wide.as_bytes(), &path), Err(PathError::TooMuch(path)));
        let (number, text) = ("9".repeat(100_000), "x".repeat(100_000));
        let texts = format!("[\"{text}a\",\"{text}b\",[0,0,0,0,0,0,0,0,0,0]]");
        let tree = format!("[{}0]", "0,".repeat(20_000));
        let deep = format!("{}1{}", "[".repeat(60), "]".repeat(60));
        let wide = format!("[{}0]", "0,".repeat(5000));
        let deeply = format!("$[1][?${}==2]", "[0]".repeat(60));
        for (body, path) in [
            (texts.clone(), repeated("$[0]>$[1]")),
            (texts, repeated("$[0]==$[1]")),
            (format!("[{number},0,[0,0,0,0,0,0,0,0,0,0]]"), repeated("$[0]<0")),
            (format!("[{tree},[{}1],[0,0]]", "0,".repeat(20_000)), repeated("$[0]==$[1]")),
            (format!("[{deep},{wide}]"), deeply),
        ] {
            assert_eq!(select(body.as_bytes(), &path), Err(PathError::TooMuch(path.clone())), "{path}");
        }
        let long = format!("[\"{}\"]", "x".repeat(70_000));
        assert_eq!(select(long.as_bytes(), "$[0]"), Err(PathError::TooLong("$[0]".into())));
    }
}
