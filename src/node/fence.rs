//! Creates a fence. Before anything is stopped, a clone proves that the replacement can be created. Then the name of
//! one attempt is held, beside a kubelet by a running process.
//!
//! Does not decide when to fence, but withdraws the fence if the kubelet has created the replacement in the same
//! moment. If no process can be run, a clone that is not started holds the name. Such a fence is weaker: a kubelet
//! that collects dead containers during a start may remove it.

use std::path::PathBuf;
use std::time::Duration;

use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::identity::Asked;
use crate::cri::log_path;
use crate::failure::Class;
use crate::node::execute::EffectExecutor;
use crate::node::files;
use crate::operation::effect::{EffectError, EffectOutput, ImageChoice};
use crate::operation::fence::is_overtaken;
use crate::operation::snapshot::Origin;

/// How much longer than the remaining time of its operation the process of a fence runs: the process that created it
/// may have to restart first.
const OUTLIVES_OPERATION: Duration = Duration::from_secs(60);

/// The fence to create.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The name of the container.
    pub container: &'a str,
    /// The ID of the container whose configuration is cloned.
    pub source: &'a str,
    /// The attempt number whose name is held.
    pub attempt: u32,
    /// The image of the replacement; `None` for the image of the source.
    pub image: Option<&'a ImageChoice>,
    /// Whether to verify first that the replacement can be created.
    pub test_create: bool,
    /// Whether only a running process may hold the name.
    pub by_process: bool,
    /// The time that is left for the operation.
    pub left: Duration,
}

/// Removes a fence and its log; no other component removes that file.
pub(super) async fn remove(client: &Client, id: &str) -> Result<(), Error> {
    let status = client.container(id, false).await?.and_then(|answer| answer.status);
    client.remove(id).await?;
    let log = status.map(|status| PathBuf::from(status.log_path)).filter(|log| log_path::is_temporary(log));
    if let Some(log) = log {
        files::remove(log).await;
    }
    Ok(())
}

impl EffectExecutor {
    /// Creates the fence that `wanted` describes.
    pub(super) async fn fence(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
    ) -> Result<EffectOutput, EffectError> {
        let Some(holder) = self.holder(client).await? else {
            if wanted.by_process {
                let message = "no image for the fence process is on the node (--holder-image)".to_owned();
                return Err(EffectError { class: Class::Final, message });
            }
            self.clone_holds(client, wanted, wanted.attempt).await?;
            return Ok(EffectOutput::Nothing);
        };
        if wanted.test_create {
            let id = self.clone_holds(client, wanted, wanted.attempt.saturating_add(1)).await?;
            remove(client, &id).await?;
        }
        let mut held = self.process_holds(client, wanted, &holder).await;
        if held.as_ref().is_err_and(|effect_error| effect_error.class == Class::Gone)
            && let Some(other) = self.holder_instead_of(client, &holder).await?
        {
            held = self.process_holds(client, wanted, &other).await;
        }
        match held {
            Ok(()) => Ok(EffectOutput::Nothing),
            Err(effect_error)
                if effect_error.class.is_unavailable() || effect_error.class == Class::NameTaken =>
            {
                Err(effect_error)
            }
            Err(effect_error) if wanted.by_process => Err(effect_error),
            Err(effect_error) => {
                tracing::warn!(
                    pod = %self.pod,
                    effect_error = effect_error.message,
                    "the fence process cannot be created: a clone is used as fence"
                );
                self.clone_holds(client, wanted, wanted.attempt).await?;
                Ok(EffectOutput::Nothing)
            }
        }
    }

    /// The image for the process of a fence, if one is on the node.
    async fn holder(&self, client: &Client) -> Result<Option<String>, EffectError> {
        let Some(holder) = &self.holder else { return Ok(None) };
        Ok(holder.image(client).await?)
    }

    /// Another image for it: `gone` may have been removed from the node since it was found.
    async fn holder_instead_of(&self, client: &Client, gone: &str) -> Result<Option<String>, EffectError> {
        if let Some(holder) = &self.holder {
            holder.forget(gone);
        }
        Ok(self.holder(client).await?.filter(|image| image != gone))
    }

    async fn clone_holds(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
        attempt: u32,
    ) -> Result<String, EffectError> {
        let operation_id = self.operation_id.clone();
        let user = self.image_user(wanted.container, wanted.image).await?;
        let mut config = self.source(wanted.source).await?.fence(attempt, wanted.image, &operation_id);
        if let Some(user) = user {
            user.give(&mut config);
        }
        self.create(client, config).await
    }

    async fn process_holds(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
        image: &str,
    ) -> Result<(), EffectError> {
        let operation_id = self.operation_id.clone();
        let longest = wanted.left.saturating_add(OUTLIVES_OPERATION);
        let source = self.source(wanted.source).await?;
        let config = source.holder(wanted.attempt, image, longest, &operation_id);
        let id = self.create(client, config).await?;
        if !wanted.test_create && self.was_overtaken(client, wanted).await {
            remove(client, &id).await?;
            return Ok(());
        }
        let Err(error) = client.start(&id).await else { return Ok(()) };
        // A container whose start failed still holds the name, but is no clone: remove it, so that a clone can take
        // the name.
        if !error.class.is_unavailable() {
            remove(client, &id).await?;
        }
        Err(error.into())
    }

    /// Whether the kubelet has already created the replacement. If the runtime does not answer, the fence stays.
    async fn was_overtaken(&self, client: &Client, wanted: Wanted<'_>) -> bool {
        // The identity of the sandbox was verified before.
        let asked = Asked { pod: self.pod.clone(), origin: Origin::Unknown };
        let seen = convert::observe(client, &asked, Some(&[])).await;
        seen.is_ok_and(|seen| is_overtaken(&seen, wanted.container, wanted.attempt, wanted.source))
    }
}
