//! The losses of an Orbax checkpoint: containers, keys and leaves that a load returns differently.
//!
//! Orbax' own documents have dicts with text keys, lists and leaves; with rich types also tuples
//! and named tuples. Other types are stored as the nearest of these.

use crate::options::OrbaxOptions;
use crate::{Loss, LossKind};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree};

pub(super) fn losses(tree: &Tree<LeafInfo>, orbax: &OrbaxOptions) -> Vec<Loss> {
    let mut losses = Vec::new();
    for (path, node) in tree.walk() {
        let becomes = match &node.kind {
            NodeKind::Tuple | NodeKind::NamedTuple(_) if orbax.rich_types => None,
            NodeKind::Tuple if node.child_count == 0 => None,
            NodeKind::Tuple => Some("a tuple becomes a list"),
            NodeKind::NamedTuple(_) | NodeKind::Dataclass(_) | NodeKind::Custom(_)
                if node.child_count == 0 =>
            {
                Some("an empty node becomes None")
            }
            NodeKind::NamedTuple(_) => Some("a named tuple becomes a dict"),
            NodeKind::Dataclass(_) => Some("a dataclass becomes a dict"),
            NodeKind::Custom(_) => Some("a custom node becomes a dict or a list"),
            NodeKind::OrderedDict | NodeKind::DefaultDict => Some("it becomes a plain dict"),
            NodeKind::Leaf | NodeKind::None | NodeKind::Dict | NodeKind::List => None,
        };
        let mut lost = |what: &str| {
            losses.push(Loss { kind: LossKind::Structure, path: path.clone(), what: what.to_owned() });
        };
        becomes.into_iter().for_each(&mut lost);
        if matches!(node.key, Key::DictInt(_)) {
            lost("an integer key becomes a text");
        }
    }
    for (path, leaf) in tree.iter() {
        let what = match &leaf.kind {
            LeafKind::NumpyScalar => "a NumPy scalar becomes a Python number",
            // Orbax stores a PRNG key as an array. Only the recorded name of the key's
            // implementation shows that it is a key, and this key has no such name.
            LeafKind::PrngKey(None) => {
                "a PRNG key of an unknown implementation becomes the array of its key data"
            }
            _ => continue,
        };
        losses.push(Loss { kind: LossKind::Kind, path, what: what.to_owned() });
    }
    losses
}
