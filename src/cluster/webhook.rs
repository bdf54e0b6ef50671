//! The API calls for the admission webhooks' certificates: their Secret, and the authorities that the API server
//! trusts. Must not create or check certificates.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::core::Request;
use kube::core::params::{GetParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::cluster::error::{Class, Error};
use crate::cluster::patch::{self, VERSION, as_us, json_patch};
use crate::cluster::server::{MANAGER, Server};

/// A webhook configuration, by its name.
#[derive(Clone, Copy, Debug)]
pub enum Webhooks<'a> {
    /// A `ValidatingWebhookConfiguration`.
    Validating(&'a str),
    /// A `MutatingWebhookConfiguration`.
    Mutating(&'a str),
}

impl Server {
    /// Replaces a secret, provided that it still has the version that was read.
    pub async fn replace_secret(&self, secret: &Secret) -> Result<Secret, Error> {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let doing = format!("writing secret {namespace}/{name}");
        let body = serde_json::to_vec(secret)
            .map_err(|error| Error::own(&doing, Class::Final, format!("no secret: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let request = Request::new(Secret::url_path(&(), Some(&namespace))).replace(&name, &params, body);
        self.ask(&doing, request).await
    }

    /// Sets `caBundle` of all webhooks of a configuration to these authorities and what `kept` returns for the
    /// present ones and these. Returns false if they were set already.
    ///
    /// # Errors
    /// `Gone` if there is no such configuration.
    pub async fn trust(
        &self,
        of: Webhooks<'_>,
        authorities: &str,
        kept: fn(&str, &str) -> String,
    ) -> Result<bool, Error> {
        let (kind, name, path) = match of {
            Webhooks::Validating(name) => {
                ("validating", name, ValidatingWebhookConfiguration::url_path(&(), None))
            }
            Webhooks::Mutating(name) => ("mutating", name, MutatingWebhookConfiguration::url_path(&(), None)),
        };
        let all = Request::new(path);
        let doing = format!("reading {kind}webhookconfiguration {name}");
        let found: Value = self.ask(&doing, all.get(name, &GetParams::default())).await?;
        let webhooks = found["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let changes = webhooks.iter().enumerate().filter_map(|(at, webhook)| {
            let present = &webhook["clientConfig"]["caBundle"];
            let ByteString(bytes) = ByteString::deserialize(present).unwrap_or_default();
            let wanted = format!("{authorities}{}", kept(&String::from_utf8_lossy(&bytes), authorities));
            let wanted = json!(ByteString(wanted.into_bytes()));
            (*present != wanted)
                .then(|| patch::add(["webhooks", &at.to_string(), "clientConfig", "caBundle"], wanted))
        });
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() {
            return Ok(false);
        }
        let version = patch::test(VERSION, found["metadata"]["resourceVersion"].clone());
        let operations: Vec<_> = std::iter::once(version).chain(changes).collect();
        let doing = format!("writing {kind}webhookconfiguration {name}");
        let change = json_patch(operations);
        self.ask::<Value>(&doing, all.patch(name, &as_us(), &change)).await?;
        Ok(true)
    }
}
