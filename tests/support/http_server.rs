//! An HTTP server for tests: it answers as a test says and records the requests. A thread serves each connection, and a
//! connection has one request.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use jiff::Timestamp;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::sync::watch;

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// `GET /path?query`.
    pub(crate) line: String,
    /// The header lines.
    pub(crate) head: String,
    pub(crate) body: String,
    /// The time of arrival, before the answer.
    pub(crate) at: Timestamp,
}

impl Request {
    /// The path, without the query.
    pub(crate) fn path(&self) -> &str {
        let target = self.line.split(' ').nth(1).unwrap_or_default();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// The query, empty without one.
    pub(crate) fn query(&self) -> &str {
        self.line.split_once('?').map_or("", |(_, query)| query)
    }

    pub(crate) fn has(&self, header: &str) -> bool {
        self.head.to_ascii_lowercase().contains(&header.to_ascii_lowercase())
    }
}

/// A connection, with or without TLS.
pub(crate) trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Sends an answer with this status code, these header lines and this body.
pub(crate) fn answer(stream: &mut dyn Stream, code: u16, headers: &str, body: &str) -> io::Result<()> {
    let head =
        format!("HTTP/1.1 {code} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    send(stream, &(head + body))
}

/// Sends an answer with a JSON body.
pub(crate) fn answer_json(stream: &mut dyn Stream, body: &str) -> io::Result<()> {
    answer(stream, 200, "Content-Type: application/json\r\n", body)
}

/// Sends bytes as they are.
pub(crate) fn send(stream: &mut dyn Stream, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Never answers; returns when the client has disconnected.
pub(crate) fn never(stream: &mut dyn Stream) -> io::Result<()> {
    while stream.read(&mut [0; 1024])? > 0 {}
    Ok(())
}

/// The number of requests for one path that are being served.
#[derive(Clone, Copy, Default)]
struct Concurrent {
    now: usize,
    most: usize,
}

type Handler = dyn Fn(&Request, &mut dyn Stream) -> io::Result<()> + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    tls: Option<Arc<ServerConfig>>,
    requests: watch::Sender<Vec<Request>>,
    concurrent: Mutex<HashMap<String, Concurrent>>,
    stopping: AtomicBool,
}

/// A running server; it accepts connections until dropped.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens at `address`; `handler` answers each request.
    pub(crate) fn start<H>(address: impl ToSocketAddrs, handler: H) -> Self
    where
        H: Fn(&Request, &mut dyn Stream) -> io::Result<()> + Send + Sync + 'static,
    {
        Self::start_with(address, None, handler)
    }

    /// The same with TLS.
    pub(crate) fn start_with<H>(address: impl ToSocketAddrs, tls: Option<ServerConfig>, handler: H) -> Self
    where
        H: Fn(&Request, &mut dyn Stream) -> io::Result<()> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            tls: tls.map(Arc::new),
            requests: watch::Sender::new(Vec::new()),
            concurrent: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if of_thread.stopping.load(Ordering::Relaxed) {
                    break;
                }
                let shared = Arc::clone(&of_thread);
                // A client that has disconnected gets no answer.
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.borrow().clone()
    }

    /// Number of requests for the path so far.
    pub(crate) fn count(&self, path: &str) -> u64 {
        count(&self.shared.requests.borrow(), path)
    }

    /// Maximum number of concurrent requests for the path.
    pub(crate) fn most_at_once(&self, path: &str) -> usize {
        self.shared.concurrent.lock().unwrap().get(path).map_or(0, |concurrent| concurrent.most)
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn arrived(&self, times: usize) {
        let mut requests = self.shared.requests.subscribe();
        requests.wait_for(|requests| requests.len() >= times).await.unwrap();
    }

    /// Waits until the path was requested this many times.
    pub(crate) async fn arrived_at(&self, path: &str, times: u64) {
        let mut requests = self.shared.requests.subscribe();
        requests.wait_for(|requests| count(requests, path) >= times).await.unwrap();
    }
}

fn count(requests: &[Request], path: &str) -> u64 {
    let of_path = requests.iter().filter(|request| request.path() == path);
    u64::try_from(of_path.count()).unwrap()
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // The thread reads `stopping` at each connection.
        if TcpStream::connect(self.address).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            let ended = accepting.join();
            assert!(ended.is_ok() || thread::panicking(), "the server itself has failed");
        }
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let Some(tls) = &self.tls else { return self.answer(&mut stream) };
        let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let answered = self.answer(&mut stream);
        stream.conn.send_close_notify();
        stream.flush()?;
        answered
    }

    fn answer(&self, stream: &mut dyn Stream) -> io::Result<()> {
        let request = read(stream)?;
        let path = request.path().to_owned();
        self.with(&path, |concurrent| {
            concurrent.now += 1;
            concurrent.most = concurrent.most.max(concurrent.now);
        });
        self.requests.send_modify(|requests| requests.push(request.clone()));
        let answered = (self.handler)(&request, stream);
        self.with(&path, |concurrent| concurrent.now -= 1);
        answered
    }

    fn with(&self, path: &str, change: impl FnOnce(&mut Concurrent)) {
        change(self.concurrent.lock().unwrap().entry(path.to_owned()).or_default());
    }
}

#[allow(clippy::disallowed_methods, reason = "a node's time is the machine's")]
fn read(stream: &mut dyn Stream) -> io::Result<Request> {
    let mut text = Vec::new();
    let head = loop {
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        more(stream, &mut text)?;
    };
    let at = Timestamp::now();
    let all = String::from_utf8_lossy(&text[..head]).into_owned();
    let (line, lines) = all.split_once("\r\n").unwrap_or_default();
    let length = lines
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
    while text.len() < head + length.unwrap_or(0) {
        more(stream, &mut text)?;
    }
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    Ok(Request {
        line,
        head: lines.to_owned(),
        body: String::from_utf8_lossy(&text[head..]).into_owned(),
        at,
    })
}

fn more(stream: &mut dyn Stream, text: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 4096];
    let count = stream.read(&mut part)?;
    text.extend_from_slice(&part[..count]);
    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
