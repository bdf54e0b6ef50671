//! The user of a container that the spec does not name: a kubelet takes it from the image, and so does the agent for a
//! clone from another image.

use std::sync::Arc;

use inplace::api::annotation;
use inplace::cri::proto::v1::Int64Value;
use inplace::operation::spec_hash;
use serde_json::{Value, json};

use super::super::api_server::Store;
use super::{Agent, Fixture};

/// The kubelet's hash of a container's spec, by which it recognizes a clone.
const HASH: &str = "io.kubernetes.container.hash";

impl Fixture {
    /// The pod `web-0` with this security context, whose container runs as `before`, the user of its image. Asks for a
    /// swap to an image with the user `after`.
    async fn swap_user(
        context: Value,
        before: i64,
        after: (Option<i64>, &'static str),
    ) -> (Arc<Self>, Agent) {
        let fixture = Arc::new(Self::found().await);
        fixture.pod_with("web-0", |pod| {
            super::close(pod, "True", annotation::GATE_READY);
            pod["spec"]["securityContext"] = context;
        });
        fixture.runtime.model(|model| {
            let id = model.running("web-0/app")[0].id.clone();
            let config = &mut model.container_mut(&id).unwrap().config;
            config.annotations.insert(HASH.to_owned(), spec_hash::of("app", "img:v1"));
            let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
            security.run_as_user = Some(Int64Value { value: before });
            model.image("img:v1").uid = Some(before);
            let image = model.image("img:v2");
            (image.uid, image.username) = (after.0, after.1.to_owned());
        });
        fixture.kubelet("web-0");
        let agent = fixture.agent().await;
        fixture.pod_request("web-0", Some("swap app=img:v2"));
        (fixture, agent)
    }

    /// The kubelet stops the old container and delays the new one.
    async fn delay_new(&self) {
        let is_new = |store: &Store| {
            store.pod("shop", "web-0").is_some_and(|pod| pod["spec"]["containers"][0]["image"] == "img:v2")
        };
        self.api.until("the image in the spec", is_new).await;
        self.runtime.model(|model| model.die("web-0/app", 143));
    }

    /// Image, number and name of the user of the running container.
    fn user(&self) -> (String, Option<i64>, String) {
        let running = self.runtime.only("web-0/app");
        let security = running.config.linux.clone().unwrap().security_context.unwrap();
        let id = security.run_as_user.map(|user| user.value);
        (running.image().to_owned(), id, security.run_as_username)
    }
}

#[tokio::test]
async fn a_clone_from_another_image_has_the_user_of_that_image() {
    for (context, before, after, user) in [
        (json!({}), 0, (Some(65532), ""), (Some(65532), "")),
        (json!({}), 65532, (None, ""), (Some(0), "")),
        (json!({}), 0, (None, "app"), (None, "app")),
        (json!({ "runAsNonRoot": true }), 7, (Some(8), ""), (Some(8), "")),
        (json!({ "runAsUser": 7 }), 7, (Some(8), ""), (Some(7), "")),
    ] {
        let (fixture, _agent) = Fixture::swap_user(context.clone(), before, after).await;
        fixture.delay_new().await;
        fixture.reported("web-0", "text-", "Succeeded").await;
        let (id, name) = user;
        assert_eq!(fixture.user(), ("img:v2".to_owned(), id, name.to_owned()), "{context} {after:?}");
    }
}

/// Its kubelet would never start such an image.
#[tokio::test]
async fn an_image_of_root_is_refused_before_anything_stops_where_the_spec_refuses_root() {
    for after in [(None, ""), (Some(0), ""), (None, "app")] {
        let context = json!({ "runAsNonRoot": true });
        let (fixture, _agent) = Fixture::swap_user(context, 7, after).await;
        let status = fixture.reported("web-0", "text-", "Failed").await;
        assert_eq!(status["reason"], "PullFailed", "{status:#}");
        assert!(status["message"].as_str().unwrap().contains("runAsNonRoot"), "{status:#}");
        assert_eq!(fixture.api.pod("shop", "web-0")["spec"]["containers"][0]["image"], "img:v1");
        assert_eq!(fixture.user(), ("img:v1".to_owned(), Some(7), String::new()));
        assert_eq!(fixture.runtime.instances("web-0/app").len(), 1, "{:#?}", fixture.runtime.history());
    }
}
