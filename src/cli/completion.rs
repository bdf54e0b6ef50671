//! Completion of the command line in a shell: `inplace completion SHELL` prints the script, which asks this program for
//! the names of pods, containers, workloads, nodes and namespaces. Reads only, for at most three seconds; an error means that
//! there is nothing to complete.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::time::Duration;

use clap::{Command, Parser, ValueEnum};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client};

use crate::api::workload_kind::Kind;
use crate::cli::cluster::ClusterArgs;
use crate::cli::exit::Exit;
use crate::cli::in_place_rollout::names::resource;

/// The variable by which the script asks this program.
const VARIABLE: &str = "INPLACE_COMPLETE";
/// How long a person waits for names.
const LIMIT: Duration = Duration::from_secs(3);
/// How many names are read.
const MAX_NAMES: u32 = 500;
/// The flags of the connection with a value, which count for the completion.
const FLAGS: [&str; 14] = [
    "--namespace",
    "-n",
    "--context",
    "--kubeconfig",
    "--cluster",
    "--user",
    "--server",
    "-s",
    "--token",
    "--as",
    "--as-group",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
];

/// Print the script that completes commands, flags, pods and containers in a shell
#[derive(Debug, clap::Args)]
pub struct CompletionCommand {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// source <(inplace completion bash)
    Bash,
    /// source <(inplace completion zsh)
    Zsh,
    /// inplace completion fish | source
    Fish,
}

impl CompletionCommand {
    /// Prints the script. Fails only when standard output is closed.
    pub fn run(&self) -> Exit {
        let name = match self.shell {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        };
        let mut script = Vec::new();
        let written = Shells::builtins()
            .completer(name)
            .map(|shell| shell.write_registration(VARIABLE, "inplace", "inplace", "inplace", &mut script));
        match (written, std::io::stdout().write_all(&script)) {
            (Some(Ok(())), Ok(())) => Exit::Done,
            _ => Exit::Failed,
        }
    }
}

/// Answers the script of a shell. False if no script asks.
///
/// # Errors
/// If the shell is unknown, or standard output is closed.
pub fn answer(command: impl Fn() -> Command) -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(VARIABLE).try_complete(std::env::args_os(), folder.as_deref())
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The words that the script passes on.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(2).collect()
}

/// The flags of the connection in `words`.
fn connection(words: &[OsString]) -> Option<ClusterArgs> {
    let mut found = vec![OsString::from("inplace")];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if FLAGS.contains(&&*text) {
            found.push(word.clone());
            found.extend(words.next().cloned());
        } else if text.split_once('=').is_some_and(|(flag, _)| FLAGS.contains(&flag)) {
            found.push(word.clone());
        }
    }
    Line::try_parse_from(found).ok().map(|line| line.cluster)
}

/// What `read` finds in the cluster of the command line.
fn found<F: Future<Output = Option<Vec<String>>>>(read: impl FnOnce(Client, String) -> F) -> Vec<String> {
    let read = async {
        let (client, namespace) = connection(&words())?.connect().await.ok()?;
        read(client, namespace).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let found = runtime.block_on(async { tokio::time::timeout(LIMIT, read).await });
    found.ok().flatten().unwrap_or_default()
}

fn candidates(names: Vec<String>, before: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let names: BTreeSet<_> = names.into_iter().map(|name| format!("{before}{name}")).collect();
    let current = current.to_string_lossy();
    names.into_iter().filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

fn limited() -> ListParams {
    ListParams::default().limit(MAX_NAMES)
}

/// Names of pods, or behind `KIND/` those of that kind of workload.
pub(super) fn subjects(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let Some((kind, _)) = text.split_once('/') else { return pods(current) };
    let Some(known) = Kind::read(kind) else { return pods(current) };
    let names = found(|client, namespace| async move {
        let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource(known));
        Some(api.list(&limited()).await.ok()?.items.into_iter().filter_map(|one| one.metadata.name).collect())
    });
    candidates(names, &format!("{kind}/"), current)
}

/// Names of pods, with or without `pod/`.
pub(super) fn pods(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let before = ["pods/", "pod/", "po/"].into_iter().find(|kind| text.starts_with(kind)).unwrap_or_default();
    let names = found(|client, namespace| async move {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, &namespace);
        Some(api.list(&limited()).await.ok()?.items.into_iter().filter_map(|one| one.metadata.name).collect())
    });
    candidates(names, before, current)
}

/// Names of the containers of the pods on the command line, or of all pods of the namespace if there is none.
pub(super) fn containers(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<_> = words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_named = |pod: &Pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        words.iter().any(|word| word.rsplit('/').next() == Some(name))
    };
    let names = found(|client, namespace| async move {
        let api: Api<Pod> = Api::namespaced(client, &namespace);
        let mut pods = api.list(&limited()).await.ok()?.items;
        if pods.iter().any(is_named) {
            pods.retain(is_named);
        }
        let regular = |pod: Pod| pod.spec.into_iter().flat_map(|spec| spec.containers).map(|one| one.name);
        Some(pods.into_iter().flat_map(regular).collect())
    });
    // Several containers are separated by commas.
    let text = current.to_string_lossy();
    let before = text.rfind(',').map_or("", |comma| &text[..=comma]);
    candidates(names, before, current)
}

/// Names of nodes.
pub(super) fn nodes(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = found(|client, _| async move {
        let api: Api<PartialObjectMeta<Node>> = Api::all(client);
        Some(api.list(&limited()).await.ok()?.items.into_iter().filter_map(|one| one.metadata.name).collect())
    });
    candidates(names, "", current)
}

/// Names of namespaces.
pub(super) fn namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = found(|client, _| async move {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        Some(api.list(&limited()).await.ok()?.items.into_iter().filter_map(|one| one.metadata.name).collect())
    });
    candidates(names, "", current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_is_that_of_the_line_so_far() {
        let words =
            ["restart", "we", "-n", "shop", "--wait", "-c", "app", "--context=prod", "--unknown", "-A"];
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        let found = connection(&words).unwrap();
        assert_eq!(found.namespace.as_deref(), Some("shop"));
        assert!(format!("{found:?}").contains("prod"));
        let open: Vec<_> = ["status", "-n"].iter().map(OsString::from).collect();
        assert!(connection(&open).is_none(), "the value is not there yet");
    }

    #[test]
    fn only_names_with_the_beginning_are_shown() {
        let names = || vec!["web-1".to_owned(), "web-0".to_owned(), "db-0".to_owned()];
        let shown = |before: &str, current: &str| {
            let shown = candidates(names(), before, OsStr::new(current));
            shown.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown("", "we"), ["web-0", "web-1"]);
        assert_eq!(shown("pod/", "pod/d"), ["pod/db-0"]);
        assert_eq!(shown("a,", "a,"), ["a,db-0", "a,web-0", "a,web-1"]);
    }
}
