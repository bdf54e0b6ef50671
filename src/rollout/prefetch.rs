//! Adds to the writes of a rollout which pods name the images that their later requests need. Must not begin or end a
//! task.

use std::collections::BTreeMap;

use crate::api::annotation;
use crate::podtask::prefetch::{Waiting, choose};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::rollout::decide::{What, Write};
use crate::rollout::desired::Rollout;
use crate::rollout::order;
use crate::rollout::pod::Pod;
use crate::rollout::view::{PodView, State};

/// Extends `writes` by the changes of the annotation. `remaining`: how many pods may still get a request after this
/// reconcile; 0 while the rollout is paused or stops.
pub(super) fn add(rollout: &Rollout, views: &[PodView<'_>], remaining: usize, writes: &mut Vec<Write>) {
    let begun: Vec<_> = writes.iter().filter(|write| matches!(write.what, What::Begin(_))).collect();
    let begins = |view: &PodView<'_>| begun.iter().any(|write| write.pod.uid == view.pod.base.uid);
    let chosen = if rollout.spec.prefetch {
        let waits = |view: &&PodView<'_>| {
            let waits = view.state == State::Waiting && view.reach.is_reachable();
            waits && !begins(view) && is_own(rollout, view.pod)
        };
        let mut waiting: Vec<_> = views.iter().filter(waits).collect();
        waiting.sort_by(|one, other| order::compare(one, other));
        waiting.truncate(remaining);
        let untouched =
            |view: &PodView<'_>| matches!(view.state, State::Waiting | State::Taken | State::Dropped);
        let has_images = |view: &&PodView<'_>| !untouched(view) || begins(view);
        let served = views.iter().filter(has_images).filter_map(|view| view.pod.base.node.as_deref());
        choose(&waiting.into_iter().map(|view| of(rollout, view)).collect::<Vec<_>>(), &served.collect())
    } else {
        BTreeMap::new()
    };
    let mut changes = Vec::new();
    for view in views {
        let base = &view.pod.base;
        // A request removes the annotation, whatever is chosen.
        let text = chosen.get(base.name.as_str()).filter(|_| !begins(view)).cloned();
        if text != view.pod.prefetch && (begins(view) || is_own(rollout, view.pod)) {
            changes.push((base, text));
        }
    }
    for (base, text) in changes {
        let change = (annotation::ROLLOUT_PREFETCH.to_owned(), text);
        // At most one write per pod and reconcile: each is conditional on the resource version that was read.
        match writes.iter_mut().find(|write| write.pod.uid == base.uid) {
            Some(write) => drop(write.patch.annotations.insert(change.0, change.1)),
            None => writes.push(Write {
                pod: VersionedRef::of(base),
                patch: PodPatch { annotations: [change].into(), ..PodPatch::default() },
                what: What::Prefetch,
            }),
        }
    }
}

/// True unless the annotation names another image than those of the rollout. It is of another rollout then, which would
/// write it again.
fn is_own(rollout: &Rollout, pod: &Pod) -> bool {
    let is_image = |named: &str| named.is_empty() || rollout.images().any(|(_, image)| image == named);
    pod.prefetch.as_deref().is_none_or(|named| named.split(',').all(is_image))
}

/// A pod with the images that it does not run yet.
fn of<'a>(rollout: &Rollout, view: &PodView<'a>) -> Waiting<'a> {
    let runs = |name: &str, image: &str| view.pod.images.get(name).is_some_and(|found| found == image);
    let images = rollout.images().filter(|(name, image)| !runs(name, image));
    Waiting {
        pod: &view.pod.base,
        named: view.pod.prefetch.as_deref(),
        images: images.map(|(_, image)| image.to_owned()).collect(),
    }
}
