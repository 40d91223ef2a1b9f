//! Shardings as JSON: the entries of Orbax' `_sharding`, and of the default layout's structure.
//!
//! ```text
//! {"sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["x", "y"],
//!  "axis_types": ["AxisType.Explicit", "AxisType.Explicit"],        since September 2025
//!  "partition_spec": ["x", ["x", "y"], null],                        may be shorter than the rank
//!  "device_mesh": {"mesh": [[{"id": 0}, {"id": 1}], …]}}            since September 2024; nested as the mesh
//! {"sharding_type": "SingleDeviceSharding", "device_str": "cpu:0"}
//! {"sharding_type": "PositionalSharding", "shape": [2, 2], "memory_kind": "device"}      July 2024 to April 2025
//! {"sharding_type": "CeilDivisionSharding", …}                      regrow's own: the members of NamedSharding
//! ```
//!
//! JAX has no text for `UNCONSTRAINED`, and Orbax cannot write it. regrow writes `{"unconstrained":
//! true}`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::kinds::{NamedSharding, PositionalSharding, Recorded, Sharding, SingleDeviceSharding, Split};
use super::mesh::{AxisType, Mesh};
use super::spec::{AxisSpec, PartitionSpec};
use crate::bytes::limits::RANK_MAX;

const NAMED: &str = "NamedSharding";
const CEIL_DIVISION: &str = "CeilDivisionSharding";
const SINGLE_DEVICE: &str = "SingleDeviceSharding";
const POSITIONAL: &str = "PositionalSharding";

/// The key for [`AxisSpec::Unconstrained`]. The object cannot be confused with a list of names or
/// null.
const UNCONSTRAINED: &str = "unconstrained";

impl Sharding {
    /// Makes a sharding from JSON. All content is kept: [`Sharding::to_json`] returns the same
    /// members in the same order.
    pub fn from_json(value: Value) -> Self {
        match parse(&value) {
            None => Self::Other(value),
            Some(sharding) if is_same_text(&sharding.to_json(), &value) => sharding,
            Some(mut sharding) => {
                let recorded = match &mut sharding {
                    Self::Named(named) => Some(&mut named.recorded),
                    Self::SingleDevice(single) => Some(&mut single.recorded),
                    Self::Positional(positional) => Some(&mut positional.recorded),
                    Self::Other(_) => None,
                };
                if let Some(recorded) = recorded {
                    *recorded = Recorded(Some(Box::new(value)));
                }
                sharding
            }
        }
    }

    /// The sharding as JSON. Its members have the order in which Orbax writes them, or the order in
    /// which they were read.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Named(NamedSharding { recorded: Recorded(Some(value)), .. })
            | Self::SingleDevice(SingleDeviceSharding { recorded: Recorded(Some(value)), .. })
            | Self::Positional(PositionalSharding { recorded: Recorded(Some(value)), .. }) => {
                (**value).clone()
            }
            Self::Named(named) => named_json(named),
            Self::SingleDevice(single) => {
                json!({"sharding_type": SINGLE_DEVICE, "device_str": &*single.device})
            }
            Self::Positional(positional) => {
                let mut members = Map::new();
                members.insert("sharding_type".into(), POSITIONAL.into());
                members.insert("shape".into(), positional.shape.clone().into());
                if let Some(kind) = &positional.memory_kind {
                    members.insert("memory_kind".into(), (&**kind).into());
                }
                Value::Object(members)
            }
            Self::Other(value) => value.clone(),
        }
    }

    /// The name of the kind in JSON; empty if it has none.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Named(named) => match named.split {
                Split::Even => NAMED,
                Split::CeilDivision => CEIL_DIVISION,
            },
            Self::SingleDevice(_) => SINGLE_DEVICE,
            Self::Positional(_) => POSITIONAL,
            Self::Other(value) => value.get("sharding_type").and_then(Value::as_str).unwrap_or(""),
        }
    }

    /// Whether Orbax knows the kind. False for the two additions of regrow: ceil division and an
    /// unconstrained axis. If a leaf has an unknown kind of sharding, Orbax cannot restore the
    /// leaf.
    pub fn is_known_to_orbax(&self) -> bool {
        let is_constrained = |named: &NamedSharding| !named.spec.0.contains(&AxisSpec::Unconstrained);
        match self {
            Self::Named(named) => named.split == Split::Even && is_constrained(named),
            _ => true,
        }
    }
}

/// The sharding for a JSON value; `None` if the kind is unknown, or a required member is not valid.
fn parse(value: &Value) -> Option<Sharding> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let split = match text("sharding_type")? {
        NAMED => Split::Even,
        CEIL_DIVISION => Split::CeilDivision,
        SINGLE_DEVICE => return text("device_str").map(|device| SingleDeviceSharding::new(device).into()),
        POSITIONAL => {
            return Some(Sharding::Positional(PositionalSharding {
                shape: numbers(value.get("shape")?)?,
                memory_kind: text("memory_kind").map(Arc::from),
                recorded: Recorded::default(),
            }));
        }
        _ => return None,
    };
    let axis_types = value.get("axis_types").filter(|types| !types.is_null());
    let device_mesh = value.get("device_mesh").filter(|mesh| !mesh.is_null());
    let mesh = Mesh {
        axis_names: names(value.get("axis_names")?)?,
        shape: numbers(value.get("shape")?)?,
        axis_types: match axis_types {
            Some(types) => Some(types.as_array()?.iter().map(axis_type).collect::<Option<_>>()?),
            None => None,
        },
        device_ids: match device_mesh {
            Some(mesh) => {
                let mut ids = Vec::new();
                push_ids(mesh.get("mesh")?, RANK_MAX, &mut ids)?;
                Some(ids)
            }
            None => None,
        },
    };
    let spec = value.get("partition_spec")?.as_array()?.iter().map(axis_spec).collect::<Option<_>>()?;
    Some(NamedSharding::new(mesh, PartitionSpec(spec)).with_split(split).into())
}

fn named_json(named: &NamedSharding) -> Value {
    let NamedSharding { mesh, spec, .. } = named;
    let mut members = Map::new();
    let name = if named.split == Split::Even { NAMED } else { CEIL_DIVISION };
    members.insert("sharding_type".into(), name.into());
    members.insert("shape".into(), mesh.shape.clone().into());
    members.insert("axis_names".into(), names_json(&mesh.axis_names));
    if let Some(types) = &mesh.axis_types {
        members.insert("axis_types".into(), types.iter().map(axis_type_json).collect());
    }
    members.insert("partition_spec".into(), spec.0.iter().map(axis_spec_json).collect());
    if let Some(ids) = &mesh.device_ids {
        members.insert("device_mesh".into(), json!({"mesh": nested(ids, &mesh.shape)}));
    }
    Value::Object(members)
}

/// Whether both values have the same text. Equality of JSON objects would ignore the order of
/// members.
fn is_same_text(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let is_same =
                |((a, x), (b, y)): ((&String, &Value), (&String, &Value))| a == b && is_same_text(x, y);
            a.len() == b.len() && a.iter().zip(b).all(is_same)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_text(a, b))
        }
        _ => a == b,
    }
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

fn names(value: &Value) -> Option<Vec<Arc<str>>> {
    value.as_array()?.iter().map(|name| name.as_str().map(Arc::from)).collect()
}

fn names_json(names: &[Arc<str>]) -> Value {
    names.iter().map(|name| &**name).collect()
}

fn axis_type(value: &Value) -> Option<AxisType> {
    Some(match value.as_str()? {
        "AxisType.Auto" => AxisType::Auto,
        "AxisType.Explicit" => AxisType::Explicit,
        "AxisType.Manual" => AxisType::Manual,
        other => AxisType::Other(other.into()),
    })
}

fn axis_type_json(axis_type: &AxisType) -> Value {
    match axis_type {
        AxisType::Auto => "AxisType.Auto".into(),
        AxisType::Explicit => "AxisType.Explicit".into(),
        AxisType::Manual => "AxisType.Manual".into(),
        AxisType::Other(name) => (&**name).into(),
    }
}

fn axis_spec(value: &Value) -> Option<AxisSpec> {
    match value {
        Value::Null => Some(AxisSpec::Whole),
        Value::String(name) => Some(AxisSpec::Axis(name.as_str().into())),
        Value::Array(_) => names(value).map(AxisSpec::Axes),
        Value::Object(members) => members.contains_key(UNCONSTRAINED).then_some(AxisSpec::Unconstrained),
        _ => None,
    }
}

fn axis_spec_json(axis: &AxisSpec) -> Value {
    match axis {
        AxisSpec::Whole => Value::Null,
        AxisSpec::Axis(name) => (&**name).into(),
        AxisSpec::Axes(names) => names_json(names),
        AxisSpec::Unconstrained => json!({UNCONSTRAINED: true}),
    }
}

/// Appends the ids in nested lists, at most `depth` deep, in C order.
fn push_ids(value: &Value, depth: usize, ids: &mut Vec<u64>) -> Option<()> {
    match value {
        Value::Array(inner) => inner.iter().try_for_each(|value| push_ids(value, depth.checked_sub(1)?, ids)),
        _ => value.get("id").and_then(Value::as_u64).map(|id| ids.push(id)),
    }
}

/// The ids in nested lists of this shape. If the number of ids does not match the shape, one flat
/// list.
fn nested(ids: &[u64], shape: &[u64]) -> Value {
    let inner =
        |shape: &[u64]| shape.iter().try_fold(1_usize, |n, &size| n.checked_mul(usize::try_from(size).ok()?));
    match shape.split_first() {
        None => match ids {
            [id] => json!({"id": id}),
            _ => ids.iter().map(|id| json!({"id": id})).collect(),
        },
        Some((_, rest)) => match inner(rest).filter(|&len| len > 0 && inner(shape) == Some(ids.len())) {
            Some(len) => ids.chunks(len).map(|part| nested(part, rest)).collect(),
            None => ids.iter().map(|id| json!({"id": id})).collect(),
        },
    }
}
