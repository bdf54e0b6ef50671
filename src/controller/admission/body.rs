//! Reads the body of a review: no more than an API server sends, in time, and of all that are read at once no more than
//! the process has memory for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// An API server takes no larger request, and what it stores is smaller: a review with both versions of an object fits.
const LARGEST: usize = 3 << 20;
/// Of all bodies at once.
const ALL: usize = 48 << 20;
/// An API server waits no longer for the whole answer.
const IN_TIME: Duration = Duration::from_secs(10);

/// What is left for bodies, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<Semaphore>);

/// A body, which counts until this is dropped.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ALL)))
    }

    /// The whole of `body`.
    ///
    /// # Errors
    /// What to answer when it is too large, too slow, or broken off.
    pub(super) async fn read(&self, body: Body) -> Result<Whole, StatusCode> {
        // One that says so is not read at all.
        if body.size_hint().lower() > LARGEST as u64 {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        timeout(IN_TIME, self.collect(body)).await.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT))
    }

    /// Whoever sends slowly has no more of the memory than was sent.
    async fn collect(&self, body: Body) -> Result<Whole, StatusCode> {
        let (mut bytes, mut whole) = (Vec::new(), None::<OwnedSemaphorePermit>);
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|_| StatusCode::BAD_REQUEST)?;
            if bytes.len() + part.len() > LARGEST {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            let size = u32::try_from(part.len()).map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
            let permit = Arc::clone(&self.0).acquire_many_owned(size).await;
            let permit = permit.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
            match &mut whole {
                Some(whole) => whole.merge(permit),
                None => whole = Some(permit),
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Whole { bytes: bytes.into(), _permit: whole })
    }
}
