//! Builds a tree from the flat list of `_METADATA`.
//!
//! ```text
//! ('opt', '0')  [2 opt, 1 0]  ┐      Dict ── opt ── List ── 0: entry 0
//! ('w',)        [2 w]         ┘           └─ w: entry 1
//! ```
//!
//! Key types distinguish lists and dicts. Rich types also distinguish tuples and named tuples. Dict
//! members keep the order of the file, which is JAX' flatten order, so attributes are in the order
//! of their fields. O(keys), without recursion.

use std::borrow::Cow;
use std::collections::HashMap;

use super::entry::{Entry, KeyType};
use super::metadata::TreeMetadata;
use super::rich::RichNode;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::tree::{Key, KeyPath, NodeKind, Tree, TreeBuilder};

/// The kind of an entry that is not a leaf: `None` and the empty containers.
pub(super) fn empty_container(value_type: &str) -> Option<NodeKind> {
    match value_type {
        "None" => Some(NodeKind::None),
        "Dict" => Some(NodeKind::Dict),
        "List" => Some(NodeKind::List),
        "Tuple" => Some(NodeKind::Tuple),
        // Orbax does not store the type of the named tuple.
        "NamedTuple" => Some(NodeKind::NamedTuple("NamedTuple".into())),
        _ => None,
    }
}

/// The key path of an entry, as far as it is known without rich types.
pub(super) fn key_path(entry: &Entry) -> KeyPath {
    let key = |(kind, text): &(KeyType, String)| match (kind, text.parse()) {
        (KeyType::Sequence, Ok(index)) => Key::Index(index),
        _ => Key::dict(text.as_str()),
    };
    entry.keys.iter().map(key).collect()
}

/// Builds the tree; its leaves are positions in `metadata.entries`.
///
/// An entry whose path is a proper prefix of another's is dropped: partial saves of the v1 API
/// write such entries.
///
/// # Errors
/// `NameCollision` if two leaves share a stored name, `Corrupt` for sequences with gaps and for
/// nodes that are a sequence and a dict at once, `Limit` for trees that are nested too deeply.
pub(super) fn build(metadata: &TreeMetadata) -> Result<Tree<usize>> {
    refuse_collisions(&metadata.entries)?;
    let trie = Trie::new(&metadata.entries)?;
    trie.emit(metadata)
}

fn refuse_collisions(entries: &[Entry]) -> Result<()> {
    let mut by_name: HashMap<String, &Entry> = HashMap::with_capacity(entries.len());
    for entry in entries.iter().filter(|entry| empty_container(&entry.value_type).is_none()) {
        let name = entry.param_name();
        if let Some(first) = by_name.get(&name) {
            return Err(Error::new(
                ErrorKind::NameCollision,
                format!("two leaves share the stored name {name:?}: {} and {}", first.repr(), entry.repr()),
            )
            .at_leaf(&key_path(entry))
            .help(
                "Orbax stored only one of them and does not say which: save again with keys that differ \
                 when joined by dots",
            ));
        }
        by_name.insert(name, entry);
    }
    Ok(())
}

struct Trie<'a> {
    nodes: Vec<TrieNode<'a>>,
}

#[derive(Default)]
struct TrieNode<'a> {
    text: &'a str,
    entry: Option<usize>,
    kind: Option<KeyType>,
    children: Vec<usize>,
}

impl<'a> Trie<'a> {
    fn new(entries: &'a [Entry]) -> Result<Self> {
        let mut nodes = vec![TrieNode::default()];
        let mut index: HashMap<(usize, &str), usize> = HashMap::with_capacity(entries.len());
        for (position, entry) in entries.iter().enumerate() {
            let mut at = 0;
            for (kind, text) in &entry.keys {
                let next = nodes.len();
                let child = *index.entry((at, text)).or_insert(next);
                if child == next {
                    nodes.push(TrieNode { text, ..TrieNode::default() });
                }
                let Some(node) = nodes.get_mut(at) else { return Err(lost()) };
                if child == next {
                    node.children.push(child);
                }
                if *node.kind.get_or_insert(*kind) != *kind {
                    return Err(Error::corrupt("a node of the tree has both list positions and dict keys")
                        .at_leaf(&key_path(entry)));
                }
                at = child;
            }
            let Some(node) = nodes.get_mut(at) else { return Err(lost()) };
            if node.entry.replace(position).is_some() {
                return Err(Error::new(
                    ErrorKind::NameCollision,
                    format!("the key path {} occurs twice", entry.repr()),
                ));
            }
        }
        Ok(Self { nodes })
    }

    fn emit(&self, metadata: &TreeMetadata) -> Result<Tree<usize>> {
        enum Step<'s> {
            Visit(usize, Key, Option<&'s RichNode>),
            Close,
        }
        let mut build = TreeBuilder::new();
        let mut steps = vec![Step::Visit(0, Key::Index(0), metadata.value_metadata_tree.as_ref())];
        while let Some(step) = steps.pop() {
            let Step::Visit(at, key, rich) = step else {
                build.close()?;
                continue;
            };
            let node = self.nodes.get(at).ok_or_else(lost)?;
            let Some(kind) = node.kind else {
                match node.entry.and_then(|entry| Some((entry, metadata.entries.get(entry)?))) {
                    Some((entry, of)) => match empty_container(&of.value_type) {
                        Some(kind) => {
                            build.open(key, kind)?;
                            build.close()?;
                        }
                        None => build.leaf(key, entry)?,
                    },
                    // This happens only for the root of a document without entries.
                    None => {
                        build.open(key, NodeKind::Dict)?;
                        build.close()?;
                    }
                }
                continue;
            };
            let node_kind = container_kind(kind, rich);
            let is_named_tuple = matches!(node_kind, NodeKind::NamedTuple(_));
            build.open(key, node_kind)?;
            steps.push(Step::Close);
            let below = rich.map(RichNode::children).unwrap_or_default();
            let rich_of = |text: &str| below.get(text).copied();
            match kind {
                KeyType::Sequence => {
                    for (position, child, text) in self.sequence(node)?.into_iter().rev() {
                        steps.push(Step::Visit(child, Key::Index(position), rich_of(text)));
                    }
                }
                KeyType::Dict => {
                    for &child in node.children.iter().rev() {
                        let text = self.nodes.get(child).ok_or_else(lost)?.text;
                        let key = if is_named_tuple { Key::attr(text) } else { Key::dict(text) };
                        steps.push(Step::Visit(child, key, rich_of(text)));
                    }
                }
            }
        }
        build.finish()
    }

    fn sequence(&self, node: &TrieNode<'a>) -> Result<Vec<(usize, usize, &'a str)>> {
        let mut children = Vec::with_capacity(node.children.len());
        for &child in &node.children {
            let text = self.nodes.get(child).ok_or_else(lost)?.text;
            let position: usize =
                text.parse().map_err(|_| Error::corrupt(format!("{text:?} is not a position in a list")))?;
            children.push((position, child, text));
        }
        children.sort_unstable_by_key(|&(position, ..)| position);
        match children.iter().enumerate().find(|(i, (position, ..))| i != position) {
            None => Ok(children),
            Some((i, (position, ..))) => Err(Error::corrupt(format!(
                "the positions of the list {:?} have a gap",
                if node.text.is_empty() { "." } else { node.text }
            ))
            .expected(i, position)),
        }
    }
}

fn container_kind(kind: KeyType, rich: Option<&RichNode>) -> NodeKind {
    match (kind, rich) {
        (KeyType::Sequence, Some(RichNode::Tuple(_))) => NodeKind::Tuple,
        (KeyType::Sequence, _) => NodeKind::List,
        (KeyType::Dict, Some(named @ RichNode::NamedTuple { .. })) => NodeKind::NamedTuple(
            named.type_name().map_or(Cow::Borrowed("NamedTuple"), Cow::Owned).as_ref().into(),
        ),
        (KeyType::Dict, _) => NodeKind::Dict,
    }
}

fn lost() -> Error {
    Error::corrupt("the tree refers to a missing node")
        .help("copy _METADATA again, or restore an earlier step")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(keys: &[(u8, &str)], value_type: &str) -> Entry {
        let key = |&(kind, text): &(u8, &str)| {
            (if kind == 1 { KeyType::Sequence } else { KeyType::Dict }, text.to_owned())
        };
        Entry {
            keys: keys.iter().map(key).collect(),
            value_type: value_type.to_owned(),
            skip_deserialize: false,
            write_shape: None,
        }
    }

    fn tree(entries: Vec<Entry>) -> Result<Tree<usize>> {
        build(&TreeMetadata { entries, ..TreeMetadata::default() })
    }

    #[test]
    fn orders_lists_by_number_and_keeps_dicts_as_they_are() {
        let mut entries: Vec<Entry> =
            (0..12).rev().map(|i| entry(&[(2, "z"), (1, &i.to_string())], "scalar")).collect();
        entries.push(entry(&[(2, "a")], "string"));
        entries.push(entry(&[(2, "e")], "List"));
        let tree = tree(entries).unwrap();
        let all: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(all[..3], [".:dict", "z:list", "z/0:leaf"]);
        assert_eq!(all[12..], ["z/10:leaf", "z/11:leaf", "a:leaf", "e:list"].map(str::to_owned)[..]);
        assert_eq!(tree.leaves()[0], 11);
    }

    #[test]
    fn drops_prefixes_and_takes_a_bare_leaf() {
        let partial =
            tree(vec![entry(&[(2, "a")], "placeholder"), entry(&[(2, "a"), (2, "b")], "scalar")]).unwrap();
        assert_eq!(partial.leaves(), [1]);
        assert_eq!(tree(vec![entry(&[], "scalar")]).unwrap().paths(), [KeyPath::root()]);
        assert!(tree(vec![]).unwrap().is_empty());
    }

    #[test]
    fn refuses_what_is_no_tree() {
        let kind = |entries| tree(entries).unwrap_err().kind();
        assert_eq!(
            kind(vec![entry(&[(2, "a"), (2, "b")], "scalar"), entry(&[(2, "a.b")], "scalar")]),
            ErrorKind::NameCollision
        );
        assert_eq!(
            kind(vec![entry(&[(2, "a")], "Dict"), entry(&[(2, "a")], "Dict")]),
            ErrorKind::NameCollision
        );
        assert_eq!(
            kind(vec![entry(&[(1, "0")], "scalar"), entry(&[(1, "2")], "scalar")]),
            ErrorKind::Corrupt
        );
        assert_eq!(kind(vec![entry(&[(1, "x")], "scalar")]), ErrorKind::Corrupt);
        assert_eq!(
            kind(vec![entry(&[(1, "0")], "scalar"), entry(&[(2, "1")], "scalar")]),
            ErrorKind::Corrupt
        );
    }

    #[test]
    fn a_deep_tree_needs_no_stack() {
        let keys: Vec<(u8, &str)> = vec![(2, "k"); 50_000];
        assert_eq!(tree(vec![entry(&keys, "scalar")]).unwrap().nodes().len(), 50_001);
    }
}
