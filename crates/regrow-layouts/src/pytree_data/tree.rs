//! From entries to a pytree: the exact pytree if it is stored, otherwise dicts made from the paths.

use std::collections::HashMap;
use std::sync::Arc;

use super::manifest::{Entry, Manifest};
use super::paths::{about, identity, key_of, literals_of, path_text};
use crate::npy::descr::Descr;
use crate::structure::Structure;
use regrow_base::bytes::python_literal::Literal;
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// A pytree with the entry of every leaf.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// For each leaf, the number of its entry; `None` for leaves without data.
    pub entries: Vec<Option<usize>>,
}

/// The pytree of a manifest whose paths do not contradict each other.
pub(super) fn place(manifest: &Manifest) -> Result<Placed> {
    let empty = manifest.extra.as_ref().map(|extra| extra.empty.as_slice()).unwrap_or_default();
    let branches = Branches::of(&manifest.entries, empty)?;
    match manifest.extra.as_ref().and_then(|extra| extra.structure.as_deref()) {
        Some(structure) => kept(structure, &manifest.entries),
        None => branches.into_placed(&manifest.entries),
    }
}

/// Checks that the paths of a manifest do not contradict each other. This check is for callers that
/// build Python dicts from the paths: dicts can have keys that a pytree cannot have.
///
/// # Errors
/// `Corrupt`, as [`place`].
pub(super) fn check_paths(manifest: &Manifest) -> Result<()> {
    let empty = manifest.extra.as_ref().map(|extra| extra.empty.as_slice()).unwrap_or_default();
    Branches::of(&manifest.entries, empty).map(drop)
}

pub(super) fn info_of(entry: &Entry) -> Result<LeafInfo> {
    let (kind, dtype, shape) = match &entry.descr {
        Descr::Number { dtype, .. } => (LeafKind::NumpyArray, *dtype, entry.shape.clone()),
        other => {
            let mut dims = entry.shape.dims().to_vec();
            dims.push(other.item_len_bytes());
            (LeafKind::NumpyOther(Arc::from(other.text())), Dtype::UInt8, Shape::new(dims)?)
        }
    };
    Ok(LeafInfo {
        kind,
        dtype,
        shape,
        name: Arc::from(path_text(&entry.path)),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: Arc::from(match entry.descr {
            Descr::Number { big_endian: true, .. } => "raw, big-endian",
            _ => "raw",
        }),
    })
}

/// The value at a path.
#[derive(Debug)]
enum What {
    Entry(usize),
    Dict { children: Vec<usize> },
}

#[derive(Debug)]
struct Branch {
    key: Key,
    what: What,
}

/// The dicts and leaves that paths make, each child after its parent.
#[derive(Debug)]
struct Branches(Vec<Branch>);

impl Branches {
    fn of(entries: &[Entry], empty: &[Vec<Literal>]) -> Result<Self> {
        let dict = || What::Dict { children: Vec::new() };
        let mut all = vec![Branch { key: Key::Index(0), what: dict() }];
        let mut by_key: HashMap<(usize, String), usize> = HashMap::new();
        let leaves = entries.iter().enumerate().map(|(at, entry)| (&entry.path, Some(at)));
        let mut is_root_taken = false;
        for (path, entry) in leaves.chain(empty.iter().map(|path| (path, None))) {
            let conflict = |why: &str| {
                about(Error::corrupt(format!("the manifest's paths contradict each other: {why}")), path)
            };
            if is_root_taken || path.is_empty() && all.len() > 1 {
                return Err(conflict("a root array has other arrays beside it"));
            }
            let mut at = 0;
            for (depth, key) in path.iter().enumerate() {
                let is_last = depth + 1 == path.len();
                let next = all.len();
                let found = *by_key.entry((at, identity(key))).or_insert(next);
                if found == next {
                    let what = match entry {
                        Some(entry) if is_last => What::Entry(entry),
                        _ => dict(),
                    };
                    all.push(Branch { key: key_of(key), what });
                    if let Some(Branch { what: What::Dict { children }, .. }) = all.get_mut(at) {
                        children.push(next);
                    }
                } else {
                    match (is_last, all.get(found).map(|branch| &branch.what)) {
                        (false, Some(What::Entry(_))) => {
                            return Err(conflict(
                                "an array is inside another \
                            array",
                            ));
                        }
                        (true, Some(What::Entry(_))) => return Err(conflict("the same path occurs twice")),
                        (true, Some(What::Dict { children })) if entry.is_some() || !children.is_empty() => {
                            return Err(conflict("an array has the path of a container"));
                        }
                        _ => {}
                    }
                }
                at = found;
            }
            if let (true, Some(entry), Some(root)) = (path.is_empty(), entry, all.first_mut()) {
                root.what = What::Entry(entry);
                is_root_taken = true;
            }
        }
        Ok(Self(all))
    }

    fn into_placed(self, entries: &[Entry]) -> Result<Placed> {
        enum Step {
            Visit(usize),
            Close,
        }
        let mut build = TreeBuilder::new();
        let mut places = Vec::with_capacity(entries.len());
        let mut steps = vec![Step::Visit(0)];
        while let Some(step) = steps.pop() {
            let Step::Visit(at) = step else {
                build.close()?;
                continue;
            };
            let Some(Branch { key, what }) = self.0.get(at) else { continue };
            match what {
                What::Entry(entry) => {
                    let Some(found) = entries.get(*entry) else { continue };
                    build.leaf(key.clone(), info_of(found).map_err(|error| about(error, &found.path))?)?;
                    places.push(Some(*entry));
                }
                What::Dict { children } => {
                    build.open(key.clone(), NodeKind::Dict)?;
                    steps.push(Step::Close);
                    steps.extend(children.iter().rev().map(|&child| Step::Visit(child)));
                }
            }
        }
        let tree = build.finish()?;
        match tree.first_equal_keys() {
            // Only keys that are neither text nor a number of 64 bits can print as the same text.
            Some(path) => Err(Error::unsupported("two keys of one dict print as the same text")
                .at_leaf(&path)
                .help("load the model with regrow.pytree.model_load, which keeps keys of every type")),
            None => Ok(Placed { tree, entries: places }),
        }
    }
}

fn kept(structure: &str, entries: &[Entry]) -> Result<Placed> {
    let mut tree = Structure::from_json(structure)?.regrow()?.tree;
    let text_of = |path: &[Literal]| path.iter().map(identity).collect::<Vec<_>>().join(",");
    let by_path: HashMap<String, usize> =
        entries.iter().enumerate().map(|(at, entry)| (text_of(&entry.path), at)).collect();
    let mut places = Vec::with_capacity(tree.len());
    let mut infos = Vec::with_capacity(tree.len());
    for (path, info) in tree.iter() {
        if matches!(info.kind, LeafKind::Placeholder) {
            places.push(None);
            infos.push(None);
            continue;
        }
        let at = by_path.get(&text_of(&literals_of(&path))).copied();
        let Some((at, entry)) = at.and_then(|at| Some((at, entries.get(at)?))) else {
            return Err(Error::corrupt("a leaf of the stored pytree is not in the manifest").at_leaf(&path));
        };
        let stored = info_of(entry)?;
        let is_other = |kind: &LeafKind| matches!(kind, LeafKind::NumpyOther(_));
        let differs = stored.dtype != info.dtype
            || stored.shape != info.shape
            || (is_other(&stored.kind) || is_other(&info.kind)) && stored.kind != info.kind;
        if differs {
            return Err(Error::corrupt("an array differs from the stored pytree").at_leaf(&path).expected(
                format_args!("{} {}", info.dtype, info.shape),
                format_args!("{} {}", stored.dtype, stored.shape),
            ));
        }
        places.push(Some(at));
        infos.push(Some(stored));
    }
    for (info, stored) in tree.leaves_mut().iter_mut().zip(infos) {
        if let Some(stored) = stored {
            info.name = stored.name;
            info.coding = stored.coding;
        }
    }
    if places.iter().flatten().count() != entries.len() {
        return Err(Error::corrupt("the manifest has arrays that the stored pytree lacks")
            .expected(places.iter().flatten().count(), entries.len()));
    }
    Ok(Placed { tree, entries: places })
}
