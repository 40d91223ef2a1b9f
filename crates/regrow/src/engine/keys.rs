//! A unique text for every leaf of a tree.
//!
//! Usually the text is the printed key path. But in `{"a": {"b": x}, "a/b": y}` and
//! `{1: x, "1": y}` two key paths print as the same text. Each of these leaves uses its stored
//! name. If the name is also in use, the leaf uses its key path as JAX prints it (`['a/b'][0]`),
//! with a number if needed.

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

use crate::text::{is_printable, printable};
use crate::tree::{Key, KeyPath, LeafInfo, NodeKind, Tree};

/// Whether the keys alone rule out two leaves with the same text: each key prints as one step, and
/// no container has keys of two kinds.
pub(super) fn print_apart(tree: &Tree<LeafInfo>) -> bool {
    let prints_as_one = |key: &Key| match key {
        Key::Dict(text) | Key::Attr(text) => !text.contains(|c: char| c == '/' || !is_printable(c)),
        Key::DictInt(_) | Key::Index(_) => true,
    };
    // For each open container: the number of children to come and the kind of its keys.
    let mut open: Vec<(usize, Option<Discriminant<Key>>)> = Vec::new();
    tree.nodes().iter().enumerate().all(|(at, node)| {
        while let Some((0, _)) = open.last() {
            open.pop();
        }
        let kind = discriminant(&node.key);
        let is_of_one_kind = open.last_mut().is_none_or(|(left, known)| {
            *left -= 1;
            *known.get_or_insert(kind) == kind
        });
        if node.kind != NodeKind::Leaf {
            open.push((node.child_count, None));
        }
        // The root's key has no meaning.
        at == 0 || is_of_one_kind && prints_as_one(&node.key)
    })
}

/// A unique text for each leaf, in flatten order. A printed path that several leaves share is not
/// used for any of them.
pub(super) fn unique(tree: &Tree<LeafInfo>, paths: &[KeyPath]) -> Vec<String> {
    let mut texts: Vec<String> = paths.iter().map(ToString::to_string).collect();
    if print_apart(tree) {
        return texts;
    }
    let counted = |texts: &mut dyn Iterator<Item = &str>| {
        texts.fold(HashMap::new(), |mut counts, text| {
            *counts.entry(text.to_owned()).or_insert(0_usize) += 1;
            counts
        })
    };
    let printed = counted(&mut texts.iter().map(String::as_str));
    let names = counted(&mut tree.leaves().iter().map(|info| &*info.name));
    let mut taken: HashSet<String> = printed.keys().chain(names.keys()).cloned().collect();
    for (leaf, (text, info)) in texts.iter_mut().zip(tree.leaves()).enumerate() {
        if printed.get(text) == Some(&1) {
            continue;
        }
        // A text that several leaves share identifies none of them; use the stored name.
        *text = if names.get(&*info.name) == Some(&1) && printed.get(&*info.name) != Some(&1) {
            info.name.to_string()
        } else {
            let quoted = paths.get(leaf).map(quoted).unwrap_or_default();
            let numbered = (1..).map(|n| if n == 1 { quoted.clone() } else { format!("{quoted}#{n}") });
            let free = numbered.into_iter().find(|text| !taken.contains(text)).unwrap_or_default();
            taken.insert(free.clone());
            free
        };
    }
    texts
}

/// A key path as JAX prints it: `['a/b'][0].kernel`.
fn quoted(path: &KeyPath) -> String {
    let mut out = String::new();
    for key in path.keys() {
        match key {
            Key::Dict(text) => {
                let text = text.replace('\\', "\\\\").replace('\'', "\\'");
                out.push_str(&format!("['{}']", printable(&text)));
            }
            Key::DictInt(number) => out.push_str(&format!("[{number}]")),
            Key::Index(index) => out.push_str(&format!("[{index}]")),
            Key::Attr(name) => {
                out.push('.');
                out.push_str(&printable(name));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Array, Dtype, Shape};
    use crate::tree::{Leaf, TreeBuilder};
    use proptest::prelude::*;

    fn key(number: u8) -> Key {
        match number % 4 {
            0 => Key::dict(
                ["", "a", "a/b", "b", ".", "a.b", "1", "\n", "\\n", "['a']", "a\u{202e}", "a\\u{202e}"]
                    [usize::from(number / 4 % 12)],
            ),
            1 => Key::DictInt(i64::from(number % 3) - 1),
            2 => Key::Index(usize::from(number % 3)),
            _ => Key::attr("a"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_leaf_is_found_by_its_key_and_by_no_other(steps in proptest::collection::vec((0..4_u8, any::<u8>()), 0..24)) {
            let mut build = TreeBuilder::new();
            build.open(Key::Index(0), NodeKind::Dict).unwrap();
            let array = Array::new(Dtype::UInt8, Shape::new([1]).unwrap(), vec![0].into()).unwrap();
            // One set of keys for each open container: no two children have the same key.
            let mut taken = vec![HashSet::new()];
            for (step, number) in steps {
                let key = key(number);
                match step {
                    1 if build.depth() > 1 => {
                        build.close().unwrap();
                        taken.pop();
                    }
                    _ if !taken.last_mut().unwrap().insert(key.clone()) => {}
                    0 => {
                        build.open(key, NodeKind::Custom("x.Y".into())).unwrap();
                        taken.push(HashSet::new());
                    }
                    _ => build.leaf(key, Leaf::array(array.clone())).unwrap(),
                }
            }
            while build.depth() > 0 {
                build.close().unwrap();
            }
            let tree = build.finish().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x");
            // Some keys cannot stand beside each other in a file.
            if crate::save(&path, &tree).is_err() {
                return Ok(());
            }
            let checkpoint = crate::open(&path).unwrap();
            let keys = checkpoint.keys();
            prop_assert_eq!(keys.iter().collect::<HashSet<_>>().len(), tree.len());
            for (leaf, key) in keys.iter().enumerate() {
                prop_assert_eq!(checkpoint.find(key).unwrap(), leaf, "{:?}", key);
            }
            if print_apart(checkpoint.tree()) {
                // Compare with the opened tree: its index keys may differ from those in `build`.
                let tree = checkpoint.tree();
                prop_assert_eq!(keys, tree.paths().iter().map(ToString::to_string).collect::<Vec<_>>());
            }
        }
    }
}
