//! S9: the author of a pod chooses the target of its preStop handler, and the agent sends the request from the
//! host's network. A redirect must not lead to another host.

use inplace::api::status::Phase;

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::Pod,
    support::http_server::{HttpServer, answer},
};

/// A server that sends the same answer to every request.
fn answering(ip: &str, code: u16, headers: String) -> HttpServer {
    HttpServer::start((ip, 0), move |_, stream| answer(stream, code, &headers, ""))
}

#[test]
fn s9_a_pre_stop_handler_leads_to_no_other_host() {
    let cluster = Cluster::shared();
    Agent::shared();
    let ip = cluster.node().ip;
    // A server on the host's loopback relies on not being reachable from elsewhere.
    let secret = answering("127.0.0.1", 200, String::new());
    let same_host = answering(&ip, 200, String::new());
    // A kubelet of 1.20 follows both redirects when the pod is deleted, so the agent's requests are counted
    // before that.
    for (name, host, target, follows) in
        [("away", "127.0.0.1", &secret, 0), ("stays", ip.as_str(), &same_host, 1)]
    {
        let first = answering(&ip, 302, format!("Location: http://{host}:{}/\r\n", target.port()));
        let handler = format!("{{httpGet: {{host: \"{ip}\", port: {}, path: /}}}}", first.port());
        let spec = format!(
            "terminationGracePeriodSeconds: 5\ncontainers: [{{name: app, image: lab/app:v1, lifecycle: {{preStop: {handler}}}}}]"
        );
        let pod = Pod::run(cluster, name, &spec);
        pod.ask("restart app", Phase::Succeeded);
        assert_eq!(pod.facts().settled().running("app").attempt, 1);
        assert_eq!((first.requests().len(), target.requests().len()), (1, follows), "{name}");
    }
}
