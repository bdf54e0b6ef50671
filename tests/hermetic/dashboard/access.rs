//! Who is answered: the token, the name of the host, other pages, other methods, and the headers of every answer.

use std::net::TcpStream;

use nix::sys::signal::Signal;
use reqwest::{Client, Method, StatusCode};

use super::{Dashboard, objects};
use crate::api_server::{ApiServer, Fault};

async fn start() -> (ApiServer, Dashboard) {
    let api = ApiServer::start().await;
    objects::put(&api);
    let dashboard = Dashboard::start(&api, &[]);
    (api, dashboard)
}

/// The status of the answer to a request with these headers.
async fn asked(url: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = Client::new().get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn only_who_knows_the_token_is_answered() {
    let (api, dashboard) = start().await;
    let root = format!("http://{}", dashboard.host());
    let token = dashboard.url.trim_end_matches('/').rsplit('/').next().unwrap();
    let mut wrong = token.to_owned();
    wrong.replace_range(..1, if token.starts_with('0') { "1" } else { "0" });
    for path in ["", "/", "/api/overview", &format!("/{wrong}/"), &format!("/{wrong}/api/overview"), "/../x/"]
    {
        assert_eq!(asked(&format!("{root}{path}"), &[]).await, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["", "style.css", "app.js", "dom.js", "views.js", "icon.svg", "api/overview"] {
        assert_eq!(asked(&format!("{}{path}", dashboard.url), &[]).await, StatusCode::OK, "{path}");
    }
    for path in ["none.js", "api/pod/shop/none", "api/none"] {
        assert_eq!(asked(&format!("{}{path}", dashboard.url), &[]).await, StatusCode::NOT_FOUND, "{path}");
    }
    let other = Dashboard::start(&api, &[]);
    assert_ne!(other.url.rsplit('/').nth(1), dashboard.url.rsplit('/').nth(1));
}

#[tokio::test]
async fn another_name_for_this_address_is_not_answered() {
    let (_server, dashboard) = start().await;
    let port = dashboard.host().split(':').nth(1).unwrap();
    for (host, expected) in [
        (format!("127.0.0.1:{port}"), StatusCode::OK),
        (format!("localhost:{port}"), StatusCode::FORBIDDEN),
        (format!("attacker.example:{port}"), StatusCode::FORBIDDEN),
        (format!("localhost.attacker.example:{port}"), StatusCode::FORBIDDEN),
        ("127.0.0.1".to_owned(), StatusCode::FORBIDDEN),
        ("127.0.0.1:1".to_owned(), StatusCode::FORBIDDEN),
    ] {
        let status = asked(&format!("{}api/overview", dashboard.url), &[("host", &host)]).await;
        assert_eq!(status, expected, "{host}");
    }
}

/// A script that an earlier process on this port left in the browser would answer in place of this one.
#[tokio::test]
async fn no_service_worker_is_served() {
    let (_server, dashboard) = start().await;
    let script = format!("{}app.js", dashboard.url);
    assert_eq!(asked(&script, &[("service-worker", "script")]).await, StatusCode::FORBIDDEN);
    assert_eq!(asked(&script, &[]).await, StatusCode::OK);
}

#[tokio::test]
async fn requests_that_another_page_caused_are_not_answered() {
    let (_server, dashboard) = start().await;
    for (from, expected) in [
        ("same-origin", StatusCode::OK),
        ("none", StatusCode::OK),
        ("same-site", StatusCode::FORBIDDEN),
        ("cross-site", StatusCode::FORBIDDEN),
    ] {
        for path in ["", "api/overview"] {
            let status = asked(&format!("{}{path}", dashboard.url), &[("sec-fetch-site", from)]).await;
            assert_eq!(status, expected, "{from} {path:?}");
        }
    }
}

#[tokio::test]
async fn every_answer_forbids_what_the_page_does_not_need() {
    let (_server, dashboard) = start().await;
    for path in ["", "app.js", "api/overview", "none", "../wrong/"] {
        let answer = reqwest::get(format!("{}{path}", dashboard.url)).await.unwrap();
        let header = |name: &str| answer.headers()[name].to_str().unwrap();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!((header("cache-control"), header("referrer-policy")), ("no-store", "no-referrer"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(answer.headers().get("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn nothing_can_be_written_and_only_reads_reach_the_api_server() {
    let (api, dashboard) = start().await;
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        for path in ["", "app.js", "api/overview", "api/pod/shop/arena-0"] {
            let url = format!("{}{path}", dashboard.url);
            let status = Client::new().request(method.clone(), url).send().await.unwrap().status();
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
    dashboard.data("overview").await;
    dashboard.data(&format!("rollout/shop/{}", "web-restart-x7k2p")).await;
    let calls = api.calls();
    assert!(calls.iter().all(|call| call.starts_with("LIST ") || call.starts_with("WATCH ")), "{calls:#?}");
    let watches = |calls: &[String]| calls.iter().filter(|call| call.starts_with("WATCH ")).count();
    api.arrived("WATCH ", 7).await;
    // Browsers cause no calls.
    let before = api.calls().len();
    for _ in 0..20 {
        dashboard.data("overview").await;
        dashboard.data("pod/shop/arena-0").await;
    }
    assert_eq!((api.calls().len(), watches(&api.calls())), (before, 7), "{:#?}", api.calls());
    assert_eq!(api.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn it_listens_on_the_loopback_interface_only() {
    let (_server, dashboard) = start().await;
    let port: u16 = dashboard.host().split(':').nth(1).unwrap().parse().unwrap();
    // Every address of 127.0.0.0/8 is on the loopback interface: a socket for all addresses would answer here too.
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(TcpStream::connect(("127.0.0.2", port)).is_err());
}

#[tokio::test]
async fn a_signal_ends_it_also_with_an_open_stream() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (_server, dashboard) = start().await;
        let stream = Client::new().get(format!("{}api/overview", dashboard.url));
        let mut stream = stream.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        let first = stream.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"data: {"), "{first:?}");
        assert_eq!(dashboard.end(signal), Some(0));
        while let Ok(Some(_)) = stream.chunk().await {}
    }
}

#[tokio::test]
async fn only_so_many_streams_are_open_and_one_that_ends_makes_room() {
    let (api, dashboard) = start().await;
    let url = format!("{}api/overview", dashboard.url);
    let client = Client::new();
    let stream = async || client.get(&url).header("accept", "text/event-stream").send().await.unwrap();
    let mut open = Vec::new();
    for number in 0..32 {
        let answer = stream().await;
        assert_eq!(answer.status(), StatusCode::OK, "stream {number}");
        open.push(answer);
    }
    let refused = stream().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.text().await.unwrap().contains("close some of them"));
    assert_eq!(asked(&url, &[]).await, StatusCode::OK, "a page without a stream is answered");
    open.pop();
    let again = async {
        while stream().await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    api.patiently("a stream after another one has ended", again).await;
}

#[tokio::test]
async fn pods_that_cannot_be_listed_end_the_command() {
    let api = ApiServer::start().await;
    api.on("LIST pods").fault(Fault::Answer(403, "pods is forbidden"));
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").arg("dashboard");
    let output = command.arg("--kubeconfig").arg(api.kubeconfig()).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("listing pods: ") && said.contains("pods is forbidden"), "{said}");
    assert!(output.stdout.is_empty());
}
