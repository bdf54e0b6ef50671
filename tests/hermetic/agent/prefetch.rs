//! The annotation `inplace.dev/prefetch`: images are pulled ahead of their requests, and no request waits for it.

use std::os::unix::fs::symlink;

use inplace::api::annotation;
use serde_json::json;

use super::super::api_server::{Store, pods};
use super::super::runtime::Fault;
use super::Fixture;

impl Fixture {
    fn prefetch(&self, name: &str, images: Option<&str>) {
        self.api.edit("shop", name, |pod| {
            let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
            match images {
                Some(images) => annotations.insert(annotation::PREFETCH.to_owned(), json!(images)),
                None => annotations.remove(annotation::PREFETCH),
            };
        });
    }

    /// Requests a swap to this image, and waits until the agent has it on the node and changes the pod's spec.
    async fn swap(&self, name: &str, image: &str) {
        self.pod_request(name, Some(&format!("swap app={image}")));
        let swapped = |store: &Store| {
            let pod = store.pod("shop", name).unwrap();
            pod["spec"]["containers"][0]["image"] == image
        };
        self.api.until("the image in the spec", |store| swapped(store)).await;
    }

    /// How often the pull of this image was called.
    fn pulls(&self, image: &str) -> usize {
        self.runtime.calls("PullImage").iter().filter(|call| call.about == image).count()
    }
}

#[tokio::test]
async fn an_image_is_pulled_ahead_once_and_nothing_is_written() {
    let fixture = Fixture::found().await;
    for name in ["web-0", "web-1"] {
        fixture.pod(name);
    }
    let _agent = fixture.agent().await;
    fixture.api.forget();
    fixture.prefetch("web-0", Some("img:v2, not/a reference"));
    fixture.prefetch("web-1", Some("img:v2"));
    fixture.runtime.until("the image is on the node", |model| model.local_image("img:v2").is_some()).await;
    assert_eq!(fixture.api.writes(), Vec::<String>::new());
    // The request finds the image and does not pull it again.
    fixture.swap("web-0", "img:v2").await;
    assert_eq!(fixture.pulls("img:v2"), 1);
}

#[tokio::test]
async fn a_request_that_pulls_ends_a_prefetch_which_continues_afterwards() {
    let fixture = Fixture::found().await;
    fixture.runtime.model(|model| model.remote_image("img:v3").size = 1 << 20);
    fixture.pod("web-0");
    fixture.pod("web-1");
    fixture.runtime.on("PullImage").about("img:v3").nth(1).fault(Fault::Hang);
    let _agent = fixture.agent().await;
    fixture.prefetch("web-1", Some("img:v3"));
    fixture.runtime.until("the prefetch hangs", |_| fixture.pulls("img:v3") == 1).await;
    fixture.swap("web-0", "img:v2").await;
    fixture.runtime.until("the prefetch is done", |model| model.local_image("img:v3").is_some()).await;
    assert_eq!((fixture.pulls("img:v2"), fixture.pulls("img:v3")), (1, 2));
}

#[tokio::test]
async fn a_prefetch_that_fails_or_hangs_delays_and_fails_no_request() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    fixture.pod("web-1");
    // The image of the prefetch is that of the request; the registry answers only the request.
    fixture.runtime.on("PullImage").about("img:v2").nth(1).fault(Fault::Hang);
    let _agent = fixture.agent().await;
    fixture.prefetch("web-1", Some("gone:v9"));
    fixture.runtime.until("the pull has failed", |_| fixture.pulls("gone:v9") == 1).await;
    fixture.prefetch("web-1", Some("img:v2"));
    fixture.runtime.until("the prefetch hangs", |_| fixture.pulls("img:v2") == 1).await;
    fixture.swap("web-0", "img:v2").await;
    assert_eq!((fixture.pulls("gone:v9"), fixture.pulls("img:v2")), (1, 2));
}

#[tokio::test]
async fn what_fails_with_one_pod_is_tried_with_the_others_that_name_the_image() {
    let fixture = Fixture::found().await;
    // It has no sandbox, and its uid is the first one.
    let mut without_sandbox = pods::pod("shop", "web-0", "node-1");
    without_sandbox["metadata"]["uid"] = json!("0");
    without_sandbox["metadata"]["annotations"] = json!({});
    fixture.api.put(without_sandbox);
    fixture.pod("web-1");
    for name in ["web-0", "web-1"] {
        fixture.prefetch(name, Some("img:v2"));
    }
    let _agent = fixture.agent().await;
    fixture.runtime.until("the image is on the node", |model| model.local_image("img:v2").is_some()).await;
    assert_eq!(fixture.pulls("img:v2"), 1);
}

#[tokio::test]
async fn a_prefetch_ends_when_the_disk_gets_full() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    symlink(folder.path(), &disk).unwrap();
    fixture.runtime.model(|model| model.mountpoint = disk.display().to_string());
    fixture.runtime.on("PullImage").about("img:v2").always().fault(Fault::Hang);
    let _agent = fixture.agent_with(&["--image-reserve=1"]).await;
    fixture.prefetch("web-0", Some("img:v2,img:v3"));
    fixture.runtime.until("the prefetch hangs", |_| fixture.pulls("img:v2") == 1).await;
    // A file system without free space.
    std::fs::remove_file(&disk).unwrap();
    symlink("/proc", &disk).unwrap();
    let checks = || fixture.runtime.calls("ImageFsInfo").len();
    fixture.runtime.until("the space for the next image is checked", |_| checks() == 2).await;
    assert_eq!((fixture.pulls("img:v2"), fixture.pulls("img:v3")), (1, 0));
}

#[tokio::test]
async fn a_prefetch_whose_annotation_goes_is_cancelled() {
    let fixture = Fixture::found().await;
    fixture.runtime.model(|model| model.remote_image("img:v3").size = 1 << 20);
    fixture.pod("web-0");
    fixture.runtime.on("PullImage").about("img:v3").always().fault(Fault::Hang);
    let _agent = fixture.agent().await;
    fixture.prefetch("web-0", Some("img:v3"));
    fixture.runtime.until("the prefetch hangs", |_| fixture.pulls("img:v3") == 1).await;
    // Only one image is pulled at a time: the second one shows that the first has been cancelled.
    fixture.prefetch("web-0", Some("img:v2"));
    fixture.runtime.until("the next image is there", |model| model.local_image("img:v2").is_some()).await;
    fixture.prefetch("web-0", None);
    assert_eq!(fixture.pulls("img:v3"), 1);
}
