//! TLS of `web`: which certificates are accepted.

use std::path::Path;
use std::process::Command;

use inplace::api::hook_run::HookPhase;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use super::server::Server;
use super::{error, once, settings};

/// An authority, and a server with a certificate of it for `hook.test` only.
struct Fixture {
    server: Server,
    authority: String,
}

impl Fixture {
    fn start() -> Self {
        // Installs the cryptography provider.
        settings();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let subject = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        openssl(
            Command::new("openssl")
                .args(["req", "-x509", "-subj", "/CN=authority", "-keyout"])
                .arg(at("ca.key"))
                .arg("-out")
                .arg(at("ca.pem"))
                .args(subject),
        );
        openssl(
            Command::new("openssl")
                .args(["req", "-x509", "-subj", "/CN=server", "-keyout"])
                .arg(at("key.pem"))
                .arg("-out")
                .arg(at("cert.pem"))
                .arg("-CA")
                .arg(at("ca.pem"))
                .arg("-CAkey")
                .arg(at("ca.key"))
                .args([
                    "-addext",
                    "subjectAltName=DNS:hook.test",
                    "-addext",
                    "basicConstraints=critical,CA:FALSE",
                ])
                .args(subject),
        );
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate(&at("cert.pem"))],
                PrivateKeyDer::from_pem_file(at("key.pem")).unwrap(),
            )
            .unwrap();
        let authority = std::fs::read_to_string(at("ca.pem")).unwrap();
        Self { server: Server::with_tls(config), authority }
    }

    fn asks(&self, path: &str, tls: &Value) -> Value {
        let url = format!("https://{}{path}", self.server.address);
        json!({"web": {"url": url, "jsonPath": "{$.age}", "tls": tls}})
    }
}

fn openssl(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("openssl: {error}; run: make setup"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

#[tokio::test]
async fn a_server_is_believed_by_its_authority_and_its_name() {
    let fixture = Fixture::start();
    let (phase, measurement) =
        once(fixture.asks("/age", &json!({"caBundle": fixture.authority, "serverName": "hook.test"}))).await;
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, "43"), "{measurement:?}");
    // `serverName` is for TLS only; the `Host` header is that of the URL.
    let host = format!("host: {}\r\n", fixture.server.address);
    assert!(fixture.server.requests()[0].has(&host), "{:?}", fixture.server.requests());
    let (phase, _) = once(fixture.asks("/age", &json!({"insecureSkipVerify": true}))).await;
    assert_eq!(phase, HookPhase::Successful);
}

#[tokio::test]
async fn who_cannot_prove_it_is_not_asked() {
    let fixture = Fixture::start();
    let other = Fixture::start();
    for (tls, why) in [
        (json!({"caBundle": fixture.authority}), "certificate"),
        (json!({"caBundle": fixture.authority, "serverName": "other.test"}), "certificate"),
        (json!({"caBundle": other.authority, "serverName": "hook.test"}), "certificate"),
        (json!({"serverName": "hook.test"}), ""),
        (json!({"caBundle": "s3cret", "serverName": "hook.test"}), "no PEM certificate"),
        (json!({"caBundle": fixture.authority, "serverName": "127.0.0.1"}), "is not a DNS name"),
        (json!({"caBundle": fixture.authority, "serverName": "0x7f000001"}), "is not a DNS name"),
        (json!({"caBundle": fixture.authority, "serverName": "a b"}), "is not a DNS name"),
    ] {
        let message = error(fixture.asks("/age", &tls)).await;
        assert!(message.contains(why), "{tls}: {message}");
    }
    assert!(fixture.server.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_does_not_leave_tls() {
    let (fixture, plain) = (Fixture::start(), Server::start());
    let tls = json!({"caBundle": fixture.authority, "serverName": "hook.test"});
    let message = error(fixture.asks(&format!("/to?{}", plain.url("/age?s3cret")), &tls)).await;
    assert!(message.contains("leaves TLS"), "{message}");
    assert!(plain.requests().is_empty());
}
