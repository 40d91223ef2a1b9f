//! New key paths for leaves, and the tree that they make.
//!
//! A rule is a regular expression over the whole printed key path and what takes its place; the first rule that
//! matches a leaf decides. Containers that keep all their children stay what they are; one that gets or loses a
//! child becomes a dict of texts.

use std::collections::HashMap;
use std::sync::Arc;

use regex::Regex;

use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, KeyPath, NodeKind, Tree, TreeBuilder};

/// A rule that renames leaves.
#[derive(Debug, Clone)]
pub struct Rename {
    pattern: Regex,
    replacement: String,
    text: String,
}

impl Rename {
    /// A rule: where `pattern`, a regular expression, matches a whole printed key path (`params/dense/kernel`),
    /// `replacement` takes its place, with `$1` or `${name}` for what a group has matched.
    ///
    /// # Errors
    /// `InvalidArgument` with the reason, for example an open bracket.
    pub fn new(pattern: &str, replacement: &str) -> Result<Self> {
        let compiled = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
            Error::invalid(format!("{pattern:?} is no regular expression: {error}"))
                .help("a rule is PATTERN=REPLACEMENT, for example 'params/(.*)/kernel=$1/weight'")
        })?;
        check_groups(&compiled, replacement)?;
        Ok(Self { pattern: compiled, replacement: replacement.to_owned(), text: pattern.to_owned() })
    }

    /// The regular expression, as it was given.
    pub fn pattern(&self) -> &str {
        &self.text
    }

    fn apply(&self, path: &str) -> Option<String> {
        let captures = self.pattern.captures(path)?;
        let mut out = String::new();
        captures.expand(&self.replacement, &mut out);
        Some(out)
    }
}

/// Refuses `$name` for which the expression has no group: it would stand for nothing.
fn check_groups(pattern: &Regex, replacement: &str) -> Result<()> {
    let plain = replacement.replace("$$", "");
    for part in plain.split('$').skip(1) {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let name: String = match part.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, _)) => name.to_owned(),
            None => part.chars().take_while(is_word).collect(),
        };
        let is_there = match name.parse::<usize>() {
            Ok(number) => number < pattern.captures_len(),
            Err(_) => pattern.capture_names().flatten().any(|known| known == name),
        };
        if !is_there {
            return Err(Error::invalid(format!(
                "the replacement {replacement:?} names the group {name:?}, which there is not"
            ))
            .help("write ${1} where letters, digits or _ follow, and $$ for a dollar"));
        }
    }
    Ok(())
}

/// The tree after renaming, its leaves the positions of those of `tree` that are `chosen`.
///
/// # Errors
/// `NameCollision` if two leaves come to one path or a leaf to a container's; `InvalidArgument` for a rule that
/// matches nothing, or leaves a leaf without a name.
pub(super) fn rename<L>(
    tree: &Tree<L>,
    paths: &[KeyPath],
    chosen: impl Fn(usize) -> bool,
    rules: &[Rename],
) -> Result<Tree<usize>> {
    let mut used = vec![false; rules.len()];
    let mut trie = Trie::of_nodes(tree);
    for (leaf, path) in paths.iter().enumerate().filter(|(leaf, _)| chosen(*leaf)) {
        let printed = path.join("/");
        let mut renamed = None;
        for (rule, used) in rules.iter().zip(&mut used) {
            renamed = rule.apply(&printed);
            if renamed.is_some() {
                *used = true;
                break;
            }
        }
        match renamed.filter(|renamed| *renamed != printed) {
            None => trie.put(path.keys(), false, leaf, paths)?,
            Some(renamed) => {
                let keys: Vec<Key> = renamed.split('/').map(Key::dict).collect();
                if renamed.is_empty() || keys.iter().any(|key| key.text().is_empty()) {
                    return Err(Error::invalid(format!("a rule leaves a leaf without a name: {renamed:?}"))
                        .at_leaf(path));
                }
                trie.put(&keys, true, leaf, paths)?;
            }
        }
    }
    if let Some((rule, _)) = rules.iter().zip(&used).find(|(_, used)| !**used) {
        return Err(Error::invalid(format!("the rule {:?} matches no key path", rule.pattern()))
            .help("a rule must match a whole path; `regrow ls` shows them"));
    }
    trie.build()
}

/// Containers and leaves by their paths.
struct Trie {
    nodes: Vec<Node>,
    children: HashMap<(usize, Arc<str>), usize>,
}

struct Node {
    key: Key,
    children: Vec<usize>,
    /// What it was in the original tree, and how many children it had.
    was: Option<(NodeKind, usize)>,
    leaf: Option<usize>,
    /// Whether a renamed leaf has come into it.
    changed: bool,
}

impl Trie {
    /// The nodes of the original, its leaves still missing.
    fn of_nodes<L>(tree: &Tree<L>) -> Self {
        let mut trie = Self { nodes: Vec::new(), children: HashMap::new() };
        // Open containers: position, children still to come.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for node in tree.nodes() {
            while open.last().is_some_and(|top| top.1 == 0) {
                open.pop();
            }
            let parent = open.last_mut().map(|top| {
                top.1 -= 1;
                top.0
            });
            let is_leaf = matches!(node.kind, NodeKind::Leaf);
            let was = (!is_leaf).then(|| (node.kind.clone(), node.child_count));
            let at = trie.add(parent, node.key.clone(), was);
            if !is_leaf {
                open.push((at, node.child_count));
            }
        }
        trie
    }

    fn add(&mut self, parent: Option<usize>, key: Key, was: Option<(NodeKind, usize)>) -> usize {
        let at = self.nodes.len();
        if let Some(parent) = parent {
            // Two keys of one text (1 and "1") are found by neither; the first keeps the name.
            self.children.entry((parent, Arc::from(&*key.text()))).or_insert(at);
            if let Some(parent) = self.nodes.get_mut(parent) {
                parent.children.push(at);
            }
        }
        self.nodes.push(Node { key, children: Vec::new(), was, leaf: None, changed: false });
        at
    }

    fn put(&mut self, keys: &[Key], changed: bool, leaf: usize, paths: &[KeyPath]) -> Result<()> {
        let mut at = 0;
        let occupied = |other: usize| {
            let name = |leaf: usize| paths.get(leaf).map(ToString::to_string).unwrap_or_default();
            Error::new(
                ErrorKind::NameCollision,
                format!("{} and {} come to one place", name(other), name(leaf)),
            )
            .at_leaf(&KeyPath::from(keys.to_vec()))
            .help(
                "change the rules so that every leaf has a path of its own, and none is another's beginning",
            )
        };
        for key in keys {
            if let Some(other) = self.nodes.get(at).and_then(|node| node.leaf) {
                return Err(occupied(other));
            }
            let found = self.children.get(&(at, Arc::from(&*key.text()))).copied();
            // An unchanged leaf goes by its exact key, also beside another of the same text.
            let found = match found.and_then(|found| self.nodes.get(found)) {
                Some(node) if !changed && node.key != *key => {
                    let siblings = self.nodes.get(at).map_or(&[][..], |node| node.children.as_slice());
                    siblings
                        .iter()
                        .copied()
                        .find(|&child| self.nodes.get(child).is_some_and(|node| node.key == *key))
                }
                _ => found,
            };
            if let (true, Some(node)) = (changed, self.nodes.get_mut(at)) {
                node.changed |= found.is_none();
            }
            at = found.unwrap_or_else(|| self.add(Some(at), key.clone(), None));
        }
        let Some(node) = self.nodes.get(at) else { return Ok(()) };
        if let Some(other) = node.leaf {
            return Err(occupied(other));
        }
        if !node.children.is_empty()
            || node.was.as_ref().is_some_and(|(kind, _)| !matches!(kind, NodeKind::None))
        {
            let below = node.children.first().and_then(|&child| self.first_leaf(child)).unwrap_or(leaf);
            return Err(occupied(below));
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.leaf = Some(leaf);
            node.was = None;
        }
        Ok(())
    }

    fn first_leaf(&self, at: usize) -> Option<usize> {
        let mut at = at;
        loop {
            let node = self.nodes.get(at)?;
            if node.leaf.is_some() {
                return node.leaf;
            }
            at = *node.children.first()?;
        }
    }

    /// Whether anything is left of a node: a leaf, a child, or a container that was empty from the start.
    fn lives(&self) -> Vec<bool> {
        let mut lives = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().rev() {
            let alive = node.leaf.is_some()
                || matches!(node.was, Some((_, 0)))
                || node.children.iter().any(|&child| lives.get(child) == Some(&true));
            if let Some(slot) = lives.get_mut(at) {
                *slot = alive;
            }
        }
        lives
    }

    fn build(&self) -> Result<Tree<usize>> {
        let lives = self.lives();
        let alive = |at: &usize| lives.get(*at) == Some(&true);
        let mut build = TreeBuilder::new();
        /// What is still to be done, last first.
        enum Step {
            Enter(usize, Option<Key>),
            Close,
        }
        let mut steps = vec![Step::Enter(0, None)];
        while let Some(step) = steps.pop() {
            let Step::Enter(at, key) = step else {
                build.close()?;
                continue;
            };
            let Some(node) = self.nodes.get(at) else { continue };
            let key = key.unwrap_or_else(|| node.key.clone());
            if let Some(leaf) = node.leaf {
                build.leaf(key, leaf)?;
                continue;
            }
            let children: Vec<usize> = node.children.iter().copied().filter(alive).collect();
            let (kind, keeps_keys) = match &node.was {
                // What is told apart by position alone, or by all of its fields, must be whole.
                Some((kind, count)) if !node.changed && children.len() == *count => (kind.clone(), true),
                Some((kind @ (NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict), _)) => {
                    (kind.clone(), true)
                }
                _ => (NodeKind::Dict, false),
            };
            build.open(key, kind)?;
            steps.push(Step::Close);
            for &child in children.iter().rev() {
                let key =
                    self.nodes.get(child).filter(|_| !keeps_keys).map(|node| Key::dict(&*node.key.text()));
                steps.push(Step::Enter(child, key));
            }
        }
        build.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree<()> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.leaf(Key::DictInt(7), ()).unwrap();
        build.open(Key::dict("params"), NodeKind::List).unwrap();
        for at in 0..2 {
            build.open(Key::Index(at), NodeKind::NamedTuple("Layer".into())).unwrap();
            build.leaf(Key::attr("kernel"), ()).unwrap();
            build.leaf(Key::attr("bias"), ()).unwrap();
            build.close().unwrap();
        }
        build.close().unwrap();
        build.open(Key::dict("empty"), NodeKind::Tuple).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    }

    fn renamed(rules: &[(&str, &str)], chosen: impl Fn(&str) -> bool) -> Result<String> {
        let tree = tree();
        let paths = tree.paths();
        let rules: Vec<Rename> = rules.iter().map(|(from, to)| Rename::new(from, to).unwrap()).collect();
        let new = rename(&tree, &paths, |leaf| chosen(&paths[leaf].to_string()), &rules)?;
        let leaves: Vec<String> = new.iter().map(|(path, leaf)| format!("{path}<{}", paths[*leaf])).collect();
        let kinds: Vec<&str> = new.nodes().iter().map(|node| node.kind.name()).collect();
        Ok(format!("{} | {}", leaves.join(" "), kinds.join(" ")))
    }

    #[test]
    fn without_rules_nothing_changes() {
        assert_eq!(
            renamed(&[], |_| true).unwrap(),
            "7<7 params/0/kernel<params/0/kernel params/0/bias<params/0/bias params/1/kernel<params/1/kernel \
             params/1/bias<params/1/bias | dict leaf list named_tuple leaf leaf named_tuple leaf leaf tuple"
        );
    }

    #[test]
    fn a_container_that_changes_becomes_a_dict() {
        assert_eq!(
            renamed(&[("params/(.*)/kernel", "params/$1/weight")], |_| true).unwrap(),
            "7<7 params/0/bias<params/0/bias params/0/weight<params/0/kernel params/1/bias<params/1/bias \
             params/1/weight<params/1/kernel | dict leaf list dict leaf leaf dict leaf leaf tuple"
        );
        assert_eq!(
            renamed(&[], |path| path.ends_with("1/bias")).unwrap(),
            "params/1/bias<params/1/bias | dict dict dict leaf tuple"
        );
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        let error = renamed(&[("params/.*", "x")], |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        assert!(error.to_string().contains("params/0/kernel and params/0/bias"), "{error}");
        let error = renamed(&[("7", "params")], |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        let error = renamed(&[("params/0/bias", "params/0/kernel/b")], |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        assert!(
            renamed(&[("param", "x")], |_| true).unwrap_err().to_string().contains("matches no key path")
        );
        assert!(renamed(&[("7", "a//b")], |_| true).unwrap_err().to_string().contains("without a name"));
        assert!(Rename::new("(", "x").is_err());
        assert!(Rename::new("a/(.*)", "w$1_k").unwrap_err().to_string().contains("1_k"));
        assert!(Rename::new("a/(.*)", "$2").is_err());
        assert!(Rename::new("a/(?P<n>.*)", "${n}_k/$1/$$").is_ok());
    }
}
