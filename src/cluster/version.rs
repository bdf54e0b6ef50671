//! Kinds whose interface moved within the releases that are served: `v1` from 1.21 on, `v1beta1` before. What a server
//! answered to last is asked first.

use kube::core::Request;
use kube::core::params::ListParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::operation::effect::Class;

/// In the order in which they are tried.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// A namespaced kind that is there in one of the two versions.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Its group, the same in both.
    pub group: &'static str,
    /// As in a path.
    pub plural: &'static str,
}

/// Those of one namespace, and the version that the server has.
#[derive(Clone, Debug)]
pub struct Served<T> {
    /// For other calls about the same kind.
    pub version: &'static str,
    /// What there is.
    pub items: Vec<T>,
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

impl Moved {
    /// Calls about the kind in `version`.
    pub fn request(&self, version: &str, namespace: &str) -> Request {
        Request::new(format!("/apis/{}/{version}/namespaces/{namespace}/{}", self.group, self.plural))
    }
}

impl Server {
    /// All objects of the kind in `namespace` that have `labels`. `Gone` when the server knows neither version.
    ///
    /// # Errors
    /// As any call.
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
