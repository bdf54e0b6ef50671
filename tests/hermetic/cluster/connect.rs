//! Selection of the cluster, and the errors if none is found.

use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::error::Error;
use inplace::cluster::server::Server;
use inplace::failure::Class;

use super::super::api_server::ApiServer;

async fn error(text: &str, context: Option<&str>) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, text).unwrap();
    let target = ConnectOptions {
        kubeconfig: Some(path),
        context: context.map(str::to_owned),
        ..ConnectOptions::default()
    };
    connect(&target).await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_kubeconfig_names_server_and_namespace() {
    let api = ApiServer::start().await;
    let target = ConnectOptions {
        kubeconfig: Some(api.kubeconfig()),
        context: Some("fake".into()),
        ..ConnectOptions::default()
    };
    let (client, namespace) = connect(&target).await.unwrap();
    assert_eq!(namespace, "shop");
    let error = Server::new(client).pod("shop", "none").await.unwrap_err();
    assert_eq!(error.class(), Class::Gone);
    assert_eq!(
        error.to_string(),
        "reading pod shop/none: the object does not exist: pods \"none\" not found"
    );
}

/// An error distinguishes a call that the server cannot have received from one that it may have.
#[tokio::test]
async fn a_server_that_does_not_exist_has_received_nothing() {
    let api = ApiServer::start().await;
    let good = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let from = good.find("http://").unwrap();
    let address = good[from..].split(['\'', '"', '\n']).next().unwrap().to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    // It has a port, so that no other test gets that, and does not listen.
    let reserved = tokio::net::TcpSocket::new_v4().unwrap();
    reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = reserved.local_addr().unwrap();
    let hanging_up = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    for (server, class) in [
        (format!("http://{closed}"), Class::NotSent),
        // The top-level domain `invalid` never resolves.
        (format!("http://nowhere.invalid:{}", closed.port()), Class::NotSent),
        // A connection existed, so the server may have read the call.
        (format!("http://{silent}"), Class::Unavailable),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, good.replace(&address, &server)).unwrap();
        let (client, _) =
            connect(&ConnectOptions { kubeconfig: Some(path), ..ConnectOptions::default() }).await.unwrap();
        let error = Server::new(client).pod("shop", "web").await.unwrap_err();
        assert_eq!(error.class(), class, "{server}: {error}");
    }
    hanging_up.abort();
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig_is_said() {
    let api = ApiServer::start().await;
    let good = std::fs::read_to_string(api.kubeconfig()).unwrap();
    for (text, context, says) in [
        ("{", None, "the kubeconfig cannot be used"),
        ("apiVersion: v1\nkind: Config\n", None, "context"),
        (good.as_str(), Some("other"), "other"),
    ] {
        let error = error(text, context).await;
        assert_eq!(error.class(), Class::Final);
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("the-token") && !format!("{error:?}").contains("the-token"));
    }
    let target = ConnectOptions { kubeconfig: Some("/does/not/exist".into()), ..ConnectOptions::default() };
    let error = connect(&target).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("/does/not/exist"), "{error}");
}
