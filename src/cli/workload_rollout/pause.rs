//! `rollout pause|resume`: sets `spec.updateStrategy.paused` of a workload; `resume` also approves the canary step that
//! waits, by the annotation `inplace.dev/resume-step`. Writes nothing else.

use json_patch::PatchOperation;
use serde::Serialize;
use serde_json::json;

use crate::api::workload_key::RESUME_STEP;
use crate::cli::cluster::Failed;
use crate::cli::dry_run::DryRun;
use crate::cli::exit::Exit;
use crate::cli::form::HasName;
use crate::cli::output::line;
use crate::cli::workload_rollout::About;
use crate::cli::workload_rollout::workload::Workload;
use crate::cluster::patch::{self, ANNOTATIONS, VERSION};
use crate::workload::canary;

/// How often a change that conflicts with that of another client is tried.
const MAX_TRIES: usize = 5;

/// JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Set {
    namespace: String,
    workload: String,
    paused: bool,
    /// False when nothing was to be changed.
    changed: bool,
    /// The canary step that was resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed_step: Option<usize>,
}

/// What a command changes in a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// The new value of `paused`; None: it has this value.
    paused: Option<bool>,
    /// The canary step that is resumed.
    step: Option<usize>,
}

impl HasName for Set {
    fn full_name(&self) -> String {
        self.workload.clone()
    }
}

pub(super) async fn run(about: About, paused: bool, dry_run: DryRun) -> Result<Exit, Failed> {
    let (server, mut workload) = about.open().await?;
    for _ in 0..MAX_TRIES {
        let change = change(&workload, paused);
        let changed = change.paused.is_some() || change.step.is_some();
        let operations = operations(&workload, &change);
        if !changed
            || !dry_run.is_sent()
            || server.patch(&workload.name, operations, dry_run).await?.is_some()
        {
            let text = message(&workload, paused, &change, &server.flags) + dry_run.suffix();
            match about.output {
                Some(form) => form.print(&Set {
                    namespace: server.namespace,
                    workload: workload.name.to_string(),
                    paused,
                    changed,
                    resumed_step: change.step,
                }),
                None => line(&text),
            }
            return Ok(Exit::Done);
        }
        workload = server.workload(&workload.name).await?;
    }
    Err(Failed::Other(format!("{}: other clients keep changing it; nothing was changed", workload.name)))
}

/// What is to be changed. A resume is for the step that waits in the status which was read.
fn change(workload: &Workload, paused: bool) -> Change {
    let waits = !paused && !workload.status.pause_conditions.is_empty();
    let step = workload.status.current_step_index.filter(|_| waits);
    Change {
        paused: (workload.spec.update.paused != paused).then_some(paused),
        step: step.and_then(|index| usize::try_from(index).ok()),
    }
}

/// The patch, which changes nothing if the workload is not as it was read. It needs `spec.updateStrategy`, which the
/// defaults of the CRD always create.
fn operations(workload: &Workload, change: &Change) -> Vec<PatchOperation> {
    let mut operations = vec![patch::test(VERSION, workload.version.clone())];
    operations.extend(change.paused.map(|paused| patch::add(["spec", "updateStrategy", "paused"], paused)));
    if let Some(step) = change.step {
        let approval = canary::approval(&workload.status.update_revision, step);
        operations.push(if workload.has_annotations {
            patch::add(patch::annotation(RESUME_STEP), approval)
        } else {
            patch::add(ANNOTATIONS, json!({RESUME_STEP: approval}))
        });
    }
    operations
}

fn message(workload: &Workload, paused: bool, change: &Change, flags: &str) -> String {
    let name = &workload.name;
    let step = change.step.map(|step| format!("canary step {step} is resumed"));
    match (paused, change.paused, step) {
        (true, Some(_), _) => {
            format!("{name} paused: updates in progress are completed, scaling continues")
        }
        (true, None, _) => format!("{name} was already paused"),
        (false, Some(_), None) => format!("{name} resumed: updates continue"),
        (false, _, Some(step)) => format!("{name} resumed: {step}"),
        (false, None, None) => format!(
            "{name} is not paused, and no canary step waits: nothing was changed; `inplace rollout status \
             {name}{flags}` says what the update waits for"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::workload_rollout::workload::Kind;
    use crate::cli::workload_rollout::workload::tests::workload;

    #[test]
    fn a_resume_is_for_the_step_that_waits_and_a_pause_for_none() {
        let waits = json!({"updateRevision": "web-2", "currentStepIndex": 1,
            "pauseConditions": [{"reason": "PausedByCanaryPauseStep", "startTime": "2026-11-20T10:00:00Z"}]});
        let passed = json!({"updateRevision": "web-2", "currentStepIndex": 1});
        for (is_paused, status, paused, expected, says) in [
            (false, &waits, false, (None, Some(1)), "resumed: canary step 1 is resumed"),
            (true, &waits, false, (Some(false), Some(1)), "resumed: canary step 1 is resumed"),
            (true, &passed, false, (Some(false), None), "resumed: updates continue"),
            (false, &passed, false, (None, None), ".tencent.com/web -n shop` says what the update waits for"),
            (false, &waits, true, (Some(true), None), "paused: updates in progress"),
            (true, &waits, true, (None, None), "was already paused"),
        ] {
            let strategy = json!({"updateStrategy": {"paused": is_paused}});
            let workload = workload(Kind::Deployment, &strategy, status);
            let change = change(&workload, paused);
            assert_eq!((change.paused, change.step), expected, "{status} {paused}");
            let message = message(&workload, paused, &change, " -n shop");
            assert!(message.contains(says), "{status} {paused}: {message}");
            let patch = serde_json::to_value(operations(&workload, &change)).unwrap();
            let approval = json!({"op": "add", "path": "/metadata/annotations",
                "value": {"inplace.dev/resume-step": "web-2/1"}});
            let approves = patch.as_array().unwrap().contains(&approval);
            assert_eq!(approves, expected.1.is_some(), "{patch}");
        }
    }
}
