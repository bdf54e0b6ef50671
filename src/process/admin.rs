//! What a process tells over HTTP: `/healthz` (it lives), `/readyz` (it can work), `/metrics`.

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

/// What an answer under way may take when the process is to end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Asks whether the process can work; the error says what is missing.
pub type Readiness = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

#[derive(Clone)]
struct Told {
    ready: Readiness,
    metrics: Arc<Registry>,
}

/// The routes, without a socket.
pub fn router(ready: Readiness, metrics: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(self::metrics))
        .with_state(Told { ready, metrics })
}

/// Serves the routes on `address` until `stop`.
///
/// # Errors
/// When the address cannot be had.
pub async fn serve(address: SocketAddr, router: Router, stop: CancellationToken) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz /readyz /metrics");
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        served = serving.into_future() => served,
        // A connection on which nothing is asked would be waited for without end.
        () = async { stop.cancelled().await; tokio::time::sleep(LAST_ANSWERS).await } => Ok(()),
    }
}

async fn readyz(State(told): State<Told>) -> Response {
    match (told.ready)().await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(told): State<Told>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &told.metrics) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
