//! Records which piece of work a panic has ended: a line in a file of its own, written before the process ends.
//!
//! A release build aborts on a panic, so nothing can be caught. A process that is killed from outside leaves no
//! line.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

thread_local! {
    /// The work that this thread is polling.
    static CURRENT: RefCell<Option<Arc<Record>>> = const { RefCell::new(None) };
}

/// Where the panics of one piece of work are recorded.
#[derive(Debug)]
struct Record {
    file: PathBuf,
    line: String,
}

/// A future whose panics are recorded.
#[derive(Debug)]
pub struct Noted<F> {
    record: Arc<Record>,
    future: Pin<Box<F>>,
}

/// Runs `future`; if it panics, a line `id` is appended to `file`.
pub fn noted<F: Future>(file: PathBuf, id: &str, future: Pin<Box<F>>) -> Noted<F> {
    install();
    let record = Record { file, line: one_line(id) };
    Noted { record: Arc::new(record), future }
}

/// The number of panics of `id` that are recorded in `file`.
pub fn count(file: &Path, id: &str) -> usize {
    let line = one_line(id);
    let noted = std::fs::read_to_string(file).unwrap_or_default();
    noted.lines().filter(|noted| *noted == line).count()
}

fn one_line(id: &str) -> String {
    id.replace(['\n', '\r'], " ")
}

impl<F: Future> Future for Noted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let _inside = Inside::of(&this.record);
        this.future.as_mut().poll(context)
    }
}

/// Marks the current work of this thread until it is dropped.
struct Inside(Option<Arc<Record>>);

impl Inside {
    fn of(record: &Arc<Record>) -> Self {
        Self(CURRENT.replace(Some(Arc::clone(record))))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Extends the panic hook, once per process.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let then = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            note();
            then(panic);
        }));
    });
}

/// Appends the line. Not synced: a disk that hangs must not prevent the process from ending.
fn note() {
    let current = CURRENT.try_with(|current| current.try_borrow().ok().and_then(|current| current.clone()));
    let Some(record) = current.ok().flatten() else { return };
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&record.file);
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{}\n", record.line).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_noted_for_the_work_that_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let panics = |id: &'static str| {
            let work = async move {
                tokio::task::yield_now().await;
                assert!(id.is_empty(), "planted");
            };
            noted(file("a"), id, Box::pin(work))
        };
        let beside = tokio::spawn(noted(file("b"), "beside", Box::pin(std::future::pending::<()>())));
        for _ in 0..2 {
            assert!(tokio::spawn(panics("one")).await.unwrap_err().is_panic());
        }
        assert!(
            tokio::spawn(noted(file("b"), "outer", Box::pin(panics("two\n")))).await.unwrap_err().is_panic()
        );
        tokio::spawn(panics("")).await.unwrap();
        // Outside of any work a panic is not recorded.
        assert!(tokio::spawn(async { panic!("planted") }).await.unwrap_err().is_panic());
        beside.abort();
        assert_eq!(["one", "two\n", "three"].map(|id| count(&file("a"), id)), [2, 1, 0]);
        assert_eq!((count(&file("b"), "beside"), file("b").exists()), (0, false));
    }
}
