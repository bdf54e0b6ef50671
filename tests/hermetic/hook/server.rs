//! An HTTP server that misbehaves. It runs in a thread of its own, and records the requests.
//!
//! The path of a request selects the behaviour: see [`act`].

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// `GET /path?query`.
    pub(super) line: String,
    /// The header lines.
    pub(super) head: String,
    pub(super) body: String,
}

impl Asked {
    pub(super) fn has(&self, header: &str) -> bool {
        self.head.to_ascii_lowercase().contains(&header.to_ascii_lowercase())
    }
}

#[derive(Debug, Default)]
struct Shared {
    asked: Mutex<Vec<Asked>>,
    /// Bytes of endless bodies (see [`act`]) that clients have read.
    flooded: AtomicU64,
    here: AtomicUsize,
    most: AtomicUsize,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    /// Requests for `/gate` wait while this is 0.
    open: watch::Sender<usize>,
    count: watch::Receiver<usize>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::starting(None)
    }

    pub(super) fn with_tls(config: rustls::ServerConfig) -> Self {
        Self::starting(Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn starting(tls: Option<TlsAcceptor>) -> Self {
        let shared = Arc::new(Shared::default());
        let (open, gate) = watch::channel(0);
        let (counter, count) = watch::channel(0);
        let counter = Arc::new(counter);
        let stop = CancellationToken::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).unwrap();
                    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
                        let (stream, _) = accepted.unwrap();
                        let (shared, gate, counter) =
                            (Arc::clone(&shared), gate.clone(), Arc::clone(&counter));
                        let tls = tls.clone();
                        tokio::spawn(async move {
                            match tls {
                                None => serve(stream, &shared, gate, &counter).await,
                                // A client that does not accept the certificate disconnects.
                                Some(tls) => match tls.accept(stream).await {
                                    Ok(stream) => serve(stream, &shared, gate, &counter).await,
                                    Err(_) => None,
                                },
                            }
                        });
                    }
                });
            })
        };
        Self { address, shared, open, count, stop, thread: Some(thread) }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Opens `/gate`: adds `more` to the count; as soon as it is not 0, every request passes.
    pub(super) fn open(&self, more: usize) {
        self.open.send_modify(|open| *open += more);
    }

    /// Waits until this many requests have arrived.
    pub(super) async fn arrived(&self, requests: usize) {
        self.count.clone().wait_for(|count| *count >= requests).await.unwrap();
    }

    pub(super) fn flooded(&self) -> u64 {
        self.shared.flooded.load(Ordering::SeqCst)
    }

    /// The most requests for `/crowd` at the same time.
    pub(super) fn most(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server itself has failed");
        }
    }
}

/// Serves one connection. `None`: the client has disconnected.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    shared: &Shared,
    gate: watch::Receiver<usize>,
    counter: &watch::Sender<usize>,
) -> Option<()> {
    let asked = read(&mut stream).await?;
    let path = asked.line.split(' ').nth(1)?.to_owned();
    shared.asked.lock().unwrap().push(asked.clone());
    counter.send_modify(|count| *count += 1);
    act(&mut stream, shared, gate, &path, &asked).await?;
    stream.shutdown().await.ok()
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Asked> {
    let mut text = Vec::new();
    let head = loop {
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        (stream.read_buf(&mut text).await.ok()? > 0).then_some(())?;
    };
    let all = String::from_utf8(text[..head].to_vec()).ok()?;
    let (line, lines) = all.split_once("\r\n")?;
    let length = lines
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    while text.len() < head + length.unwrap_or(0) {
        (stream.read_buf(&mut text).await.ok()? > 0).then_some(())?;
    }
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Asked { line, head: lines.to_owned(), body: String::from_utf8_lossy(&text[head..]).into_owned() })
}

async fn act<S: AsyncWrite + Unpin>(
    stream: &mut S,
    shared: &Shared,
    mut gate: watch::Receiver<usize>,
    path: &str,
    asked: &Asked,
) -> Option<()> {
    let (path, rest) = path.split_once('?').unwrap_or((path, ""));
    match path {
        "/hang" => std::future::pending().await,
        "/drip" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await?;
            loop {
                send(stream, "1").await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        "/drip-head" => {
            send(stream, "HTTP/1.1 200 OK\r\nX: ").await?;
            loop {
                send(stream, "1").await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        "/flood" => {
            send(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
            loop {
                send(stream, &chunk).await?;
                shared.flooded.fetch_add(0x10000, Ordering::SeqCst);
            }
        }
        "/gigabyte" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n").await?;
            let block = " ".repeat(0x10000);
            loop {
                send(stream, &block).await?;
                shared.flooded.fetch_add(0x10000, Ordering::SeqCst);
            }
        }
        "/short" => send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"age\": 43}").await,
        "/long" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"age\": 43}, \"age\": 7}").await
        }
        "/liar" => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Length: 5\r\n\r\n{\"age\": 43}")
                .await
        }
        "/garbage" => send(stream, "SSH-2.0-OpenSSH_9.2\r\n").await,
        "/text" => answer(stream, 200, "", "not json\n").await,
        "/empty" => answer(stream, 200, "", "").await,
        "/unavailable" => answer(stream, 503, "", "{\"age\": 43}").await,
        "/loop" => answer(stream, 302, "Location: /loop\r\n", "").await,
        "/to" => answer(stream, 302, &format!("Location: {rest}\r\n"), "").await,
        "/keep" => answer(stream, 307, &format!("Location: {rest}\r\n"), "").await,
        "/gate" => {
            let pass = gate.wait_for(|open| *open > 0).await.is_ok();
            answer(stream, if pass { 200 } else { 500 }, "", "{\"age\": 43}").await
        }
        "/crowd" => {
            let here = shared.here.fetch_add(1, Ordering::SeqCst) + 1;
            shared.most.fetch_max(here, Ordering::SeqCst);
            // Time for a concurrent request to arrive.
            tokio::time::sleep(Duration::from_millis(100)).await;
            shared.here.fetch_sub(1, Ordering::SeqCst);
            answer(stream, 200, "", "{\"age\": 43}").await
        }
        "/bad/api/v1/query" => {
            let body = r#"{"status":"error","errorType":"bad_data","error":"1:3: parse error"}"#;
            answer(stream, 400, "Content-Type: application/json\r\n", body).await
        }
        _ if asked.line.starts_with("HEAD") => {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n").await
        }
        _ => answer(stream, 200, "Content-Type: application/json\r\n", "{\"age\": 43}").await,
    }
}

async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, code: u16, headers: &str, body: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {code} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    send(stream, &(head + body)).await
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, text: &str) -> Option<()> {
    stream.write_all(text.as_bytes()).await.ok()?;
    stream.flush().await.ok()
}
