//! The code blocks of the pages: every command parses, what it names exists, and every manifest and request is valid. The
//! cluster tests run those of the installation and of the first restart. Must not run anything of a page, except what renders
//! the manifests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::{CommandFactory as _, Parser, Subcommand};
use inplace::api::annotation;
use inplace::api::game_deployment::GameDeployment;
use inplace::api::hook_template::HookTemplate;
use inplace::api::in_place_rollout::InPlaceRollout;
use inplace::api::request::Request;
use inplace::api::status::Status;
use inplace::{agent, cli, config_restart, controller, hook, process, rollout, workload};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac;
use regex::Regex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::blocks::{Block, blocks, spans, words};
use super::pages;
use crate::sources::sources;

/// The command line, as `main.rs` puts it together from the same parts.
#[derive(Debug, Parser)]
#[command(name = "inplace", version)]
struct Inplace {
    #[command(flatten)]
    _log: process::log::LogArgs,
    #[command(flatten)]
    _color: process::color::ColorArgs,
    #[command(subcommand)]
    _role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    #[command(flatten)]
    _Pod(Box<cli::pod::PodCommand>),
    #[command(name = "node")]
    _Node(cli::node::NodeCommand),
    #[command(name = "hook")]
    _Hook(cli::hook::HookCommand),
    #[command(name = "rollout")]
    _Rollout(cli::workload_rollout::RolloutCommand),
    #[command(name = "migrate")]
    _Migrate(cli::migrate::MigrateCommand),
    #[command(name = "top")]
    _Top(cli::top::TopCommand),
    #[command(name = "dashboard")]
    _Dashboard(cli::dashboard::DashboardCommand),
    #[command(name = "version")]
    _Version(cli::version::VersionCommand),
    #[command(name = "agent")]
    _Agent(agent::Args),
    #[command(name = "controller")]
    _Controller(controller::Args),
    #[command(name = "completion")]
    _Completion(cli::completion::CompletionCommand),
    #[command(name = "crds")]
    _Crds(cli::crds::CrdsCommand),
    #[command(name = "hold")]
    _Hold(process::hold::HoldCommand),
}

/// Blocks that are neither commands nor data: the page and the first words.
const DRAWINGS: [(&str, &str); 3] = [
    ("README.md", "people: kubectl annotate, inplace CLI"),
    ("docs/concepts.md", "Pull -> PreHook -> [Standby"),
    ("docs/observability.md", "GET /healthz"),
];
/// Programs of other projects in the blocks, of which nothing more than the files that they name is checked.
const OTHERS: [&str; 10] = ["install", "ln", "rm", "sed", "grep", "crictl", "cargo", "ssh", "skopeo", "tar"];

/// Every page that is not generated, with its text.
fn written() -> Vec<(String, String)> {
    let pages = pages().into_iter().filter(|page| !page.starts_with("docs/reference"));
    pages.map(|page| (page.display().to_string(), fs::read_to_string(page).unwrap())).collect()
}

/// What is wrong with the block of that page.
fn check(page: &str, block: &Block) -> Result<(), String> {
    let first = block.lines[0].trim_start();
    if DRAWINGS.iter().any(|(of, begin)| *of == page && first.starts_with(begin)) {
        return Ok(());
    }
    let text = block.lines.join("\n");
    match first.split([' ', ':']).next().unwrap_or_default() {
        "apiVersion" | "metadata" | "spec" => manifest(&text),
        "swap" | "restart" => block.lines.iter().try_for_each(|line| request(line)),
        _ if first.starts_with('{') && text.contains("\"phase\"") => strict::<Status>(&parsed(&text)?),
        _ if first.starts_with('{') => request(&text),
        _ => block.commands().iter().flat_map(|command| words(command)).try_for_each(|command| run(&command)),
    }
}

/// Whether a command could run: its arguments parse, and what it names in this project exists.
fn run(command: &[String]) -> Result<(), String> {
    let word = |index: usize| command.get(index).map_or("", String::as_str);
    let rest = |from: usize| command.iter().skip(from).map(String::as_str).collect::<Vec<_>>();
    match (word(0), word(1)) {
        ("inplace", _) => inplace(&rest(1)),
        ("kubectl", "inplace") => inplace(&rest(2)),
        ("kubectl", _) => kubectl(&rest(1)),
        ("make", _) => make(&rest(1)),
        ("helm", _) => helm(&rest(1)),
        ("cd", folder) => exists(folder),
        (program, _) if OTHERS.contains(&program) => Ok(()),
        _ => Err("no such program: a command, a manifest, or a drawing?".to_owned()),
    }
}

/// Whether the arguments parse: without the parts in brackets, and with each of them alone.
fn inplace(args: &[&str]) -> Result<(), String> {
    let (mut always, mut optional, mut open) = (Vec::new(), Vec::<Vec<&str>>::new(), false);
    for arg in args {
        if arg.starts_with('[') {
            optional.push(Vec::new());
            open = true;
        }
        let bare = arg.trim_matches(['[', ']']);
        match optional.last_mut() {
            Some(part) if open => part.push(bare),
            _ => always.push(*arg),
        }
        open &= !arg.ends_with(']');
    }
    let alone = [Vec::new()].into_iter().chain(optional);
    for part in alone {
        let all = ["inplace"].into_iter().chain(always.iter().copied()).chain(part);
        Inplace::try_parse_from(all).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the folders and files of a command exist for, and the keys that it writes.
fn kubectl(args: &[&str]) -> Result<(), String> {
    for pair in args.windows(2) {
        match pair {
            ["logs", "deployment/inplace-controller"] => {
                return Err("kubectl shows one pod of two: select the pods by their label".to_owned());
            }
            ["-k" | "kustomize", folder] => exists(&format!("{folder}/kustomization.yaml"))?,
            ["--patch-file" | "-f", file] if *file != "-" => exists(file)?,
            _ => {}
        }
    }
    let requests = args.iter().filter_map(|arg| arg.strip_prefix(&format!("{}=", annotation::REQUEST)));
    requests.into_iter().try_for_each(request)
}

fn make(args: &[&str]) -> Result<(), String> {
    let makefile = fs::read_to_string("Makefile").unwrap();
    let targets: BTreeSet<_> =
        makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name).collect();
    let missing = args.iter().find(|arg| !arg.contains('=') && !targets.contains(*arg));
    missing.map_or(Ok(()), |target| Err(format!("the Makefile has no target {target}")))
}

/// `helm install NAME CHART --set KEY=VALUE,...`. The archive of the chart is unpacked into the folder `inplace`.
fn helm(args: &[&str]) -> Result<(), String> {
    let source = |path: &str| match path.trim_start_matches("./").strip_prefix("inplace") {
        Some(below) => format!("daemonset/chart{below}"),
        None => path.to_owned(),
    };
    let values: Value =
        serde_saphyr::from_str(&fs::read_to_string("daemonset/chart/values.yaml").unwrap()).unwrap();
    for pair in args.windows(2) {
        match pair {
            ["--set", set] => {
                for (key, _) in set.split(',').filter_map(|one| one.split_once('=')) {
                    let path = format!("/{}", key.replace('.', "/"));
                    values.pointer(&path).ok_or_else(|| format!("the chart has no value {key}"))?;
                }
            }
            ["--values", file] => exists(&source(file))?,
            ["inplace", chart] if chart.contains('/') => exists(&format!("{}/Chart.yaml", source(chart)))?,
            _ => {}
        }
    }
    Ok(())
}

fn exists(path: &str) -> Result<(), String> {
    if Path::new(path).exists() { Ok(()) } else { Err(format!("{path} does not exist")) }
}

fn request(text: &str) -> Result<(), String> {
    let request = Request::parse(Some(text)).map_err(|error| error.to_string())?;
    request.map(|_| ()).ok_or_else(|| "an empty request".to_owned())
}

/// An object of a kind of this project, a pod, a `ConfigMap`, or a part of an object that has the metadata and the spec of a pod.
fn manifest(text: &str) -> Result<(), String> {
    let object: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let problems = match object["kind"].as_str() {
        Some("GameDeployment") => {
            workload::check::deployment(None, &valid::<GameDeployment>(&object)?, false)
        }
        Some("InPlaceRollout") => rollout::check::rollout(None, &valid::<InPlaceRollout>(&object)?),
        Some("HookTemplate") => {
            let template = valid::<HookTemplate>(&object)?;
            hook::check::template(&template.spec).err().map(|error| error.to_string()).into_iter().collect()
        }
        Some("Role") => strict::<rbac::v1::Role>(&object).err().into_iter().collect(),
        Some("ConfigMap") => strict::<ConfigMap>(&object).err().into_iter().collect(),
        None | Some("Pod") => strict::<Pod>(&object).err().into_iter().collect(),
        Some("Application" | "Kustomization") => of_others(&object),
        Some(kind) => vec![format!("a {kind}, which no test here knows")],
    };
    let value = |key| object.pointer("/metadata/annotations").and_then(|all| all[key].as_str());
    value(annotation::REQUEST).map_or(Ok(()), request)?;
    if let Some(text) = value(annotation::RESTART_ON_CHANGE) {
        config_restart::parse(text).map_err(|error| error.to_string())?;
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// What is wrong with an object of Argo CD, Flux or kustomize: the kinds of this project and the folders that it names.
fn of_others(object: &Value) -> Vec<String> {
    let definitions = inplace::api::crd::all().unwrap();
    let kinds = definitions.iter().map(|(_, definition)| &definition["spec"]);
    let known: BTreeSet<_> = kinds
        .map(|spec| (spec["group"].as_str().unwrap(), spec["names"]["kind"].as_str().unwrap()))
        .collect();
    let lists = ["/spec/ignoreDifferences", "/spec/healthChecks"];
    let named = lists.iter().filter_map(|list| object.pointer(list)?.as_array()).flatten();
    let mut wrong: Vec<_> = named
        .filter_map(|entry| {
            let group = entry["group"].as_str().or_else(|| entry["apiVersion"].as_str()?.split('/').next());
            let found = (group.unwrap_or_default(), entry["kind"].as_str().unwrap_or_default());
            (!known.contains(&found)).then(|| format!("no such kind: {found:?}"))
        })
        .collect();
    let folders = ["resources", "components"].iter().filter_map(|list| object[*list].as_array()).flatten();
    let folders: Vec<_> = folders.filter_map(Value::as_str).collect();
    wrong.extend(folders.iter().filter_map(|folder| {
        exists(&format!("{}/kustomization.yaml", folder.trim_start_matches("../"))).err()
    }));
    if object.pointer("/spec").is_none() && folders.is_empty() {
        wrong.push("it names nothing of this project".to_owned());
    }
    wrong
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The value as that type, which must know all fields.
fn valid<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    let mut unknown = Vec::new();
    let read = serde_ignored::deserialize(value, |path| unknown.push(path.to_string()));
    // The types of this project's kinds do not read these two; the caller has.
    unknown.retain(|field| !["apiVersion", "kind"].contains(&field.as_str()));
    let read = read.map_err(|error: serde_json::Error| error.to_string())?;
    if unknown.is_empty() { Ok(read) } else { Err(format!("unknown: {}", unknown.join(", "))) }
}

fn strict<T: DeserializeOwned>(value: &Value) -> Result<(), String> {
    valid::<T>(value).map(|_| ())
}

#[test]
fn every_block_is_a_command_that_parses_or_data_that_is_valid() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (page, text) in written() {
        for block in blocks(&text) {
            checked += 1;
            wrong.extend(check(&page, &block).err().map(|why| format!("{page}:{}: {why}", block.line)));
        }
    }
    assert!(checked > 30, "only {checked} blocks were found");
    assert_eq!(wrong, Vec::<String>::new());
}

/// In prose a command is often only named, as in `inplace node` or `inplace agent --standalone`: then it has to exist.
#[test]
fn every_command_in_prose_parses_or_exists() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (page, text) in written() {
        for span in spans(&text) {
            let begins = |program: &str| span.strip_prefix(program).is_some_and(|rest| rest.starts_with(' '));
            if !["inplace", "kubectl", "make"].into_iter().any(begins) {
                continue;
            }
            for command in words(&span) {
                checked += 1;
                let own = match command.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                    ["inplace", rest @ ..] | ["kubectl", "inplace", rest @ ..] => is_named(rest),
                    _ => false,
                };
                if !own {
                    wrong.extend(run(&command).err().map(|why| format!("{page}: `{span}`: {why}")));
                }
            }
        }
    }
    assert!(checked > 30, "only {checked} commands were found");
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether the words are only a command, its subcommands and flags without values.
fn is_named(words: &[&str]) -> bool {
    let mut command = Inplace::command();
    for word in words {
        if let Some(flag) = word.strip_prefix("--") {
            if !command.get_arguments().any(|argument| argument.get_long() == Some(flag)) {
                return false;
            }
        } else {
            let Some(next) = command.find_subcommand(word).cloned() else { return false };
            command = next;
        }
    }
    true
}

#[test]
fn a_command_that_is_only_named_has_to_exist() {
    assert!(is_named(&[]) && is_named(&["node", "run"]) && is_named(&["agent", "--standalone"]));
    assert!(!is_named(&["nothing"]) && !is_named(&["node", "nothing"]) && !is_named(&["agent", "--nothing"]));
}

/// The keys of the annotations and labels in the pages are those of the code.
#[test]
fn every_key_in_the_pages_is_one_of_the_code() {
    let key = Regex::new(r"inplace\.dev/[A-Za-z][A-Za-z-]*").unwrap();
    let keys =
        |text: &str| key.find_iter(text).map(|found| found.as_str().to_owned()).collect::<BTreeSet<_>>();
    let known: BTreeSet<_> = sources().iter().flat_map(|(_, text)| keys(text)).collect();
    let unknown = written().into_iter().flat_map(|(page, text)| {
        let unknown: Vec<_> = keys(&text).difference(&known).map(|key| format!("{page}: {key}")).collect();
        unknown
    });
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<String>::new());
}

/// The commands of the first block below a heading.
fn below(page: &str, heading: &str) -> Vec<String> {
    let blocks = blocks(&fs::read_to_string(page).unwrap());
    let block = blocks.iter().find(|block| block.heading == heading);
    block.unwrap_or_else(|| panic!("{page} has no block below {heading}")).commands()
}

/// The cluster tests run the commands of the README, and the last one of an older Kubernetes.
#[test]
fn the_installation_is_the_same_on_every_page_and_sets_every_image() {
    let install = below("README.md", "Install");
    assert_eq!(install.len(), 3, "{install:#?}");
    assert_eq!(below("docs/install.md", "In a cluster"), install);
    assert_eq!(below("daemonset/README.md", "Install"), install);
    let last = install[2].as_str();
    let old = last.replace("daemonset/base", "daemonset/before-1.30");
    assert_ne!(old, last);
    assert_eq!(below("docs/install.md", "Kubernetes before 1.30"), [old.as_str()]);
    let image = install[0].split_once("IMAGE=").unwrap().1;
    for command in [last, &old] {
        let render = command.strip_suffix(" | kubectl apply -f -").unwrap();
        let output = Command::new("bash").args(["-euo", "pipefail", "-c", render]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let manifests = String::from_utf8(output.stdout).unwrap();
        let images =
            manifests.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image: "));
        assert_eq!(images.collect::<Vec<_>>(), [image; 2]);
    }
}

#[test]
fn a_block_that_is_wrong_is_found() {
    for (text, why) in [
        ("inplace restart pod/web --wait --no-such-flag", "--no-such-flag"),
        ("inplace status [pod/web] [--no-such-flag]", "--no-such-flag"),
        ("inplace rollout pause", "required"),
        ("$ kubectl inplace nothing\noutput", "nothing"),
        ("make nothing", "no target nothing"),
        ("kubectl apply -k daemonset/nothing", "daemonset/nothing"),
        ("kubectl kustomize daemonset/nothing | kubectl apply -f -", "daemonset/nothing"),
        ("kubectl apply -f daemonset/nothing.yaml", "daemonset/nothing.yaml"),
        ("kubectl annotate pod web inplace.dev/request='explode app'", "explode"),
        ("kubectl -n inplace-system logs deployment/inplace-controller", "one pod of two"),
        ("helm install inplace daemonset/chart --set image.name=x", "image.name"),
        ("helm install inplace ./inplace --values inplace/presets/nothing.yaml", "presets/nothing.yaml"),
        ("restart app\nswap app", "image"),
        ("{\"id\":\"a\",\"containers\":[{\"name\":\"app\"}],\"nothing\":1}", "nothing"),
        ("metadata:\n  nothing: {}", "nothing"),
        ("metadata:\n  annotations: {inplace.dev/restart-on-change: pod/app}", "pod/app"),
        ("apiVersion: inplace.dev/v1alpha1\nkind: InPlaceRollout\nmetadata: {name: a}\nspec: {}", "target"),
        ("apiVersion: v1\nkind: ConfigMap\nnothing: {}", "nothing"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, nothing: 1}]}", "nothing"),
        ("frobnicate", "no such program"),
    ] {
        let lines = text.lines().map(str::to_owned).collect();
        let block = Block { heading: String::new(), line: 1, lines };
        let found = check("README.md", &block).unwrap_err();
        assert!(found.contains(why), "{text}: {found}");
    }
}

#[test]
fn a_line_is_read_as_a_shell_reads_it() {
    let text = "# Head\n\ntext `a b`\n\n    (cd x && y 'z  #1') | sed 's|a|b|'   # why\n    $ p\n\ntext\n    no block\n";
    let found = blocks(text);
    assert_eq!((found.len(), found[0].heading.as_str(), found[0].line), (1, "Head", 5));
    assert_eq!(found[0].commands(), ["p"]);
    let line = &Block { lines: found[0].lines[..1].to_vec(), ..found[0].clone() }.commands()[0];
    assert_eq!(line, "(cd x && y 'z  #1') | sed 's|a|b|'");
    let expected: [&[&str]; 3] = [&["cd", "x"], &["y", "z  #1"], &["sed", "s|a|b|"]];
    assert_eq!(words(line), expected);
    assert_eq!(spans(text), ["a b"]);
}
