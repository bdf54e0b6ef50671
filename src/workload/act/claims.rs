//! The writes on the volume claims of a `GameStatefulSet`, given what `workload::claims` decides about each. It must not
//! delete a claim: the garbage collector does.

use crate::api::pod_template::ClaimTemplate;
use crate::podtask::pod::Pod;
use crate::podtask::state::Stage;
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::act::Planner;
use crate::workload::action::Action;
use crate::workload::claims::Claim;
use crate::workload::new_pod;
use crate::workload::scale::Scaling;

impl Planner<'_, '_> {
    /// Gives the claims of all pods the owners that the policy of the set asks for.
    pub(super) fn own_claims(&mut self, scaling: &Scaling<'_>) {
        for pod in self.input.pods {
            if !self.owned.contains(&pod.name) {
                self.hand_over_claims(pod, pod.is_deleting() && self.takes_claims(pod, scaling));
            }
        }
    }

    /// True when the claims of the pod are deleted with it, because a scale-in removes it.
    pub(super) fn takes_claims(&self, pod: &Pod, scaling: &Scaling<'_>) -> bool {
        scaling.condemned.contains(pod.name.as_str()) && self.has_saved(pod)
    }

    /// True unless the hook before the deletion has not saved what is in the claims: the pod has ended, another client has
    /// deleted it, or it never ran. A pod whose hook has passed owns its claims before it is deleted. Claims without a volume
    /// have no data.
    pub(super) fn has_saved(&self, pod: &Pod) -> bool {
        let input = self.input;
        let leaves = |task: &&PodTask| task.purpose == Purpose::ScaleIn && task.stage == Stage::Chosen;
        let has_passed = |task: &PodTask| {
            let key = task.key();
            input.runs_of(pod).iter().any(|run| run.key == key && !run.deleting && run.has_passed())
        };
        input.spec.hooks.pre_delete.is_none()
            || self.owns_claim(pod)
            || !self.has_volume(pod)
            || pod.task.as_ref().filter(leaves).is_some_and(has_passed)
    }

    /// True when the pod can be deleted as far as its claims are concerned: once it owns them if it is `scaled_in`, so
    /// that they are deleted with it, and otherwise once it does not, as after a scale-in that was taken back.
    pub(super) fn may_lose_claims(&mut self, pod: &Pod, scaled_in: bool) -> bool {
        self.hand_over_claims(pod, scaled_in) || !(scaled_in || self.owns_claim(pod))
    }

    /// True when the pod owns a claim of the set.
    fn owns_claim(&self, pod: &Pod) -> bool {
        self.has_claim(pod, |claim| claim.owners.iter().any(|owner| owner.uid == pod.uid))
    }

    /// True when a volume is bound to a claim of the pod.
    fn has_volume(&self, pod: &Pod) -> bool {
        self.has_claim(pod, |claim| claim.bound)
    }

    /// True when `is` says so of a claim of the pod that exists.
    fn has_claim(&self, pod: &Pod, is: impl Fn(&Claim) -> bool) -> bool {
        let input = self.input;
        let Some((set, ordinal)) = input.spec.stateful().zip(pod.ordinal(&input.spec.name)) else {
            return false;
        };
        let names = new_pod::claims(input.spec, set, &ordinal.to_string());
        names.iter().any(|(name, _)| input.claims.get(name).is_some_and(&is))
    }

    /// Gives the claims of `pod` the owners that the policy asks for. True when they have them.
    pub(super) fn hand_over_claims(&mut self, pod: &Pod, scaled_in: bool) -> bool {
        let input = self.input;
        let Some(set) = input.spec.stateful() else { return true };
        let Some(ordinal) = pod.ordinal(&input.spec.name) else { return true };
        self.owned.insert(pod.name.clone());
        let mut right = true;
        for (name, _) in new_pod::claims(input.spec, set, &ordinal.to_string()) {
            let Some(claim) = input.claims.get(&name) else { continue };
            if let Some(change) = claim.owner_change(input.spec, set, pod, scaled_in) {
                self.acts.actions.push(Action::OwnClaim { claim: claim.at(&name), change });
                right = false;
            }
        }
        right
    }

    /// Recreates missing claims of existing pods: a pod that is Pending because of one can continue then.
    pub(super) fn ensure_claims(&mut self, scaling: &Scaling<'_>) {
        for view in &self.input.views {
            let name = view.pod.name.as_str();
            let ordinal = view.pod.ordinal(&self.input.spec.name).filter(|_| !scaling.leave.contains(name));
            if let Some(ordinal) = ordinal {
                self.has_claims(name, &ordinal.to_string());
            }
        }
    }

    /// True when all claims of the pod `name` exist and are not being deleted. Missing claims are created; the pod is
    /// created only after they are observed, because a pod without its claims is Pending for ever.
    pub(super) fn has_claims(&mut self, name: &str, ordinal: &str) -> bool {
        let input = self.input;
        let Some(set) = input.spec.stateful() else { return true };
        let mut there = true;
        let uid = input.by_name.get(name).map(|pod| pod.uid.as_str());
        for (template, (claim, body)) in set.claims.iter().zip(new_pod::claims(input.spec, set, ordinal)) {
            match input.claims.get(&claim) {
                Some(cached) if !cached.terminating && !cached.is_owned_by_earlier_pod(name, uid) => {
                    self.grow(cached, &claim, template);
                    continue;
                }
                Some(_) => {
                    let problem = format!(
                        "pod {name} waits for its claim {claim}, which is being deleted; it is created again after that"
                    );
                    self.acts.problem.get_or_insert((Purpose::ScaleIn, problem));
                }
                None => self.acts.actions.push(Action::CreateClaim { name: claim, body }),
            }
            there = false;
        }
        there
    }

    /// Raises the storage request of a claim to that of its template. A claim gets one write per reconcile.
    fn grow(&mut self, claim: &Claim, name: &str, template: &ClaimTemplate) {
        let is_written =
            |action: &Action| matches!(action, Action::OwnClaim { claim, .. } if claim.name == name);
        match claim.growth(name, self.input.spec, template, self.input.classes) {
            Ok(Some(_)) if self.acts.actions.iter().any(is_written) => {}
            Ok(Some(storage)) => {
                self.acts.actions.push(Action::GrowClaim { claim: claim.at(name), storage });
            }
            Ok(None) => {}
            Err(problem) => drop(self.acts.claim_problem.get_or_insert(problem)),
        }
    }
}
