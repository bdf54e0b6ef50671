//! `/guard`: a pod that is guarded is not deleted or evicted before its pre-delete hook has succeeded.
//!
//! Every process answers, and none remembers: what was asked for and how far it is are HookRuns. Decides nothing:
//! `workload::guard` does. A dry run is judged and changes nothing. What is not known in time is a no.

mod effect;
pub(super) mod finish;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::controller::admission::review::{Answer, Refusal, Request};
use crate::process::clock;
use crate::process::log::chain;
use crate::workload::guard::{self, Attempt, Seen};

/// The API server waits 5 s for an answer; without one it says less than we do.
const IN_TIME: Duration = Duration::from_secs(3);

/// Answers reviews of deletions and evictions.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) server: Server,
}

/// How somebody wants a pod to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Delete,
    Evict,
}

impl Guard {
    /// Whether what is asked may happen.
    pub(super) async fn judge(&self, asked: &Request) -> Answer {
        let way = if asked.sub_resource == "eviction" { Way::Evict } else { Way::Delete };
        let judged = match timeout(IN_TIME, self.look(asked, way)).await {
            Ok(Ok(judged)) => judged,
            Ok(Err(error)) => Err(unknown(asked, &chain(&error))),
            Err(_) => Err(unknown(asked, "the API server takes too long to answer")),
        };
        match judged {
            Ok(warning) => Answer::Allowed(warning.into_iter().collect()),
            Err(message) => {
                tracing::debug!(namespace = asked.namespace, by = asked.user_info.username, "{message}");
                way.refuse(message)
            }
        }
    }

    /// What the answer is: yes, with a warning maybe, or no, and why.
    async fn look(&self, asked: &Request, way: Way) -> Result<Result<Option<String>, String>, Error> {
        let namespace = &asked.namespace;
        let pod = match way {
            Way::Delete => serde_json::from_value::<Pod>(asked.old_object.clone()).ok(),
            Way::Evict => None,
        };
        let pod = match pod {
            Some(pod) => Some(pod),
            // An eviction says nothing of its pod but the name.
            None => self.server.whole_pod(namespace, asked.name()).await?,
        };
        let Some(pod) = pod.filter(guard::is_held) else { return Ok(Ok(None)) };
        let instance = guard::instance(&pod);
        let of_owner = async {
            match guard::owner(&pod) {
                Some(owner) => self.server.pre_delete_hook(namespace, owner).await,
                None => Ok(None),
            }
        };
        let (of_owner, attempts, space) = tokio::try_join!(
            of_owner,
            self.server.attempts(namespace, &instance),
            self.server.guarded_namespace(namespace),
        )?;
        let seen = Seen { pod: &pod, of_owner, attempts, namespace: space, now: clock::now() };
        let verdict = guard::decide(&seen);
        let its = |attempt: &&Attempt| Some(&attempt.pod_uid) == pod.metadata.uid.as_ref();
        let finishes = seen.attempts.iter().filter(its).any(|attempt| attempt.finishes);
        self.carry_out(asked, &pod, verdict, finishes).await
    }
}

impl Way {
    /// An eviction that is answered so is tried again by whoever drains a node. Without `retryAfterSeconds`: with it client-go
    /// would wait and ask again ten times by itself, and nobody see the message.
    fn refuse(self, message: String) -> Answer {
        let (code, reason) = match self {
            Self::Delete => (403, "Forbidden"),
            Self::Evict => (429, "TooManyRequests"),
        };
        Answer::Refused(Refusal { code, reason, message, causes: Vec::new() })
    }
}

fn unknown(asked: &Request, why: &str) -> String {
    format!(
        "whether pod {} may be deleted cannot be told now: {why}. Try again; the pod is not touched meanwhile",
        asked.name()
    )
}
