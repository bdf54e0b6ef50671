//! The progress view of a rollout: a table on a terminal, no taller than the terminal; elsewhere one line per
//! change. Formats only.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use terminal_size::{Height, Width, terminal_size_of};

use crate::api::annotation;
use crate::api::in_place_rollout::{InPlaceRollout, request_id};
use crate::api::status::{ContainerReport, Phase, Status};
use crate::cli::escape::escaped;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::in_place_rollout::verdict::verdict;
use crate::cli::output::{self, message};
use crate::cli::pod::answer::{Notes, progress};

const HEADINGS: [&str; 6] = ["POD", "PHASE", "STEP", "DOWN", "NODE", "MESSAGE"];
/// Terminal lines that are not rows of pods: the first two, the headings, the summary of the remaining pods, and
/// the cursor's line.
const OTHER_LINES: usize = 5;
/// Columns and lines of a terminal that does not report its size.
const SIZE: (usize, usize) = (80, 24);

/// A pod that the rollout has started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    name: String,
    node: String,
    /// The status for the rollout's request; `None` until the agent has written one.
    status: Option<Status>,
}

impl Row {
    /// `None` for a pod that the rollout with this uid has not started.
    pub(super) fn of(pod: &Pod, uid: &str) -> Option<Self> {
        let meta = &pod.metadata;
        let label = meta.labels.as_ref().and_then(|labels| labels.get(annotation::ROLLOUT_UID));
        let mark = meta.annotations.as_ref().and_then(|notes| notes.get(annotation::ROLLOUT));
        let is_its = label.is_some_and(|label| label == uid) || mark.is_some_and(|mark| mark.contains(uid));
        if !is_its {
            return None;
        }
        // Once the rollout takes the pod back, only that request counts.
        let record = mark.and_then(|mark| serde_json::from_str::<serde_json::Value>(mark).ok());
        let back = record.is_some_and(|record| record["back"] == true);
        let id = request_id(uid, back);
        Some(Self {
            name: meta.name.clone().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            // A status with another id belongs to another request.
            status: Notes::of(meta).status.filter(|status| status.id == id),
        })
    }

    /// Sort key: failed pods first, then running ones, then finished ones, the latest first.
    fn rank(&self) -> (u8, Option<std::cmp::Reverse<Timestamp>>, &str) {
        let (rank, ended) = match &self.status {
            Some(status) if !status.phase.is_terminal() => (1, None),
            Some(status) if status.phase == Phase::Succeeded => (3, status.finished_at),
            Some(status) => (0, status.finished_at),
            None => (2, None),
        };
        (rank, ended.map(std::cmp::Reverse), &self.name)
    }

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.as_ref();
        let text =
            |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        vec![
            self.name.clone(),
            status.map_or_else(|| "Chosen".to_owned(), |status| status.phase.to_string()),
            text(status.and_then(|status| status.step).map(|step| step.to_string())),
            text(status.and_then(|status| down(&status.containers, now)).map(|ms| format!("{ms}ms"))),
            text(Some(self.node.clone())),
            text(status.map(|status| status.message.clone())),
        ]
    }

    fn line(&self) -> String {
        match &self.status {
            Some(status) if status.phase.is_terminal() => format!("{}: {}", status.phase, status.message),
            Some(status) => progress(status),
            None => "chosen".to_owned(),
        }
    }
}

/// The longest downtime of the containers in milliseconds; a container that is still down counts its time so far.
fn down(containers: &[ContainerReport], now: Timestamp) -> Option<i64> {
    let so_far = |container: &ContainerReport| {
        let since = container.stopped_at.filter(|_| container.started_at.is_none());
        let ms = since.map(|since| i64::try_from(now.duration_since(since).as_millis()).unwrap_or(i64::MAX));
        container.downtime_ms.or(ms).map(|ms| ms.max(0))
    };
    containers.iter().filter_map(so_far).max()
}

/// The rows by pod name.
pub(super) type Rows = BTreeMap<String, Row>;

/// Renders the table below `message`, within `size` (columns and lines).
fn lines(
    name: &RolloutName,
    message: &str,
    rows: &Rows,
    now: Timestamp,
    size: (usize, usize),
) -> Vec<String> {
    let (columns, room) = (size.0.max(20), size.1.saturating_sub(OTHER_LINES));
    let mut sorted: Vec<_> = rows.values().collect();
    sorted.sort_by(|a, b| a.rank().cmp(&b.rank()));
    let cells: Vec<_> = sorted.iter().take(room).map(|row| row.cells(now)).collect();
    let head = escaped(&format!("ipr/{}: {message}", name.0));
    // The message has two parts, the activity and the progress. Each gets its own line, to fit a narrow terminal.
    let mut lines: Vec<_> = head.splitn(2, "; ").map(str::to_owned).collect();
    if !cells.is_empty() {
        lines.extend(output::rows(&HEADINGS, &cells, &mut Vec::new()));
    }
    if sorted.len() > room {
        lines.push(format!("and {} more pods", sorted.len() - room));
    }
    lines.iter().map(|line| line.chars().take(columns - 1).collect()).collect()
}

/// The place where the progress is written: a terminal or a log.
pub(super) struct ProgressView {
    name: RolloutName,
    /// The flags of a command that the user is to run next.
    flags: String,
    bar: Option<ProgressBar>,
    /// The last printed text by pod name; the empty name is the rollout.
    said: HashMap<String, String>,
}

impl ProgressView {
    pub(super) fn new(name: RolloutName, flags: String) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { name, flags, bar, said: HashMap::new() }
    }

    /// True when the view changes with the time alone.
    pub(super) fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    pub(super) fn show(&mut self, rollout: &InPlaceRollout, rows: &Rows, now: Timestamp) {
        let message = verdict(rollout, &self.flags).message;
        if let Some(bar) = &self.bar {
            let size = terminal_size_of(io::stderr())
                .map_or(SIZE, |(Width(columns), Height(lines))| (columns.into(), lines.into()));
            bar.set_message(lines(&self.name, &message, rows, now, size).join("\n"));
            bar.tick();
            return;
        }
        for (pod, row) in rows {
            self.say(pod, &format!("pod/{pod}: {}", row.line()));
        }
        self.say("", &format!("{}: {message}", self.name));
    }

    fn say(&mut self, about: &str, line: &str) {
        if self.said.get(about).is_none_or(|said| said != line) {
            message(&escaped(line));
            self.said.insert(about.to_owned(), line.to_owned());
        }
    }

    /// Prints a message that stays above the table.
    pub(super) fn remark(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| message(text)),
            None => message(text),
        }
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, note: Option<&str>, label: Option<&str>, status: &Value) -> Pod {
        let mut annotations = json!({"inplace.dev/status": status.to_string()});
        annotations["inplace.dev/rollout"] = json!(note);
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"inplace.dev/rollout-uid": label.unwrap_or("none")},
                "annotations": if note.is_some() { annotations } else { json!({}) }},
            "spec": {"nodeName": "n1", "containers": []},
        }))
        .unwrap()
    }

    fn answer(id: &str, phase: &str, containers: &Value) -> Value {
        json!({"id": id, "phase": phase, "step": "Swap", "reason": "", "message": "so it is",
            "startedAt": null, "finishedAt": "2026-11-20T10:00:00.000Z", "containers": containers})
    }

    fn container(more: &Value) -> Value {
        let mut report = json!({"name": "app", "action": "Restart", "engine": "Recreate",
            "from": {"containerID": "a", "attempt": 0, "image": "i", "imageID": "s"}});
        report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        report
    }

    /// The message about a rollout with this message in its status.
    fn message(says: &str) -> String {
        let rollout: InPlaceRollout = serde_json::from_value(json!({
            "metadata": {"name": "web-restart-1", "generation": 1},
            "spec": {"target": {}, "containers": [{"name": "app"}], "maxUnavailable": 1},
            "status": {"observedGeneration": 1, "phase": "Running", "message": says, "pods": 40, "wanted": 40, "done": 12, "busy": 2,
                "downtimeMs": {"median": 61, "most": 95}},
        }))
        .unwrap();
        verdict(&rollout, "").message
    }

    #[test]
    fn only_pods_that_it_has_begun_with_are_rows_and_only_its_own_answers_count() {
        let done = answer("u1", "Succeeded", &json!([]));
        let back = answer("u1-back", "Running", &json!([]));
        let other = answer("u2", "Succeeded", &json!([]));
        for (pod, expect) in [
            (pod("a", None, None, &Value::Null), None),
            (pod("a", Some("u2"), None, &other), None),
            (pod("a", None, Some("u1"), &done), Some(None)),
            (pod("a", Some("u1"), None, &other), Some(None)),
            (pod("a", Some("u1"), None, &done), Some(Some(Phase::Succeeded))),
            (pod("a", Some(r#"{"rollout":"u1","back":true}"#), None, &done), Some(None)),
            (pod("a", Some(r#"{"rollout":"u1","back":true}"#), None, &back), Some(Some(Phase::Running))),
        ] {
            let row = Row::of(&pod, "u1").map(|row| row.status.map(|status| status.phase));
            assert_eq!(row, expect, "{pod:?}");
        }
    }

    #[test]
    fn the_table_has_what_is_wrong_first_and_no_more_lines_than_the_terminal() {
        let now: Timestamp = "2026-11-20T10:00:01Z".parse().unwrap();
        let since = json!([container(&json!({"stoppedAt": "2026-11-20T10:00:00.500Z"}))]);
        let was = json!([container(&json!({"downtimeMs": 61})), container(&json!({"downtimeMs": 70}))]);
        let mut rows = Rows::new();
        for (name, status) in [
            ("a", answer("u1", "Succeeded", &was)),
            ("b", answer("u1", "Running", &since)),
            ("c", answer("u1", "Failed", &json!([]))),
            ("d", answer("other", "Failed", &json!([]))),
        ] {
            let row = Row::of(&pod(name, Some("u1"), None, &status), "u1").unwrap();
            rows.insert(name.to_owned(), row);
        }
        let name = RolloutName("web-restart-1".to_owned());
        let message = message("12 of 40 pods are through");
        assert_eq!(
            lines(&name, &message, &rows, now, (200, 24)).join("\n"),
            "\
ipr/web-restart-1: Running: 12 of 40 pods are through
12/40 done, 2 busy, 0 failed, median down 61 ms, most 95 ms
POD  PHASE      STEP  DOWN   NODE  MESSAGE
c    Failed     Swap  -      n1    so it is
b    Running    Swap  500ms  n1    so it is
d    Chosen     -     -      n1    -
a    Succeeded  Swap  70ms   n1    so it is"
        );
        let small = lines(&name, &message, &rows, now, (30, 7));
        assert_eq!(small.len(), 6, "{small:?}");
        assert_eq!(small[5], "and 2 more pods");
        assert!(small.iter().all(|line| line.chars().count() < 30), "{small:?}");
    }

    #[test]
    fn a_text_from_the_cluster_cannot_forge_a_row() {
        let now: Timestamp = "2026-11-20T10:00:01Z".parse().unwrap();
        let mut status = answer("u1", "Failed", &json!([]));
        status["message"] = json!("ok\nb  Succeeded\u{1b}[2J");
        let row = Row::of(&pod("a", Some("u1"), None, &status), "u1").unwrap();
        let rows = Rows::from([("a".to_owned(), row)]);
        let name = RolloutName("web-restart-1".to_owned());
        let lines = lines(&name, &message("12 of 40\nweb"), &rows, now, (200, 24));
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[0], r"ipr/web-restart-1: Running: 12 of 40\nweb");
        assert!(lines[3].ends_with(r"ok\nb  Succeeded\u{1b}[2J"), "{lines:?}");
    }
}
