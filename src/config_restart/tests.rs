//! Tests of when a configuration change is handled, and which containers it restarts.

use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    "2026-11-20T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// Whoever may create a workload writes the annotation, and it is parsed every second.
#[test]
fn a_long_annotation_is_refused_before_it_is_compared() {
    let names: Vec<_> = (0..20_000).map(|number| format!("secret/s{number}")).collect();
    assert_eq!(parse(&names.join(",")), Err(Malformed::TooLong));
    assert_eq!(parse(&names[..33].join(",")), Err(Malformed::TooMany));
    assert_eq!(parse(&names[..32].join(",")).map(|all| all.len()), Ok(32));
}

fn there(hash: &str, version: &str) -> Content {
    Content::Present { hash: hash.into(), version: version.into() }
}

fn handled(hashes: &[(&str, &str)]) -> HandledHashes {
    hashes.iter().map(|(key, hash)| ((*key).to_owned(), (*hash).to_owned())).collect()
}

/// A workload that names one `ConfigMap` and is reconciled repeatedly.
struct Watcher {
    references: Vec<Reference>,
    handled: Option<HandledHashes>,
    change: Option<Change>,
}

impl Watcher {
    fn new() -> Self {
        let handled = Some(handled(&[("configmap/app", "a")]));
        Self { references: parse("configmap/app").unwrap(), handled, change: None }
    }

    fn observe(&mut self, content: Content, now: i64) -> Step {
        decide("u-1", &self.references, &[content], self.handled.as_ref(), &mut self.change, at(now))
    }
}

#[test]
fn the_order_is_one_of_two_words() {
    assert_eq!(order(None), Ok(Order::StopFirst));
    assert_eq!(order(Some(" StartFirst ")), Ok(Order::StartFirst));
    assert_eq!(order(Some("StopFirst")), Ok(Order::StopFirst));
    let error = order(Some("start-first")).unwrap_err().to_string();
    assert_eq!(error, "`start-first` is neither StopFirst nor StartFirst");
}

#[test]
fn the_annotation_is_read_as_a_whole_or_not_at_all() {
    let read = parse("configmap/app, secret/tls.web=web+side").unwrap();
    assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), ["configmap/app", "secret/tls.web"]);
    assert_eq!(read[1].containers, ["web", "side"]);
    for (text, says) in [
        ("", "``"),
        ("app", "`app` is not valid"),
        ("configmap/", "`configmap/`"),
        ("configmaps/app", "write configmap/NAME"),
        ("configmap/app,", "``"),
        ("configmap/App", "`configmap/App`"),
        ("configmap/app=", "`configmap/app=`"),
        ("configmap/app=web,side", "`side`"),
        ("configmap/app,configmap/app=web", "configmap/app is named twice"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let many: Vec<_> = (0..=MAX_OBJECTS).map(|number| format!("secret/s{number}")).collect();
    assert_eq!(parse(&many.join(",")), Err(Malformed::TooMany));
    for (text, right) in [
        ("2", true),
        ("30%", true),
        ("100%", true),
        ("0", false),
        ("0%", false),
        ("101%", false),
        ("x", false),
    ] {
        assert_eq!(max_unavailable(Some(text)).is_ok(), right, "{text}");
    }
    assert_eq!(max_unavailable(None), Ok(IntOrString::String("25%".into())));
}

#[test]
fn what_is_seen_first_is_written_down_and_restarts_nothing() {
    let mut watcher = Watcher::new();
    watcher.handled = None;
    assert_eq!(watcher.observe(Content::Unknown, 0), Step::Nothing);
    assert_eq!(watcher.observe(Content::Absent, 0), Step::Record(HandledHashes::new()));
    assert_eq!(watcher.observe(there("a", "1"), 0), Step::Record(handled(&[("configmap/app", "a")])));
    // An object that is named from now on causes no restart either, and one that is no longer named is forgotten.
    watcher.handled = Some(handled(&[("configmap/other", "b")]));
    assert_eq!(watcher.observe(there("a", "1"), 0), Step::Record(handled(&[("configmap/app", "a")])));
    // An object that was missing for a while is compared with its previous content.
    let mut watcher = Watcher::new();
    assert_eq!(watcher.observe(Content::Absent, 0), Step::Nothing);
    assert_eq!(watcher.observe(there("a", "7"), 5), Step::Nothing);
    assert_eq!(watcher.change, None);
}

#[test]
fn a_change_settles_is_refreshed_and_restarts_once() {
    let mut watcher = Watcher::new();
    assert_eq!(watcher.observe(there("b", "2"), 0), Step::Nothing);
    assert_eq!(watcher.observe(there("c", "3"), 5), Step::Nothing);
    assert_eq!(watcher.observe(there("c", "3"), 14), Step::Nothing);
    assert_eq!(watcher.observe(Content::Unknown, 15), Step::Nothing);
    assert_eq!(watcher.observe(there("c", "3"), 15), Step::Refresh);
    let change = watcher.change.as_mut().unwrap();
    assert_eq!(
        (change.changed.as_slice(), &change.handled),
        (&["configmap/app".to_owned()][..], &handled(&[("configmap/app", "c")]))
    );
    change.refreshed = Some(at(16));
    // A change after the refresh is not in the mounted volumes: it is the next change.
    assert_eq!(watcher.observe(there("d", "4"), 25), Step::Nothing);
    assert_eq!(watcher.observe(there("d", "4"), 26), Step::Restart);
    let change = watcher.change.take().unwrap();
    assert_eq!(change.handled, handled(&[("configmap/app", "c")]));
    watcher.handled = Some(change.handled);
    assert_eq!(watcher.observe(there("d", "4"), 27), Step::Nothing);
    assert_ne!(watcher.change.as_ref().unwrap().id, change.id);
    assert_eq!(watcher.observe(there("d", "4"), 37), Step::Refresh);
}

#[test]
fn what_never_settles_is_taken_after_a_minute_and_what_is_taken_back_is_no_change() {
    let mut watcher = Watcher::new();
    for second in 0..12 {
        assert_eq!(watcher.observe(there(&format!("b{second}"), "2"), second * 5), Step::Nothing);
    }
    assert_eq!(watcher.observe(there("b12", "2"), 60), Step::Refresh);
    let mut watcher = Watcher::new();
    assert_eq!(watcher.observe(there("b", "2"), 0), Step::Nothing);
    assert_eq!(watcher.observe(there("a", "3"), 5), Step::Nothing);
    assert_eq!(watcher.change, None);
}

#[test]
fn the_same_change_has_the_same_name_for_whoever_notices_it_and_the_same_content_later_has_not() {
    let id = |version: &str, uid: &str| {
        let mut change = None;
        let references = parse("configmap/app").unwrap();
        let before = handled(&[("configmap/app", "a")]);
        decide(uid, &references, &[there("b", version)], Some(&before), &mut change, at(0));
        change.unwrap().id
    };
    assert_eq!(id("2", "u-1"), id("2", "u-1"));
    assert_ne!(id("2", "u-1"), id("4", "u-1"));
    assert_ne!(id("2", "u-1"), id("2", "u-2"));
}

#[test]
fn restarted_is_what_is_named_else_what_uses_it() {
    let pod: PodSpec = serde_json::from_value(json!({
        "initContainers": [
            {"name": "setup", "envFrom": [{"configMapRef": {"name": "app"}}]},
            {"name": "proxy", "restartPolicy": "Always", "envFrom": [{"secretRef": {"name": "tls"}}]},
        ],
        "containers": [
            {"name": "mounts", "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}]},
            {"name": "projected", "volumeMounts": [{"name": "all", "mountPath": "/all"}]},
            {"name": "value", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "a"}}}]},
            {"name": "secret", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "tls", "key": "a"}}}]},
            {"name": "plain", "envFrom": [{"configMapRef": {"name": "other"}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}]},
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": "app"}},
            {"name": "all", "projected": {"sources": [{"secret": {"name": "tls"}}, {"configMap": {"name": "app"}}]}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }))
    .unwrap();
    let of = |annotation: &str, changed: &[&str]| {
        let changed: Vec<_> = changed.iter().map(|key| (*key).to_owned()).collect();
        containers(&pod, &parse(annotation).unwrap(), &changed)
    };
    assert_eq!(of("configmap/app", &["configmap/app"]), ["mounts", "projected", "value"]);
    assert_eq!(of("secret/tls", &["secret/tls"]), ["projected", "secret", "proxy"]);
    assert_eq!(of("configmap/app=plain,secret/tls", &["configmap/app"]), ["plain"]);
    assert_eq!(
        of("configmap/app=plain,secret/tls", &["configmap/app", "secret/tls"]),
        ["projected", "secret", "plain", "proxy"]
    );
    assert!(of("secret/app", &["secret/app"]).is_empty());
}

/// The rights to read Secrets are granted separately: without them, the `ConfigMaps` of the same list are watched.
#[test]
fn an_object_that_may_not_be_read_holds_up_no_other_one() {
    let references = parse("configmap/app,secret/tls").unwrap();
    let (mut change, unreadable) = (None, Content::Unreadable);
    let mut observe = |hash, handled: Option<&HandledHashes>, second| {
        let contents = [there(hash, hash), unreadable.clone()];
        decide("u1", &references, &contents, handled, &mut change, at(second))
    };
    let first = handled(&[("configmap/app", "a")]);
    assert_eq!(observe("a", None, 0), Step::Record(first.clone()));
    assert_eq!(observe("b", Some(&first), 1), Step::Nothing);
    assert_eq!(observe("b", Some(&first), 12), Step::Refresh);
    // What was handled of it before is kept.
    let both = handled(&[("configmap/app", "a"), ("secret/tls", "s")]);
    change = None;
    let contents = [there("a", "a"), Content::Unreadable];
    assert_eq!(decide("u1", &references, &contents, Some(&both), &mut change, at(20)), Step::Nothing);
}

/// Another rollout of the workload ends first.
#[test]
fn a_change_that_waits_is_observed_and_may_be_taken_back() {
    let mut watcher = Watcher::new();
    assert_eq!(watcher.observe(there("b", "2"), 0), Step::Nothing);
    assert_eq!(watcher.observe(there("b", "2"), 10), Step::Refresh);
    watcher.change.as_mut().unwrap().waits_until = Some(at(20));
    assert_eq!(watcher.observe(there("b", "2"), 11), Step::Nothing);
    assert_eq!(watcher.observe(there("b", "2"), 20), Step::Refresh, "it looks again");
    watcher.change.as_mut().unwrap().waits_until = Some(at(30));
    assert_eq!(watcher.observe(there("a", "3"), 25), Step::Nothing);
    assert_eq!(watcher.change, None);
}
