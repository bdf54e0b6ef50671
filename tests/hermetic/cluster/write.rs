//! Images, gates, statuses and events are written once and to the intended pod, or not at all.

use std::fmt::Debug;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::pod_ref::PodRef;
use inplace::api::status::{Phase, Status};
use inplace::cluster::error::Error;
use inplace::cluster::event::ObjectEvent;
use inplace::failure::Class;
use inplace::operation::effect::EffectError;
use inplace::operation::snapshot::Gate;
use serde_json::json;

use super::super::api_server::{Fault, pods};
use super::{Fixture, LONG, NODE, gate, image};

const V1: &str = "registry.example/team/app:v1";
const V2: &str = "registry.example/team/app:v2";
/// How long a call waits for its answer.
const CALL: Duration = Duration::from_secs(10);

fn reported(reason: &str, warning: bool, note: &str) -> ObjectEvent {
    ObjectEvent { reason: reason.into(), warning, note: note.into(), at: inplace::process::clock::now() }
}

fn answer(message: &str) -> Status {
    Status {
        id: "web-1".into(),
        phase: Phase::Running,
        step: None,
        reason: String::new(),
        message: message.into(),
        started_at: None,
        finished_at: None,
        group: None,
        containers: Vec::new(),
    }
}

impl Fixture {
    async fn respec(&self) -> Result<(), Error> {
        self.pods.respec(&self.web(), "app", V1, V2, &answer("under way")).await
    }

    /// The error of a call that gets no answer. The time for the answer passes in one step once the call has arrived: a paused
    /// clock that runs by itself does not wait for the connection, whose time limit would pass first.
    async fn unanswered<R: Debug>(
        &self,
        call: &str,
        calling: impl Future<Output = Result<R, Error>>,
    ) -> Error {
        let passing = async {
            self.api.arrived(call, 1).await;
            tokio::time::pause();
            tokio::time::advance(CALL).await;
            tokio::time::resume();
        };
        tokio::join!(calling, passing).0.unwrap_err()
    }
}

#[tokio::test]
async fn an_image_is_changed_with_one_call_and_cached_at_once() {
    let fixture = Fixture::start().await;
    fixture.api.forget();
    fixture.respec().await.unwrap();
    assert_eq!(fixture.api.calls(), ["PATCH pod shop/web-0"]);
    let pod = fixture.api.pod("shop", "web-0");
    assert_eq!(image(&pod), V2);
    // The same write records the status, which names the previous image.
    let noted = pod["metadata"]["annotations"][annotation::STATUS].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Status>(noted).unwrap(), answer("under way"));
    let known = fixture.pods.declared(&fixture.web()).unwrap();
    assert_eq!(known.container("app").unwrap().image, V2, "without waiting for the watch");
}

#[tokio::test]
async fn an_image_that_is_there_already_is_done() {
    let fixture = Fixture::start().await;
    fixture.respec().await.unwrap();
    fixture.api.forget();
    fixture.respec().await.unwrap();
    assert_eq!(
        fixture.api.calls(),
        ["GET pod shop/web-0"],
        "what is known may be old: it is looked at, not written"
    );
}

#[tokio::test]
async fn a_sidecar_is_changed_where_it_is() {
    let fixture = Fixture::start().await;
    let mut pod = pods::pod("shop", "side", NODE);
    pod["spec"]["initContainers"] = json!([
        { "name": "init", "image": "init:v1" },
        { "name": "proxy", "image": "proxy:v1", "restartPolicy": "Always" },
    ]);
    let uid = fixture.api.put(pod)["metadata"]["uid"].as_str().unwrap().to_owned();
    let sidecars = PodRef { namespace: "shop".into(), name: "side".into(), uid };
    fixture.until("the pod is known", |pods| pods.get(&sidecars).is_some()).await;
    fixture.pods.respec(&sidecars, "proxy", "proxy:v1", "proxy:v2", &answer("")).await.unwrap();
    let pod = fixture.api.pod("shop", "side");
    assert_eq!((&pod["spec"]["initContainers"][1]["image"], image(&pod)), (&json!("proxy:v2"), V1));
    let error = fixture.pods.respec(&sidecars, "init", "init:v1", "init:v2", &answer("")).await.unwrap_err();
    assert_eq!(
        error.class(),
        Class::Gone,
        "an init container that is done is none that can be changed: {error}"
    );
}

#[tokio::test]
async fn an_image_that_somebody_else_changed_is_left_alone() {
    let fixture = Fixture::start().await;
    fixture.api.before("PATCH pod", |store| {
        store.edit("shop", "web-0", |pod| pod["spec"]["containers"][0]["image"] = json!("theirs:v7"));
    });
    let error = fixture.respec().await.unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    let effect_error = EffectError::from(error);
    for part in ["app", "shop/web-0", "another client changed", "theirs:v7"] {
        assert!(effect_error.message.contains(part), "{part}: {}", effect_error.message);
    }
    assert_eq!(image(&fixture.api.pod("shop", "web-0")), "theirs:v7");
}

#[tokio::test]
async fn an_outdated_view_costs_a_request_and_nothing_else() {
    let fixture = Fixture::start().await;
    // The order of the containers has changed, so the cached position is wrong.
    fixture.api.before("PATCH pod", |store| {
        let mut pod = store.pod("shop", "web-0").unwrap();
        let mut other = pod["spec"]["containers"][0].clone();
        other["name"] = json!("first");
        pod["spec"]["containers"].as_array_mut().unwrap().insert(0, other);
        store.put(pod);
    });
    fixture.api.forget();
    fixture.respec().await.unwrap();
    assert_eq!(fixture.api.calls(), ["PATCH pod shop/web-0", "GET pod shop/web-0", "PATCH pod shop/web-0"]);
    let pod = fixture.api.pod("shop", "web-0");
    assert_eq!((image(&pod), &pod["spec"]["containers"][1]["image"]), (V1, &json!(V2)));
}

#[tokio::test]
async fn another_pod_of_the_same_name_is_never_written_to() {
    let fixture = Fixture::start().await;
    let old = fixture.web();
    // The watch is broken, so that the new pod is not cached when it is written to.
    fixture.api.on("WATCH pods").times(1000).fault(Fault::Answer(503, "not now"));
    fixture.api.cut();
    fixture.until("the view is old", |pods| !pods.is_current()).await;
    fixture.api.remove("shop", "web-0");
    let new = fixture.api.put(pods::pod("shop", "web-0", NODE));
    assert_ne!(new["metadata"]["uid"], json!(old.uid));

    for error in [
        fixture.pods.respec(&old, "app", V1, V2, &answer("")).await.unwrap_err(),
        fixture.pods.set_gate(&old, false, "InPlaceDrain", "").await.unwrap_err(),
        fixture.pods.write_status(&old, &answer("")).await.unwrap_err(),
    ] {
        assert_eq!(error.class(), Class::Gone, "{error}");
        assert!(error.to_string().contains("another pod has its name"), "{error}");
    }
    assert_eq!(fixture.api.pod("shop", "web-0"), new);
}

#[tokio::test]
async fn a_pod_that_is_not_there_is_gone() {
    let fixture = Fixture::start().await;
    let old = fixture.web();
    fixture.api.remove("shop", "web-0");
    fixture.until("it is gone", |pods| pods.list().is_empty()).await;
    for error in [
        fixture.pods.respec(&old, "app", V1, V2, &answer("")).await.unwrap_err(),
        fixture.pods.set_gate(&old, true, "InPlaceReady", "").await.unwrap_err(),
        fixture.pods.write_status(&old, &answer("")).await.unwrap_err(),
    ] {
        assert_eq!(error.class(), Class::Gone, "{error}");
    }
    assert!(fixture.pods.list().is_empty(), "nothing that was gone comes back");
}

#[tokio::test]
async fn the_spec_of_a_static_pod_is_not_touched() {
    let fixture = Fixture::start().await;
    let mut pod = pods::pod("shop", "static", NODE);
    for key in ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"] {
        pod["metadata"]["annotations"][key] = json!("0cc175b9c0f1b6a831c399e269772661");
    }
    let api_uid = fixture.api.put(pod)["metadata"]["uid"].clone();
    let uid = "0cc175b9c0f1b6a831c399e269772661";
    let reference = PodRef { namespace: "shop".into(), name: "static".into(), uid: uid.into() };
    fixture.until("it is known by the uid of its node", |pods| pods.get(&reference).is_some()).await;
    for other in [("bank", "static"), ("shop", "other")] {
        let other = PodRef { namespace: other.0.into(), name: other.1.into(), uid: uid.into() };
        assert!(fixture.pods.get(&other).is_none(), "a uid alone is no pod");
    }
    let known = fixture.pods.get(&reference).unwrap();
    assert_eq!((known.api_uid(), known.reference().uid.as_str()), (api_uid.as_str().unwrap(), uid));
    fixture.api.forget();
    let error = fixture.pods.respec(&known.reference(), "app", V1, V2, &answer("")).await.unwrap_err();
    assert_eq!((error.class(), fixture.api.writes().len()), (Class::Final, 0), "{error}");
    // The other writes go to the copy at the API server.
    fixture.pods.set_gate(&known.reference(), false, "InPlaceDrain", "").await.unwrap();
    fixture.pods.write_status(&known.reference(), &answer("hello")).await.unwrap();
    fixture
        .until("it is closed", |pods| {
            pods.get(&reference).unwrap().status() == Some(answer("hello"))
                && pods.declared(&reference).unwrap().gate == Gate::Closed { reason: "InPlaceDrain".into() }
        })
        .await;
}

#[tokio::test]
async fn the_gate_is_one_condition_among_those_of_others() {
    let fixture = Fixture::start().await;
    let web = fixture.web();
    assert_eq!(fixture.pods.declared(&web).unwrap().gate, Gate::Unset);
    let before = fixture.api.pod("shop", "web-0");
    // The kubelet writes in between, and its write is kept.
    fixture.api.on("PATCH pod/status").first(|store| {
        store.edit("shop", "web-0", |pod| pod["status"]["conditions"][3]["status"] = json!("False"));
    });
    fixture.api.forget();
    let called = inplace::process::clock::now();
    fixture.pods.set_gate(&fixture.web(), false, "InPlaceDrain", "app is being restarted").await.unwrap();
    assert_eq!(fixture.api.calls(), ["PATCH pod/status shop/web-0"]);
    let closed = fixture.api.pod("shop", "web-0");
    assert_eq!(gate(&closed), Some(("False", "InPlaceDrain")));
    let conditions = closed["status"]["conditions"].as_array().unwrap();
    assert_eq!((conditions.len(), &conditions[3]["status"]), (5, &json!("False")));
    assert_eq!(conditions[4]["message"], "app is being restarted");
    let since: jiff::Timestamp = conditions[4]["lastTransitionTime"].as_str().unwrap().parse().unwrap();
    // The API has whole seconds.
    let seconds = called.as_second()..=inplace::process::clock::now().as_second();
    assert!(seconds.contains(&since.as_second()), "{since}");
    assert_eq!(
        (&closed["spec"], &closed["metadata"]["annotations"]),
        (&before["spec"], &before["metadata"]["annotations"])
    );
    assert_eq!(fixture.pods.declared(&web).unwrap().gate, Gate::Closed { reason: "InPlaceDrain".into() });

    fixture.pods.set_gate(&fixture.web(), true, "InPlaceReady", "").await.unwrap();
    assert_eq!(gate(&fixture.api.pod("shop", "web-0")), Some(("True", "InPlaceReady")));
    assert_eq!(fixture.pods.declared(&web).unwrap().gate, Gate::Open);
}

#[tokio::test]
async fn the_answer_is_written_beside_the_other_annotations() {
    let fixture = Fixture::start().await;
    fixture.api.forget();
    fixture.pods.write_status(&fixture.web(), &answer("hello \"you\"")).await.unwrap();
    assert_eq!(fixture.api.calls(), ["PATCH pod shop/web-0"]);
    let annotations = fixture.api.pod("shop", "web-0")["metadata"]["annotations"].clone();
    assert_eq!(annotations.as_object().unwrap().len(), 3);
    assert_eq!(
        (&annotations["inplace.dev/request"], &annotations["cni.example/ip"]),
        (&json!("restart app"), &json!("10.0.0.7/32"))
    );
    assert_eq!(fixture.pods.get(&fixture.web()).unwrap().status(), Some(answer("hello \"you\"")));
}

#[tokio::test]
async fn a_pod_without_annotations_gets_the_answer_and_keeps_what_comes_meanwhile() {
    let fixture = Fixture::start().await;
    let bare = |store: &mut super::super::api_server::Store| {
        store.edit("shop", "web-0", |pod| {
            drop(pod["metadata"].as_object_mut().unwrap().remove("annotations"));
        });
    };
    fixture.api.store(bare);
    fixture.caught_up().await;
    fixture.pods.write_status(&fixture.web(), &answer("first")).await.unwrap();
    assert_eq!(fixture.api.calls(), ["PATCH pod shop/web-0"]);
    assert_eq!(fixture.pods.get(&fixture.web()).unwrap().status(), Some(answer("first")));

    // Another client adds annotations first.
    fixture.api.store(bare);
    fixture.caught_up().await;
    fixture.api.before("PATCH pod", |store| {
        store.edit("shop", "web-0", |pod| pod["metadata"]["annotations"] = json!({ "theirs": "kept" }));
    });
    fixture.pods.write_status(&fixture.web(), &answer("second")).await.unwrap();
    let annotations = fixture.api.pod("shop", "web-0")["metadata"]["annotations"].clone();
    assert_eq!(
        (annotations["theirs"].as_str(), annotations[annotation::STATUS].is_string()),
        (Some("kept"), true)
    );

    // The annotations are removed just before the write.
    fixture.caught_up().await;
    fixture.api.before("PATCH pod", bare);
    fixture.pods.write_status(&fixture.web(), &answer("third")).await.unwrap();
    assert_eq!(fixture.pods.get(&fixture.web()).unwrap().status(), Some(answer("third")));
}

#[tokio::test]
async fn an_event_is_one_write_that_describe_finds() {
    let fixture = Fixture::start().await;
    fixture.api.forget();
    let note = "app restarted in place: down 61 ms, attempt 3 -> 4";
    for warning in [false, true] {
        let reported = reported("InPlaceSucceeded", warning, note);
        fixture.pods.event(&fixture.web(), &reported).await.unwrap();
        assert_eq!(fixture.api.writes().len(), 1, "{:?}", fixture.api.calls());
        // A writer that does not know whether the event was written writes it again.
        fixture.pods.event(&fixture.web(), &reported).await.unwrap();
        fixture.api.forget();
    }
    let events = fixture.api.events();
    assert_eq!(events.len(), 2, "{events:?}");
    for (event, kind) in events.iter().zip(["Normal", "Warning"]) {
        assert_eq!(
            (&event["message"], &event["type"], &event["reason"]),
            (&json!(note), &json!(kind), &json!("InPlaceSucceeded"))
        );
        assert_eq!(event["involvedObject"]["uid"], json!(fixture.web().uid));
        assert_eq!(
            (&event["reportingComponent"], &event["reportingInstance"]),
            (&json!("inplace.dev/agent"), &json!(NODE))
        );
        assert!(event["lastTimestamp"].is_string() && event["firstTimestamp"].is_string());
    }
    assert_ne!(events[0]["metadata"]["name"], events[1]["metadata"]["name"]);
}

#[tokio::test]
async fn what_an_answer_means_for_going_on() {
    let fixture = Fixture::start().await;
    for (code, class) in [
        (400, Class::Final),
        (401, Class::Final),
        (403, Class::Denied),
        (404, Class::Gone),
        (429, Class::Unavailable),
        (500, Class::Unavailable),
        (503, Class::Unavailable),
        (504, Class::Unavailable),
    ] {
        fixture.api.forget();
        for call in ["PATCH pod", "PATCH pod/status", "POST event"] {
            fixture.api.on(call).fault(Fault::Answer(code, "said the server"));
        }
        let reported = reported("R", false, "");
        for error in [
            fixture.respec().await.unwrap_err(),
            fixture.pods.set_gate(&fixture.web(), false, "InPlaceDrain", "").await.unwrap_err(),
            fixture.pods.event(&fixture.web(), &reported).await.unwrap_err(),
        ] {
            assert_eq!(error.class(), class, "{code}: {error}");
            assert!(
                error.to_string().contains("shop/web-0") && error.to_string().contains("said the server"),
                "{error}"
            );
        }
        assert_eq!(fixture.api.calls().len(), 3, "each once: {:?}", fixture.api.calls());
    }
    // A persistent conflict is reported as such, after the pod was read again.
    fixture.api.on("PATCH pod").times(2).fault(Fault::Answer(409, "said the server"));
    assert_eq!(fixture.respec().await.unwrap_err().class(), Class::Refused);
    fixture.api.on("PATCH pod/status").fault(Fault::Answer(409, "said the server"));
    assert_eq!(
        fixture.pods.set_gate(&fixture.web(), true, "R", "").await.unwrap_err().class(),
        Class::Refused
    );
    // A single conflict is not an error.
    fixture.api.on("PATCH pod").fault(Fault::Answer(409, "said the server"));
    fixture.respec().await.unwrap();
}

#[tokio::test]
async fn an_answer_that_gets_lost_leaves_it_open_and_asking_again_is_harmless() {
    let fixture = Fixture::start().await;
    for fault in [Fault::CutAfterEffect, Fault::AnswerAfterEffect(500, "lost"), Fault::Cut] {
        fixture.api.edit("shop", "web-0", |pod| pod["spec"]["containers"][0]["image"] = json!(V1));
        fixture
            .until("it is known", |pods| {
                pods.is_current()
                    && pods.declared(&fixture.web()).unwrap().container("app").unwrap().image == V1
            })
            .await;
        fixture.api.on("PATCH pod").fault(fault);
        let error = fixture.respec().await.unwrap_err();
        assert_eq!(error.class(), Class::Unavailable, "{fault:?}: {error}");
        fixture.respec().await.unwrap();
        assert_eq!(image(&fixture.api.pod("shop", "web-0")), V2);
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_away_within_the_bound() {
    let fixture = Fixture::start().await;
    for call in ["PATCH pod", "PATCH pod/status", "POST event", "GET secret"] {
        fixture.api.on(call).fault(Fault::Hang);
    }
    fixture.api.secret("shop", "pull", &[]);
    fixture.api.edit("shop", "web-0", |pod| pod["spec"]["imagePullSecrets"] = json!([{ "name": "pull" }]));
    fixture.caught_up().await;
    let (web, reported) = (fixture.web(), reported("R", false, ""));
    let began = tokio::time::Instant::now();
    let all = async {
        let pods = &fixture.pods;
        [
            fixture.unanswered("PATCH pod", fixture.respec()).await,
            fixture.unanswered("PATCH pod/status", pods.set_gate(&web, false, "InPlaceDrain", "")).await,
            fixture.unanswered("POST event", pods.event(&web, &reported)).await,
            fixture.unanswered("GET secret", pods.pull_credentials(&web)).await,
        ]
    };
    let errors = fixture.api.patiently("all have given up", all).await;
    for error in errors {
        assert_eq!(error.class(), Class::Unavailable, "{error}");
        assert!(error.to_string().contains("did not answer within 10 s"), "{error}");
    }
    assert!(began.elapsed() <= LONG, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_away() {
    let fixture = Fixture::start().await;
    fixture.api.go_away().await;
    let error = fixture.respec().await.unwrap_err();
    assert_eq!(error.class(), Class::NotSent);
    assert!(error.to_string().contains("connection refused"), "{error}");
    fixture.api.come_back().await;
    fixture.respec().await.unwrap();
}

#[tokio::test]
async fn what_is_no_api_server_is_reported_as_such() {
    let fixture = Fixture::start().await;
    fixture.api.on("PATCH pod").fault(Fault::Nonsense);
    let error = fixture.respec().await.unwrap_err();
    assert_eq!(error.class(), Class::Final);
    assert!(!error.to_string().contains("not me"), "an answer may hold secrets: {error}");
}
