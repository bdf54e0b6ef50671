//! Unit tests of `engine`: which engine is chosen for which pod, with which reason.

use super::*;
use crate::operation::fixtures::{
    ALIAS, ask, at, declared, find, pod_in_cluster, situation, situation_in_cluster,
};
use crate::operation::plan::Plan;
use crate::operation::preflight::Situation;

/// The result of a request for `image` (or none) with the engine `requested`: the engine and the reason, or the
/// refusal's reason and text.
fn outcome(requested: &str, image: Option<&str>, situation: &Situation) -> (String, String) {
    let image = image.map_or(String::new(), |image| format!(r#","image":"{image}""#));
    let text = format!(r#"{{"containers":[{{"name":"app"{image}}}],"engine":"{requested}"}}"#);
    match ask(&text, situation) {
        Ok(admitted) => {
            let planned = Plan::of(admitted).containers.remove(0);
            (format!("{:?}", planned.engine), planned.why)
        }
        Err(refusal) => (refusal.reason().to_owned(), refusal.to_string()),
    }
}

fn cluster(change: impl FnOnce(&mut Situation)) -> Situation {
    let mut situation = situation_in_cluster(pod_in_cluster());
    change(&mut situation);
    situation
}

fn owned_by(owner: Owner) -> impl FnOnce(&mut Situation) {
    move |situation| situation.snapshot.sandbox.as_mut().unwrap().owner = owner
}

fn source(situation: &mut Situation) -> &mut Source {
    situation.sources.get_mut("app").unwrap()
}

/// A change of the situation, the result of a restart for each requested engine (Auto, Recreate, Respec, Stop), and
/// the reason that Auto gives.
type Row = (&'static str, fn(&mut Situation), [&'static str; 4], &'static str);

const RESTARTS: [Row; 16] = [
    (
        "nothing in the way",
        |_| {},
        ["Recreate", "Recreate", "Respec", "Stop"],
        "its kubelet adopts the clone",
    ),
    (
        "not cloneable",
        |s| source(s).not_cloneable = Some("field 99".into()),
        ["Respec", "NotCloneable", "Respec", "Stop"],
        "field 99",
    ),
    (
        "configuration unknown",
        |s| drop(s.sources.remove("app")),
        ["Stop", "NotCloneable", "EngineUnavailable", "Stop"],
        "did not report its configuration",
    ),
    (
        "image gone",
        |s| source(s).image_present = false,
        ["Respec", "ImageMissing", "Respec", "Stop"],
        "no longer on the node",
    ),
    (
        "assigned CPUs",
        |s| source(s).has_assigned_cpus = true,
        ["Respec", "NotCloneable", "Respec", "Stop"],
        "assigned exclusive CPUs",
    ),
    (
        "postStart",
        |s| declared(&mut s.snapshot).has_post_start = true,
        ["Respec", "NotCloneable", "Respec", "Stop"],
        "postStart",
    ),
    (
        "environment from objects",
        |s| declared(&mut s.snapshot).env_from_objects = true,
        ["Respec", "NotCloneable", "Respec", "Stop"],
        "environment",
    ),
    (
        "subPath of objects",
        |s| declared(&mut s.snapshot).sub_path_of_objects = true,
        ["Respec", "NotCloneable", "Respec", "Stop"],
        "subPath",
    ),
    (
        "exit code rules",
        |s| declared(&mut s.snapshot).has_restart_rules = true,
        ["Respec", "NotCloneable", "Respec", "EngineUnavailable"],
        "restartPolicyRules",
    ),
    (
        "OnFailure",
        |s| declared(&mut s.snapshot).restart_policy = RestartPolicy::OnFailure,
        ["Respec", "NotCloneable", "Respec", "EngineUnavailable"],
        "restartPolicy is not Always",
    ),
    (
        "Never, and asked of a registry",
        |s| {
            let app = declared(&mut s.snapshot);
            (app.restart_policy, app.pull_policy) = (RestartPolicy::Never, PullPolicy::Always);
        },
        ["NoEngine", "NotCloneable", "EngineUnavailable", "EngineUnavailable"],
        "imagePullPolicy Always",
    ),
    (
        "no second reference",
        |s| source(s).alias = None,
        ["Recreate", "Recreate", "EngineUnavailable", "Stop"],
        "adopts the clone",
    ),
    (
        "only a tag is left, which the registry may have moved",
        |s| {
            source(s).alias = Some("repo/app:v2".into());
            let app = declared(&mut s.snapshot);
            (app.env_from_objects, app.pull_policy) = (true, PullPolicy::Always);
        },
        ["Stop", "NotCloneable", "EngineUnavailable", "Stop"],
        "no second reference with a digest",
    ),
    (
        "no second reference and not cloneable",
        |s| {
            source(s).alias = None;
            source(s).not_cloneable = Some("field 99".into());
        },
        ["Stop", "NotCloneable", "EngineUnavailable", "Stop"],
        "no second reference",
    ),
    (
        "a runtime without fences",
        |s| s.runtime.name = "cri-o".into(),
        ["Respec", "RuntimeUnsupported", "Respec", "Stop"],
        "the runtime is cri-o",
    ),
    (
        "no second reference on a runtime without fences",
        |s| {
            source(s).alias = None;
            s.runtime.name = "cri-o".into();
        },
        ["Stop", "RuntimeUnsupported", "EngineUnavailable", "Stop"],
        "starts it again after a stop",
    ),
];

#[test]
fn a_restart_gets_the_first_engine_that_may() {
    for (case, change, engines, says) in RESTARTS {
        let situation = cluster(change);
        for (requested, expected) in ["Auto", "Recreate", "Respec", "Stop"].into_iter().zip(engines) {
            let (engine, why) = outcome(requested, None, &situation);
            assert_eq!(engine, expected, "{case}, {requested}: {why}");
            assert!(requested != "Auto" || why.contains(says), "{case}: {why}");
        }
    }
}

#[test]
fn a_clone_has_the_environment_of_its_source_if_the_request_allows_it() {
    let mut situation = cluster(|s| declared(&mut s.snapshot).env_from_objects = true);
    let choice = |situation: &Situation, more: &str| {
        let text = format!(r#"{{"containers":[{{"name":"app"}}]{more}}}"#);
        Plan::of(ask(&text, situation).unwrap()).containers.remove(0)
    };
    assert_eq!(choice(&situation, "").engine, Engine::Respec);
    let allows = r#","allowStaleEnv":true"#;
    let stale = choice(&situation, allows);
    assert_eq!(stale.engine, Engine::Recreate);
    assert!(stale.why.contains("that it was created with"), "{}", stale.why);
    declared(&mut situation.snapshot).sub_path_of_objects = true;
    assert_eq!(choice(&situation, allows).engine, Engine::Respec);
}

/// The tag refers to another image since: this is a swap, in which the values are the present ones.
#[test]
fn a_swap_to_the_image_of_the_spec_has_no_stale_environment() {
    let situation = cluster(|s| {
        let app = declared(&mut s.snapshot);
        (app.env_from_objects, app.image) = (true, "repo/app:v2".to_owned());
    });
    let text = r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"allowStaleEnv":true}"#;
    assert_eq!(ask(text, &situation).unwrap_err().reason(), "EngineUnavailable");
}

/// A standby is a clone. The container of a swap is created by its kubelet, and never as a clone in its place.
#[test]
fn a_standby_has_the_environment_of_its_container_if_the_request_allows_it() {
    let situation = cluster(|s| {
        let app = declared(&mut s.snapshot);
        (app.env_from_objects, app.ready) = (true, true);
    });
    for image in ["", r#","image":"repo/app:v2""#] {
        let asked = |more: &str| {
            let text = format!(r#"{{"containers":[{{"name":"app"{image}}}],"order":"StartFirst"{more}}}"#);
            ask(&text, &situation)
        };
        assert_eq!(asked("").unwrap_err().reason(), "CannotStartFirst");
        let admitted = asked(r#","allowStaleEnv":true"#).unwrap();
        let change = Plan::of(admitted).begin(at(0), None).targets.remove(0).change;
        assert!(change.as_ref().is_none_or(|change| !change.cloneable), "{change:?}");
    }
}

#[test]
fn a_swap_changes_the_spec() {
    let cases: [Row; 6] = [
        (
            "nothing in the way",
            |_| {},
            ["Respec", "KubeletNamesImages", "Respec", "EngineUnavailable"],
            "spec names",
        ),
        (
            "not cloneable",
            |s| source(s).not_cloneable = Some("field 99".into()),
            ["Respec", "KubeletNamesImages", "Respec", "EngineUnavailable"],
            "spec names",
        ),
        (
            "never restarted",
            |s| declared(&mut s.snapshot).restart_policy = RestartPolicy::Never,
            ["Respec", "KubeletNamesImages", "Respec", "EngineUnavailable"],
            "spec names",
        ),
        (
            "the spec already says so",
            |s| declared(&mut s.snapshot).image = "repo/app:v2".into(),
            ["Recreate", "Recreate", "EngineUnavailable", "EngineUnavailable"],
            "already names this image",
        ),
        (
            "the spec already says so, and it may not be cloned",
            |s| {
                declared(&mut s.snapshot).image = "repo/app:v2".into();
                declared(&mut s.snapshot).has_post_start = true;
            },
            ["EngineUnavailable", "NotCloneable", "EngineUnavailable", "EngineUnavailable"],
            "would see no change",
        ),
        (
            "from a file",
            |s| owned_by(Owner::KubeletStatic)(s),
            ["EngineUnavailable", "KubeletNamesImages", "EngineUnavailable", "EngineUnavailable"],
            "manifest on its node",
        ),
    ];
    for (case, change, engines, says) in cases {
        let situation = cluster(change);
        for (requested, expected) in ["Auto", "Recreate", "Respec", "Stop"].into_iter().zip(engines) {
            let (engine, why) = outcome(requested, Some("repo/app:v2"), &situation);
            assert_eq!(engine, expected, "{case}, {requested}: {why}");
            assert!(requested != "Auto" || why.contains(says), "{case}: {why}");
        }
    }
}

/// A kubelet that replaces a container stops it with the grace period of the pod, which is 30 s here.
#[test]
fn a_grace_period_of_the_request_needs_an_engine_that_stops_the_container() {
    let situation = cluster(|s| source(s).not_cloneable = Some("field 99".into()));
    for (seconds, image, expected) in [
        (30, "", "Respec"),
        (5, "", "Stop"),
        (30, r#","image":"repo/app:v2""#, "Respec"),
        (5, r#","image":"repo/app:v2""#, "EngineUnavailable"),
    ] {
        let text = format!(
            r#"{{"containers":[{{"name":"app"{image}}}],"terminationGracePeriodSeconds":{seconds}}}"#
        );
        match ask(&text, &situation) {
            Ok(admitted) => {
                let planned = Plan::of(admitted).containers.remove(0);
                assert_eq!(format!("{:?}", planned.engine), expected, "{text}");
            }
            Err(refusal) => {
                assert_eq!(refusal.reason(), expected, "{text}");
                assert!(refusal.to_string().contains("with the grace period of the pod"), "{refusal}");
            }
        }
    }
}

#[test]
fn a_static_pod_is_made_again_or_stopped_and_its_spec_never_changed() {
    let mut situation = cluster(owned_by(Owner::KubeletStatic));
    assert_eq!(outcome("Auto", None, &situation).0, "Recreate");
    assert_eq!(outcome("Respec", None, &situation).0, "EngineUnavailable");
    source(&mut situation).not_cloneable = Some("field 99".into());
    assert_eq!(outcome("Auto", None, &situation).0, "Stop");
}

#[test]
fn where_no_api_server_is_only_a_clone_is_made() {
    for owner in [Owner::Kubelet, Owner::NodeRun, Owner::Nobody] {
        let mut alone = situation(crate::operation::fixtures::pod(owner));
        for (requested, expected) in [
            ("Auto", "Recreate"),
            ("Recreate", "Recreate"),
            ("Respec", "EngineUnavailable"),
            ("Stop", "EngineUnavailable"),
        ] {
            assert_eq!(outcome(requested, None, &alone).0, expected, "{owner:?} {requested}");
        }
        alone.runtime.name = "cri-o".into();
        assert_eq!(outcome("Auto", None, &alone).0, "RuntimeUnsupported", "{owner:?}");
    }
}

#[test]
fn what_its_kubelet_might_hold_back_is_not_put_at_risk() {
    use RestartPolicy::{Always, Never, OnFailure};
    for (policy, ended, image, engine) in [
        (Always, -1_000, None, "Respec"),
        (OnFailure, -301_000, None, "Respec"),
        (OnFailure, -299_000, None, "BackOff"),
        (Never, -299_000, None, "BackOff"),
        (Never, -299_000, Some("repo/app:v2"), "BackOff"),
        (Never, -301_000, Some("repo/app:v2"), "Respec"),
    ] {
        let situation = cluster(|s| {
            source(s).not_cloneable = Some("field 99".into());
            declared(&mut s.snapshot).restart_policy = policy;
            find(&mut s.snapshot, "app-1").finished_at = Some(at(ended));
        });
        let (found, why) = outcome("Auto", image, &situation);
        assert_eq!(found, engine, "{policy:?} {ended} {image:?}: {why}");
        assert!(found != "BackOff" || why.contains("Try again in 2 s"), "{why}");
    }
}

#[test]
fn what_crashes_may_be_swapped_and_not_restarted() {
    let situation = cluster(|s| {
        let app = find(&mut s.snapshot, "app-2");
        (app.state, app.finished_at) = (State::Exited, Some(at(-100)));
    });
    assert_eq!(outcome("Auto", Some("repo/app:v2"), &situation).0, "Respec");
    assert_eq!(outcome("Auto", None, &situation).0, "NotRunning");
}

#[test]
fn the_hash_to_come_is_computed_or_remembered_only_where_that_was_proven() {
    fn respec(situation: &Situation) -> SpecChange {
        let text = "swap app=repo/app:v2";
        let operation = Plan::of(ask(text, situation).unwrap()).begin(at(0), None);
        operation.targets[0].change.clone().unwrap()
    }
    let older = |s: &mut Situation| find(&mut s.snapshot, "app-2").spec_hash = "0ld1".into();
    let remember = |s: &mut Situation, v1: &str| {
        let seen = [("repo/app:v1", v1), ("repo/app:v2", "0ld2")].map(|(i, h)| (i.to_owned(), h.to_owned()));
        s.hashes.insert("app".into(), seen.into());
    };
    let computed = respec(&cluster(|_| {}));
    assert_eq!(computed.hash, Some(spec_hash::of("app", "repo/app:v2")));
    assert_eq!((computed.from.as_str(), computed.cloneable), ("repo/app:v1", true));
    assert_eq!(respec(&cluster(older)).hash, None);
    let remembered = respec(&cluster(|s| {
        older(s);
        remember(s, "0ld1");
    }));
    assert_eq!(remembered.hash.as_deref(), Some("0ld2"));
    // The kubelet was replaced by a release that computes another hash.
    let other = respec(&cluster(|s| {
        older(s);
        remember(s, "0lder");
    }));
    assert_eq!(other.hash, None);
    let uncloneable = respec(&cluster(|s| source(s).not_cloneable = Some("field 99".into())));
    assert!(!uncloneable.cloneable);
}

#[test]
fn a_restart_through_the_spec_takes_the_other_name_of_the_image() {
    let text = r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#;
    let operation = Plan::of(ask(text, &cluster(|_| {})).unwrap()).begin(at(0), None);
    let change = operation.targets[0].change.clone().unwrap();
    assert_eq!((change.from.as_str(), change.to.as_str()), ("repo/app:v1", ALIAS));
}
