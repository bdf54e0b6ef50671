//! HTTPS for the API server: the paths, the handshakes, and an end that loses no request.
//!
//! An API server keeps connections, and asks on one that is dead until its time is over. Nobody can tell it otherwise once
//! the pod's network is gone, so connections are ended well before that, each at a moment at which nobody asks on it:
//!
//! ```text
//!  stop ──▶ each answer is the last of its connection ──EASE──▶ those at rest are closed ──FAREWELL──▶ nobody is let in
//! ```

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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
/// For so long after the stop, a connection that is in use is left by its next answer.
const EASE: Duration = Duration::from_secs(7);
/// For so long, word of a closed connection may be lost and sent again, and those who have not heard of the stop are let in:
/// the API server's side hears of it a moment later, and on a busy one some seconds.
const FAREWELL: Duration = Duration::from_secs(5);
/// What an answer under way may take then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

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
    let (rest, open) = (CancellationToken::new(), TaskTracker::new());
    let leaving = stop.clone();
    let router = router(guard).layer(map_response(move |mut answer: Response| {
        if leaving.is_cancelled() {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(answer)
    }));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let desk = Desk { acceptor, router, stop: stop.clone(), rest: rest.clone() };
    tokio::select! {
        () = greet(listener, &desk, &open) => {}
        () = async {
            stop.cancelled().await;
            sleep(EASE).await;
            rest.cancel();
            sleep(FAREWELL).await;
        } => {}
    }
    open.close();
    // Whoever is still there asks nothing, or is too slow.
    let _ = timeout(LAST_ANSWERS, open.wait()).await;
}

/// Lets everybody in, each for itself: one who is slow holds up nobody.
async fn greet(mut listener: TcpListener, desk: &Desk, open: &TaskTracker) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        // Goes on, after a pause, when there is no file descriptor.
        let (stream, from) = Listener::accept(&mut listener).await;
        let desk = desk.clone();
        open.spawn(async move {
            let shaken = timeout(HANDSHAKE, desk.acceptor.accept(stream)).await;
            drop(place);
            match shaken {
                Ok(Ok(stream)) => desk.answer(stream).await,
                Ok(Err(error)) => tracing::debug!(%from, "no handshake: {error}"),
                Err(_) => tracing::debug!(%from, "no handshake in time"),
            }
        });
    }
}

/// What a connection needs.
#[derive(Clone)]
struct Desk {
    acceptor: TlsAcceptor,
    router: Router,
    /// Who comes after this asks once; that is left to the header.
    stop: CancellationToken,
    /// From when on a connection at rest is closed, of those that were there before.
    rest: CancellationToken,
}

impl Desk {
    /// Answers what is asked on one connection, until either side ends it.
    async fn answer(self, stream: TlsStream<TcpStream>) {
        let newcomer = self.stop.is_cancelled();
        let service = TowerToHyperService::new(self.router);
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = self.rest.cancelled(), if !newcomer => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a connection ended: {error}");
        }
    }
}
