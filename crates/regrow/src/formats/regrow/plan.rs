//! What goes where: the stored dtype, name and offset of every leaf, before a byte is written.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::manifest::LeafPlace;
use super::stored_dtype;
use crate::array::{Array, Dtype, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Compression, SaveOptions};
use crate::store::ocdbt::KEY_LEN_MAX_BYTES;
use crate::text::counted;
use crate::tree::{Key, KeyPath, Leaf, LeafData, LeafKind, LeafNames, Tree};

/// Leaves below this size are not worth compressing.
const COMPRESS_LEN_MIN_BYTES: u64 = 1024;

/// Chunks of compressed leaves are at most this large: small enough to decode in parallel and within a budget.
const CHUNK_LEN_MAX_BYTES: u64 = 8 << 20;

/// Where a safetensors file ends and the next begins: safetensors refuses headers above 100 MB.
pub(super) const HEADER_LEN_MAX_BYTES: usize = 64 << 20;

/// Alignments beyond a page are worth nothing.
const ALIGNMENT_MAX_BYTES: u64 = 4096;

/// Longest name of a leaf in a database, whatever the rank of its array: `/c` and 64 numbers come behind it.
const NAME_LEN_MAX_BYTES: usize = KEY_LEN_MAX_BYTES - 2 - 64 * 21;

/// What is left of a longer one.
const SHORTENED_LEN_CHARS: usize = 200;

/// What is planned for one leaf, beyond what the tree itself says. SmallFiles: there may be a million.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeafPlan {
    /// The dtype that is stored (after a cast).
    pub dtype: Dtype,
    /// Bytes of the leaf as it is stored; for text those of its UTF-8.
    pub len_bytes: u64,
    /// Raw in the safetensors file, as chunks in the database, or without data.
    pub place: LeafPlace,
}

/// A whole save.
#[derive(Debug)]
pub(super) struct Plan<'t> {
    /// What is saved.
    pub tree: &'t Tree<Leaf>,
    /// In flatten order.
    pub leaves: Vec<LeafPlan>,
    /// Raw leaves in the order of their bytes, a list for each safetensors file.
    pub raw_files: Vec<Vec<u32>>,
    names: Names,
    by_name: Vec<u32>,
}

impl<'t> Plan<'t> {
    /// Plans the save of `tree`; raw leaves get their offsets from [`place_raw`](Self::place_raw), once the
    /// length of each header is known.
    ///
    /// # Errors
    /// `Unsupported` with all leaves that cannot be stored; with `strict_orbax` also those that Orbax could not
    /// read back as they are.
    pub fn new(tree: &'t Tree<Leaf>, options: &SaveOptions, header_len_max_bytes: usize) -> Result<Self> {
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
        // Patterns look at key paths, which are made for them alone.
        let casts = (!options.cast.is_empty()).then(|| {
            let to = |path: &KeyPath| options.cast.iter().find(|(pattern, _)| pattern.matches(path));
            tree.iter().map(|(path, _)| to(&path).map(|(_, to)| *to)).collect::<Vec<_>>()
        });
        let compressed = matches!(options.compression, Some(Compression::Zstd(_)));
        let mut leaves = Vec::with_capacity(tree.len());
        for (at, leaf) in tree.leaves().iter().enumerate() {
            let cast = casts.as_ref().and_then(|casts| casts.get(at).copied().flatten());
            let dtype = match &leaf.data {
                LeafData::Array(array) => {
                    cast.filter(|_| leaf.kind.is_castable()).unwrap_or_else(|| array.dtype())
                }
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
        let mut plan = Self { tree, leaves, raw_files: Vec::new(), names, by_name };
        plan.refuse(options)?;
        plan.raw_files = plan.split_by_header(&plan.raw_order(), header_len_max_bytes);
        Ok(plan)
    }

    fn refuse(&self, options: &SaveOptions) -> Result<()> {
        let mut refused = Vec::new();
        for (at, leaf) in self.tree.leaves().iter().enumerate() {
            if let LeafKind::Unknown(name) = &leaf.kind {
                refused.push(format!("{}: a leaf of the unknown type {name:?}", self.path(at)));
            }
            if options.strict_orbax
                && let Some(why) = self.beyond_orbax(at, leaf)
            {
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
        .help("leave these leaves out, convert them, or save without strict_orbax"))
    }

    /// The key path of a leaf, for messages.
    pub fn path(&self, leaf: usize) -> KeyPath {
        self.tree.path_of(leaf)
    }

    /// The key path that Orbax is told, where that is not the leaf's own.
    pub fn orbax_path(&self, leaf: usize) -> Option<&KeyPath> {
        self.names.escaped.get(&leaf).map(|(path, _)| path)
    }

    /// The name under which Orbax, safetensors and the database know a leaf.
    pub fn name(&self, leaf: usize) -> &str {
        self.names.get(leaf)
    }

    /// The same, if it is not the joined key path.
    pub fn other_name(&self, leaf: usize) -> Option<&str> {
        self.names.escaped.get(&leaf).map(|(_, name)| name.as_str())
    }

    /// All leaves, in the order of their names.
    pub fn by_name(&self) -> &[u32] {
        &self.by_name
    }

    /// A leaf with what is planned for it.
    pub fn leaf(&self, leaf: usize) -> Option<(&LeafPlan, &'t Leaf)> {
        self.leaves.get(leaf).zip(self.tree.leaves().get(leaf))
    }

    /// The array of a leaf as it is stored, which is after a cast; `None` for a leaf without one.
    pub fn stored_array(&self, leaf: usize) -> Option<Result<Cow<'t, Array>>> {
        let (planned, leaf) = self.leaf(leaf)?;
        let array = leaf.as_array()?;
        Some(match array.dtype() == planned.dtype {
            true => Ok(Cow::Borrowed(array)),
            false => array.cast(planned.dtype).map(Cow::Owned),
        })
    }

    /// Whether zarr gets an array for it: everything with elements.
    pub fn has_elements(leaf: &Leaf) -> bool {
        leaf.kind.is_array() && !leaf.as_array().is_some_and(|array| array.shape().is_empty())
    }

    /// Gives the raw leaves of one file their offsets, the first at `data_offset`; returns the byte after the last.
    pub fn place_raw(&mut self, file: usize, data_offset: u64) -> u64 {
        let mut at = data_offset;
        for &leaf in self.raw_files.get(file).map_or(&[][..], Vec::as_slice) {
            if let Some(leaf) = self.leaves.get_mut(leaf as usize) {
                leaf.place = LeafPlace::Raw { file, offset_bytes: at };
                at += leaf.len_bytes;
            }
        }
        at
    }

    /// By falling alignment of its size, each leaf starts at a multiple of that, whatever came before; within one
    /// alignment by name.
    pub fn raw_order(&self) -> Vec<u32> {
        let alignment_of = |leaf: u32| match self.leaves.get(leaf as usize) {
            Some(LeafPlan { place: LeafPlace::Raw { .. }, len_bytes, .. }) => Some(alignment(*len_bytes)),
            _ => None,
        };
        let mut order = Vec::with_capacity(self.by_name.len());
        let mut now = ALIGNMENT_MAX_BYTES;
        while now > 0 {
            order.extend(self.by_name.iter().copied().filter(|&leaf| alignment_of(leaf) == Some(now)));
            now /= 2;
        }
        order
    }

    /// Cuts the raw leaves into files whose safetensors headers stay well below what safetensors accepts. There
    /// is always one file.
    pub fn split_by_header(&self, raw_order: &[u32], header_len_max_bytes: usize) -> Vec<Vec<u32>> {
        let mut files = vec![Vec::new()];
        let mut header_len_bytes = 0;
        for &leaf in raw_order {
            let rank = self
                .tree
                .leaves()
                .get(leaf as usize)
                .and_then(Leaf::as_array)
                .map_or(0, |a| a.shape().rank());
            // Escaping can make six bytes of one; offsets, dtype and punctuation fit in the rest.
            let entry_len = 6 * self.name(leaf as usize).len() + 21 * rank + 100;
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

    /// Why Orbax would not read this leaf back as it is, if so.
    fn beyond_orbax(&self, at: usize, leaf: &Leaf) -> Option<String> {
        let dtype = self.leaves.get(at).map_or(Dtype::UInt8, |leaf| leaf.dtype);
        if self.orbax_path(at).is_some_and(|told| told.join(".") != self.path(at).join(".")) {
            return Some(format!(
                "its name collides or cannot be said in Orbax; it would become {:?}",
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
            LeafKind::NumpyScalar => Some("Orbax gives a NumPy scalar back as a Python number".to_owned()),
            LeafKind::Scalar if matches!(dtype, Dtype::Complex64 | Dtype::Complex128) => {
                Some("it would become an array to Orbax".to_owned())
            }
            _ => None,
        }
    }
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

/// The names of all leaves: their joined key paths, unless two would be equal or Orbax could not say one.
#[derive(Debug)]
struct Names {
    joined: LeafNames,
    /// Of the few others: what Orbax is told, and the name.
    escaped: HashMap<usize, (KeyPath, String)>,
}

impl Names {
    /// The names, and the leaves in the order of theirs.
    fn new(tree: &Tree<Leaf>) -> (Self, Vec<u32>) {
        let mut names = Self { joined: LeafNames::of(tree, "."), escaped: HashMap::new() };
        let mut by_name = names.order();
        let must_change = names.that_must_change(tree, &by_name);
        if !must_change.is_empty() {
            names.escape(tree, &must_change);
            by_name = names.order();
        }
        (names, by_name)
    }

    fn get(&self, leaf: usize) -> &str {
        match self.escaped.is_empty() {
            true => self.joined.get(leaf),
            false => self.escaped.get(&leaf).map_or_else(|| self.joined.get(leaf), |(_, name)| name),
        }
    }

    /// Names come in long rising runs, which a stable sort finds.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.joined.len() as u32).collect();
        order.sort_by(|&a, &b| self.get(a as usize).cmp(self.get(b as usize)));
        order
    }

    fn that_must_change(&self, tree: &Tree<Leaf>, by_name: &[u32]) -> BTreeSet<usize> {
        let name = |leaf: &u32| self.joined.get(*leaf as usize);
        let mut found = BTreeSet::new();
        for pair in by_name.windows(2) {
            if let [a, b] = pair
                && name(a) == name(b)
            {
                found.extend([*a as usize, *b as usize]);
            }
        }
        let is_root = tree.nodes().len() == 1;
        for (at, leaf) in tree.leaves().iter().enumerate() {
            if !can_be_said(self.joined.get(at), leaf.kind == LeafKind::Str, is_root) {
                found.insert(at);
            }
        }
        found
    }

    fn escape(&mut self, tree: &Tree<Leaf>, must_change: &BTreeSet<usize>) {
        let others = (0..self.joined.len()).filter(|leaf| !must_change.contains(leaf));
        let mut taken: HashSet<String> = others.map(|leaf| self.joined.get(leaf).to_owned()).collect();
        for (leaf, (path, _)) in tree.iter().enumerate().filter(|(leaf, _)| must_change.contains(leaf)) {
            let short = shortened(path.keys().iter().map(escape).collect());
            let mut escaped = short.clone();
            // Two different paths can still print alike (`{1: x, "1": y}`): number them.
            let mut number = 1;
            while is_reserved(&escaped.join(".")) || !taken.insert(escaped.join(".")) {
                number += 1;
                escaped = short.clone();
                if let Some(last) = escaped.pop() {
                    escaped.push(Key::dict(format!("{}%{number}", last.text())));
                }
            }
            let name = escaped.join(".");
            self.escaped.insert(leaf, (escaped, name));
        }
    }
}

/// Whether TensorStore takes the name as part of a key, and Orbax as a JSON pointer.
fn can_be_said(name: &str, is_text: bool, is_root: bool) -> bool {
    if is_root {
        return true;
    }
    if name.len() > NAME_LEN_MAX_BYTES {
        return false;
    }
    let is_suspect = |byte: u8| matches!(byte, b'/' | b'~' | b'_' | 0);
    if name.len() > 2 && !name.bytes().any(is_suspect) {
        return true;
    }
    let components_fine = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    let has_bad_character = name.contains('\0') || (is_text && name.contains('~'));
    components_fine && !has_bad_character && !is_reserved(name)
}

/// A path of one key for a leaf whose name is too long for a database: the beginning of that name.
fn shortened(path: KeyPath) -> KeyPath {
    let name = path.join(".");
    if name.len() <= NAME_LEN_MAX_BYTES {
        return path;
    }
    let start: String = name.chars().take(SHORTENED_LEN_CHARS).collect();
    KeyPath::from_iter([Key::dict(format!("{start}%long"))])
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

    fn path(keys: &[Key]) -> KeyPath {
        keys.to_vec().into()
    }

    /// The names of the leaves of a dict with these paths, each of one key or two.
    fn names(paths: &[KeyPath]) -> Vec<String> {
        let array = Array::new(Dtype::UInt8, Shape::scalar(), vec![0].into()).unwrap();
        let mut build = crate::tree::TreeBuilder::new();
        build.open(Key::Index(0), crate::tree::NodeKind::Dict).unwrap();
        for path in paths {
            let (last, above) = path.keys().split_last().unwrap();
            for key in above {
                build.open(key.clone(), crate::tree::NodeKind::Dict).unwrap();
            }
            build.leaf(last.clone(), Leaf::array(array.clone())).unwrap();
            above.iter().for_each(|_| build.close().unwrap());
        }
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let (names, by_name) = Names::new(&tree);
        assert!(by_name.is_sorted_by_key(|&leaf| names.get(leaf as usize)));
        (0..paths.len()).map(|leaf| names.get(leaf).to_owned()).collect()
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
