//! HTTPS for the API server: the paths, the handshakes, and an end that loses no request.

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::controller::admission::guard::Guard;
use crate::controller::admission::review::Answer;
use crate::controller::admission::shown::Shown;
use crate::controller::admission::{gate, review, validate};

/// A review holds the object twice, and an object may have 1.5 MiB.
const LARGEST: usize = 8 << 20;
/// Handshakes at once; whoever comes then waits.
const HANDSHAKES: usize = 256;
/// Nobody needs longer for one.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A process that is told to stop goes on for so long: the API server's side hears of it a moment later, and on a busy one
/// some seconds.
const LINGER: Duration = Duration::from_secs(10);
/// What an answer under way may take then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

type Connection = (TlsStream<TcpStream>, SocketAddr);

/// The paths. Another webhook is another line here and another entry in the manifests' configuration.
fn router(guard: Guard) -> Router {
    Router::new()
        .route("/validate", post(async |body: Bytes| judged(&body, |asked| validate::judge(asked).into())))
        .route("/mutate-pods", post(async |body: Bytes| judged(&body, gate::judge)))
        .route(
            "/guard",
            post(async move |body: Bytes| match review::read(&body) {
                Ok(asked) => answer(&asked, &guard.judge(&asked).await),
                Err(_) => no_review(),
            }),
        )
        .layer(DefaultBodyLimit::max(LARGEST))
}

fn judged(body: &[u8], judge: impl FnOnce(&review::Request) -> Answer) -> Response {
    match review::read(body) {
        Ok(asked) => answer(&asked, &judge(&asked)),
        Err(_) => no_review(),
    }
}

fn answer(asked: &review::Request, answer: &Answer) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, review::reply(asked, answer).to_string()).into_response()
}

fn no_review() -> Response {
    (StatusCode::BAD_REQUEST, "no AdmissionReview\n").into_response()
}

/// How connections are made: with whatever certificate is shown at that time.
pub(super) fn config(shown: Arc<Shown>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = versions.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Answers reviews on `listener` until `stop`, and a moment longer.
pub(super) async fn run(listener: TcpListener, config: ServerConfig, guard: Guard, stop: CancellationToken) {
    let Ok(address) = listener.local_addr() else { return };
    let (ready, connections) = mpsc::channel(HANDSHAKES);
    let last = CancellationToken::new();
    let door = Door { connections, address };
    let serving = axum::serve(door, router(guard)).with_graceful_shutdown(last.clone().cancelled_owned());
    tokio::select! {
        _ = serving.into_future() => {}
        () = greet(listener, TlsAcceptor::from(Arc::new(config)), ready) => {}
        () = async {
            stop.cancelled().await;
            sleep(LINGER).await;
            last.cancel();
            sleep(LAST_ANSWERS).await;
        } => {}
    }
}

/// Shakes hands with everybody, each for itself: one who is slow holds up nobody.
async fn greet(mut listener: TcpListener, acceptor: TlsAcceptor, ready: mpsc::Sender<Connection>) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        let (stream, from) = Listener::accept(&mut listener).await;
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => drop(ready.send((stream, from)).await),
                Ok(Err(error)) => tracing::debug!(%from, "no handshake: {error}"),
                Err(_) => tracing::debug!(%from, "no handshake in time"),
            }
            drop(place);
        });
    }
}

/// Where connections come from whose handshake is over.
struct Door {
    connections: mpsc::Receiver<Connection>,
    address: SocketAddr,
}

impl Listener for Door {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Connection {
        match self.connections.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}
