//! HTTPS for the API server: the paths, the handshakes, and an end that loses no request.
//!
//! An API server keeps connections, and asks on one that is dead until its time is over. Nobody can tell it otherwise once
//! the pod's network is gone, so connections are ended well before that, each at a moment at which nobody asks on it:
//!
//! ```text
//!  stop ──▶ each answer is the last of its connection ──EASE──▶ those at rest are closed ──FAREWELL──▶ nobody is let in
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::controller::admission::body::Memory;
use crate::controller::admission::bounded::Unreadable;
use crate::controller::admission::connections::{Asks, Connection, Connections};
use crate::controller::admission::guard::Guard;
use crate::controller::admission::review::{self, Answer, Refusal};
use crate::controller::admission::rights::Rights;
use crate::controller::admission::tls::Tls;
use crate::controller::admission::{gate, validate};

/// Connections at once, those that shake hands among them.
pub(super) const CONNECTIONS: usize = 512;
/// Nobody needs longer for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For so long nothing whole may be asked on a connection. An API server leaves one on which it has nothing to ask after 90 s,
/// by itself: closed from here at the moment at which it asks, the question would be lost.
const HEADER: Duration = Duration::from_secs(100);
/// What is kept of a connection that sends its headers slowly.
const HEADER_BYTES: usize = 64 << 10;
/// For so long after the stop, a connection that is in use is left by its next answer.
const EASE: Duration = Duration::from_secs(7);
/// For so long, word of a closed connection may be lost and sent again, and those who have not heard of the stop are let in:
/// the API server's side hears of it a moment later, and on a busy one some seconds.
const FAREWELL: Duration = Duration::from_secs(5);
/// What an answer under way may take then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Clone)]
struct Client {
    from: IpAddr,
    asks: Asks,
}

/// Who answers what.
#[derive(Clone)]
pub(super) struct Judges {
    pub(super) guard: Guard,
    pub(super) rights: Rights,
    pub(super) memory: Memory,
}

impl Judges {
    /// The answer to what `request` holds, by `judge`.
    async fn answer(
        &self,
        client: &Client,
        request: Request,
        judge: impl AsyncFnOnce(&Self, &review::Request) -> Answer,
    ) -> Response {
        let body = match self.memory.read(client.from, request.into_body()).await {
            Ok(body) => body,
            // What is left of it is not read.
            Err(status) => return (status, [(header::CONNECTION, "close")], "").into_response(),
        };
        let _asking = client.asks.begin();
        let asked = match review::read(body.bytes.clone()) {
            Ok(asked) => asked,
            Err(error) => {
                let code = match error {
                    Unreadable::TooMuch(_) => StatusCode::PAYLOAD_TOO_LARGE,
                    Unreadable::Other(_) => StatusCode::BAD_REQUEST,
                };
                return (code, format!("{error}\n")).into_response();
            }
        };
        let answer = judge(self, &asked).await;
        let json = [(header::CONTENT_TYPE, "application/json")];
        (json, review::reply(&asked, &answer).to_string()).into_response()
    }

    /// A spec that contradicts itself is wrong whoever writes it. What is made of an object is dropped before anybody waits,
    /// and so it is in memory for one review at a time.
    async fn validate(&self, asked: &review::Request) -> Answer {
        if let Err(error) = asked.weigh() {
            return Answer::Refused(Refusal::too_large(error.to_string()));
        }
        match validate::judge(asked).into() {
            Answer::Allowed(_) => self.rights.judge(asked).await,
            refused => refused,
        }
    }
}

/// The paths. Another webhook is another line here and another entry in the manifests' configuration.
fn router(judges: Judges) -> Router {
    let validate =
        async |State(judges): State<Judges>, Extension(client): Extension<Client>, request: Request| {
            judges
                .answer(&client, request, async |judges: &Judges, asked: &review::Request| {
                    judges.validate(asked).await
                })
                .await
        };
    let gate = async |State(judges): State<Judges>,
                      Extension(client): Extension<Client>,
                      request: Request| {
        judges.answer(&client, request, async |_: &Judges, asked: &review::Request| gate::judge(asked)).await
    };
    let guard =
        async |State(judges): State<Judges>, Extension(client): Extension<Client>, request: Request| {
            judges
                .answer(&client, request, async |judges: &Judges, asked: &review::Request| {
                    judges.guard.judge(asked).await
                })
                .await
        };
    Router::new()
        .route("/validate", post(validate))
        .route("/mutate-pods", post(gate))
        .route("/guard", post(guard))
        .with_state(judges)
}

/// Answers reviews on `listener` until `stop`, and a moment longer.
pub(super) async fn run(
    listener: TcpListener,
    tls: Arc<Tls>,
    connections: Arc<Connections>,
    judges: Judges,
    stop: CancellationToken,
) {
    let (rest, open) = (CancellationToken::new(), TaskTracker::new());
    let leaving = stop.clone();
    let router = router(judges).layer(map_response(move |mut answer: Response| {
        if leaving.is_cancelled() {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(answer)
    }));
    let context = ConnectionContext { tls, connections, router, stop: stop.clone(), rest: rest.clone() };
    tokio::select! {
        () = greet(listener, &context, &open) => {}
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
async fn greet(mut listener: TcpListener, context: &ConnectionContext, open: &TaskTracker) {
    loop {
        // Goes on, after a pause, when there is no file descriptor.
        let (stream, from): (TcpStream, SocketAddr) = Listener::accept(&mut listener).await;
        let Some(connection) = context.connections.admit(from.ip()) else { continue };
        let context = context.clone();
        open.spawn(async move {
            let close = connection.close.clone();
            tokio::select! {
                () = close.cancelled() => tracing::debug!(%from, "closed: another connection takes its place"),
                () = context.serve(stream, from, &connection) => {}
            }
        });
    }
}

/// What a connection needs.
#[derive(Clone)]
struct ConnectionContext {
    tls: Arc<Tls>,
    connections: Arc<Connections>,
    router: Router,
    /// Who comes after this asks once; that is left to the header.
    stop: CancellationToken,
    /// From when on a connection at rest is closed, of those that were there before.
    rest: CancellationToken,
}

impl ConnectionContext {
    async fn serve(self, stream: TcpStream, from: SocketAddr, connection: &Connection) {
        let acceptor = TlsAcceptor::from(self.tls.config());
        match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                self.answer(stream, Client { from: from.ip(), asks: connection.asks.clone() }).await;
            }
            Ok(Err(error)) => tracing::debug!(%from, "no handshake: {error}"),
            Err(_) => tracing::debug!(%from, "no handshake in time"),
        }
    }

    /// Answers what is asked on one connection, until either side ends it.
    async fn answer(self, stream: TlsStream<TcpStream>, client: Client) {
        let newcomer = self.stop.is_cancelled();
        let service = TowerToHyperService::new(self.router);
        let service = service_fn(move |mut request: hyper::Request<_>| {
            request.extensions_mut().insert(client.clone());
            service.call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(HEADER_BYTES);
        let connection = http.serve_connection(TokioIo::new(stream), service);
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
