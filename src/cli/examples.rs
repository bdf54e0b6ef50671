//! The examples of every command, and the form of the help: what the command does, its examples, then its flags. A test
//! parses every example.

use clap::Command;

use crate::cli::exit;

/// What an example does, and its line.
pub type Example = (&'static str, &'static str);

/// The examples by command.
const EXAMPLES: [(&str, &[Example]); 28] = [
    (
        "restart",
        &[
            (
                "Restart the only container of a pod, and wait for the result",
                "inplace restart pod/web --wait",
            ),
            (
                "Restart container app of all pods of a Deployment, two at a time",
                "inplace restart deploy/web -c app --max-unavailable 2 --wait",
            ),
            (
                "Show what would happen to the pods on a node, and touch nothing",
                "inplace restart --node node-1 -c app --dry-run",
            ),
            ("Restart all pods with a label together", "inplace restart -l app=game --together --wait"),
            (
                "Take the pod out of traffic, and wait until no endpoint names it, and 30 s more",
                "inplace restart pod/web --grace 30s --drain confirmed",
            ),
        ],
    ),
    (
        "swap",
        &[
            (
                "Swap the image of a container, and wait",
                "inplace swap pod/web app=registry.example/app:v2 --wait",
            ),
            (
                "Swap the image in all pods of a StatefulSet; go back if a pod fails",
                "inplace swap sts/db db=registry.example/db:v2 --on-rollout-failure abort --allow-template-drift",
            ),
            (
                "Let the API server check what would be created, and store nothing",
                "inplace swap deploy/web app=registry.example/app:v2 --dry-run=server --allow-template-drift",
            ),
        ],
    ),
    (
        "plan",
        &[
            ("Show what a restart would do", "inplace plan pod/web -c app"),
            ("Show what a swap would do", "inplace plan pod/web app=registry.example/app:v2"),
            (
                "Show which fields of a new manifest need new pods",
                "inplace plan gamedeployment/web -f gamedeployment.yaml",
            ),
        ],
    ),
    (
        "status",
        &[
            ("Show the pods of the namespace that have a request", "inplace status"),
            ("Follow all namespaces", "inplace status -A -w"),
            ("Show every pod on a node", "inplace status -A --all --node node-1 -o wide"),
            ("Print the phase of one pod", "inplace status web -o jsonpath='{.items[0].status.phase}'"),
        ],
    ),
    ("history", &[("Show what was done to a pod", "inplace history pod/web")]),
    (
        "cancel",
        &[
            ("Withdraw the request of a pod", "inplace cancel pod/web"),
            ("Withdraw every request of the namespace that has touched nothing", "inplace cancel --all"),
            ("End a rollout", "inplace cancel ipr/web-restart-x7k2p"),
        ],
    ),
    (
        "rollout status",
        &[
            ("Follow an update to its end", "inplace rollout status gamedeployment/web --timeout 10m"),
            (
                "Print the state of a rollout once",
                "inplace rollout status ipr/web-restart-x7k2p --watch=false",
            ),
        ],
    ),
    (
        "rollout history",
        &[
            ("Show the revisions of a workload", "inplace rollout history gamedeployment/web"),
            ("Show the template of one", "inplace rollout history gamedeployment/web --revision 3"),
        ],
    ),
    (
        "rollout undo",
        &[
            ("Go back to the previous revision", "inplace rollout undo gamedeployment/web"),
            (
                "Check it on the API server only",
                "inplace rollout undo gamedeployment/web --to-revision 3 --dry-run=server",
            ),
        ],
    ),
    (
        "rollout pause",
        &[
            ("Start no further updates", "inplace rollout pause gamedeployment/web"),
            ("Start no further pods of a rollout", "inplace rollout pause ipr/web-restart-x7k2p"),
        ],
    ),
    (
        "rollout resume",
        &[("Continue, also with the canary step that waits", "inplace rollout resume gamedeployment/web")],
    ),
    (
        "top",
        &[
            ("Show the operations of the last hour by workload", "inplace top -A --since 1h"),
            ("Show them by node", "inplace top nodes -A"),
        ],
    ),
    (
        "dashboard",
        &[
            ("Show the namespace in a browser, at the URL that is printed", "inplace dashboard"),
            ("Show all namespaces, on this port", "inplace dashboard -A --port 8001"),
        ],
    ),
    (
        "version",
        &[
            ("Compare the versions in the cluster", "inplace version"),
            ("Show the version of this program", "inplace version --client"),
        ],
    ),
    (
        "hook test",
        &[
            ("Measure each metric of a template once", "inplace hook test -f hook.yaml --once"),
            (
                "Run it for a pod, with an argument",
                "inplace hook test -f hook.yaml --pod web --context prod --arg port=8080",
            ),
        ],
    ),
    ("hook check", &[("Check a template before it is applied", "inplace hook check -f hook.yaml")]),
    ("migrate check", &[("Check the workloads of all namespaces", "inplace migrate check -A")]),
    ("node ps", &[("Show the pods of this node", "inplace node ps")]),
    ("node restart", &[("Restart a container", "inplace node restart --pod shop/web -c app")]),
    (
        "node swap",
        &[(
            "Swap the image of a container",
            "inplace node swap --pod shop/web app=registry.example/app:v2 --deadline 5m",
        )],
    ),
    ("node plan", &[("Show what a restart would do", "inplace node plan --pod shop/web -c app")]),
    ("node run", &[("Run a pod on a node without a kubelet", "inplace node run -f pod.yaml")]),
    ("node rm", &[("Remove it", "inplace node rm --pod default/web")]),
    ("agent", &[("Carry out the requests of the pods on a node", "inplace agent --node-name node-1")]),
    ("controller", &[("Run the controller with a kubeconfig", "inplace controller --kubeconfig admin.conf")]),
    (
        "completion",
        &[(
            "Print the script for bash; load it with `source <(inplace completion bash)`",
            "inplace completion bash",
        )],
    ),
    ("crds", &[("Install the definitions", "inplace crds | kubectl apply -f -")]),
    (
        "",
        &[
            ("Restart a container in place", "inplace restart pod/web -c app --wait"),
            ("Follow all requests of the cluster", "inplace status -A -w"),
        ],
    ),
];

/// The order of a help text.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";
/// Where the exit codes are.
const EXIT_CODES: &str = "The exit codes are in `inplace --help`.";

/// The examples of a command, by the names of its subcommands: `rollout status`. The program itself is the empty text.
pub fn of(path: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == path).map_or(&[], |(_, examples)| examples)
}

/// Gives every command its examples, and the program the table of exit codes. `program` is the name in the examples.
pub fn with_help(command: Command, program: &str) -> Command {
    let command = described(command, "", program).after_help(exit::HELP);
    below(command, "", program)
}

fn below(command: Command, path: &str, program: &str) -> Command {
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name()).trim_start().to_owned();
        let sub = described(sub, &path, program);
        let sub = if sub.has_subcommands() { sub } else { sub.after_help(EXIT_CODES) };
        below(sub, &path, program)
    })
}

fn described(command: Command, path: &str, program: &str) -> Command {
    let examples = of(path);
    if examples.is_empty() {
        return command;
    }
    let lines = examples.iter().map(|(what, line)| {
        let line =
            line.strip_prefix("inplace ").map_or((*line).to_owned(), |rest| format!("{program} {rest}"));
        format!("  # {what}\n  {line}")
    });
    let text = format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n\n"));
    command.before_help(text).help_template(TEMPLATE)
}
