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
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::{listen, metrics as process_metrics};

/// Maximum number of concurrent connections: a few probes and scrapes.
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
    let (open, permits) = (TaskTracker::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    loop {
        tokio::select! {
            // axum's `accept` pauses for a moment when no file descriptor is available.
            (stream, _) = Listener::accept(&mut listener) => {
                // Above the limit the connection is closed at once; a probe tries again.
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
                let router = router.clone();
                open.spawn(async move {
                    let _permit = permit;
                    let _ = timeout(MAX_DURATION, answer(stream, router)).await;
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

    use super::*;

    #[tokio::test]
    async fn whoever_holds_connections_is_let_go_and_others_are_answered() {
        // It keeps the port for the server: another test would get it otherwise.
        let reserved = tokio::net::TcpSocket::new_v4().unwrap();
        reserved.set_reuseaddr(true).unwrap();
        reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = reserved.local_addr().unwrap();
        let ready: Readiness = Arc::new(|| std::future::ready(Ok(())).boxed());
        let stop = CancellationToken::new();
        let serving =
            tokio::spawn(serve(address, router(ready, Arc::new(Registry::default())), stop.clone()));
        let mut held = Vec::new();
        while held.len() < MAX_CONNECTIONS {
            if let Ok(stream) = TcpStream::connect(address).await {
                held.push(stream);
            } else {
                tokio::task::yield_now().await;
            }
        }
        // One more connection is closed at once.
        let mut more = TcpStream::connect(address).await.unwrap();
        assert_eq!(more.read(&mut [0; 1]).await.unwrap_or(0), 0);
        // Idle connections are closed after a while.
        tokio::time::pause();
        let mut first = held.swap_remove(0);
        assert_eq!(first.read(&mut [0; 1]).await.unwrap_or(0), 0);
        tokio::time::resume();
        let mut answer = String::new();
        let mut asking = TcpStream::connect(address).await.unwrap();
        asking.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        asking.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
