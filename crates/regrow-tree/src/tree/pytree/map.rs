//! Maps with text or integer keys: dicts.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::{NodeRef, Pytree, Restore, derive_support};
use crate::error::{Error, Result};
use crate::tree::{Key, Leaf, NodeKind, TreeBuilder};

/// A type of keys that a dict in a tree can have: text or an integer.
pub trait MapKey: Ord {
    /// The key as a key of a tree.
    ///
    /// # Errors
    /// `InvalidArgument` for an integer of at least 2^63.
    fn to_key(&self) -> Result<Key>;

    /// The key for a text; `None` if the text is not a valid key.
    fn from_text(text: &str) -> Option<Self>
    where
        Self: Sized;
}

macro_rules! text_keys {
    ($($text:ty),*) => {$(
        impl MapKey for $text {
            fn to_key(&self) -> Result<Key> {
                Ok(Key::dict(&**self))
            }

            fn from_text(text: &str) -> Option<Self> {
                Some(text.to_owned().into())
            }
        }
    )*};
}
text_keys!(String, Box<str>, Arc<str>, Cow<'static, str>);

macro_rules! integer_keys {
    ($($integer:ty),*) => {$(
        impl MapKey for $integer {
            fn to_key(&self) -> Result<Key> {
                let key = i64::try_from(*self);
                key.map(Key::DictInt).map_err(|_| Error::invalid(format!("{self} is too large for a dict's key")))
            }

            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}
integer_keys!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl<K: MapKey, P: Pytree> Pytree for BTreeMap<K, P> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        flatten_sorted(self.iter(), key, build)
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        regrow_entries(node, restore).map(|entries| entries.into_iter().collect())
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_entries(self.iter(), node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        load_into_entries(node, restore, |key, child, restore| {
            if let Some(value) = self.get_mut(key) {
                value.load_into(child, restore);
            }
        });
    }
}

/// The entries are stored in the order of their keys, so that equal maps give equal checkpoints.
impl<K: MapKey + Hash, P: Pytree, S: BuildHasher + Default> Pytree for HashMap<K, P, S> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        let mut entries: Vec<(&K, &P)> = self.iter().collect();
        entries.sort_by_key(|&(key, _)| key);
        flatten_sorted(entries.into_iter(), key, build)
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        regrow_entries(node, restore).map(|entries| entries.into_iter().collect())
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_entries(self.iter(), node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        load_into_entries(node, restore, |key, child, restore| {
            if let Some(value) = self.get_mut(key) {
                value.load_into(child, restore);
            }
        });
    }
}

fn flatten_sorted<'a, K: MapKey + 'a, P: Pytree + 'a>(
    entries: impl Iterator<Item = (&'a K, &'a P)>,
    key: Key,
    build: &mut TreeBuilder<Leaf>,
) -> Result<()> {
    derive_support::open(build, key, NodeKind::Dict)?;
    for (key, value) in entries {
        value.flatten(key.to_key()?, build)?;
    }
    build.close()
}

/// The children of a node with names, or of a list that may have been a dict of integers, with
/// their keys. For a map that is flattened into a struct, the list has only the children that no
/// field has used. A child whose key is not a valid `K` has the key `None`, and is reported.
type Entries<'a, K> = Vec<(Option<K>, NodeRef<'a>)>;

fn entries_of<'a, K: MapKey>(node: NodeRef<'a>, restore: &mut Restore) -> Option<Entries<'a, K>> {
    let is_list = matches!(node.kind(), NodeKind::List | NodeKind::Tuple);
    if !node.has_names() && !is_list {
        restore.wrong_kind(node, "a dict");
        return None;
    }
    let free: Vec<NodeRef<'a>> = node.children().filter(|child| !restore.is_taken(*child)).collect();
    let with_keys = free.into_iter().map(|child| {
        let key = K::from_text(&child.key().text());
        if key.is_none() {
            restore.inside(child, |child, restore| restore.wrong_kind_of_key(child));
        }
        (key, child)
    });
    Some(with_keys.collect())
}

fn regrow_entries<K: MapKey, P: Pytree>(node: NodeRef<'_>, restore: &mut Restore) -> Option<Vec<(K, P)>> {
    // Try all entries before failing, so that one report names every error.
    let regrown: Vec<Option<(K, P)>> = entries_of(node, restore)?
        .into_iter()
        .map(|(key, child): (Option<K>, _)| Some((key?, restore.inside(child, P::unflatten)??)))
        .collect();
    regrown.into_iter().collect()
}

fn check_entries<'a, K: MapKey + 'a, P: Pytree + 'a>(
    entries: impl Iterator<Item = (&'a K, &'a P)>,
    node: NodeRef<'_>,
    restore: &mut Restore,
) {
    let Some(stored) = entries_of::<K>(node, restore) else { return };
    let stored: BTreeMap<K, NodeRef<'_>> =
        stored.into_iter().filter_map(|(key, child)| Some((key?, child))).collect();
    for (key, value) in entries {
        match (stored.get(key), key.to_key()) {
            (Some(child), _) => {
                restore.inside(*child, |child, restore| value.check(child, restore));
            }
            (None, Ok(key)) => restore.missing(&key),
            (None, Err(error)) => restore.fail(error),
        }
    }
}

fn load_into_entries<K: MapKey>(
    node: NodeRef<'_>,
    restore: &mut Restore,
    mut load: impl FnMut(&K, NodeRef<'_>, &mut Restore),
) {
    for (key, child) in entries_of::<K>(node, restore).unwrap_or_default() {
        if let Some(key) = key {
            restore.inside(child, |child, restore| load(&key, child, restore));
        }
    }
}
