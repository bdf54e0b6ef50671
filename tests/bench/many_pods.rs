//! Part G: the cost of an idle agent beside a kubelet.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use inplace::api::annotation::{REQUEST, STATUS};
use inplace::api::status::Status;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::Scale;
use crate::idle::{Agent, WAIT_LIMIT, has_succeeded, record};
use crate::report::Report;
use crate::support::lab::{Lab, Options, run, setting};

/// Measures the agent with many pods of a cluster: just after its start, and after one request to each pod.
pub(crate) async fn idle(scale: &Scale, report: &mut Report) {
    let pods = scale.pods;
    report.title(&format!("G. The agent at rest beside a kubelet, {pods} pods"));
    let lab = Lab::made_by("cluster.sh", &Options::default());
    let began = Instant::now();
    make(&lab, pods);
    let making = began.elapsed();
    let mut command = Command::new(&scale.agent);
    command.args(["agent", "--listen", "127.0.0.1:0", "--node-name"]).arg(setting(&lab.dir, "NODE"));
    command.arg("--state-dir").arg(lab.dir.join("agent")).arg("--runtime-endpoint").arg(&lab.endpoint);
    command.env("KUBECONFIG", setting(&lab.dir, "KUBECONFIG"));
    command.env("INPLACE_HOLDER_IMAGE", "localhost/pause:1");
    let agent = Agent::start(command, &lab.dir.join("agent.log"));
    let fresh = agent.rest(scale).await;
    let began = Instant::now();
    run(kubectl(&lab).args(["annotate", "pods", "--all"]).arg(format!("{REQUEST}=restart app")));
    served(&lab, pods).await;
    let serving = began.elapsed();
    let worked = agent.rest(scale).await;
    record("G", report, scale, [making, serving], [&fresh, &worked]);
}

fn kubectl(lab: &Lab) -> Command {
    let mut command = Command::new("kubectl");
    command.env("KUBECONFIG", setting(&lab.dir, "KUBECONFIG"));
    command.arg("--cache-dir").arg(lab.dir.join("kubectl"));
    command
}

/// Creates the lightest pods: one waiting process in the node's network.
fn make(lab: &Lab, pods: usize) {
    let pod = |number: usize| {
        let app = json!({"name": "app", "image": "localhost/pause:1", "imagePullPolicy": "Never"});
        let spec = json!({"hostNetwork": true, "automountServiceAccountToken": false, "containers": [app]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("idle-{number}")}, "spec": spec})
    };
    let all = json!({"apiVersion": "v1", "kind": "List", "items": (0..pods).map(pod).collect::<Vec<_>>()});
    let mut apply =
        kubectl(lab).args(["create", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    apply.stdin.take().unwrap().write_all(all.to_string().as_bytes()).unwrap();
    assert!(apply.wait().unwrap().success());
    let limit = format!("--timeout={}s", WAIT_LIMIT.as_secs());
    run(kubectl(lab).args(["wait", "pods", "--all", "--for=condition=Ready", &limit]));
}

/// Waits until the request of every pod has succeeded.
async fn served(lab: &Lab, pods: usize) {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        let list: Value =
            serde_json::from_str(&run(kubectl(lab).args(["get", "pods", "-o", "json"]))).unwrap();
        let ended = |pod: &&Value| {
            let text = pod["metadata"]["annotations"][STATUS].as_str().unwrap_or_default();
            serde_json::from_str::<Status>(text).is_ok_and(|status| has_succeeded(&status))
        };
        if list["items"].as_array().unwrap().iter().filter(ended).count() == pods {
            return;
        }
        assert!(Instant::now() < end, "restarts take too long");
        sleep(Duration::from_secs(1)).await;
    }
}
