//! The server that HookRuns query: it answers with the published document, at the published port. Does not judge anything.

use std::{thread, time::Duration};

use crate::support::http_server::{HttpServer, answer_json};

/// The published port.
const PORT: u16 = 9091;
const BODY: &str = r#"{"name":"bryan","male":"yes","age":45}"#;
/// The duration of an answer: long enough to detect two requests at once.
const TAKES: Duration = Duration::from_millis(200);

/// It listens until dropped. A later cluster of the same test process may get the same address.
pub(crate) fn published_server(ip: &str) -> HttpServer {
    HttpServer::start((ip, PORT), |_, stream| {
        thread::sleep(TAKES);
        answer_json(stream, BODY)
    })
}
