//! `node restart` and `node swap`: carries out one request in the foreground and shows its progress.

use clap::Args;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::image::ImageRef;
use crate::api::request::{ContainerRequest, DEADLINE_SECONDS, OnFailure, Request};
use crate::api::status::Status;
use crate::cli::exit::Exit;
use crate::cli::node::live::live;
use crate::cli::node::{Failed, Format, PodName, find, lock, open_node};
use crate::cli::output;
use crate::cli::span::Seconds;
use crate::node;
use crate::node::drive::ControlHandle;
use crate::node::settings::NodeArgs;
use crate::operation::outcome::Withdrawal;
use crate::process::{clock, signals};

/// Arguments of `node restart`.
#[derive(Debug, Args)]
pub(super) struct Restart {
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
    /// The containers, in the order to restart them
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', required = true)]
    container: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// Arguments of `node swap`.
#[derive(Debug, Args)]
pub(super) struct Swap {
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
    /// The containers with their new images
    #[arg(value_name = "CONTAINER=IMAGE", required = true, value_parser = assignment)]
    images: Vec<ContainerRequest>,
    #[command(flatten)]
    how: How,
    /// Leave a failed swap as it is, instead of rolling back to the previous image
    #[arg(long)]
    no_rollback: bool,
}

/// The flags that `node restart` and `node swap` share.
#[derive(Debug, Args)]
struct How {
    /// How long the new container must stay up
    #[arg(long, value_name = "TIME", default_value_t = Seconds(0))]
    min_ready: Seconds,
    /// Time until the operation must have ended
    #[arg(long, value_name = "TIME", default_value_t = Seconds(DEADLINE_SECONDS))]
    deadline: Seconds,
    /// Reason, shown in the history
    #[arg(long, default_value = "")]
    reason: String,
    /// Idempotency key: an id that has ended on this pod is not run again
    #[arg(long)]
    id: Option<String>,
}

/// Parses `CONTAINER=IMAGE`.
pub(super) fn assignment(text: &str) -> Result<ContainerRequest, String> {
    let (name, image) = text.split_once('=').ok_or("write CONTAINER=IMAGE")?;
    ImageRef::parse(image).map_err(|error| error.to_string())?;
    Ok(ContainerRequest { name: name.to_owned(), image: Some(image.to_owned()) })
}

pub(super) async fn restart(settings: &NodeArgs, format: Format, args: Restart) -> Exit {
    let Restart { pod, container, how } = args;
    let targets = container.into_iter().map(|name| ContainerRequest { name, image: None }).collect();
    operate(settings, format, &pod, how.request(targets)).await
}

pub(super) async fn swap(settings: &NodeArgs, format: Format, args: Swap) -> Exit {
    let Swap { pod, images, how, no_rollback } = args;
    let mut request = how.request(images);
    if no_rollback {
        request.on_failure = OnFailure::Keep;
    }
    operate(settings, format, &pod, request).await
}

impl How {
    fn request(self, targets: Vec<ContainerRequest>) -> Request {
        let Self { min_ready, deadline, reason, id } = self;
        let id = id.unwrap_or_else(fresh_id);
        Request {
            min_ready_seconds: min_ready.0,
            deadline_seconds: deadline.0,
            reason,
            ..Request::new(id, targets)
        }
    }
}

/// A new request id: every command is a request of its own.
fn fresh_id() -> String {
    format!("cli-{}-{}", clock::now().as_millisecond(), std::process::id())
}

async fn operate(settings: &NodeArgs, format: Format, pod: &PodName, request: Request) -> Exit {
    let id = request.id.clone();
    let status = match carry_out(settings, format, pod, request).await {
        Ok(status) => status,
        Err(failed) => return failed.reported(format, &id),
    };
    match format {
        Format::Json => output::json(&status),
        Format::Text => output::line(&format!("{}: {}", status.phase, status.message)),
    }
    status.phase.into()
}

async fn carry_out(
    settings: &NodeArgs,
    format: Format,
    pod: &PodName,
    request: Request,
) -> Result<Status, Failed> {
    request.check().map_err(|error| node::Error::Refused(error.into()))?;
    let _lock = lock(settings)?;
    let node = open_node(settings)?;
    let pod = find(&node, pod).await?;
    let (observer, bar) = live(format);
    let control = on_interrupt()?;
    let ended = node.carry_out(&pod, request, control, &observer).await;
    bar.finish_and_clear();
    Ok(ended?)
}

/// The first Ctrl-C cancels the request if nothing was touched yet; the second ends the command and leaves the
/// remaining work to the journal.
fn on_interrupt() -> Result<ControlHandle, Failed> {
    let (withdraw, withdrawal) = watch::channel(None);
    let shutdown = CancellationToken::new();
    let unwatched = |error| Failed::Other(format!("signals cannot be watched: {error}"));
    let mut interrupt = signals::interrupt().map_err(unwatched)?;
    let mut terminate = signals::terminate().map_err(unwatched)?;
    let cancel = shutdown.clone();
    tokio::spawn(async move {
        for signals in 0_u32.. {
            let terminated = tokio::select! {
                _ = interrupt.recv() => false,
                _ = terminate.recv() => true,
            };
            let _ = withdraw.send(Some(Withdrawal::Interrupted));
            if terminated || signals > 0 {
                cancel.cancel();
            } else {
                output::message(
                    "stopping; an operation that has touched a container is completed (press Ctrl-C again to \
                     leave it in the journal)",
                );
            }
        }
    });
    Ok(ControlHandle { withdrawal, shutdown })
}
