//! `history`: prints the events that agents wrote about a pod, oldest first, and its current status. Reads only.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::Serialize;

use crate::api::status::{Status, millis};
use crate::cli::completion;
use crate::cli::exit::Exit;
use crate::cli::output::{self, age, line};
use crate::cli::pod::answer::{Notes, progress, uid_in_events};
use crate::cli::pod::names::PodName;
use crate::cli::pod::server::PodClient;
use crate::cli::pod::{ClusterArgs, Data, DataParser, Failed, HasName};
use crate::failure::Class;
use crate::process::clock;

/// Prefix of the event reasons of this project.
const OURS: &str = "InPlace";

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The pod: NAME or pod/NAME; a deleted pod is shown as long as its events exist
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::pods))]
    pod: PodName,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// JSON output: the history of one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct History {
    namespace: String,
    name: String,
    /// Absent when the pod no longer exists.
    uid: Option<String>,
    events: Vec<Happened>,
    status: Option<Status>,
}

/// One event.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Happened {
    #[serde(serialize_with = "as_text")]
    at: Timestamp,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
    /// How often the event occurred.
    count: i32,
    /// True when the event is about an earlier pod of the same name.
    earlier_pod: bool,
}

fn as_text<S: serde::Serializer>(at: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&millis::text(*at))
}

impl HasName for History {
    fn full_name(&self) -> String {
        format!("pod/{}", self.name)
    }
}

pub(super) async fn run(args: HistoryArgs) -> Result<Exit, Failed> {
    let HistoryArgs { pod, output, cluster } = args;
    let server = PodClient::connect(&cluster).await?;
    let meta = match server.meta(&pod).await {
        Ok(meta) => Some(meta),
        Err(Failed::Cluster(error)) if error.class() == Class::Gone => None,
        Err(failed) => return Err(failed),
    };
    let events = ours(server.events(&pod).await?, &pod.0, meta.as_ref().and_then(uid_in_events));
    if meta.is_none() && events.is_empty() {
        return Err(Failed::Refused(format!(
            "there is no {pod} in namespace {}, and there are no events about it",
            server.namespace
        )));
    }
    let notes = meta.as_ref().map(Notes::of).unwrap_or_default();
    let uid = meta.and_then(|meta| meta.uid);
    let history = History { namespace: server.namespace, name: pod.0, uid, events, status: notes.status };
    match output {
        Some(form) => form.print(&history),
        None => print(&history, clock::now()),
    }
    Ok(Exit::Done)
}

/// Selects the events of this project, oldest first. `uid`: that of the pod in events.
fn ours(events: Vec<Event>, name: &str, uid: Option<&str>) -> Vec<Happened> {
    let mut happened: Vec<_> = events
        .into_iter()
        .filter(|event| event.involved_object.name.as_deref() == Some(name))
        .filter_map(|event| {
            let reason = event.reason.filter(|reason| reason.starts_with(OURS))?;
            let at = event.event_time.map(|time| time.0);
            let at = at.or(event.last_timestamp.or(event.first_timestamp).map(|time| time.0));
            Some(Happened {
                at: at.or(event.metadata.creation_timestamp.map(|time| time.0))?,
                kind: event.type_.unwrap_or_default(),
                reason,
                message: event.message.unwrap_or_default(),
                count: event.series.and_then(|series| series.count).or(event.count).unwrap_or(1),
                earlier_pod: event.involved_object.uid.as_deref() != uid,
            })
        })
        .collect();
    happened.sort_by_key(|event| event.at);
    happened
}

fn print(history: &History, now: Timestamp) {
    let rows: Vec<_> = history
        .events
        .iter()
        .map(|event| {
            let earlier = if event.earlier_pod { " (an earlier pod of this name)" } else { "" };
            let times = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
            let message = format!("{}{times}{earlier}", event.message);
            vec![age(event.at, now), event.kind.clone(), event.reason.clone(), message]
        })
        .collect();
    if !rows.is_empty() {
        output::table(&["AGE", "TYPE", "REASON", "MESSAGE"], &rows);
    }
    match (&history.status, &history.uid) {
        (Some(status), _) => line(&format!("now: request {}: {}", status.id, progress(status))),
        (None, Some(_)) => line("now: the pod has no request status"),
        (None, None) => line("now: the pod is gone"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn our_events_are_reported_oldest_first_whatever_interface_wrote_them() {
        let event = |pod: &str, uid: &str, reason: &str, times: serde_json::Value| -> Event {
            let mut event = json!({
                "metadata": {"name": "e", "creationTimestamp": "2026-11-20T09:00:00Z"},
                "involvedObject": {"kind": "Pod", "name": pod, "uid": uid},
                "reason": reason, "message": format!("{reason} {uid}"), "type": "Normal",
            });
            event.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            serde_json::from_value(event).unwrap()
        };
        let events = vec![
            event(
                "web",
                "u-2",
                "InPlaceSucceeded",
                json!({"eventTime": "2026-11-20T10:00:02.000000Z", "series": {"count": 2, "lastObservedTime": null}}),
            ),
            event("web", "u-2", "Pulled", json!({"lastTimestamp": "2026-11-20T10:00:01Z"})),
            event(
                "web",
                "u-2",
                "InPlaceStarted",
                json!({"lastTimestamp": "2026-11-20T10:00:01Z", "count": 3}),
            ),
            event("web", "u-1", "InPlaceFailed", json!({})),
            event("other", "u-9", "InPlaceFailed", json!({})),
        ];
        let reported: Vec<_> = ours(events, "web", Some("u-2"))
            .into_iter()
            .map(|event| (event.message, event.count, event.earlier_pod))
            .collect();
        assert_eq!(
            reported,
            [
                ("InPlaceFailed u-1".to_owned(), 1, true),
                ("InPlaceStarted u-2".to_owned(), 3, false),
                ("InPlaceSucceeded u-2".to_owned(), 2, false),
            ]
        );
    }

    #[test]
    fn the_events_of_a_static_pod_have_the_uid_of_its_node() {
        let event: Event = serde_json::from_value(json!({
            "metadata": {"creationTimestamp": "2026-11-20T09:00:00Z"}, "reason": "InPlaceSucceeded",
            "involvedObject": {"kind": "Pod", "name": "web", "uid": "on-the-node"},
        }))
        .unwrap();
        for (mirror, earlier_pod) in [("on-the-node", false), ("another", true), ("", true)] {
            let meta = json!({"uid": "u-2", "annotations": {"kubernetes.io/config.mirror": mirror}});
            let meta = serde_json::from_value(meta).unwrap();
            let reported = ours(vec![event.clone()], "web", uid_in_events(&meta));
            assert_eq!(reported[0].earlier_pod, earlier_pod, "{mirror}");
        }
    }
}
