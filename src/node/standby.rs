//! Creates, starts and stops a standby, and counts the listening sockets in the pod of an operation.
//!
//! Decides nothing: `operation::standby` decides when a standby is needed and what the sockets mean.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use crate::cri::client::Client;
use crate::node::Node;
use crate::node::execute::EffectExecutor;
use crate::node::files;
use crate::operation::effect::{EffectError, EffectOutput, ImageChoice};
use crate::operation::port::{self, Listeners};
use crate::operation::snapshot::{Probed, Snapshot};
use crate::operation::standby::{counts_sockets, due_probe, relevant};
use crate::operation::state::Operation;
use crate::process::clock;

/// The program in the image of a fence, and its subcommand that counts sockets.
const COUNT: [&str; 2] = ["/inplace", "sockets"];
/// Time limit of a count. The next observation repeats it.
const LIMIT: Duration = Duration::from_secs(2);
/// The longest time that a readiness probe may take, whatever its own timeout is: nothing else is decided meanwhile.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// More is not read: a line for each of some thousand ports.
const LARGEST: usize = 64 * 1024;
/// The least time between the stop signal of a standby and its end by force.
const MIN_STOP: Duration = Duration::from_secs(2);

/// The listening sockets in the pod, while they decide something; `None` if they cannot be counted now.
pub(super) async fn listeners(node: &Node, operation: &Operation, snapshot: &Snapshot) -> Option<Listeners> {
    let fence = counts_sockets(operation, snapshot)?;
    let command = COUNT.map(str::to_owned).to_vec();
    let counting = node.client.exec_bounded(&fence.id, command, LIMIT, LARGEST);
    let answer = match timeout(LIMIT, counting).await {
        Ok(Ok(answer)) if answer.exit_code == 0 => answer,
        failed => {
            tracing::debug!(pod = %operation.pod, ?failed, "the sockets of the pod cannot be counted now");
            return None;
        }
    };
    let counted = port::parse(&String::from_utf8_lossy(&answer.stdout))?;
    Some(relevant(counted, snapshot))
}

/// Runs the readiness probe in the standby, if it is due: why it failed. The output of the command is not shown, because it
/// may be confidential.
pub(super) async fn probed(node: &Node, operation: &Operation, snapshot: &Snapshot) -> Option<Probed> {
    let (standby, probe) = due_probe(operation, snapshot, clock::now())?;
    let (command, limit) = (probe.command.to_vec(), probe.timeout.min(PROBE_LIMIT));
    // The runtime ends the command; its answer to that is not waited for.
    let answer = timeout(limit, node.client.exec_bounded(&standby.id, command, limit, LARGEST)).await;
    let late = || Err(format!("the command did not end within {} s", limit.as_secs()));
    let result = match answer {
        Ok(Ok(answer)) if answer.exit_code == 0 => Ok(()),
        Ok(Ok(answer)) => Err(format!("the command exited with {}", answer.exit_code)),
        Ok(Err(error)) => match error.source.as_ref().map(Status::code) {
            Some(Code::DeadlineExceeded) => late(),
            Some(Code::OutOfRange | Code::ResourceExhausted) => {
                Err(format!("the command printed more than {} KiB", LARGEST >> 10))
            }
            _ if error.class.is_unavailable() => return None,
            _ => {
                tracing::debug!(pod = %operation.pod, class = ?error.class, "the readiness probe cannot be run");
                Err("the runtime could not run the command".to_owned())
            }
        },
        Err(_) => late(),
    };
    Some(Probed { at: clock::now(), result })
}

impl EffectExecutor {
    /// Creates and starts a standby. A standby that does not start is removed.
    pub(super) async fn standby(
        &mut self,
        client: &Client,
        container: &str,
        source: &str,
        attempt: u32,
        image: Option<&ImageChoice>,
    ) -> Result<EffectOutput, EffectError> {
        let operation_id = self.operation_id.clone();
        let user = self.image_user(container, image).await?;
        let source = self.source(source).await?;
        let mut config = source.standby(attempt, image, &operation_id);
        if let Some(user) = user {
            user.give(&mut config);
        }
        if let Some(log) = source.termination_log() {
            // The message of the standby must not become that of its container.
            let (file, of) = (log.old.display().to_string(), log.clone());
            if let Ok(Some(fresh)) =
                files::run_blocking(&file, move || files::make_termination_log(&of, !attempt)).await
            {
                log.replace_by(&fresh, &mut config);
            }
        }
        let id = self.create(client, config).await?;
        let Err(error) = client.start(&id).await else { return Ok(EffectOutput::Nothing) };
        if !error.class.is_unavailable() {
            crate::node::fence::remove(client, &id).await?;
        }
        Err(error.into())
    }

    /// Runs the preStop handler of a standby, and stops it with what is left of its grace period.
    pub(super) async fn stop_standby(
        &self,
        container: &str,
        id: &str,
        grace: Duration,
        pre_stop: bool,
        limit: Duration,
    ) -> Result<EffectOutput, EffectError> {
        let began = Instant::now();
        let output = if pre_stop && !grace.is_zero() {
            self.pre_stop(container, id, grace.min(limit)).await.unwrap_or(EffectOutput::Nothing)
        } else {
            EffectOutput::Nothing
        };
        let left = grace.saturating_sub(began.elapsed()).max(MIN_STOP);
        self.client.within(limit.saturating_sub(began.elapsed()).max(MIN_STOP)).stop(id, left).await?;
        Ok(output)
    }
}
