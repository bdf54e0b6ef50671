//! Adds to the actions of an update which pods name the images that their later requests need. Must not begin or end a
//! task.
//!
//! The annotation goes with the request: the write that sends it removes the annotation. Beyond that, each pod is written
//! at most once per reconcile.

use std::collections::BTreeMap;

use crate::api::{annotation, workload_key};
use crate::podtask::prefetch::{Waiting, choose};
use crate::podtask::state::TaskState;
use crate::podtask::task::Purpose;
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::workload::action::{Action, BudgetClaims, Why};
use crate::workload::input::ReconcileInput;
use crate::workload::request;
use crate::workload::scale::Scaling;
use crate::workload::survey::{Route, Survey};
use crate::workload::update::order_of_update;
use crate::workload::view::PodView;

/// Extends `actions` by the changes of the annotation. Pods that `scaling` removes get none.
pub fn add(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    scaling: &Scaling<'_>,
    actions: &mut Vec<Action>,
) {
    let written = written(actions);
    let sent = |name: &str| written.get(name) == Some(&Written::Request);
    let has_images = |view: &&PodView<'_>| is_served(input, view) || sent(&view.pod.name);
    let chosen = if input.spec.update.prefetch && survey.moving() {
        let untouched = |name: &str| !matches!(written.get(name), Some(Written::Request | Written::Other));
        let mut waiting = waiting(input, survey);
        waiting.retain(|view| !scaling.goes(&view.pod.name) && untouched(&view.pod.name));
        if input.spec.stateful().is_none() {
            // A partition of a `GameDeployment` holds back a number of pods, whichever they are.
            let begun = input.views.iter().filter(has_images).filter(|view| !view.is_at(input.update_name()));
            waiting.truncate(survey.old.saturating_sub(survey.held + begun.count()));
        }
        let images = |view: &PodView<'_>| {
            let targets = request::targets(view, &input.update.template, &input.revisions);
            targets.into_iter().filter_map(|target| target.image).collect()
        };
        let waiting: Vec<_> = waiting
            .into_iter()
            .map(|view| Waiting { pod: view.pod, named: view.pod.prefetch.as_deref(), images: images(view) })
            .collect();
        let served = input.views.iter().filter(has_images);
        choose(&waiting, &served.filter_map(|view| view.pod.node.as_deref()).collect())
    } else {
        BTreeMap::new()
    };
    let changes = input.views.iter().filter_map(|view| {
        let name = view.pod.name.as_str();
        // A request removes the annotation, whatever is chosen.
        let text = chosen.get(name).filter(|_| !sent(name)).cloned();
        (text != view.pod.prefetch).then_some((view, text))
    });
    for (view, text) in changes {
        let change = (workload_key::PREFETCH.to_owned(), text);
        match written.get(view.pod.name.as_str()) {
            Some(Written::Other) => {}
            Some(Written::Request | Written::Patch) => merge(actions, &view.pod.name, change),
            None => actions.push(Action::PatchPod {
                pod: VersionedRef::of(view.pod),
                patch: PodPatch { annotations: [change].into(), ..PodPatch::default() },
                why: Why::Prefetch,
                claims: BudgetClaims::None,
            }),
        }
    }
}

/// What this reconcile writes on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// A request.
    Request,
    /// Other labels and annotations.
    Patch,
    /// Its deletion or its resize.
    Other,
}

/// The pods that `actions` write.
fn written(actions: &[Action]) -> BTreeMap<String, Written> {
    let write = |action: &Action| match action {
        Action::PatchPod { pod, patch, .. } => {
            let sends = patch.annotations.get(annotation::REQUEST).is_some_and(Option::is_some);
            Some((pod.name.clone(), if sends { Written::Request } else { Written::Patch }))
        }
        Action::DeletePod { pod, .. } | Action::Resize { pod, .. } | Action::SetGate { pod, .. } => {
            Some((pod.name.clone(), Written::Other))
        }
        _ => None,
    };
    actions.iter().filter_map(write).collect()
}

fn merge(actions: &mut [Action], name: &str, (key, value): (String, Option<String>)) {
    for action in actions {
        if let Action::PatchPod { pod, patch, .. } = action
            && pod.name == name
        {
            patch.annotations.insert(key, value);
            return;
        }
    }
}

/// The pods that get a request to the newest revision later, in their order.
fn waiting<'v, 'a>(input: &'v ReconcileInput<'a>, survey: &Survey<'_>) -> Vec<&'v PodView<'a>> {
    let waits = |view: &&PodView<'a>| {
        let in_place = matches!(survey.route(view), Route::PodTask(Purpose::InPlace | Purpose::HotPatch));
        let idle = matches!(view.task_state, TaskState::Over | TaskState::Waiting);
        let tried = view.last_failure(input.update_name()).is_some();
        in_place && idle && !tried && survey.is_eligible(input, view)
    };
    let mut views: Vec<_> = input.views.iter().filter(waits).collect();
    views.sort_by(|one, other| order_of_update(input, one, other));
    views
}

/// True if the agent of the pod's node has the images of the newest revision, or pulls them for a request.
fn is_served(input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
    let busy = matches!(view.task_state, TaskState::Busy { .. });
    view.is_at(input.update_name())
        || busy && view.live().is_some_and(|task| task.target == input.update_name())
}
