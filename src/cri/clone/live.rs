//! Reads what a container really runs with, where its configuration is less precise: environment, limits and SELinux
//! level, from the OCI specification that the runtime reports beside the configuration.
//!
//! Must not copy anything else: additions by the runtime itself would be added twice.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::NotCloneable;
use crate::cri::proto::v1;

/// The few fields of an OCI specification that are read. Unknown fields are expected and ignored.
#[derive(Default, Deserialize)]
pub(super) struct RuntimeSpec {
    process: Option<Process>,
    linux: Option<Linux>,
}

#[derive(Deserialize)]
struct Process {
    env: Option<Environment>,
    #[serde(rename = "selinuxLabel")]
    selinux_label: Option<String>,
}

/// The variables of a process, each followed by a zero byte, which no variable contains. An image can set millions of
/// short ones, and a `String` for each would take many times the memory of the answer.
struct Environment(String);

#[derive(Deserialize)]
struct Linux {
    resources: Option<Resources>,
    #[serde(rename = "mountLabel")]
    mount_label: Option<String>,
}

#[derive(Default, Deserialize)]
struct Resources {
    memory: Option<Memory>,
    cpu: Option<Cpu>,
    unified: Option<HashMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Memory {
    limit: Option<i64>,
    swap: Option<i64>,
}

#[derive(Default, Deserialize)]
struct Cpu {
    shares: Option<i64>,
    quota: Option<i64>,
    period: Option<i64>,
    cpus: Option<String>,
    mems: Option<String>,
}

/// Gives every variable the value that the process has received. Some runtimes print the configured value in base64
/// and some do not, and the text does not show which.
pub(super) fn environment(envs: &mut [v1::KeyValue], spec: &RuntimeSpec) -> Result<(), NotCloneable> {
    let given = spec.process.as_ref().and_then(|process| process.env.as_ref());
    let values = received(envs, given.map_or("", |given| given.0.as_str()))?;
    for (env, value) in envs.iter_mut().zip(values) {
        env.value = value.as_bytes().to_vec();
    }
    Ok(())
}

/// The value of each of `envs` in `given`, the text of an [`Environment`]. Takes linear time, because a pod can have
/// more than 100 000 variables.
fn received<'a>(envs: &[v1::KeyValue], given: &'a str) -> Result<Vec<&'a str>, NotCloneable> {
    // Per configured name: its values in `given`, in order, and how many of `envs` with that name are left.
    let mut names: HashMap<&str, (Vec<&'a str>, usize)> = HashMap::new();
    for env in envs {
        names.entry(env.key.as_str()).or_default().1 += 1;
    }
    for (name, value) in given.split_terminator('\0').filter_map(|entry| entry.split_once('=')) {
        if let Some((values, _)) = names.get_mut(name) {
            values.push(value);
        }
    }
    let value = |env: &v1::KeyValue| {
        let value = names.get_mut(env.key.as_str()).and_then(|(values, left)| {
            *left -= 1;
            // Names may occur twice. The last one counts, and some runtimes report only that one.
            values.iter().nth_back(*left).or(values.last()).copied()
        });
        value
            // The replacement character stands for bytes that were not valid UTF-8: the value is lost.
            .filter(|value| !value.contains('\u{fffd}'))
            .ok_or_else(|| NotCloneable::Environment(env.key.clone()))
    };
    envs.iter().map(value).collect()
}

/// Gives SELinux options without a level the level that the container has. For such options containerd chooses another
/// level for each container, and gives it to the volumes of the pod when it creates the container, although the one that
/// has them still runs (`buildLinuxSpec` and `WithMounts`; go-selinux, `InitLabels`).
pub(super) fn selinux_level(
    config: &mut v1::ContainerConfig,
    spec: &RuntimeSpec,
) -> Result<(), NotCloneable> {
    let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    let Some(options) = security.and_then(|security| security.selinux_options.as_mut()) else {
        return Ok(());
    };
    // Without any option the runtime copies the label of the sandbox.
    let is_of_sandbox = options.user.is_empty() && options.role.is_empty() && options.r#type.is_empty();
    if is_of_sandbox || !options.level.is_empty() {
        return Ok(());
    }
    let process = spec.process.as_ref().ok_or(NotCloneable::SelinuxLevel)?;
    // A privileged process has no label, and its volumes have one.
    let volumes = spec.linux.as_ref().and_then(|linux| linux.mount_label.as_ref());
    let labels = [process.selinux_label.as_ref(), volumes];
    let Some(label) = labels.into_iter().flatten().find(|label| !label.is_empty()) else {
        // The node does not use SELinux.
        return Ok(());
    };
    // user:role:type:level, or without the level where the policy has none.
    match label.splitn(4, ':').collect::<Vec<_>>().as_slice() {
        [_, _, _] => Ok(()),
        [_, _, _, level] if !level.is_empty() => {
            (*level).clone_into(&mut options.level);
            Ok(())
        }
        _ => Err(NotCloneable::SelinuxLevel),
    }
}

/// Copies limits that have changed since the creation, by a resize or a CPU manager.
///
/// Zero and empty mean "not reported". The OOM score remains the configured one, because the runtime adjusts it.
pub(super) fn resources(config: &mut v1::ContainerConfig, spec: &RuntimeSpec, status: &v1::ContainerStatus) {
    let before = config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
    let mut now = before.clone();
    if let Some(reported) = status.resources.as_ref().and_then(|resources| resources.linux.as_ref()) {
        number(&mut now.cpu_shares, reported.cpu_shares);
        number(&mut now.cpu_quota, reported.cpu_quota);
        number(&mut now.cpu_period, reported.cpu_period);
        text(&mut now.cpuset_cpus, &reported.cpuset_cpus);
        text(&mut now.cpuset_mems, &reported.cpuset_mems);
        number(&mut now.memory_limit_in_bytes, reported.memory_limit_in_bytes);
        number(&mut now.memory_swap_limit_in_bytes, reported.memory_swap_limit_in_bytes);
    }
    // The process was started with the values of the OCI specification, so they take precedence.
    if let Some(reported) = spec.linux.as_ref().and_then(|linux| linux.resources.as_ref()) {
        if let Some(cpu) = &reported.cpu {
            number(&mut now.cpu_shares, cpu.shares.unwrap_or_default());
            number(&mut now.cpu_quota, cpu.quota.unwrap_or_default());
            number(&mut now.cpu_period, cpu.period.unwrap_or_default());
            text(&mut now.cpuset_cpus, cpu.cpus.as_deref().unwrap_or_default());
            text(&mut now.cpuset_mems, cpu.mems.as_deref().unwrap_or_default());
        }
        if let Some(memory) = &reported.memory {
            number(&mut now.memory_limit_in_bytes, memory.limit.unwrap_or_default());
            number(&mut now.memory_swap_limit_in_bytes, memory.swap.unwrap_or_default());
        }
        for (file, asked) in &mut now.unified {
            text(
                asked,
                reported.unified.as_ref().and_then(|unified| unified.get(file)).map_or("", |text| text),
            );
        }
    }
    // If no swap limit was configured, the runtime sets it to the memory limit, and will do so again.
    if before.memory_swap_limit_in_bytes == 0 && now.memory_swap_limit_in_bytes == now.memory_limit_in_bytes {
        now.memory_swap_limit_in_bytes = 0;
    }
    // An absent field stays absent unless there is a value to set.
    if now != before {
        config.linux.get_or_insert_default().resources = Some(now);
    }
}

fn number(asked: &mut i64, reported: i64) {
    if reported != 0 {
        *asked = reported;
    }
}

fn text(asked: &mut String, reported: &str) {
    if !reported.is_empty() {
        reported.clone_into(asked);
    }
}

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Variables;
        impl<'de> Visitor<'de> for Variables {
            type Value = Environment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut variables: S) -> Result<Environment, S::Error> {
                let mut text = String::new();
                while let Some(variable) = variables.next_element::<String>()? {
                    if variable.contains('\0') {
                        return Err(S::Error::custom("a variable contains a zero byte"));
                    }
                    text.push_str(&variable);
                    text.push('\0');
                }
                Ok(Environment(text))
            }
        }
        input.deserialize_seq(Variables)
    }
}
