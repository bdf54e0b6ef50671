//! What the API server can do: whether it resizes running pods, by its list of resources. The answer is kept for some minutes,
//! because API servers are upgraded and rolled back. Must not decide what follows.

use std::sync::PoisonError;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::process::log::chain;

/// How long an answer is valid.
const VALID: Duration = Duration::from_secs(300);
/// When a call that failed is made again.
const AGAIN: Duration = Duration::from_secs(10);

/// The list of the resources of the core API.
#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

/// The last answer, and until when it is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discovered {
    resizes: bool,
    until: Instant,
}

impl Server {
    /// Whether the API server has the subresource `pods/resize`. If it does not answer, the last answer applies; without one
    /// this is an error, because some workloads replace their pods where none is resized.
    pub async fn resizes(&self) -> Result<bool, Error> {
        let last = *self.discovered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.filter(|last| Instant::now() < last.until) {
            return Ok(last.resizes);
        }
        let (resizes, valid) = match self.has_resize().await {
            Ok(resizes) => (resizes, VALID),
            Err(error) => {
                let Some(last) = last else { return Err(error) };
                tracing::info!("{}", chain(&error));
                (last.resizes, AGAIN)
            }
        };
        let discovered = Discovered { resizes, until: Instant::now() + valid };
        *self.discovered.lock().unwrap_or_else(PoisonError::into_inner) = Some(discovered);
        Ok(resizes)
    }

    async fn has_resize(&self) -> Result<bool, Error> {
        let doing = "reading the resources of the API server";
        let request = http::Request::get("/api/v1").body(Vec::new());
        let list: Resources =
            self.ask(doing, request.map_err(kube::core::request::Error::BuildRequest)).await?;
        Ok(list.resources.iter().any(|resource| resource.name == "pods/resize"))
    }
}
