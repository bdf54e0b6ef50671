//! The provider `web`: what is sent, what is read, and what a server cannot make it do.

use inplace::api::hook_run::HookPhase;
use inplace::hook::address_policy::AddressPolicy;
use inplace::hook::executor::Executor;
use inplace::hook::place::Place;
use inplace::hook::settings::Settings;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use super::server::Server;
use super::{error, once, once_with, settings};

/// A request for this path, with `$.age` as the result and a time limit that a busy machine does not reach.
fn asks(server: &Server, path: &str) -> Value {
    json!({"web": {"url": server.url(path), "jsonPath": "{$.age}", "timeoutSeconds": 30}})
}

#[tokio::test]
async fn the_request_is_sent_as_written_with_its_arguments() {
    let server = Server::start();
    let (phase, measurement) = once(json!({"web": {
        "url": server.url("/{{ args.path }}?q={{args.token}}"),
        "method": "POST",
        "headers": [{"key": "Authorization", "value": "Bearer {{ args.token }}"}, {"key": "X-A", "value": "1"}],
        "body": "{\"what\": \"{{ args.path }}\"}",
        "jsonPath": "{$.age}",
    }}))
    .await;
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, "43"), "{measurement:?}");
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].line, "POST /age?q=s3cret");
    assert_eq!(requests[0].body, "{\"what\": \"age\"}");
    assert!(
        requests[0].has("authorization: Bearer s3cret\r\n") && requests[0].has("x-a: 1\r\n"),
        "{requests:?}"
    );
    assert!(requests[0].has(&format!("host: {}\r\n", server.address)), "{requests:?}");
    assert!(!requests[0].has("accept-encoding"), "what is packed could be a bomb: {requests:?}");
}

#[tokio::test]
async fn what_counts_as_an_answer_is_the_hooks_to_say() {
    let server = Server::start();
    for (path, codes, expect) in [
        ("/age", json!([]), Ok("{\"age\":43}")),
        ("/unavailable", json!([]), Err("answered 503")),
        ("/unavailable", json!([200, 503]), Ok("{\"age\":43}")),
        ("/age", json!([204]), Err("answered 200")),
        // A redirect whose status is accepted is not followed.
        ("/to?/age", json!([302]), Ok("")),
        ("/text", json!([]), Ok("not json")),
        ("/empty", json!([]), Ok("")),
    ] {
        let (_, measurement) = once(json!({"web": {"url": server.url(path), "statusCodes": codes}})).await;
        match expect {
            Ok(value) => {
                assert_eq!(measurement.phase, HookPhase::Successful, "{path}: {measurement:?}");
                assert_eq!(measurement.value, value, "{path}");
            }
            Err(why) => assert!(measurement.message.contains(why), "{path}: {measurement:?}"),
        }
    }
    let head = json!({"web": {"url": server.url("/age"), "method": "HEAD", "jsonPath": "{$.age}"}});
    let (phase, measurement) = once(head).await;
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, ""));
}

#[tokio::test]
async fn a_server_that_takes_its_time_costs_no_more_than_the_timeout() {
    let server = Server::start();
    for path in ["/hang", "/drip", "/drip-head"] {
        let mut asks = asks(&server, &format!("{path}?token=s3cret"));
        asks["web"]["timeoutSeconds"] = json!(1);
        let message = error(asks).await;
        let expect = format!("{} did not answer completely within 1 s", server.url(path));
        assert!(message.contains(&expect), "{path}: {message}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_not_read_to_its_end() {
    let server = Server::start();
    for path in ["/flood", "/gigabyte"] {
        let message = error(json!({"web": {"url": server.url(path), "timeoutSeconds": 60}})).await;
        assert!(message.contains("is longer than 1 MiB"), "{path}: {message}");
    }
    // More than the limit may be in the kernel's buffers, or discarded.
    assert!(server.flooded() < 32 << 20, "{}", server.flooded());
}

#[tokio::test]
async fn what_is_no_answer_is_an_error() {
    let server = Server::start();
    for (path, why) in [
        ("/short", "returned no usable answer"),
        ("/liar", "returned no usable answer"),
        ("/garbage", "returned no usable answer"),
        ("/text", "has no result"),
        ("/empty", "has no result"),
        ("/unavailable", "answered 503"),
    ] {
        let message = error(asks(&server, path)).await;
        assert!(message.contains(why) && message.contains(&server.url(path)), "{path}: {message}");
    }
    let (_, measurement) = once(asks(&server, "/long")).await;
    assert_eq!(measurement.value, "43", "what is behind the announced end does not count");
    // It has a port, so that no other test gets that, and does not listen.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/age", silent.local_addr().unwrap());
    let message = error(json!({"web": {"url": url, "timeoutSeconds": 30}})).await;
    assert!(message.contains("connection refused"), "{message}");
}

#[tokio::test]
async fn redirects_are_bounded_and_take_no_secrets_along() {
    let (server, other) = (Server::start(), Server::start());
    let headers = json!([{"key": "Authorization", "value": "Bearer {{ args.token }}"}]);
    let ask = |path: &str, method: &str| json!({"web": {"url": server.url(path), "method": method, "headers": headers}});

    let message = error(ask("/loop", "GET")).await;
    assert!(message.contains("more than 5 times"), "{message}");
    assert_eq!(server.requests().len(), 6);

    // A redirect to the same host gets the headers.
    let (phase, _) = once(ask("/to?/age", "GET")).await;
    assert_eq!(phase, HookPhase::Successful);
    assert!(server.requests().last().unwrap().has("bearer s3cret"));

    // A redirect to another host, or only to another port, does not.
    for path in ["/to?", "/keep?"] {
        let (phase, _) = once(ask(&format!("{path}{}", other.url("/age")), "GET")).await;
        assert_eq!(phase, HookPhase::Successful);
        assert!(!other.requests().last().unwrap().has("authorization"), "{:?}", other.requests());
    }

    // A request with side effects is not repeated at another host.
    let before = other.requests().len();
    let message = error(ask(&format!("/keep?{}", other.url("/age?s3cret")), "POST")).await;
    assert!(message.contains("only GET and HEAD requests follow a redirect"), "{message}");
    assert_eq!(other.requests().len(), before);

    let message = error(ask("/to?file:///etc/shadow", "GET")).await;
    assert!(message.contains("a scheme other than http"), "{message}");
}

#[tokio::test]
async fn of_a_long_url_the_beginning_is_shown() {
    let server = Server::start();
    let far = server.url("/far");
    let path = format!("/{}", "x".repeat(4000));
    for (web, begin, end) in [
        (
            json!({"url": far, "method": "POST"}),
            format!("{far} redirects to {}", server.url("/xxx")),
            "use that URL",
        ),
        (json!({"url": server.url(&path), "statusCodes": [204]}), server.url("/xxx"), "answered 200"),
    ] {
        let message = error(json!({"web": web})).await;
        assert!(message.starts_with(&begin) && message.contains(end), "{message}");
        assert!(message.len() <= 512, "{} bytes", message.len());
    }
}

#[tokio::test]
async fn what_is_denied_is_denied_by_address_by_name_and_behind_a_redirect() {
    let server = Server::start();
    for to in ["http://169.254.169.254/latest?s3cret", "http://[::ffff:169.254.169.254]/", "http://0.0.0.0/"]
    {
        let message = error(asks(&server, &format!("/to?{to}"))).await;
        assert!(message.contains("may not be reached by a hook"), "{to}: {message}");
    }
    // Nothing is allowed here: loopback is denied in every spelling.
    let asked = server.requests().len();
    let executor = Executor::new(Settings { address_policy: AddressPolicy::default(), ..settings() });
    let port = server.address.port();
    for host in ["127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:7f00:1]"] {
        let web = json!({"web": {"url": format!("http://{host}:{port}/age")}});
        let (phase, measurement) = once_with(&executor, &Place::default(), web, &json!({})).await;
        assert_eq!(phase, HookPhase::Error, "{host}");
        assert!(measurement.message.contains("loopback"), "{host}: {measurement:?}");
    }
    assert_eq!(server.requests().len(), asked, "somebody came through");
}

#[tokio::test]
async fn framing_is_not_for_a_hook_to_set() {
    let server = Server::start();
    for key in ["Content-Length", "transfer-encoding", "Connection"] {
        let headers = json!([{"key": key, "value": "0"}]);
        let message = error(json!({"web": {"url": server.url("/age"), "headers": headers}})).await;
        assert!(message.contains(key), "{message}");
    }
    assert!(server.requests().is_empty());
}
