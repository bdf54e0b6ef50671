//! The commands of the README as a user types them: the installation, and the first restart. They are read from the page.
//! Only the placeholders in the tables here are replaced. Must not contain a command of the page itself.

#[path = "../hermetic/docs/blocks.rs"]
#[allow(dead_code, reason = "the test of the pages reads more")]
mod blocks;

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use inplace::api::{
    annotation::REQUEST,
    status::{Phase, Status},
};
use k8s_openapi::api::core::v1::Pod as Object;
use serde_json::{Value, json};

use crate::{
    agent::status,
    cluster::Cluster,
    installed::{CONTROLLER, binary, rolled_out},
    pod::{Pod, annotation, container, is_ready},
    support::{
        lab::run,
        wait::{eventually, eventually_or},
    },
};

/// The commands of a code block of a page: the block with that number below that heading.
fn commands(page: &str, heading: &str, number: usize) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let mut below = blocks::blocks(&text).into_iter().filter(|block| block.heading == heading);
    let block = below.nth(number).unwrap_or_else(|| panic!("{page} has no block {number} below {heading}"));
    block.commands()
}

/// Runs the commands of the README that install everything. `base` is a folder that stands for the one of the manifests;
/// with `policies` it is `daemonset/base`.
pub(crate) fn install(cluster: &Cluster, tag: &str, base: &Path, policies: bool) {
    let mut lines = commands("README.md", "Install", 0);
    let mut folder = "daemonset/base";
    if !policies {
        folder = "daemonset/before-1.30";
        let instead = commands("docs/install.md", "Kubernetes before 1.30", 0);
        let [last] = instead.as_slice() else { panic!("one command replaces the last one: {instead:#?}") };
        lines.last_mut().unwrap().clone_from(last);
    }
    let image = cluster.image(&format!("inplace:{tag}"));
    let base = base.display().to_string();
    let placeholders = [
        // The static binary is built before the tests; one that is older than its source is an error.
        ("make image", "make --old-file=release image"),
        ("registry.example/inplace:dev", &image),
        (folder, &base),
    ];
    let binary = binary();
    let target = binary.ancestors().nth(3).unwrap();
    let mut shell = shell(cluster, &lines.join("\n"), &placeholders);
    shell.env("CARGO_TARGET_DIR", target).env("INSECURE_REGISTRY", "1");
    for inherited in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        shell.env_remove(inherited);
    }
    run(&mut shell);
}

/// Bash with the text in which each placeholder is replaced, in the folder of the project, as the administrator.
fn shell(cluster: &Cluster, text: &str, placeholders: &[(&str, &str)]) -> Command {
    let replaced = placeholders.iter().fold(text.to_owned(), |text, (placeholder, by)| {
        assert!(text.contains(placeholder), "{placeholder} is not in: {text}");
        text.replace(placeholder, by)
    });
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &replaced]).current_dir(env!("CARGO_MANIFEST_DIR"));
    shell.env("KUBECONFIG", &cluster.kubeconfig).env("KUBECACHEDIR", cluster.lab().dir.join("kubectl"));
    shell
}

/// A user with the command line tool in PATH.
struct User<'a> {
    cluster: &'a Cluster,
    path: String,
}

impl<'a> User<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let folder = cluster.lab().dir.join("bin");
        fs::create_dir_all(&folder).unwrap();
        for name in ["inplace", "kubectl-inplace"] {
            symlink(binary(), folder.join(name)).unwrap();
        }
        let path =
            format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", folder.display());
        Self { cluster, path }
    }

    /// The output of a command that must succeed.
    fn types(&self, command: &str, placeholders: &[(&str, &str)]) -> String {
        run(shell(self.cluster, command, placeholders).env("PATH", &self.path))
    }
}

/// The pod of the README: its name and that of its container are those of the page.
fn web<'a>(cluster: &'a Cluster, container: &str) -> Pod<'a> {
    let container = json!({"name": container, "image": "lab/app:v1"});
    let spec = json!({"terminationGracePeriodSeconds": 2, "containers": [container]});
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}).to_string(),
    );
    let pod = Pod::existing(cluster, "default", "web");
    pod.wait("it is Ready", is_ready);
    pod
}

/// Runs the two commands at the top of the README and those of its first restart.
pub(crate) fn first_restart(cluster: &Cluster) {
    let user = User::of(cluster);
    claim(cluster, &user);
    let pod = web(cluster, "app");
    by_annotation(&user, &pod);
    let again: Vec<_> = {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
        blocks::spans(&text).into_iter().filter(|span| span.contains("--overwrite")).collect()
    };
    let [again] = again.as_slice() else { panic!("{again:#?}") };
    user.types(again, &[]);
    pod.wait("it has restarted again", |pod| has_restarted(pod, 2));
    by_command(cluster, &user, &pod);
}

/// A restart by annotation and a swap by the plugin.
fn claim(cluster: &Cluster, user: &User<'_>) {
    let pod = web(cluster, "app");
    let lines = commands("README.md", "inplace", 0);
    let [restart, swap] = lines.as_slice() else { panic!("{lines:#?}") };
    user.types(restart, &[]);
    pod.wait("it has restarted", |pod| has_restarted(pod, 1));
    let image = cluster.image("app:v2");
    user.types(swap, &[("repo/app:v2", &image)]);
    let object = pod.wait("the kubelet reports the new image", |pod| {
        container(pod, "app").is_some_and(|app| app.image == image && app.ready)
    });
    assert_eq!(object.metadata.uid.as_deref(), Some(pod.uid.as_str()));
    pod.delete();
    pod.await_gone();
}

fn by_annotation(user: &User<'_>, pod: &Pod<'_>) {
    let lines = commands("README.md", "First restart", 0);
    let [request, read, events] = lines.as_slice() else { panic!("{lines:#?}") };
    user.types(request, &[]);
    pod.wait("it has restarted", |pod| has_restarted(pod, 1));
    let status: Status = serde_json::from_str(&user.types(read, &[])).unwrap();
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    eventually_or("the event is printed", || {
        let printed = user.types(events, &[]);
        if printed.contains("InPlaceSucceeded") && printed.contains("app restarted in place: down ") {
            Ok(())
        } else {
            Err(printed)
        }
    });
}

/// A plan, a restart of the pod, and a restart of all pods of a Deployment.
fn by_command(cluster: &Cluster, user: &User<'_>, pod: &Pod<'_>) {
    let lines = commands("README.md", "First restart", 1);
    let [plan, restart, workload] = lines.as_slice() else { panic!("{lines:#?}") };
    let requested = |pod: &Pod<'_>| annotation(&pod.get(), REQUEST).map(str::to_owned);
    let before = requested(pod);
    assert!(user.types(plan, &[]).contains("Recreate"));
    assert_eq!(requested(pod), before, "a plan changes nothing");
    assert!(has_restarted(&pod.get(), 2));
    user.types(restart, &[]);
    pod.wait("it has restarted", |pod| has_restarted(pod, 3));

    cluster.apply(&deployment().to_string());
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]);
    let pods = pods(cluster);
    assert_eq!((pods.len(), restarts(&pods)), (2, vec![0, 0]));
    rolled_out(cluster, CONTROLLER);
    let rollout = json!({
        "apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout", "metadata": {"name": "readme"},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "web"}}, "containers": [{"name": "app"}]},
    });
    eventually_or("the API server calls the webhook", || {
        cluster.try_apply(&["--dry-run=server"], &rollout.to_string()).map(|_| ())
    });
    user.types(workload, &[]);
    let names = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let after = eventually("the kubelet reports both restarts", || {
        Some(self::pods(cluster)).filter(|pods| restarts(pods) == [1, 1])
    });
    assert_eq!(names(&after), names(&pods));
    cluster.kubectl(&["delete", "deployment", "web"]);
}

fn deployment() -> Value {
    let container = json!({"name": "app", "image": "lab/app:v1"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"readme": "web"}},
            "template": {
                "metadata": {"labels": {"readme": "web"}},
                "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]},
            },
        },
    })
}

/// The pods of the Deployment, in the order of their names.
fn pods(cluster: &Cluster) -> Vec<Value> {
    cluster.pods("readme=web").into_values().collect()
}

fn restarts(pods: &[Value]) -> Vec<i64> {
    let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
    pods.iter().map(|pod| count(pod).unwrap_or(-1)).collect()
}

/// Whether the kubelet reports that many restarts, and the request for the last one has ended well.
fn has_restarted(pod: &Object, times: u32) -> bool {
    let succeeded = |status: Status| {
        let to = status.containers.first().and_then(|container| container.to.as_ref());
        status.phase == Phase::Succeeded && to.is_some_and(|to| to.attempt == times)
    };
    container(pod, "app").is_some_and(|app| u32::try_from(app.restart_count) == Ok(times))
        && status(pod).is_some_and(succeeded)
}
