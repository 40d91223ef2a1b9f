//! New key paths for leaves, and the resulting tree.
//!
//! A rule has a regular expression and a new path: `params/(.*)/kernel=$1/weight`. The expression
//! must match the whole printed key path. The first rule that matches a leaf applies.
//!
//! `None` and empty containers are renamed like leaves. Two items cannot get the same path, so no
//! item is lost. A container that keeps all its children does not change. A dict that gains or
//! loses a child stays a dict of its kind, with its keys. Any other container that gains or loses a
//! child becomes a dict with text keys.

use std::collections::HashMap;
use std::sync::Arc;

use regex::Regex;

use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, KeyPath, Node, NodeKind, Tree, TreeBuilder};

/// A rule that renames leaves.
#[derive(Debug, Clone)]
pub struct Rename {
    pattern: Regex,
    replacement: String,
    text: String,
}

impl Rename {
    /// Makes a rule: if `pattern`, a regular expression, matches a whole printed key path
    /// (`params/dense/kernel`), `replacement` replaces the path, with `$1` or `${name}` for the
    /// text of a group.
    ///
    /// # Errors
    /// `InvalidArgument` with the reason, for example an open bracket.
    pub fn new(pattern: &str, replacement: &str) -> Result<Self> {
        let compiled = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
            Error::invalid(format!("{pattern:?} is not a regular expression: {error}"))
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

/// Returns an error if the replacement has a `$name` for which the expression has no group.
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
                "the replacement {replacement:?} names the group {name:?}, but the pattern has no such \
                 group"
            ))
            .help("write ${1} where letters, digits or _ follow, and $$ for a dollar"));
        }
    }
    Ok(())
}

/// The unit of selections and rules: a leaf, `None` or an empty container.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub path: KeyPath,
    pub part: Part,
}

#[derive(Debug, Clone)]
pub(super) enum Part {
    Leaf(usize),
    /// `None`, or a container without children.
    Empty(NodeKind),
}

impl Item {
    /// The printed path; for an item that is not a leaf also the kind of container.
    pub fn name(&self) -> String {
        match &self.part {
            Part::Leaf(_) => self.path.to_string(),
            Part::Empty(NodeKind::None) => format!("{} (None)", self.path),
            Part::Empty(kind) => format!("{} (an empty {})", self.path, kind.name()),
        }
    }
}

pub(super) fn items<L>(tree: &Tree<L>) -> Vec<Item> {
    let mut leaf = 0;
    let mut part = |node: &Node| match &node.kind {
        NodeKind::Leaf => {
            leaf += 1;
            Some(Part::Leaf(leaf - 1))
        }
        kind => (node.child_count == 0).then(|| Part::Empty(kind.clone())),
    };
    tree.walk().filter_map(|(path, node)| part(node).map(|part| Item { path, part })).collect()
}

/// The tree after renaming. `items` are the remaining items of `tree`. The leaves of the result are
/// positions in `tree`.
///
/// # Errors
/// `NameCollision` if two items get the same path, or an item gets a path below another item;
/// `InvalidArgument` for a rule that matches nothing, or that gives an item an empty path.
pub(super) fn rename<L>(
    tree: &Tree<L>,
    items: &[Item],
    rules: &[Rename],
    nest: Option<&str>,
) -> Result<Tree<usize>> {
    let mut used = vec![false; rules.len()];
    let mut trie = Trie::of_nodes(tree, items);
    for (at, Item { path, .. }) in items.iter().enumerate() {
        let printed = path.join("/");
        let mut renamed = None;
        for (rule, used) in rules.iter().zip(&mut used) {
            renamed = rule.apply(&printed);
            if renamed.is_some() {
                *used = true;
                break;
            }
        }
        let renamed = renamed.filter(|renamed| *renamed != printed);
        let keys: Option<Vec<Key>> = renamed.as_deref().map(|path| path.split('/').map(Key::dict).collect());
        let nested = nest.and_then(|separator| nested(keys.as_deref().unwrap_or(path.keys()), separator));
        let Some(keys) = nested.or(keys) else {
            trie.put(path.keys(), false, at)?;
            continue;
        };
        if keys.iter().any(|key| key.text().is_empty()) {
            let name = renamed.unwrap_or(printed);
            return Err(Error::invalid(format!("a rule leaves a leaf without a name: {name:?}"))
                .expected("keys separated by /, none of them empty", format_args!("{name:?}"))
                .help("change the part after the = of the rule, or leave out `nest`")
                .at_leaf(path));
        }
        trie.put(&keys, true, at)?;
    }
    if let Some((rule, _)) = rules.iter().zip(&used).find(|(_, used)| !**used) {
        return Err(Error::invalid(format!("the rule {:?} matches no key path", rule.pattern()))
            .help("a rule must match a whole path; `regrow ls` shows them"));
    }
    trie.build()
}

/// The keys in a flat name; `None` if the name has only one key, or the path has several keys.
fn nested(keys: &[Key], separator: &str) -> Option<Vec<Key>> {
    let [Key::Dict(name)] = keys else { return None };
    name.contains(separator).then(|| name.split(separator).map(Key::dict).collect())
}

/// Containers and items by their paths.
struct Trie<'a> {
    items: &'a [Item],
    nodes: Vec<Place>,
    children: HashMap<(usize, Arc<str>), usize>,
}

struct Place {
    key: Key,
    children: Vec<usize>,
    /// The kind of container in the original tree, and its number of children there.
    was: Option<(NodeKind, usize)>,
    item: Option<(usize, bool)>,
    has_below: bool,
    /// Whether a moved item has added a child to the container.
    changed: bool,
}

impl<'a> Trie<'a> {
    /// The nodes of the original tree, without items.
    fn of_nodes<L>(tree: &Tree<L>, items: &'a [Item]) -> Self {
        let mut trie = Self { items, nodes: Vec::new(), children: HashMap::new() };
        // For each open container: its position and the number of children to come.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for node in tree.nodes() {
            while open.last().is_some_and(|top| top.1 == 0) {
                open.pop();
            }
            let parent = open.last_mut().map(|top| {
                top.1 -= 1;
                top.0
            });
            let was = (node.child_count > 0).then(|| (node.kind.clone(), node.child_count));
            let at = trie.add(parent, node.key.clone(), was);
            open.push((at, node.child_count));
        }
        trie
    }

    fn add(&mut self, parent: Option<usize>, key: Key, was: Option<(NodeKind, usize)>) -> usize {
        let at = self.nodes.len();
        if let Some(parent) = parent {
            // Two keys can have the same text (1 and "1"). A search by text finds the first.
            self.children.entry((parent, Arc::from(&*key.text()))).or_insert(at);
            if let Some(parent) = self.nodes.get_mut(parent) {
                parent.children.push(at);
            }
        }
        let children = Vec::new();
        self.nodes.push(Place { key, children, was, item: None, has_below: false, changed: false });
        at
    }

    /// Puts an item at its path. `moved` is true if a rule gave the path.
    fn put(&mut self, keys: &[Key], moved: bool, item: usize) -> Result<()> {
        let mut at = 0;
        for key in keys {
            if let Some(other) = self.enter(at) {
                return Err(self.collision(other, item, keys));
            }
            let found = self.children.get(&(at, Arc::from(&*key.text()))).copied();
            // A node that keeps its name is found by its exact key, even if a sibling has the same
            // text.
            let found = match found.and_then(|found| self.nodes.get(found)) {
                Some(node) if !moved && node.key != *key => {
                    let siblings = self.nodes.get(at).map_or(&[][..], |node| node.children.as_slice());
                    siblings
                        .iter()
                        .copied()
                        .find(|&child| self.nodes.get(child).is_some_and(|node| node.key == *key))
                }
                _ => found,
            };
            if let (true, Some(node)) = (moved, self.nodes.get_mut(at)) {
                node.changed |= found.is_none();
            }
            at = found.unwrap_or_else(|| self.add(Some(at), key.clone(), None));
        }
        match self.sit(at, item, moved) {
            Some(other) => Err(self.collision(other, item, keys)),
            None => Ok(()),
        }
    }

    /// Goes through a node to a path below it. Returns the item that blocks the path, if there is
    /// one. An empty container that was not moved can get a child, and does not block.
    fn enter(&mut self, at: usize) -> Option<usize> {
        let node = self.nodes.get_mut(at)?;
        if let Some((other, moved)) = node.item {
            match self.items.get(other).map(|item| &item.part) {
                Some(Part::Empty(kind)) if !moved && *kind != NodeKind::None => {
                    node.item = None;
                    node.was = Some((kind.clone(), 0));
                }
                _ => return Some(other),
            }
        }
        node.has_below = true;
        None
    }

    /// Puts the item at this node. Returns the item that blocks the node, if there is one.
    fn sit(&mut self, at: usize, item: usize, moved: bool) -> Option<usize> {
        let below = self.first_below(at);
        let node = self.nodes.get_mut(at)?;
        if let Some((other, _)) = node.item {
            return Some(other);
        }
        match (below, self.items.get(item).map(|item| &item.part)) {
            (None, _) => node.item = Some((item, moved)),
            (Some(_), Some(Part::Empty(kind))) if !moved && *kind != NodeKind::None => {
                node.was = Some((kind.clone(), 0));
            }
            (Some(other), _) => return Some(other),
        }
        None
    }

    /// The first item below a node; `None` if there is none.
    fn first_below(&self, at: usize) -> Option<usize> {
        let mut node = self.nodes.get(at)?;
        while node.has_below {
            let mut children = node.children.iter().filter_map(|&child| self.nodes.get(child));
            node = children.find(|child| child.is_alive())?;
            if let Some((item, _)) = node.item {
                return Some(item);
            }
        }
        None
    }

    fn collision(&self, other: usize, item: usize, keys: &[Key]) -> Error {
        let name = |item: usize| self.items.get(item).map(Item::name).unwrap_or_default();
        Error::new(
            ErrorKind::NameCollision,
            format!("{} and {} would get the same key path", name(other), name(item)),
        )
        .at_leaf(&KeyPath::from(keys.to_vec()))
        .help(
            "change the rules: every leaf needs its own path, and no path may be the beginning of \
                 another",
        )
    }

    fn build(&self) -> Result<Tree<usize>> {
        let alive = |at: &usize| self.nodes.get(*at).is_some_and(Place::is_alive);
        let mut build = TreeBuilder::new();
        /// A step of building the tree. `steps` contains the remaining steps, the last one first.
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
            match node.item.and_then(|(item, _)| self.items.get(item)).map(|item| &item.part) {
                Some(Part::Leaf(leaf)) => {
                    build.leaf(key, *leaf)?;
                    continue;
                }
                Some(Part::Empty(kind)) => {
                    build.open(key, kind.clone())?;
                    build.close()?;
                    continue;
                }
                None => {}
            }
            let children: Vec<usize> = node.children.iter().copied().filter(alive).collect();
            let (kind, keeps_keys) = match &node.was {
                // A container that needs all of its positions or fields keeps its kind only if it
                // is complete.
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

impl Place {
    fn is_alive(&self) -> bool {
        self.item.is_some() || self.has_below
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
        let mut items = items(&tree);
        items.retain(|item| chosen(&item.path.to_string()));
        let new = rename(&tree, &items, &rules, None)?;
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
            "params/1/bias<params/1/bias | dict dict dict leaf"
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

    #[test]
    fn what_is_empty_goes_by_the_same_rules() {
        assert_eq!(
            renamed(&[("empty", "params/none")], |path| path == "7" || path == "empty").unwrap(),
            "7<7 | dict leaf dict tuple"
        );
        // An empty container that was not moved gets a child, and is then no longer a tuple.
        assert_eq!(
            renamed(&[("7", "empty/x")], |path| path == "7" || path == "empty").unwrap(),
            "empty/x<7 | dict dict leaf"
        );
        for rules in [[("7", "x/y"), ("empty", "x")], [("7", "x"), ("empty", "x/y")]] {
            let error = renamed(&rules, |path| path == "7" || path == "empty").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NameCollision);
            assert!(
                error.to_string().contains("7 and empty (an empty tuple) would get the same key path"),
                "{error}"
            );
        }
    }

    #[test]
    fn none_is_never_replaced() {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for (key, is_none) in [("a", false), ("n", true), ("o", false)] {
            match is_none {
                true => build.open(Key::dict(key), NodeKind::None).and_then(|()| build.close()).unwrap(),
                false => build.leaf(Key::dict(key), ()).unwrap(),
            }
        }
        build.close().unwrap();
        let tree = build.finish().unwrap();
        for (from, to) in [("o", "n/x"), ("o", "n"), ("a", "n/x"), ("a", "n"), ("n", "o"), ("n", "a/x")] {
            let error = rename(&tree, &items(&tree), &[Rename::new(from, to).unwrap()], None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NameCollision, "{from} to {to}");
            let text = error.to_string();
            assert!(text.contains("n (None)") && text.contains("would get the same key path"), "{text}");
        }
        let swapped = [Rename::new("o", "n").unwrap(), Rename::new("n", "o").unwrap()];
        let swapped = rename(&tree, &items(&tree), &swapped, None).unwrap();
        let kinds: Vec<&str> = swapped.nodes().iter().map(|node| node.kind.name()).collect();
        assert_eq!(kinds, ["dict", "leaf", "leaf", "none"]);
    }

    fn flat(names: &[&str]) -> Tree<()> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        names.iter().for_each(|name| build.leaf(Key::dict(*name), ()).unwrap());
        build.close().unwrap();
        build.finish().unwrap()
    }

    #[test]
    fn flat_names_nest_after_the_renames() {
        let tree = flat(&["model.dense.w", "model.dense.b", "step"]);
        let rules = [Rename::new(r"model\.(.*)", "params.$1").unwrap()];
        let nested = rename(&tree, &items(&tree), &rules, Some(".")).unwrap();
        let paths: Vec<Vec<Key>> = nested.paths().iter().map(|path| path.keys().to_vec()).collect();
        let keys = |names: &[&str]| names.iter().map(|name| Key::dict(*name)).collect::<Vec<_>>();
        assert_eq!(
            paths,
            [keys(&["step"]), keys(&["params", "dense", "w"]), keys(&["params", "dense", "b"])]
        );
        for (names, kind) in
            [(["a", "a.b"], ErrorKind::NameCollision), (["a.", "b"], ErrorKind::InvalidArgument)]
        {
            let tree = flat(&names);
            let error = rename(&tree, &items(&tree), &[], Some(".")).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn case_can_be_ignored() {
        let rule = Rename::new("(?i)PARAMS/(.*)", "p/$1").unwrap();
        assert_eq!(rule.apply("params/Kernel").as_deref(), Some("p/Kernel"));
    }
}
