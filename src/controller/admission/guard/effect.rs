//! Applies a verdict of the guard: creates the HookRun that it asks for, and reports it. A dry run has no effect.
//! Must not decide a verdict.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};

use crate::api::annotation;
use crate::api::hook_run::{HookRun, HookRunSpec};
use crate::cluster::error::{Class, Error};
use crate::cluster::event::ObjectEvent;
use crate::controller::admission::guard::Guard;
use crate::controller::admission::review::Request;
use crate::guard::{self, Attempt, Verdict};
use crate::hook::check::prepare;
use crate::process::log::chain;
use crate::process::{clock, random};
use crate::workload::action::NewHookRun;

/// Attempts at a free name: the first ones in a fixed order, so that concurrent requests try the same names, the
/// rest with random names that cannot be taken in advance.
const MAX_TRIES: (usize, usize) = (3, 5);
/// The host that is named as the source of events.
const HOST: &str = "inplace-controller";

impl Guard {
    /// Applies `verdict` and returns the answer: allowed, with an optional warning, or refused with the reason.
    /// `finishes`: the leader repeats the deletion of this pod later.
    pub(super) async fn carry_out(
        &self,
        asked: &Request,
        pod: &Pod,
        verdict: Verdict,
        finishes: bool,
    ) -> Result<Result<Option<String>, String>, Error> {
        let by = asked.user_info.printable();
        match verdict {
            Verdict::Passed(run, at) => {
                let note = format!("{by} may delete the pod: HookRun {run} has succeeded");
                self.report(
                    asked,
                    pod,
                    ObjectEvent { reason: "DeleteGuardPassed".to_owned(), warning: false, note, at },
                )
                .await;
                Ok(Ok(None))
            }
            Verdict::Overridden(place, reason) => {
                let note = format!(
                    "{by} deletes the pod without its pre-delete hook: the annotation {} of the {place} allows it: {reason}",
                    annotation::DELETE_GUARD_OVERRIDE
                );
                Ok(Ok(Some(self.warned(asked, pod, "DeleteGuardOverridden", note).await)))
            }
            Verdict::Expired(since) => {
                let note = format!(
                    "{by} deletes the pod without its pre-delete hook: its deletion has been refused since {since}, longer than \
                     --guard-longest-hold"
                );
                Ok(Ok(Some(self.warned(asked, pod, "DeleteGuardExpired", note).await)))
            }
            Verdict::Held(run, message) => {
                // An attempt of the workload needs no label: the workload deletes the pod itself.
                let is_unlabelled =
                    |run: &Attempt| finishes && !run.finishes && run.is_guards() && !asked.is_dry_run();
                let run = run.filter(|run| is_unlabelled(run));
                if let Some(run) = run {
                    self.server.finish_hook_run(&asked.namespace, &run.name).await?;
                }
                Ok(Err(message))
            }
            Verdict::StartHook(run, why) => {
                self.ask(asked, pod, &run, why.as_deref(), finishes).await.map(Err)
            }
        }
    }

    /// Reports that an exempt user deletes a pod without its hook.
    pub(super) async fn exempted(&self, asked: &Request, pod: &Pod) -> String {
        let by = asked.user_info.printable();
        let note = format!(
            "{by} deletes the pod without its pre-delete hook: this user is exempt from the delete guard"
        );
        self.warned(asked, pod, "DeleteGuardExempt", note).await
    }

    /// Reports a deletion without a hook: in the log, as an event, and as a warning to the user.
    async fn warned(&self, asked: &Request, pod: &Pod, reason: &str, note: String) -> String {
        let warning = format!("pod {}: {note}", pod.name_any());
        self.record_event(asked, pod, reason, true, note).await;
        warning
    }

    /// Writes on the pod since when its deletion is refused. If that fails, the deletion is refused all the same,
    /// and the hold counts from the first hook that was started.
    pub(super) async fn hold(&self, pod: &Pod, since: Timestamp) {
        let Err(error) = self.server.hold_pod(pod, since).await else { return };
        let is_other = matches!(error.class(), Class::Gone | Class::Refused);
        if !is_other && self.limit.admits(&pod.uid().unwrap_or_default(), "") {
            tracing::warn!(
                error = chain(&error),
                "pod {}: the time of the first refusal cannot be written: --guard-longest-hold counts from the first hook",
                pod.name_any()
            );
        }
    }

    /// Creates the HookRun, and reports that.
    async fn ask(
        &self,
        asked: &Request,
        pod: &Pod,
        run: &NewHookRun,
        why: Option<&str>,
        finishes: bool,
    ) -> Result<String, Error> {
        let name = pod.name_any();
        let namespace = &asked.namespace;
        let Some(template) = self.server.hook_template(namespace, &run.template).await? else {
            return Ok(format!(
                "pod {name} is guarded, but HookTemplate {namespace}/{} of its pre-delete hook does not exist: create it",
                run.template
            ));
        };
        let spec = match prepare(&template.spec, &run.args, None) {
            Ok(spec) => spec,
            Err(problem) => {
                return Ok(format!(
                    "pod {name} is guarded, but HookTemplate {namespace}/{} of its pre-delete hook cannot be used for it: \
                     {problem}",
                    run.template
                ));
            }
        };
        if asked.is_dry_run() {
            return Ok(guard::would_start(&name, run, why));
        }
        let mut run = run.clone();
        for number in 1..=MAX_TRIES.1 {
            match self.server.create_hook_run(&object(asked, pod, &run, &spec, finishes)).await {
                Ok(_) => {
                    let note = format!(
                        "the deletion by {} is refused until HookRun {} has succeeded",
                        asked.user_info.printable(),
                        run.name
                    );
                    self.record_event(asked, pod, "DeleteGuardAsked", false, note).await;
                    break;
                }
                // The name is taken. The existing HookRun is the guard's own if a concurrent request created it.
                Err(error) if error.is_already_there() => {
                    let is_own = self.server.is_guards_run(pod, &run.name).await?;
                    if is_own == Some(true) {
                        break;
                    }
                    if number == MAX_TRIES.1 {
                        return Err(error);
                    }
                    // It was deleted in between: the name is free.
                    if is_own.is_none() {
                        continue;
                    }
                    // Without a random number, the next number is tried.
                    let random = || Some(u32::try_from(random::number().ok()? >> 33).unwrap_or(0));
                    let other = guard::renumbered(pod, &run, (number >= MAX_TRIES.0).then(random).flatten());
                    let Some(other) = other else { return Err(error) };
                    let note = guard::taken(&run.name, &other.name);
                    self.record_event(asked, pod, "DeleteGuardNameTaken", true, note).await;
                    run = other;
                }
                // Another conflict, such as that of a quota, leaves nothing: the same name is tried again.
                Err(error) if error.class() == Class::Refused && number < MAX_TRIES.1 => {}
                Err(error) if error.is_namespace_terminating() => return Ok(guard::terminating(pod)),
                Err(error) => return Err(error),
            }
        }
        Ok(guard::started(&name, &run, why))
    }

    async fn record_event(&self, asked: &Request, pod: &Pod, reason: &str, warning: bool, note: String) {
        self.report(asked, pod, ObjectEvent { reason: reason.to_owned(), warning, note, at: clock::now() })
            .await;
    }

    /// Reports an event, and logs a warning, within the limit. An event that cannot be written, as in a
    /// terminating namespace, blocks nothing.
    async fn report(&self, asked: &Request, pod: &Pod, reported: ObjectEvent) {
        if asked.is_dry_run() || !self.limit.admits(&pod.uid().unwrap_or_default(), &reported.reason) {
            return;
        }
        if reported.warning {
            tracing::warn!(namespace = asked.namespace, pod = pod.name_any(), "{}", reported.note);
        }
        if let Err(error) = self.server.pod_event(pod, HOST, &reported).await {
            tracing::info!("{}: {}: {error}", reported.reason, reported.note);
        }
    }
}

/// The HookRun object of `run`.
fn object(asked: &Request, pod: &Pod, run: &NewHookRun, spec: &HookRunSpec, finishes: bool) -> HookRun {
    let mut object = HookRun::new(&run.name, spec.clone());
    let mut labels = run.labels.clone();
    labels.extend(run.node.iter().map(|node| (annotation::NODE.to_owned(), node.clone())));
    if finishes {
        labels.insert(annotation::DELETE_GUARD.to_owned(), annotation::FINISH.to_owned());
    }
    object.metadata.namespace = Some(asked.namespace.clone());
    object.metadata.labels = Some(labels);
    object.metadata.annotations = Some(run.annotations.clone());
    object.metadata.owner_references = pod.owner_ref(&()).map(|owner| vec![owner]);
    object
}
