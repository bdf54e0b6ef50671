//! An HTTP server that hooks query: it answers `{"done": N}` with the value set for the path, 0 by default, and
//! records the time of each request.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use jiff::Timestamp;

/// The server. It runs as long as the process.
#[derive(Clone)]
pub(crate) struct HookServer {
    pub(crate) port: u16,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    says: BTreeMap<String, u32>,
    asked: Vec<Asked>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The path without the leading slash.
    pub(crate) path: String,
    /// The time of arrival, before the answer.
    pub(crate) at: Timestamp,
    pub(crate) said: u32,
}

impl HookServer {
    pub(crate) fn open() -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Mutex<Shared>>::default();
        let hook_server = Self { port, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(stream, &shared));
            }
        });
        hook_server
    }

    pub(crate) fn say(&self, path: &str, says: u32) {
        self.shared.lock().unwrap().says.insert(path.to_owned(), says);
    }

    /// The requests for this path so far.
    pub(crate) fn asked(&self, path: &str) -> Vec<Asked> {
        let shared = self.shared.lock().unwrap();
        shared.asked.iter().filter(|asked| asked.path == path).cloned().collect()
    }
}

#[allow(clippy::disallowed_methods, reason = "the node's time is the machine's")]
fn answer(mut stream: TcpStream, shared: &Mutex<Shared>) {
    let mut head = [0; 4096];
    let read = stream.read(&mut head).unwrap_or(0);
    let head = String::from_utf8_lossy(&head[..read]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let at = Timestamp::now();
    let said = shared.lock().unwrap().says.get(&path).copied().unwrap_or(0);
    let body = format!("{{\"done\":{said}}}");
    let length = body.len();
    let kind = "Content-Type: application/json\r\nConnection: close";
    let answer = format!("HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
    shared.lock().unwrap().asked.push(Asked { path, at, said });
    let _ = stream.write_all(answer.as_bytes());
}
