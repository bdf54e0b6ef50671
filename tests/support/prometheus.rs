//! A real Prometheus on loopback: its data is in a folder of the caller, and it ends with the value.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::ports::free_port;
use super::wait::eventually;

/// Killed on drop.
pub(crate) struct Prometheus {
    child: Child,
    pub(crate) port: u16,
    folder: PathBuf,
}

impl Prometheus {
    /// Starts one with this configuration; `@PORT` in it is its own port. It answers queries when this returns.
    pub(crate) fn start(folder: &Path, config: &str) -> Self {
        fs::create_dir_all(folder).unwrap();
        let port = free_port();
        fs::write(folder.join("config.yaml"), config.replace("@PORT", &port.to_string())).unwrap();
        let log = File::create(folder.join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("config.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus: {error}; run: make setup"));
        let mut prometheus = Self { child, port, folder: folder.to_owned() };
        eventually("a Prometheus that answers", || {
            assert!(prometheus.child.try_wait().unwrap().is_none(), "{}", prometheus.log());
            let answer = prometheus.get("/api/v1/query?query=1")?;
            (answer["status"] == "success").then_some(())
        });
        prometheus
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// The samples of an instant query; an error if it cannot be evaluated.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let bytes: Vec<_> = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={}", bytes.concat())).ok_or("no answer")?;
        match answer["data"]["result"].as_array() {
            Some(samples) if answer["status"] == "success" => Ok(samples.clone()),
            _ => Err(format!("{query}: {answer}")),
        }
    }

    /// The alerts that fire. `Err` while there is no answer.
    pub(crate) fn firing(&self) -> Result<Vec<Value>, String> {
        let answer = self.get("/api/v1/alerts").ok_or("no answer")?;
        let alerts = answer["data"]["alerts"].as_array().unwrap();
        Ok(alerts.iter().filter(|alert| alert["state"] == "firing").cloned().collect())
    }

    /// The JSON at a path; `None` while there is none.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        // Version 1.0 has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
