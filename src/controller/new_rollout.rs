//! Creates the `InPlaceRollout`s that a controller begins by itself. Must not decide when.

use kube::core::Request;
use kube::core::params::PostParams;
use kube::{Resource, ResourceExt as _};
use serde::de::IgnoredAny;

use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::error::{Class, Error};
use crate::cluster::server::{MANAGER, Server};

/// A finished rollout is kept for one day, so that users can find out what happened.
pub(super) const ROLLOUT_TTL_SECONDS: i32 = 86_400;

impl Server {
    /// Creates a rollout. An existing rollout of the same name is not an error.
    ///
    /// # Errors
    /// As any call.
    pub(crate) async fn create_rollout(&self, rollout: &InPlaceRollout) -> Result<(), Error> {
        let (namespace, name) = (rollout.namespace().unwrap_or_default(), rollout.name_any());
        let doing = format!("creating InPlaceRollout {namespace}/{name}");
        let body = serde_json::to_vec(rollout)
            .map_err(|error| Error::own(&doing, Class::Final, format!("it has no JSON form: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let request = Request::new(InPlaceRollout::url_path(&(), Some(&namespace)));
        match self.ask::<IgnoredAny>(&doing, request.create(&params, body)).await {
            Err(error) if error.is_already_there() => Ok(()),
            made => made.map(drop),
        }
    }
}
