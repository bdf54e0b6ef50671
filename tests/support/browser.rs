//! A headless Chromium that a test controls through its protocol for developers, over pipes: no port, no other program. Must not
//! know which pages it opens.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long one answer may take. Only a failing test reaches it.
const WAIT_LIMIT: Duration = Duration::from_secs(180);
/// The flags of a browser that has no user, and asks for nothing by itself.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
];

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    session: Value,
    last: u64,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser with an empty profile.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The browser reads commands from file descriptor 3 and writes answers to 4.
        let script = r#"exec chromium "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "chromium"]).args(FLAGS);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                let parsed = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message));
                let Ok(()) = parsed.map(|answer| sender.send(answer).unwrap_or_default()) else { break };
                message.clear();
            }
        });
        let mut browser = Self { child, commands, answers, session: Value::Null, last: 0, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attach = json!({"targetId": target, "flatten": true});
        browser.session = browser.call("Target.attachToTarget", &attach)["sessionId"].clone();
        browser.call("Page.enable", &json!({}));
        // Without it no element has the focus in a window that nobody sees.
        browser.call("Emulation.setFocusEmulationEnabled", &json!({"enabled": true}));
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        let text = format!("{command}\0");
        self.commands
            .write_all(text.as_bytes())
            .expect("chromium does not run: is the package chromium installed?");
        loop {
            let answer = self.answers.recv_timeout(WAIT_LIMIT);
            let answer =
                answer.unwrap_or_else(|_| panic!("chromium does not answer {method}: is it installed?"));
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The size of the window in pixels of the page.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// The colours that the user prefers: `light` or `dark`.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", &json!({"features": [feature]}));
    }

    /// Opens a page.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
    }

    /// The value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", &asked);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page that is open then.
    pub(crate) fn until(&mut self, what: &str, expression: &str) {
        let wait = format!(
            "new Promise(resolve => {{
                const end = Date.now() + 120000;
                const look = () => {{
                    let found = false;
                    try {{ found = {expression}; }} catch {{}}
                    if (found || Date.now() > end) resolve(Boolean(found)); else setTimeout(look, 20);
                }};
                look();
            }})"
        );
        if self.evaluate(&wait) != true {
            let body = self.evaluate("document.body.innerText");
            panic!("never happened in the page: {what}\n{}", body.as_str().unwrap_or_default());
        }
    }

    /// Presses and releases a key, as `ArrowRight`.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "code": key}));
        }
    }

    /// Writes a picture of the window.
    pub(crate) fn picture(&mut self, path: &Path) {
        let taken = self.call("Page.captureScreenshot", &json!({"format": "png", "optimizeForSpeed": false}));
        let ByteString(bytes) = serde_json::from_value(taken["data"].clone()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
