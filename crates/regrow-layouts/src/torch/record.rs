//! The Python objects of a file that a pytree cannot hold: sets, parameters, views of one storage.
//! `regrow.torch.load` uses the record to return the same objects as `torch.load`.
//!
//! ```text
//! {"version":1,"at":{"/model/tied":{"storage":0,"len":96,"view":{...}},"/seen":{"is":"set"}}}
//! ```
//!
//! Source: `docs/formats/torch-objects.md`.

use serde_json::{Map, Value as Json, json};

use super::pickle::{Id, Pickle, Value};
use super::pointer::pointer;
use super::tensors::Tensor;
use regrow_tree::tree::KeyPath;

/// The most nested dicts and the most values in the versions of a module's submodules.
const ATTRIBUTE_DEPTH_MAX: usize = 8;
const ATTRIBUTE_VALUES_MAX: usize = 1 << 16;

/// The only attribute of a dict that the record keeps.
const METADATA: &str = "_metadata";

/// The entries, by the key path of their object.
#[derive(Debug, Default)]
pub(super) struct Record(Map<String, Json>);

impl Record {
    pub(super) fn add(&mut self, path: &KeyPath, entry: Json) {
        let Json::Object(new) = entry else { return };
        if let Json::Object(known) = self.0.entry(pointer(path)).or_insert_with(|| json!({})) {
            known.extend(new);
        }
    }

    /// Whether the tensor at a path is the same object as the tensor at another path.
    pub(super) fn is_same(&self, path: &KeyPath) -> bool {
        self.0.get(&pointer(path)).is_some_and(|entry| entry.get("same").is_some())
    }

    /// Adds the record of an object that stands at a path of this tree, and whose storages are
    /// numbered from `first_storage` on.
    pub(super) fn add_below(&mut self, path: &KeyPath, object: &Self, first_storage: usize) {
        let above = pointer(path);
        for (place, entry) in &object.0 {
            let mut entry = entry.clone();
            if let Some(Json::String(same)) = entry.get_mut("same") {
                same.insert_str(0, &above);
            }
            if let Some(storage) = entry.get_mut("storage") {
                *storage = storage.as_u64().map(|own| own.saturating_add(first_storage as u64)).into();
            }
            self.0.insert(format!("{above}{place}"), entry);
        }
    }

    /// The record as text; `None` if it is empty.
    pub(super) fn to_text(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| json!({"version": 1, "at": self.0}).to_string())
    }
}

pub(super) fn of_tensor(pickle: &Pickle<'_>, tensor: &Tensor) -> Option<Json> {
    let mut entry = Map::new();
    if tensor.is_parameter {
        entry.insert("parameter".to_owned(), tensor.requires_grad.into());
    } else if tensor.requires_grad {
        entry.insert("requires_grad".to_owned(), true.into());
    }
    if let Some(device) = device(pickle, tensor.storage).filter(|&device| device != "cpu") {
        entry.insert("device".to_owned(), device.into());
    }
    (!entry.is_empty()).then_some(Json::Object(entry))
}

/// The entry of a tensor that is a view of a storage of `len_bytes`.
pub(super) fn of_view(tensor: &Tensor, storage: usize, len_bytes: u64) -> Json {
    json!({"storage": storage, "len": len_bytes, "view": {
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape.dims(),
        "stride": tensor.strides_elements,
        "offset": tensor.offset_elements.saturating_mul(tensor.dtype.size_bytes() as u64),
    }})
}

/// The entry of a dict: whether it is a Counter, the factory of a defaultdict, and versions of
/// modules.
pub(super) fn of_dict(pickle: &Pickle<'_>, id: Id) -> Option<Json> {
    let (call, name, args) = pickle.call(id)?;
    let mut entry = Map::new();
    if let (("collections", "defaultdict"), &[factory]) = (name, args)
        && let Some(("builtins" | "__builtin__", factory)) = pickle.global(factory)
    {
        entry.insert("factory".to_owned(), factory.into());
    }
    if name == ("collections", "Counter") {
        entry.insert("class".to_owned(), "Counter".into());
    }
    if let Some(Value::Dict(attributes)) = call.state.map(|state| pickle.value(state)) {
        for &(key, value) in attributes {
            let mut left = ATTRIBUTE_VALUES_MAX;
            if pickle.text(key) == Some(METADATA)
                && let Some(told) = plain(pickle, value, ATTRIBUTE_DEPTH_MAX, &mut left)
            {
                let ordered = matches!(pickle.value(value), Value::Call(_));
                entry.insert("attributes".to_owned(), json!({METADATA: {"value": told, "ordered": ordered}}));
            }
        }
    }
    (!entry.is_empty()).then(|| {
        entry.insert("is".to_owned(), "dict".into());
        Json::Object(entry)
    })
}

pub(super) fn of_set(pickle: &Pickle<'_>, id: Id) -> Json {
    let is_frozen = matches!(pickle.call(id), Some((_, (_, "frozenset"), _)));
    json!({"is": if is_frozen { "frozenset" } else { "set" }})
}

pub(super) fn of_name(name: &str) -> Json {
    let kind = match name.strip_prefix("torch.") {
        Some("strided" | "sparse_coo") => "layout",
        Some("contiguous_format" | "channels_last" | "preserve_format") => "memory_format",
        Some(_) => "dtype",
        None => "device",
    };
    json!({"is": kind})
}

/// Text, numbers and dicts with text as keys; `None` for anything else.
fn plain(pickle: &Pickle<'_>, id: Id, depth_left: usize, values_left: &mut usize) -> Option<Json> {
    *values_left = values_left.checked_sub(1)?;
    let pairs = match pickle.value(id) {
        Value::None => return Some(Json::Null),
        Value::Bool(value) => return Some((*value).into()),
        Value::Int(value) => return Some((*value).into()),
        Value::Text(span) => return Some(pickle.text_of(*span).into()),
        Value::Dict(pairs) => pairs,
        Value::Call(call) if pickle.global(call.callee) == Some(("collections", "OrderedDict")) => {
            &call.pairs
        }
        _ => return None,
    };
    let depth_left = depth_left.checked_sub(1)?;
    let mut out = Map::new();
    for &(key, value) in pairs {
        out.insert(pickle.text(key)?.to_owned(), plain(pickle, value, depth_left, values_left)?);
    }
    Some(Json::Object(out))
}

fn device<'p>(pickle: &'p Pickle<'_>, storage: Id) -> Option<&'p str> {
    let Value::Persistent(tuple) = pickle.value(storage) else { return None };
    pickle.text(*pickle.sequence(*tuple)?.get(3)?)
}

#[cfg(test)]
mod tests {
    use regrow_tree::tree::Key;

    use super::*;

    #[test]
    fn what_is_known_of_an_object_is_known_below_its_place() {
        let mut object = Record::default();
        object.add(&KeyPath::root(), json!({"is": "set"}));
        let child: KeyPath = [Key::Index(1)].into_iter().collect();
        object.add(&child, json!({"same": "/0", "storage": 2, "len": 8}));
        let mut whole = Record::default();
        let path: KeyPath = [Key::dict("a"), Key::dict("0")].into_iter().collect();
        whole.add_below(&path, &object, 5);
        assert_eq!(
            serde_json::from_str::<Json>(&whole.to_text().unwrap()).unwrap()["at"],
            json!({"/a/~20": {"is": "set"}, "/a/~20/1": {"same": "/a/~20/0", "storage": 7, "len": 8}})
        );
    }

    #[test]
    fn places_are_told_apart() {
        let mut path = KeyPath::root();
        assert_eq!(pointer(&path), "");
        for key in [Key::dict("a/~b"), Key::DictInt(-1), Key::dict("-1"), Key::Index(2), Key::dict("")] {
            path.push(key);
        }
        assert_eq!(pointer(&path), "/a~1~0b/-1/~2-1/2/");
    }
}
