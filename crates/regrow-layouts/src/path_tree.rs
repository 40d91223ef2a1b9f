//! Builds a pytree from key paths: integers are positions in lists, texts are keys of dicts.
//! Integers with gaps between them, and integers beside texts, are keys of dicts, too.

use std::collections::HashMap;

use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::tree::{Key, KeyPath, NodeKind, TreeBuilder};

const DEPTH_MAX: usize = 1024;

/// A node: either its children, in the order of their first path, or one entry.
#[derive(Debug, Default)]
struct Node {
    children: Vec<(Key, usize)>,
    known: HashMap<Key, usize>,
    entry: Option<usize>,
}

/// Builds the tree of these paths. `add` adds the entry with a number at the current position.
///
/// # Errors
/// `Corrupt` for a path that occurs twice or goes through an entry; `Limit` for a path that is too
/// long; errors of `add`.
pub(crate) fn build<L>(
    paths: &[&KeyPath],
    mut add: impl FnMut(&mut TreeBuilder<L>, Key, usize) -> Result<()>,
) -> Result<TreeBuilder<L>> {
    let mut nodes = vec![Node::default()];
    for (number, path) in paths.iter().enumerate() {
        if path.len() > DEPTH_MAX {
            return Err(Error::new(ErrorKind::Limit, format!("the tree is deeper than {DEPTH_MAX} levels")));
        }
        let mut at = 0;
        for key in path.keys() {
            let next = nodes.len();
            let Some(node) = nodes.get_mut(at) else { break };
            let child = *node.known.entry(key.clone()).or_insert(next);
            if child == next {
                node.children.push((key.clone(), next));
                nodes.push(Node::default());
            }
            at = child;
        }
        if let Some(node) = nodes.get_mut(at) {
            if node.entry.is_some() {
                return Err(Error::corrupt("two leaves have the same key path").at_leaf(path));
            }
            node.entry = Some(number);
        }
    }
    if let Some(node) = nodes.iter().find(|node| node.entry.is_some() && !node.children.is_empty()) {
        let path = node.entry.and_then(|entry| paths.get(entry)).copied().cloned().unwrap_or_default();
        return Err(Error::corrupt("a leaf and a container have the same key path").at_leaf(&path));
    }
    let mut build = TreeBuilder::new();
    let mut open: Vec<std::vec::IntoIter<(Key, usize)>> = Vec::new();
    let mut next = Some((Key::Index(0), 0));
    while let Some((key, at)) = next {
        let node = nodes.get_mut(at).map(std::mem::take).unwrap_or_default();
        if let Some(entry) = node.entry {
            add(&mut build, key, entry)?;
        } else {
            let (kind, children) = container(node.children);
            build.open(key, kind)?;
            open.push(children.into_iter());
        }
        next = None;
        while let Some(children) = open.last_mut() {
            next = children.next();
            if next.is_some() {
                break;
            }
            open.pop();
            build.close()?;
        }
    }
    Ok(build)
}

/// The container for these children: a list if the keys are positions without gaps, otherwise a
/// dict.
fn container(mut children: Vec<(Key, usize)>) -> (NodeKind, Vec<(Key, usize)>) {
    let is_position = |(key, _): &(Key, usize)| matches!(key, Key::Index(_));
    if children.is_empty() || !children.iter().all(is_position) {
        let named = children.into_iter().map(|(key, child)| match key {
            Key::Index(at) => (Key::DictInt(at as i64), child),
            key => (key, child),
        });
        return (NodeKind::Dict, named.collect());
    }
    children.sort_by(|(a, _), (b, _)| a.cmp(b));
    let is_whole = children.iter().enumerate().all(|(at, (key, _))| *key == Key::Index(at));
    if is_whole {
        return (NodeKind::List, children);
    }
    let numbered = children.into_iter().map(|(key, child)| match key {
        Key::Index(at) => (Key::DictInt(at as i64), child),
        key => (key, child),
    });
    (NodeKind::Dict, numbered.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(keys: &[Key]) -> KeyPath {
        keys.iter().cloned().collect()
    }

    #[test]
    fn positions_are_lists_and_texts_are_dicts() {
        let (a, i) = (|name: &str| Key::dict(name), Key::Index);
        let paths =
            [path(&[a("m"), i(1)]), path(&[a("n"), i(2)]), path(&[a("m"), i(0), a("x")]), path(&[a("w")])];
        let paths: Vec<&KeyPath> = paths.iter().collect();
        let tree = build(&paths, |build, key, number| build.leaf(key, number)).unwrap().finish().unwrap();
        let found: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(
            found,
            [".:dict", "m:list", "m/0:dict", "m/0/x:leaf", "m/1:leaf", "n:dict", "n/2:leaf", "w:leaf"]
        );
        assert_eq!(tree.leaves(), [2, 0, 1, 3]);
    }

    #[test]
    fn two_at_one_place_are_refused() {
        let (a, ab) = (path(&[Key::dict("a")]), path(&[Key::dict("a"), Key::dict("b")]));
        for paths in [[&a, &a], [&a, &ab], [&ab, &a]] {
            let built = build(&paths, |build: &mut TreeBuilder<usize>, key, number| build.leaf(key, number));
            assert_eq!(built.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
