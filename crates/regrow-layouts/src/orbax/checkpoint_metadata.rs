//! `_CHECKPOINT_METADATA`: the items of a checkpoint with their handlers, the times of the save,
//! metrics, and the user's metadata.
//!
//! ```text
//! {"item_handlers": "….PyTreeCheckpointHandler",      one pytree; or {"item": "….Handler", …}; or null
//!  "metrics": {}, "performance_metrics": {},
//!  "init_timestamp_nsecs": 1795232473492190403,
//!  "commit_timestamp_nsecs": 1795232476484520609,     null until just before the commit
//!  "custom_metadata": {}}                             older: `custom`; includes unknown members
//! ```

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value};

use super::history::StepRecord;
use super::json_text;
use super::marker_files::COMMIT_SUCCESS_FILE;
use regrow_base::error::{Error, Result};
use regrow_zarr::zarr::json::brief;

/// Name of the file.
pub const CHECKPOINT_METADATA_FILE: &str = "_CHECKPOINT_METADATA";

/// The files that a checkpoint has once, independent of its handlers.
pub const OF_THE_WHOLE: &[&str] = &[CHECKPOINT_METADATA_FILE, COMMIT_SUCCESS_FILE];

/// The handler of a plain pytree, as Orbax names it.
pub const PYTREE_HANDLER: &str =
    "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler";

/// The handler of a pytree in the v1 API.
pub const V1_PYTREE_HANDLER: &str =
    "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler";

/// The handler of a pytree in one of the two APIs.
pub fn pytree_handler(v1: bool) -> &'static str {
    if v1 { V1_PYTREE_HANDLER } else { PYTREE_HANDLER }
}

/// The handler of a JSON document, and of metrics.
pub const JSON_HANDLER: &str = "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler";

/// The handler of a JSON document in the v1 API.
pub const V1_JSON_HANDLER: &str = "orbax.checkpoint.experimental.v1._src.handlers.json_handler.JsonHandler";

/// The handler of metrics in the v1 API.
pub const V1_METRICS_HANDLER: &str =
    "orbax.checkpoint.experimental.v1._src.handlers.json_handler.MetricsHandler";

/// The handlers of the checkpoint's items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ItemHandlers {
    /// The document lists no handlers.
    #[default]
    None,
    /// The checkpoint is itself one item, with this handler.
    One(String),
    /// Item name and handler name.
    Many(Vec<(String, Option<String>)>),
}

impl ItemHandlers {
    /// The handler of an item.
    pub fn of(&self, item: &str) -> Option<&str> {
        match self {
            Self::Many(items) => items.iter().find(|(name, _)| name == item)?.1.as_deref(),
            _ => None,
        }
    }
}

/// The parsed document.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CheckpointMetadata {
    /// The handlers of the checkpoint's items.
    pub item_handlers: ItemHandlers,
    /// Metrics given to save; Orbax keeps them in an item of their own and leaves this empty.
    pub metrics: Map<String, Value>,
    /// Performance metrics of the save: seconds and bytes, by name.
    pub performance_metrics: Map<String, Value>,
    /// When the save began, in nanoseconds since 1970.
    pub init_timestamp_nsecs: Option<u64>,
    /// When the save was committed.
    pub commit_timestamp_nsecs: Option<u64>,
    /// The user's own metadata.
    pub custom_metadata: Map<String, Value>,
    /// The record of a manager, which the document has among the user's metadata.
    pub step_record: Option<StepRecord>,
}

impl CheckpointMetadata {
    /// Parses the document. Members of an unexpected type count as absent: nothing depends on them.
    ///
    /// # Errors
    /// `Corrupt` with the offset if it is not a JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut members: Map<String, Value> = match json_text::parse(bytes)? {
            Value::Object(members) => members,
            other => {
                return Err(Error::corrupt("the checkpoint metadata is not a JSON object")
                    .at_byte(0)
                    .expected("{...}", brief(&other))
                    .help("copy _CHECKPOINT_METADATA again, or restore an earlier step"));
            }
        };
        let item_handlers = match members.remove("item_handlers") {
            Some(Value::String(handler)) => ItemHandlers::One(handler),
            Some(Value::Object(items)) => ItemHandlers::Many(
                items
                    .into_iter()
                    .map(|(name, handler)| (name, handler.as_str().map(str::to_owned)))
                    .collect(),
            ),
            _ => ItemHandlers::None,
        };
        let metrics = take_object(&mut members, "metrics");
        let performance_metrics = take_object(&mut members, "performance_metrics");
        let init_timestamp_nsecs = members.remove("init_timestamp_nsecs").and_then(|value| value.as_u64());
        let commit_timestamp_nsecs =
            members.remove("commit_timestamp_nsecs").and_then(|value| value.as_u64());
        let mut custom_metadata = take_object(&mut members, "custom");
        custom_metadata.append(&mut take_object(&mut members, "custom_metadata"));
        custom_metadata.append(&mut members);
        let step_record = StepRecord::take(&mut custom_metadata);
        Ok(Self {
            item_handlers,
            metrics,
            performance_metrics,
            init_timestamp_nsecs,
            commit_timestamp_nsecs,
            custom_metadata,
            step_record,
        })
    }

    /// The document as Orbax writes it.
    ///
    /// # Errors
    /// None for JSON values with string keys.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        json_text::to_python_json(self)
    }
}

fn take_object(members: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match members.remove(name) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

impl Serialize for CheckpointMetadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(6))?;
        match &self.item_handlers {
            ItemHandlers::None => map.serialize_entry("item_handlers", &())?,
            ItemHandlers::One(handler) => map.serialize_entry("item_handlers", handler)?,
            ItemHandlers::Many(items) => {
                let items: Map<String, Value> =
                    items.iter().map(|(name, handler)| (name.clone(), handler.clone().into())).collect();
                map.serialize_entry("item_handlers", &items)?;
            }
        }
        map.serialize_entry("metrics", &self.metrics)?;
        map.serialize_entry("performance_metrics", &self.performance_metrics)?;
        map.serialize_entry("init_timestamp_nsecs", &self.init_timestamp_nsecs)?;
        map.serialize_entry("commit_timestamp_nsecs", &self.commit_timestamp_nsecs)?;
        map.serialize_entry("custom_metadata", &self.custom_metadata)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_orbax_wrote() {
        for file in [
            "prng_keys/ckpt",
            "manager_composite/ckpt/ckpt_000200",
            "v1_default/ckpt",
            "manager_default/ckpt/10",
        ] {
            let path = regrow_testkit::fixtures().join("orbax").join(file).join(CHECKPOINT_METADATA_FILE);
            let bytes = std::fs::read(path).unwrap();
            let parsed = CheckpointMetadata::parse(&bytes).unwrap();
            assert_eq!(String::from_utf8(parsed.to_json().unwrap()), String::from_utf8(bytes), "{file}");
        }
    }

    #[test]
    fn takes_former_names_and_unknown_members() {
        let parsed =
            CheckpointMetadata::parse(br#"{"custom": {"a": 1}, "b": 2, "item_handlers": {"x": null}}"#)
                .unwrap();
        assert_eq!(Value::Object(parsed.custom_metadata), serde_json::json!({"a": 1, "b": 2}));
        assert_eq!(parsed.item_handlers, ItemHandlers::Many(vec![("x".to_owned(), None)]));
        assert_eq!(CheckpointMetadata::parse(b"{}").unwrap(), CheckpointMetadata::default());
        assert!(CheckpointMetadata::parse(b"[]").is_err());
    }
}
