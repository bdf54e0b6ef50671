//! `restart` and `swap`: writes one request onto each of the pods, and follows it to its end with `--wait`.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::api::request::{ContainerRequest, Request};
use crate::api::status::Status;
use crate::cli::completion;
use crate::cli::dry_run::{Choice, DryRun};
use crate::cli::exit::Exit;
use crate::cli::in_place_rollout::flags::{Labels, RolloutFlags};
use crate::cli::in_place_rollout::make::{self, Order, Wait};
use crate::cli::in_place_rollout::names::WorkloadName;
use crate::cli::output::{self, line, message};
use crate::cli::pod::answer::Notes;
use crate::cli::pod::flags::RequestFlags;
use crate::cli::pod::live::Live;
use crate::cli::pod::names::{Named, PodName, Subject, Word, sorted};
use crate::cli::pod::selection::Selection;
use crate::cli::pod::server::{PodClient, Scope};
use crate::cli::pod::wait::{Awaited, End, wait};
use crate::cli::pod::{ClusterArgs, Data, DataParser, Failed, HasName, plan, write};
use crate::cli::span::Seconds;
use crate::process::signals::{self, Interrupt};

/// `--wait` without a time waits for the request's own deadline plus this: the time for the agent to start and to
/// report.
const SPARE: Duration = Duration::from_secs(60);

/// Arguments of `restart`.
#[derive(Debug, Args)]
pub struct Restart {
    /// The pods: NAME or pod/NAME; or their workload: deploy/NAME, sts/NAME, ds/NAME, ...
    #[arg(value_name = "POD|WORKLOAD", add = ArgValueCompleter::new(completion::subjects),
        required_unless_present_any = ["selector", "all", "field_selector", "node"])]
    subjects: Vec<Subject>,
    /// The containers, in the order to restart them; not required if the pod has only one
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', add = ArgValueCompleter::new(completion::containers))]
    container: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `swap`.
#[derive(Debug, Args)]
pub struct Swap {
    /// The pods (NAME or pod/NAME) or their workload (deploy/NAME, sts/NAME, ...), and the containers with their new images
    #[arg(value_name = "POD|WORKLOAD|CONTAINER=IMAGE", required = true,
        add = ArgValueCompleter::new(completion::subjects))]
    words: Vec<Word>,
    #[command(flatten)]
    common: Common,
}

/// The flags that `restart` and `swap` share.
#[derive(Debug, Args)]
struct Common {
    /// Wait until it has ended, at most this long [default: its deadline plus one minute; for a workload: no limit]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    wait: Option<WaitLimit>,
    /// Show what would happen, and touch nothing: `client` shows the plan, or for a workload the rollout that would be
    /// created; `server` also lets the API server check what would be written. Without a value it is client, and server
    /// for a workload
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, value_enum, default_value_t,
        default_missing_value = "bare")]
    dry_run: Choice,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    flags: RequestFlags,
    #[command(flatten)]
    rollout: RolloutFlags,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Common {
    /// The value of `--dry-run`; `bare` is that of the flag without a value.
    fn dry_run(&self, bare: DryRun) -> Result<DryRun, Failed> {
        let dry_run = self.dry_run.or(bare);
        if dry_run != DryRun::None && self.wait.is_some() {
            return Err(Failed::Usage("--wait and --dry-run cannot be combined".to_owned()));
        }
        Ok(dry_run)
    }
}

/// How long `--wait` waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitLimit {
    /// As long as the request may take.
    Own,
    /// The given time.
    For(Seconds),
}

impl FromStr for WaitLimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() { Ok(Self::Own) } else { text.parse().map(Self::For) }
    }
}

impl WaitLimit {
    fn with(self, request: &Request) -> Duration {
        match self {
            Self::Own => Duration::from_secs(u64::from(request.deadline_seconds)) + SPARE,
            Self::For(Seconds(seconds)) => Duration::from_secs(u64::from(seconds)),
        }
    }
}

/// JSON output for one pod.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    namespace: String,
    name: String,
    /// Absent when the request was not written; present with a problem when that is unknown.
    request: Option<Request>,
    /// The last status; absent without `--wait`, or when no agent reported.
    status: Option<Status>,
    /// Why there is no terminal status.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The problem of a request that was not written because of Ctrl-C.
const INTERRUPTED: &str = "interrupted before it was written";

impl Written {
    fn interrupted(server: &PodClient, job: &Job) -> Self {
        Self {
            namespace: server.namespace.clone(),
            name: job.name.0.clone(),
            request: None,
            status: None,
            problem: Some(INTERRUPTED.to_owned()),
        }
    }
}

impl HasName for Written {
    fn full_name(&self) -> String {
        format!("pod/{}", self.name)
    }
}

pub(super) async fn restart(args: Restart) -> Result<Exit, Failed> {
    let Restart { subjects, container, common } = args;
    let Named { pods, mut workloads, .. } = sorted(subjects.into_iter().map(Word::Subject));
    if is_rollout(&pods, &workloads, &common)? {
        return roll_out("restart", workloads.pop(), container, Vec::new(), common).await;
    }
    Box::pin(operate("restart", pods, common, |name, pod| write::restarts(name, pod, &container))).await
}

pub(super) async fn swap(args: Swap) -> Result<Exit, Failed> {
    let Swap { words, common } = args;
    let Named { pods, mut workloads, images } = sorted(words);
    if images.is_empty() {
        return Err(Failed::Usage("the image is missing: write CONTAINER=IMAGE after the pods".to_owned()));
    }
    if is_rollout(&pods, &workloads, &common)? {
        return roll_out("swap", workloads.pop(), Vec::new(), images, common).await;
    }
    if pods.is_empty() && !common.selection.is_given() {
        return Err(Failed::Usage(
            "the pod is missing: write pod/NAME or deploy/NAME before the images".to_owned(),
        ));
    }
    Box::pin(operate("swap", pods, common, |_, _| Ok(images.clone()))).await
}

/// True for the pods of a workload, false for pods by name. Refuses flags that do not apply.
fn is_rollout(pods: &[PodName], workloads: &[WorkloadName], common: &Common) -> Result<bool, Failed> {
    let is_selected = common.selection.is_given();
    let named = workloads.len() + usize::from(common.rollout.selector.is_some() && !is_selected);
    let mut rollout = common.rollout.clone();
    // The labels then select pods, as the other flags do.
    rollout.selector = rollout.selector.filter(|_| !is_selected);
    let wrong = match (pods, named) {
        _ if is_selected && !(pods.is_empty() && workloads.is_empty()) => {
            "--all, --field-selector and --node select pods: they cannot be combined with names".to_owned()
        }
        ([], 1) if common.flags.has_id() => {
            "--id is for pods: for a workload each command creates a new rollout".to_owned()
        }
        ([], 1) => return Ok(true),
        (_, 0) => match rollout.given() {
            Some(flag) => format!("{flag} is for workloads (deploy/NAME, sts/NAME, ...), not for pods"),
            None => return Ok(false),
        },
        ([], _) => "only one workload per command: each needs its own rollout".to_owned(),
        (_, _) => "pods and workloads cannot be combined: use two commands".to_owned(),
    };
    Err(Failed::Usage(wrong))
}

async fn roll_out(
    verb: &str,
    workload: Option<WorkloadName>,
    restarts: Vec<String>,
    swaps: Vec<ContainerRequest>,
    common: Common,
) -> Result<Exit, Failed> {
    let dry_run = common.dry_run(DryRun::Server)?;
    let Common { flags, wait, dry_run: _, output, rollout, selection: _, cluster } = common;
    let wait = match wait {
        None => Wait::No,
        Some(WaitLimit::Own) => Wait::AsLongAsItTakes,
        Some(WaitLimit::For(Seconds(seconds))) => Wait::For(Duration::from_secs(seconds.into())),
    };
    let order = Order { verb, workload, restarts, swaps, flags: rollout, dry_run, wait, output };
    make::run(order, &cluster, |targets| {
        // The controller gives each pod's request its own id.
        flags.request(verb.to_owned(), targets).map_err(|bad| Failed::Refused(bad.to_string()))
    })
    .await
}

/// A pod and the request for it.
struct Job {
    name: PodName,
    pod: Pod,
    request: Request,
}

async fn operate(
    verb: &str,
    pods: Vec<PodName>,
    common: Common,
    targets: impl Fn(&PodName, &Pod) -> Result<Vec<ContainerRequest>, Failed>,
) -> Result<Exit, Failed> {
    let dry_run = common.dry_run(DryRun::Client)?;
    let Common { flags, wait: wait_limit, dry_run: _, output, rollout, selection, cluster } = common;
    let server = PodClient::connect(&cluster).await?;
    let id = flags.id(verb)?;
    // All pods are read and checked before the first write, so that a wrong name changes nothing.
    let mut found = Vec::with_capacity(pods.len());
    for name in pods {
        let pod = server.pod(&name).await?;
        found.push((name, pod));
    }
    if selection.is_given() {
        found = selected(&server, &selection, rollout.selector.as_ref()).await?;
    }
    let mut jobs = Vec::with_capacity(found.len());
    for (name, pod) in found {
        let request = flags
            .request(id.clone(), targets(&name, &pod)?)
            .map_err(|bad| Failed::Refused(bad.to_string()))?;
        match write::check(&name, &pod, &request) {
            Err(Failed::Refused(why)) if selection.is_given() => message(&format!("{name}: skipped: {why}")),
            checked => {
                checked?;
                jobs.push(Job { name, pod, request });
            }
        }
    }
    if jobs.is_empty() {
        return Err(Failed::Refused(format!("no pod of namespace {} can be requested", server.namespace)));
    }
    if dry_run == DryRun::Client {
        let asked = jobs.into_iter().map(|job| (job.name, job.pod, job.request)).collect();
        return plan::show(&server, asked, output).await;
    }
    // From here on Ctrl-C is handled, so that the user always learns what was written.
    let mut interrupt = match wait_limit {
        Some(_) => Some(signals::interrupt().map_err(|error| Failed::Other(error.to_string()))?),
        None => None,
    };
    let (mut exit, mut views, mut waits) = (Exit::Done, Vec::new(), JoinSet::new());
    let live = Live::new();
    let mut is_interrupted = false;
    for job in jobs {
        if !is_interrupted {
            warn(&server, &job).await;
        }
        // No further pod is restarted after Ctrl-C, also not when it is pressed while a warning waits for the API server.
        is_interrupted = is_interrupted || interrupt.as_mut().is_some_and(was_pressed);
        if is_interrupted {
            views.push(Written::interrupted(&server, &job));
            continue;
        }
        let (view, so_far) = take_up(&server, &job, dry_run).await;
        exit = exit.worse(so_far);
        if let (None, None, Some(given)) = (&view.status, &view.problem, wait_limit) {
            let (server, awaited, at) = (server.clone(), awaited(&job, given), views.len());
            let shown = live.line(job.name.to_string());
            waits.spawn(async move { (at, wait(&server, &awaited, shown).await, awaited.name) });
        } else if output.is_none() {
            live.aside(|| print(&view, dry_run));
        }
        views.push(view);
    }
    if is_interrupted {
        waits.abort_all();
        exit = exit.worse(stopped_waiting(&live, &server, &views));
    } else if let Some(interrupt) = &mut interrupt {
        exit = exit.worse(follow(&server, &live, waits, interrupt, &mut views, output.is_some()).await);
    }
    if let Some(form) = output {
        form.print_list(&views);
    }
    Ok(exit)
}

/// The pods of the namespace that the flags select.
async fn selected(
    server: &PodClient,
    selection: &Selection,
    labels: Option<&Labels>,
) -> Result<Vec<(PodName, Pod)>, Failed> {
    let scope = Scope { selector: labels.map(Labels::text), fields: selection.fields(), ..Scope::default() };
    let found = server.pods(&scope).await?;
    message(&format!("{} pods of namespace {} are selected", found.len(), server.namespace));
    Ok(found.into_iter().map(|pod| (PodName(pod.metadata.name.clone().unwrap_or_default()), pod)).collect())
}

/// Prints to standard error why the agent will probably refuse the request, unless it has already ended on the pod.
async fn warn(server: &PodClient, Job { name, pod, request }: &Job) {
    if Notes::of(&pod.metadata).end_of(&request.id).is_some() {
        return;
    }
    if let Some(why) = plan::likely_refusal(server, pod, request).await {
        message(&format!("{name}: the agent will probably refuse this request: {why}"));
    }
}

/// Writes one request, unless that request has already ended on the pod.
async fn take_up(server: &PodClient, job: &Job, dry_run: DryRun) -> (Written, Exit) {
    let Job { name, pod, request } = job;
    let mut view = Written {
        namespace: server.namespace.clone(),
        name: name.0.clone(),
        request: Some(request.clone()),
        status: None,
        problem: None,
    };
    if let Some(status) = Notes::of(&pod.metadata).end_of(&request.id) {
        message(&format!("{name}: {}", write::not_run_again(&request.id)));
        view.status = Some(status.clone());
        return (view, status.phase.into());
    }
    match write::write(server, name, &pod.metadata, request, dry_run).await {
        Ok(()) => {
            message(&format!("{name}: request {} is written{}", request.id, dry_run.suffix()));
            (view, Exit::Done)
        }
        Err(failed) => {
            message(&format!("inplace: {failed}"));
            if !matches!(failed, Failed::Unknown { .. }) {
                view.request = None;
            }
            view.problem = Some(failed.to_string());
            (view, failed.exit())
        }
    }
}

/// True if Ctrl-C was pressed since the signal is handled.
fn was_pressed(interrupt: &mut Interrupt) -> bool {
    interrupt.recv().now_or_never().is_some()
}

/// Says what goes on after Ctrl-C, and what was not begun.
fn stopped_waiting(live: &Live, server: &PodClient, views: &[Written]) -> Exit {
    live.clear();
    let named = |open: &dyn Fn(&&Written) -> bool| {
        let names = views.iter().filter(open).map(|view| format!("pod/{}", view.name));
        names.collect::<Vec<_>>().join(" ")
    };
    let left = named(&|view: &&Written| view.problem.as_deref() == Some(INTERRUPTED));
    if !left.is_empty() {
        message(&format!("interrupted: no request was written to {left}"));
    }
    let (open, flags) =
        (named(&|view: &&Written| view.status.is_none() && view.problem.is_none()), &server.flags);
    if !open.is_empty() {
        message(&format!(
            "stopped waiting; the request continues. Run `inplace status{flags}` to see the current state, \
             `inplace cancel {open}{flags}` to withdraw it"
        ));
    }
    Exit::Interrupted
}

fn awaited(job: &Job, wait_limit: WaitLimit) -> Awaited {
    Awaited {
        name: job.name.clone(),
        uid: job.pod.metadata.uid.clone().unwrap_or_default(),
        node: job.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        id: job.request.id.clone(),
        wait_limit: wait_limit.with(&job.request),
    }
}

/// Prints what is available without waiting: the request id, or the earlier result.
fn print(view: &Written, dry_run: DryRun) {
    match (&view.status, &view.request) {
        (Some(status), _) => output::end(view.full_name(), status.phase, &status.message),
        (None, Some(request)) => line(&format!("pod/{} {}{}", view.name, request.id, dry_run.suffix())),
        (None, None) => {}
    }
}

/// Waits for all requests and prints each result when it arrives. Ctrl-C ends the waiting, never the requests.
async fn follow(
    server: &PodClient,
    live: &Live,
    mut waits: JoinSet<(usize, End, PodName)>,
    interrupt: &mut Interrupt,
    views: &mut [Written],
    is_data: bool,
) -> Exit {
    let mut exit = Exit::Done;
    loop {
        let ended = tokio::select! {
            ended = waits.join_next() => ended,
            _ = interrupt.recv() => {
                waits.abort_all();
                return exit.worse(stopped_waiting(live, server, views));
            }
        };
        let Some(Ok((at, end, name))) = ended else { return exit };
        exit = exit.worse(end.exit());
        if let Some(view) = views.get_mut(at) {
            view.status = end.status().cloned();
            view.problem = (!matches!(end, End::Ended(_))).then(|| end.to_string());
        }
        live.aside(|| report_end(is_data, &name, &end));
    }
}

fn report_end(is_data: bool, name: &PodName, end: &End) {
    match end {
        // With JSON or YAML output the list at the end has all results; only results without a status are printed
        // here.
        End::Ended(_) if is_data => {}
        End::Ended(status) => output::end(name, status.phase, &status.message),
        End::Replaced(_) | End::Unseen(_) | End::Gone | End::TimedOut(_) => {
            message(&format!("{name}: {end}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::pod::PodCommand;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: PodCommand,
    }

    fn parse(line: &str) -> Result<PodCommand, clap::Error> {
        Line::try_parse_from(std::iter::once("inplace").chain(line.split_whitespace()))
            .map(|line| line.command)
    }

    #[test]
    fn the_commands_hold_together() {
        Line::command().debug_assert();
        for line in [
            "restart web",
            "restart pod/web po/web2 -c app,side -n demo --wait",
            "swap -n demo web --grace 30s app=repo/app:v2 --pre-hook drain side=repo/side:v3",
            "restart deploy/web -c app --max-unavailable 10% --partition 3 --failure-threshold 2 --ttl never --wait",
            "restart -l app=web,tier=a --paused -o name",
            "restart --all -c app --dry-run=server",
            "restart -l app=web --node node-1 --dry-run",
            "swap app=repo/app:v2 --field-selector spec.nodeName=node-1 -o jsonpath={.items[*].name}",
            "status --all --node node-1 -o custom-columns=NAME:.name",
            "cancel --all --dry-run=server",
            "swap sts/db app=repo/app:v2 --allow-template-drift --rollout-deadline 2h --progress-deadline 15m --ttl 10m",
            "plan web -c app -o yaml",
            "plan pod/web app=repo/app:v2 --kubeconfig /k --context c",
            "status",
            "status -A -l app=web -w -o wide",
            "history po/web -o json",
            "cancel web --id a",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "restart",
            "restart svc/web",
            "restart web --wait 30s x=y",
            "restart deploy/web --max-unavailable ten",
            "restart -l app!=web",
            "restart -l app=web --id a",
            "restart web --dry-run=maybe",
            "restart web -o wide",
            "restart --field-selector node",
            "status web --all",
            "cancel web --all",
            "swap web app=Not:A:Image",
            "status web -A",
            "history",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn pods_and_images_may_stand_around_flags() {
        let command = parse("swap web --grace 30s app=repo/app:v2 -n demo po/web2").unwrap();
        let PodCommand::Swap(Swap { words, common }) = command else { panic!("another command") };
        let Named { pods, images, .. } = sorted(words);
        assert_eq!(pods.iter().map(ToString::to_string).collect::<Vec<_>>(), ["pod/web", "pod/web2"]);
        assert_eq!(images[0].image.as_deref(), Some("repo/app:v2"));
        assert_eq!(common.flags.request("a".into(), images).unwrap().grace_period_seconds, 30);
    }

    #[test]
    fn without_a_time_the_wait_is_as_long_as_the_request_may_take() {
        for (flags, seconds) in [("--wait", 660), ("--wait=2m", 120), ("--wait --deadline 60s", 120)] {
            let PodCommand::Restart(Restart { common, .. }) = parse(&format!("restart web {flags}")).unwrap()
            else {
                panic!("another command")
            };
            let target = ContainerRequest { name: "app".into(), image: None };
            let request = common.flags.request("a".into(), vec![target]).unwrap();
            assert_eq!(common.wait.unwrap().with(&request), Duration::from_secs(seconds), "{flags}");
        }
    }
}
