//! The plan of a save. It finds every reason for a refusal before the first write.
//!
//! | leaf | stored as |
//! |---|---|
//! | NumPy or JAX array | array of its dtype, or of the dtype of a cast |
//! | typed PRNG key | `jax.Array` of its key data, never cast |
//! | Python or NumPy number | array of shape `[]`. A `complex` is stored as complex128, and Orbax restores it as `complex` |
//! | text | member of `_strings.json` |
//! | placeholder | only its entry |
//! | array in shards | the chunks of this process's shards; if all processes have the array, one of them writes it |
//! | bytes, `np.bool_`, zero-size array, dtypes that TensorStore lacks | refused |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::chunking::{ChunkShapes, chunk_shapes};
use super::documents::{LeafEntry, ValueType};
use super::encode::{Form, PlannedArray};
use super::held::Held;
use super::names::{check_distinct, check_folders, check_key_len, check_siblings, param_name};
use crate::WriterRank;
use crate::options::{Compression, OrbaxOptions, SaveOptions};
use crate::orbax::strings::Strings;
use crate::refusals::Refusals;
use crate::spread::writers_of_whole;
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, Dtype, Shape, Shards, chunk_counts};
use regrow_tree::tree::{KeyPath, Leaf, LeafData, LeafKind, Tree};
use regrow_zarr::zarr::ArrayMeta;

/// zstd levels that Orbax takes from TensorStore's defaults.
const ZARR2_LEVEL: i32 = 1;
const ZARR3_LEVEL: i32 = 3;

/// The plan of a save: all entries and arrays to write.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) entries: Vec<PlannedEntry>,
    pub(super) arrays: Vec<PlannedArray<'a>>,
}

/// The data of a [`LeafEntry`]. The key path is always the leaf's own.
#[derive(Debug)]
pub(super) struct PlannedEntry {
    name: Arc<str>,
    value_type: ValueType,
    own_type: Option<Arc<str>>,
    write_shape: Option<Shape>,
    chunk_shape: Option<Shape>,
}

impl<'a> Plan<'a> {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.name)
    }

    pub(super) fn entry(&self, leaf: usize) -> LeafEntry<'_> {
        let entry = self.entries.get(leaf);
        LeafEntry {
            name: entry.map_or("", |entry| &*entry.name),
            path: None,
            value_type: entry.map_or(ValueType::Placeholder, |entry| entry.value_type),
            own_type: entry.and_then(|entry| entry.own_type.as_deref()),
            write_shape: entry.and_then(|entry| entry.write_shape.as_ref()),
            chunk_shape: entry.and_then(|entry| entry.chunk_shape.as_ref()),
        }
    }

    /// Plans every leaf. Reads no array data.
    ///
    /// # Errors
    /// One error that names all leaves which cannot be written, each with its reason.
    pub(super) fn new(
        tree: &'a Tree<Leaf>,
        writer: WriterRank,
        options: &SaveOptions,
        orbax: &OrbaxOptions,
    ) -> Result<Self> {
        let mut refusals = Refusals::default();
        let writers = writers_of_whole(tree, writer.count);
        let mut plan = Self { entries: Vec::with_capacity(tree.len()), arrays: Vec::new() };
        let mut strings = Strings::default();
        let mut forms = Forms { options, orbax, known: HashMap::new() };
        let paths = tree.paths();
        for (at, (path, leaf)) in paths.iter().zip(tree.leaves()).enumerate() {
            let name: Arc<str> = param_name(path).into();
            let mut entry = PlannedEntry {
                name: name.clone(),
                value_type: ValueType::of_leaf(&leaf.kind),
                own_type: orbax.value_types.get(&*name).map(|own| own.as_str().into()),
                write_shape: None,
                chunk_shape: None,
            };
            match &leaf.data {
                LeafData::Array(array) if leaf.kind.is_array() => {
                    let planned = forms.of(path, leaf, array).and_then(|form| {
                        if orbax.ocdbt {
                            let counts = chunk_counts(array.shape(), &form.chunks.outer);
                            let farthest: Vec<u64> = counts.iter().map(|n| n.saturating_sub(1)).collect();
                            check_key_len(&name, &farthest)?;
                        }
                        let is_own = writers.get(at) == Some(&writer.rank);
                        let held = held(array, is_own, writer, &form)?;
                        let cast_path = (form.dtype != array.dtype()).then(|| path.clone());
                        Ok(PlannedArray { name, leaf: at as u32, cast_path, held, form })
                    });
                    if let Some(planned) = refusals.keep(path, planned) {
                        if entry.value_type == ValueType::JaxArray {
                            entry.write_shape = Some(write_shape(array).clone());
                            entry.chunk_shape = Some(planned.form.chunks.inner.clone());
                        }
                        plan.arrays.push(planned);
                    }
                }
                // Only the name is checked here. `documents` writes the text.
                LeafData::Text(_) if leaf.kind == LeafKind::Str => {
                    refusals.keep(path, strings.insert(&name, ""));
                }
                LeafData::Absent if leaf.kind == LeafKind::Placeholder => {}
                _ => refusals.add(path, no_data(&leaf.kind)),
            }
            plan.entries.push(entry);
        }
        check_siblings(tree, &mut refusals);
        let stored =
            paths.iter().zip(&plan.entries).map(|(path, entry)| (path, &*entry.name, entry.value_type));
        let with_data = stored.filter(|(.., value_type)| *value_type != ValueType::Placeholder);
        check_distinct(with_data.clone().map(|(path, name, _)| (path, name)), &mut refusals);
        if !orbax.ocdbt {
            let arrays = with_data.filter(|(.., value_type)| *value_type != ValueType::String);
            check_folders(arrays.map(|(path, name, _)| (path, name)), &mut refusals);
        }
        refusals.finish("cannot be written as Orbax writes them")?;
        plan.check_own_types(orbax)?;
        Ok(plan)
    }

    /// Returns an error if `value_types` has a leaf that the tree lacks.
    fn check_own_types(&self, orbax: &OrbaxOptions) -> Result<()> {
        if orbax.value_types.is_empty() {
            return Ok(());
        }
        let names: HashSet<&str> = self.names().collect();
        match orbax.value_types.keys().find(|name| !names.contains(name.as_str())) {
            Some(name) => Err(Error::invalid(format!("value_types has {name:?}, but no leaf has this name"))
                .help("give the keys of the leaf, joined by dots")),
            None => Ok(()),
        }
    }
}

/// The shape that a process writes at once: the shape of the array, or of its shards.
fn write_shape(array: &Array) -> &Shape {
    array.shards().map_or(array.shape(), Shards::chunk_shape)
}

/// The part of an array that this process writes. If all processes hold the array, `is_own` says
/// whether this process writes it.
///
/// # Errors
/// `InvalidArgument` if this is the only process, but it does not hold the whole array.
fn held<'a>(array: &'a Array, is_own: bool, writer: WriterRank, form: &Form) -> Result<Held<'a>> {
    match array.shards() {
        Some(shards) if !shards.is_replicated() || is_own => {
            if writer == WriterRank::ALONE {
                shards.check_whole()?;
            }
            Ok(Held::of_shards(shards, &form.chunks.outer))
        }
        None if is_own => Ok(Held::Whole(array)),
        _ => Ok(Held::Nothing),
    }
}

fn no_data(kind: &LeafKind) -> Error {
    match kind {
        LeafKind::Unknown(handler) => Error::unsupported(format!(
            "a leaf of the type handler {handler:?} has no data that could be written"
        ))
        .help("replace the leaf by an array, a number or a text"),
        kind => Error::invalid(format!("a leaf of kind {} has no data of that kind", kind.name()))
            .help("load the leaf before saving it, or make it a placeholder"),
    }
}

/// How each array is stored; arrays with equal storage share one [`Form`].
struct Forms<'o> {
    options: &'o SaveOptions,
    orbax: &'o OrbaxOptions,
    known: HashMap<(Dtype, Shape, ChunkShapes), Arc<Form>>,
}

impl Forms<'_> {
    fn of(&mut self, path: &KeyPath, leaf: &Leaf, array: &Array) -> Result<Arc<Form>> {
        let dtype = self.options.cast_for(path, &leaf.kind, array.dtype()).unwrap_or(array.dtype());
        let shape = array.shape();
        check_leaf(&leaf.kind, dtype, shape)?;
        let chunks = chunk_shapes(path, shape, write_shape(array), dtype, self.orbax)?;
        let key = (dtype, shape.clone(), chunks.clone());
        if let Some(form) = self.known.get(&key) {
            return Ok(form.clone());
        }
        let use_zarr3 = self.orbax.zarr3;
        let default_level = if use_zarr3 { ZARR3_LEVEL } else { ZARR2_LEVEL };
        let compression = self.options.compression.unwrap_or(Compression::Zstd(default_level));
        let (outer, inner) = (chunks.outer.clone(), chunks.inner.clone());
        let meta = if use_zarr3 {
            ArrayMeta::v3_sharded(shape.clone(), dtype, outer, inner, compression)?
        } else {
            ArrayMeta::v2(shape.clone(), dtype, outer, compression)?
        };
        let document = meta.to_json().into();
        let form =
            Arc::new(Form { dtype, casting: self.options.casting, chunks, compression, meta, document });
        self.known.insert(key, form.clone());
        Ok(form)
    }
}

const KEEP_IT: &str = "save in the layout regrow, which keeps it";

pub(crate) fn check_leaf(kind: &LeafKind, dtype: Dtype, shape: &Shape) -> Result<()> {
    check_kind(kind, dtype, shape)?;
    check_dtype(dtype)?;
    if shape.is_empty() {
        let what = format!("an array of shape {shape} has no elements, and Orbax cannot store such arrays");
        return Err(Error::unsupported(what).help("leave it out, or save in the layout regrow"));
    }
    Ok(())
}

fn check_kind(kind: &LeafKind, dtype: Dtype, shape: &Shape) -> Result<()> {
    match kind {
        LeafKind::NumpyOther(name) => Err(Error::unsupported(format!("Orbax cannot store the dtype {name}"))
            .help(format!("store it as numbers, or {KEEP_IT}"))),
        LeafKind::Bytes => Err(Error::unsupported("Orbax cannot store bytes")
            .help(format!("make it an array of uint8, or {KEEP_IT}"))),
        LeafKind::NumpyScalar if dtype == Dtype::Bool => {
            Err(Error::unsupported("Orbax cannot store np.bool_")
                .help(format!("make it a bool, or {KEEP_IT}")))
        }
        LeafKind::Scalar | LeafKind::NumpyScalar if shape.rank() > 0 => {
            Err(Error::invalid("a number has no axes")
                .expected("shape []", shape)
                .help("make the leaf an array"))
        }
        LeafKind::PrngKey(_) if dtype != Dtype::UInt32 => {
            Err(Error::invalid("the data of a PRNG key has another dtype")
                .expected(Dtype::UInt32, dtype)
                .help("store what jax.random.key_data gives"))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_dtype(dtype: Dtype) -> Result<()> {
    match dtype {
        Dtype::UInt2 | Dtype::UInt4 | Dtype::Float6E2m3fn | Dtype::Float6E3m2fn | Dtype::Float8E4m3 => {
            Err(Error::unsupported(format!("TensorStore, and so Orbax, has no dtype {dtype}"))
                .help(format!("cast it on saving, or {KEEP_IT}")))
        }
        _ => Ok(()),
    }
}
