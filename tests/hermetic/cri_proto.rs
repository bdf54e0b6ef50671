//! Compares `proto/runtime.proto` with an independent copy of the interface.
//! It must not download that copy (`tests/lab/cri-reference.sh` does) and must not pass without it: a field with
//! a wrong number is lost silently, on a user's node.

use std::path::{Path, PathBuf};

use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

const OURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/runtime.proto");

/// Set by `make`: the path of the copy.
const REFERENCE: &str = "INPLACE_CRI_REFERENCE";

#[test]
fn ours_is_the_interface() {
    let differences = differences(&pool(Path::new(OURS)), &pool(&reference()));
    assert!(differences.is_empty(), "proto/runtime.proto:\n  {}", differences.join("\n  "));
}

#[test]
fn ours_has_what_clones_are_made_of() {
    let ours = pool(Path::new(OURS));
    for root in ["runtime.v1.ContainerConfig", "runtime.v1.PodSandboxConfig"] {
        assert!(ours.get_message_by_name(root).is_some(), "{root}");
    }
    for (service, calls) in [("runtime.v1.RuntimeService", 16), ("runtime.v1.ImageService", 5)] {
        assert_eq!(ours.get_service_by_name(service).unwrap().methods().len(), calls, "{service}");
    }
}

fn reference() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the environment names the place of the reference")]
    let path = std::env::var_os(REFERENCE).filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| {
        panic!(
            "{REFERENCE} is not set: run: make setup\n\
             or: {REFERENCE}=$(tests/lab/cri-reference.sh DIR) cargo test --test hermetic"
        )
    });
    PathBuf::from(path)
}

fn pool(file: &Path) -> DescriptorPool {
    let mut compiler = protox::Compiler::new([file.parent().unwrap()]).unwrap();
    compiler.open_file(file).unwrap_or_else(|error| panic!("{}: {error:?}", file.display()));
    compiler.descriptor_pool()
}

/// The differences from the reference, and the missing members of messages and enums that `ours` has. Messages,
/// enums and calls may be left out completely; fields may not, because then the message would be incomplete.
fn differences(ours: &DescriptorPool, reference: &DescriptorPool) -> Vec<String> {
    let mut found = Vec::new();
    for message in ours.all_messages() {
        match reference.get_message_by_name(message.full_name()) {
            Some(other) => fields(&message, &other, &mut found),
            None => found.push(format!("message {} is not in the reference", message.full_name())),
        }
    }
    for values in ours.all_enums() {
        match reference.get_enum_by_name(values.full_name()) {
            Some(other) => compare(values.full_name(), &numbered(&values), &numbered(&other), &mut found),
            None => found.push(format!("enum {} is not in the reference", values.full_name())),
        }
    }
    services(ours, reference, &mut found);
    found
}

fn fields(ours: &MessageDescriptor, reference: &MessageDescriptor, found: &mut Vec<String>) {
    let signatures = |message: &MessageDescriptor| -> Vec<_> {
        message.fields().map(|field| (field.name().to_owned(), signature(&field))).collect()
    };
    compare(ours.full_name(), &signatures(ours), &signatures(reference), found);
}

/// The properties of a field that matter on the wire. A map's entry is compared as a message of its own; packed
/// or not is left out, because every reader accepts both.
fn signature(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => format!("message {}", message.full_name()),
        Kind::Enum(values) => format!("enum {}", values.full_name()),
        scalar => format!("{scalar:?}"),
    };
    format!(
        "{:?} {kind} = {} (map {}, presence {}, oneof {:?})",
        field.cardinality(),
        field.number(),
        field.is_map(),
        field.supports_presence(),
        field.containing_oneof().map(|oneof| oneof.name().to_owned()),
    )
}

fn numbered(values: &EnumDescriptor) -> Vec<(String, String)> {
    values.values().map(|value| (value.name().to_owned(), value.number().to_string())).collect()
}

/// Compares two lists of members: the same names, and the same properties of each.
fn compare(owner: &str, ours: &[(String, String)], reference: &[(String, String)], found: &mut Vec<String>) {
    for (name, here) in ours {
        match reference.iter().find(|(other, _)| other == name) {
            Some((_, there)) if there == here => {}
            Some((_, there)) => found.push(format!("{owner}.{name} is {here}, in the reference {there}")),
            None => found.push(format!("{owner}.{name} is not in the reference")),
        }
    }
    for (name, there) in reference {
        if !ours.iter().any(|(other, _)| other == name) {
            found.push(format!("{owner}.{name} is missing, in the reference {there}"));
        }
    }
}

fn services(ours: &DescriptorPool, reference: &DescriptorPool, found: &mut Vec<String>) {
    for service in ours.services() {
        let Some(other) = reference.get_service_by_name(service.full_name()) else {
            found.push(format!("service {} is not in the reference", service.full_name()));
            continue;
        };
        for call in service.methods() {
            let describe = |call: &prost_reflect::MethodDescriptor| {
                format!(
                    "{}({} {}) returns ({} {})",
                    call.full_name(),
                    call.is_client_streaming(),
                    call.input().full_name(),
                    call.is_server_streaming(),
                    call.output().full_name()
                )
            };
            match other.methods().find(|there| there.name() == call.name()) {
                Some(there) if describe(&there) == describe(&call) => {}
                Some(there) => {
                    found.push(format!("{}, in the reference {}", describe(&call), describe(&there)));
                }
                None => found.push(format!("call {} is not in the reference", call.full_name())),
            }
        }
    }
}

/// Tests of the comparison itself: what it must find, and what it must accept.
mod comparison {
    use super::{differences, pool};

    const REFERENCE: &str = "
        message Thing {
            string name = 1;
            repeated int64 sizes = 2;
            map<string, string> labels = 3;
            State state = 4;
            Part part = 5;
        }
        message Part { uint32 id = 1; }
        message Unused { string x = 1; }
        enum State { OFF = 0; ON = 1; }
        service Shop {
            rpc Buy(Thing) returns (Part);
            rpc Watch(Thing) returns (stream Part);
        }";

    /// The differences when `ours` is the reference with one piece of its text replaced.
    fn found(piece: &str, instead: &str) -> Vec<String> {
        assert!(REFERENCE.contains(piece), "{piece}");
        let folder = tempfile::tempdir().unwrap();
        let parse = |name: &str, body: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("syntax = \"proto3\"; package tiny; {body}")).unwrap();
            pool(&path)
        };
        differences(
            &parse("ours.proto", &REFERENCE.replacen(piece, instead, 1)),
            &parse("reference.proto", REFERENCE),
        )
    }

    #[test]
    fn passes_what_is_the_same_or_not_used() {
        assert_eq!(found("string name", "string  name"), [""; 0]);
        assert_eq!(found("message Unused { string x = 1; }", ""), [""; 0]);
        assert_eq!(found("rpc Watch(Thing) returns (stream Part);", ""), [""; 0]);
    }

    #[test]
    fn sees_every_kind_of_difference() {
        for (piece, instead, member) in [
            ("string name = 1", "string name = 9", "tiny.Thing.name is "),
            ("string name = 1", "bytes name = 1", "tiny.Thing.name is "),
            ("string name = 1", "optional string name = 1", "tiny.Thing.name is "),
            ("string name = 1", "oneof o { string name = 1; }", "tiny.Thing.name is "),
            ("string name = 1;", "", "tiny.Thing.name is missing"),
            ("string name", "string title", "tiny.Thing.title is not in the reference"),
            ("repeated int64 sizes", "int64 sizes", "tiny.Thing.sizes is "),
            ("repeated int64 sizes", "repeated uint64 sizes", "tiny.Thing.sizes is "),
            ("map<string, string>", "map<string, bytes>", "tiny.Thing.LabelsEntry.value is "),
            ("map<string, string>", "repeated Part", "tiny.Thing.labels is "),
            ("State state", "Part state", "tiny.Thing.state is "),
            ("uint32 id = 1;", "", "tiny.Part.id is missing"),
            ("ON = 1", "ON = 2", "tiny.State.ON is 2"),
            ("ON = 1;", "", "tiny.State.ON is missing"),
            ("ON = 1", "BLUE = 1", "tiny.State.BLUE is not in the reference"),
            ("message Unused", "message Extra", "message tiny.Extra is not in the reference"),
            ("rpc Buy(Thing)", "rpc Buy(Part)", "tiny.Shop.Buy("),
            ("(stream Part)", "(Part)", "tiny.Shop.Watch("),
            ("rpc Buy", "rpc Steal", "call tiny.Shop.Steal is not in the reference"),
            ("service Shop", "service Mall", "service tiny.Mall is not in the reference"),
        ] {
            let found = found(piece, instead);
            assert!(found.iter().any(|line| line.starts_with(member)), "{instead:?}: {found:?}");
        }
    }
}
