//! `/guard`: a guarded pod is not deleted or evicted before its pre-delete hook has succeeded.
//!
//! Every process answers, and none has state: requests and their progress are HookRuns. Must not decide whether a
//! deletion is allowed (`guard` does). A dry run is judged and has no effect. If the facts cannot be read in time,
//! the answer is a refusal.
//!
//! Only names are taken from a review: the pod, its namespace and the taints of its node are read from the API
//! server. The sender of a review is not authenticated (unless the API server presents a certificate), so the
//! content of a review has no effect of its own.

mod calls;
mod denials;
mod effect;
mod fields;
pub(super) mod finish;
mod limit;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::controller::admission::guard::denials::{Denials, Reason};
use crate::controller::admission::guard::limit::Limit;
use crate::controller::admission::review::{Answer, Refusal, Request, UserInfo};
use crate::guard::{self, Attempt, GuardInput};
use crate::process::clock;
use crate::process::log::chain;
use crate::process::permits::Permits;

/// Time limit of a decision. The API server waits 5 s, and its own timeout message is less helpful.
const IN_TIME: Duration = Duration::from_secs(3);
/// Pods that are read at the same time, each for some milliseconds; the other reviews wait.
const MAX_READS: usize = 16;
/// Reviews of guarded pods that are handled at the same time; the others wait. One namespace has at most three quarters of
/// them: its HookRuns may be many and large.
const MAX_REVIEWS: usize = 16;
/// Users whose deletions are not retried: the taint manager's. It was once a part of the node controller, and it
/// has the name of the whole process where the controllers have no service accounts of their own.
const ASK_ONCE: [&str; 3] = [
    "system:serviceaccount:kube-system:node-controller",
    "system:serviceaccount:kube-system:taint-eviction-controller",
    "system:kube-controller-manager",
];

/// Answers reviews of deletions and evictions.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) server: Server,
    pub(super) terms: GuardTerms,
    /// Counts refusals.
    pub(super) denials: Denials,
    /// Limits events and log lines.
    limit: Limit,
    /// Limits how many pods are read at the same time.
    reads: Arc<Semaphore>,
    /// Limits how many reviews of guarded pods hold answers of the API server in memory.
    permits: Permits,
}

/// Which users the guard exempts, and for how long it refuses deletions of the others.
#[derive(Clone, Debug, Default)]
pub(super) struct GuardTerms {
    pub(super) exempt_users: BTreeSet<String>,
    pub(super) exempt_groups: BTreeSet<String>,
    pub(super) longest_hold: Option<SignedDuration>,
    /// True: a pod's label counts only if its namespace has the label too.
    pub(super) labelled_namespaces_only: bool,
}

impl GuardTerms {
    fn exempts(&self, who: &UserInfo) -> bool {
        self.exempt_users.contains(&who.username)
            || who.groups.iter().any(|group| self.exempt_groups.contains(group))
    }
}

/// The kind of request that removes a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Delete,
    Evict,
}

impl Guard {
    pub(super) fn new(server: Server, terms: GuardTerms) -> Self {
        let (reads, permits) = (Arc::new(Semaphore::new(MAX_READS)), Permits::new(MAX_REVIEWS));
        Self { server, terms, denials: Denials::new(), limit: Limit::default(), reads, permits }
    }

    /// Whether the deletion or eviction is allowed.
    pub(super) async fn judge(&self, asked: &Request) -> Answer {
        let way = if asked.sub_resource == "eviction" { Way::Evict } else { Way::Delete };
        let review = async {
            // What is not guarded waits for no review that takes long.
            let Some(pod) = self.guarded(asked).await? else { return Ok(Ok(None)) };
            let _permit = self.permits.acquire(&asked.namespace).await;
            self.review(asked, way, &pod).await
        };
        let judged = match timeout(IN_TIME, review).await {
            Ok(Ok(judged)) => judged.map_err(|message| (Reason::Held, message)),
            Ok(Err(error)) => Err((Reason::Unknown, unknown(asked, &chain(&error)))),
            Err(_) => Err((Reason::Unknown, unknown(asked, "the API server takes too long to answer"))),
        };
        match judged {
            Ok(warning) => Answer::Allowed(warning.into_iter().collect()),
            Err((reason, message)) => {
                self.denials.count(way, reason);
                tracing::debug!(namespace = asked.namespace, by = asked.user_info.printable(), "{message}");
                way.refuse(message)
            }
        }
    }

    /// The pod that is to be deleted, if it is guarded.
    async fn guarded(&self, asked: &Request) -> Result<Option<Pod>, Error> {
        let _read = self.reads.acquire().await;
        let pod = self.server.guarded_pod(&asked.namespace, asked.name()).await?;
        Ok(pod.filter(guard::is_guarded))
    }

    /// The answer about a guarded pod: allowed, with an optional warning, or refused with the reason.
    async fn review(
        &self,
        asked: &Request,
        way: Way,
        pod: &Pod,
    ) -> Result<Result<Option<String>, String>, Error> {
        let namespace = &asked.namespace;
        match asked.old_uid() {
            Some(uid) if Some(uid) != pod.metadata.uid.as_deref() => {
                return Ok(Err(guard::replaced(asked.name())));
            }
            // For an eviction the API server sends no uid.
            None if way == Way::Delete => return Ok(Err(guard::unnamed(asked.name()))),
            _ => {}
        }
        if self.terms.exempts(&asked.user_info) {
            return Ok(Ok(Some(self.exempted(asked, pod).await)));
        }
        let instance = guard::instance(pod);
        let of_owner = async {
            match guard::owner(pod) {
                Some(owner) => self.server.pre_delete_hook(namespace, owner).await,
                None => Ok(None),
            }
        };
        let (of_owner, attempts, space) = tokio::try_join!(
            of_owner,
            self.server.attempts(namespace, &instance),
            self.server.guarded_namespace(namespace),
        )?;
        if self.terms.labelled_namespaces_only && !space.labelled {
            return Ok(Ok(None));
        }
        let longest_hold = self.terms.longest_hold;
        let input = GuardInput { pod, of_owner, attempts, namespace: space, longest_hold, now: clock::now() };
        let verdict = guard::decide(&input);
        if guard::begins(&input, &verdict) && !asked.is_dry_run() {
            self.hold(pod, input.now).await;
        }
        let its = |attempt: &&Attempt| Some(&attempt.pod_uid) == pod.metadata.uid.as_ref();
        let once = ASK_ONCE.contains(&asked.user_info.username.as_str())
            || input.attempts.iter().filter(its).any(|attempt| attempt.finishes);
        let finishes = once && is_evicted(&self.server, pod).await?;
        self.carry_out(asked, pod, verdict, finishes).await
    }
}

/// True if the taints of its node evict `pod`.
async fn is_evicted(server: &Server, pod: &Pod) -> Result<bool, Error> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    Ok(guard::is_evicted(pod, &server.taints(node).await?, clock::now()))
}

impl Way {
    /// The refusal. A client that drains a node retries an eviction that is answered with 429.
    /// `retryAfterSeconds` is left out: with it client-go would wait and retry ten times by itself, and hide the
    /// message from the user.
    fn refuse(self, message: String) -> Answer {
        Answer::Refused(match self {
            Self::Delete => Refusal::forbidden(message),
            Self::Evict => Refusal { code: 429, reason: "TooManyRequests", message, causes: Vec::new() },
        })
    }
}

fn unknown(asked: &Request, why: &str) -> String {
    format!(
        "whether pod {} may be deleted cannot be determined now: {why}. Try again: the deletion is refused until then",
        asked.name()
    )
}
