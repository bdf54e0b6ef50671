//! Hooks in their real environment: commands in containers of a real runtime.

use std::{fs, process::Command};

use inplace::{
    api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, Measurement},
    cri::{client::Client, endpoint::Endpoint, identity::Origin},
    hook::{
        address_policy::{AddressPolicy, Cidr},
        executor::Executor,
        place::{HookPod, Place},
        settings::Settings,
    },
};
use serde_json::{Value, json};

use crate::{
    pod::{Ended, PAIR, Pod},
    support::lab::Lab,
};

/// Measures a metric once; an error ends the run. `endpoint` is the runtime's endpoint.
pub(crate) fn measure(
    endpoint: &str,
    place: &Place,
    metric: &Value,
    args: &Value,
) -> (HookPhase, Measurement) {
    // The same as in `main`.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut whole = json!({"name": "m", "consecutiveErrorLimit": 0});
    whole.as_object_mut().unwrap().extend(metric.as_object().unwrap().clone());
    let spec: HookRunSpec = serde_json::from_value(json!({"metrics": [whole], "args": args})).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let executor = Executor::new(Settings {
            role: "this test".to_owned(),
            runtime: Some(Client::new(&Endpoint::parse(endpoint).unwrap(), None)),
            server: None,
            address_policy: AddressPolicy::new(Cidr::LOOPBACK.to_vec()),
            max_at_once: 1,
            exec: true,
        });
        executor.run(&spec, HookRunStatus::default(), place, |_| {}).await
    });
    let result = status.metric_results.first().unwrap_or_else(|| panic!("{status:#?}"));
    (status.phase.unwrap(), result.measurements.last().unwrap().clone())
}

fn place(pod: &Pod<'_>) -> Place {
    let subject = HookPod { name: pod.name.clone(), uid: pod.uid.clone(), origin: Origin::Unknown };
    Place { namespace: "default".to_owned(), pod: Some(subject), ..Place::default() }
}

/// Runs a command in a container of the pod.
fn exec(pod: &Pod<'_>, container: &str, command: &Value, more: &Value) -> (HookPhase, Measurement) {
    let mut metric =
        json!({"provider": {"exec": {"container": container, "command": command, "timeoutSeconds": 60}}});
    let fields = metric.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let args =
        json!([{"name": "word", "value": "two words; $(id) 'x"}, {"name": "token", "value": "s3cret"}]);
    measure(&pod.lab.endpoint, &place(pod), &metric, &args)
}

fn sh(script: &str) -> Value {
    json!(["sh", "-c", script])
}

#[test]
fn what_a_command_prints_is_the_result_and_its_exit_code_the_verdict() {
    let pod = Pod::run(Lab::shared(), "exec", PAIR);
    let none = json!({});
    let (phase, measurement) =
        exec(&pod, "app", &sh("echo 42"), &json!({"successCondition": "asInt(result) == 42"}));
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, "42"), "{measurement:?}");
    let (phase, _) = exec(&pod, "app", &sh("echo 42"), &json!({"successCondition": "asInt(result) == 43"}));
    assert_eq!(phase, HookPhase::Failed);
    // Arguments are passed verbatim: no shell interprets them.
    let (phase, measurement) = exec(&pod, "side", &json!(["echo", "{{ args.word }}", "x"]), &none);
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Successful, "two words; $(id) 'x x"));
    // Independent of the conditions.
    let script = sh("echo 42; echo not yet >&2; echo more >&2; exit 3");
    let (phase, measurement) =
        exec(&pod, "app", &script, &json!({"successCondition": "asInt(result) == 42"}));
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Failed, "42"), "{measurement:?}");
    assert_eq!(measurement.message, "the command in app exited with 3: not yet");
}

#[test]
fn a_command_is_bounded_in_what_it_prints_and_in_time() {
    let pod = Pod::run(Lab::shared(), "exec-bounds", PAIR);
    let none = json!({});
    let (phase, _) = exec(&pod, "app", &sh("head -c 16384 /dev/zero"), &none);
    assert_eq!(phase, HookPhase::Successful);
    for script in ["head -c 16385 /dev/zero", "head -c 20000000 /dev/zero", "head -c 20000000 /dev/zero >&2"]
    {
        let (phase, measurement) = exec(&pod, "app", &sh(script), &none);
        assert_eq!(phase, HookPhase::Error, "{script}");
        assert!(measurement.message.contains("printed more than 16 KiB"), "{script}: {measurement:?}");
    }
    let command = json!(["sleep", "1000", "{{ args.token }}"]);
    let metric = json!({"provider": {"exec": {"container": "app", "command": command, "timeoutSeconds": 1}}});
    let args = json!([{"name": "token", "value": "999"}]);
    let (phase, measurement) = measure(&pod.lab.endpoint, &place(&pod), &metric, &args);
    assert_eq!(phase, HookPhase::Error);
    assert_eq!(measurement.message, "exec: the command in app did not end within 1 s");
    // The command has been killed.
    let (_, measurement) = exec(&pod, "app", &sh("ps | grep -c '[s]leep 1000' || true"), &none);
    assert_eq!(measurement.value, "0");
}

#[test]
fn a_command_that_cannot_be_run_is_an_error() {
    let pod = Pod::run(Lab::shared(), "exec-errors", PAIR);
    let none = json!({});
    let (phase, measurement) = exec(&pod, "none", &sh("true"), &none);
    assert_eq!(phase, HookPhase::Error);
    assert_eq!(measurement.message, format!("exec: pod {} has no running container none", pod.name));
    let (phase, measurement) = exec(&pod, "app", &json!(["/no/such/program", "{{ args.token }}"]), &none);
    assert_eq!(phase, HookPhase::Error);
    assert!(measurement.message.starts_with("exec: ExecSync: "), "{measurement:?}");
    assert!(!measurement.message.contains("s3cret"), "{measurement:?}");
    let metric = json!({"provider": {"exec": {"container": "app", "command": ["true"]}}});
    let (phase, measurement) = measure("/run/none/none.sock", &place(&pod), &metric, &json!([]));
    assert_eq!(phase, HookPhase::Error);
    assert!(measurement.message.contains("cannot be reached"), "{measurement:?}");
}

#[test]
fn after_a_restart_in_place_the_new_container_is_asked() {
    let pod = Pod::run(Lab::shared(), "exec-restart", PAIR);
    let marked = sh("test -e /tmp/marked || test -e /dev/marked");
    let (phase, measurement) = exec(&pod, "app", &sh("touch /tmp/marked || touch /dev/marked"), &json!({}));
    assert_eq!(phase, HookPhase::Successful, "{measurement:?}");
    assert_eq!(exec(&pod, "app", &marked, &json!({})).0, HookPhase::Successful);
    pod.restart(&["app"]);
    assert_eq!(exec(&pod, "app", &marked, &json!({})).0, HookPhase::Failed);
}

#[test]
fn the_command_for_people_finds_the_pod_at_the_runtime() {
    let pod = Pod::run(Lab::shared(), "exec-cli", PAIR);
    let file = pod.state.path().join("hook.yaml");
    let template = "
apiVersion: tkex.tencent.com/v1alpha1
kind: HookTemplate
metadata: {name: names}
spec:
  metrics:
  - name: names
    successCondition: result == 'app side'
    provider:
      exec: {container: side, command: [echo, '{{ args.PodContainer[0] }}', '{{ args.PodContainer[1] }}']}
";
    fs::write(&file, template).unwrap();
    let test = |name: &str| -> Command {
        let file = file.to_str().unwrap();
        pod.program(&["hook", "test", "--pod", name, "-f", file])
    };
    let ended = Ended::of(&test(&pod.name).output().unwrap());
    assert!(ended.exit.success(), "{ended:?}");
    assert!(ended.out.contains("names #1 Successful \"app side\""), "{ended:?}");
    let ended = Ended::of(&test("nobody").output().unwrap());
    assert_eq!(ended.exit.code(), Some(3), "{ended:?}");
    assert!(ended.reported.contains("no pod default/nobody runs on this node"), "{ended:?}");
}
