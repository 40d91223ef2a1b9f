//! Rich types: the member `value_metadata_tree` of `_METADATA`, a JSON string that mirrors the
//! tree.
//!
//! ```text
//! dict         {"key": …, …}
//! list         […, …]
//! tuple        {"category": "custom", "clazz": "tuple", "entries": […]}
//! named tuple  {"category": "namedtuple", "module": "optax", "clazz": "ScaleByAdamState",
//!               "entries": [{"key": "count", "value": …}]}
//! leaf         {"category": "custom", "clazz": "ValueMetadataEntry",
//!               "data": {"value_type": "jax.Array", "skip_deserialize": false, "write_shape": [3, 2]}}
//! ```
//!
//! Only here Orbax distinguishes tuples from lists and named tuples from dicts. A user's dict with
//! the same members `category` and `clazz` looks like such a node. This ambiguity comes from Orbax.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

use super::entry::ValueMetadata;
use regrow_base::error::{Error, ErrorKind, Result};

/// The most containers inside each other: a named tuple takes three levels of JSON, and JSON
/// readers stop at 128.
pub const RICH_DEPTH_MAX: usize = 40;

/// A node of the mirrored tree, no deeper than [`RICH_DEPTH_MAX`].
#[derive(Debug, Clone, PartialEq)]
pub enum RichNode {
    /// A leaf, `None` or an empty container.
    Leaf(ValueMetadata),
    /// A dict, or any node with attributes that is not a named tuple.
    Dict(Vec<(String, RichNode)>),
    /// A list.
    List(Vec<RichNode>),
    /// A tuple.
    Tuple(Vec<RichNode>),
    /// A named tuple; fields in their order.
    NamedTuple {
        /// The module of its type: text, never imported.
        module: String,
        /// The name of its type.
        class: String,
        /// Field names and values.
        entries: Vec<(String, RichNode)>,
    },
}

impl RichNode {
    /// Reads a parsed document.
    ///
    /// # Errors
    /// `Corrupt` for a value in none of the five forms; `Limit` beyond [`RICH_DEPTH_MAX`].
    pub fn from_json(value: &Value) -> Result<Self> {
        read_node(value, 0)
    }

    /// The children by the text of their keys. In a sequence, the key of a child is its position.
    pub fn children(&self) -> HashMap<Cow<'_, str>, &Self> {
        match self {
            Self::Leaf(_) => HashMap::new(),
            Self::Dict(entries) | Self::NamedTuple { entries, .. } => {
                entries.iter().map(|(key, node)| (Cow::Borrowed(key.as_str()), node)).collect()
            }
            Self::List(items) | Self::Tuple(items) => {
                items.iter().enumerate().map(|(i, node)| (Cow::Owned(i.to_string()), node)).collect()
            }
        }
    }

    /// The qualified name of a named tuple's type.
    pub fn type_name(&self) -> Option<String> {
        match self {
            Self::NamedTuple { module, class, .. } if module.is_empty() => Some(class.clone()),
            Self::NamedTuple { module, class, .. } => Some(format!("{module}.{class}")),
            _ => None,
        }
    }
}

fn read_node(value: &Value, depth: usize) -> Result<RichNode> {
    if depth > RICH_DEPTH_MAX {
        return Err(Error::new(
            ErrorKind::Limit,
            format!("value_metadata_tree is nested deeper than {RICH_DEPTH_MAX} containers"),
        ));
    }
    match value {
        Value::Array(items) => Ok(RichNode::List(read_items(items, depth)?)),
        Value::Object(members) => match category(members) {
            Some(("custom", "tuple")) => {
                let items = members.get("entries").and_then(Value::as_array).ok_or_else(bad_node)?;
                Ok(RichNode::Tuple(read_items(items, depth)?))
            }
            Some(("custom", "ValueMetadataEntry")) => {
                let data = members.get("data").cloned().ok_or_else(bad_node)?;
                let leaf = serde_json::from_value(data).map_err(|_| bad_node())?;
                Ok(RichNode::Leaf(leaf))
            }
            Some(("namedtuple", class)) => {
                let module = members.get("module").and_then(Value::as_str).unwrap_or_default();
                let items = members.get("entries").and_then(Value::as_array).ok_or_else(bad_node)?;
                let mut entries = Vec::with_capacity(items.len());
                for item in items {
                    let key = item.get("key").and_then(Value::as_str).ok_or_else(bad_node)?;
                    let value = item.get("value").ok_or_else(bad_node)?;
                    entries.push((key.to_owned(), read_node(value, depth + 1)?));
                }
                Ok(RichNode::NamedTuple { module: module.to_owned(), class: class.to_owned(), entries })
            }
            _ => {
                let mut entries = Vec::with_capacity(members.len());
                for (key, value) in members {
                    entries.push((key.clone(), read_node(value, depth + 1)?));
                }
                Ok(RichNode::Dict(entries))
            }
        },
        _ => Err(bad_node()),
    }
}

fn read_items(items: &[Value], depth: usize) -> Result<Vec<RichNode>> {
    items.iter().map(|item| read_node(item, depth + 1)).collect()
}

fn category(members: &Map<String, Value>) -> Option<(&str, &str)> {
    Some((members.get("category")?.as_str()?, members.get("clazz")?.as_str()?))
}

fn bad_node() -> Error {
    Error::corrupt("value_metadata_tree has an invalid node")
        .expected("null, or {\"category\": ..., \"clazz\": ...} with its children", "something else")
}

impl Serialize for RichNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Leaf(value) => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("category", "custom")?;
                map.serialize_entry("clazz", "ValueMetadataEntry")?;
                map.serialize_entry("data", value)?;
                map.end()
            }
            Self::Dict(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, node) in entries {
                    map.serialize_entry(key, node)?;
                }
                map.end()
            }
            Self::List(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Self::Tuple(items) => {
                let mut map = serializer.serialize_map(Some(3))?;
                map.serialize_entry("category", "custom")?;
                map.serialize_entry("clazz", "tuple")?;
                map.serialize_entry("entries", items)?;
                map.end()
            }
            Self::NamedTuple { module, class, entries } => {
                let mut map = serializer.serialize_map(Some(4))?;
                map.serialize_entry("category", "namedtuple")?;
                map.serialize_entry("module", module)?;
                map.serialize_entry("clazz", class)?;
                let fields: Vec<Field<'_>> =
                    entries.iter().map(|(key, value)| Field { key, value }).collect();
                map.serialize_entry("entries", &fields)?;
                map.end()
            }
        }
    }
}

/// One field of a named tuple.
#[derive(serde::Serialize)]
struct Field<'a> {
    key: &'a str,
    value: &'a RichNode,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn leaf(value_type: &str) -> RichNode {
        RichNode::Leaf(ValueMetadata {
            value_type: value_type.to_owned(),
            skip_deserialize: false,
            write_shape: None,
        })
    }

    #[test]
    fn reads_what_it_writes() {
        let node = RichNode::Dict(vec![
            ("a".to_owned(), RichNode::Tuple(vec![leaf("scalar"), RichNode::List(vec![leaf("string")])])),
            (
                "n".to_owned(),
                RichNode::NamedTuple {
                    module: "m.n".to_owned(),
                    class: "C".to_owned(),
                    entries: vec![("x".to_owned(), leaf("np.ndarray"))],
                },
            ),
        ]);
        let value = serde_json::to_value(&node).unwrap();
        assert_eq!(RichNode::from_json(&value).unwrap(), node);
        assert_eq!(node.children()["n"].type_name().unwrap(), "m.n.C");
        assert_eq!(node.children()["a"].children()["1"].children()["0"], &leaf("string"));
        assert_eq!(node.children()["a"].children().len(), 2);
    }

    #[test]
    fn refuses_other_things() {
        for value in [json!(1), json!({"category": "custom", "clazz": "tuple"}), json!([null])] {
            assert_eq!(RichNode::from_json(&value).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let deep = (0..60).fold(json!({}), |inner, _| json!([inner]));
        assert_eq!(RichNode::from_json(&deep).unwrap_err().kind(), ErrorKind::Limit);
    }
}
