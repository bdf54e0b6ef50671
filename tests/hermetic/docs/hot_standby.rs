//! The server of the example `docs/examples/hot-standby`, as processes of this machine: one takes over from the other again
//! and again, and after SIGKILL. What an agent does with it is a cluster test.

use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};

use crate::support::session_clients::{Clients, connect, count, servers};
use crate::support::wait::eventually;

/// How often a process takes over from the other one.
const TAKEOVERS: usize = 3;
/// The clients with a session that stay connected, and as many with a connection for each request.
const STAYING: usize = 3;

/// A folder in the place of the volume, and the port that the processes share.
struct Place {
    volume: tempfile::TempDir,
    port: u16,
}

/// A running process of the example.
struct Process(Child);

impl Place {
    /// The port is below those that the kernel assigns, and depends on this process.
    fn new(offset: u32) -> Self {
        let port = u16::try_from(20_000 + (std::process::id() * 2 + offset) % 10_000).unwrap();
        Self { volume: tempfile::tempdir().unwrap(), port }
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Starts a process, and waits until `listening` processes listen.
    fn start(&self, listening: usize) -> Process {
        let mut command = Command::new("python3");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/hot-standby/server.py"));
        command.env("PORT", self.port.to_string()).env("STATE", self.volume.path());
        let process = Process(command.spawn().unwrap());
        eventually(&format!("{listening} listening processes"), || {
            (self.listening() == listening).then_some(())
        });
        process
    }

    /// How many requests of each client were counted.
    fn counts(&self) -> Vec<u64> {
        let sessions = fs::read(self.volume.path().join("sessions")).unwrap();
        let counts = sessions.as_chunks().0.iter().map(|count| u64::from_ne_bytes(*count));
        counts.take(2 * STAYING).collect()
    }

    /// How many sockets listen on the port.
    fn listening(&self) -> usize {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let address = format!("00000000:{:04X}", self.port);
        let listens = |line: &&str| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.get(1).is_some_and(|local| *local == address) && words.get(3) == Some(&"0A")
        };
        table.lines().filter(listens).count()
    }
}

impl Process {
    /// Sends SIGTERM; returns when the process has ended by itself, without an error.
    fn stop(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        let status = eventually("the end of the process", || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }

    /// Sends SIGKILL.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn clients_of_the_example_notice_no_takeover() {
    let place = Place::new(0);
    let mut owner = place.start(1);
    let clients = Clients::start(place.address(), STAYING, STAYING);
    // A line that is not complete. It was read when a later one has been answered.
    let mut begun = connect(place.address()).unwrap();
    begun.get_mut().write_all(b"9").unwrap();
    assert_eq!(count(&mut connect(place.address()).unwrap(), 8).unwrap().0, 1);
    // A standby that is not used takes nothing.
    place.start(2).stop();
    for _ in 0..TAKEOVERS {
        let other = place.start(2);
        owner.stop();
        owner = other;
        let before = place.counts();
        eventually("each client to be counted by the new owner", || {
            place.counts().iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
    }
    for (session, answers) in clients.end().into_iter().enumerate() {
        assert_eq!(servers(&answers).len(), 1 + TAKEOVERS, "session {session}");
    }
    begun.get_mut().write_all(b"\n").unwrap();
    let mut line = String::new();
    begun.read_line(&mut line).unwrap();
    assert!(line.starts_with("9 1 "), "{line:?}");
    owner.stop();
}

#[test]
fn the_sessions_of_the_example_outlive_a_process_that_is_killed() {
    let place = Place::new(1);
    let next = || count(&mut connect(place.address()).unwrap(), 7).unwrap();
    let owner = place.start(1);
    let (counted, first) = next();
    assert_eq!(counted, 1);
    let other = place.start(2);
    assert_eq!(next(), (2, first));
    owner.kill();
    eventually("the end of its socket", || (place.listening() == 1).then_some(()));
    let (counted, second) = next();
    assert_eq!(counted, 3);
    assert_ne!(second, first);
    // Nobody is left; the next process finds the sessions.
    other.kill();
    let last = place.start(1);
    assert_eq!(next().0, 4);
    last.stop();
}
