//! Restoring into a template: pairs stored leaves with leaves of the template, and lists all
//! differences.
//!
//! Leaves are matched by key path. An exact match of keys comes first. Otherwise the texts of the
//! keys decide, because Orbax does not distinguish an attribute from a dict key, or `1` from `"1"`.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::array::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::options::TemplateLeaf;
use crate::text::counted;
use crate::tree::{KeyPath, LeafInfo, LeafKind, Node, NodeKind, Tree};

/// The most differences that one error lists.
const SHOWN_MAX: usize = 100;

/// The stored leaf for each leaf of the template; `None` for skipped leaves.
///
/// If `is_cast` is true for a stored leaf, its dtype may differ. With `partial`, the template may
/// lack stored leaves. A stored placeholder that is not read fits any leaf. With `by_names` the
/// stored tree is only guessed, so leaves are matched by the names of arrays: the keys joined by
/// dots.
///
/// # Errors
/// `Mismatch`, with each of the first 100 differences on its own line.
pub(super) fn match_template(
    stored: &Tree<LeafInfo>,
    template: &Tree<TemplateLeaf>,
    partial: bool,
    by_names: bool,
    is_cast: impl Fn(usize) -> bool,
    is_unread: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    if fits_as_it_is(stored, template) {
        let leaves = template.leaves().iter().enumerate();
        return Ok(leaves.map(|(leaf, want)| (!want.skip).then_some(leaf)).collect());
    }
    let stored_paths = stored.paths();
    let mut exact: HashMap<&KeyPath, usize> = HashMap::with_capacity(stored_paths.len());
    let mut loose: HashMap<String, Option<usize>> = HashMap::with_capacity(stored_paths.len());
    for (leaf, path) in stored_paths.iter().enumerate() {
        exact.insert(path, leaf);
        // If two stored paths have the same texts, only an exact match can distinguish them.
        loose.entry(loose_text(path)).and_modify(|found| *found = None).or_insert(Some(leaf));
    }
    let mut names: HashMap<String, Option<usize>> = HashMap::new();
    for (leaf, path) in stored_paths.iter().enumerate().filter(|_| by_names) {
        names.entry(name_of(path)).and_modify(|found| *found = None).or_insert(Some(leaf));
    }
    let mut used = vec![false; stored.len()];
    let mut differences = Vec::new();
    let mut matches = Vec::with_capacity(template.len());
    for (path, want) in template.iter() {
        let found = exact.get(&path).copied().or_else(|| loose.get(&loose_text(&path)).copied().flatten());
        let named = || names.get(&name_of(&path)).copied().flatten();
        let found = found.or_else(|| if by_names { named() } else { None });
        // Each stored leaf is used once, so a second template leaf with the same text finds no
        // leaf.
        let found = found.filter(|&leaf| used.get(leaf) == Some(&false));
        if let Some(used) = found.and_then(|leaf| used.get_mut(leaf)) {
            *used = true;
        }
        let info = found.and_then(|leaf| stored.leaves().get(leaf));
        match info {
            _ if want.skip => {}
            Some(LeafInfo { kind: LeafKind::Placeholder, .. }) if found.is_some_and(&is_unread) => {}
            None => differences.push(format!("missing   {path}: in the template, not in the checkpoint")),
            // Leaves of a dtype that only NumPy has are stored as bytes. A template leaf of bytes
            // must not match them.
            Some(LeafInfo {
                kind: LeafKind::NumpyOther(stored) | LeafKind::NumpyOtherScalar(stored),
                ..
            }) if want.dtype.is_some() => {
                let dtype = want.dtype.map_or("bytes", Dtype::name);
                differences.push(format!("dtype     {path}: template {dtype}, stored {stored}"));
            }
            Some(info) => {
                if let Some(shape) = &want.shape
                    && *shape != info.shape
                {
                    differences.push(format!("shape     {path}: template {shape}, stored {}", info.shape));
                }
                if let Some(dtype) = want.dtype
                    && dtype != info.dtype
                    && !found.is_some_and(&is_cast)
                {
                    differences.push(format!("dtype     {path}: template {dtype}, stored {}", info.dtype));
                }
            }
        }
        matches.push(if want.skip { None } else { found });
    }
    if !partial {
        for (path, _) in stored_paths.iter().zip(used).filter(|(_, used)| !used) {
            differences.push(format!("extra     {path}: in the checkpoint, not in the template"));
        }
    }
    if differences.is_empty() { Ok(matches) } else { Err(mismatch(&differences)) }
}

/// Whether the template equals the stored tree, key for key and leaf for leaf. This is the usual
/// case, and needs no key paths.
fn fits_as_it_is(stored: &Tree<LeafInfo>, template: &Tree<TemplateLeaf>) -> bool {
    let (nodes, wanted) = (stored.nodes(), template.nodes());
    let is_leaf = |node: &Node| node.kind == NodeKind::Leaf;
    nodes.len() == wanted.len()
        && nodes.iter().zip(wanted).enumerate().all(|(at, (node, want))| {
            // The root's key has no meaning.
            (at == 0 || node.key == want.key)
                && node.child_count == want.child_count
                && is_leaf(node) == is_leaf(want)
        })
        && stored.leaves().iter().zip(template.leaves()).all(|(info, want)| {
            want.skip
                || want.shape.as_ref().is_none_or(|shape| *shape == info.shape)
                    && want.dtype.is_none_or(|dtype| {
                        let is_other =
                            matches!(info.kind, LeafKind::NumpyOther(_) | LeafKind::NumpyOtherScalar(_));
                        dtype == info.dtype && !is_other
                    })
        })
}

/// The name of the array at a path: the keys joined by dots.
fn name_of(path: &KeyPath) -> String {
    path.join(".").replace('/', ".")
}

fn loose_text(path: &KeyPath) -> String {
    // Write the length before each key, because a key can contain any separator.
    let mut text = String::new();
    for key in path.keys() {
        let key = key.text();
        let _ = write!(text, "{}:{key}", key.len());
    }
    text
}

fn mismatch(differences: &[String]) -> Error {
    let mut what = format!(
        "the template does not fit the checkpoint in {}",
        counted(differences.len(), "place", "places")
    );
    for difference in differences.iter().take(SHOWN_MAX) {
        let _ = write!(what, "\n    {difference}");
    }
    if let Some(more) = differences.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        let _ = write!(what, "\n    and {}", counted(more, "more place", "more places"));
    }
    let has = |kind: &str| differences.iter().any(|difference| difference.starts_with(kind));
    let mut ways = vec!["change the template"];
    for (kind, way_out) in [
        ("dtype", "pass `cast` to convert dtypes"),
        ("missing", "leave missing leaves out of the template"),
        ("extra", "pass `partial` to leave out extra leaves"),
    ] {
        if has(kind) {
            ways.push(way_out);
        }
    }
    let help = match ways.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{}, or {last}", others.join(", ")),
        _ => ways.concat(),
    };
    Error::new(ErrorKind::Mismatch, what).help(help)
}
