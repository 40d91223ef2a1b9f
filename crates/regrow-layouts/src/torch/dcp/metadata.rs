//! The index: the tensors, their pieces, and the position of each piece.
//!
//! ```text
//! Metadata
//!   state_dict_metadata  {name: TensorStorageMetadata(properties, size, chunks) | BytesStorageMetadata}
//!   planner_data         {name: ("model", "w") | ("param_groups", 0, "lr")} or None
//!   storage_data         {MetadataIndex(fqn, offset, index): _StorageInfo(relative_path, offset, length)}
//! ```
//!
//! In the pickle each of these objects is the record of a call, and its fields are the state that
//! the pickle sets.
//!
//! Source: PyTorch `torch/distributed/checkpoint/metadata.py`, `filesystem.py`.

use std::collections::{HashMap, HashSet};

use super::super::dtypes::{Element, of_name};
use super::super::pickle::{Id, Pickle, Value};
use super::super::tensors::dims;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::sharding::check_tiling;
use regrow_tree::tree::{Key, KeyPath};

/// All classes are in modules below this one.
const MODULE: &str = "torch.distributed.checkpoint.";

/// A tensor or an object.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub path: KeyPath,
    pub content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Tensor {
        dtype: Dtype,
        shape: Shape,
        pieces: Vec<(Region, Place)>,
    },
    Object(Place),
    /// A tensor of a dtype that no array has.
    Refused(Error),
}

/// A range of bytes in a file of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub file: String,
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

pub(super) fn entries(pickle: &Pickle<'_>) -> Result<Vec<Entry>> {
    let root = record(pickle, pickle.root(), "Metadata")?;
    let tensors = root.dict("state_dict_metadata")?;
    let mut places = places(pickle, root.dict("storage_data")?)?;
    let mut entries = Vec::with_capacity(tensors.len());
    let mut paths = paths(pickle, root.field("planner_data")?)?;
    for &(key, value) in tensors {
        let name = pickle.text(key).ok_or_else(|| pickle.corrupt(key, "the name of a tensor is not text"))?;
        let (at, path) = match &mut paths {
            Some(paths) => paths
                .remove(name)
                .ok_or_else(|| pickle.corrupt(key, format!("the index lacks the key path of {name:?}")))?,
            None => (entries.len(), KeyPath::from_iter([Key::dict(name)])),
        };
        let content = content(pickle, value, name, &mut places).at_leaf(&path)?;
        entries.push((at, Entry { name: name.to_owned(), path, content }));
    }
    entries.sort_by_key(|(at, _)| *at);
    let mut entries: Vec<Entry> = entries.into_iter().map(|(_, entry)| entry).collect();
    number_states(&mut entries);
    Ok(entries)
}

/// Makes numbers of the keys of optimizers' states (`state/0` beside `param_groups`), which DCP
/// writes as texts. `Optimizer.load_state_dict` silently ignores texts.
fn number_states(entries: &mut [Entry]) {
    let is_key = |key: &Key, name: &str| *key == Key::dict(name);
    let mut optimizers: HashSet<Vec<Key>> = HashSet::new();
    for entry in entries.iter() {
        let keys = entry.path.keys();
        if let Some(at) = keys.iter().position(|key| is_key(key, "param_groups")) {
            optimizers.extend(keys.get(..at).map(<[Key]>::to_vec));
        }
    }
    for entry in entries {
        let mut keys = entry.path.keys().to_vec();
        let is_state = |at: usize| {
            keys.get(at).is_some_and(|key| is_key(key, "state"))
                && keys.get(..at).is_some_and(|above| optimizers.contains(above))
        };
        let Some(at) = (0..keys.len()).find(|&at| is_state(at)) else { continue };
        let Some(key) = keys.get_mut(at + 1) else { continue };
        let number = key.text().parse::<i64>().ok();
        if let Some(number) =
            number.filter(|number| matches!(key, Key::Dict(_)) && number.to_string() == key.text())
        {
            *key = Key::DictInt(number);
            entry.path = KeyPath::from_iter(keys);
        }
    }
}

/// The name of an entry, and the start of a piece in its tensor; `None` for an object.
type Index<'p> = (&'p str, Option<Vec<u64>>);

fn content<'p>(
    pickle: &'p Pickle<'_>,
    id: Id,
    name: &'p str,
    places: &mut HashMap<Index<'p>, Place>,
) -> Result<Content> {
    let missing = |id: Id| {
        pickle
            .corrupt(id, "the index lacks the file of a piece")
            .help("the save did not finish, or the index is damaged: copy the whole checkpoint again")
    };
    if pickle.call(id).is_some_and(|(_, (_, class), _)| class == "BytesStorageMetadata") {
        return places.remove(&(name, None)).map(Content::Object).ok_or_else(|| missing(id));
    }
    let tensor = record(pickle, id, "TensorStorageMetadata")?;
    let properties = record_of(pickle, tensor.field("properties")?, "TensorProperties")?;
    // Since PyTorch 2.0 the properties are a tuple, and its first member is the dtype. Before, they
    // are a dict of fields.
    let dtype_at = match pickle.value(properties) {
        Value::Tuple(parts) => parts.first().copied(),
        Value::Dict(pairs) => {
            pairs.iter().find(|&&(key, _)| pickle.text(key) == Some("dtype")).map(|&(_, value)| value)
        }
        _ => None,
    };
    let dtype_at = dtype_at.ok_or_else(|| pickle.corrupt(id, "a tensor of the index has no dtype"))?;
    let dtype = match pickle.global(dtype_at) {
        Some(("torch", dtype)) => dtype,
        _ => return Err(pickle.corrupt(dtype_at, "the dtype of a tensor is not a dtype of PyTorch")),
    };
    let Some(Element::Known(dtype)) = of_name(dtype) else {
        return Ok(Content::Refused(
            pickle.unsupported(dtype_at, format!("regrow does not read tensors of {dtype}")),
        ));
    };
    let numbers =
        |id: Id| dims(pickle, id).ok_or_else(|| pickle.corrupt(id, "a shape is not a list of integers"));
    let place_of = |error: Error| error.at_byte(pickle.offset(id));
    let shape = Shape::new(numbers(tensor.field("size")?)?).map_err(place_of)?;
    shape.len_bytes(dtype).map_err(place_of)?;
    let chunks_at = tensor.field("chunks")?;
    let chunks = pickle
        .sequence(chunks_at)
        .ok_or_else(|| pickle.corrupt(chunks_at, "the pieces of a tensor are not a list"))?;
    let mut pieces = Vec::with_capacity(chunks.len());
    for &chunk_at in chunks {
        let chunk = record(pickle, chunk_at, "ChunkStorageMetadata")?;
        let (starts, lens) = (numbers(chunk.field("offsets")?)?, numbers(chunk.field("sizes")?)?);
        let place = places.remove(&(name, Some(starts.clone()))).ok_or_else(|| missing(chunk_at))?;
        pieces.push((Region::new(starts, lens).map_err(place_of)?, place));
    }
    let regions: Vec<Region> = pieces.iter().map(|(region, _)| region.clone()).collect();
    check_tiling(&shape, &regions).map_err(|error| {
        pickle.corrupt(id, format!("the pieces of a tensor do not fill it: {}", error.what()))
    })?;
    Ok(Content::Tensor { dtype, shape, pieces })
}

fn places<'p>(pickle: &'p Pickle<'_>, pairs: &[(Id, Id)]) -> Result<HashMap<Index<'p>, Place>> {
    let mut places = HashMap::with_capacity(pairs.len());
    for &(key, value) in pairs {
        let index = record(pickle, key, "MetadataIndex")?;
        let name_at = index.field("fqn")?;
        let name = pickle
            .text(name_at)
            .ok_or_else(|| pickle.corrupt(name_at, "the name of a tensor is not text"))?;
        let start = match index.optional("offset") {
            Some(at) if !matches!(pickle.value(at), Value::None) => {
                Some(dims(pickle, at).ok_or_else(|| pickle.corrupt(at, "a piece has no start"))?)
            }
            _ => None,
        };
        let info = record(pickle, value, "_StorageInfo")?;
        if let Some(at) = info.optional("transform_descriptors")
            && !matches!(pickle.value(at), Value::None)
            && pickle.sequence(at).is_none_or(|transforms| !transforms.is_empty())
        {
            return Err(pickle
                .unsupported(at, "the pieces are compressed or changed by an extension of the writer")
                .help("load them with torch.distributed.checkpoint and save without `_extensions`"));
        }
        let file_at = info.field("relative_path")?;
        let file = pickle.text(file_at).filter(|file| is_inside(file));
        let file = file.ok_or_else(|| pickle.corrupt(file_at, "the file of a piece is not in the folder"))?;
        let number = |name: &str| {
            let at = info.field(name)?;
            let number = pickle.int(at).and_then(|number| u64::try_from(number).ok());
            number.ok_or_else(|| pickle.corrupt(at, format!("the {name} of a piece is not an integer")))
        };
        let place =
            Place { file: file.to_owned(), offset_bytes: number("offset")?, len_bytes: number("length")? };
        places.insert((name, start), place);
    }
    Ok(places)
}

/// Whether a path stays in its folder.
fn is_inside(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains('\0')
}

/// The key path of each name in the tree, and its number; `None` if the file has no key paths.
fn paths<'p>(pickle: &'p Pickle<'_>, id: Id) -> Result<Option<HashMap<&'p str, (usize, KeyPath)>>> {
    let pairs = match pickle.value(id) {
        Value::None => return Ok(None),
        Value::Dict(pairs) => pairs,
        _ => return Err(pickle.corrupt(id, "the paths of the tensors are not a dict")),
    };
    let mut paths = HashMap::with_capacity(pairs.len());
    for (at, &(key, path)) in pairs.iter().enumerate() {
        let bad = || pickle.corrupt(path, "a path in the tree is not a list of texts and integers");
        let name = pickle.text(key).ok_or_else(bad)?;
        let steps = pickle.sequence(path).filter(|steps| !steps.is_empty()).ok_or_else(bad)?;
        let step = |&step: &Id| match pickle.value(step) {
            Value::Text(span) => Ok(Key::dict(pickle.text_of(*span))),
            Value::Int(number) => usize::try_from(*number).map(Key::Index).map_err(|_| bad()),
            _ => Err(bad()),
        };
        paths.insert(name, (at, steps.iter().map(step).collect::<Result<KeyPath>>()?));
    }
    Ok(Some(paths))
}

/// A record, whose fields are read by name.
struct Record<'p, 'b> {
    pickle: &'p Pickle<'b>,
    id: Id,
    class: &'static str,
    fields: &'p [(Id, Id)],
}

impl<'p> Record<'p, '_> {
    fn optional(&self, name: &str) -> Option<Id> {
        let is_it = |&&(key, _): &&(Id, Id)| self.pickle.text(key) == Some(name);
        self.fields.iter().find(is_it).map(|&(_, value)| value)
    }

    fn field(&self, name: &str) -> Result<Id> {
        self.optional(name).ok_or_else(|| {
            self.pickle.corrupt(self.id, format!("a {} of the index has no {name}", self.class))
        })
    }

    fn dict(&self, name: &str) -> Result<&'p [(Id, Id)]> {
        let at = self.field(name)?;
        match self.pickle.value(at) {
            Value::Dict(pairs) => Ok(pairs),
            _ => Err(self.pickle.corrupt(at, format!("the {name} of the index is not a dict"))),
        }
    }
}

/// The record of a class, as its fields.
fn record<'p, 'b>(pickle: &'p Pickle<'b>, id: Id, class: &'static str) -> Result<Record<'p, 'b>> {
    match pickle.value(record_of(pickle, id, class)?) {
        Value::Dict(fields) => Ok(Record { pickle, id, class, fields }),
        _ => Err(pickle.corrupt(id, format!("a {class} of the index has no fields"))),
    }
}

/// The state from which Python would make an object of a class.
fn record_of(pickle: &Pickle<'_>, id: Id, class: &'static str) -> Result<Id> {
    let found = pickle.call(id);
    let is_it = |module: &str, name: &str| module.starts_with(MODULE) && name == class;
    match found {
        Some((call, (module, name), _)) if is_it(module, name) => {
            call.state.ok_or_else(|| pickle.corrupt(id, format!("a {class} of the index has no fields")))
        }
        other => {
            let other = other
                .map_or("something else".to_owned(), |(_, (module, name), _)| format!("{module}.{name}"));
            Err(pickle
                .corrupt(id, "the index has an unexpected value")
                .expected(format_args!("a {class}"), other))
        }
    }
}
