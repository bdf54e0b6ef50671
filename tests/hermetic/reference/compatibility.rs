//! The table of the tests that ran on several versions of containerd and Kubernetes, from the result files of
//! `tests/lab/matrix.sh`. Must not change a result, and must not leave one out.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::page;

/// One result file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    date: String,
    /// The commit whose tests ran.
    tree: String,
    kernel: String,
    containerd: String,
    debian: String,
    runc: String,
    kubernetes: String,
    node: Suite,
    /// Absent if the kubelet cannot use this containerd, or if the run had no cluster tests.
    cluster: Option<Suite>,
}

/// The result of one folder of tests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    passed: u32,
    /// The names of the tests that failed.
    failed: Vec<String>,
    seconds: u32,
    /// The filters of the names, if not all tests ran.
    only: Vec<String>,
}

/// The page, without its title.
pub(super) fn text() -> String {
    let mut text = String::from(
        "What `make matrix` ran, and when: the tests of `tests/node` and `tests/cluster` with the containerd of several releases of \
         Debian. [Platforms](../platforms.md) says what else is expected to work.\n\n",
    );
    let heads =
        ["containerd", "runc", "Kubernetes", "kernel", "node tests", "cluster tests", "date", "commit"];
    let runs = runs();
    let rows: Vec<_> = runs.iter().map(row).collect();
    text.push_str(&page::table(&heads, &rows));
    for run in &runs {
        for name in run.node.failed.iter().chain(run.cluster.iter().flat_map(|suite| &suite.failed)) {
            let _ = write!(text, "\nFailed with containerd {}: `{name}`.\n", run.containerd);
        }
    }
    text
}

fn row(run: &Run) -> Vec<String> {
    vec![
        format!("{} (Debian {})", run.containerd, run.debian),
        run.runc.clone(),
        run.cluster.as_ref().map_or_else(String::new, |_| run.kubernetes.clone()),
        run.kernel.clone(),
        figures(&run.node),
        run.cluster.as_ref().map_or_else(|| "not run".to_owned(), figures),
        run.date.clone(),
        format!("`{}`", run.tree),
    ]
}

fn figures(suite: &Suite) -> String {
    let only: Vec<_> = suite.only.iter().map(|name| format!("`{name}`")).collect();
    let of = if only.is_empty() { String::new() } else { format!(" of {}", only.join(", ")) };
    format!("{} passed, {} failed{of} ({} s)", suite.passed, suite.failed.len(), suite.seconds)
}

/// The result files, oldest containerd first.
fn runs() -> Vec<Run> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility");
    let mut runs: Vec<Run> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            serde_json::from_str(&fs::read_to_string(&path).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect();
    runs.sort_by_cached_key(|run| {
        run.containerd.split('.').map(|part| part.parse::<u32>().unwrap()).collect::<Vec<_>>()
    });
    assert!(!runs.is_empty(), "no result file in {}", folder.display());
    runs
}
