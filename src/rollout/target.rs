//! The target of a rollout as it is found: whose pods they are, and which images its templates name.

use std::collections::{BTreeMap, BTreeSet};

use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;

/// The target now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// There is none.
    Absent,
    /// It is there.
    There {
        /// The uids that control its pods; `None`: whoever does.
        owners: Option<BTreeSet<String>>,
        /// What the templates of those owners say.
        templates: Vec<Template>,
        /// At so many restarts of its containers the owner ends all its pods; `None`: it does not count them.
        gives_up_at: Option<usize>,
    },
}

/// What the next pod of an owner will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Whose, as people write it: `Deployment/web`.
    pub owner: String,
    /// Container and image.
    pub images: BTreeMap<String, String>,
}

impl Target {
    /// True when `pod` is one of its own. Of a target that is gone, those that are being worked on.
    pub fn has(&self, rollout: &Rollout, pod: &Pod) -> bool {
        match self {
            Self::Absent => pod.record.as_ref().is_some_and(|record| record.rollout == rollout.uid),
            Self::There { owners: None, .. } => true,
            Self::There { owners: Some(owners), .. } => {
                pod.owner.as_ref().is_some_and(|owner| owners.contains(&owner.uid))
            }
        }
    }

    /// What comes of `more` restarts in its `pods`, for people; `None`: their owner bears them.
    pub fn gives_up<'a>(
        &self,
        rollout: &Rollout,
        pods: impl IntoIterator<Item = &'a Pod>,
        more: usize,
    ) -> Option<String> {
        let Self::There { gives_up_at: Some(limit), .. } = self else { return None };
        let restarts = pods.into_iter().map(|pod| usize::try_from(pod.base.restarts).unwrap_or(0));
        let before: usize = restarts.sum();
        (more > 0 && before + more >= *limit).then(|| {
            format!(
                "{} takes restarts for failures, and ends all its pods at {limit} of them (spec.backoffLimit): there were \
                 {before}, and {more} are to come; with a backoffLimit of {} it bears them",
                rollout.target(),
                before + more + 1
            )
        })
    }

    /// What the next pod of an owner would run in place of a wanted image, for people; `None`: the same.
    pub fn drift(&self, rollout: &Rollout) -> Option<String> {
        let Self::There { templates, .. } = self else { return None };
        let drifts = |template: &Template| {
            let mut wanted = rollout.images();
            let (container, image, named) = wanted.find_map(|(container, image)| {
                let named = template.images.get(container)?;
                (named != image).then_some((container, image, named))
            })?;
            Some(format!(
                "the template of {} names {named} for container {container}, not {image}: the next pod that it makes would \
                 run that again; change the template, or allow it with allowTemplateDrift: true",
                template.owner
            ))
        };
        templates.iter().find_map(drifts)
    }
}
