//! Finds the root cause of an error: the part that people can act upon. Adds no advice of its own.

use std::error::Error;
use std::io;

/// The root cause of `error`, and the kind of the deepest I/O error in its chain.
pub fn bottom<'a>(error: &'a (dyn Error + 'static)) -> (&'a (dyn Error + 'static), Option<io::ErrorKind>) {
    let kind = |error: &'a (dyn Error + 'static)| error.downcast_ref::<io::Error>().map(io::Error::kind);
    let mut bottom = error;
    let mut lowest = kind(error);
    while let Some(below) = bottom.source() {
        bottom = below;
        lowest = kind(below).or(lowest);
    }
    (bottom, lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no answer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn the_lowest_failure_of_the_system_is_reported_whatever_lies_below_or_above() {
        let outer = Outer(io::Error::new(io::ErrorKind::TimedOut, "the wire"));
        let (below, kind) = bottom(&outer);
        assert_eq!((below.to_string().as_str(), kind), ("the wire", Some(io::ErrorKind::TimedOut)));
        let (itself, kind) = bottom(&std::fmt::Error);
        assert_eq!((itself.to_string(), kind), (std::fmt::Error.to_string(), None));
    }
}
