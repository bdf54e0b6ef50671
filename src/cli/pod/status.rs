//! `status`: prints the progress and results of requests as the agents reported them. Changes nothing.

use std::collections::HashMap;
use std::pin::pin;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use serde::Serialize;

use crate::api::status::{ContainerReport, Status};
use crate::cli::cluster::label_selector;
use crate::cli::completion;
use crate::cli::exit::Exit;
use crate::cli::form::{Form, FormParser};
use crate::cli::output::{self, age, message};
use crate::cli::pod::answer::Notes;
use crate::cli::pod::names::PodName;
use crate::cli::pod::selection::Selection;
use crate::cli::pod::server::{PodClient, Scope};
use crate::cli::pod::{ClusterArgs, Data, Failed, HasName};
use crate::process::clock;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The pods [default: all that have a request or a status]
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::pods), conflicts_with_all = ["selector", "all_namespaces", "all", "field_selector", "node"])]
    pods: Vec<PodName>,
    /// Only pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = label_selector)]
    selector: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Show changes as they come, until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = FormParser::WIDE)]
    output: Option<Form>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// JSON output for one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusOutput {
    namespace: String,
    name: String,
    /// The text of the request annotation.
    request: Option<String>,
    /// True while the request has no status.
    unanswered: bool,
    status: Option<Status>,
    #[serde(skip)]
    requested: Option<String>,
}

impl PodStatusOutput {
    fn of(meta: &ObjectMeta) -> Self {
        let notes = Notes::of(meta);
        let unanswered = notes.unanswered();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            unanswered,
            request: notes.request,
            status: notes.status,
            requested: notes.requested,
        }
    }
}

impl HasName for PodStatusOutput {
    fn full_name(&self) -> String {
        format!("pod/{}", self.name)
    }
}

pub(super) async fn run(args: StatusArgs) -> Result<Exit, Failed> {
    let StatusArgs { pods, selector, all_namespaces, watch, output, selection, cluster } = args;
    let server = PodClient::connect(&cluster).await?;
    let (wide, data) = match output {
        Some(Form::Wide) => (true, None),
        Some(Form::Data(data)) => (false, Some(data)),
        Some(Form::Table) | None => (false, None),
    };
    let columns = Columns { namespace: all_namespaces, wide };
    let mut scope = Scope { all_namespaces, selector, name: None, fields: selection.fields() };
    if watch {
        if let [only] = pods.as_slice() {
            scope.name = Some(only.0.clone());
        }
        let followed = Followed { scope, pods, is_every_pod: selection.all };
        return follow(&server, &followed, columns, data).await;
    }
    let mut views = Vec::new();
    if pods.is_empty() {
        let found = server.list(&scope).await?;
        views.extend(
            found.iter().filter(|meta| selection.all || !Notes::of(meta).is_empty()).map(PodStatusOutput::of),
        );
    }
    for name in &pods {
        views.push(PodStatusOutput::of(&server.meta(name).await?));
    }
    if let Some(form) = data {
        form.print_list(&views);
    } else if views.is_empty() {
        message(if selection.all { "there is no such pod" } else { "no pod has a request or a status" });
    } else {
        let rows: Vec<_> = views.iter().map(|view| columns.row(view, clock::now())).collect();
        output::table(&columns.headings(), &rows);
    }
    Ok(Exit::Done)
}

/// The pods whose changes are printed.
struct Followed {
    scope: Scope,
    /// Only these, if any.
    pods: Vec<PodName>,
    /// Also pods without a request and a status.
    is_every_pod: bool,
}

/// Prints every change of a pod's request or status until Ctrl-C.
async fn follow(
    server: &PodClient,
    followed: &Followed,
    columns: Columns,
    data: Option<Data>,
) -> Result<Exit, Failed> {
    let only = followed.pods.as_slice();
    let shows_all = followed.is_every_pod || !only.is_empty();
    // A watch does not report a missing name or a missing permission, so both are checked first.
    for name in only {
        server.meta(name).await?;
    }
    if only.is_empty() {
        server.check(&followed.scope).await?;
    }
    let mut changes = pin!(server.watch(&followed.scope));
    let mut known: HashMap<(String, String), Notes> = HashMap::new();
    let mut widths = Vec::new();
    let (mut away, mut is_first) = (false, true);
    loop {
        let event = tokio::select! {
            event = changes.next() => event,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        };
        let meta = match event {
            None => return Ok(Exit::Done),
            Some(Err(error)) => {
                if !away {
                    message(&format!("inplace: the watch of the pods failed, retrying: {error}"));
                }
                away = true;
                continue;
            }
            Some(Ok(Event::Apply(pod) | Event::InitApply(pod))) => pod.metadata,
            Some(Ok(Event::Delete(pod))) => {
                known.remove(&key(&pod.metadata));
                continue;
            }
            Some(Ok(Event::Init | Event::InitDone)) => continue,
        };
        away = false;
        let name = meta.name.as_deref().unwrap_or_default();
        if !only.is_empty() && !only.iter().any(|wanted| wanted.0 == name) {
            continue;
        }
        let notes = Notes::of(&meta);
        let before = known.insert(key(&meta), notes.clone());
        // The first event of a pod is printed when it has an annotation, or when the command line asks for the pod.
        let updates = before.map_or(!notes.is_empty() || shows_all, |before| before != notes);
        if !updates {
            continue;
        }
        let view = PodStatusOutput::of(&meta);
        let first = std::mem::take(&mut is_first);
        if let Some(form) = &data {
            form.print_next(&view, first);
            continue;
        }
        let headings = columns.headings();
        let row = columns.row(&view, clock::now());
        let lines = output::stdout_rows(&headings, &[row], &mut widths);
        lines.iter().skip(usize::from(!first)).for_each(|text| output::raw(text));
    }
}

fn key(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// The columns of the table.
#[derive(Clone, Copy, Debug)]
struct Columns {
    namespace: bool,
    wide: bool,
}

impl Columns {
    fn headings(self) -> Vec<&'static str> {
        let mut headings = Vec::new();
        headings.extend(self.namespace.then_some("NAMESPACE"));
        headings.extend(["POD", "ID", "PHASE", "STEP", "CONTAINERS", "DOWN", "AGE"]);
        if self.wide {
            headings.extend(["ENGINE", "RESTARTS", "REASON"]);
        }
        headings.push("MESSAGE");
        headings
    }

    fn row(self, view: &PodStatusOutput, now: Timestamp) -> Vec<String> {
        let mut row = Vec::new();
        row.extend(self.namespace.then(|| view.namespace.clone()));
        row.push(view.name.clone());
        let open = view.status.as_ref().is_some_and(|status| !status.phase.is_terminal());
        let requested = view.requested.as_deref().unwrap_or("?");
        match &view.status {
            // The last request has ended, and a new one is written.
            Some(_) if view.unanswered && !open => row.extend(self.unanswered(requested)),
            None if view.unanswered => row.extend(self.unanswered(requested)),
            None => row.extend(self.blank("-", "")),
            Some(status) => row.extend(self.answered(status, view.unanswered.then_some(requested), now)),
        }
        row.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }).collect()
    }

    fn unanswered(self, id: &str) -> Vec<String> {
        self.blank(id, "no status yet")
    }

    fn blank(self, id: &str, message: &str) -> Vec<String> {
        let mut cells = vec![id.to_owned()];
        cells.resize(if self.wide { 9 } else { 6 }, String::new());
        cells.push(message.to_owned());
        cells
    }

    fn answered(self, status: &Status, waits: Option<&str>, now: Timestamp) -> Vec<String> {
        let each = |of: fn(&ContainerReport) -> String| {
            status.containers.iter().map(of).collect::<Vec<_>>().join(",")
        };
        let since = status.finished_at.or(status.started_at);
        let mut cells = vec![
            status.id.clone(),
            status.phase.to_string(),
            status.step.map(|step| step.to_string()).unwrap_or_default(),
            each(|report| report.name.clone()),
            each(|report| report.downtime_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"))),
            since.map(|at| age(at, now)).unwrap_or_default(),
        ];
        if self.wide {
            cells.push(each(|report| report.engine.to_string()));
            cells.push(each(|report| match &report.to {
                Some(to) => format!("{}->{}", report.from.attempt, to.attempt),
                None => report.from.attempt.to_string(),
            }));
            cells.push(status.reason.clone());
        }
        let waiting = waits.map(|id| format!("request {id} waits"));
        let message = [Some(status.message.clone()).filter(|text| !text.is_empty()), waiting];
        cells.push(message.into_iter().flatten().collect::<Vec<_>>().join("; "));
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status::{Phase, Step};
    use crate::cli::pod::answer::tests::{meta, status};

    fn view(name: &str, request: Option<&str>, status: Option<&Status>) -> PodStatusOutput {
        PodStatusOutput::of(&ObjectMeta {
            name: Some(name.into()),
            namespace: Some("demo".into()),
            ..meta(request, status)
        })
    }

    fn table(columns: Columns, views: &[PodStatusOutput]) -> String {
        let now = "2026-11-20T10:01:00Z".parse().unwrap();
        let cells: Vec<_> = views.iter().map(|view| columns.row(view, now)).collect();
        output::rows(&columns.headings(), &cells, &mut Vec::new()).join("\n")
    }

    fn views() -> Vec<PodStatusOutput> {
        let done: Status = serde_json::from_str(
            r#"{"id":"web-1","phase":"Succeeded","step":"Ready","reason":"","message":"app restarted in place: down 61 ms",
            "startedAt":"2026-11-20T10:00:00.000Z","finishedAt":"2026-11-20T10:00:30.000Z","containers":[
            {"name":"app","action":"Restart","engine":"Recreate","from":{"containerID":"a","attempt":3,"image":"i","imageID":"s"},
            "to":{"containerID":"b","attempt":4,"image":"i","imageID":"s"},"downtimeMs":61},
            {"name":"side","action":"Restart","engine":"Respec","from":{"containerID":"c","attempt":0,"image":"i","imageID":"s"}}]}"#,
        )
        .unwrap();
        let open = status("old", Phase::Running, Some(Step::Swap));
        let next = r#"{"id":"next","containers":[{"name":"app"}]}"#;
        vec![
            view("a", Some(r#"{"id":"web-1","containers":[{"name":"app"},{"name":"side"}]}"#), Some(&done)),
            view("b", Some(next), Some(&open)),
            view("c", Some(next), Some(&done)),
            view("d", Some("reboot"), None),
            view("e", None, None),
        ]
    }

    #[test]
    fn the_table_is_golden() {
        let columns = Columns { namespace: false, wide: false };
        assert_eq!(
            table(columns, &views()),
            "\
POD  ID     PHASE      STEP   CONTAINERS  DOWN    AGE  MESSAGE
a    web-1  Succeeded  Ready  app,side    61ms,-  30s  app restarted in place: down 61 ms
b    old    Running    Swap   -           -       -    request next waits
c    next   -          -      -           -       -    no status yet
d    ?      -          -      -           -       -    no status yet
e    -      -          -      -           -       -    -"
        );
    }

    #[test]
    fn wide_and_all_namespaces_add_columns_in_every_row() {
        let columns = Columns { namespace: true, wide: true };
        let text = table(columns, &views());
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(
            lines[0],
            [
                "NAMESPACE",
                "POD",
                "ID",
                "PHASE",
                "STEP",
                "CONTAINERS",
                "DOWN",
                "AGE",
                "ENGINE",
                "RESTARTS",
                "REASON",
                "MESSAGE"
            ]
        );
        assert_eq!(
            lines[1][..11],
            [
                "demo",
                "a",
                "web-1",
                "Succeeded",
                "Ready",
                "app,side",
                "61ms,-",
                "30s",
                "Recreate,Respec",
                "3->4,0",
                "-"
            ]
        );
        assert_eq!(lines[3][..11], ["demo", "c", "next", "-", "-", "-", "-", "-", "-", "-", "-"]);
        for view in views() {
            assert_eq!(columns.row(&view, clock::now()).len(), columns.headings().len());
        }
    }

    #[test]
    fn a_watch_keeps_its_columns_where_they_are() {
        let (headings, mut widths) = (["A", "B"], Vec::new());
        let line = |cells: [&str; 2], widths: &mut Vec<usize>| {
            output::rows(&headings, &[cells.map(str::to_owned).to_vec()], widths).remove(1)
        };
        assert_eq!(line(["long", "x"], &mut widths), "long  x");
        assert_eq!(line(["s", "y"], &mut widths), "s     y");
    }
}
