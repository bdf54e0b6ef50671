//! The provider `exec`: runs a command in a container of the pod, through the node's runtime.
//!
//! Exit code 0: the output of the command is the value, without its final line end. Any other exit code is a
//! failed measurement, whatever the conditions are. Must not print the command: its arguments may contain
//! secrets.

use std::time::Duration;

use tonic::Code;

use crate::api::annotation::{CONTAINER_NAME, STANDBY};
use crate::api::hook_template::{Argument, Exec};
use crate::cri::client::Client;
use crate::cri::convert::is_standby;
use crate::cri::identity::{self, Asked};
use crate::cri::proto::v1::{Container, ContainerState, ExecSyncResponse};
use crate::hook::measured::Measured;
use crate::hook::place::Place;
use crate::hook::provider::{rendered, seconds};
use crate::hook::settings::Settings;
use crate::hook::value::{Value, cut};

/// Time limit of the command, unless the hook sets another one.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of the output in bytes.
const MAX_OUTPUT_BYTES: usize = 16 << 10;
/// Maximum size of the runtime's answer in bytes, which contains output and standard error.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum number of bytes of standard error in a message.
const MAX_MESSAGE: usize = 256;

pub(super) async fn measure(
    exec: &Exec,
    args: &[Argument],
    place: &Place,
    settings: &Settings,
) -> Result<Measured, String> {
    if !settings.exec {
        return Err(format!("exec: {} does not run commands of hooks (--hook-exec=false)", settings.role));
    }
    let Some(runtime) = &settings.runtime else {
        return Err(format!(
            "exec: {} has no container runtime: only the agent of the pod's node can do this",
            settings.role
        ));
    };
    let Some(asked) = place.asked() else { return Err("exec: the hook has no pod".to_owned()) };
    let command: Vec<_> =
        exec.command.iter().map(|word| rendered("command", word, args)).collect::<Result<_, _>>()?;
    let Some(id) = running(runtime, &asked, place, &exec.container).await? else {
        return Err(format!("exec: pod {} has no running container {}", asked.pod.name, exec.container));
    };
    let limit = seconds(exec.timeout_seconds).unwrap_or(LIMIT);
    let answer = runtime.exec_bounded(&id, command, limit, MAX_ANSWER_BYTES).await.map_err(|error| {
        match error.source.as_ref().map(tonic::Status::code) {
            Some(Code::OutOfRange) => too_much(&exec.container),
            // The answer is so large that containerd cannot send it.
            Some(Code::ResourceExhausted) if error.message.contains("larger than max") => {
                too_much(&exec.container)
            }
            Some(Code::DeadlineExceeded) => {
                format!("exec: the command in {} did not end within {} s", exec.container, limit.as_secs())
            }
            _ => format!("exec: {}", cut(&error.to_string(), MAX_MESSAGE)),
        }
    })?;
    judged(&exec.container, &answer)
}

/// The running container of this name, or its standby. After a restart in place there may also be an exited one.
async fn running(
    runtime: &Client,
    asked: &Asked,
    place: &Place,
    name: &str,
) -> Result<Option<String>, String> {
    let found = identity::look_up(runtime, asked).await.map_err(|error| format!("exec: {error}"))?;
    let Some((_, all)) = found.map_err(|mismatch| format!("exec: {mismatch}"))? else { return Ok(None) };
    let in_standby = place.standbys.iter().any(|standby| standby == name);
    let is_named = |container: &Container| {
        let of_standby = container.labels.get(STANDBY).filter(|_| is_standby(&container.labels));
        let label = if in_standby { of_standby } else { container.labels.get(CONTAINER_NAME) };
        label.is_some_and(|label| label == name)
    };
    let fits = |container: &&Container| {
        is_named(container) && container.state == i32::from(ContainerState::ContainerRunning)
    };
    Ok(all
        .iter()
        .filter(fits)
        .max_by_key(|container| container.created_at)
        .map(|container| container.id.clone()))
}

fn judged(container: &str, answer: &ExecSyncResponse) -> Result<Measured, String> {
    if answer.stdout.len() > MAX_OUTPUT_BYTES {
        return Err(too_much(container));
    }
    let printed = Value::Text(text(&answer.stdout));
    if answer.exit_code == 0 {
        return Ok(Measured::Value(printed));
    }
    let reported = text(&answer.stderr);
    let reported =
        reported.lines().next().map(|line| format!(": {}", cut(line, MAX_MESSAGE))).unwrap_or_default();
    let why = format!("the command in {container} exited with {}{reported}", answer.exit_code);
    Ok(Measured::Failed { value: printed, why })
}

fn too_much(container: &str) -> String {
    format!(
        "exec: the command in {container} printed more than {} KiB, or {} KiB with its errors",
        MAX_OUTPUT_BYTES >> 10,
        MAX_ANSWER_BYTES >> 10
    )
}

/// The text without its final line end.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    text.strip_suffix('\r').unwrap_or(text).to_owned()
}
