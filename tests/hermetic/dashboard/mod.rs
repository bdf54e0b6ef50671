//! The dashboard as a process, in front of a fake API server: who is answered, what is read from the API server, what the
//! data says, and the page in a real browser.

mod access;
mod data;
mod objects;
mod page;
mod terminal;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::api_server::ApiServer;

/// A dashboard that has printed its URL.
struct Dashboard {
    child: Child,
    /// Ends with a slash.
    url: String,
}

impl Dashboard {
    /// Shows the namespace `shop`.
    fn start(api: &ApiServer, flags: &[&str]) -> Self {
        // For the requests of the tests.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").arg("dashboard").args(flags);
        command.arg("--kubeconfig").arg(api.kubeconfig()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim_end().to_owned();
        assert!(url.starts_with("http://127.0.0.1:") && url.ends_with('/'), "{url:?}");
        Self { child, url }
    }

    /// `127.0.0.1:PORT`.
    fn host(&self) -> &str {
        self.url.split('/').nth(2).unwrap()
    }

    /// The data at this path.
    async fn data(&self, path: &str) -> Value {
        let answer = reqwest::get(format!("{}api/{path}", self.url)).await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// The data at this path, once it meets `condition`.
    async fn until(&self, api: &ApiServer, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let data = self.data(path).await;
                if condition(&data) {
                    return data;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        api.patiently(path, found).await
    }

    /// Ends it with `signal`, and returns its exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if the pictures of the documentation are to be written (`make pictures`).
#[expect(clippy::disallowed_methods, reason = "a test has no other way to get a setting")]
fn writes_pictures() -> bool {
    std::env::var_os("INPLACE_WRITE_PICTURES").is_some()
}

/// The cells of a view.
fn cells(data: &Value) -> Vec<&Value> {
    let zones = data["view"]["zones"].as_array().unwrap().iter();
    let nodes = zones.flat_map(|zone| zone["nodes"].as_array().unwrap());
    nodes.flat_map(|node| node["cells"].as_array().unwrap()).collect()
}
