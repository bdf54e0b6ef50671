//! Compiles the CRI interface from `proto/` into the build folder, without protoc, and refuses a release build
//! with kill points.
//! It must not download anything, write outside the build folder, or name messages other than the two roots of
//! what is read from JSON.
#![expect(clippy::disallowed_methods, reason = "a build script is told its settings by the environment")]

use std::collections::BTreeSet;
use std::env;
use std::error::Error;

use protox::prost_reflect::{DescriptorPool, Kind, MessageDescriptor};

const INTERFACE: &str = "runtime.proto";

/// The messages that containerd prints as JSON: these two, and every message that they contain.
const PRINTED: [&str; 2] = ["runtime.v1.ContainerConfig", "runtime.v1.PodSandboxConfig"];

/// Messages that contain secrets: their `Debug` is written by hand in src/cri/proto.rs.
const SECRET: [&str; 4] = [
    "runtime.v1.KeyValue",
    "runtime.v1.AuthConfig",
    "runtime.v1.ContainerStatusResponse",
    "runtime.v1.PodSandboxStatusResponse",
];

/// An unknown field is an error: a clone made without it would differ from its original.
const STRICT: &str = "#[derive(serde::Deserialize)] #[serde(default, deny_unknown_fields)]";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=proto");

    // A static program relocates itself. The packed relocation table has 30 KB, the plain one 1.4 MB, which every
    // agent would hold in memory.
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && env::var_os("CARGO_FEATURE_FAULTS").is_some()
    {
        println!(
            "cargo::error=the feature `faults` holds kill points for the crash tests and is never part of a release: build without it, or without --release"
        );
        return Ok(());
    }
    interface()
}

/// Generates messages, clients and servers. The servers are for the tests.
fn interface() -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true).open_file(INTERFACE)?;
    let pool = compiler.descriptor_pool();

    let mut builder = tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .emit_rerun_if_changed(false)
        .skip_debug(SECRET)
        .field_attribute(
            "runtime.v1.KeyValue.value",
            "#[serde(deserialize_with = \"crate::cri::proto::raw_text\")]",
        );
    for message in printed(&pool)? {
        builder = builder.message_attribute(message.full_name(), STRICT);
        // The generated Rust names are in snake case; the names in the interface are not always.
        for field in message.fields().filter(|field| field.name().contains(|c: char| c.is_uppercase())) {
            let rename = format!("#[serde(rename = {:?})]", field.name());
            builder = builder.field_attribute(field.full_name(), rename);
        }
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// The messages of [`PRINTED`] and all messages that they contain, each once.
fn printed(pool: &DescriptorPool) -> Result<Vec<MessageDescriptor>, Box<dyn Error>> {
    let mut todo = Vec::new();
    for root in PRINTED {
        todo.push(pool.get_message_by_name(root).ok_or_else(|| format!("{INTERFACE} lacks {root}"))?);
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(message) = todo.pop() {
        if !seen.insert(message.full_name().to_owned()) {
            continue;
        }
        todo.extend(message.fields().filter_map(|field| match field.kind() {
            Kind::Message(below) => Some(below),
            _ => None,
        }));
        // A map's entry is a message of the interface, but not of the generated code.
        if !message.is_map_entry() {
            found.push(message);
        }
    }
    Ok(found)
}
