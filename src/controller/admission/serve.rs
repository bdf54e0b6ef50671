//! HTTPS for the API server: the paths, the handshakes, and a shutdown that loses no request. Must not decide a
//! review.
//!
//! An API server keeps connections open, and sends a request on a dead one until its timeout. Once the pod's
//! network is gone, no packet can close the connection any more. So connections are closed well before that, each
//! at a moment at which no request is under way on it:
//!
//! ```text
//!  stop ──▶ each answer is the last of its connection ──DRAIN──▶ idle ones are closed ──LATE_CLIENTS──▶ accepting ends
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
use crate::controller::admission::guard::Guard;
use crate::controller::admission::review::{self, Answer, Refusal};
use crate::controller::admission::rights::Rights;
use crate::controller::admission::tls::Tls;
use crate::controller::admission::{gate, validate};
use crate::process::connections::{Activity, Connection, Connections};

/// Connections at the same time, including those in a handshake.
pub(super) const MAX_CONNECTIONS: usize = 512;
/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time limit for the headers of a request, which is also the idle timeout. An API server closes a connection by
/// itself after 90 s without a request. If this side closed it earlier, at the moment at which a request is sent,
/// the request would be lost.
const HEADER: Duration = Duration::from_secs(100);
/// Most bytes that are buffered of a connection that sends its headers slowly.
const HEADER_BYTES: usize = 64 << 10;
/// For this long after the stop, a connection in use is closed with its next answer.
const DRAIN: Duration = Duration::from_secs(7);
/// After that, new clients are accepted for this long: the packet that closes a connection may be lost and sent
/// again, and the API server's side observes the stop a moment later, on a busy machine some seconds later.
const LATE_CLIENTS: Duration = Duration::from_secs(5);
/// Time limit for the answers that are still under way then.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The client of a connection.
#[derive(Clone)]
struct Client {
    from: IpAddr,
    activity: Activity,
}

/// The parts that answer reviews.
#[derive(Clone)]
pub(super) struct Handlers {
    pub(super) guard: Guard,
    pub(super) rights: Rights,
    pub(super) memory: Memory,
}

impl Handlers {
    /// Reads the review in `request` and answers it by `judge`.
    async fn answer(
        &self,
        client: &Client,
        request: Request,
        judge: impl AsyncFnOnce(&Self, &review::Request) -> Answer,
    ) -> Response {
        let body = match self.memory.read(client.from, request.into_body()).await {
            Ok(body) => body,
            // The rest of the body is not read, so the connection cannot be used again.
            Err(status) => return (status, [(header::CONNECTION, "close")], "").into_response(),
        };
        let _active = client.activity.begin();
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

    /// Checks the spec first: a spec that contradicts itself is wrong for every user. The objects parsed for that
    /// are dropped before the first wait, so they are in memory for one review at a time.
    async fn validate(&self, asked: &review::Request) -> Answer {
        if let Err(error) = asked.weigh() {
            return Answer::Refused(Refusal::too_large(error.to_string()));
        }
        let is_workload = matches!(asked.kind.kind.as_str(), "GameDeployment" | "GameStatefulSet");
        // Without an answer the controller decides later: it touches no pod before it has one.
        let resizes = is_workload && self.rights.server.resizes().await.unwrap_or(true);
        match validate::judge(asked, resizes).into() {
            Answer::Allowed(_) => {
                let unknown = validate::warnings(asked);
                match self.rights.judge(asked).await {
                    Answer::Allowed(warnings) => Answer::Allowed([warnings, unknown].concat()),
                    refused => refused,
                }
            }
            refused => refused,
        }
    }
}

/// The paths. A new webhook needs a line here and an entry in the manifests' configuration.
fn router(handlers: Handlers) -> Router {
    let validate =
        async |State(handlers): State<Handlers>, Extension(client): Extension<Client>, request: Request| {
            handlers
                .answer(&client, request, async |handlers: &Handlers, asked: &review::Request| {
                    handlers.validate(asked).await
                })
                .await
        };
    let gate =
        async |State(handlers): State<Handlers>, Extension(client): Extension<Client>, request: Request| {
            handlers
                .answer(&client, request, async |_: &Handlers, asked: &review::Request| gate::judge(asked))
                .await
        };
    let guard =
        async |State(handlers): State<Handlers>, Extension(client): Extension<Client>, request: Request| {
            handlers
                .answer(&client, request, async |handlers: &Handlers, asked: &review::Request| {
                    handlers.guard.judge(asked).await
                })
                .await
        };
    Router::new()
        .route("/validate", post(validate))
        .route("/mutate-pods", post(gate))
        .route("/guard", post(guard))
        .with_state(handlers)
}

/// Answers one request as [`run`] does, without a connection: the status and the body of the answer.
#[cfg(any(fuzzing, feature = "faults"))]
pub(super) async fn answer(handlers: Handlers, path: &'static str, body: Vec<u8>) -> (u16, Vec<u8>) {
    let mut request = hyper::Request::new(axum::body::Body::from(body));
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = hyper::Uri::from_static(path);
    let client = Client { from: IpAddr::from([127, 0, 0, 1]), activity: Activity::default() };
    request.extensions_mut().insert(client);
    let Ok(answer) = TowerToHyperService::new(router(handlers)).call(request).await;
    let status = answer.status().as_u16();
    (status, axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap_or_default().to_vec())
}

/// Serves reviews on `listener` until `stop`, and during the shutdown that follows.
pub(super) async fn run(
    listener: TcpListener,
    tls: Arc<Tls>,
    connections: Arc<Connections>,
    handlers: Handlers,
    stop: CancellationToken,
) {
    let (rest, open) = (CancellationToken::new(), TaskTracker::new());
    let leaving = stop.clone();
    let router = router(handlers).layer(map_response(move |mut answer: Response| {
        if leaving.is_cancelled() {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(answer)
    }));
    let context = ConnectionContext { tls, connections, router, stop: stop.clone(), rest: rest.clone() };
    tokio::select! {
        () = accept(listener, &context, &open) => {}
        () = async {
            stop.cancelled().await;
            sleep(DRAIN).await;
            rest.cancel();
            sleep(LATE_CLIENTS).await;
        } => {}
    }
    open.close();
    // The connections that remain are idle or too slow.
    let _ = timeout(LAST_ANSWERS, open.wait()).await;
}

/// Accepts connections, each in a task of its own, so that a slow client delays no other.
async fn accept(mut listener: TcpListener, context: &ConnectionContext, open: &TaskTracker) {
    loop {
        // Retries after a pause when no file descriptor is left.
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

/// What every connection uses.
#[derive(Clone)]
struct ConnectionContext {
    tls: Arc<Tls>,
    connections: Arc<Connections>,
    router: Router,
    /// Connections accepted after this carry one request; the header `Connection: close` in the answer ends them.
    stop: CancellationToken,
    /// When this is cancelled, idle connections that were accepted before `stop` are closed.
    rest: CancellationToken,
}

impl ConnectionContext {
    async fn serve(self, stream: TcpStream, from: SocketAddr, connection: &Connection) {
        let acceptor = TlsAcceptor::from(self.tls.config());
        match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                self.answer(stream, Client { from: from.ip(), activity: connection.activity.clone() }).await;
            }
            Ok(Err(error)) => tracing::debug!(%from, "no handshake: {error}"),
            Err(_) => tracing::debug!(%from, "no handshake in time"),
        }
    }

    /// Answers the requests on one connection until either side closes it.
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
