//! HookRuns under the policy: an agent may change only those of its own node, and only the parts that are its
//! own.

use inplace::api::hook_run::HookRun;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};

use super::hook_cases::{Act, OPERATION, cases, existing, of_operation};
use super::world::{NAMESPACE, World};
use crate::support::wait::{WAIT_LIMIT, eventually_async};

pub(super) async fn only_of_its_own_node(world: &World<'_>, agent: &Client) {
    let own = Api::<HookRun>::namespaced(agent.clone(), NAMESPACE);
    let people = Api::<HookRun>::namespaced(world.server.admin().await, NAMESPACE);
    let make = PostParams::default();
    for run in existing() {
        people.create(&make, &object(run)).await.unwrap();
    }
    // The policy takes effect after a moment.
    let try_to_delete = DeleteParams { dry_run: true, ..DeleteParams::default() };
    eventually_async(WAIT_LIMIT, "the policy to come into force", async || {
        if own.delete("other", &try_to_delete).await.is_ok() { Err("it is allowed") } else { Ok(()) }
    })
    .await;
    for case in cases() {
        match (case.denied, attempt(&own, case.act).await) {
            (None, Ok(())) => {}
            (Some(why), Err(Error::Api(status))) => {
                let reported = &status.message;
                assert!(
                    reported.contains("'inplace-agent-hooks'") && reported.contains(why),
                    "{}: {reported}",
                    case.what
                );
            }
            (_, Err(error)) => panic!("{}: {error}", case.what),
            (Some(_), Ok(())) => panic!("{}: was let through", case.what),
        }
    }
    // The HookRun of an operation, from creation to deletion, without dry run.
    own.create(&make, &object(of_operation(&json!({})))).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    own.patch_status(OPERATION, &PatchParams::default(), &status).await.unwrap();
    own.delete(OPERATION, &DeleteParams::default()).await.unwrap();
}

/// Tries the change as a dry run, so that every case starts from the same state.
async fn attempt(own: &Api<HookRun>, act: Act) -> Result<(), Error> {
    let how = PatchParams { dry_run: true, ..PatchParams::default() };
    match act {
        Act::Create(run) => {
            let make = PostParams { dry_run: true, ..PostParams::default() };
            own.create(&make, &object(run)).await.map(drop)
        }
        Act::Patch(name, change) => own.patch(name, &how, &Patch::Merge(change)).await.map(drop),
        Act::Status(name, change) => own.patch_status(name, &how, &Patch::Merge(change)).await.map(drop),
        Act::Delete(name) => {
            let delete = DeleteParams { dry_run: true, ..DeleteParams::default() };
            own.delete(name, &delete).await.map(drop)
        }
    }
}

fn object(run: Value) -> HookRun {
    serde_json::from_value(run).unwrap()
}
