//! The first stage of a save: the stored form of every leaf, and leaves that cannot be saved.
//!
//! A leaf gets its name, its stored dtype, and its kind of storage: raw in a safetensors file, as
//! compressed chunks, or none. Later stages choose the file and the offset.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::super::manifest::{ChunkShapes, LeafPlace};
use super::super::stored_dtype;
use super::cut;
use super::names::Names;
use crate::options::{Compression, DataFormat, Layout, RegrowOptions, SaveOptions};
use crate::refusals::Refusals;
use crate::structure::{LeafColumns, Structure};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;
use regrow_tree::array::{Array, Casting, Dtype, Losses, Shape, Shards};
use regrow_tree::tree::{KeyPath, Leaf, LeafData, LeafKind, Tree};

/// Leaves below this size are not worth compressing.
const COMPRESS_LEN_MIN_BYTES: u64 = 1024;

/// The plan for one leaf, in addition to the leaf in the tree. The type is small, because a tree
/// may have a million leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeafPlan {
    /// The stored dtype, after a cast.
    pub dtype: Dtype,
    /// The stored length of the leaf; for text, the length of its UTF-8.
    pub len_bytes: u64,
    /// Raw in the safetensors file, as chunks in the database, or without data.
    pub place: LeafPlace,
}

/// The plan of a save: the stored form of every leaf.
#[derive(Debug)]
pub(super) struct Plan<'t> {
    pub tree: &'t Tree<Leaf>,
    pub leaves: Vec<LeafPlan>,
    structure: OnceLock<String>,
    /// The format that the metadata of the data files has.
    pub data_format: DataFormat,
    /// The losses that casts may cause.
    pub casting: Casting,
    /// The chunk shapes of leaves that are cut, unless the chunks are the shards.
    chunks: HashMap<u32, Shape>,
    names: Names,
    by_name: Vec<u32>,
}

impl<'t> Plan<'t> {
    /// Plans the save of `tree`. Raw leaves have no offset yet: offsets depend on the lengths of
    /// headers, which a later stage computes.
    ///
    /// # Errors
    /// `Unsupported` with all leaves that cannot be stored; with `strict` also all leaves that
    /// Orbax would not restore as they are.
    pub fn new(tree: &'t Tree<Leaf>, options: &SaveOptions) -> Result<Self> {
        if let Some(path) = tree.first_equal_keys() {
            return Err(Error::new(
                ErrorKind::NameCollision,
                "two children of one container have the same key",
            )
            .at_leaf(&path));
        }
        if u32::try_from(tree.len()).is_err() {
            return Err(Error::new(ErrorKind::Limit, "the tree has too many leaves")
                .expected(format_args!("at most {}", u32::MAX), tree.len())
                .help("save it as several checkpoints"));
        }
        let (names, by_name) = Names::new(tree);
        // Key paths are built only if there are patterns to match.
        let casts = (!options.cast.is_empty()).then(|| {
            let to = |(path, leaf): (KeyPath, &Leaf)| {
                leaf.as_array().and_then(|array| options.cast_for(&path, &leaf.kind, array.dtype()))
            };
            tree.iter().map(to).collect::<Vec<_>>()
        });
        let compressed = matches!(options.compression, Some(Compression::Zstd(_)));
        let mut leaves = Vec::with_capacity(tree.len());
        for (at, leaf) in tree.leaves().iter().enumerate() {
            let cast = casts.as_ref().and_then(|casts| casts.get(at).copied().flatten());
            let dtype = match &leaf.data {
                LeafData::Array(array) => cast.unwrap_or_else(|| array.dtype()),
                LeafData::Text(_) | LeafData::Absent => Dtype::UInt8,
            };
            let len_bytes = match &leaf.data {
                LeafData::Array(array) => array.shape().len_bytes(dtype)?,
                LeafData::Text(text) => text.len() as u64,
                LeafData::Absent => 1,
            };
            let place = match (&leaf.data, compressed && len_bytes >= COMPRESS_LEN_MIN_BYTES) {
                (LeafData::Array(_), true) => LeafPlace::Chunks,
                (LeafData::Array(_), false) => LeafPlace::Raw { file: 0, offset_bytes: 0 },
                _ => LeafPlace::Nowhere,
            };
            leaves.push(LeafPlan { dtype, len_bytes, place });
        }
        let data_format = match &options.layout {
            Layout::Regrow(options) => options.format,
            _ => DataFormat::default(),
        };
        let structure = OnceLock::new();
        let casting = options.casting;
        let mut plan =
            Self { tree, leaves, structure, data_format, casting, chunks: HashMap::new(), names, by_name };
        plan.refuse(options)?;
        if let Layout::Regrow(regrow) = &options.layout {
            plan.cut(regrow)?;
        }
        Ok(plan)
    }

    /// Sets the chunk shapes of arrays that the options cut, and of compressed arrays.
    fn cut(&mut self, options: &RegrowOptions) -> Result<()> {
        let mut refusals = Refusals::default();
        for (at, (planned, leaf)) in self.leaves.iter().zip(self.tree.leaves()).enumerate() {
            let is_coded = planned.place == LeafPlace::Chunks;
            if !is_coded && !options.asks_for_chunks() {
                continue;
            }
            let Some(array) = leaf.as_array() else { continue };
            let path = self.tree.path_of(at);
            let chunk = cut::chunk_shape(&path, array, planned.dtype, options, is_coded);
            if let Some(Some(chunk)) = refusals.keep(&path, chunk) {
                self.chunks.insert(at as u32, chunk);
            }
        }
        refusals.finish("cannot be cut like this")
    }

    fn refuse(&self, options: &SaveOptions) -> Result<()> {
        let is_strict = matches!(&options.layout, Layout::Regrow(regrow) if regrow.strict);
        let mut refused = Vec::new();
        for (at, leaf) in self.tree.leaves().iter().enumerate() {
            if let LeafKind::Unknown(name) = &leaf.kind {
                refused.push(format!("{}: a leaf of the unknown type {name:?}", self.path(at)));
            }
            if is_strict && let Some(why) = self.beyond_orbax(at, leaf) {
                refused.push(format!("{}: {why}", self.path(at)));
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let list = refused.join("\n    ");
        Err(Error::unsupported(format!(
            "{} cannot be saved like this:\n    {list}",
            counted(refused.len(), "leaf", "leaves")
        ))
        .help("leave these leaves out, convert them, or save without `strict`"))
    }

    pub fn path(&self, leaf: usize) -> KeyPath {
        self.tree.path_of(leaf)
    }

    pub fn orbax_path(&self, leaf: usize) -> Option<&KeyPath> {
        self.names.told_path(leaf)
    }

    /// The stored name of a leaf, for Orbax, safetensors and the database.
    pub fn name(&self, leaf: usize) -> &str {
        self.names.get(leaf)
    }

    /// The stored name of a leaf, if it differs from the joined key path.
    pub fn other_name(&self, leaf: usize) -> Option<&str> {
        self.names.other(leaf)
    }

    pub fn by_name(&self) -> &[u32] {
        &self.by_name
    }

    pub fn leaf(&self, leaf: usize) -> Option<(&LeafPlan, &'t Leaf)> {
        self.leaves.get(leaf).zip(self.tree.leaves().get(leaf))
    }

    /// The stored array of a leaf, after its cast; `None` for a leaf without an array.
    pub fn stored_array(&self, leaf: usize) -> Option<Result<Cow<'t, Array>>> {
        let at = leaf;
        let (planned, leaf) = self.leaf(at)?;
        let array = leaf.as_array()?;
        Some(match array.dtype() == planned.dtype {
            true => Ok(Cow::Borrowed(array)),
            false => {
                let losses = Losses::of(self.casting, &self.path(at));
                array.cast_as(planned.dtype, losses).map(Cow::Owned)
            }
        })
    }

    /// The chunk shape of a leaf that is written in parts or compressed. It comes from the options,
    /// otherwise from the shards; otherwise the array is one chunk.
    pub fn chunk_shape<'s>(&'s self, leaf: usize, array: &'s Array) -> &'s Shape {
        let own = u32::try_from(leaf).ok().and_then(|leaf| self.chunks.get(&leaf));
        own.unwrap_or_else(|| Self::write_shape(array))
    }

    /// Sets the chunk shape of a leaf as an earlier save has recorded it.
    pub fn set_chunk_shape(&mut self, leaf: usize, chunk: Option<&Shape>) {
        if let Some((at, chunk)) = u32::try_from(leaf).ok().zip(chunk) {
            self.chunks.insert(at, chunk.clone());
        }
    }

    /// The shape that a process writes at once of an array: the shape of its shards, otherwise the
    /// whole array.
    pub fn write_shape(array: &Array) -> &Shape {
        array.shards().map_or(array.shape(), Shards::chunk_shape)
    }

    pub fn chunk_shapes(&self) -> ChunkShapes {
        let mut chunks = ChunkShapes::default();
        let mut known: HashMap<&Shape, i64> = HashMap::new();
        let mut is_cut = false;
        for (at, leaf) in self.tree.leaves().iter().enumerate() {
            let mut number = |shape| {
                *known.entry(shape).or_insert_with(|| {
                    chunks.shapes.push(shape.dims().to_vec());
                    chunks.shapes.len() as i64 - 1
                })
            };
            let (chunk, write) = match leaf.as_array() {
                Some(array) => (number(self.chunk_shape(at, array)), number(Self::write_shape(array))),
                None => (-1, -1),
            };
            is_cut |= chunk != write;
            chunks.leaf_shapes.push(chunk);
            chunks.leaf_write_shapes.push(write);
            if self.is_coded(at) {
                chunks.zstd_leaves.push(at as u32);
            }
        }
        if !is_cut {
            chunks.leaf_write_shapes.clear();
        }
        chunks
    }

    pub fn is_coded(&self, leaf: usize) -> bool {
        self.leaves.get(leaf).is_some_and(|leaf| leaf.place == LeafPlace::Chunks)
    }

    /// Whether the leaf becomes a zarr array: true for every array with elements.
    pub fn has_elements(leaf: &Leaf) -> bool {
        leaf.kind.is_array() && !leaf.as_array().is_some_and(|array| array.shape().is_empty())
    }

    /// The exact pytree, as JSON text. The text is built at the first call, and two files have it.
    pub fn structure(&self) -> Result<&str> {
        if let Some(structure) = self.structure.get() {
            return Ok(structure);
        }
        let structure = self.structure_json()?;
        Ok(self.structure.get_or_init(|| structure))
    }

    fn structure_json<'p>(&'p self) -> Result<String> {
        let tree: &'p Tree<Leaf> = self.tree;
        let columns = |at: usize, leaf: &'p Leaf| {
            let Leaf { kind, data, sharding } = leaf;
            let (shape, text) = match data {
                LeafData::Array(array) => (array.shape().clone(), Arc::default()),
                LeafData::Text(text) => {
                    (Shape::new(vec![text.len() as u64]).unwrap_or_default(), text.clone())
                }
                LeafData::Absent => (Shape::scalar(), Arc::default()),
            };
            let dtype = self.leaves.get(at).map_or(Dtype::UInt8, |leaf| leaf.dtype);
            LeafColumns { kind, dtype, shape, text, name: self.other_name(at), sharding: sharding.as_deref() }
        };
        Structure::of_columns(tree, columns)?.to_json()
    }

    /// The reason why Orbax would not restore this leaf as it is; `None` if it would.
    fn beyond_orbax(&self, at: usize, leaf: &Leaf) -> Option<String> {
        let dtype = self.leaves.get(at).map_or(Dtype::UInt8, |leaf| leaf.dtype);
        if self.orbax_path(at).is_some_and(|told| told.join(".") != self.path(at).join(".")) {
            return Some(format!(
                "its name collides or has no form in Orbax; it would become {:?}",
                self.name(at)
            ));
        }
        if leaf.kind.is_array() && !Self::has_elements(leaf) {
            return Some("Orbax has no arrays of size zero".to_owned());
        }
        if leaf.kind.is_array() && stored_dtype(dtype) != dtype {
            return Some(format!("Orbax has no dtype {dtype}"));
        }
        match &leaf.kind {
            LeafKind::NumpyOther(dtype) => Some(format!("Orbax has no dtype {dtype}")),
            LeafKind::Bytes => Some("Orbax has no bytes leaves".to_owned()),
            LeafKind::NumpyScalar => Some("Orbax returns a NumPy scalar as a Python number".to_owned()),
            LeafKind::Scalar if matches!(dtype, Dtype::Complex64 | Dtype::Complex128) => {
                Some("Orbax would read it as an array".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::tree::Key;

    #[test]
    fn equal_keys_are_refused_where_they_stand() {
        let leaf = || Leaf::array(Array::new(Dtype::UInt8, Shape::scalar(), vec![0].into()).unwrap());
        let mut build = regrow_tree::tree::TreeBuilder::new();
        build.open(Key::Index(0), regrow_tree::tree::NodeKind::Dict).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.open(Key::dict("a"), regrow_tree::tree::NodeKind::Dict).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.leaf(Key::DictInt(1), leaf()).unwrap();
        build.leaf(Key::dict("1"), leaf()).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        let error = Plan::new(&build.finish().unwrap(), &SaveOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "a/x");
    }
}
