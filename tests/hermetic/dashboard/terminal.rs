//! `inplace status -w` and `inplace restart --wait` in a terminal, as docs/images shows them. With `INPLACE_WRITE_PICTURES=1`
//! the pictures are written from the output of the program.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::objects::{self, ago, answer, status, web};
use super::writes_pictures;
use crate::api_server::ApiServer;
use crate::support::screen::Screen;

/// How long the next output may take. Only a failing test reaches it.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The width of the terminal.
const COLUMNS: usize = 128;

/// The program in a terminal, and what it has written.
struct Terminal {
    child: Child,
    output: Receiver<Vec<u8>>,
    written: Vec<u8>,
}

impl Terminal {
    /// Runs `inplace` with these arguments.
    fn run(api: &ApiServer, arguments: &str) -> Self {
        let program = env!("CARGO_BIN_EXE_inplace");
        let line = format!(
            "stty cols {COLUMNS} rows 30; exec {program} {arguments} --kubeconfig {}",
            api.kubeconfig().display()
        );
        let mut command = Command::new("script");
        command
            .args(["-qfec", &line, "/dev/null"])
            .env("HOME", "/nonexistent")
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read) = stdout.read(&mut piece) {
                if read == 0 || sender.send(piece[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, output, written: Vec::new() }
    }

    /// The screen, once it has a line with this text.
    fn until(&mut self, text: &str) -> Screen {
        loop {
            let screen = Screen::after(&String::from_utf8_lossy(&self.written), COLUMNS);
            if screen.lines().iter().any(|line| line.contains(text)) {
                return screen;
            }
            let piece = self.output.recv_timeout(WAIT_LIMIT);
            self.written
                .extend(piece.unwrap_or_else(|_| panic!("{text} is not shown: {:#?}", screen.lines())));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// Writes the picture if that is asked for, and checks that the documentation has it.
fn check(name: &str, screen: &Screen, typed: &str) {
    let path = PathBuf::from(format!("docs/images/{name}.svg"));
    if writes_pictures() {
        fs::write(&path, screen.picture(typed)).unwrap();
    }
    let picture = fs::read_to_string(&path).unwrap();
    let headings = screen.lines().into_iter().find(|line| line.trim_start().starts_with("POD ")).unwrap();
    assert!(
        headings.split_whitespace().all(|heading| picture.contains(&format!(">{heading}<"))),
        "{name}: {headings}"
    );
}

#[tokio::test]
async fn pictures_of_status() {
    let api = ApiServer::start().await;
    for number in 0..3 {
        api.put(objects::pod("StatefulSet/arena", &format!("arena-{number}"), "node-1"));
    }
    let mut terminal = Terminal::run(&api, "status -w");
    api.arrived("WATCH pods", 1).await;
    for number in 0..3 {
        let name = format!("arena-{number}");
        for (phase, step, down) in [
            ("Running", "Drain", None),
            ("Running", "Verify", Some(71 + number)),
            ("Succeeded", "Ready", Some(71 + number)),
        ] {
            api.edit("shop", &name, |pod| answer(pod, &status("match-42", phase, step, 2_100, down)));
            terminal.until(&format!("{name}  match-42  {phase}"));
        }
    }
    let screen = terminal.until("down 73 ms");
    check("terminal-status", &screen, "inplace status -w");
}

#[tokio::test]
async fn pictures_of_wait() {
    let api = ApiServer::start().await;
    api.put(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"spec": {"containers": [{"name": "app", "image": "i"}]}}}}));
    for number in 0..20 {
        let mut pod = objects::pod("Deployment/web", &web(number), &format!("node-{}", number % 5));
        pod["metadata"]["labels"]["app"] = json!("web");
        api.put(pod);
    }
    let typed = "restart deploy/web -c app --max-unavailable 20% --wait";
    let mut terminal = Terminal::run(&api, typed);
    api.until("the rollout exists", |store| store.all("inplacerollouts").next().is_some()).await;
    let rollout = api.store(|store| store.all("inplacerollouts").next().cloned()).unwrap();
    let (uid, name) =
        (rollout["metadata"]["uid"].as_str().unwrap(), rollout["metadata"]["name"].as_str().unwrap());
    for number in 0..12 {
        let now = match number {
            0..=7 => status(uid, "Succeeded", "Ready", 20_000, Some(64 + number)),
            8 => status(uid, "Running", "Swap", 900, None),
            _ => status(uid, "Running", "Verify", 1_500, Some(64 + number)),
        };
        api.edit("shop", &web(usize::try_from(number).unwrap()), |pod: &mut Value| {
            let record =
                json!({"rollout": uid, "name": name, "stage": "Ordered", "at": ago(9_000), "seconds": 600});
            pod["metadata"]["annotations"]["inplace.dev/rollout"] = json!(record.to_string());
            pod["metadata"]["labels"]["inplace.dev/rollout-uid"] = json!(uid);
            answer(pod, &now);
        });
    }
    api.edit_of("inplacerollouts", "shop", name, |rollout| {
        rollout["status"] = json!({"observedGeneration": 1, "phase": "Running", "target": "Deployment/web", "pods": 20, "wanted": 20,
            "done": 8, "busy": 4, "startedAt": ago(20_000), "downtimeMs": {"median": 68, "most": 71}});
    });
    terminal.until("8/20 done");
    let screen = terminal.until(&web(11));
    check("terminal-wait", &screen, &format!("inplace {typed}"));
}
