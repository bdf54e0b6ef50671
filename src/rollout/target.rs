//! The target of a rollout: which owners its pods have, and which images their templates name. Looked up elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;

/// The state of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// The target does not exist.
    Absent,
    /// The target exists.
    Present {
        /// The uids of the controllers of its pods; `None`: any controller.
        owners: Option<BTreeSet<String>>,
        /// The templates of those owners.
        templates: Vec<Template>,
        /// The number of pods that the owner is to have; `None`: unknown.
        desired: Option<usize>,
        /// The number of container restarts at which the owner ends all its pods; `None`: it does not count restarts.
        gives_up_at: Option<usize>,
    },
}

/// The images that the next pod of an owner gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The owner in the form that people write: `Deployment/web`.
    pub owner: String,
    /// Image by container.
    pub images: BTreeMap<String, String>,
}

impl TargetState {
    /// True when `pod` belongs to the target. If the target is gone: when the pod has the record of this rollout.
    pub fn has(&self, rollout: &Rollout, pod: &Pod) -> bool {
        match self {
            Self::Absent => pod.record.as_ref().is_some_and(|record| record.rollout == rollout.uid),
            Self::Present { owners: None, .. } => true,
            Self::Present { owners: Some(owners), .. } => {
                pod.owner.as_ref().is_some_and(|owner| owners.contains(&owner.uid))
            }
        }
    }

    /// How many of its pods are missing: not created yet, or being deleted. `pods` are all pods that may belong to it.
    /// If the number of pods is unknown, a pod counts until its grace period is over: it may never be replaced.
    pub fn missing(&self, rollout: &Rollout, pods: &[&Pod], now: Timestamp) -> usize {
        let own = || pods.iter().filter(|pod| self.has(rollout, pod));
        match self {
            Self::Present { desired: Some(desired), .. } => {
                desired.saturating_sub(own().filter(|pod| pod.base.is_active()).count())
            }
            _ => own()
                .filter(|pod| pod.base.deletion.is_some_and(|end| end > now && !pod.base.has_ended()))
                .count(),
        }
    }

    /// The message when `more` restarts in its `pods` reach the owner's limit; `None`: they do not.
    pub fn gives_up<'a>(
        &self,
        rollout: &Rollout,
        pods: impl IntoIterator<Item = &'a Pod>,
        more: usize,
    ) -> Option<String> {
        let Self::Present { gives_up_at: Some(limit), .. } = self else { return None };
        let restarts = pods.into_iter().map(|pod| usize::try_from(pod.base.restarts).unwrap_or(0));
        let before: usize = restarts.sum();
        (more > 0 && before + more >= *limit).then(|| {
            format!(
                "{} counts restarts as failures and ends all its pods at {limit} of them (spec.backoffLimit): there were \
                 {before}, and the rollout needs {more} more; set backoffLimit to at least {}",
                rollout.target(),
                before + more + 1
            )
        })
    }

    /// The message when the next pod of an owner gets an image of the rollout although the rollout takes it back; `None`:
    /// it does not.
    pub fn names_new_images(&self, rollout: &Rollout) -> Option<String> {
        let Self::Present { templates, .. } = self else { return None };
        let names = |template: &Template| {
            let named = |(container, image): &(&str, &str)| {
                template.images.get(*container).is_some_and(|named| named == image)
            };
            let (container, image) = rollout.images().find(named)?;
            Some(format!(
                "the template of {} names {image} for container {container}, so a pod that it creates from now on has \
                 {image}: change the template",
                template.owner
            ))
        };
        templates.iter().find_map(names)
    }

    /// The message when the next pod of an owner would get another image than the desired one; `None`: it would not.
    pub fn drift(&self, rollout: &Rollout) -> Option<String> {
        let Self::Present { templates, .. } = self else { return None };
        let drifts = |template: &Template| {
            let mut wanted = rollout.images();
            let (container, image, named) = wanted.find_map(|(container, image)| {
                let named = template.images.get(container)?;
                (named != image).then_some((container, image, named))
            })?;
            Some(format!(
                "the template of {} names {named} for container {container}, not {image}: its next pod would \
                 run {named} again. Change the template, or set allowTemplateDrift: true",
                template.owner
            ))
        };
        templates.iter().find_map(drifts)
    }
}
