//! A container whose limits were changed while it ran, as a kubelet does for a resize of the pod.

use std::fs;

use inplace::api::status::Phase;
use inplace::cri::proto::v1::LinuxContainerResources;
use tonic::{
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    pod::{PAIR, Pod},
    support::lab::Lab,
};

const METHOD: &str = "/runtime.v1.RuntimeService/UpdateContainerResources";

/// The request of the interface, of which the program has no client: it resizes nothing.
#[derive(Clone, PartialEq, prost::Message)]
struct Update {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(message, optional, tag = "2")]
    linux: Option<LinuxContainerResources>,
}

/// Its answer, which has no field.
#[derive(Clone, PartialEq, prost::Message)]
struct Updated {}

/// Gives the running container `app` other limits.
fn resize(pod: &Pod<'_>, memory: i64, quota: i64) {
    let linux = LinuxContainerResources {
        memory_limit_in_bytes: memory,
        cpu_period: 100_000,
        cpu_quota: quota,
        cpu_shares: 512,
        ..LinuxContainerResources::default()
    };
    let update = Update { container_id: pod.facts().running("app").id.clone(), linux: Some(linux) };
    let path = pod.lab.endpoint.trim_start_matches("unix://");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = Endpoint::from_shared(format!("unix://{path}")).unwrap();
        let mut client: Grpc<Channel> = Grpc::new(address.connect().await.unwrap());
        client.ready().await.unwrap();
        let codec = ProstCodec::<Update, Updated>::default();
        let method = PathAndQuery::from_static(METHOD);
        client.unary(tonic::Request::new(update), method, codec).await.unwrap();
    });
}

/// The memory limit and the CPU quota that the kernel enforces on `app`.
fn limits(pod: &Pod<'_>) -> (i64, i64) {
    let pid = pod.facts().running("app").pid;
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|one| one == controller).then_some(path)
        })
    };
    let number = |file: String| {
        let text = fs::read_to_string(&file).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    if let (Some(memory), Some(cpu)) = (group("memory"), group("cpu")) {
        return (
            number(format!("/sys/fs/cgroup/memory{memory}/memory.limit_in_bytes")),
            number(format!("/sys/fs/cgroup/cpu{cpu}/cpu.cfs_quota_us")),
        );
    }
    // The unified hierarchy has one group, without the names of controllers.
    let group = group("").unwrap();
    (number(format!("/sys/fs/cgroup{group}/memory.max")), number(format!("/sys/fs/cgroup{group}/cpu.max")))
}

#[test]
fn present_limits_are_those_of_the_replacement() {
    let pod = Pod::run(Lab::shared(), "resized", PAIR);
    resize(&pod, 96 << 20, 40_000);
    assert_eq!(limits(&pod), (96 << 20, 40_000), "the runtime resizes");
    pod.restart(&["app"]);
    assert_eq!(limits(&pod), (96 << 20, 40_000), "after a restart");
    // A second resize is one of a container that the program created.
    resize(&pod, 64 << 20, 60_000);
    pod.operate("swap", &["app=lab/app:v2"]).is(Phase::Succeeded);
    assert_eq!(limits(&pod), (64 << 20, 60_000), "after a swap");
    resize(&pod, 128 << 20, 30_000);
    // On a busy machine the image exits seconds after the runtime has reported its start.
    let crash = ["app=lab/app:crash", "--min-ready", "20"];
    let status = pod.operate("swap", &crash).is(Phase::RolledBack);
    assert_eq!(limits(&pod), (128 << 20, 30_000), "after a rollback: {status:?}");
}
