//! The log of the calls that the fake runtime has received.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::Code;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The name of the call in the interface.
    pub(crate) name: &'static str,
    /// The ID that the call concerns: a container's, a sandbox's (for a creation), or an image.
    pub(crate) id: String,
    /// The same object in readable form: `app#1`, `fence app#2`, `shop/web-0`, `img:v2`.
    pub(crate) about: String,
    pub(crate) outcome: Outcome,
}

/// The result that the caller has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The call is not answered yet, or the caller has stopped waiting.
    Open,
    /// The call has succeeded.
    Ok,
    /// The call has failed.
    Failed(Code),
    /// The connection was closed instead of an answer.
    Lost,
}

impl Call {
    /// True for a mutating call.
    pub(crate) fn mutates(&self) -> bool {
        let reads = ["Version", "Status", "ReopenContainerLog", "ImageFsInfo"];
        !(reads.contains(&self.name) || self.name.starts_with("List") || self.name.ends_with("Status"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.about)?;
        match self.outcome {
            Outcome::Open => write!(f, ": no answer"),
            Outcome::Ok => Ok(()),
            Outcome::Failed(code) => write!(f, ": {code:?}"),
            Outcome::Lost => write!(f, ": lost"),
        }
    }
}

/// All calls. Numbers stay valid across [`Log::clear`].
#[derive(Default)]
pub(super) struct Log(Mutex<Book>);

#[derive(Default)]
struct Book {
    forgotten: usize,
    calls: Vec<Call>,
    under_way: BTreeSet<usize>,
}

/// A call in progress, as long as its caller waits for it.
pub(super) struct Entry<'a> {
    log: &'a Log,
    number: usize,
}

impl Log {
    pub(super) fn begin(&self, name: &'static str, id: &str, about: &str) -> Entry<'_> {
        let mut book = self.book();
        let (id, about) = (id.to_owned(), about.to_owned());
        book.calls.push(Call { name, id, about, outcome: Outcome::Open });
        let number = book.forgotten + book.calls.len() - 1;
        book.under_way.insert(number);
        Entry { log: self, number }
    }

    /// Marks all calls in progress as lost. Called before the connections are closed, since these calls will not be
    /// answered.
    pub(super) fn lose(&self) {
        let mut book = self.book();
        for number in std::mem::take(&mut book.under_way) {
            book.note(number, Outcome::Lost);
        }
    }

    pub(super) fn all(&self) -> Vec<Call> {
        self.book().calls.clone()
    }

    pub(super) fn clear(&self) {
        let mut book = self.book();
        book.forgotten += book.calls.len();
        book.calls.clear();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn note(&mut self, number: usize, outcome: Outcome) {
        let index = number.checked_sub(self.forgotten);
        if let Some(call) = index.and_then(|index| self.calls.get_mut(index)) {
            call.outcome = outcome;
        }
    }
}

impl Entry<'_> {
    pub(super) fn end(self, outcome: Outcome) {
        let mut book = self.log.book();
        if book.under_way.remove(&self.number) {
            book.note(self.number, outcome);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.log.book().under_way.remove(&self.number);
    }
}
