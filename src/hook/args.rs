//! Resolves the arguments of one run: declared in the template, given by the request, injected from the pod. Must
//! not render them into a text (`template` does).

use crate::api::hook_template::Argument;
use crate::api::request::HookArg;

/// Arguments whose name contains one of these texts need no declaration.
const INJECTED: [&str; 6] =
    ["PodName", "PodNamespace", "PodIP", "PodContainer", "ModifiedContainer", "HostIP"];

/// The values that the pod supplies. Empty texts are not injected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Injected {
    pub pod_name: String,
    pub pod_namespace: String,
    pub pod_ip: String,
    pub host_ip: String,
    /// Names, in the order of the spec: `PodContainer[i]`.
    pub containers: Vec<String>,
    /// Names of the containers that the operation changes: `ModifiedContainer[i]`.
    pub modified: Vec<String>,
}

impl Injected {
    fn list(&self) -> Vec<HookArg> {
        let single = [
            ("PodName", &self.pod_name),
            ("PodNamespace", &self.pod_namespace),
            ("PodIP", &self.pod_ip),
            ("HostIP", &self.host_ip),
        ];
        let single = single.into_iter().map(|(name, value)| (name.to_owned(), value));
        let indexed = |name: &'static str, values: &'_ [String]| {
            (0..values.len()).map(move |index| format!("{name}[{index}]")).collect::<Vec<_>>()
        };
        let containers = indexed("PodContainer", &self.containers).into_iter().zip(&self.containers);
        let modified = indexed("ModifiedContainer", &self.modified).into_iter().zip(&self.modified);
        single
            .chain(containers)
            .chain(modified)
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| HookArg { name, value: value.clone() })
            .collect()
    }
}

/// Names of the arguments that have no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} not resolved: give a value in the hook's `args` or in the HookTemplate", names(.0))]
pub struct Unresolved(pub Vec<String>);

fn names(missing: &[String]) -> String {
    let list: Vec<_> = missing.iter().map(|name| format!("args.{name}")).collect();
    format!("{} {}", list.join(", "), if list.len() == 1 { "was" } else { "were" })
}

/// Names whose values come only from the pod if there is a pod, even if the pod does not have that address yet.
const OF_POD: [&str; 4] = ["PodName", "PodNamespace", "PodIP", "HostIP"];

/// Merges the arguments: a given value overrides a declared one, an injected value overrides both. An undeclared
/// argument is dropped, unless its name contains one that the pod supplies.
pub fn resolve(
    declared: &[Argument],
    given: &[HookArg],
    injected: Option<&Injected>,
) -> Result<Vec<Argument>, Unresolved> {
    let mut args = declared.to_vec();
    let is_pods = |name: &str| injected.is_some() && OF_POD.contains(&name);
    for HookArg { name, value } in given
        .iter()
        .filter(|arg| !is_pods(&arg.name))
        .cloned()
        .chain(injected.map(Injected::list).unwrap_or_default())
    {
        match args.iter_mut().find(|arg| arg.name == name) {
            Some(arg) => arg.value = Some(value),
            None if INJECTED.iter().any(|injected| name.contains(injected)) => {
                args.push(Argument { name, value: Some(value) });
            }
            None => {}
        }
    }
    let missing: Vec<_> = args.iter().filter(|arg| arg.value.is_none()).map(|arg| arg.name.clone()).collect();
    if missing.is_empty() { Ok(args) } else { Err(Unresolved(missing)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(list: &[(&str, Option<&str>)]) -> Vec<Argument> {
        list.iter()
            .map(|(name, value)| Argument { name: (*name).to_owned(), value: value.map(str::to_owned) })
            .collect()
    }

    fn given(list: &[(&str, &str)]) -> Vec<HookArg> {
        list.iter().map(|(name, value)| HookArg { name: (*name).into(), value: (*value).into() }).collect()
    }

    fn pod() -> Injected {
        Injected {
            pod_name: "web-0".into(),
            pod_namespace: "shop".into(),
            pod_ip: "10.0.0.7".into(),
            host_ip: String::new(),
            containers: vec!["app".into(), "side".into()],
            modified: vec!["side".into()],
        }
    }

    fn formatted(args: &[Argument]) -> Vec<String> {
        args.iter().map(|arg| format!("{}={}", arg.name, arg.value.as_deref().unwrap())).collect()
    }

    #[test]
    fn the_pod_overrides_the_caller_and_the_caller_overrides_the_template() {
        let template = declared(&[("service-name", Some("a")), ("PodIP", None), ("kept", Some("k"))]);
        let caller =
            given(&[("service-name", "b"), ("PodIP", "1.2.3.4"), ("dropped", "x"), ("MyPodName", "y")]);
        let args = resolve(&template, &caller, Some(&pod())).unwrap();
        assert_eq!(
            formatted(&args),
            [
                "service-name=b",
                "PodIP=10.0.0.7",
                "kept=k",
                "MyPodName=y",
                "PodName=web-0",
                "PodNamespace=shop",
                "PodContainer[0]=app",
                "PodContainer[1]=side",
                "ModifiedContainer[0]=side",
            ]
        );
    }

    #[test]
    fn what_is_the_pods_to_say_is_not_the_callers() {
        let template = declared(&[("PodIP", None)]);
        let unaddressed = Injected { pod_ip: String::new(), ..pod() };
        let error = resolve(&template, &given(&[("PodIP", "10.9.9.9")]), Some(&unaddressed)).unwrap_err();
        assert!(error.to_string().starts_with("args.PodIP was not resolved"), "{error}");
        assert!(resolve(&template, &given(&[("PodIP", "10.9.9.9")]), None).is_ok());
    }

    #[test]
    fn an_argument_without_a_value_is_named() {
        let template = declared(&[("HostIP", None), ("a", Some("")), ("b", None)]);
        let one = resolve(&template, &given(&[("b", "x")]), Some(&pod())).unwrap_err();
        assert!(one.to_string().starts_with("args.HostIP was not resolved"), "{one}");
        let two = resolve(&template, &[], None).unwrap_err();
        assert!(two.to_string().starts_with("args.HostIP, args.b were not resolved"), "{two}");
    }
}
