//! Reads the state of a pod on its node through the runtime and the kernel, independent of the program under test.

use std::{collections::BTreeMap, fs, ops::RangeInclusive};

use inplace::{
    api::annotation,
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{ContainerState, ContainerStatus},
    },
};

use super::{process::Process, wait::eventually};

/// The state of a pod as the runtime and the kernel report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) sandbox: String,
    pub(crate) ip: String,
    /// Every container except the fences, by name and attempt.
    pub(crate) instances: Vec<Instance>,
    /// The IDs of the fences.
    pub(crate) fences: Vec<String>,
    /// The files in the pod's shared memory.
    pub(crate) shm: BTreeMap<String, String>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) id: String,
    pub(crate) state: ContainerState,
    /// True if this project created it, and not a kubelet.
    pub(crate) by_operation: bool,
    pub(crate) exit_code: i32,
    /// The ID of its image.
    pub(crate) image: String,
    pub(crate) log: String,
    /// Nanoseconds by the runtime's clock; 0 for never.
    pub(crate) created_at: i64,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    /// The PID of its first process; 0 if it does not run.
    pub(crate) pid: u32,
    /// The start time of that process, in clock ticks.
    pub(crate) ticks: u64,
    /// The version of its image, read inside the container.
    pub(crate) version: String,
    /// Its network and IPC namespaces.
    pub(crate) namespaces: String,
}

/// Reads the pod with that uid through the runtime.
pub(crate) async fn observe(endpoint: &str, uid: &str) -> Facts {
    let client = Client::new(&Endpoint::parse(endpoint).unwrap(), None);
    let label = Some(("io.kubernetes.pod.uid", uid));
    let [sandbox] = client.sandboxes(label).await.unwrap().try_into().unwrap();
    let answer = client.sandbox(&sandbox.id, false).await.unwrap().unwrap();
    let mut facts = Facts {
        sandbox: sandbox.id,
        ip: answer.status.unwrap().network.unwrap_or_default().ip,
        instances: Vec::new(),
        fences: Vec::new(),
        shm: BTreeMap::new(),
    };
    for container in client.containers(label).await.unwrap() {
        if container.labels["io.kubernetes.container.name"] == "inplace-fence" {
            facts.fences.push(container.id);
            continue;
        }
        // The container may have been removed meanwhile.
        let Some(answer) = client.container(&container.id, true).await.unwrap() else { continue };
        let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).unwrap();
        let mut instance = Instance::of(answer.status.unwrap(), &info);
        // If the image was removed, the reference stays.
        if let Some(image) = client.image(&instance.image, false).await.unwrap() {
            instance.image = image.image.unwrap().id;
        }
        facts.instances.push(instance);
    }
    facts.instances.sort_by(|a, b| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
    if let Some(instance) = facts.instances.iter().find(|instance| instance.pid != 0) {
        facts.shm = files(&format!("/proc/{}/root/dev/shm", instance.pid));
    }
    facts
}

impl Facts {
    /// The only running container of that name.
    pub(crate) fn running(&self, name: &str) -> &Instance {
        let running: Vec<_> = self.of(name).filter(|instance| instance.pid != 0).collect();
        assert_eq!(running.len(), 1, "{name}: {self:#?}");
        running[0]
    }

    /// All containers of that name.
    pub(crate) fn of(&self, name: &str) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(move |instance| instance.name == name)
    }

    /// Verifies that one container of each name runs, and that no fence, no standby and no container in the state Created
    /// is left.
    pub(crate) fn settled(self) -> Self {
        for instance in &self.instances {
            assert!(!instance.name.starts_with("inplace-standby"), "{self:#?}");
            self.running(&instance.name);
            assert_ne!(instance.state, ContainerState::ContainerCreated, "{self:#?}");
        }
        assert!(self.fences.is_empty(), "{self:#?}");
        self
    }

    /// The same without `lost` containers that a kubelet created and could not start because it or the runtime died: a kubelet
    /// creates another one at once and removes these later.
    pub(crate) fn without_lost(mut self, mut lost: u32) -> Self {
        self.instances.retain(|instance| {
            let is_lost = instance.state == ContainerState::ContainerCreated && !instance.by_operation;
            let drops = is_lost && lost > 0;
            lost -= u32::from(drops);
            !drops
        });
        self
    }

    /// The lines of a file in the shared memory.
    pub(crate) fn lines(&self, file: &str) -> Vec<&str> {
        self.shm.get(file).map(|text| text.lines().collect()).unwrap_or_default()
    }
}

impl Instance {
    /// The seconds in which it can have run although the runtime reports that its start failed: a runtime ends the process when
    /// the caller of the start dies. `None` if it was started, or not at all.
    pub(crate) fn failed_start(&self) -> Option<RangeInclusive<u64>> {
        let seconds = |nanoseconds: i64| u64::try_from(nanoseconds).unwrap() / 1_000_000_000;
        let has_failed = self.state == ContainerState::ContainerExited && self.started_at == 0;
        has_failed.then(|| seconds(self.created_at)..=seconds(self.finished_at))
    }

    fn of(status: ContainerStatus, info: &serde_json::Value) -> Self {
        let state = status.state();
        let running = state == ContainerState::ContainerRunning;
        let pid = if running { u32::try_from(info["pid"].as_u64().unwrap()).unwrap() } else { 0 };
        await_program(pid);
        let namespace = |kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap_or_default();
        let version = fs::read_to_string(format!("/proc/{pid}/root/etc/version")).unwrap_or_default();
        let metadata = status.metadata.unwrap();
        Self {
            name: metadata.name,
            attempt: metadata.attempt,
            by_operation: status.labels.contains_key(annotation::OPERATION),
            id: status.id,
            state,
            exit_code: status.exit_code,
            image: status.image_ref,
            log: status.log_path,
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            pid,
            ticks: Process(pid).started().unwrap_or_default(),
            version: version.trim().to_owned(),
            namespaces: format!("{} {}", namespace("net").display(), namespace("ipc").display()),
        }
    }
}

/// Waits until a container's first process has executed the container's program. The runtime reports a container as
/// running shortly before; until then the process is the runtime's own, and its root folder cannot be read. Returns
/// at once for a process that has exited.
fn await_program(pid: u32) {
    eventually("a process that executes its program", || {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        (!name.starts_with("runc")).then_some(())
    });
}

fn files(folder: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
    });
    read.collect()
}
