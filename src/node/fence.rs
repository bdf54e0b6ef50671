//! Putting a fence up: before anything is stopped, a clone shows that the replacement can be created; then the name is
//! held, beside a kubelet by a process.
//!
//! Decides nothing about when, but steps back for a kubelet that made the replacement in the same moment. Where no process
//! can be had, a clone that is not started holds the name: a kubelet that collects dead containers in the middle of a start
//! takes that one away.

use std::path::PathBuf;
use std::time::Duration;

use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::identity::Asked;
use crate::cri::log_path;
use crate::node::execute::EffectExecutor;
use crate::node::files;
use crate::operation::effect::{Class, EffectError, ImageChoice, Learned};
use crate::operation::replace::is_overtaken;
use crate::operation::snapshot::Origin;

/// How much longer than its operation may take a process holds a name: whoever put it up may have to come back first.
const HOLDS_ON: Duration = Duration::from_secs(60);

/// What is to be fenced.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The name of the container.
    pub container: &'a str,
    /// The container whose configuration is cloned.
    pub source: &'a str,
    /// The attempt whose name is held.
    pub attempt: u32,
    /// The image of the replacement; `None` for the one of the source.
    pub image: Option<&'a ImageChoice>,
    /// Whether to find out that the replacement can be created.
    pub rehearse: bool,
    /// Whether only a process may hold the name.
    pub by_process: bool,
    /// What the operation may take still.
    pub left: Duration,
}

/// Removes a fence and its log: nobody else knows of that file.
pub(super) async fn remove(client: &Client, id: &str) -> Result<(), Error> {
    let status = client.container(id, false).await?.and_then(|answer| answer.status);
    client.remove(id).await?;
    let log = status.map(|status| PathBuf::from(status.log_path)).filter(|log| log_path::is_fences(log));
    if let Some(log) = log {
        files::remove(log).await;
    }
    Ok(())
}

impl EffectExecutor {
    /// Puts a fence up.
    pub(super) async fn fence(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
    ) -> Result<Learned, EffectError> {
        let Some(holder) = self.holder(client).await? else {
            if wanted.by_process {
                let message = "no image for a process that holds a name is on the node".to_owned();
                return Err(EffectError { class: Class::Final, message });
            }
            self.clone_holds(client, wanted, wanted.attempt).await?;
            return Ok(Learned::Nothing);
        };
        if wanted.rehearse {
            let id = self.clone_holds(client, wanted, wanted.attempt.saturating_add(1)).await?;
            remove(client, &id).await?;
        }
        match self.process_holds(client, wanted, &holder).await {
            Ok(()) => Ok(Learned::Nothing),
            Err(effect_error) if effect_error.class.is_away() || effect_error.class == Class::NameTaken => {
                Err(effect_error)
            }
            Err(effect_error) if wanted.by_process => Err(effect_error),
            Err(effect_error) => {
                tracing::warn!(pod = %self.pod, effect_error = effect_error.message, "no process can hold the name: a clone does");
                self.clone_holds(client, wanted, wanted.attempt).await?;
                Ok(Learned::Nothing)
            }
        }
    }

    /// The image to hold names with, if one is on the node.
    async fn holder(&self, client: &Client) -> Result<Option<String>, EffectError> {
        let Some(holder) = &self.holder else { return Ok(None) };
        Ok(holder.image(client).await?.map(str::to_owned))
    }

    async fn clone_holds(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
        attempt: u32,
    ) -> Result<String, EffectError> {
        let operation_id = self.operation_id.clone();
        let config = self.source(wanted.source).await?.fence(attempt, wanted.image, &operation_id);
        self.create(client, config).await
    }

    async fn process_holds(
        &mut self,
        client: &Client,
        wanted: Wanted<'_>,
        image: &str,
    ) -> Result<(), EffectError> {
        let operation_id = self.operation_id.clone();
        let longest = wanted.left.saturating_add(HOLDS_ON);
        let source = self.source(wanted.source).await?;
        let config = source.holder(wanted.attempt, image, longest, &operation_id);
        let id = self.create(client, config).await?;
        if !wanted.rehearse && self.was_overtaken(client, wanted).await {
            remove(client, &id).await?;
            return Ok(());
        }
        let Err(error) = client.start(&id).await else { return Ok(()) };
        // What never ran still holds the name, but is no clone: one that is takes its place.
        if !error.class.is_away() {
            remove(client, &id).await?;
        }
        Err(error.into())
    }

    /// Without an answer the fence stays up.
    async fn was_overtaken(&self, client: &Client, wanted: Wanted<'_>) -> bool {
        // That the sandbox is the pod's was seen before.
        let asked = Asked { pod: self.pod.clone(), origin: Origin::Unknown };
        let seen = convert::observe(client, &asked, Some(&[])).await;
        seen.is_ok_and(|seen| is_overtaken(&seen, wanted.container, wanted.attempt, wanted.source))
    }
}
