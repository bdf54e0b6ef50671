//! Adds to the writes of a rollout which pods name the images that their later requests need. Must not begin or end a
//! task.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::annotation;
use crate::podtask;
use crate::podtask::prefetch::{Waiting, choose};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::rollout::decide::{What, Write};
use crate::rollout::desired::Rollout;
use crate::rollout::order;
use crate::rollout::pod::Pod;
use crate::rollout::view::{PodView, State};

/// Precedes the uid of the rollout, which is the last entry of the annotation. Agents ignore the entry, because no
/// reference has such a character.
const OWNER: &str = "rollout=";

/// Extends `writes` by the changes of the annotation. `remaining`: how many pods may still get a request after this
/// reconcile; 0 while the rollout is paused or stops. `active`: the uids of the active rollouts.
pub(super) fn add(
    rollout: &Rollout,
    views: &[PodView<'_>],
    remaining: usize,
    active: &BTreeSet<String>,
    writes: &mut Vec<Write>,
) {
    let begun: Vec<_> = writes.iter().filter(|write| matches!(write.what, What::Begin(_))).collect();
    let begins = |view: &PodView<'_>| begun.iter().any(|write| write.pod.uid == view.pod.base.uid);
    let chosen = if rollout.spec.prefetch {
        let waits = |view: &&PodView<'_>| {
            let waits = view.state == State::Waiting && view.reach.is_reachable();
            waits && !begins(view) && may_change(rollout, view.pod, active)
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
        let images = chosen.get(base.name.as_str()).filter(|_| !begins(view));
        let text = images.map(|images| format!("{images},{OWNER}{}", rollout.uid));
        if text != view.pod.prefetch && (begins(view) || may_change(rollout, view.pod, active)) {
            changes.push((base, text));
        }
    }
    for (base, text) in changes {
        // At most one write per pod and reconcile: each is conditional on the resource version that was read.
        if let Some(write) = writes.iter_mut().find(|write| write.pod.uid == base.uid) {
            write.patch.annotations.insert(annotation::ROLLOUT_PREFETCH.to_owned(), text);
        } else {
            writes.push(annotate(base, text));
        }
    }
}

/// The write that sets the annotation, or removes it.
fn annotate(pod: &podtask::pod::Pod, text: Option<String>) -> Write {
    let annotations = [(annotation::ROLLOUT_PREFETCH.to_owned(), text)].into();
    Write {
        pod: VersionedRef::of(pod),
        patch: PodPatch { annotations, ..PodPatch::default() },
        what: What::Prefetch,
    }
}

/// The write that removes the annotation from `pod`, if it is of a rollout that is not `active`.
pub fn abandoned(pod: &Pod, active: &BTreeSet<String>) -> Option<Write> {
    let (_, owner) = parts(pod.prefetch.as_deref()?);
    owner.filter(|uid| !active.contains(*uid)).map(|_| annotate(&pod.base, None))
}

/// True unless the annotation is of another active rollout, which would write it again. One without a uid, which an
/// earlier release wrote, is of another rollout if it names another image than those of this one.
fn may_change(rollout: &Rollout, pod: &Pod, active: &BTreeSet<String>) -> bool {
    let Some(text) = pod.prefetch.as_deref() else { return true };
    let is_image = |named: &str| named.is_empty() || rollout.images().any(|(_, image)| image == named);
    match parts(text) {
        (_, Some(uid)) => uid == rollout.uid || !active.contains(uid),
        (images, None) => images.split(',').all(is_image),
    }
}

/// The images of the annotation, and the uid of the rollout that wrote it.
fn parts(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(OWNER) {
        Some((images, uid)) => (images.trim_end_matches(','), Some(uid)),
        None => (text, None),
    }
}

/// A pod with the images that it does not run yet.
fn of<'a>(rollout: &Rollout, view: &PodView<'a>) -> Waiting<'a> {
    let runs = |name: &str, image: &str| view.pod.images.get(name).is_some_and(|found| found == image);
    let images = rollout.images().filter(|(name, image)| !runs(name, image));
    Waiting {
        pod: &view.pod.base,
        named: view.pod.prefetch.as_deref().map(|text| parts(text).0),
        images: images.map(|(_, image)| image.to_owned()).collect(),
    }
}
