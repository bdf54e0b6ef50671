//! The transcripts of the seed documents on a real cluster: the published manifests, the user's commands, and the
//! output of `kubectl` without the ages. Also behaviour of workloads that the documents only mention.

mod args;
mod failing;
mod failure;
mod in_place;
mod interval;
mod rollouts;
mod set;
mod watched;
mod workload;

use workload::{Fixture, UpdateCase};

/// The published manifests, verbatim. That the API server accepts them unmodified is tested in `admission`.
const HOOKED: &str = include_str!("../examples/gamedeployment-preDeleteHook-gamedeployment.yaml");
const HOOKED_ARGS: &str = include_str!("../examples/gamedeployment-preDeleteHook-gamedeployment-args.yaml");
const IN_PLACE: &str = include_str!("../examples/gamedeployment-inplace-update.yaml");
const HOT_PATCH: &str = include_str!("../examples/gamedeployment-hotpatch-update.yaml");
const ROLLING: &str = include_str!("../examples/gamedeployment-rolling-update.yaml");
const SET_IN_PLACE: &str = include_str!("../examples/gamestatefulset-inplace-update.yaml");
const SET_HOT_PATCH: &str = include_str!("../examples/gamestatefulset-hotpatch-update.yaml");
const SET_ROLLING: &str = include_str!("../examples/gamestatefulset-rolling-update.yaml");
const SUCCESS: &str = include_str!("../examples/gamedeployment-preDeleteHook-hook-template-success.yaml");
const FAIL: &str = include_str!("../examples/gamedeployment-preDeleteHook-hook-template-fail.yaml");
const ARGS: &str = include_str!("../examples/gamedeployment-preDeleteHook-hook-template-args.yaml");

#[test]
fn the_published_transcripts_come_out_as_printed() {
    let fixture = Fixture::new(&["one"]);
    fixture.cases(&[
        ("interval", interval::a_pod_goes_when_its_hook_has_passed),
        ("in-place", in_place::three_of_five_in_batches_of_two),
        ("eight", in_place::five_of_eight_without_hooks),
        ("failure", failure::a_failed_hook_holds_the_pod_until_it_is_retried),
        ("args", args::arguments_get_into_the_url),
        ("set", set::from_the_highest_ordinal_down),
    ]);
}

#[test]
fn whatever_the_strategy_and_whatever_goes_wrong_there_is_a_defined_end() {
    let fixture = Fixture::new(&["one", "two"]);
    fixture.cases(&[
        ("hot-patch", rollouts::a_hot_patch_asks_nobody_and_drains_nothing),
        ("rolling", rollouts::a_rolling_update_replaces_within_its_budget),
        ("set-hot-patch", rollouts::a_set_is_hot_patched_down_to_its_partition),
        ("set-rolling", rollouts::a_set_is_replaced_down_to_its_partition),
        ("on-delete", rollouts::on_delete_waits_for_the_user),
        ("paused", rollouts::paused_stops_updates_and_not_scaling),
        ("rollback", failing::a_rollback_in_the_middle_leaves_what_was_not_touched),
        ("failing", failing::a_failing_image_stops_at_the_threshold),
        ("missing", failing::an_image_that_is_not_there_touches_nothing),
        ("killed", failing::another_controller_goes_on_where_a_killed_one_stopped),
    ]);
}
