//! Pods on which a rollout was working that is gone, or has ended: what is not touched yet is taken back, the rest ends.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::error::{Class, Error};
use crate::cluster::rollouts::{Key, TargetPods};
use crate::controller::rollouts::Site;
use crate::controller::rollouts::hand::Budgets;
use crate::process::clock;
use crate::process::log::chain;
use crate::rollout::decide::What;
use crate::rollout::disruption::Room;
use crate::rollout::pod::Pod;
use crate::rollout::stray::stray;

/// Between two looks where something is left to do.
const PAUSE: Duration = Duration::from_secs(2);

pub(super) async fn run(site: &Site, stop: &CancellationToken) {
    let mut pods = TargetPods::worked_on(&site.server, stop);
    let mut known = site.known.clone();
    loop {
        let again = if pods.is_current() && known.is_current() { look(site, &pods).await } else { None };
        tokio::select! {
            () = stop.cancelled() => break,
            () = pods.changed() => {}
            () = known.changed() => {}
            () = async {
                match again {
                    Some(at) => sleep(clock::until(at).max(PAUSE)).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

/// Looks at all of them, and tells when to look again.
async fn look(site: &Site, pods: &TargetPods) -> Option<Timestamp> {
    let active = site.known.active();
    let mut again: Option<Timestamp> = None;
    for (namespace, pod) in pods.list() {
        if pod.worked_on.as_ref().is_some_and(|uid| active.contains(uid)) {
            continue;
        }
        let next = match mend(site, pods, &namespace, &pod).await {
            Ok(next) => next,
            Err(error) => {
                if !matches!(error.class(), Class::Refused | Class::Gone) {
                    tracing::info!("pod {namespace}/{}: {}", pod.base.name, chain(&error));
                }
                Some(clock::now())
            }
        };
        again = again.into_iter().chain(next).min();
    }
    again
}

async fn mend(
    site: &Site,
    pods: &TargetPods,
    namespace: &str,
    pod: &Pod,
) -> Result<Option<Timestamp>, Error> {
    let now = clock::now();
    let (Some(write), again) = stray(pod, now) else { return Ok(stray(pod, now).1) };
    let Some(mark) = &pod.mark else { return Ok(again) };
    // What was made a moment ago may not be known here yet.
    let key = Key { namespace: namespace.to_owned(), name: mark.name.clone() };
    if site.server.is_under_way(&key, &mark.rollout).await? {
        return Ok(Some(now));
    }
    if let What::End(_, claims) = &write.what
        && !claims.is_empty()
    {
        let served = site.server.disruptions(namespace).await?;
        let room = Room::new(served.items, served.version);
        Budgets::new(site, namespace, served.version, &room).release(claims, &pod.base.name).await?;
    }
    let done = site.server.patch_pod(namespace, &write.pod, &write.patch).await;
    site.metrics.wrote("pod", &done);
    tracing::info!("pod {namespace}/{}: what {key} left on it is cleared away", pod.base.name);
    pods.learn(done?);
    // A request that was taken back is looked at once more.
    Ok(Some(now).filter(|_| write.what == What::Recall))
}
