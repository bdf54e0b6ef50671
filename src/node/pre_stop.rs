//! Runs the preStop handler of a container. The handler is read from the annotation in which the kubelet stores it,
//! and run as the kubelet does: exec in the container, httpGet and tcpSocket to the pod's own address, sleep.
//!
//! A handler that fails does not prevent the stop; the failure is reported. Commands and headers are never logged.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use reqwest::redirect::Policy;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;

use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::error::Error;

/// Maximum size of a command's output, in bytes: the output is not used.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum number of redirects to follow, as in the kubelet.
const MAX_REDIRECTS: usize = 10;

/// A handler in the JSON form of Kubernetes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handler {
    exec: Option<Exec>,
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    sleep: Option<Sleep>,
}

#[derive(Debug, Deserialize)]
struct Exec {
    #[serde(default)]
    command: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpGet {
    #[serde(default)]
    path: String,
    port: Port,
    #[serde(default)]
    host: String,
    #[serde(default)]
    scheme: String,
    #[serde(default)]
    http_headers: Vec<Header>,
}

#[derive(Debug, Deserialize)]
struct Header {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct TcpSocket {
    port: Port,
    #[serde(default)]
    host: String,
}

#[derive(Debug, Deserialize)]
struct Sleep {
    seconds: u64,
}

/// A number, or the name of one of the container's ports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Port {
    Number(u16),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    #[serde(default)]
    name: String,
    container_port: u16,
}

/// How to reach the container that is about to stop.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    id: &'a str,
    /// The pod's own address; the loopback address for a pod on the host's network.
    ip: IpAddr,
    /// The handler as JSON.
    handler: &'a str,
    /// The container's ports as JSON; empty when it has none.
    ports: &'a str,
}

/// Runs the handler of the container `id`, if it has one, for at most `budget`. The result is `None` if the container is
/// gone, and otherwise the failure of the handler as text for users: the caller stops the container all the same.
///
/// # Errors
/// When the runtime does not say what the handler is.
pub(super) async fn run(
    client: &Client,
    sandbox_id: &str,
    id: &str,
    budget: Duration,
) -> Result<Option<Result<(), String>>, Error> {
    let Some(status) = client.container(id, false).await?.and_then(|answer| answer.status) else {
        return Ok(None);
    };
    let Some(handler) = status.annotations.get(annotation::PRE_STOP) else { return Ok(Some(Ok(()))) };
    let sandbox = client.sandbox(sandbox_id, false).await?.and_then(|answer| answer.status);
    let ip = sandbox
        .and_then(|sandbox| sandbox.network)
        .and_then(|network| network.ip.parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let ports = status.annotations.get(annotation::PORTS).map_or("", String::as_str);
    Ok(Some(handle(client, Place { id, ip, handler, ports }, budget).await))
}

async fn handle(client: &Client, place: Place<'_>, budget: Duration) -> Result<(), String> {
    let handler: Handler = serde_json::from_str(place.handler)
        .map_err(|error| format!("the handler cannot be read: {}", kind(&error)))?;
    let ended = timeout(budget, dispatch(client, place, handler, budget)).await;
    ended.unwrap_or_else(|_| {
        Err(format!("the handler did not finish within the grace period of {} s", budget.as_secs()))
    })
}

async fn dispatch(
    client: &Client,
    place: Place<'_>,
    handler: Handler,
    budget: Duration,
) -> Result<(), String> {
    match handler {
        Handler { exec: Some(exec), .. } => {
            let answered = client.exec_bounded(place.id, exec.command, budget, MAX_ANSWER_BYTES).await;
            match answered {
                Ok(answer) if answer.exit_code == 0 => Ok(()),
                Ok(answer) => Err(format!("the command exited with {}", answer.exit_code)),
                Err(error) if is_too_large(&error) => Err(format!(
                    "the command printed more than {} KiB: its exit code is unknown",
                    MAX_ANSWER_BYTES >> 10
                )),
                Err(error) => Err(error.to_string()),
            }
        }
        Handler { http_get: Some(get), .. } => http_get(place, &get).await,
        Handler { tcp_socket: Some(socket), .. } => {
            let port = number(&socket.port, place.ports)?;
            let host = host(&socket.host, place.ip);
            let connected = TcpStream::connect((host.as_str(), port)).await;
            connected.map(drop).map_err(|error| format!("no connection to {host} port {port}: {error}"))
        }
        Handler { sleep: Some(sleep), .. } => {
            tokio::time::sleep(Duration::from_secs(sleep.seconds)).await;
            Ok(())
        }
        Handler { exec: None, http_get: None, tcp_socket: None, sleep: None } => {
            Err("the handler has an unknown type".to_owned())
        }
    }
}

/// True if the output of a command that has run to its end is too large to read. containerd itself does not send an
/// answer that exceeds its own limit.
fn is_too_large(error: &Error) -> bool {
    match error.source.as_ref().map(tonic::Status::code) {
        Some(Code::OutOfRange) => true,
        Some(Code::ResourceExhausted) => error.message.contains("larger than max"),
        _ => false,
    }
}

/// Sends one GET request. As in the kubelet, the certificate of an HTTPS server is not verified, and the body is not
/// read.
async fn http_get(place: Place<'_>, get: &HttpGet) -> Result<(), String> {
    let url = url(get, place.ip, place.ports)?;
    let client = reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .redirect(same_host())
        .no_proxy()
        .build()
        .map_err(|error| error.to_string())?;
    let mut request = client.get(&url);
    for header in &get.http_headers {
        request = request.header(&header.name, &header.value);
    }
    let answer = request.send().await.map_err(|error| format!("GET failed: {}", error.without_url()))?;
    let status = answer.status();
    if status.is_success() || status.is_redirection() {
        Ok(())
    } else {
        Err(format!("GET answered {status}"))
    }
}

/// The redirect policy of the kubelet: redirects to the same host are followed, up to [`MAX_REDIRECTS`]; a redirect to
/// another host is the final answer.
fn same_host() -> Policy {
    Policy::custom(|attempt| {
        let same = attempt.previous().first().is_some_and(|first| first.host() == attempt.url().host());
        match attempt.previous().len() {
            _ if !same => attempt.stop(),
            MAX_REDIRECTS.. => attempt.error("too many redirects"),
            _ => attempt.follow(),
        }
    })
}

fn url(get: &HttpGet, ip: IpAddr, ports: &str) -> Result<String, String> {
    let scheme = if get.scheme.eq_ignore_ascii_case("https") { "https" } else { "http" };
    let port = number(&get.port, ports)?;
    let slash = if get.path.starts_with('/') { "" } else { "/" };
    Ok(format!("{scheme}://{}:{port}{slash}{}", host(&get.host, ip), get.path))
}

/// The host as a URL requires it.
fn host(given: &str, ip: IpAddr) -> String {
    match (given, ip) {
        ("", IpAddr::V6(ip)) => format!("[{ip}]"),
        ("", IpAddr::V4(ip)) => ip.to_string(),
        (given, _) => given.to_owned(),
    }
}

/// Resolves a port that is a number, a name, or a number as a string.
fn number(port: &Port, ports: &str) -> Result<u16, String> {
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let declared: Vec<ContainerPort> = if ports.is_empty() {
        Vec::new()
    } else {
        serde_json::from_str(ports).map_err(|error| format!("the ports cannot be read: {}", kind(&error)))?
    };
    declared
        .iter()
        .find(|port| port.name == *name)
        .map(|port| port.container_port)
        .ok_or_else(|| format!("the container has no port named {name}"))
}

/// Only the kind and the position of a parse error. serde's message may quote the text, which may hold a token.
fn kind(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: &str = r#"[{"name":"http","containerPort":8080,"protocol":"TCP"},{"containerPort":9}]"#;

    fn get(json: &str) -> HttpGet {
        serde_json::from_str::<Handler>(json).unwrap().http_get.unwrap()
    }

    #[test]
    fn the_url_takes_the_pods_address_and_named_ports() {
        let v4: IpAddr = "10.88.0.7".parse().unwrap();
        let v6: IpAddr = "fd00::7".parse().unwrap();
        for (json, ip, expect) in [
            (r#"{"httpGet":{"path":"/bye","port":"http","scheme":"HTTP"}}"#, v4, "http://10.88.0.7:8080/bye"),
            (r#"{"httpGet":{"path":"bye","port":81,"scheme":"HTTPS"}}"#, v6, "https://[fd00::7]:81/bye"),
            (r#"{"httpGet":{"port":"82","host":"localhost"}}"#, v4, "http://localhost:82/"),
        ] {
            assert_eq!(url(&get(json), ip, PORTS).unwrap(), expect);
        }
    }

    #[test]
    fn a_port_that_is_not_there_is_named() {
        let handler = get(r#"{"httpGet":{"port":"admin"}}"#);
        let error = url(&handler, "10.0.0.1".parse().unwrap(), PORTS).unwrap_err();
        assert!(error.contains("no port named admin"), "{error}");
        assert!(number(&Port::Name("admin".into()), "").is_err());
    }

    #[test]
    fn every_kind_is_read() {
        let exec: Handler = serde_json::from_str(r#"{"exec":{"command":["sh","-c","x"]}}"#).unwrap();
        assert_eq!(exec.exec.unwrap().command.len(), 3);
        let tcp: Handler = serde_json::from_str(r#"{"tcpSocket":{"port":5432}}"#).unwrap();
        assert_eq!(tcp.tcp_socket.unwrap().port, Port::Number(5432));
        let sleep: Handler = serde_json::from_str(r#"{"sleep":{"seconds":7}}"#).unwrap();
        assert_eq!(sleep.sleep.unwrap().seconds, 7);
    }

    /// Answers every request with a redirect to the URL that the sender holds, or with 204; each request is recorded
    /// in [`CALLS`].
    async fn server(host: &str) -> (std::net::SocketAddr, tokio::sync::watch::Sender<Option<String>>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind((host, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let (to, target) = tokio::sync::watch::channel(None::<String>);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let target = target.borrow().clone();
                let answer = match target.as_deref() {
                    None => "HTTP/1.1 204 No Content\r\n".to_owned(),
                    Some(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n"),
                };
                CALLS.lock().unwrap().push(at);
                let _ = stream.write_all(format!("{answer}Connection: close\r\n\r\n").as_bytes()).await;
            }
        });
        (at, to)
    }

    static CALLS: std::sync::Mutex<Vec<std::net::SocketAddr>> = std::sync::Mutex::new(Vec::new());

    fn calls(at: std::net::SocketAddr) -> usize {
        CALLS.lock().unwrap().iter().filter(|called| **called == at).count()
    }

    #[tokio::test]
    async fn a_redirect_is_followed_on_the_same_host_only() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (pod, to) = server("127.0.0.1").await;
        let (other, _other) = server("127.0.0.2").await;
        let (same, _same) = server("127.0.0.1").await;
        let handler = get(&format!(r#"{{"httpGet":{{"path":"/bye","port":{}}}}}"#, pod.port()));
        let place = Place { id: "c", ip: pod.ip(), handler: "", ports: "" };

        to.send_replace(Some(format!("http://{other}/latest/meta-data")));
        http_get(place, &handler).await.unwrap();
        assert_eq!((calls(pod), calls(other)), (1, 0), "another host was asked");

        to.send_replace(Some(format!("http://{same}/there")));
        http_get(place, &handler).await.unwrap();
        assert_eq!((calls(pod), calls(same)), (2, 1));

        to.send_replace(Some("/again".to_owned()));
        let error = http_get(place, &handler).await.unwrap_err();
        assert!(error.contains("GET failed"), "{error}");
        assert_eq!(calls(pod), 2 + 10);
    }

    #[test]
    fn what_cannot_be_read_is_reported_without_its_text() {
        let error =
            serde_json::from_str::<Handler>(r#"{"httpGet":{"port":{"token":"s3cret"}}}"#).unwrap_err();
        assert!(!kind(&error).contains("s3cret"));
    }
}
