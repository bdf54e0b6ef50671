//! An HTTP server that misbehaves. The path of a request selects the behaviour: see [`act`].

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::http_server::{HttpServer, Request, Stream, answer, answer_json, never, send};

#[derive(Default)]
struct Shared {
    /// Bytes of endless bodies (see [`act`]) that clients have read.
    flooded: AtomicU64,
    /// Requests for `/gate` wait while this is 0.
    open: Mutex<usize>,
    opened: Condvar,
    crowd: Mutex<Crowd>,
    joined: Condvar,
}

/// The requests for `/crowd` at the same time. One that is answered no longer counts: its client may send the next one before
/// the answer is sent in full.
#[derive(Default)]
struct Crowd {
    now: usize,
    most: usize,
}

/// A running server.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    http: HttpServer,
    shared: Arc<Shared>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::starting(None)
    }

    pub(super) fn with_tls(config: rustls::ServerConfig) -> Self {
        Self::starting(Some(config))
    }

    fn starting(tls: Option<rustls::ServerConfig>) -> Self {
        let shared = Arc::<Shared>::default();
        let of_server = Arc::clone(&shared);
        let http = HttpServer::start_with("127.0.0.1:0", tls, move |request, stream| {
            act(request, stream, &of_server)
        });
        Self { address: http.address, http, shared }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.http.requests()
    }

    /// Opens `/gate`: adds `more` to the count; as soon as it is not 0, every request passes.
    pub(super) fn open(&self, more: usize) {
        *self.shared.open.lock().unwrap() += more;
        self.shared.opened.notify_all();
    }

    /// Waits until this many requests have arrived.
    pub(super) async fn arrived(&self, requests: usize) {
        self.http.arrived(requests).await;
    }

    pub(super) fn flooded(&self) -> u64 {
        self.shared.flooded.load(Ordering::SeqCst)
    }

    /// The most requests for `/crowd` at the same time.
    pub(super) fn most(&self) -> usize {
        self.shared.crowd.lock().unwrap().most
    }
}

fn act(request: &Request, stream: &mut dyn Stream, shared: &Shared) -> io::Result<()> {
    match request.path() {
        "/hang" => never(stream),
        "/drip" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")?;
            drip(stream)
        }
        "/drip-head" => {
            send(stream, "HTTP/1.1 200 OK\r\nX: ")?;
            drip(stream)
        }
        "/flood" => {
            send(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            flood(stream, shared, &format!("10000\r\n{}\r\n", " ".repeat(0x10000)))
        }
        "/gigabyte" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")?;
            flood(stream, shared, &" ".repeat(0x10000))
        }
        "/short" => send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"age\": 43}"),
        "/long" => send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"age\": 43}, \"age\": 7}"),
        "/liar" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Length: 5\r\n\r\n{\"age\": 43}")
        }
        "/garbage" => send(stream, "SSH-2.0-OpenSSH_9.2\r\n"),
        "/text" => answer(stream, 200, "", "not json\n"),
        "/empty" => answer(stream, 200, "", ""),
        "/unavailable" => answer(stream, 503, "", "{\"age\": 43}"),
        "/far" => answer(stream, 302, &format!("Location: /{}\r\n", "x".repeat(300 << 10)), ""),
        "/loop" => answer(stream, 302, "Location: /loop\r\n", ""),
        "/to" => answer(stream, 302, &format!("Location: {}\r\n", request.query()), ""),
        "/keep" => answer(stream, 307, &format!("Location: {}\r\n", request.query()), ""),
        "/gate" => {
            drop(shared.opened.wait_while(shared.open.lock().unwrap(), |open| *open == 0));
            answer(stream, 200, "", "{\"age\": 43}")
        }
        "/crowd" => {
            let mut crowd = shared.crowd.lock().unwrap();
            crowd.now += 1;
            crowd.most = crowd.most.max(crowd.now);
            shared.joined.notify_all();
            drop(shared.joined.wait_while(crowd, |crowd| crowd.most < 2).unwrap());
            // Time for one too many to arrive.
            thread::sleep(Duration::from_millis(100));
            shared.crowd.lock().unwrap().now -= 1;
            answer(stream, 200, "", "{\"age\": 43}")
        }
        "/bad/api/v1/query" => {
            let body = r#"{"status":"error","errorType":"bad_data","error":"1:3: parse error"}"#;
            answer(stream, 400, "Content-Type: application/json\r\n", body)
        }
        _ if request.line.starts_with("HEAD") => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n")
        }
        _ => answer_json(stream, "{\"age\": 43}"),
    }
}

/// One byte after the other, until the client disconnects.
fn drip(stream: &mut dyn Stream) -> io::Result<()> {
    loop {
        send(stream, "1")?;
        thread::sleep(Duration::from_millis(50));
    }
}

/// The same part again and again, until the client disconnects.
fn flood(stream: &mut dyn Stream, shared: &Shared, part: &str) -> io::Result<()> {
    loop {
        send(stream, part)?;
        shared.flooded.fetch_add(0x10000, Ordering::SeqCst);
    }
}
