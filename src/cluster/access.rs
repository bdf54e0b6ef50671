//! Asks the API server whether a user has a right (`SubjectAccessReview`). Must not decide what the right is needed
//! for.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Resource as _;
use kube::core::Request;
use kube::core::params::PostParams;

use crate::cluster::error::{Class, Error};
use crate::cluster::server::Server;

/// The user that a review is about, as an `AdmissionReview` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The user name.
    pub user: &'a str,
    /// The uid; empty if there is none.
    pub uid: &'a str,
    /// The groups that the user belongs to.
    pub groups: &'a [String],
    /// Additional information from the authenticator.
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// A verb on pods or on a subresource of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodAccess {
    /// The verb: `create`, `patch`, ...
    pub verb: &'static str,
    /// The subresource; empty for pods themselves.
    pub subresource: &'static str,
}

impl std::fmt::Display for PodAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        write!(f, "{} pods{slash}{}", self.verb, self.subresource)
    }
}

impl Server {
    /// Whether `who` has this access to all pods of a namespace.
    ///
    /// # Errors
    /// The failures of any API call.
    pub async fn may(&self, who: Subject<'_>, namespace: &str, access: PodAccess) -> Result<bool, Error> {
        let doing = format!("asking who may {access} in {namespace}");
        let present = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(who.user.to_owned()),
                uid: present(who.uid),
                groups: Some(who.groups.to_vec()),
                extra: Some(who.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.to_owned()),
                    verb: Some(access.verb.to_owned()),
                    group: Some(String::new()),
                    version: Some("v1".to_owned()),
                    resource: Some("pods".to_owned()),
                    subresource: present(access.subresource),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let body = serde_json::to_vec(&review)
            .map_err(|error| Error::own(&doing, Class::Final, format!("no review: {error}")))?;
        let request = Request::new(SubjectAccessReview::url_path(&(), None));
        let answer: SubjectAccessReview =
            self.ask(&doing, request.create(&PostParams::default(), body)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
