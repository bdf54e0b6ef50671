//! The faults of the reference and the tests against them: `LESSONS` leads from each of its 29 known faults to tests
//! in this tree. Reads the sources as text; runs nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// The number of the fault, the required behaviour, and the tests that fail without it.
const LESSONS: [(u8, &str, &[&str]); 29] = [
    (
        1,
        "no part of an update is lost when another one follows within its grace period",
        &["no_part_of_an_update_is_lost_when_another_one_follows_within_its_grace_period"],
    ),
    (
        2,
        "a rollback within the grace period leaves the pod as it was, and Ready",
        &["a_rollback_within_the_grace_period_takes_the_request_back_and_leaves_the_pod_as_it_was"],
    ),
    (
        3,
        "an image that cannot be had is felt by nobody, and can be rolled back",
        &[
            "an_image_that_cannot_be_had_is_not_felt",
            "a_rollback_after_a_failed_update_repairs_what_was_left_behind",
        ],
    ),
    (
        4,
        "another name of the same image is a swap like any other",
        &["what_may_not_be_cloned_gets_another_name_of_its_image_and_then_the_first_again"],
    ),
    (
        5,
        "a hook that fails, errs or is ended does not pass",
        &["every_row_of_the_table", "terminated_is_ended_and_approves_nothing"],
    ),
    (
        6,
        "paused stops updates, not scaling, and stays as the user set it",
        &[
            "paused_stops_updates_and_not_scaling_and_is_left_as_the_user_set_it",
            "the_users_own_pause_holds_the_update_after_the_step_is_resumed",
        ],
    ),
    (
        7,
        "a run of which one metric failed ends, whatever the others wait for",
        &[
            "ordered_metrics_wait_for_the_one_before_and_end_with_a_failed_one",
            "a_metric_that_was_never_measured_does_not_keep_a_failed_run_open",
        ],
    ),
    (
        8,
        "everything ends by a deadline, and too many failures stop a rollout",
        &[
            "the_deadline_ends_it_untouched_or_rolls_it_back",
            "a_request_without_an_answer_ends_after_two_minutes",
            "failures_stop_a_rollout_at_the_threshold",
        ],
    ),
    (
        9,
        "the image is there before anything is touched",
        &["an_image_that_cannot_be_had_is_not_felt", "a_swap_pulls_first_and_watches_longer"],
    ),
    (
        10,
        "the hook after an update runs after it, counts, and can be tried again",
        &[
            "the_post_hook_is_part_of_the_update_and_is_tried_again_on_demand",
            "a_hook_that_fails_afterwards_takes_a_swap_back",
        ],
    ),
    (
        11,
        "an approval is for one target, once",
        &["an_approval_is_worth_nothing_for_another_target_and_nothing_twice"],
    ),
    // The delete guard holds deletions that do not come from the workload.
    (
        12,
        "no way to delete a pod goes around its hook",
        &[
            "scale_in_from_6_to_5_waits_for_its_hook_and_shows_it",
            "a_guarded_pod_goes_gracefully_or_not_at_all",
        ],
    ),
    (
        13,
        "minReadySeconds is safe in every state of a workload",
        &[
            "budgets_hold_at_every_reconcile_and_the_workload_always_completes",
            "a_workload_on_its_way_out_is_left_to_the_garbage_collector",
        ],
    ),
    (
        14,
        "a failure is reported in a condition that stays, and a missing template is one",
        &["a_write_that_failed_is_reported", "a_hook_template_that_is_not_there_is_said_in_a_condition"],
    ),
    (
        15,
        "a write that failed is made again, without waiting for news",
        &["failures_wait_longer_each_time_whatever_happens_and_success_forgets_them"],
    ),
    (
        16,
        "broken pods do not hold back what mends them",
        &[
            "broken_old_pods_do_not_hold_their_own_repair_back",
            "a_broken_new_pod_holds_the_rest_back_and_not_its_own_repair",
        ],
    ),
    (
        17,
        "a scale-in can be taken back, and its choice outlives the controller",
        &["a_scale_in_can_be_taken_back_while_its_hook_runs", "the_pod_that_was_chosen_stays_the_one"],
    ),
    (
        18,
        "a change that is not in place is refused, or made by recreation, before any hook",
        &[
            "a_change_that_is_not_in_place_asks_no_hook_and_says_what_to_do",
            "a_change_that_cannot_be_made_in_place_is_refused_at_admission",
        ],
    ),
    (
        19,
        "shares are rounded in one place, and a step ends when more than enough is done",
        &[
            "shares_are_rounded_up_and_down_in_one_place",
            "a_step_ends_when_its_partition_is_reached_also_when_more_than_that_is",
        ],
    ),
    (
        20,
        "the mark of a pod that leaves goes when it stays",
        &["a_scale_in_can_be_taken_back_while_its_hook_runs"],
    ),
    (21, "never more hooks than the budget", &["never_more_hooks_than_the_budget_whatever_the_order"]),
    (
        22,
        "a pod takes traffic without any controller",
        &[
            "a_new_pod_gets_its_gate_opened_once",
            "a_new_pod_is_let_in_before_it_runs_and_one_without_a_gate_is_left_alone",
        ],
    ),
    (23, "metadata alone changes at once", &["metadata_alone_changes_without_a_hook_a_drain_or_a_restart"]),
    (
        24,
        "long names make valid names and labels",
        &["long_names_make_valid_hooks", "a_long_workload_name_still_gives_a_label"],
    ),
    (
        25,
        "hooks write what was meant whatever it holds, and can ask anything of a server",
        &[
            "patch_sets_what_differs_and_nothing_else",
            "the_request_is_sent_as_written_with_its_arguments",
            "a_real_prometheus_is_asked_and_judged",
        ],
    ),
    (
        26,
        "large integers keep their digits, and JSON its structure",
        &["integers_keep_their_digits", "every_documented_form_works"],
    ),
    (
        27,
        "a hot patch needs no kubelet or runtime of its own",
        &["a_hot_patch_asks_nothing_and_drains_nothing"],
    ),
    (28, "a rollout can be watched, paused and taken back", &["an_undo_reads_again_after_a_conflict"]),
    (
        29,
        "a workload at rest costs nothing, and its events stay few",
        &["a_large_workload_at_rest_is_left_in_peace", "two_thousand_pods_are_a_few_events"],
    ),
];

#[test]
fn every_fault_of_the_reference_has_a_test_of_ours() {
    let sources: Vec<String> = ["src", "tests"].iter().flat_map(|root| texts(Path::new(root))).collect();
    let is_there = |name: &str| sources.iter().any(|text| text.contains(&format!("fn {name}(")));
    for (index, (number, holds, tests)) in LESSONS.iter().enumerate() {
        assert_eq!(usize::from(*number), index + 1);
        assert!(!tests.is_empty(), "{number}: {holds}");
        for test in *tests {
            assert!(is_there(test), "{number}: {holds}: there is no test {test}");
        }
    }
    assert!(!is_there("a_test_that_nobody_has_written"));
}

/// The sources below a folder.
fn texts(folder: &Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(texts(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
    found
}
