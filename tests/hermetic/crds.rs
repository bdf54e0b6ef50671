//! The CRDs: the committed files equal the program's output, an API server of Kubernetes 1.20 can read them, and
//! the templates that users of bk-bcs have are valid.

use std::fs;
use std::process::Command;

use inplace::api::hook_run::{HookPhase, HookRunStatus};
use inplace::api::hook_template::HookTemplate;
use inplace::api::request::HookArg;
use inplace::hook::args::Injected;
use inplace::hook::check::prepare;
use inplace::hook::measured::Measured;
use inplace::hook::program::{Next, Program};
use inplace::hook::value::Value as Found;
use jiff::Timestamp;
use serde_json::{Value, json};

const FILES: [&str; 5] = [
    "hooktemplates.yaml",
    "hookruns.yaml",
    "gamedeployments.yaml",
    "gamestatefulsets.yaml",
    "inplacerollouts.yaml",
];

#[test]
fn what_is_committed_is_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_inplace")).arg("crds").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    for folder in ["daemonset/crds", "daemonset/chart/crds"] {
        let read = |name| fs::read_to_string(format!("{folder}/{name}")).unwrap();
        let committed: String = FILES.map(|name| format!("---\n{}", read(name))).concat();
        assert!(
            printed == committed,
            "{folder} is not what `inplace crds` prints: write it there, one file each"
        );
    }
}

#[test]
fn the_schemas_say_nothing_that_kubernetes_1_20_does_not_know() {
    for definition in definitions() {
        let name = &definition["metadata"]["name"];
        assert_eq!(definition["spec"]["versions"].as_array().unwrap().len(), 1, "{name}");
        check_schema(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &name.to_string());
    }
}

/// Asserts that the schema is structural: each node has a type, and only keywords that apiextensions v1 had from
/// the start.
fn check_schema(schema: &Value, path: &str) {
    let known = [
        "type",
        "description",
        "title",
        "format",
        "properties",
        "required",
        "items",
        "enum",
        "pattern",
        "default",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "additionalProperties",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-map-type",
    ];
    let map = schema.as_object().unwrap();
    for keyword in map.keys() {
        assert!(known.contains(&keyword.as_str()), "{path}: {keyword}");
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        assert!(!map.contains_key("type") && map.contains_key("description"), "{path}");
        return;
    }
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_else(|| panic!("{path} has no type"));
    if let Some(format) = map.get("format") {
        assert!(format == "int32" || format == "int64" || format == "date-time", "{path}: {format}");
    }
    let number = map.get("format").is_some_and(|format| format == "int32" || format == "int64");
    assert_eq!(kind == "integer", number, "{path}");
    assert!(map.contains_key("description") || path.ends_with("[]"), "{path} is not described");
    for (name, below) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_schema(below, &format!("{path}.{name}"));
    }
    if let Some(items) = map.get("items") {
        check_schema(items, &format!("{path}[]"));
    }
    if let Some(values) = map.get("additionalProperties") {
        check_schema(values, &format!("{path}.*[]"));
    }
}

#[test]
fn people_see_phase_and_age_and_defaults() {
    let [templates, runs, ..] = definitions();
    let version = &runs["spec"]["versions"][0];
    assert_eq!(
        version["additionalPrinterColumns"],
        json!([
            {"name": "PHASE", "type": "string", "jsonPath": ".status.phase"},
            {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ])
    );
    assert_eq!(version["subresources"], json!({"status": {}}));
    for definition in [&templates, &runs] {
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let policy = &spec["properties"]["policy"];
        assert_eq!(
            (&policy["default"], &policy["enum"]),
            (&json!("Parallel"), &json!(["Parallel", "Ordered"]))
        );
        assert_eq!(spec["required"], json!(["metrics"]));
        let metric = &spec["properties"]["metrics"]["items"];
        assert_eq!(metric["required"], json!(["name", "provider"]));
        assert_eq!(metric["properties"]["count"]["minimum"].as_f64(), Some(0.0));
        assert_eq!(definition["spec"]["scope"], "Namespaced");
    }
    assert_eq!(templates["spec"]["names"]["plural"], "hooktemplates");
    assert_eq!(templates["spec"]["versions"][0].get("subresources"), None);
}

/// The three templates of the published walk-through, by their differences: host, arguments, threshold.
fn published(url: &str, args: &[&str], condition: &str) -> HookTemplate {
    let text = format!(
        "apiVersion: tkex.tencent.com/v1alpha1\nkind: HookTemplate\nmetadata: {{name: test}}\nspec:\n  args: [{}]\n  \
         metrics:\n  - {{name: webtest, count: 3, interval: 60s, failureLimit: 2, successCondition: '{condition}',\n     \
         provider: {{web: {{url: '{url}', jsonPath: '{{$.age}}'}}}}}}\n",
        args.iter().map(|name| format!("{{name: {name}}}")).collect::<Vec<_>>().join(", "),
    );
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn published_templates_end_as_they_are_said_to() {
    let declared = ["PodIP", "PodName", "PodNamespace", "service-name"];
    for (template, phase) in [
        (published("http://127.0.0.1:9091", &[], "asInt(result) > 30"), HookPhase::Successful),
        (published("http://127.0.0.1:9091", &[], "asInt(result) < 30"), HookPhase::Failed),
        (published("http://{{ args.PodIP }}:9091", &declared, "asInt(result) > 30"), HookPhase::Successful),
    ] {
        let pod = Injected {
            pod_name: "web-0".into(),
            pod_namespace: "shop".into(),
            pod_ip: "127.0.0.1".into(),
            ..Injected::default()
        };
        let given = [HookArg { name: "service-name".into(), value: "web".into() }];
        let run = prepare(&template.spec, &given, Some(&pod)).unwrap();
        let program = Program::compile(&run).unwrap();
        let mut status = HookRunStatus::default();
        let start = Timestamp::from_second(1_700_000_000).unwrap();
        let mut now = start;
        program.start(&mut status, now);
        loop {
            match program.next(&status, &[], now) {
                Next::Measure(due) => {
                    for metric in due {
                        let body = br#"{"name":"bryan","male":"yes","age":45}"#;
                        let path =
                            run.metrics[metric].provider.web.as_ref().unwrap().json_path.as_ref().unwrap();
                        let value = inplace::hook::json_path::select(body, path).unwrap();
                        program.begin(&mut status, metric, now);
                        program.record(&mut status, metric, &Measured::Value(Found::Text(value)), now);
                    }
                }
                Next::Wait(until) => now = until.unwrap(),
                Next::Ended(_) => break,
            }
        }
        assert_eq!((status.phase, now.as_second() - start.as_second()), (Some(phase), 120));
        let shown = serde_json::to_value(&status).unwrap();
        assert_eq!(shown["metricResults"][0]["measurements"][2]["value"], "45");
        if phase == HookPhase::Failed {
            let message = "webtest: 3 of 3 measurements failed, 2 are tolerated: asInt(result) < 30 was false for \"45\"";
            assert_eq!(shown["message"], message);
        }
    }
}

fn definitions() -> [Value; FILES.len()] {
    FILES.map(|name| {
        serde_saphyr::from_str(&fs::read_to_string(format!("daemonset/crds/{name}")).unwrap()).unwrap()
    })
}
