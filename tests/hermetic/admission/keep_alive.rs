//! Connections that stay open, as an API server uses them, and how they are closed when the process stops: in
//! time, and each at a moment at which no request is under way on it.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Fixture, HOST, Replica, review};

/// Longer than any shutdown takes.
const LONG: Duration = Duration::from_secs(60);

struct Connection(BufReader<TlsStream<TcpStream>>);

impl Connection {
    async fn to(fixture: &Fixture, replica: &Replica) -> Self {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(fixture.trusted().unwrap().as_bytes()) {
            roots.add(authority.unwrap()).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(replica.address).await.unwrap();
        let host = ServerName::try_from(HOST).unwrap();
        Self(BufReader::new(TlsConnector::from(Arc::new(config)).connect(host, stream).await.unwrap()))
    }

    /// Sends a request, and returns whether the server closes the connection after its answer.
    async fn ask(&mut self) -> bool {
        let body = review("web").to_string();
        let head =
            format!("POST /validate HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.0.write_all((head + &body).as_bytes()).await.unwrap();
        let (mut goes, mut length, mut line) = (false, 0, String::new());
        self.0.read_line(&mut line).await.unwrap();
        assert_eq!(line.trim_end(), "HTTP/1.1 200 OK");
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).await.unwrap();
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("connection", "close")) => goes = true,
                Some(("content-length", reported)) => length = reported.parse().unwrap(),
                _ => {}
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).await.unwrap();
        assert!(String::from_utf8(answer).unwrap().contains(r#""allowed":true"#));
        goes
    }

    /// Waits until the server closes the connection; fails if it does not.
    async fn ends(mut self) {
        let read = timeout(LONG, self.0.read(&mut [0])).await.expect("it ends");
        assert_eq!(read.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_server_that_is_to_stop_closes_every_connection_while_it_answers() {
    let (fixture, replica) = Fixture::settled().await;
    let mut used = Connection::to(&fixture, &replica).await;
    let mut rests = Connection::to(&fixture, &replica).await;
    let silent = Connection::to(&fixture, &replica).await;
    for _ in 0..2 {
        assert!(!used.ask().await && !rests.ask().await);
    }

    fixture.stop.cancel();
    assert!(used.ask().await, "another answer would not be its last");
    used.ends().await;
    assert!(Connection::to(&fixture, &replica).await.ask().await);
    rests.ends().await;
    silent.ends().await;
    // After the connections are closed, new clients are still answered for a while: they may not have observed
    // the stop.
    assert!(!replica.over.is_cancelled());
    let late = Connection::to(&fixture, &replica).await;
    assert!(Connection::to(&fixture, &replica).await.ask().await);
    timeout(LONG, replica.over.cancelled()).await.expect("it ends");
    drop(late);
    TcpStream::connect(replica.address).await.unwrap_err();
}
