//! Parses `NAME=VALUE`, the form of hook arguments.

use std::str::FromStr;

use crate::api::request::HookArg;

/// A parsed hook argument.
#[derive(Clone, Debug)]
pub(super) struct NamedValue(pub(super) HookArg);

impl FromStr for NamedValue {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Self(HookArg { name: name.to_owned(), value: value.to_owned() }))
            }
            _ => Err("write NAME=VALUE"),
        }
    }
}
