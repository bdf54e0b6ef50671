//! Kinds whose API version changed within the supported releases: `v1` from 1.21 on, `v1beta1` before. The version
//! that a server last answered to is tried first. Must not convert between the versions.

use kube::core::Request;
use kube::core::params::ListParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::failure::Class;

/// The versions, in the order in which they are tried.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// A namespaced kind that exists in one of the two versions.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The API group, the same in both versions.
    pub group: &'static str,
    /// The plural name, as in a path.
    pub plural: &'static str,
}

/// The objects of one namespace, and the version that the server has.
#[derive(Clone, Debug)]
pub struct Served<T> {
    /// The version to use for further calls about this kind.
    pub version: &'static str,
    /// The listed objects.
    pub items: Vec<T>,
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

impl Moved {
    /// A request builder for the kind in `version`.
    pub fn request(&self, version: &str, namespace: &str) -> Request {
        Request::new(format!("/apis/{}/{version}/namespaces/{namespace}/{}", self.group, self.plural))
    }
}

impl Server {
    /// All objects of the kind in `namespace` with `labels`.
    ///
    /// # Errors
    /// `Gone` if the server has neither version, and the failures of any API call.
    pub async fn list_moved<T: DeserializeOwned>(
        &self,
        kind: &Moved,
        namespace: &str,
        labels: Option<&str>,
    ) -> Result<Served<T>, Error> {
        let doing = format!("listing {} of namespace {namespace}", kind.plural);
        let params = ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default() };
        let mut order = VERSIONS;
        if self.is_older(kind.group) {
            order.reverse();
        }
        let ask =
            async |version| self.ask::<List<T>>(&doing, kind.request(version, namespace).list(&params)).await;
        let (version, list) = match ask(order[0]).await {
            Err(error) if error.class() == Class::Gone => (order[1], ask(order[1]).await?),
            first => (order[0], first?),
        };
        self.set_older(kind.group.into(), version != VERSIONS[0]);
        Ok(Served { version, items: list.items.unwrap_or_default() })
    }
}
