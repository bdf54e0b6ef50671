//! The definitions of the custom resources, in the form that the API server requires: structural, for Kubernetes 1.20 and
//! later.
//!
//! The schemas come from the types. This file only rewrites what an API server does not accept: `nullable`, null in enums,
//! `uint16`, `0.0` as a bound.

use kube::CustomResourceExt;
use serde_json::Value;

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::hook_run::HookRun;
use crate::api::hook_template::HookTemplate;
use crate::api::in_place_rollout::InPlaceRollout;

/// All definitions, each with the name of its file.
pub fn all() -> Result<Vec<(&'static str, Value)>, serde_json::Error> {
    let definitions = [
        ("hooktemplates.yaml", HookTemplate::crd()),
        ("hookruns.yaml", HookRun::crd()),
        ("gamedeployments.yaml", GameDeployment::crd()),
        ("gamestatefulsets.yaml", GameStatefulSet::crd()),
        ("inplacerollouts.yaml", InPlaceRollout::crd()),
    ];
    let fitted = definitions.into_iter().map(|(file, crd)| {
        let mut crd = serde_json::to_value(crd)?;
        fit(&mut crd);
        Ok((file, crd))
    });
    fitted.collect()
}

/// Rewrites `schema` into the form that every API server accepts, with the same meaning.
fn fit(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            // An optional field is left out; it is never null.
            map.remove("nullable");
            if let Some(Value::Array(known)) = map.get_mut("enum") {
                known.retain(|value| !value.is_null());
            }
            if map.get("format").is_some_and(|format| format == "uint16") {
                map.insert("format".to_owned(), "int32".into());
            }
            map.values_mut().for_each(fit);
        }
        Value::Array(list) => list.iter_mut().for_each(fit),
        // A bound is a whole number: `minimum: 0`, not `0.0`.
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().and_then(|number| format!("{number}").parse::<i64>().ok()) {
                *number = whole.into();
            }
        }
        _ => {}
    }
}
