//! The forms of a result for programs, with kubectl's names: `json`, `yaml`, `name`, `jsonpath=...` and
//! `custom-columns=...`.
//! Only formats; `output` writes.

use std::sync::Arc;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::json_path::{Path, Template};
use crate::cli::output::{self, line, message};

/// A result that has a name.
pub(super) trait HasName: Serialize {
    /// The name for `-o name`, as kubectl writes it: `pod/web`.
    fn full_name(&self) -> String;
}

/// The form of a result for programs.
#[derive(Clone, Debug)]
pub(super) enum Data {
    /// On one line.
    Json,
    /// A document.
    Yaml,
    /// Only names, one per line.
    Name,
    /// The text of a template.
    JsonPath(Arc<Template>),
    /// A table with chosen columns.
    Columns(Arc<Columns>),
}

/// A form for people or for programs.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// Text for people.
    Table,
    /// The table with more columns.
    Wide,
    /// For programs.
    Data(Data),
}

impl Data {
    fn parse(text: &str) -> Result<Self, String> {
        let invalid = |error: &dyn std::fmt::Display| error.to_string();
        match text.split_once('=').unwrap_or((text, "")) {
            ("json", "") => Ok(Self::Json),
            ("yaml", "") => Ok(Self::Yaml),
            ("name", "") => Ok(Self::Name),
            ("jsonpath", "") => {
                Err("write jsonpath=TEMPLATE, for example jsonpath='{.items[*].name}'".to_owned())
            }
            ("jsonpath", template) => Template::parse(template)
                .map(|found| Self::JsonPath(Arc::new(found)))
                .map_err(|error| invalid(&error)),
            ("custom-columns", columns) => {
                Columns::parse(columns).map(|found| Self::Columns(Arc::new(found)))
            }
            (other, _) => Err(format!(
                "the form `{other}` is not supported: write json, yaml, name, jsonpath=TEMPLATE or custom-columns=COLUMNS"
            )),
        }
    }

    /// Prints one result.
    pub(super) fn print(&self, one: &impl HasName) {
        match self {
            Self::Json => output::json(one),
            Self::Yaml => output::yaml(one),
            Self::Name => output::raw(&one.full_name()),
            Self::JsonPath(template) => with_value(one, |value| output::text(&template.text(value))),
            Self::Columns(columns) => {
                with_value(one, |value| columns.print(std::slice::from_ref(value), true));
            }
        }
    }

    /// Prints one result of several that come one by one. The headings are above the first one.
    pub(super) fn print_next(&self, one: &impl HasName, is_first: bool) {
        match self {
            Self::Columns(columns) => {
                with_value(one, |value| columns.print(std::slice::from_ref(value), is_first));
            }
            _ => self.print(one),
        }
    }

    /// Prints a list. For a template it is the member `items` of an object, as in kubectl.
    pub(super) fn print_list<T: HasName>(&self, list: &[T]) {
        match self {
            Self::Json => output::json(&list),
            Self::Yaml => output::yaml(&list),
            Self::Name => list.iter().for_each(|one| output::raw(&one.full_name())),
            Self::JsonPath(template) => {
                with_value(&list, |value| output::text(&template.text(&json!({ "items": value }))));
            }
            Self::Columns(columns) => {
                with_value(&list, |value| columns.print(value.as_array().map_or(&[], Vec::as_slice), true));
            }
        }
    }
}

fn with_value(result: &impl Serialize, print: impl FnOnce(&Value)) {
    match serde_json::to_value(result) {
        Ok(value) => print(&value),
        Err(error) => message(&format!("the result cannot be written as JSON: {error}")),
    }
}

/// Columns of a table: the heading and the path of each.
#[derive(Clone, Debug)]
pub(super) struct Columns(Vec<(String, Path)>);

impl Columns {
    fn parse(text: &str) -> Result<Self, String> {
        let column = |text: &str| {
            let (heading, path) = text.split_once(':').filter(|(heading, _)| !heading.is_empty())?;
            Some((heading.to_owned(), path.trim_start_matches('{').trim_end_matches('}').to_owned()))
        };
        let mut columns = Vec::new();
        for text in pieces(text) {
            let (heading, path) = column(text)
                .ok_or_else(|| format!("`{text}` is not a column: write HEADING:.path[,HEADING:.path]"))?;
            columns.push((heading, Path::parse(&path).map_err(|error| error.to_string())?));
        }
        Ok(Self(columns))
    }

    fn print(&self, rows: &[Value], has_headings: bool) {
        for text in self.lines(rows).iter().skip(usize::from(!has_headings)) {
            line(text);
        }
    }

    fn lines(&self, rows: &[Value]) -> Vec<String> {
        let headings: Vec<_> = self.0.iter().map(|(heading, _)| heading.as_str()).collect();
        let cell = |row: &Value, path: &Path| {
            let texts = path.texts(row, row);
            if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") }
        };
        let cells: Vec<Vec<_>> =
            rows.iter().map(|row| self.0.iter().map(|(_, path)| cell(row, path)).collect()).collect();
        output::rows(&headings, &cells, &mut Vec::new())
    }
}

/// The columns, split at commas that are outside of brackets.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// Parses `-o` of commands without a wide table.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataParser;

impl TypedValueParser for DataParser {
    type Value = Data;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Data, clap::Error> {
        StringValueParser::new().try_map(|text| Data::parse(&text)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(values().into_iter()))
    }
}

/// Parses `-o` of commands that have one form for people to choose, beside those for programs.
#[derive(Clone, Debug)]
pub(super) struct FormParser {
    word: &'static str,
    help: &'static str,
    form: Form,
}

impl FormParser {
    /// For commands with a wide table.
    pub(super) const WIDE: Self = Self { word: "wide", help: "With more columns", form: Form::Wide };
    /// For a command whose default form is `text`.
    pub(super) const TEXT: Self = Self { word: "text", help: "For people", form: Form::Table };
}

impl TypedValueParser for FormParser {
    type Value = Form;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Form, clap::Error> {
        if value == self.word {
            return Ok(self.form.clone());
        }
        DataParser.parse_ref(command, arg, value).map(Form::Data)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let own = PossibleValue::new(self.word).help(self.help);
        Some(Box::new(std::iter::once(own).chain(values())))
    }
}

fn values() -> [PossibleValue; 5] {
    [
        PossibleValue::new("json").help("On one line"),
        PossibleValue::new("yaml").help("A document"),
        PossibleValue::new("name").help("The names, one per line"),
        PossibleValue::new("jsonpath=TEMPLATE").help("kubectl's template over the JSON; a list is `.items`"),
        PossibleValue::new("custom-columns=HEADING:.path,...").help("A table with these columns"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_kubectl() {
        let rows = [json!({"name": "a", "list": [1, 2]}), json!({"name": "b", "list": []})];
        let columns = Columns::parse("NAME:.name,FIRST:.list[0,1],ALL:{.list[*]},NO:.no").unwrap();
        assert_eq!(
            columns.lines(&rows),
            ["NAME  FIRST   ALL     NO", "a     1,2     1,2     <none>", "b     <none>  <none>  <none>"]
        );
        for (text, says) in [
            ("", "is not a column"),
            ("NAME", "is not a column"),
            (":.a", "is not a column"),
            ("N:x", "begins with"),
        ] {
            let error = Columns::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_form_that_is_not_supported_is_named() {
        for (text, says) in [
            ("go-template={{.x}}", "the form `go-template` is not supported"),
            ("jsonpath", "write jsonpath=TEMPLATE"),
            ("jsonpath={if}", "`{if}` is not supported"),
            ("json=x", "not supported"),
        ] {
            let error = Data::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
