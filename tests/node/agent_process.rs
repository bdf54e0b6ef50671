//! The process of an agent: its HTTP endpoints, its log and its exit.

#![expect(clippy::print_stderr, reason = "whoever reads a failed test wants the log")]

use std::{
    fs,
    net::TcpStream,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{http_client, panics, wait::eventually};

/// An agent process; killed on drop.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    pub(crate) fn new(child: Child, log: PathBuf) -> Self {
        Self { child, log }
    }

    /// Status code and body; `None` while no server listens.
    pub(crate) fn try_get(&self, path: &str) -> Option<(u16, String)> {
        http_client::get(self.connect()?, path)
    }

    pub(crate) fn connect(&self) -> Option<TcpStream> {
        // The agent selects a free port, and writes its address into the log when it listens.
        let log = self.log();
        let line = log.lines().find(|line| line.contains("serving /healthz"))?;
        let port: u16 = line.split("address=127.0.0.1:").nth(1)?.trim().parse().ok()?;
        TcpStream::connect(("127.0.0.1", port)).ok()
    }

    pub(crate) fn metrics(&self) -> String {
        let (code, text) = self.try_get("/metrics").unwrap();
        assert_eq!(code, 200);
        text
    }

    /// The value of the only sample that has all `parts` in its name and labels; 0 if there is none yet.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.metrics();
        let fits = |line: &&str| !line.starts_with('#') && parts.iter().all(|part| line.contains(part));
        let samples: Vec<_> = text.lines().filter(fits).collect();
        assert!(samples.len() <= 1, "{parts:?}: {samples:?}");
        samples.first().map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub(crate) fn assert_metric(&self, parts: &[&str], value: f64) {
        let found = self.metric(parts);
        assert!((found - value).abs() < f64::EPSILON, "{parts:?} is {found}, not {value}");
    }

    /// Waits until the sample has the value.
    pub(crate) fn await_metric(&self, parts: &[&str], value: f64) {
        let is = |found: f64| (found - value).abs() < f64::EPSILON;
        eventually(&format!("{parts:?} to be {value}"), || is(self.metric(parts)).then_some(()));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the process exits.
    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually("the agent to end", || self.child.try_wait().unwrap())
    }

    /// Sends SIGTERM and waits until the process has exited with code 0.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.end();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if thread::panicking() {
            let end: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of {}, newest first:\n{}", self.log.display(), end.join("\n"));
        } else {
            panics::assert_none(|| log);
        }
    }
}
