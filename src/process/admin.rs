//! Serves the state of a process over HTTP: `/healthz` (the process runs), `/readyz` (it can work), `/metrics`.
//! Decides nothing about readiness itself.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::connections::Connections;
use crate::process::{listen, metrics as process_metrics};

/// Maximum number of concurrent connections: a few probes and scrapes. Any pod of the node, and of the cluster, may connect: at the
/// limit, an address with many connections loses one to the next, so that it cannot make the probes fail.
const MAX_CONNECTIONS: usize = 64;
/// Maximum duration of a connection, from its beginning to the end of its answer.
const MAX_DURATION: Duration = Duration::from_secs(15);
/// Time that answers in progress get when the process shuts down.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Checks whether the process can work; the error says what is missing.
pub type Readiness = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

#[derive(Clone)]
struct Reported {
    ready: Readiness,
    metrics: Arc<Registry>,
    process: Arc<Registry>,
}

/// The routes, without a socket.
pub fn router(ready: Readiness, metrics: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(self::metrics))
        .with_state(Reported { ready, metrics, process: process_metrics::registry() })
}

/// Serves the routes on `address` until `stop` is cancelled.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(address: SocketAddr, router: Router, stop: CancellationToken) -> std::io::Result<()> {
    let mut listener = listen::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz /readyz /metrics");
    let (open, connections) =
        (TaskTracker::new(), Arc::new(Connections::new("/healthz, /readyz and /metrics", MAX_CONNECTIONS)));
    loop {
        tokio::select! {
            // axum's `accept` pauses for a moment when no file descriptor is available.
            (stream, from) = Listener::accept(&mut listener) => {
                let Some(connection) = connections.admit(from.ip()) else { continue };
                let router = router.clone();
                open.spawn(async move {
                    let answered = timeout(MAX_DURATION, answer(stream, router));
                    let _ = connection.close.run_until_cancelled(answered).await;
                });
            }
            () = stop.cancelled() => break,
        }
    }
    open.close();
    let _ = timeout(LAST_ANSWERS, open.wait()).await;
    Ok(())
}

/// Answers one request. Keep-alive is off: clients that ask rarely need no persistent connection.
async fn answer(stream: TcpStream, router: Router) -> Result<(), hyper::Error> {
    let service = TowerToHyperService::new(router);
    http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await
}

async fn readyz(State(reported): State<Reported>) -> Response {
    match (reported.ready)().await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(reported): State<Reported>) -> Response {
    let mut body = String::new();
    let encoded = text::encode_registry(&mut body, &reported.process)
        .and_then(|()| text::encode(&mut body, &reported.metrics));
    match encoded {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;

    use super::*;

    /// A connection from this address. The server may not listen yet.
    async fn from(own: &str, address: SocketAddr) -> TcpStream {
        loop {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{own}:0").parse().unwrap()).unwrap();
            match socket.connect(address).await {
                Ok(stream) => return stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// The body of `/healthz`.
    async fn probe(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    #[tokio::test]
    async fn whoever_holds_connections_is_let_go_and_others_are_answered() {
        // It keeps the port for the server: another test would get it otherwise.
        let reserved = TcpSocket::new_v4().unwrap();
        reserved.set_reuseaddr(true).unwrap();
        reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = reserved.local_addr().unwrap();
        let ready: Readiness = Arc::new(|| std::future::ready(Ok(())).boxed());
        let stop = CancellationToken::new();
        let serving =
            tokio::spawn(serve(address, router(ready, Arc::new(Registry::default())), stop.clone()));
        // One address holds all connections, and the next ones are answered all the same.
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(from("127.0.0.2", address).await);
        }
        for _ in 0..3 {
            assert_eq!(probe(from("127.0.0.1", address).await).await, "ok\n");
        }
        // Each of them took the place of the oldest one.
        let mut oldest = held.remove(0);
        let closed = timeout(MAX_DURATION / 3, oldest.read(&mut [0; 1])).await;
        assert_eq!(closed.unwrap().unwrap_or(0), 0);
        // Idle connections are closed after a while.
        tokio::time::pause();
        let mut last = held.pop().unwrap();
        assert_eq!(last.read(&mut [0; 1]).await.unwrap_or(0), 0);
        tokio::time::resume();
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
