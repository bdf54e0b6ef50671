//! Help texts of flags whose default is the default of an API field or a constant, so that no default is written twice.
//! Must not hold a default itself.

use std::fmt::Display;

use clap::ValueEnum;

/// `help` with the `default` that applies when the flag is absent.
pub(super) fn with_default(help: &str, default: impl Display) -> String {
    format!("{help} [default: {default}]")
}

/// The value of a flag of type `A` that stands for the default of the API field of type `T`.
pub(super) fn default_value<A: ValueEnum + Copy + Into<T>, T: Default + PartialEq>() -> String {
    let default = A::value_variants().iter().find(|value| (**value).into() == T::default());
    default
        .and_then(ValueEnum::to_possible_value)
        .map_or_else(String::new, |value| value.get_name().to_owned())
}
