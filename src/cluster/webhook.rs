//! What the admission webhooks keep at the API server: their Secret, and whom the API server trusts.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::core::Request;
use kube::core::params::{GetParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde_json::{Value, json};

use crate::cluster::error::{Class, Error};
use crate::cluster::server::{MANAGER, Server};

impl Server {
    /// Puts a secret in the place of the version that it was read as.
    pub async fn replace_secret(&self, secret: &Secret) -> Result<Secret, Error> {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let doing = format!("writing secret {namespace}/{name}");
        let body = serde_json::to_vec(secret)
            .map_err(|error| Error::own(&doing, Class::Final, format!("no secret: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let request = Request::new(Secret::url_path(&(), Some(&namespace))).replace(&name, &params, body);
        self.ask(&doing, request).await
    }

    /// Has the API server trust these authorities, and no other ones, for all webhooks of a configuration. False: it did so
    /// already.
    pub async fn trust(&self, name: &str, authorities: &str) -> Result<bool, Error> {
        let doing = format!("reading validatingwebhookconfiguration {name}");
        let all = Request::new(ValidatingWebhookConfiguration::url_path(&(), None));
        let found: ValidatingWebhookConfiguration =
            self.ask(&doing, all.get(name, &GetParams::default())).await?;
        let wanted = ByteString(authorities.as_bytes().to_vec());
        let changes = found.webhooks.iter().flatten().enumerate();
        let changes =
            changes.filter(|(_, webhook)| webhook.client_config.ca_bundle.as_ref() != Some(&wanted));
        let path = |(at, _)| format!("/webhooks/{at}/clientConfig/caBundle");
        let changes: Vec<_> =
            changes.map(|change| json!({"op": "add", "path": path(change), "value": wanted})).collect();
        if changes.is_empty() {
            return Ok(false);
        }
        let version =
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": found.resource_version()});
        let operations: Vec<_> = std::iter::once(version).chain(changes).collect();
        let doing = format!("writing validatingwebhookconfiguration {name}");
        let operations = serde_json::from_value(operations.into())
            .map_err(|error| Error::own(&doing, Class::Final, format!("no JSON patch: {error}")))?;
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        self.ask::<Value>(&doing, all.patch(name, &params, &Patch::<()>::Json(operations))).await?;
        Ok(true)
    }
}
