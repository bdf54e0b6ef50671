//! A tenant may create HookRuns in the tenant's own namespace. The hooks must not reach what only a node can
//! reach. However many and large they are, hooks of another namespace must run and the agent must survive.

#![expect(clippy::print_stderr, reason = "the figures are worth reading")]

use serde_json::{Value, json};

use super::tenant::{NAMESPACE, Tenant};
use crate::{
    agent::{Agent, Setup, samples},
    cluster::Cluster,
    hook_runs::{has_ended, measurements::published_server},
    pod::Pod,
    request::ONE,
    support::process::Process,
    support::wait::eventually,
};

/// Many times the number of hooks that an agent runs at once.
const MANY: usize = 200;
/// Bytes of one HookRun: nearly the limit of what is run.
const LARGE: usize = 100 << 10;
/// Number of additional HookRuns that are too large to be run: together many times what an agent loads at a time.
const TOO_LARGE: usize = 45;
/// Bytes of one of those: nearly the limit of what is stored.
const LARGEST: usize = 1 << 20;
/// Maximum bytes of one argument by the CRD.
const LARGEST_VALUE: usize = 16 << 10;
/// The memory limit of the agent's container in the shipped manifest.
const MEMORY_LIMIT_MIB: f64 = 128.0;

#[test]
fn s5_s6_hooks_of_a_tenant_reach_no_node_and_hold_up_no_other_namespace() {
    let cluster = Cluster::own();
    let agent = start(&cluster);
    let tenant = Tenant::new(&cluster);
    let busy = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy", "namespace": NAMESPACE},
        "spec": {"nodeName": tenant.node.name, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": "lab/app:v1"}]},
    });
    assert!(tenant.create(&busy));
    reach_no_node(&tenant);
    hold_up_nobody(&tenant, &agent);
    cluster.assert_unharmed();
}

/// Starts an agent with the default denials. The allowed address is unused.
fn start(cluster: &Cluster) -> Agent {
    let nothing = [("INPLACE_HOOK_ALLOW", "192.0.2.1")];
    Agent::start_with(cluster, &Setup { env: &nothing, ..Setup::default() })
}

/// S6: the node's own addresses, the kubelet's ports, and the addresses where clouds serve credentials.
fn reach_no_node(tenant: &Tenant<'_>) {
    let ip = &tenant.node.ip;
    let published = published_server(ip);
    let urls = [
        format!("http://{}/secret", published.address),
        format!("https://{ip}:10250/pods"),
        "http://127.0.0.1:10248/healthz".to_owned(),
        "http://[::1]:10248/healthz".to_owned(),
        format!("http://[::ffff:{ip}]:9091/secret"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[fd00:ec2::254]/latest/meta-data/".to_owned(),
        "http://localhost:10248/healthz".to_owned(),
    ];
    for (index, url) in urls.iter().enumerate() {
        let web = json!({"web": {"url": url, "jsonPath": "{$.name}"}});
        tenant.create(&run(&tenant.node.name, &format!("reach-{index}"), &web, 0));
    }
    for (index, url) in urls.iter().enumerate() {
        let ended = eventually(&format!("the end of the hook that asks {url}"), || {
            let run = tenant.run(&format!("reach-{index}"));
            has_ended(&run).then_some(run)
        });
        assert_eq!(ended["status"]["phase"], "Error", "{url}: {ended:#}");
        let why = ended["status"]["metricResults"].to_string();
        assert!(why.contains("may not be reached by a hook"), "{url}: {why}");
    }
    assert_eq!(published.count("/secret"), 0);
}

/// S5: hooks that hold their permits for nearly a minute; all of them together take minutes.
fn hold_up_nobody(tenant: &Tenant<'_>, agent: &Agent) {
    let victim = Pod::run(tenant.cluster, "shop", ONE);
    let before = Process(agent.pid()).peak();
    let bytes = MANY * LARGE + TOO_LARGE * LARGEST;
    let sleeps = json!({"exec": {"container": "app", "command": ["sleep", "55"], "timeoutSeconds": 60}});
    let node = &tenant.node;
    let many = (0..MANY).map(|index| run(&node.name, &format!("many-{index}"), &sleeps, LARGE));
    let large = (0..TOO_LARGE).map(|index| run(&node.name, &format!("large-{index}"), &sleeps, LARGEST));
    for some in many.chain(large).collect::<Vec<Value>>().chunks(20) {
        assert!(tenant.create(&json!({"apiVersion": "v1", "kind": "List", "items": some})));
    }
    // The next agent lists all of them at once.
    assert_alive(agent, before, bytes);
    agent.kill();
    let agent = start(tenant.cluster);
    eventually("as many hooks of the tenant as he gets permits for", || {
        // On a busy machine it may not answer in time while it reads all of them. Hooks wait only while the tenant has all permits
        // that he gets.
        let (_, metrics) = agent.get("/metrics")?;
        let sum = |parts: &[&str]| samples(&metrics, parts).iter().sum::<f64>();
        let running = sum(&["inplace_hook_runs", "phase=\"Running\""]);
        (running > 0.0 && sum(&["inplace_waiting_hook_runs"]) >= 100.0).then_some(())
    });
    let own = json!({"exec": {"container": "app", "command": ["true"], "timeoutSeconds": 60}});
    let mut own = run(&tenant.node.name, "own", &own, 0);
    own["metadata"]["namespace"] = json!(victim.namespace);
    own["spec"]["args"][0]["value"] = json!(victim.name);
    tenant.cluster.apply(&own.to_string());
    // The tenant's hooks would take more than ten minutes.
    let ended = eventually("the end of the other namespace's hook", || {
        let own = format!("/apis/tkex.tencent.com/v1alpha1/namespaces/{}/hookruns/own", victim.namespace);
        let run = tenant.cluster.read(&own);
        has_ended(&run).then_some(run)
    });
    assert_eq!(ended["status"]["phase"], "Successful", "{ended:#}");
    assert_alive(&agent, before, bytes);
}

/// The agent runs and has used less memory than its container may, even when built without optimization; and since an agent
/// had this peak in mebibytes, less than half of what the objects of the tenant hold, in bytes.
pub(super) fn assert_alive(agent: &Agent, before: f64, objects: usize) {
    assert!(!agent.has_ended(), "{}", agent.log());
    let peak = Process(agent.pid()).peak();
    let objects = f64::from(u32::try_from(objects >> 20).unwrap());
    eprintln!("the agent's memory: {before:.0} MiB, and {peak:.0} MiB at most with objects of {objects} MiB");
    assert!(peak < MEMORY_LIMIT_MIB, "{peak} MiB");
    assert!(peak - before < objects / 2.0, "{before} MiB, and {peak} MiB with objects of {objects} MiB");
}

/// A HookRun with one measurement for the pod `busy`, padded by `bytes`.
fn run(node: &str, name: &str, provider: &Value, bytes: usize) -> Value {
    let pieces = bytes.div_ceil(LARGEST_VALUE);
    let filler = |index| json!({"name": format!("filler-{index}"), "value": "x".repeat(bytes / pieces)});
    let args: Vec<_> =
        std::iter::once(json!({"name": "PodName", "value": "busy"})).chain((0..pieces).map(filler)).collect();
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"inplace.dev/node": node}},
        "spec": {
            "args": args,
            "metrics": [{"name": "one", "count": 1, "consecutiveErrorLimit": 0, "provider": provider}],
        },
    })
}
