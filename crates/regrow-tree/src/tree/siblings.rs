//! Checks whether the children of one container have different keys.
//!
//! Keys usually have an order: by text, as JAX sorts them, or by length and then text, as for
//! increasing numbers. If the keys of a container strictly increase in one of these orders, no two
//! are equal, and no hash or allocation is needed.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::mem::discriminant;

use super::{Key, KeyPath, Tree};

/// Up to this number of keys, each pair is compared.
const PAIRS_MAX: usize = 8;

/// A container whose children are being checked.
struct Open<'a> {
    key: &'a Key,
    left: usize,
    /// The index of the first key of its children.
    start: usize,
    rises_by_text: bool,
    rises_by_length: bool,
}

impl<L> Tree<L> {
    /// The key path of a node whose key is also the key of an earlier child of its parent; `None`
    /// if there is none. A file could not distinguish two such nodes.
    pub fn first_equal_keys(&self) -> Option<KeyPath> {
        let mut open: Vec<Open<'_>> = Vec::new();
        // For each open container, the innermost last: the keys seen so far.
        let mut keys: Vec<&Key> = Vec::new();
        for node in self.nodes() {
            while open.last().is_some_and(|container| container.left == 0) {
                if let Some(path) = close(&mut open, &mut keys) {
                    return Some(path);
                }
            }
            if let Some(container) = open.last_mut() {
                container.left -= 1;
                if let Some(before) = keys.get(container.start..).and_then(<[_]>::last) {
                    container.rises_by_text &= **before < node.key;
                    container.rises_by_length &= is_shorter(before, &node.key);
                }
                keys.push(&node.key);
            }
            if node.child_count > 0 {
                open.push(Open {
                    key: &node.key,
                    left: node.child_count,
                    start: keys.len(),
                    rises_by_text: true,
                    rises_by_length: true,
                });
            }
        }
        while !open.is_empty() {
            if let Some(path) = close(&mut open, &mut keys) {
                return Some(path);
            }
        }
        None
    }

    /// Whether all keys of each container have the same kind. Keys that differ then also have
    /// different texts.
    pub fn has_keys_of_one_kind(&self) -> bool {
        let mut open: Vec<(usize, Option<&Key>)> = Vec::new();
        for node in self.nodes() {
            while open.last().is_some_and(|(left, _)| *left == 0) {
                open.pop();
            }
            if let Some((left, first)) = open.last_mut() {
                *left -= 1;
                if discriminant(*first.get_or_insert(&node.key)) != discriminant(&node.key) {
                    return false;
                }
            }
            if node.child_count > 0 {
                open.push((node.child_count, None));
            }
        }
        true
    }
}

/// Closes the innermost container. Returns the path of a repeated key, if any.
fn close<'a>(open: &mut Vec<Open<'a>>, keys: &mut Vec<&'a Key>) -> Option<KeyPath> {
    let container = open.pop()?;
    if !container.rises_by_text && !container.rises_by_length {
        let own = keys.get(container.start..).unwrap_or_default();
        if let Some(key) = first_twice(own) {
            let above = open.iter().map(|above| above.key).chain([container.key]).skip(1);
            return Some(above.chain([key]).cloned().collect());
        }
    }
    keys.truncate(container.start);
    None
}

fn first_twice<'a>(keys: &[&'a Key]) -> Option<&'a Key> {
    if keys.len() <= PAIRS_MAX {
        let is_twice = |(at, key): &(usize, &&Key)| keys.iter().take(*at).any(|before| before == *key);
        return keys.iter().enumerate().find(is_twice).map(|(_, key)| *key);
    }
    let mut seen = HashSet::with_capacity(keys.len());
    keys.iter().find(|key| !seen.insert(**key)).copied()
}

/// Whether `a` is text of the same kind as `b`, and comes before it by length, then by text.
fn is_shorter(a: &Key, b: &Key) -> bool {
    match (a, b) {
        (Key::Dict(a), Key::Dict(b)) | (Key::Attr(a), Key::Attr(b)) => {
            a.len().cmp(&b.len()).then_with(|| a.cmp(b)) == Ordering::Less
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::tree::{Key, NodeKind, Tree, TreeBuilder};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn tree_of(groups: &[Vec<u8>]) -> Tree<()> {
        let key = |number: u8| match number % 3 {
            0 => Key::dict((number / 3).to_string()),
            1 => Key::DictInt(i64::from(number / 3)),
            _ => Key::attr((number / 3).to_string()),
        };
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for (at, group) in groups.iter().enumerate() {
            build.open(Key::Index(at), NodeKind::Dict).unwrap();
            group.iter().for_each(|&number| build.leaf(key(number), ()).unwrap());
            build.close().unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    }

    proptest! {
        #[test]
        fn finds_a_key_if_and_only_if_it_is_there_twice(
            groups in proptest::collection::vec(proptest::collection::vec(0..60_u8, 0..14), 1..5),
        ) {
            let tree = tree_of(&groups);
            let first = groups.iter().position(|group| group.iter().collect::<HashSet<_>>().len() < group.len());
            let found = tree.first_equal_keys();
            prop_assert_eq!(found.as_ref().map(|path| path.keys()[0].clone()), first.map(Key::Index));
            if let Some(path) = found {
                prop_assert_eq!(tree.paths().iter().filter(|other| **other == path).count().min(2), 2);
            }
        }
    }

    #[test]
    fn rising_keys_need_no_search_and_mixed_kinds_are_seen() {
        assert_eq!(tree_of(&[(0..120).step_by(3).collect()]).first_equal_keys(), None);
        assert!(tree_of(&[vec![0, 3, 6], vec![1, 4]]).has_keys_of_one_kind());
        assert!(!tree_of(&[vec![0, 3], vec![0, 4]]).has_keys_of_one_kind());
    }
}
