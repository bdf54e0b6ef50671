//! Waits until a request has ended, by watching its pod's annotations.
//! The result depends on one request id; the states of other requests are only displayed.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api::status::{Phase, Status};
use crate::cli::exit::Exit;
use crate::cli::pod::answer::{Answer, Notes, progress};
use crate::cli::pod::live::Line;
use crate::cli::pod::names::PodName;
use crate::cli::pod::server::PodClient;

/// A running agent reports within this time; after it a hint is printed.
const ANSWER: Duration = Duration::from_secs(15);

/// The request to wait for.
pub(super) struct Awaited {
    pub(super) name: PodName,
    /// The pod's uid: a new pod of the same name does not have the request.
    pub(super) uid: String,
    /// The pod's node, for the hint.
    pub(super) node: String,
    pub(super) id: String,
    /// How long to wait.
    pub(super) wait_limit: Duration,
}

/// How the wait ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// With the agent's terminal status.
    Ended(Status),
    /// The request was withdrawn or replaced (`Some`: by this id) before it got a status.
    Replaced(Option<String>),
    /// The request began, and its end was not seen, because another one (`Some`: with this id) or none is on the pod.
    Unseen(Option<String>),
    /// The pod was deleted, or a new pod has its name.
    Gone,
    /// Not within the time; with the last status, if any.
    TimedOut(Option<Status>),
}

impl End {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Ended(status) => status.phase.into(),
            Self::Replaced(_) => Exit::Interrupted,
            Self::Gone | Self::Unseen(_) => Exit::Failed,
            Self::TimedOut(_) => Exit::TimedOut,
        }
    }

    /// The last status.
    pub(super) fn status(&self) -> Option<&Status> {
        match self {
            Self::Ended(status) => Some(status),
            Self::TimedOut(status) => status.as_ref(),
            Self::Replaced(_) | Self::Unseen(_) | Self::Gone => None,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(status) => write!(f, "{}: {}", status.phase, status.message),
            Self::Replaced(Some(by)) => write!(f, "not done: request {by} replaced it"),
            Self::Replaced(None) => f.write_str("not done: the request was withdrawn"),
            Self::Unseen(by) => {
                let by = by.as_ref().map(|by| format!(" by request {by}")).unwrap_or_default();
                write!(
                    f,
                    "it began, and was replaced{by} before its end was seen: `inplace history` shows its end"
                )
            }
            Self::Gone => f.write_str("the pod is gone, and the request with it"),
            Self::TimedOut(Some(status)) => {
                write!(f, "has not ended within the time of --wait and continues ({})", progress(status))
            }
            Self::TimedOut(None) => {
                f.write_str("got no status within the time of --wait; the request stays on the pod")
            }
        }
    }
}

/// Watches the pod until the request has ended.
pub(super) async fn wait(server: &PodClient, awaited: &Awaited, mut line: Line) -> End {
    let begun = Instant::now();
    let until = begun + awaited.wait_limit;
    let mut changes = pin!(server.watch_pod(&awaited.name));
    let mut last = None;
    let mut hint_at = Some(begun + ANSWER);
    line.show("waiting for the agent");
    loop {
        let event = tokio::select! {
            event = timeout_at(until, changes.next()) => event,
            () = sleep_until(hint_at.unwrap_or(until)), if hint_at.is_some() => {
                hint_at = None;
                line.remark(&no_agent_hint(&awaited.node, ANSWER));
                continue;
            }
        };
        let meta = match event {
            Err(_) | Ok(None) => {
                // The last look: a watch may be behind, or not be permitted.
                if let Some(ended) = ended(server, awaited).await {
                    return ended;
                }
                if hint_at.is_some() {
                    line.remark(&no_agent_hint(&awaited.node, begun.elapsed()));
                }
                return End::TimedOut(last);
            }
            Ok(Some(Err(error))) => {
                line.show(&format!("the watch of the pod failed, retrying: {error}"));
                // A user who may not watch pods may read this one.
                if let Some(ended) = ended(server, awaited).await {
                    return ended;
                }
                continue;
            }
            Ok(Some(Ok(Some(pod)))) if is_it(&pod.metadata, awaited) => pod.metadata,
            Ok(Some(Ok(_))) => return End::Gone,
        };
        match Notes::of(&meta).about(&awaited.id) {
            Answer::None => line.show("waiting for the agent"),
            Answer::Behind(other) => {
                hint_at = None;
                line.show(&format!("waits for request {} ({})", other.id, progress(&other)));
            }
            Answer::Given(status) if status.phase.is_terminal() => return End::Ended(status),
            Answer::Given(status) => {
                hint_at = None;
                line.show(&progress(&status));
                last = Some(status);
            }
            Answer::Replaced { by } if last.as_ref().is_some_and(|last| last.phase == Phase::Running) => {
                return End::Unseen(by);
            }
            Answer::Replaced { by } => return End::Replaced(by),
        }
    }
}

/// Reads the pod once: the end of the request, if it has ended.
async fn ended(server: &PodClient, awaited: &Awaited) -> Option<End> {
    let meta = server.meta(&awaited.name).await.ok().filter(|meta| is_it(meta, awaited))?;
    Notes::of(&meta).end_of(&awaited.id).cloned().map(End::Ended)
}

fn is_it(meta: &ObjectMeta, awaited: &Awaited) -> bool {
    meta.uid.as_ref() == Some(&awaited.uid)
}

/// The hint when no agent reports within `within`.
fn no_agent_hint(node: &str, within: Duration) -> String {
    format!(
        "no status within {} s: check that the inplace agent is running on node {node}: `kubectl get pods -A -o \
         wide -l app.kubernetes.io/name=inplace --field-selector spec.nodeName={node}`",
        within.as_secs()
    )
}
