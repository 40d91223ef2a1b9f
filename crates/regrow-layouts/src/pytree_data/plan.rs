//! The plan of a save: the arrays of a tree with path, type and offset, and the additional keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::PytreeDataOptions;
use super::manifest::{Entry, Extra, parse_dtype, parse_path};
use super::paths::{about, identity, key_of, literals_of, path_text};
use crate::npy::descr::Descr;
use crate::refusals::Refusals;
use crate::structure::Structure;
use crate::{Loss, LossKind};
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::{Key, KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Node, NodeKind, Tree};

/// An array to write.
#[derive(Debug)]
pub(super) struct Planned {
    /// The entry in the manifest, without its checksums yet.
    pub entry: Entry,
    /// The data, in the dtype it is stored as.
    pub array: Array,
}

/// The plan of a save.
#[derive(Debug)]
pub(super) struct Plan {
    pub arrays: Vec<Planned>,
    pub extra: Option<Extra>,
    pub len_bytes: u64,
}

impl Plan {
    pub(super) fn of(tree: &Tree<Leaf>, options: &PytreeDataOptions) -> Result<Self> {
        let paths = match &options.paths {
            Some(paths) => given_paths(tree, paths)?,
            None => tree.paths().iter().map(literals_of).collect(),
        };
        let keeps_structure = options.paths.is_none()
            && options.extra_keys
            && needs_structure(nodes_and_kinds(tree, |leaf| &leaf.kind));
        let mut arrays: Vec<Planned> = Vec::with_capacity(tree.len());
        let mut refusals = Refusals::default();
        let mut infos = Vec::with_capacity(tree.len());
        let mut taken = HashSet::with_capacity(tree.len());
        for ((place, leaf), literals) in tree.iter().zip(paths) {
            // The path in errors: the path that the user gave, not the leaf's position in a list.
            let path = match &options.paths {
                Some(_) => KeyPath::from_iter(literals.iter().map(key_of)),
                None => place,
            };
            let Some((entry, array)) =
                refusals.keep(&path, stored_form(leaf, literals, options, keeps_structure))
            else {
                continue;
            };
            infos.push(LeafInfo {
                kind: leaf.kind.clone(),
                dtype: array.dtype(),
                shape: array.shape().clone(),
                name: Arc::from(path.join(".")),
                chunk_shape: None,
                write_shape: None,
                sharding: None,
                coding: Arc::from(""),
            });
            if let Some(entry) = entry {
                let key: Vec<String> = entry.path.iter().map(identity).collect();
                if !taken.insert(key) {
                    let what = format!("two leaves would have the path {}", path_text(&entry.path));
                    refusals.add(&path, Error::new(ErrorKind::NameCollision, what));
                }
                arrays.push(Planned { entry, array });
            }
        }
        refusals.finish("cannot be written as data and manifest")?;
        let structure = match keeps_structure {
            true => Some(Structure::of(&tree.with_leaves(infos)?, |_| Arc::from(""))?.to_json()?),
            false => None,
        };
        let empty = match &options.paths {
            Some(_) => options.empty.iter().map(|text| parse_given(text)).collect::<Result<_>>()?,
            None => empty_containers(tree).iter().map(literals_of).collect(),
        };
        let len_bytes = place(&mut arrays, options.byte_align.get())?;
        let extra = options.extra_keys.then_some(Extra { data: None, empty, structure });
        Ok(Self { arrays, extra, len_bytes })
    }
}

fn place(arrays: &mut [Planned], align: u64) -> Result<u64> {
    let mut offset = 0_u64;
    for planned in arrays {
        planned.entry.offset_bytes = offset;
        let padded = planned.entry.len_bytes.checked_next_multiple_of(align);
        offset = padded
            .and_then(|padded| padded.checked_add(offset))
            .filter(|&end| end <= i64::MAX as u64)
            .ok_or_else(|| {
            about(
                Error::new(ErrorKind::Limit, "the data file would be longer than a file can be"),
                &planned.entry.path,
            )
        })?;
    }
    Ok(offset)
}

/// The entry and the stored array of a leaf; no entry for a leaf that only the exact pytree has.
fn stored_form(
    leaf: &Leaf,
    path: Vec<Literal>,
    options: &PytreeDataOptions,
    keeps_structure: bool,
) -> Result<(Option<Entry>, Array)> {
    let array = match &leaf.data {
        LeafData::Array(array) => array.clone(),
        LeafData::Text(text) => {
            let shape = Shape::new(vec![text.len() as u64])?;
            Array::new(Dtype::UInt8, shape, Bytes::copy_from_slice(text.as_bytes()))?
        }
        LeafData::Absent if leaf.kind == LeafKind::Placeholder && keeps_structure => {
            return Ok((None, Array::new(Dtype::UInt8, Shape::scalar(), Bytes::from_static(&[0]))?));
        }
        LeafData::Absent => {
            return Err(Error::unsupported(format!("a leaf of kind {} has no data", leaf.kind.name()))
                .help("leave it out"));
        }
    };
    let (descr, shape, stored) = match &leaf.kind {
        LeafKind::NumpyOther(text) => {
            let descr = parse_dtype(text)?;
            let (dims, item) = match array.shape().dims().split_last() {
                Some((&item, dims)) if item == descr.item_len_bytes() => (dims.to_vec(), item),
                _ => {
                    return Err(Error::invalid("an array of a NumPy-only dtype lacks its axis of bytes"));
                }
            };
            debug_assert!(item > 0);
            (descr, Shape::new(dims)?, Dtype::UInt8)
        }
        _ => {
            let stored = stored_dtype(array.dtype(), options.native_dtypes)?;
            (Descr::named(stored), array.shape().clone(), stored)
        }
    };
    let array = array.cast(stored)?;
    let entry = Entry { path, descr, shape, len_bytes: array.len_bytes(), offset_bytes: 0, crc32c: None };
    Ok((Some(entry), array))
}

fn stored_dtype(dtype: Dtype, native: bool) -> Result<Dtype> {
    let is_numpys_own = Descr::named(dtype).text() != dtype.name();
    match dtype {
        _ if native || is_numpys_own => Ok(dtype),
        Dtype::BFloat16 => Ok(Dtype::Float32),
        _ => Err(Error::unsupported(format!("the original layout has no dtype {dtype}"))
            .help("pass `native_dtypes` to keep the dtype, or `cast`")),
    }
}

fn given_paths(tree: &Tree<Leaf>, paths: &[String]) -> Result<Vec<Vec<Literal>>> {
    if paths.len() != tree.len() {
        return Err(Error::invalid("`paths` needs one path for each leaf").expected(tree.len(), paths.len()));
    }
    let paths = paths.iter().map(|text| parse_given(text)).collect::<Result<Vec<_>>>()?;
    check_branches(&paths)?;
    Ok(paths)
}

fn parse_given(text: &str) -> Result<Vec<Literal>> {
    let bad = |error: Error| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{text} cannot be the path of a leaf: {}", error.what()),
        )
        .help("keys are text, numbers, None, bytes, or tuples of them")
    };
    parse(text, LiteralOptions { numpy_ints: true, ..LiteralOptions::default() })
        .and_then(parse_path)
        .map_err(bad)
}

/// Returns an error if the path of a leaf is a prefix of another path. `Plan::of` finds equal
/// paths.
fn check_branches(paths: &[Vec<Literal>]) -> Result<()> {
    let mut nodes: HashMap<(usize, String), usize> = HashMap::new();
    let mut is_leaf = vec![paths.len() > 1 && paths.iter().any(Vec::is_empty)];
    let mut ends = Vec::with_capacity(paths.len());
    for path in paths {
        let mut at = 0;
        for key in path {
            let next = is_leaf.len();
            at = *nodes.entry((at, identity(key))).or_insert(next);
            if at == next {
                is_leaf.push(false);
            }
        }
        ends.push(at);
    }
    for &end in &ends {
        if let Some(slot) = is_leaf.get_mut(end) {
            *slot = true;
        }
    }
    for path in paths {
        let mut at = 0;
        for (depth, key) in path.iter().enumerate() {
            if is_leaf.get(at) == Some(&true) {
                let above = path_text(path.get(..depth).unwrap_or_default());
                let what = format!("an array cannot be inside another array, at {above}");
                return Err(about(Error::new(ErrorKind::NameCollision, what), path));
            }
            at = nodes.get(&(at, identity(key))).copied().unwrap_or(usize::MAX);
        }
    }
    Ok(())
}

/// Whether a load by paths alone would give another tree.
fn needs_structure<'a>(
    mut parts: impl Iterator<Item = (&'a Key, &'a NodeKind, usize, Option<&'a LeafKind>)>,
) -> bool {
    let mut is_root = true;
    parts.any(|(key, kind, child_count, leaf)| {
        let is_odd_key = !is_root && !matches!(key, Key::Dict(_) | Key::DictInt(_));
        is_root = false;
        is_odd_key
            || match leaf {
                Some(kind) => !is_plain(kind),
                None => *kind != NodeKind::Dict || child_count == 0,
            }
    })
}

fn is_plain(kind: &LeafKind) -> bool {
    matches!(kind, LeafKind::NumpyArray | LeafKind::JaxArray | LeafKind::NumpyOther(_))
}

/// Every node with its number of children, and the kind of its leaf.
fn nodes_and_kinds<'a, L>(
    tree: &'a Tree<L>,
    kind_of: impl Fn(&'a L) -> &'a LeafKind,
) -> impl Iterator<Item = (&'a Key, &'a NodeKind, usize, Option<&'a LeafKind>)> {
    let mut leaves = tree.leaves().iter();
    tree.nodes().iter().map(move |node| {
        let leaf = (node.kind == NodeKind::Leaf).then(|| leaves.next()).flatten();
        (&node.key, &node.kind, node.child_count, leaf.map(&kind_of))
    })
}

/// The empty containers below the root, without `None` nodes.
fn empty_containers<L>(tree: &Tree<L>) -> Vec<KeyPath> {
    let is_empty = tree.nodes().iter().any(|node| node.kind != NodeKind::Leaf && node.child_count == 0);
    if !is_empty {
        return Vec::new();
    }
    let empty = tree.walk().filter(|(path, node)| {
        !path.is_root() && !matches!(node.kind, NodeKind::Leaf | NodeKind::None) && node.child_count == 0
    });
    empty.map(|(path, _)| path).collect()
}

pub(super) fn losses(tree: &Tree<LeafInfo>, options: &PytreeDataOptions) -> Vec<Loss> {
    if !options.manifest {
        let what = "without a manifest only raw bytes are stored".to_owned();
        return vec![Loss { kind: LossKind::Value, path: KeyPath::root(), what }];
    }
    let has_arrays = tree.leaves().iter().any(|info| info.kind.is_array() || info.kind == LeafKind::Str);
    let keeps_structure = options.extra_keys && has_arrays && options.paths.is_none();
    // Plain dicts of arrays need no structure beside them, and have none.
    let keeps_kinds = keeps_structure && needs_structure(nodes_and_kinds(tree, |info| &info.kind));
    let mut losses = if keeps_structure { Vec::new() } else { structure_losses(tree) };
    let mut lose = |kind, path: &KeyPath, what: String| losses.push(Loss { kind, path: path.clone(), what });
    for (path, info) in tree.iter() {
        if let Some((kind, what)) = kind_loss(&info.kind, keeps_structure) {
            lose(kind, &path, what);
        }
        if info.kind == LeafKind::JaxArray && !keeps_kinds || info.sharding.is_some() {
            lose(LossKind::Note, &path, "comes back as a NumPy array, without its sharding".to_owned());
        }
        if info.dtype == Dtype::BFloat16 && !options.native_dtypes {
            lose(
                LossKind::Note,
                &path,
                "bfloat16 comes back as float32, which holds the same values".to_owned(),
            );
        }
    }
    losses
}

/// The losses of containers that come back as other containers, or not at all.
fn structure_losses(tree: &Tree<LeafInfo>) -> Vec<Loss> {
    let loss = |(path, node): (KeyPath, &Node)| {
        let what = match &node.kind {
            NodeKind::Leaf => return None,
            NodeKind::Dict if node.child_count > 0 || path.is_root() => return None,
            NodeKind::None => "None is lost".to_owned(),
            kind if node.child_count == 0 && path.is_root() => {
                format!("an empty {} comes back as a dict", kind.name())
            }
            kind if node.child_count == 0 => format!("an empty {} is lost", kind.name()),
            kind => format!("a {} comes back as a dict", kind.name()),
        };
        Some(Loss { kind: LossKind::Structure, path, what })
    };
    tree.walk().filter_map(loss).collect()
}

fn kind_loss(kind: &LeafKind, keeps_structure: bool) -> Option<(LossKind, String)> {
    match kind {
        LeafKind::Placeholder if keeps_structure => None,
        LeafKind::Placeholder | LeafKind::Unknown(_) => {
            Some((LossKind::Value, "has no data that could be written".to_owned()))
        }
        LeafKind::Str if keeps_structure => {
            Some((LossKind::Value, "a text comes back as an array of its bytes, but for regrow".to_owned()))
        }
        kind if is_plain(kind) => None,
        kind if keeps_structure => {
            Some((LossKind::Note, format!("a {} comes back as an array, but for regrow", kind.name())))
        }
        kind => Some((LossKind::Kind, format!("a {} comes back as an array", kind.name()))),
    }
}
