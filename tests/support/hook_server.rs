//! The server that hooks query: it answers `{"done": N}` with the number set for the path, 0 by default, or never.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;

use super::http_server::{HttpServer, answer_json, never};

/// The numbers by path; `None` for a path that is never answered.
type Numbers = Mutex<BTreeMap<String, Option<u32>>>;

pub(crate) struct HookServer {
    pub(crate) port: u16,
    server: HttpServer,
    numbers: Arc<Numbers>,
    answered: Arc<Mutex<Vec<Query>>>,
}

/// One query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The path without the leading slash.
    pub(crate) path: String,
    /// The time of arrival, before the answer.
    pub(crate) at: Timestamp,
    /// The number in the answer.
    pub(crate) said: u32,
}

impl HookServer {
    /// Listens at a port of its own, at all addresses.
    pub(crate) fn open() -> Self {
        let (numbers, answered) = (Arc::<Numbers>::default(), Arc::<Mutex<Vec<Query>>>::default());
        let (of_server, log) = (Arc::clone(&numbers), Arc::clone(&answered));
        let server = HttpServer::start("0.0.0.0:0", move |request, stream| {
            let path = request.path().trim_start_matches('/').to_owned();
            let number = of_server.lock().unwrap().get(&path).copied().unwrap_or(Some(0));
            let Some(said) = number else { return never(stream) };
            log.lock().unwrap().push(Query { path, at: request.at, said });
            answer_json(stream, &format!("{{\"done\":{said}}}"))
        });
        Self { port: server.port(), server, numbers, answered }
    }

    /// Sets the number for a path.
    pub(crate) fn say(&self, path: &str, number: u32) {
        self.numbers.lock().unwrap().insert(path.to_owned(), Some(number));
    }

    /// Accepts the queries of a path and never answers them.
    pub(crate) fn hang(&self, path: &str) {
        self.numbers.lock().unwrap().insert(path.to_owned(), None);
    }

    /// The answered queries of this path so far.
    pub(crate) fn queries(&self, path: &str) -> Vec<Query> {
        self.answered.lock().unwrap().iter().filter(|query| query.path == path).cloned().collect()
    }

    /// Number of queries of this path so far, with those that have no answer.
    pub(crate) fn count(&self, path: &str) -> u64 {
        self.server.count(&format!("/{path}"))
    }

    /// Waits until the path was queried this many times.
    pub(crate) async fn arrived(&self, path: &str, times: u64) {
        self.server.arrived_at(&format!("/{path}"), times).await;
    }
}
