//! What a container really runs with, where its configuration tells less: environment and limits, from the OCI
//! specification that the runtime shows beside the configuration.
//!
//! Must not take over anything else: what the runtime itself added would be added twice.

use std::collections::HashMap;

use serde::Deserialize;

use super::NotCloneable;
use crate::cri::proto::v1;

/// The few fields of an OCI specification that are looked at. Unknown ones belong there.
#[derive(Default, Deserialize)]
pub(super) struct RuntimeSpec {
    process: Option<Process>,
    linux: Option<Linux>,
}

#[derive(Deserialize)]
struct Process {
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Linux {
    resources: Option<Resources>,
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

/// Gives every variable the value that the process was given: some runtimes print the one of the configuration in
/// base64 and some do not, which cannot be told from the text.
pub(super) fn environment(envs: &mut [v1::KeyValue], spec: &RuntimeSpec) -> Result<(), NotCloneable> {
    let given = spec.process.as_ref().and_then(|process| process.env.as_deref()).unwrap_or_default();
    let keys: Vec<_> = envs.iter().map(|env| env.key.clone()).collect();
    for (index, env) in envs.iter_mut().enumerate() {
        // Names may come twice. The last one counts, and is all that is left of them in some runtimes.
        let later = keys[index + 1..].iter().filter(|key| **key == env.key).count();
        let values =
            || given.iter().rev().filter_map(|entry| entry.strip_prefix(&env.key)?.strip_prefix('='));
        let value = values()
            .nth(later)
            .or_else(|| values().next())
            // What stands for bytes that were no text: they are lost.
            .filter(|value| !value.contains('\u{fffd}'))
            .ok_or_else(|| NotCloneable::Environment(env.key.clone()))?;
        env.value = value.as_bytes().to_vec();
    }
    Ok(())
}

/// Takes over limits that were changed since the creation, by a resize or a CPU manager.
///
/// Zero and empty are "not told". The score for the OOM killer stays what was asked for: the runtime adjusts it.
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
    // What the specification says is what the process was started with, and counts more.
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
    // Where no swap limit was asked for, the runtime makes it the memory limit, and will do so again.
    if before.memory_swap_limit_in_bytes == 0 && now.memory_swap_limit_in_bytes == now.memory_limit_in_bytes {
        now.memory_swap_limit_in_bytes = 0;
    }
    // What was absent stays absent, unless there is something to say.
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
