//! Builds a pytree from tensors: the stored pytree of regrow, a flat dict of names, or nested
//! dicts.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::layout::{F4, Tensor, can_be_packed, stored_as};
use super::packed::F4_BITS;
use crate::structure::Regrown;
use regrow_base::bytes::limits::TREE_DEPTH_MAX;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// The most dicts that names may create: one name can have a million separators.
const NESTED_MAX: usize = 4_000_000;

/// The form of the pytree that is built from the tensors of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TreeForm {
    /// The pytree that regrow stored in the file; a flat dict of names in a file without one.
    #[default]
    Kept,
    /// A flat dict of names, as in safetensors, even if the file has a stored pytree.
    Flat,
    /// Nested dicts: names are split at this separator.
    Nested(String),
}

pub(super) type Stored = (usize, Tensor);

/// A pytree with the tensor of every leaf.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`.
    pub texts: HashMap<usize, Arc<str>>,
    /// For each leaf, its tensor; `None` for leaves without readable elements.
    pub tensors: Vec<Option<Stored>>,
    pub lost: HashMap<usize, Error>,
}

/// In a salvage, the tensors in files that cannot be read.
#[derive(Debug)]
pub(super) struct Lost {
    pub at: PathBuf,
    /// The lost tensors, by name, with their errors.
    pub tensors: BTreeMap<Arc<str>, Error>,
}

/// Finds the tensor of every leaf of a stored pytree. With `salvage`, leaves without their tensors
/// are lost.
///
/// # Errors
/// `Corrupt` if a tensor is missing or has another dtype or shape.
pub(super) fn kept(regrown: Regrown, stored: &[Stored], salvage: Option<&Lost>) -> Result<Placed> {
    let by_name: HashMap<&str, &Stored> = stored.iter().map(|entry| (&*entry.1.name, entry)).collect();
    let Regrown { mut tree, texts } = regrown;
    let mut tensors = Vec::with_capacity(tree.len());
    let mut lost = HashMap::new();
    for (path, info) in tree.iter() {
        if !info.kind.is_array() {
            tensors.push(None);
            continue;
        }
        let Some(&found) = by_name.get(&*info.name) else {
            let missing = Error::corrupt(format!("the tensor {:?} is not in the file", info.name))
                .help("open the folder: other files of the checkpoint have the other leaves");
            let Some(salvage) = salvage else { return Err(missing.at_leaf(&path)) };
            let why = salvage.tensors.get(&*info.name).map(Error::duplicate);
            lost.insert(tensors.len(), why.unwrap_or_else(|| missing.in_file(&salvage.at)));
            tensors.push(None);
            continue;
        };
        let (tag, dims) = match can_be_packed(info.dtype, &info.shape) && found.1.tag == F4 {
            true => (F4, info.shape.dims().to_vec()),
            false => stored_as(info.dtype, &info.shape),
        };
        if found.1.tag != tag || found.1.shape.dims() != dims {
            return Err(Error::corrupt("a tensor differs from its pytree")
                .at_leaf(&path)
                .at_byte(found.1.offset_bytes)
                .expected(
                    format_args!("{tag} {dims:?}"),
                    format_args!("{} {}", found.1.tag, found.1.shape),
                ));
        }
        tensors.push(Some(found.clone()));
    }
    let (raw, packed): (Arc<str>, Arc<str>) = (Arc::from("raw"), Arc::from("packed"));
    for (info, tensor) in tree.leaves_mut().iter_mut().zip(&tensors) {
        if let Some((_, tensor)) = tensor {
            info.coding = if tensor.is_packed() { packed.clone() } else { raw.clone() };
        }
    }
    Ok(Placed { tree, texts, tensors, lost })
}

/// A flat dict of the tensors, in the order of their bytes, followed by the lost tensors.
pub(super) fn flat(stored: Vec<Stored>, salvage: Option<&Lost>) -> Result<Placed> {
    let mut place = Placing::default();
    place.build.open(Key::Index(0), NodeKind::Dict)?;
    for stored in stored {
        let name = stored.1.name.clone();
        place.leaf(Key::Dict(name), stored)?;
    }
    for (name, why) in salvage.iter().flat_map(|lost| &lost.tensors) {
        place.lost_leaf(name, why)?;
    }
    place.build.close()?;
    place.finish()
}

/// Nested dicts, by the parts of the names between `separator`. A key is at the position of its
/// first tensor.
///
/// # Errors
/// `NameCollision` if one name and a separator are the prefix of another;
/// `InvalidArgument` for an empty separator; `Limit` for names of too many parts.
pub(super) fn nested(stored: Vec<Stored>, separator: &str) -> Result<Placed> {
    if separator.is_empty() {
        return Err(Error::invalid("names cannot be split at an empty separator")
            .expected("such as \".\"", "\"\"")
            .help("for a flat dict, leave out the separator"));
    }
    let mut branches = vec![Branch::default()];
    let mut children: HashMap<(usize, Arc<str>), usize> = HashMap::new();
    for stored in stored {
        let name = stored.1.name.clone();
        let mut at = 0;
        for (depth, part) in name.split(separator).enumerate() {
            let key: Arc<str> = Arc::from(part);
            let next = branches.len();
            let child = *children.entry((at, key.clone())).or_insert(next);
            if depth >= TREE_DEPTH_MAX - 1 || next >= NESTED_MAX {
                let what = format!("the names have too many parts between {separator:?}");
                return Err(Error::new(ErrorKind::Limit, what));
            }
            if let Some(parent) = branches.get_mut(at).filter(|_| child == next) {
                parent.children.push(child);
                branches.push(Branch { key, ..Branch::default() });
            }
            if let Some((_, tensor)) = branches.get(at).and_then(|parent| parent.tensor.as_ref()) {
                return Err(goes_on(&tensor.name, &name));
            }
            at = child;
        }
        if let Some(longer) = first_below(&branches, at) {
            return Err(goes_on(&name, longer));
        }
        if let Some(branch) = branches.get_mut(at) {
            branch.tensor = Some(stored);
        }
    }
    let mut place = Placing::default();
    // Branches to open, and `None` where a branch ends.
    let mut to_do = vec![Some(0)];
    while let Some(next) = to_do.pop() {
        let Some(branch) = next.and_then(|at: usize| branches.get_mut(at)) else {
            place.build.close()?;
            continue;
        };
        match branch.tensor.take() {
            Some(stored) => place.leaf(Key::Dict(branch.key.clone()), stored)?,
            None => {
                place.build.open(Key::Dict(branch.key.clone()), NodeKind::Dict)?;
                to_do.push(None);
                to_do.extend(branch.children.iter().rev().map(|&child| Some(child)));
            }
        }
    }
    place.finish()
}

/// A dict, or a tensor in a dict.
#[derive(Default)]
struct Branch {
    key: Arc<str>,
    children: Vec<usize>,
    tensor: Option<Stored>,
}

/// The name of a tensor below a branch that is a dict.
fn first_below(branches: &[Branch], mut at: usize) -> Option<&str> {
    while let Some(&child) = branches.get(at)?.children.first() {
        at = child;
    }
    branches.get(at)?.tensor.as_ref().map(|(_, tensor)| &*tensor.name)
}

fn goes_on(name: &str, longer: &str) -> Error {
    let what = format!("{name:?} is a tensor, so {longer:?} cannot be inside it");
    Error::new(ErrorKind::NameCollision, what)
        .help("choose another separator, or load the flat dict of names")
}

/// A tree that is built leaf by leaf.
struct Placing {
    build: TreeBuilder<LeafInfo>,
    tensors: Vec<Option<Stored>>,
    lost: HashMap<usize, Error>,
    raw: Arc<str>,
    packed: Arc<str>,
}

impl Default for Placing {
    fn default() -> Self {
        let (raw, packed) = (Arc::from("raw"), Arc::from("packed"));
        Self { build: TreeBuilder::new(), tensors: Vec::new(), lost: HashMap::new(), raw, packed }
    }
}

impl Placing {
    fn leaf(&mut self, key: Key, (file, tensor): Stored) -> Result<()> {
        let can_be_read = !tensor.is_packed() || tensor.element_bits == F4_BITS;
        // A packed dtype takes more bytes in memory than in the file. Check that their number does
        // not overflow.
        tensor.shape.len_bytes(tensor.dtype)?;
        let info = LeafInfo {
            kind: match can_be_read {
                true => LeafKind::NumpyArray,
                false => LeafKind::Unknown(Arc::from(format!("safetensors {}", tensor.tag))),
            },
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            name: tensor.name.clone(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: if tensor.is_packed() { self.packed.clone() } else { self.raw.clone() },
        };
        self.build.leaf(key, info)?;
        self.tensors.push(can_be_read.then_some((file, tensor)));
        Ok(())
    }

    /// Adds a lost leaf. Only its name is known.
    fn lost_leaf(&mut self, name: &Arc<str>, why: &Error) -> Result<()> {
        let info = LeafInfo {
            kind: LeafKind::Placeholder,
            dtype: Dtype::UInt8,
            shape: Shape::scalar(),
            name: name.clone(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        };
        self.build.leaf(Key::Dict(name.clone()), info)?;
        self.lost.insert(self.tensors.len(), why.duplicate());
        self.tensors.push(None);
        Ok(())
    }

    fn finish(self) -> Result<Placed> {
        let Self { build, tensors, lost, .. } = self;
        Ok(Placed { tree: build.finish()?, texts: HashMap::new(), tensors, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(names: &[&str]) -> Vec<Stored> {
        let tensor = |name: &str| Tensor {
            name: Arc::from(name),
            tag: "U8",
            dtype: Dtype::UInt8,
            element_bits: 8,
            shape: Shape::scalar(),
            offset_bytes: 0,
            len_bytes: 1,
        };
        names.iter().map(|name| (0, tensor(name))).collect()
    }

    fn paths(names: &[&str], separator: &str) -> Result<Vec<String>> {
        let placed = nested(stored(names), separator)?;
        assert_eq!(placed.tensors.len(), placed.tree.len());
        let found = placed.tree.iter().zip(&placed.tensors);
        Ok(found
            .map(|((path, info), tensor)| {
                assert_eq!(tensor.as_ref().unwrap().1.name, info.name);
                path.to_string()
            })
            .collect())
    }

    #[test]
    fn names_become_dicts_in_the_order_of_their_first_tensors() {
        assert_eq!(paths(&["b.x", "a", "b.y.z", "b.y.w"], ".").unwrap(), ["b/x", "b/y/z", "b/y/w", "a"]);
        assert_eq!(paths(&["a.b", "a::b"], "::").unwrap(), ["a.b", "a/b"]);
        assert_eq!(paths(&["", ".a", "b..c"], "/").unwrap(), ["", ".a", "b..c"]);
        assert_eq!(paths(&[".a", "b..c"], ".").unwrap(), ["/a", "b//c"]);
        assert_eq!(paths(&[], ".").unwrap(), [""; 0]);
    }

    #[test]
    fn a_tensor_holds_no_tensors() {
        for names in [["a", "a.b"], ["a.b", "a"], ["x.a.b.c", "x.a"], ["", ".a"]] {
            let error = paths(&names, ".").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NameCollision);
            assert!(names.iter().all(|name| error.what().contains(&format!("{name:?}"))), "{error}");
        }
        assert!(paths(&["a"], "").is_err());
    }

    #[test]
    fn a_name_of_very_many_parts_is_refused() {
        let long = ".".repeat(TREE_DEPTH_MAX + 1);
        assert_eq!(paths(&[&long], ".").unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(paths(&[&".".repeat(1000)], ".").unwrap().len(), 1);
    }
}
