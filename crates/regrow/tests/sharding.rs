//! How arrays lie on devices: against what Orbax wrote and what JAX says.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};

use regrow::sharding::Sharding;
use serde_json::{Map, Value};

/// Every `_sharding` below a folder.
fn sharding_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sharding_files(&entry, found);
        } else if entry.ends_with("_sharding") {
            found.push(entry);
        }
    }
}

/// JSON with Python's spaces, of text without any outside of its own strings.
fn python_spaces(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python_spaces).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), python_spaces(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[test]
fn every_entry_that_orbax_wrote_is_written_again_to_the_byte() {
    let mut files = Vec::new();
    sharding_files(&regrow_testkit::fixtures().join("orbax"), &mut files);
    assert!(files.len() > 40, "{}", files.len());
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for file in files {
        let entries: Map<String, Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for text in entries.values().map(|text| text.as_str().unwrap()).filter(|text| !text.is_empty()) {
            let sharding = Sharding::from_json(serde_json::from_str(text).unwrap());
            assert_eq!(python_spaces(&sharding.to_json()), text, "{}", file.display());
            *kinds.entry(sharding.type_name().to_owned()).or_default() += 1;
        }
    }
    let kinds: Vec<&str> = kinds.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["GSPMDSharding", "NamedSharding", "PositionalSharding", "SingleDeviceSharding"]);
}

#[test]
fn other_orders_unknown_members_and_nonsense_come_back_as_they_were() {
    for text in [
        r#"{"shape":[2],"sharding_type":"NamedSharding","axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"partition_spec":[["x"],[],null],"memory_kind":"device"}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2,2],"axis_names":["x","y"],"partition_spec":[],"device_mesh":{"mesh":[{"id":0},{"id":3}]}}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2],"axis_names":["x"],"axis_types":["AxisType.New"],"partition_spec":["x"],"device_mesh":null}"#,
        r#"{"sharding_type":"NamedSharding","shape":[],"axis_names":[],"partition_spec":[],"device_mesh":{"mesh":{"id":7}}}"#,
        r#"{"sharding_type":"NamedSharding","shape":[1],"axis_names":["x"],"partition_spec":["x"],"device_mesh":{"mesh":[{"id":7,"kind":"TPU v4"}]}}"#,
        r#"{"sharding_type":"NamedSharding","shape":"2","axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"NamedSharding","shape":[2.5],"axis_names":["x"],"partition_spec":[5]}"#,
        r#"{"sharding_type":"CeilDivisionSharding","shape":[3],"axis_names":["x"],"partition_spec":["x"]}"#,
        r#"{"sharding_type":"SingleDeviceSharding","device_str":null}"#,
        r#"{"device_str":"cpu:0","sharding_type":"SingleDeviceSharding"}"#,
        r#"{"sharding_type":"PositionalSharding","memory_kind":"device","shape":[2]}"#,
        r#"{"sharding_type":"PositionalSharding","shape":[2],"memory_kind":null}"#,
        r#"{"sharding_type":5}"#,
        "null",
        r#"[1,{"id":2}]"#,
    ] {
        let sharding = Sharding::from_json(serde_json::from_str(text).unwrap());
        assert_eq!(sharding.to_json().to_string(), text);
        assert_eq!(Sharding::from_json(sharding.to_json()), sharding);
    }
}
