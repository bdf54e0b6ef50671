//! Serves the page and its data on the loopback interface. Answers only who knows the token of this process, and only to
//! pages that it has served itself. Reads the caches, never the API server.
//!
//! | path | answer |
//! |---|---|
//! | `/TOKEN/` | the page; its other files are below the same path |
//! | `/TOKEN/api/overview` | rollouts and workloads |
//! | `/TOKEN/api/rollout/NAMESPACE/NAME` | a rollout with its pods |
//! | `/TOKEN/api/workload/NAMESPACE/KIND/NAME` | a workload with its pods and its history |
//! | `/TOKEN/api/pod/NAMESPACE/NAME` | a pod with its operations |
//!
//! Data is JSON, or a stream of JSON for who accepts `text/event-stream`: the present state, and then each change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use ring::digest::{Digest, SHA256, digest};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cli::dashboard::cache::Cache;
use crate::cli::dashboard::view::{Page, Query};

/// The least time between two states of a stream. Many pods change at the same moment.
const INTERVAL: Duration = Duration::from_millis(200);
/// How many streams are open at most. Each computes its own states, and a page in front of the user needs one.
const MAX_STREAMS: usize = 32;
/// The time that open answers get when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// The files of the page: name, media type, content.
const FILES: [(&str, &str, &str); 6] = [
    ("", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("page/app.js")),
    ("dom.js", "text/javascript; charset=utf-8", include_str!("page/dom.js")),
    ("views.js", "text/javascript; charset=utf-8", include_str!("page/views.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
/// The headers of every answer: the page loads nothing from elsewhere, is in no frame, and no other page reads it.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Who is answered.
struct Access {
    /// SHA-256 of the token: comparing digests takes no time that depends on the token.
    token: Digest,
    /// The value of the header `Host`. Not `localhost`: its other address may be another user's.
    host: String,
}

/// What the handlers read.
#[derive(Clone)]
struct Served {
    cache: Arc<Cache>,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Serves on `listener` until `stop`.
///
/// # Errors
/// When the listener fails.
pub(super) async fn serve(
    listener: TcpListener,
    token: &str,
    cache: Arc<Cache>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let port = listener.local_addr()?.port();
    let access = Access::new(token, port);
    let router = Router::new()
        .route("/{token}/", get(page))
        .route("/{token}/{file}", get(file))
        .route("/{token}/api/overview", get(overview))
        .route("/{token}/api/rollout/{namespace}/{name}", get(rollout))
        .route("/{token}/api/workload/{namespace}/{kind}/{name}", get(workload))
        .route("/{token}/api/pod/{namespace}/{name}", get(pod))
        .with_state(Served { cache, streams: Arc::new(Semaphore::new(MAX_STREAMS)), stop: stop.clone() })
        .layer(middleware::from_fn_with_state(Arc::new(access), guard));
    let ended = stop.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    tokio::select! {
        ended = serving.into_future() => ended,
        () = async { ended.cancelled().await; sleep(LAST_ANSWERS).await } => Ok(()),
    }
}

impl Access {
    fn new(token: &str, port: u16) -> Self {
        Self { token: digest(&SHA256, token.as_bytes()), host: format!("127.0.0.1:{port}") }
    }

    /// Why a request is refused. A page of another origin that resolves its own name to this address (DNS rebinding) has
    /// another `Host`.
    fn refuses(&self, path: &str, headers: &HeaderMap) -> Option<&'static str> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text("host").unwrap_or_default();
        if host != self.host {
            return Some(
                "this host name is not answered: use the URL that `inplace dashboard` has printed\n",
            );
        }
        if text("sec-fetch-site").is_some_and(|from| !matches!(from, "same-origin" | "none")) {
            return Some("requests of other pages are not answered\n");
        }
        // Such a script would answer for this page later, when another process has the port.
        if headers.contains_key("service-worker") {
            return Some("this page has no service worker\n");
        }
        let given = path.split('/').nth(1).unwrap_or_default();
        if digest(&SHA256, given.as_bytes()).as_ref() != self.token.as_ref() {
            return Some("open the URL that `inplace dashboard` has printed: it contains a token\n");
        }
        None
    }
}

/// Refuses requests without the token, and gives every answer its headers.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let mut response = match access.refuses(request.uri().path(), request.headers()) {
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// The page. What an earlier process on the same port has left in the browser goes, as a service worker.
async fn page() -> Response {
    ([("clear-site-data", "\"storage\"")], static_file("")).into_response()
}

async fn file(Path((_, name)): Path<(String, String)>) -> Response {
    static_file(&name)
}

fn static_file(name: &str) -> Response {
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some((_, media, content)) => ([(header::CONTENT_TYPE, *media)], *content).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn overview(State(served): State<Served>, headers: HeaderMap) -> Response {
    served.answer(&headers, Query::Overview)
}

async fn rollout(
    State(served): State<Served>,
    headers: HeaderMap,
    Path((_, namespace, name)): Path<(String, String, String)>,
) -> Response {
    served.answer(&headers, Query::Rollout { namespace, name })
}

async fn workload(
    State(served): State<Served>,
    headers: HeaderMap,
    Path((_, namespace, kind, name)): Path<(String, String, String, String)>,
) -> Response {
    served.answer(&headers, Query::Workload { namespace, kind, name })
}

async fn pod(
    State(served): State<Served>,
    headers: HeaderMap,
    Path((_, namespace, name)): Path<(String, String, String)>,
) -> Response {
    served.answer(&headers, Query::Pod { namespace, name })
}

impl Served {
    fn answer(self, headers: &HeaderMap, query: Query) -> Response {
        let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        if accepted == Some("text/event-stream") {
            let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
                let why = "too many pages are open: close some of them\n";
                return (StatusCode::TOO_MANY_REQUESTS, why).into_response();
            };
            return Sse::new(self.states(query, permit)).keep_alive(KeepAlive::default()).into_response();
        }
        let page = Page::of(&self.cache.objects(), &query);
        let status = if page.is_missing() { StatusCode::NOT_FOUND } else { StatusCode::OK };
        match serde_json::to_string(&page) {
            Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    /// The present state, and then each state that differs from the one before. The stream holds its permit until it ends.
    fn states(
        self,
        query: Query,
        permit: OwnedSemaphorePermit,
    ) -> impl Stream<Item = Result<Event, Infallible>> {
        let changes = self.cache.changes();
        let begin = (self, query, permit, changes, String::new());
        stream::unfold(begin, async |(served, query, permit, mut changes, before)| {
            let text = served.next(&query, &mut changes, &before).await?;
            Some((Ok(Event::default().data(&text)), (served, query, permit, changes, text)))
        })
    }

    /// The next state that differs from `before`; `None` when the process ends.
    async fn next(&self, query: &Query, changes: &mut watch::Receiver<()>, before: &str) -> Option<String> {
        loop {
            changes.mark_unchanged();
            let page = Page::of(&self.cache.objects(), query);
            let text = serde_json::to_string(&page).ok()?;
            if text != before {
                return Some(text);
            }
            let more = async {
                // The first change is shown at once; those that follow it closely are shown together.
                changes.changed().await.ok()?;
                sleep(INTERVAL).await;
                Some(())
            };
            self.stop.run_until_cancelled(more).await??;
        }
    }
}
