//! The losses of npy files: containers, keys and leaves that a load returns differently.

use super::descr::Descr;
use crate::options::{Form, NpyOptions};
use crate::{Loss, LossKind};
use regrow_tree::array::Dtype;
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree};

/// The losses of containers, keys and kinds of leaves. If the exact pytree is stored beside the
/// arrays, only leaves have losses, and only for readers other than regrow.
pub(super) fn losses(
    tree: &Tree<LeafInfo>,
    texts: &[(usize, &str)],
    form: Form,
    options: &NpyOptions,
) -> Vec<Loss> {
    let cut = texts.iter().filter(|(_, text)| text.ends_with('\0')).map(|&(leaf, _)| Loss {
        kind: LossKind::Value,
        path: tree.path_of(leaf),
        what: "a text comes back without the NULs at its end".to_owned(),
    });
    if form != Form::Npy && options.structure {
        let of_leaf = |(path, info): (_, &LeafInfo)| {
            let (kind, what) = leaf_loss(info, options).filter(|_| info.kind != LeafKind::JaxArray)?;
            // A leaf without data cannot lose data.
            let kind = if info.kind == LeafKind::Placeholder { LossKind::Note } else { kind };
            Some(Loss { kind, path, what }.elsewhere())
        };
        return tree.iter().filter_map(of_leaf).chain(cut.map(Loss::elsewhere)).collect();
    }
    let cut: Vec<Loss> = cut.collect();
    let mut losses = Vec::new();
    let mut leaves = tree.leaves().iter();
    for (path, node) in tree.walk() {
        let is_root = path.is_root();
        let mut lose =
            |kind, what: &str| losses.push(Loss { kind, path: path.clone(), what: what.to_owned() });
        match &node.kind {
            NodeKind::Leaf => {
                if let Some((kind, what)) = leaves.next().and_then(|info| leaf_loss(info, options)) {
                    lose(kind, &what);
                }
                if is_root && form != Form::Npy {
                    lose(LossKind::Structure, "a single leaf comes back as a dict of one");
                }
            }
            NodeKind::None => lose(LossKind::Structure, "None is lost"),
            kind if node.child_count == 0 && !is_root => {
                lose(LossKind::Structure, &format!("an empty {} is lost", kind.name()));
            }
            NodeKind::Dict if form == Form::Npz && !is_root => {
                lose(LossKind::Structure, "its leaves come back in one flat dict with joined names");
            }
            NodeKind::Dict => {}
            kind => lose(LossKind::Structure, &format!("a {} comes back as a dict of names", kind.name())),
        }
        if !is_root && matches!(node.key, Key::DictInt(_)) {
            lose(LossKind::Structure, "its integer key comes back as text");
        }
    }
    losses.extend(cut);
    losses
}

fn leaf_loss(info: &LeafInfo, options: &NpyOptions) -> Option<(LossKind, String)> {
    let to = match &info.kind {
        kind if kind.is_array() && !options.named_dtypes && Descr::is_unreadable(info.dtype) => {
            return Some((LossKind::Value, format!("NumPy cannot read the dtype {} back", info.dtype)));
        }
        LeafKind::NumpyArray | LeafKind::JaxArray if is_nameless(info.dtype, options) => {
            return Some((
                LossKind::Value,
                format!("the dtype {} is lost: untyped bytes come back", info.dtype),
            ));
        }
        LeafKind::JaxArray => {
            return Some((LossKind::Note, "a JAX array comes back as a NumPy array".to_owned()));
        }
        LeafKind::NumpyScalar | LeafKind::Scalar => "a 0-d array",
        LeafKind::PrngKey(_) => "the array of its key data",
        LeafKind::Str => "a 0-d array of text",
        LeafKind::Bytes => "an array of uint8",
        LeafKind::Placeholder => return Some((LossKind::Value, "a placeholder is lost".to_owned())),
        _ => return None,
    };
    Some((LossKind::Kind, format!("a {} comes back as {to}", info.kind.name())))
}

/// Whether the header does not identify the dtype. Among NumPy's own spellings for dtypes of
/// ml_dtypes, `<V2` and `<f1` mean one dtype each, but `<V1` several.
fn is_nameless(dtype: Dtype, options: &NpyOptions) -> bool {
    let descr = Descr::as_numpy_writes(dtype);
    !options.named_dtypes && matches!(descr, Descr::Void { item_len_bytes: 1, .. })
}
