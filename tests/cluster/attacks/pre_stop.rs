//! S9: the author of a pod chooses the target of its preStop handler, and the agent sends the request from the
//! host's network. A redirect must not lead to another host.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use inplace::api::status::Phase;

use crate::{agent::Agent, cluster::Cluster, pod::Pod};

/// A server that sends the same answer to every request. It listens as long as the process runs.
struct Listener {
    port: u16,
    asked: Arc<AtomicU64>,
}

impl Listener {
    fn open(ip: &str, answer: String) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<AtomicU64>::default();
        let counts = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counts.fetch_add(1, Ordering::Relaxed);
                // A client that has disconnected gets no answer.
                let _ = say(stream, &answer);
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn say(mut stream: TcpStream, answer: &str) -> std::io::Result<()> {
    let _head = stream.read(&mut [0; 4096])?;
    stream.write_all(answer.as_bytes())
}

#[test]
fn s9_a_pre_stop_handler_leads_to_no_other_host() {
    let cluster = Cluster::shared();
    Agent::shared();
    let ip = cluster.node().ip;
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    // A server on the host's loopback relies on not being reachable from elsewhere.
    let secret = Listener::open("127.0.0.1", ok.to_owned());
    let same_host = Listener::open(&ip, ok.to_owned());
    // A kubelet of 1.20 follows both redirects when the pod is deleted, so the agent's requests are counted
    // before that.
    for (name, host, target, follows) in
        [("away", "127.0.0.1", &secret, 0), ("stays", ip.as_str(), &same_host, 1)]
    {
        let location = format!("http://{host}:{}/", target.port);
        let first = Listener::open(
            &ip,
            format!(
                "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            ),
        );
        let handler = format!("{{httpGet: {{host: \"{ip}\", port: {}, path: /}}}}", first.port);
        let spec = format!(
            "terminationGracePeriodSeconds: 5\ncontainers: [{{name: app, image: lab/app:v1, lifecycle: {{preStop: {handler}}}}}]"
        );
        let pod = Pod::run(cluster, name, &spec);
        pod.ask("restart app", Phase::Succeeded);
        assert_eq!(pod.facts().settled().running("app").attempt, 1);
        assert_eq!((first.asked(), target.asked()), (1, follows), "{name}");
    }
}
