//! What goes where: the stored dtype, name and offset of every leaf, before a byte is written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::manifest::LeafPlace;
use super::stored_dtype;
use crate::array::{Dtype, Shape};
use crate::engine::{Compression, SaveOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// Leaves below this size are not worth compressing.
const COMPRESS_LEN_MIN_BYTES: u64 = 1024;

/// Chunks of compressed leaves are at most this large: small enough to decode in parallel and within a budget.
const CHUNK_LEN_MAX_BYTES: u64 = 8 << 20;

/// Where a safetensors file ends and the next begins: safetensors refuses headers above 100 MB.
pub(super) const HEADER_LEN_MAX_BYTES: usize = 64 << 20;

/// Alignments beyond a page are worth nothing.
const ALIGNMENT_MAX_BYTES: u64 = 4096;

/// One leaf of a save.
#[derive(Debug)]
pub(super) struct LeafPlan {
    /// Where it sits.
    pub path: KeyPath,
    /// The same, as Orbax is told: escaped where Orbax could not say it.
    pub orbax_path: KeyPath,
    /// What it is, with the dtype that is stored (after a cast).
    pub info: LeafInfo,
    /// Raw in the safetensors file, as chunks in the database, or without data.
    pub place: LeafPlace,
}

impl LeafPlan {
    /// The name under which Orbax, safetensors and the database know it.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Whether zarr gets an array for it: everything with elements.
    pub fn has_elements(&self) -> bool {
        self.info.kind.is_array() && !self.info.shape.is_empty()
    }
}

/// A whole save.
#[derive(Debug)]
pub(super) struct Plan {
    /// In flatten order.
    pub leaves: Vec<LeafPlan>,
    /// Raw leaves in the order of their bytes, a list for each safetensors file.
    pub raw_files: Vec<Vec<usize>>,
}

impl Plan {
    /// Plans the save of `tree`; raw leaves get their offsets from [`place_raw`](Self::place_raw), once the
    /// length of each header is known.
    ///
    /// # Errors
    /// `Unsupported` with all leaves that cannot be stored; with `strict_orbax` also those that Orbax could not
    /// read back as they are.
    pub fn new(tree: &Tree<Leaf>, options: &SaveOptions, header_len_max_bytes: usize) -> Result<Self> {
        if let Some(path) = tree.first_equal_keys() {
            return Err(Error::new(
                ErrorKind::NameCollision,
                "two children of one container have the same key",
            )
            .at_leaf(&path));
        }
        let paths = tree.paths();
        let orbax_paths = orbax_paths(&paths, tree.leaves());
        let mut refused = Vec::new();
        let mut leaves = Vec::with_capacity(paths.len());
        for ((path, (orbax_path, name)), leaf) in paths.into_iter().zip(orbax_paths).zip(tree.leaves()) {
            let (dtype, shape) = match &leaf.data {
                LeafData::Array(array) => {
                    let cast = options.cast.iter().find(|(pattern, _)| pattern.matches(&path));
                    let to = cast.filter(|_| leaf.kind.is_castable()).map(|(_, to)| *to);
                    (to.unwrap_or(array.dtype()), array.shape().clone())
                }
                LeafData::Text(text) => (Dtype::UInt8, Shape::new(vec![text.len() as u64])?),
                LeafData::Absent => (Dtype::UInt8, Shape::scalar()),
            };
            if let LeafKind::Unknown(name) = &leaf.kind {
                refused.push(format!("{path}: a leaf of the unknown type {name:?}"));
            }
            let len_bytes = shape.len_bytes(dtype)?;
            let compressed = matches!(options.compression, Some(Compression::Zstd(_)));
            let place = match (&leaf.data, compressed && len_bytes >= COMPRESS_LEN_MIN_BYTES) {
                (LeafData::Array(_), true) => LeafPlace::Chunks,
                (LeafData::Array(_), false) => LeafPlace::Raw { file: 0, offset_bytes: 0 },
                _ => LeafPlace::Nowhere,
            };
            let info = LeafInfo {
                kind: leaf.kind.clone(),
                dtype,
                shape,
                name,
                chunk_shape: None,
                write_shape: None,
                sharding: leaf.sharding.clone(),
                coding: Arc::from(""),
            };
            let plan = LeafPlan { path, orbax_path, info, place };
            if options.strict_orbax
                && let Some(why) = beyond_orbax(&plan)
            {
                refused.push(format!("{}: {why}", plan.path));
            }
            leaves.push(plan);
        }
        if !refused.is_empty() {
            let list = refused.join("\n    ");
            return Err(Error::unsupported(format!(
                "{} leaves cannot be saved like this:\n    {list}",
                refused.len()
            ))
            .help("leave these leaves out, convert them, or save without strict_orbax"));
        }
        let mut raw_order: Vec<usize> = (0..leaves.len()).collect();
        raw_order
            .retain(|&leaf| leaves.get(leaf).is_some_and(|leaf| matches!(leaf.place, LeafPlace::Raw { .. })));
        // By falling alignment of its size, each leaf starts at a multiple of that, whatever came before.
        raw_order.sort_by_cached_key(|&leaf| {
            leaves
                .get(leaf)
                .map(|leaf| (std::cmp::Reverse(alignment(leaf.info.len_bytes())), leaf.info.name.clone()))
        });
        let raw_files = split_by_header(&raw_order, &leaves, header_len_max_bytes);
        Ok(Self { leaves, raw_files })
    }

    /// The raw leaves of one file, in the order of their bytes.
    pub fn raw_leaves(&self, file: usize) -> impl Iterator<Item = &LeafPlan> {
        let order = self.raw_files.get(file).map_or(&[][..], Vec::as_slice);
        order.iter().filter_map(|&leaf| self.leaves.get(leaf))
    }

    /// Gives the raw leaves of one file their offsets, the first at `data_offset`; returns the byte after the last.
    pub fn place_raw(&mut self, file: usize, data_offset: u64) -> u64 {
        let mut at = data_offset;
        for &leaf in self.raw_files.get(file).map_or(&[][..], Vec::as_slice) {
            if let Some(leaf) = self.leaves.get_mut(leaf) {
                leaf.place = LeafPlace::Raw { file, offset_bytes: at };
                at += leaf.info.len_bytes();
            }
        }
        at
    }
}

/// Cuts the raw leaves into files whose safetensors headers stay well below what safetensors accepts. There is
/// always one file.
fn split_by_header(raw_order: &[usize], leaves: &[LeafPlan], header_len_max_bytes: usize) -> Vec<Vec<usize>> {
    let mut files = vec![Vec::new()];
    let mut header_len_bytes = 0;
    for &leaf in raw_order {
        let Some(plan) = leaves.get(leaf) else { continue };
        // Escaping can make six bytes of one; offsets, dtype and punctuation fit in the rest.
        let entry_len = 6 * plan.info.name.len() + 21 * plan.info.shape.rank() + 100;
        if header_len_bytes + entry_len > header_len_max_bytes {
            files.push(Vec::new());
            header_len_bytes = 0;
        }
        header_len_bytes += entry_len;
        if let Some(file) = files.last_mut() {
            file.push(leaf);
        }
    }
    files
}

/// Largest power of two that divides the size, up to a page; nothing divides an empty leaf better.
fn alignment(len_bytes: u64) -> u64 {
    if len_bytes == 0 {
        ALIGNMENT_MAX_BYTES
    } else {
        (1 << len_bytes.trailing_zeros()).min(ALIGNMENT_MAX_BYTES)
    }
}

/// The chunk shape of a compressed leaf: leading axes are cut until a chunk is small enough.
pub(super) fn chunk_shape(shape: &Shape, dtype: Dtype) -> Result<Shape> {
    let mut dims: Vec<u64> = shape.dims().to_vec();
    for axis in 0..dims.len() {
        let len = dims.iter().product::<u64>().saturating_mul(dtype.size_bytes() as u64);
        if len <= CHUNK_LEN_MAX_BYTES {
            break;
        }
        let below: u64 =
            dims.iter().skip(axis + 1).product::<u64>().saturating_mul(dtype.size_bytes() as u64);
        if let Some(dim) = dims.get_mut(axis) {
            *dim = (CHUNK_LEN_MAX_BYTES / below.max(1)).clamp(1, *dim);
        }
    }
    Shape::new(dims)
}

/// Why Orbax would not read this leaf back as it is, if so.
fn beyond_orbax(leaf: &LeafPlan) -> Option<String> {
    let info = &leaf.info;
    if leaf.orbax_path != leaf.path && leaf.orbax_path.join(".") != leaf.path.join(".") {
        return Some(format!(
            "its name collides or cannot be said in Orbax; it would become {:?}",
            leaf.name()
        ));
    }
    if info.kind.is_array() && info.shape.is_empty() {
        return Some("Orbax has no arrays of size zero".to_owned());
    }
    if info.kind.is_array() && stored_dtype(info.dtype) != info.dtype {
        return Some(format!("Orbax has no dtype {}", info.dtype));
    }
    match &info.kind {
        LeafKind::NumpyOther(dtype) => Some(format!("Orbax has no dtype {dtype}")),
        LeafKind::Bytes => Some("Orbax has no bytes leaves".to_owned()),
        LeafKind::NumpyScalar => Some("Orbax gives a NumPy scalar back as a Python number".to_owned()),
        LeafKind::Scalar if matches!(info.dtype, Dtype::Complex64 | Dtype::Complex128) => {
            Some("Orbax has no complex scalars".to_owned())
        }
        _ => None,
    }
}

/// The key paths as Orbax is told, and their names: as they are, unless two names would be equal or Orbax could
/// not say one.
fn orbax_paths(paths: &[KeyPath], leaves: &[Leaf]) -> Vec<(KeyPath, Arc<str>)> {
    let names: Vec<Arc<str>> = paths.iter().map(|path| Arc::from(path.join("."))).collect();
    let mut counts: HashMap<&str, usize> = HashMap::with_capacity(names.len());
    for name in &names {
        *counts.entry(name).or_default() += 1;
    }
    let stays = |((path, name), leaf): ((&KeyPath, &Arc<str>), &Leaf)| {
        counts.get(&**name) == Some(&1) && can_be_said(name, leaf.kind == LeafKind::Str, path.is_root())
    };
    let stay: Vec<bool> = paths.iter().zip(&names).zip(leaves).map(stays).collect();
    let mut taken: HashSet<String> = HashSet::new();
    if stay.contains(&false) {
        taken.extend(names.iter().zip(&stay).filter(|(_, stay)| **stay).map(|(name, _)| name.to_string()));
    }
    let mut out = Vec::with_capacity(paths.len());
    for ((path, name), stays) in paths.iter().zip(&names).zip(stay) {
        if stays {
            out.push((path.clone(), name.clone()));
            continue;
        }
        let mut escaped: KeyPath = path.keys().iter().map(escape).collect();
        // Two different paths can still print alike (`{1: x, "1": y}`): number them.
        let mut number = 1;
        while is_reserved(&escaped.join(".")) || !taken.insert(escaped.join(".")) {
            number += 1;
            let mut keys: Vec<Key> = path.keys().iter().map(escape).collect();
            if let Some(last) = keys.last_mut() {
                *last = Key::dict(format!("{}%{number}", last.text()));
            }
            escaped = keys.into();
        }
        let name = Arc::from(escaped.join("."));
        out.push((escaped, name));
    }
    out
}

/// Whether TensorStore takes the name as part of a key, and Orbax as a JSON pointer.
fn can_be_said(name: &str, is_text: bool, is_root: bool) -> bool {
    if is_root {
        return true;
    }
    let components_fine = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    let has_bad_character = name.contains('\0') || (is_text && name.contains('~'));
    components_fine && !has_bad_character && !is_reserved(name)
}

/// The one name that safetensors keeps to itself.
fn is_reserved(name: &str) -> bool {
    name == "__metadata__"
}

/// Percent-encodes what makes names ambiguous or unsayable; positions stay positions.
fn escape(key: &Key) -> Key {
    if let Key::Index(index) = key {
        return Key::Index(*index);
    }
    let mut text = String::new();
    for c in key.text().chars() {
        match c {
            '%' | '.' | '/' | '~' | '\\' => text.push_str(&format!("%{:02X}", c as u32)),
            c if c.is_control() && c.is_ascii() => text.push_str(&format!("%{:02X}", c as u32)),
            c => text.push(c),
        }
    }
    if text.is_empty() {
        text.push_str("%00");
    }
    Key::dict(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;

    fn path(keys: &[Key]) -> KeyPath {
        keys.to_vec().into()
    }

    fn names(paths: &[KeyPath]) -> Vec<String> {
        let array = Array::new(Dtype::UInt8, Shape::scalar(), vec![0].into()).unwrap();
        let leaves: Vec<Leaf> = paths.iter().map(|_| Leaf::array(array.clone())).collect();
        orbax_paths(paths, &leaves).iter().map(|(_, name)| name.to_string()).collect()
    }

    #[test]
    fn equal_keys_are_refused_where_they_stand() {
        let leaf = || Leaf::array(Array::new(Dtype::UInt8, Shape::scalar(), vec![0].into()).unwrap());
        let mut build = crate::tree::TreeBuilder::new();
        build.open(Key::Index(0), crate::tree::NodeKind::Dict).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.open(Key::dict("a"), crate::tree::NodeKind::Dict).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.leaf(Key::DictInt(1), leaf()).unwrap();
        build.leaf(Key::dict("1"), leaf()).unwrap();
        build.leaf(Key::dict("x"), leaf()).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        let error =
            Plan::new(&build.finish().unwrap(), &SaveOptions::default(), HEADER_LEN_MAX_BYTES).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "a/x");
    }

    #[test]
    fn only_names_that_collide_are_escaped() {
        let paths =
            [path(&[Key::dict("a"), Key::dict("b")]), path(&[Key::dict("a.b")]), path(&[Key::dict("c.d")])];
        assert_eq!(names(&paths), ["a.b", "a%2Eb", "c.d"].map(str::to_owned).map(|n| n).to_vec());
    }

    #[test]
    fn every_name_is_different_and_sayable() {
        let paths = [
            path(&[Key::dict("1")]),
            path(&[Key::DictInt(1)]),
            path(&[Key::dict("..")]),
            path(&[Key::dict("")]),
            path(&[Key::dict("a/../b")]),
            path(&[Key::dict("%2E%2E")]),
            path(&[Key::dict("x\0")]),
        ];
        let names = names(&paths);
        let distinct: HashSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| can_be_said(name, true, false)), "{names:?}");
    }

    #[test]
    fn chunks_stay_small_and_inside() {
        for dims in [vec![1, 1 << 30], vec![1 << 20, 1 << 10], vec![3, 5], vec![7, 1 << 24, 2], vec![]] {
            let shape = Shape::new(dims.clone()).unwrap();
            let chunk = chunk_shape(&shape, Dtype::Float32).unwrap();
            assert!(chunk.len_bytes(Dtype::Float32).unwrap() <= CHUNK_LEN_MAX_BYTES, "{chunk}");
            assert!(chunk.dims().iter().zip(&dims).all(|(c, d)| *c >= 1 && c <= d), "{chunk}");
        }
    }

    #[test]
    fn alignment_is_that_of_the_size() {
        assert_eq!([0, 1, 6, 64, 96, 8192].map(alignment), [4096, 1, 2, 64, 32, 4096]);
    }
}
