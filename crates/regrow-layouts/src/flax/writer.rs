//! Writes a pytree as one msgpack object, like Flax' `to_bytes` or, with sorted keys,
//! `msgpack_serialize`.
//!
//! | node | is written as |
//! |---|---|
//! | dict of any kind | map; integer keys as text unless they are to be kept |
//! | list, tuple | map `"0"`, `"1"`, … |
//! | named tuple, dataclass, other class | map of its fields; `Partial`: `args` and `keywords` |
//! | `None` | nil |
//! | array | extension 1; in chunks if it is long |
//! | NumPy scalar, complex | extensions 3 and 2 |
//! | bool, int, float, text, bytes | msgpack's own |
//!
//! There are two passes: the first finds all sizes and all leaves that cannot be written, and the
//! second streams the data.

use std::collections::HashSet;
use std::sync::Arc;

use super::convert::swap_words;
use super::dtypes::{to_name, word_bytes};
use super::encode::{ArrayHead, Encoder, Part};
use super::layout::{CHUNKED_KEY, EXT_NDARRAY, EXT_NUMPY_SCALAR};
use super::msgpack::{DEPTH_MAX, too_deep};
use crate::options::FlaxOptions;
use crate::options::{Compression, SaveOptions};
use crate::refusals::Refusals;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::NewFile;
use regrow_storage::location::Location;
use regrow_tree::array::{Array, Dtype, DtypeClass, cast_bytes};
use regrow_tree::tree::{Key, KeyPath, Leaf, LeafData, LeafKind, NodeKind, Tree};

/// Writes the one file of a checkpoint.
///
/// # Errors
/// `Unsupported` or `NameCollision`, with every leaf that cannot be written; `StorageFull` and
/// other errors of the storage.
pub(super) fn write(
    tree: &Tree<Leaf>,
    new: &dyn NewFile,
    options: &SaveOptions,
    flax: &FlaxOptions,
) -> Result<()> {
    let encoder = plan(tree, new.target(), options, flax)?;
    // A msgpack file cannot store checksums. So the blocks that the writer checksums begin at the
    // end of the file.
    let mut out = new.single_writer(encoder.len_bytes(), encoder.len_bytes())?;
    for part in encoder.parts() {
        match part {
            Part::Bytes(bytes) => out.write(bytes)?,
            Part::Bulk(bulk) => {
                let range = bulk.range.start as usize..bulk.range.end as usize;
                match bulk.array.c_order_bytes().and_then(|bytes| bytes.get(range)) {
                    Some(bytes) => out.write(bytes)?,
                    None => out.write_with(bulk.range.end - bulk.range.start, &mut |offset, piece| {
                        bulk.array.copy_c_order(bulk.range.start + offset, piece)
                    })?,
                }
            }
        }
    }
    out.finish().map(drop)
}

/// Plans the whole contents of the file at `target`, before the first byte is written.
///
/// # Errors
/// As [`write`], except errors of the disk.
pub(super) fn plan(
    tree: &Tree<Leaf>,
    target: &Location,
    options: &SaveOptions,
    flax: &FlaxOptions,
) -> Result<Encoder> {
    for (is_asked, what) in [
        (matches!(options.compression, Some(Compression::Zstd(_))), "compression"),
        (options.custom_metadata.is_some(), "metadata"),
    ] {
        if is_asked {
            return Err(Error::invalid(format!("the layout \"flax\" has no {what}")).in_file(target));
        }
    }
    encode(tree, flax)
}

/// An object of known size.
///
/// # Errors
/// As [`write`].
pub fn encode(tree: &Tree<Leaf>, flax: &FlaxOptions) -> Result<Encoder> {
    let mut writer = Writer {
        family: Family::of(tree),
        tree,
        flax,
        encoder: Encoder::new(),
        refusals: Refusals::default(),
        path: KeyPath::root(),
    };
    writer.tree()?;
    writer.refusals.finish("cannot be written as Flax' msgpack")?;
    Ok(writer.encoder)
}

/// The children and leaves of each node, which a tree stores only as flat lists.
struct Family {
    /// For each node, the number of the node after its last descendant.
    ends: Vec<usize>,
    /// For each node, the number of leaves before it.
    leaves_before: Vec<usize>,
}

impl Family {
    fn of<L>(tree: &Tree<L>) -> Self {
        let nodes = tree.nodes();
        let mut ends = vec![nodes.len(); nodes.len()];
        for (at, node) in nodes.iter().enumerate().rev() {
            let end = (0..node.child_count)
                .fold(at + 1, |child, _| ends.get(child).copied().unwrap_or(nodes.len()));
            if let Some(slot) = ends.get_mut(at) {
                *slot = end;
            }
        }
        let mut count = 0;
        let leaves_before = nodes
            .iter()
            .map(|node| {
                let before = count;
                count += usize::from(node.kind == NodeKind::Leaf);
                before
            })
            .collect();
        Self { ends, leaves_before }
    }

    fn children(&self, node: usize, count: usize) -> impl Iterator<Item = usize> {
        let first = (count > 0).then_some(node + 1);
        std::iter::successors(first, |&child| self.ends.get(child).copied()).take(count)
    }
}

/// A key of a map, in its written form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum MapKey {
    Int(i64),
    Text(Arc<str>),
}

impl MapKey {
    pub(super) fn of(key: &Key, flax: &FlaxOptions) -> Self {
        match key {
            Key::DictInt(number) if flax.integer_keys => Self::Int(*number),
            Key::Dict(text) | Key::Attr(text) => Self::Text(text.clone()),
            other => Self::Text(other.text().into()),
        }
    }
}

/// Whether a node is JAX' `Partial`. Its two children have numbers in JAX and names in Flax.
fn is_partial(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Custom(name) if name.ends_with("tree_util.Partial"))
}

enum Step {
    Node(usize, Option<MapKey>),
    Leave,
}

struct Writer<'a> {
    family: Family,
    tree: &'a Tree<Leaf>,
    flax: &'a FlaxOptions,
    encoder: Encoder,
    refusals: Refusals,
    path: KeyPath,
}

impl Writer<'_> {
    fn tree(&mut self) -> Result<()> {
        let mut steps = vec![Step::Node(0, None)];
        while let Some(step) = steps.pop() {
            let Step::Node(at, key) = step else {
                self.path.pop();
                continue;
            };
            let Some(node) = self.tree.nodes().get(at) else { continue };
            match &key {
                Some(MapKey::Text(text)) => self.encoder.str(text)?,
                Some(MapKey::Int(number)) => self.encoder.int(*number),
                None => {}
            }
            if key.is_some() {
                self.path.push(node.key.clone());
                steps.push(Step::Leave);
            }
            match node.kind {
                NodeKind::None => self.encoder.nil(),
                NodeKind::Leaf => {
                    let leaf =
                        self.family.leaves_before.get(at).and_then(|&leaf| self.tree.leaves().get(leaf));
                    if let Some(leaf) = leaf {
                        let written = self.leaf(leaf);
                        self.refusals.keep(&self.path, written);
                    }
                }
                _ => {
                    if self.path.len() >= DEPTH_MAX {
                        return Err(too_deep().at_leaf(&self.path));
                    }
                    let members = self.members(at, node.child_count);
                    self.encoder.map(members.len())?;
                    steps.extend(members.into_iter().rev().map(|(key, at)| Step::Node(at, Some(key))));
                }
            }
        }
        Ok(())
    }

    /// The children of a node, in the order in the file.
    fn members(&mut self, at: usize, count: usize) -> Vec<(MapKey, usize)> {
        let mut members = Vec::with_capacity(count);
        let mut seen = HashSet::with_capacity(count);
        let is_partial = self.tree.nodes().get(at).is_some_and(|node| is_partial(&node.kind));
        for child in self.family.children(at, count) {
            let Some(node) = self.tree.nodes().get(child) else { continue };
            let key = match node.key {
                Key::Index(0) if is_partial => MapKey::Text("args".into()),
                Key::Index(1) if is_partial => MapKey::Text("keywords".into()),
                ref key => MapKey::of(key, self.flax),
            };
            let refuse =
                |refusals: &mut Refusals, error| refusals.add(&self.path.child(node.key.clone()), error);
            if key == MapKey::Text(CHUNKED_KEY.into()) {
                refuse(
                    &mut self.refusals,
                    Error::unsupported(format!("Flax reads a dict with the key {CHUNKED_KEY:?} as an array"))
                        .help("use another key"),
                );
            }
            if !seen.insert(key.clone()) {
                refuse(
                    &mut self.refusals,
                    Error::new(ErrorKind::NameCollision, "another key of the same dict has the same text")
                        .help("pass `integer_keys` to keep integer keys, or rename one of the two"),
                );
            }
            members.push((key, child));
        }
        if self.flax.sort_keys {
            let texts = members.iter().filter(|(key, _)| matches!(key, MapKey::Text(_))).count();
            if texts > 0 && texts < members.len() {
                self.refusals.add(
                    &self.path,
                    Error::invalid("integers and texts as keys of one dict have no order")
                        .help("leave out `sort_keys` or `integer_keys`"),
                );
            }
            members.sort_by(|a, b| a.0.cmp(&b.0));
        }
        members
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<()> {
        let array = match (&leaf.data, &leaf.kind) {
            (LeafData::Text(text), _) => return self.encoder.str(text),
            (_, LeafKind::PrngKey(_)) => {
                return Err(Error::unsupported("Flax cannot store typed PRNG keys").help(
                    "save jax.random.key_data(key), and make a key of it with jax.random.wrap_key_data",
                ));
            }
            (LeafData::Array(array), _) => array,
            (LeafData::Absent, kind) => {
                return Err(Error::unsupported(format!("a leaf of kind {} has no data", kind.name()))
                    .help("leave it out"));
            }
        };
        match &leaf.kind {
            LeafKind::Bytes => self.encoder.bin(array),
            LeafKind::Scalar => self.scalar(array),
            LeafKind::NumpyOther(descr) => self.other(EXT_NDARRAY, descr, array),
            LeafKind::NumpyOtherScalar(descr) => self.other(EXT_NUMPY_SCALAR, descr, array),
            LeafKind::NumpyScalar => self.ndarray(EXT_NUMPY_SCALAR, array, None),
            _ => self.ndarray(EXT_NDARRAY, array, Some(self.flax.max_chunk_bytes)),
        }
    }

    fn ndarray(&mut self, code: i8, array: &Array, max_chunk_bytes: Option<u64>) -> Result<()> {
        let dtype = array.dtype();
        let head = ArrayHead {
            code,
            dims: array.shape().dims(),
            dtype_name: dtype.name(),
            size_bytes: dtype.size_bytes() as u64,
        };
        self.encoder.ndarray(head, array, max_chunk_bytes)
    }

    /// Writes an array or scalar of a dtype that only NumPy has. The last axis is the bytes of an
    /// element.
    fn other(&mut self, code: i8, descr: &str, array: &Array) -> Result<()> {
        let Some((name, is_big)) = to_name(descr) else {
            return Err(Error::unsupported(format!("Flax cannot read an array of dtype {descr} back"))
                .help("convert it to numbers, or store text as str and bytes as bytes"));
        };
        let Some((&size_bytes, dims)) = array.shape().dims().split_last() else {
            return Err(Error::invalid("an array of a NumPy-only dtype lacks its axis of bytes"));
        };
        let array = match is_big {
            true => swap_words(array, word_bytes(size_bytes as usize))?,
            false => array.clone(),
        };
        let head = ArrayHead { code, dims, dtype_name: &name, size_bytes };
        let max_chunk_bytes = (code == EXT_NDARRAY).then_some(self.flax.max_chunk_bytes);
        self.encoder.ndarray(head, &array, max_chunk_bytes)
    }

    fn scalar(&mut self, array: &Array) -> Result<()> {
        let element = array.to_c_order()?;
        let wide = |to: Dtype| -> Result<[u8; 16]> {
            let mut out = [0; 16];
            let room = out.get_mut(..to.size_bytes()).unwrap_or_default();
            cast_bytes(&element, array.dtype(), to, room).map(|_| out)
        };
        let word = |bytes: [u8; 16]| u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]));
        match array.dtype().class() {
            DtypeClass::Bool => self.encoder.bool(element.first().is_some_and(|&byte| byte != 0)),
            DtypeClass::Signed => self.encoder.int(word(wide(Dtype::Int64)?).cast_signed()),
            DtypeClass::Unsigned => self.encoder.uint(word(wide(Dtype::UInt64)?)),
            DtypeClass::Float => self.encoder.float(f64::from_bits(word(wide(Dtype::Float64)?))),
            DtypeClass::Complex => {
                let both = wide(Dtype::Complex128)?;
                let im = both.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                self.encoder.complex(f64::from_bits(word(both)), f64::from_bits(im));
            }
        }
        Ok(())
    }
}
