//! The provider `prometheus` with a server that is not Prometheus, or one that answers unexpectedly. The real one
//! is in `tests/node`.

use serde_json::json;

use super::error;
use super::server::Server;

#[tokio::test]
async fn what_is_not_prometheus_is_an_error() {
    let server = Server::start();
    let ask = |prefix: &str| json!({"prometheus": {"address": server.url(prefix), "query": "up{token=\"{{ args.token }}\"}"}});
    let message = error(ask("/bad")).await;
    assert_eq!(message, "Prometheus cannot answer the query: 1:3: parse error");
    assert_eq!(server.requests()[0].line, "GET /bad/api/v1/query?query=up%7Btoken%3D%22s3cret%22%7D");
    let message = error(ask("")).await;
    assert!(
        message.ends_with("/api/v1/query answered 200 OK, but not with a Prometheus response"),
        "{message}"
    );
    let message = error(json!({"prometheus": {"address": "http://169.254.169.254", "query": "up"}})).await;
    assert!(message.contains("may not be reached"), "{message}");
}
