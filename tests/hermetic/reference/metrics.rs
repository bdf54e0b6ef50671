//! The page about metrics. A family without a value is not in the output of `/metrics`, so the page is made from the
//! registrations in the sources; what agent and controller serve is compared with it. Starts both without a cluster.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use regex::Regex;
use tempfile::TempDir;

use super::page;
use crate::sources::product;
use crate::support::http_client;

/// One metric.
#[derive(Debug)]
struct Metric {
    role: &'static str,
    /// As in its HELP line.
    family: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

/// The sections: role, title, and what to know first.
const ROLES: [(&str, &str, &str); 5] = [
    ("agent", "Agent", "With and without a cluster."),
    ("cluster", "Agent in a cluster", "Not on a standalone agent."),
    ("hook", "Hooks", "On agents in a cluster and on the controller."),
    ("controller", "Controller", "A process that is not the leader does no work and counts none."),
    ("process", "Process", "On each agent and controller."),
];

pub(super) fn text() -> String {
    let metrics = registered();
    for (roles, served) in [
        (&["process", "agent"][..], serve(&["agent", "--standalone", "--pods-dir", "@"])),
        (
            &["process", "agent", "cluster", "hook"],
            serve(&["agent", "--node-name", "n", "--kubeconfig", "@/kubeconfig"]),
        ),
        (
            &["process", "controller", "hook"],
            serve(&["controller", "--kubeconfig", "@/kubeconfig", "--webhook-listen", "127.0.0.1:0"]),
        ),
    ] {
        compare(&metrics, roles, &served);
    }
    let mut text =
        "The metrics at `/metrics`. A metric with labels is not in the output before it has a value. \
                    [Observability](../observability.md) has the addresses.\n"
            .to_owned();
    for (role, title, first) in ROLES {
        let rows: Vec<_> = metrics.iter().filter(|metric| metric.role == role).map(row).collect();
        let _ = write!(text, "\n## {title}\n\n{first}\n\n");
        text.push_str(&page::table(&["metric", "type", "unit", "labels", "meaning"], &rows));
    }
    text
}

fn row(metric: &Metric) -> Vec<String> {
    let total = if metric.kind == "counter" { "_total" } else { "" };
    let units = ["seconds", "bytes"];
    let unit =
        units.into_iter().find(|unit| metric.family.ends_with(&format!("_{unit}"))).unwrap_or_default();
    let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    vec![
        format!("`{}{total}`", metric.family),
        metric.kind.clone(),
        unit.to_owned(),
        labels.join(", "),
        page::cell(&metric.help),
    ]
}

/// Each metric that the sources register.
fn registered() -> Vec<Metric> {
    let sources = product();
    let call = Regex::new(r"\.(register|register_with_unit|encode_descriptor)\(\s*").unwrap();
    let mut metrics = Vec::new();
    for (path, text) in sources.iter().filter(|(_, text)| text.contains("prometheus_client")) {
        for found in call.captures_iter(text) {
            let whole = found.get(0).unwrap();
            let given = arguments(&text[whole.end()..]);
            // Where webhooks or collectors register themselves, the only argument is the registry.
            if given.len() < 3 {
                continue;
            }
            let before = &text[..whole.start()];
            let place = format!("{}: {}", path.display(), given[0]);
            let (name, help) = (literal(&given[0], before), literal(&given[1], before));
            let unit = if &found[1] == "register_with_unit" { "_seconds" } else { "" };
            assert!(unit.is_empty() || given[2] == "Unit::Seconds", "{place}: another unit");
            let metric =
                given.last().unwrap().trim_end_matches(".clone()").trim_end_matches(".metric_type()");
            let metric = metric.rsplit('.').next().unwrap();
            let others = sources.iter().map(|(_, text)| text.as_str());
            let kind = std::iter::once(text.as_str()).chain(others).find_map(|text| kind(metric, text));
            let (kind, labels) =
                kind.unwrap_or_else(|| panic!("{place}: {metric} has no type that can be read"));
            let labels = labels.map(|of| labels_of(&of, text)).unwrap_or_default();
            // The registry of the process itself has no prefix.
            let prefix = if name.starts_with("process_") { "" } else { "inplace_" };
            metrics.push(Metric {
                role: role(path),
                family: format!("{prefix}{name}{unit}"),
                kind,
                labels,
                help,
            });
        }
    }
    metrics.sort_by(|a, b| a.family.cmp(&b.family));
    metrics
}

fn role(path: &Path) -> &'static str {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    match (parts[1], parts[2]) {
        ("agent", "cluster") => "cluster",
        ("agent", _) => "agent",
        ("hook", _) => "hook",
        ("process", _) => "process",
        ("controller", _) => "controller",
        _ => panic!("{}: a metric of an unknown role", path.display()),
    }
}

/// The arguments of a call, whose text begins here.
fn arguments(text: &str) -> Vec<String> {
    let (mut given, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => break,
            ')' | ']' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                given.push(String::new());
                continue;
            }
            _ => {}
        }
        given.last_mut().unwrap().push(c);
    }
    let given = given.into_iter().map(|one| one.trim().to_owned());
    given.filter(|one| !one.is_empty()).collect()
}

/// A text, or the text of the variable of this name.
fn literal(argument: &str, before: &str) -> String {
    let start = if argument.starts_with('"') {
        argument
    } else {
        let start =
            before.rfind(&format!("let {argument} =")).unwrap_or_else(|| panic!("{argument} is no text"));
        &before[start..]
    };
    let text = start.split('"').nth(1).unwrap();
    text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The type of the field or variable `name`, and the type of its labels.
fn kind(name: &str, text: &str) -> Option<(String, Option<String>)> {
    let made = format!(r"\b{name}(?::| =) (?:Family<(\w+), )?(?:Const)?(Counter|Gauge|Histogram)\b");
    let found = Regex::new(&made).unwrap().captures(text)?;
    Some((found[2].to_lowercase(), found.get(1).map(|labels| labels.as_str().to_owned())))
}

/// The fields of a type of labels.
fn labels_of(name: &str, text: &str) -> Vec<String> {
    let start =
        text.find(&format!("struct {name} {{")).unwrap_or_else(|| panic!("{name} is in another file"));
    let fields = text[start..].lines().skip(1).take_while(|line| !line.starts_with('}'));
    fields.filter_map(|line| line.trim().split_once(':')).map(|(label, _)| label.to_owned()).collect()
}

/// Asserts that each family that is served is known, with its help and its type.
fn compare(metrics: &[Metric], roles: &[&str], served: &str) {
    let of_roles: Vec<_> = metrics.iter().filter(|metric| roles.contains(&metric.role)).collect();
    let mut families = 0;
    for line in served.lines() {
        let Some((word, rest)) = line.strip_prefix("# ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let (family, text) = rest.split_once(' ').unwrap();
        let known = of_roles.iter().find(|metric| metric.family == family);
        let known =
            known.unwrap_or_else(|| panic!("{family} is served, and not registered where it is looked for"));
        match word {
            "HELP" => assert_eq!(text.trim_end_matches('.'), known.help.trim_end_matches('.'), "{family}"),
            "TYPE" => assert_eq!(text, known.kind, "{family}"),
            _ => {}
        }
        families += usize::from(word == "TYPE");
    }
    assert!(families > 4, "{roles:?} serve too little:\n{served}");
    // A metric without labels always has a value.
    for metric in of_roles.iter().filter(|metric| metric.labels.is_empty()) {
        assert!(served.contains(&format!("# TYPE {} ", metric.family)), "{} is not served", metric.family);
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the role serves at `/metrics`. `@` is a folder of its own.
fn serve(args: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    let here = folder.path().to_str().unwrap();
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
                      clusters: [{name: test, cluster: {server: \"http://127.0.0.1:1\"}}]\nusers: [{name: test, user: {}}]\n\
                      contexts: [{name: test, context: {cluster: test, user: test, namespace: demo}}]\n";
    fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(args.iter().map(|arg| arg.replace('@', here)));
    if args[0] == "agent" {
        command.args(["--runtime-endpoint", &format!("unix://{here}/runtime.sock")]);
        command.args(["--state-dir", &format!("{here}/state")]);
    }
    command.args(["--listen", "127.0.0.1:0", "--log", "info", "--log-json"]);
    let mut process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let fields = &line["fields"];
        let is_admin = fields["message"].as_str()?.contains("/metrics");
        fields["address"].as_str().filter(|_| is_admin)?.parse::<SocketAddr>().ok()
    });
    let address = address.unwrap_or_else(|| panic!("{args:?} serves nothing"));
    http_client::get(TcpStream::connect(address).unwrap(), "/metrics").unwrap().1
}
