//! The server that hooks call: it returns the published answer and records who requested which path.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The published port.
const PORT: u16 = 9091;
const BODY: &str = r#"{"name":"bryan","male":"yes","age":45}"#;
/// The duration of an answer: long enough to detect two requests at once.
const TAKES: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Seen {
    answered: u64,
    now: u32,
    most: u32,
}

/// The server; it listens until dropped. A later cluster of the same test process may get the same address.
pub(crate) struct Asked {
    pub(crate) address: String,
    seen: Arc<Mutex<HashMap<String, Seen>>>,
    over: Arc<AtomicBool>,
    listens: Option<JoinHandle<()>>,
}

impl Asked {
    pub(crate) fn start(ip: &str) -> Self {
        let listener = TcpListener::bind((ip, PORT)).unwrap();
        let seen = Arc::new(Mutex::default());
        let over = Arc::new(AtomicBool::new(false));
        let (shared, ends) = (Arc::clone(&seen), Arc::clone(&over));
        let listens = thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(&stream.unwrap(), &shared));
            }
        });
        Self { address: format!("{ip}:{PORT}"), seen, over, listens: Some(listens) }
    }

    /// Number of requests for the path.
    pub(crate) fn count(&self, path: &str) -> u64 {
        self.seen.lock().unwrap().get(path).map_or(0, |seen| seen.answered)
    }

    /// Maximum number of concurrent requests for the path.
    pub(crate) fn most_at_once(&self, path: &str) -> u32 {
        self.seen.lock().unwrap().get(path).map_or(0, |seen| seen.most)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The thread checks `over` on each connection.
        if TcpStream::connect(&self.address).is_ok()
            && let Some(listens) = self.listens.take()
        {
            let _ = listens.join();
        }
    }
}

fn answer(stream: &TcpStream, seen: &Mutex<HashMap<String, Seen>>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    // Reads the headers up to the empty line.
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    with(seen, &path, |seen| {
        seen.answered += 1;
        seen.now += 1;
        seen.most = seen.most.max(seen.now);
    });
    thread::sleep(TAKES);
    let mut stream = stream;
    let length = BODY.len();
    // A client that was killed meanwhile gets no answer.
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{BODY}");
    with(seen, &path, |seen| seen.now -= 1);
}

fn with(seen: &Mutex<HashMap<String, Seen>>, path: &str, change: impl FnOnce(&mut Seen)) {
    change(seen.lock().unwrap().entry(path.to_owned()).or_default());
}
