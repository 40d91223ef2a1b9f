//! The losses of safetensors files: leaves that a load returns differently.
//!
//! For safetensors a file is a flat dict of arrays: key paths become names, numbers become 0-d
//! arrays, and PRNG keys and bytes become arrays of numbers. Texts are missing. With the structure
//! regrow restores everything, and only other readers have these losses. Without the structure,
//! texts and dtypes that safetensors lacks are refused.

use super::SafetensorsOptions;
use super::layout::has_dtype;
use super::plan::Form;
use crate::{Loss, LossKind};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, NodeKind, Tree};

pub(super) fn losses(tree: &Tree<LeafInfo>, options: &SafetensorsOptions) -> Vec<Loss> {
    if options.structure {
        let of_leaf =
            |(path, info)| of_stored(info).map(|(kind, what)| Loss { kind, path, what }.elsewhere());
        return tree.iter().filter_map(of_leaf).collect();
    }
    let mut out = Vec::new();
    let mut add = |kind, path: &KeyPath, what: String| out.push(Loss { kind, path: path.clone(), what });
    let mut leaves = tree.leaves().iter();
    for (path, node) in tree.walk() {
        if let Some(Key::DictInt(number)) = path.keys().last() {
            add(LossKind::Structure, &path, format!("the integer key {number} comes back as text"));
        }
        let what = match &node.kind {
            NodeKind::Leaf => {
                let Some(info) = leaves.next() else { continue };
                if path.is_root() {
                    let what = "a pytree of one leaf comes back as a dict of one tensor without a name";
                    add(LossKind::Structure, &path, what.to_owned());
                }
                if let Some((kind, what)) = of_leaf(info) {
                    add(kind, &path, what);
                }
                if info.sharding.is_some() {
                    add(LossKind::Note, &path, "its sharding is not kept".to_owned());
                }
                continue;
            }
            NodeKind::Dict if path.is_root() => continue,
            NodeKind::None => "None is lost".to_owned(),
            kind if node.child_count == 0 => format!("an empty {} is lost", kind.name()),
            kind => format!("a {} comes back as names joined by {:?}", kind.name(), options.separator),
        };
        add(LossKind::Structure, &path, what);
    }
    out
}

fn of_leaf(info: &LeafInfo) -> Option<(LossKind, String)> {
    let what = match &info.kind {
        LeafKind::JaxArray => {
            return Some((LossKind::Note, "a JAX array comes back as a NumPy array".to_owned()));
        }
        LeafKind::NumpyScalar => "a NumPy scalar comes back as a 0-d array",
        LeafKind::Scalar => "a Python number comes back as a 0-d array",
        LeafKind::PrngKey(_) => "a PRNG key comes back as its uint32 data",
        LeafKind::Bytes => "bytes come back as a uint8 array",
        LeafKind::Placeholder => return Some((LossKind::Structure, "a placeholder is lost".to_owned())),
        _ => return None,
    };
    Some((LossKind::Kind, what.to_owned()))
}

/// The loss for other readers of a leaf that regrow restores with the structure.
fn of_stored(info: &LeafInfo) -> Option<(LossKind, String)> {
    match &info.kind {
        LeafKind::Str => Some((LossKind::Value, "a text is lost".to_owned())),
        LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => {
            Some((LossKind::Value, format!("{dtype} comes back as bytes")))
        }
        LeafKind::JaxArray => of_dtype(info),
        LeafKind::Placeholder => Some((LossKind::Note, "a placeholder is lost".to_owned())),
        _ => of_dtype(info).or_else(|| of_leaf(info)),
    }
}

/// The loss for other readers if safetensors lacks the dtype: it is stored as a dtype of the same
/// size.
fn of_dtype(info: &LeafInfo) -> Option<(LossKind, String)> {
    let form = Form::of(info.dtype, &info.shape).ok()?;
    let is_own = form.is_packed() || has_dtype(info.dtype);
    // Other readers get other values, not only another dtype.
    (!is_own).then(|| (LossKind::Value, format!("{} comes back as {}", info.dtype, form.tag)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use regrow_tree::array::{Dtype, Shape};
    use regrow_tree::tree::TreeBuilder;

    fn info(kind: LeafKind) -> LeafInfo {
        LeafInfo {
            kind,
            dtype: Dtype::UInt8,
            shape: Shape::scalar(),
            name: Arc::from(""),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        }
    }

    #[test]
    fn with_the_structure_only_leaves_are_lost_to_others_and_all_is_named_without() {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("plain"), info(LeafKind::NumpyArray)).unwrap();
        build.open(Key::DictInt(3), NodeKind::List).unwrap();
        build.leaf(Key::Index(0), info(LeafKind::Scalar)).unwrap();
        build.leaf(Key::Index(1), info(LeafKind::JaxArray)).unwrap();
        build.close().unwrap();
        build.open(Key::dict("none"), NodeKind::None).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let options = SafetensorsOptions::default();
        let stored: Vec<String> =
            losses(&tree, &options).iter().map(|loss| format!("{} {loss}", loss.kind.name())).collect();
        assert_eq!(stored, ["note 3/0: a Python number comes back as a 0-d array, but for regrow"]);
        let options = SafetensorsOptions { structure: false, ..options };
        let found: Vec<String> =
            losses(&tree, &options).iter().map(|loss| format!("{} {loss}", loss.kind.name())).collect();
        assert_eq!(
            found,
            [
                "structure 3: the integer key 3 comes back as text",
                "structure 3: a list comes back as names joined by \".\"",
                "kind 3/0: a Python number comes back as a 0-d array",
                "note 3/1: a JAX array comes back as a NumPy array",
                "structure none: None is lost",
            ]
        );
        let single = losses(&Tree::single(info(LeafKind::Bytes)), &options);
        assert_eq!(
            single.iter().map(|loss| loss.kind).collect::<Vec<_>>(),
            [LossKind::Structure, LossKind::Kind]
        );
    }
}
