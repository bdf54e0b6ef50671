//! Unit tests: what a clone retains, what it changes, and which configurations are refused.

use std::time::Duration;

use super::*;

fn info(config: &str, spec: &str) -> HashMap<String, String> {
    HashMap::from([(
        "info".to_owned(),
        format!(r#"{{"sandboxID":"s","runtimeOptions":null,"config":{config},"runtimeSpec":{spec}}}"#),
    )])
}

const CONFIG: &str = r#"{
    "metadata": {"name": "app", "attempt": 3},
    "image": {"image": "sha256:642f3ece003ef7680770cc2fb77723cc79d7f57496ef46156ce0352ea02f3e84"},
    "envs": [{"key": "PLAIN", "value": "grün =x"}, {"key": "CODED", "value": "ZHVkZWQ="}, {"key": "NONE"}],
    "mounts": [{"container_path": "/dev/termination-log",
                "host_path": "/var/lib/kubelet/pods/6d1c/containers/app/0a1b2c3d"}],
    "labels": {"io.kubernetes.pod.uid": "6d1c", "io.kubernetes.container.name": "app"},
    "annotations": {"io.kubernetes.container.restartCount": "3", "io.kubernetes.container.hash": "a2f567d5"},
    "log_path": "app/3.log",
    "linux": {"resources": {"cpu_shares": 512, "memory_limit_in_bytes": 64, "oom_score_adj": 900}}
}"#;
const SPEC: &str = r#"{
    "process": {"env": ["PATH=/bin", "PLAIN=grün =x", "CODED=old", "CODED=decoded", "NONE="], "oomScoreAdj": 950},
    "linux": {"resources": {"memory": {"limit": 64, "swap": 64}, "cpu": {"shares": 512}}}
}"#;

fn source(config: &str, spec: &str) -> Result<Source, NotCloneable> {
    Source::read(&v1::ContainerStatus::default(), &info(config, spec))
}

fn original() -> v1::ContainerConfig {
    source(CONFIG, SPEC).unwrap().config
}

fn resources(source: Source) -> v1::LinuxContainerResources {
    source.config.linux.unwrap().resources.unwrap()
}

#[test]
fn a_replacement_differs_where_it_has_to_and_nowhere_else() {
    let mut expected = original();
    let new = source(CONFIG, SPEC).unwrap().replacement(4, None, "op-1");
    expected.metadata.as_mut().unwrap().attempt = 4;
    expected.log_path = "app/4.log".to_owned();
    expected.labels.insert(annotation::OPERATION.to_owned(), "op-1".to_owned());
    expected.annotations.insert(annotation::RESTART_COUNT.to_owned(), "4".to_owned());
    assert_eq!(new, expected);

    let choice = ImageChoice { reference: "app:v2".to_owned(), id: "sha256:2".to_owned(), spec_hash: None };
    let new = source(CONFIG, SPEC).unwrap().replacement(4, Some(&choice), "op-1");
    let image = expected.image.as_mut().unwrap();
    (image.image, image.user_specified_image) = ("sha256:2".to_owned(), "app:v2".to_owned());
    assert_eq!(new, expected);
}

#[test]
fn no_count_is_made_up_where_there_was_none() {
    let config = CONFIG.replace("io.kubernetes.container.restartCount", "other");
    let new = source(&config, SPEC).unwrap().replacement(4, None, "op-1");
    assert!(!new.annotations.contains_key(annotation::RESTART_COUNT) && new.annotations["other"] == "3");
}

#[test]
fn a_fence_has_the_name_and_not_the_label() {
    let mut expected = original();
    let fence = source(CONFIG, SPEC).unwrap().fence(5, None, "op-1");
    expected.metadata.as_mut().unwrap().attempt = 5;
    expected.log_path = "app/inplace-fence-5.log".to_owned();
    expected.labels.insert(annotation::OPERATION.to_owned(), "op-1".to_owned());
    expected.labels.insert(annotation::CONTAINER_NAME.to_owned(), annotation::FENCE_NAME.to_owned());
    assert_eq!(fence, expected);
}

#[test]
fn a_holder_has_its_pods_namespaces_and_nothing_of_its_container() {
    let config = CONFIG.replacen(
        r#""resources": {"#,
        r#""security_context": {"privileged": true, "run_as_user": {"value": 0},
            "capabilities": {"add_capabilities": ["SYS_ADMIN"]}, "seccomp": {"profile_type": 2, "localhost_ref": "own"},
            "selinux_options": {"level": "s0:c1"}, "namespace_options": {"network": 2, "pid": 3, "target_id": "other"}},
           "resources": {"cpuset_cpus": "2-3", "#,
        1,
    );
    let config = config.replacen(
        r#""annotations": {"#,
        r#""devices": [{"host_path": "/dev/kvm", "container_path": "/dev/kvm"}],
           "annotations": {"io.kubernetes.container.preStopHandler": "{}", "mine": "secret", "#,
        1,
    );
    let source = source(&config, SPEC).unwrap();
    let holder = source.holder(5, "sha256:9", Duration::from_millis(61_500), "op-1");
    let linux = v1::LinuxContainerConfig {
        resources: Some(v1::LinuxContainerResources {
            cpu_shares: 2,
            oom_score_adj: 1000,
            cpuset_cpus: "2-3".to_owned(),
            ..Default::default()
        }),
        security_context: Some(v1::LinuxContainerSecurityContext {
            run_as_user: Some(v1::Int64Value { value: 65534 }),
            run_as_group: Some(v1::Int64Value { value: 65534 }),
            no_new_privs: true,
            readonly_rootfs: true,
            capabilities: Some(v1::Capability {
                drop_capabilities: vec!["ALL".to_owned()],
                ..Default::default()
            }),
            seccomp: Some(v1::SecurityProfile::default()),
            selinux_options: Some(v1::SeLinuxOption { level: "s0:c1".to_owned(), ..Default::default() }),
            namespace_options: Some(v1::NamespaceOption { network: 2, pid: 1, ..Default::default() }),
            ..Default::default()
        }),
    };
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let expected = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 5 }),
        image: Some(v1::ImageSpec { image: "sha256:9".to_owned(), ..Default::default() }),
        command: vec!["/inplace".to_owned(), "hold".to_owned()],
        args: vec!["62".to_owned()],
        labels: map(&[
            (annotation::POD_UID, "6d1c"),
            (annotation::CONTAINER_NAME, annotation::FENCE_NAME),
            (annotation::OPERATION, "op-1"),
            (annotation::HOLDER, "true"),
        ]),
        log_path: "app/inplace-fence-5.log".to_owned(),
        annotations: map(&[(annotation::RESTART_COUNT, "3"), (annotation::SPEC_HASH, "a2f567d5")]),
        linux: Some(linux),
        ..Default::default()
    };
    assert_eq!(holder, expected);
}

#[test]
fn what_is_cloned_from_a_fence_is_cloned_from_the_container() {
    let whole = source(CONFIG, SPEC).unwrap();
    let fence = Source { config: whole.fence(5, None, "op-1") };
    assert_eq!(fence.replacement(4, None, "op-1"), whole.replacement(4, None, "op-1"));
}

#[test]
fn the_environment_is_the_processs() {
    let values: Vec<_> = original().envs.into_iter().map(|env| env.value).collect();
    assert_eq!(values, ["grün =x".as_bytes(), b"decoded", b""]);
    let gone = SPEC.replace("NONE=", "NONEXT=");
    assert_eq!(source(CONFIG, &gone).unwrap_err(), NotCloneable::Environment("NONE".to_owned()));
    assert_eq!(source(CONFIG, "{}").unwrap_err(), NotCloneable::Environment("PLAIN".to_owned()));
    let lost = SPEC.replace("=decoded", "=\u{fffd}\u{fffd}");
    assert_eq!(source(CONFIG, &lost).unwrap_err(), NotCloneable::Environment("CODED".to_owned()));
}

#[test]
fn each_occurrence_of_a_variable_has_its_own_value() {
    let values = |names: &[&str], given: &[&str]| {
        let envs: Vec<_> = names.iter().map(|name| format!(r#"{{"key":"{name}","value":"x"}}"#)).collect();
        let config = format!(r#"{{"metadata":{{"name":"app"}},"envs":[{}]}}"#, envs.join(","));
        let spec = serde_json::json!({"process": {"env": given}}).to_string();
        let value = |env: v1::KeyValue| String::from_utf8(env.value).unwrap();
        source(&config, &spec).map(|read| read.config.envs.into_iter().map(value).collect::<Vec<_>>())
    };
    let names = ["A", "B", "A", "AB"];
    for (given, expected) in [
        (&["A=1", "AB=4", "B=2", "A=3"][..], ["1", "2", "3", "4"]),
        (&["AB=4", "B=2", "A=3"][..], ["3", "2", "3", "4"]),
        (&["A=0", "A=1", "B=", "A", "", "A==3", "AB=a=b"][..], ["1", "", "=3", "a=b"]),
    ] {
        assert_eq!(values(&names, given).unwrap(), expected, "{given:?}");
    }
    let refused = |given: &[&str]| values(&names, given).unwrap_err();
    assert_eq!(refused(&["A=1"]), NotCloneable::Environment("B".to_owned()), "the first one");
    assert_eq!(refused(&["A=\u{fffd}", "B=2", "A=3"]), NotCloneable::Environment("A".to_owned()));
    let zero = source(CONFIG, r#"{"process":{"env":["PLAIN=hunter2\u0000CODED=x"]}}"#).unwrap_err();
    assert!(matches!(&zero, NotCloneable::Unreadable(text) if !text.contains("hunter2")), "{zero}");
}

#[test]
fn a_variable_may_have_null_members_and_may_not_be_null() {
    let envs = |envs: &str| {
        let config = format!(r#"{{"metadata":{{"name":"app"}},"envs":{envs}}}"#);
        source(&config, r#"{"process":{"env":["A=1"]}}"#).map(|read| read.config.envs.len())
    };
    assert_eq!((envs("null"), envs("[]")), (Ok(0), Ok(0)));
    assert_eq!(envs(r#"[{"key":"A","value":null,"novelty":null}]"#), Ok(1));
    assert!(matches!(envs("[null]"), Err(NotCloneable::Unreadable(_))));
    assert_eq!(source(r#"{"metadata":{"name":"a"}}"#, r#"{"process":{"env":null}}"#).unwrap().name(), "a");
}

/// With work for each pair of variables, this test takes minutes. It asserts no time: it only has to end.
#[test]
fn an_environment_of_two_large_objects_is_read() {
    const COUNT: usize = 100_000;
    let (keys, given): (Vec<_>, Vec<_>) = (0..COUNT)
        .map(|number| (format!(r#"{{"key":"K{number}","value":""}}"#), format!(r#""K{number}={number}""#)))
        .unzip();
    let config = format!(r#"{{"metadata":{{"name":"app"}},"envs":[{}]}}"#, keys.join(","));
    let spec = format!(r#"{{"process":{{"env":[{}]}}}}"#, given.join(","));
    let envs = source(&config, &spec).unwrap().config.envs;
    assert_eq!((envs.len(), envs[COUNT - 1].value.as_slice()), (COUNT, &b"99999"[..]));
}

#[test]
fn limits_are_those_of_now() {
    let asked = resources(source(CONFIG, SPEC).unwrap());
    assert_eq!((asked.memory_limit_in_bytes, asked.memory_swap_limit_in_bytes), (64, 0));
    assert_eq!(asked.oom_score_adj, 900, "the configuration's");

    let resized = SPEC.replace("64", "128").replace(r#""shares": 512"#, r#""shares": 1024, "cpus": "2-3""#);
    let now = resources(source(CONFIG, &resized).unwrap());
    assert_eq!((now.memory_limit_in_bytes, now.memory_swap_limit_in_bytes), (128, 0));
    assert_eq!((now.cpu_shares, now.cpuset_cpus.as_str()), (1024, "2-3"));

    let swap = SPEC.replace(r#""swap": 64"#, r#""swap": 96"#);
    assert_eq!(resources(source(CONFIG, &swap).unwrap()).memory_swap_limit_in_bytes, 96);

    // A runtime that reports the limits only in the status.
    let reported = v1::LinuxContainerResources { cpu_quota: 5, oom_score_adj: 1, ..Default::default() };
    let status = v1::ContainerStatus {
        resources: Some(v1::ContainerResources { linux: Some(reported), windows: None }),
        ..Default::default()
    };
    let now = resources(Source::read(&status, &info(CONFIG, SPEC)).unwrap());
    assert_eq!((now.cpu_quota, now.cpu_shares, now.oom_score_adj), (5, 512, 900));

    let bare =
        source(r#"{"metadata": {"name": "app"}}"#, r#"{"linux": {"resources": {"cpu": {}}}}"#).unwrap();
    assert_eq!(bare.config.linux, None, "what was absent stays absent");
}

#[test]
fn a_tag_becomes_the_image_that_runs() {
    let config = r#"{"metadata": {"name": "app"}, "image": {"image": "app:v1"}}"#;
    let status = v1::ContainerStatus { image_ref: "sha256:1".to_owned(), ..Default::default() };
    let image = Source::read(&status, &info(config, "{}")).unwrap().config.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "app:v1"));
}

#[test]
fn refusals_name_fields_and_never_values() {
    let not_reported = HashMap::from([("info".to_owned(), r#"{"pid":1,"runtimeSpec":{}}"#.to_owned())]);
    let read = |info| Source::read(&v1::ContainerStatus::default(), info).unwrap_err();
    assert_eq!(read(&not_reported), NotCloneable::NotReported);
    assert_eq!(read(&HashMap::new()), NotCloneable::NotReported);
    assert_eq!(sandbox_config(&not_reported).unwrap_err(), NotCloneable::NotReported);
    assert_eq!(source(r#"{"metadata":{"name":"a"},"windows":{}}"#, "{}").unwrap_err(), NotCloneable::Windows);
    for (config, says) in [
        (r#"{"metadata":{"name":"a"},"novelty":"hunter2"}"#, "lose: novelty"),
        (r#"{"envs":[{"key":"A","value":"hunter2","novelty":1}]}"#, "lose: novelty"),
        (r#"{"envs":"hunter2"}"#, "not a sequence"),
        (r#"{"envs":[{"key":"A","value":{"hunter2, expected x":1}}]}"#, "not a string"),
        (r#"{"metadata":{"name":"a","attempt":"hunter2, expected b"}}"#, "not u32"),
        ("{}", "no name"),
        (r#"{"hunter2"}"#, "JSON"),
    ] {
        let error = source(config, "{}").unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("hunter2"), "{config}: {error}");
        assert!(!error.contains(" line "), "{config}: {error}");
    }
    let printed = format!("{:?}", source(CONFIG, SPEC).unwrap());
    assert!(printed.contains("app") && !printed.contains("decoded"), "{printed}");
}

#[test]
fn a_container_with_an_image_volume_is_not_cloned() {
    let mount = r#""mounts": [{"container_path": "/model", "host_path": "/run/containerd/image-volumes/s/i",
        "readonly": true, "image": {"image": "sha256:9"}, "image_sub_path": "v1"}, "#;
    let config = CONFIG.replacen(r#""mounts": ["#, mount, 1);
    assert_eq!(source(&config, SPEC).unwrap_err(), NotCloneable::ImageVolume);
    assert!(source(&config.replacen(r#"{"image": "sha256:9"}"#, "null", 1), SPEC).is_ok());
}

/// For SELinux options without a level the runtime chooses another level for each container, and gives it to the volumes.
#[test]
fn each_copy_has_the_selinux_level_of_its_container() {
    let asked = |options: &str| {
        let security = format!(r#""linux": {{"security_context": {{"selinux_options": {options}}}, "#);
        CONFIG.replacen(r#""linux": {"#, &security, 1)
    };
    let runs = |process: &str, mounts: &str| {
        let spec =
            SPEC.replacen(r#""process": {"#, &format!(r#""process": {{"selinuxLabel": "{process}", "#), 1);
        spec.replacen(r#""linux": {"#, &format!(r#""linux": {{"mountLabel": "{mounts}", "#), 1)
    };
    let typed = asked(r#"{"type": "logger_t"}"#);
    let process = "system_u:system_r:logger_t:s0:c12,c34";
    let read = source(&typed, &runs(process, "system_u:object_r:container_file_t:s0:c12,c34")).unwrap();
    for copy in [
        read.replacement(4, None, "op-1"),
        read.fence(5, None, "op-1"),
        read.standby(4, None, "op-1"),
        read.holder(5, "sha256:9", Duration::from_secs(60), "op-1"),
    ] {
        let options = copy.linux.unwrap().security_context.unwrap().selinux_options.unwrap();
        assert_eq!((options.r#type.as_str(), options.level.as_str()), ("logger_t", "s0:c12,c34"));
    }

    let level = |config: &str, spec: &str| {
        source(config, spec)
            .map(|read| read.config.linux.unwrap().security_context.unwrap().selinux_options.unwrap().level)
    };
    for (config, spec, expected) in [
        (asked(r#"{"type": "t", "level": "s0:c1"}"#), runs(process, ""), "s0:c1"),
        // The runtime copies the label of the sandbox.
        (asked("{}"), runs(process, ""), ""),
        // A privileged process has no label.
        (typed.clone(), runs("", "system_u:object_r:container_file_t:s0:c5,c6"), "s0:c5,c6"),
        (typed.clone(), runs("system_u:system_r:logger_t:s0-s0:c0.c1023", ""), "s0-s0:c0.c1023"),
        // A policy without levels, and a node without SELinux.
        (typed.clone(), runs("system_u:system_r:logger_t", ""), ""),
        (typed.clone(), SPEC.to_owned(), ""),
    ] {
        assert_eq!(level(&config, &spec), Ok(expected.to_owned()), "{config} {spec}");
    }
    for unknown in ["logger_t", "system_u:system_r:logger_t:"] {
        assert_eq!(level(&typed, &runs(unknown, "")), Err(NotCloneable::SelinuxLevel), "{unknown}");
    }
    let bare =
        r#"{"metadata": {"name": "app"}, "linux": {"security_context": {"selinux_options": {"type": "t"}}}}"#;
    assert_eq!(level(bare, "{}"), Err(NotCloneable::SelinuxLevel));
}

#[test]
fn the_kubelets_termination_log_is_found() {
    let path = PathBuf::from("/var/lib/kubelet/pods/6d1c/containers/app/0a1b2c3d");
    assert_eq!(source(CONFIG, SPEC).unwrap().termination_log(), Some(TerminationLog { old: path }));
    let elsewhere = CONFIG.replace("/var/lib/kubelet/pods", "/srv");
    assert_eq!(source(&elsewhere, SPEC).unwrap().termination_log(), None);
    let none = CONFIG.replace(
        r#""io.kubernetes.container.hash": "#,
        r#""io.kubernetes.container.terminationMessagePath": "", "h": "#,
    );
    assert_eq!(source(&none, SPEC).unwrap().termination_log(), None);
}

#[test]
fn a_sandbox_is_read_as_it_stands() {
    let config =
        sandbox_config(&info(r#"{"metadata":{"name":"web","attempt":2},"log_directory":"/l"}"#, "{}"));
    assert_eq!(config.unwrap().metadata.unwrap().attempt, 2);
    let error = sandbox_config(&info(r#"{"novelty":1}"#, "{}")).unwrap_err();
    assert_eq!(error, NotCloneable::UnknownField("novelty".to_owned()));
}

/// Beside a standby that shares its ports, either of the two containers may get the request.
#[test]
fn a_handler_that_connects_to_the_pod_is_recognized() {
    let of = |handler: &str| {
        let mut source = source(CONFIG, SPEC).unwrap();
        source.config.annotations.insert(annotation::PRE_STOP.to_owned(), handler.to_owned());
        source.asks_own_pod()
    };
    assert!(of(r#"{"httpGet":{"path":"/bye","port":"http","scheme":"HTTP"}}"#));
    assert!(of(r#"{"tcpSocket":{"port":80}}"#));
    for other in [r#"{"exec":{"command":["bye"]}}"#, r#"{"httpGet":{"port":80,"host":"other"}}"#, "{"] {
        assert!(!of(other), "{other}");
    }
    assert!(!source(CONFIG, SPEC).unwrap().asks_own_pod());
}
