//! The stored name of every leaf, in safetensors files, in the database and for Orbax.
//!
//! ```text
//! {"a": {"b": x}}       a.b
//! {"a.b": y}            a.b      beside the first: two leaves of one name
//!                       a%2Eb    so this one is escaped; a unique name stays as it is
//! ```
//!
//! A name is also escaped if it is not allowed, for example if it has a part `..`, or if it is too
//! long for a key of the database.

use std::collections::{BTreeSet, HashMap, HashSet};

use regrow_ocdbt::KEY_LEN_MAX_BYTES;
use regrow_tree::tree::{Key, KeyPath, Leaf, LeafKind, LeafNames, Tree};

/// Longest name of a leaf in a database, for an array of any rank: `/c` and 64 numbers follow it.
const NAME_LEN_MAX_BYTES: usize = KEY_LEN_MAX_BYTES - 2 - 64 * 21;

/// The number of characters that remain of a longer name.
const SHORTENED_LEN_CHARS: usize = 200;

/// The names of all leaves. A name is the joined key path, unless two would be equal or Orbax could
/// not store one.
#[derive(Debug)]
pub(super) struct Names {
    joined: LeafNames,
    /// The leaves with an escaped name: the key path for Orbax, and the stored name.
    escaped: HashMap<usize, (KeyPath, String)>,
}

impl Names {
    /// Returns the leaves in the order of their names, too.
    pub fn new(tree: &Tree<Leaf>) -> (Self, Vec<u32>) {
        let mut names = Self { joined: LeafNames::of(tree, "."), escaped: HashMap::new() };
        let mut by_name = names.order();
        let must_change = names.that_must_change(tree, &by_name);
        if !must_change.is_empty() {
            names.escape(tree, &must_change);
            by_name = names.order();
        }
        (names, by_name)
    }

    pub fn get(&self, leaf: usize) -> &str {
        match self.escaped.is_empty() {
            true => self.joined.get(leaf),
            false => self.escaped.get(&leaf).map_or_else(|| self.joined.get(leaf), |(_, name)| name),
        }
    }

    /// The name of a leaf, if it is not the joined key path.
    pub fn other(&self, leaf: usize) -> Option<&str> {
        self.escaped.get(&leaf).map(|(_, name)| name.as_str())
    }

    pub fn told_path(&self, leaf: usize) -> Option<&KeyPath> {
        self.escaped.get(&leaf).map(|(path, _)| path)
    }

    /// Sorts the leaves by name. Names come in long ascending runs, which a stable sort handles
    /// fast.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.joined.len() as u32).collect();
        order.sort_by(|&a, &b| self.get(a as usize).cmp(self.get(b as usize)));
        order
    }

    fn that_must_change(&self, tree: &Tree<Leaf>, by_name: &[u32]) -> BTreeSet<usize> {
        let name = |leaf: &u32| self.joined.get(*leaf as usize);
        let mut found = BTreeSet::new();
        for pair in by_name.windows(2) {
            if let [a, b] = pair
                && name(a) == name(b)
            {
                found.extend([*a as usize, *b as usize]);
            }
        }
        let is_root = tree.nodes().len() == 1;
        for (at, leaf) in tree.leaves().iter().enumerate() {
            if !can_be_said(self.joined.get(at), leaf.kind == LeafKind::Str, is_root) {
                found.insert(at);
            }
        }
        found
    }

    fn escape(&mut self, tree: &Tree<Leaf>, must_change: &BTreeSet<usize>) {
        let others = (0..self.joined.len()).filter(|leaf| !must_change.contains(leaf));
        let mut taken: HashSet<String> = others.map(|leaf| self.joined.get(leaf).to_owned()).collect();
        for (leaf, (path, _)) in tree.iter().enumerate().filter(|(leaf, _)| must_change.contains(leaf)) {
            let short = shortened(path.keys().iter().map(escape).collect());
            let mut escaped = short.clone();
            // Two different paths can still print as the same text (`{1: x, "1": y}`): number them.
            let mut number = 1;
            while is_reserved(&escaped.join(".")) || !taken.insert(escaped.join(".")) {
                number += 1;
                escaped = short.clone();
                if let Some(last) = escaped.pop() {
                    escaped.push(Key::dict(format!("{}%{number}", last.text())));
                }
            }
            let name = escaped.join(".");
            self.escaped.insert(leaf, (escaped, name));
        }
    }
}

/// Whether TensorStore accepts the name as part of a key, and Orbax as a JSON pointer.
fn can_be_said(name: &str, is_text: bool, is_root: bool) -> bool {
    if is_root {
        return true;
    }
    if name.len() > NAME_LEN_MAX_BYTES {
        return false;
    }
    let is_suspect = |byte: u8| matches!(byte, b'/' | b'~' | b'_' | 0);
    if name.len() > 2 && !name.bytes().any(is_suspect) {
        return true;
    }
    let components_fine = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    let has_bad_character = name.contains('\0') || (is_text && name.contains('~'));
    components_fine && !has_bad_character && !is_reserved(name)
}

/// A path of one key for a leaf whose name is too long for a database: the first characters of the
/// name.
fn shortened(path: KeyPath) -> KeyPath {
    let name = path.join(".");
    if name.len() <= NAME_LEN_MAX_BYTES {
        return path;
    }
    let start: String = name.chars().take(SHORTENED_LEN_CHARS).collect();
    KeyPath::from_iter([Key::dict(format!("{start}%long"))])
}

fn is_reserved(name: &str) -> bool {
    name == "__metadata__"
}

/// Percent-encodes the characters that make names ambiguous or invalid. Positions stay positions.
fn escape(key: &Key) -> Key {
    if let Key::Index(index) = key {
        return Key::Index(*index);
    }
    let mut text = String::new();
    for c in key.text().chars() {
        match c {
            '%' | '.' | '/' | '~' | '\\' => text.push_str(&format!("%{:02X}", c as u32)),
            c if c.is_control() && c.is_ascii() => text.push_str(&format!("%{:02X}", c as u32)),
            c => text.push(c),
        }
    }
    if text.is_empty() {
        text.push_str("%00");
    }
    Key::dict(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::array::{Array, Dtype, Shape};

    fn path(keys: &[Key]) -> KeyPath {
        keys.to_vec().into()
    }

    /// The names of the leaves of a dict with these paths, each of one key or two.
    fn names(paths: &[KeyPath]) -> Vec<String> {
        let array = Array::new(Dtype::UInt8, Shape::scalar(), vec![0].into()).unwrap();
        let mut build = regrow_tree::tree::TreeBuilder::new();
        build.open(Key::Index(0), regrow_tree::tree::NodeKind::Dict).unwrap();
        for path in paths {
            let (last, above) = path.keys().split_last().unwrap();
            for key in above {
                build.open(key.clone(), regrow_tree::tree::NodeKind::Dict).unwrap();
            }
            build.leaf(last.clone(), Leaf::array(array.clone())).unwrap();
            above.iter().for_each(|_| build.close().unwrap());
        }
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let (names, by_name) = Names::new(&tree);
        assert!(by_name.is_sorted_by_key(|&leaf| names.get(leaf as usize)));
        (0..paths.len()).map(|leaf| names.get(leaf).to_owned()).collect()
    }

    #[test]
    fn only_names_that_collide_are_escaped() {
        let paths =
            [path(&[Key::dict("a"), Key::dict("b")]), path(&[Key::dict("a.b")]), path(&[Key::dict("c.d")])];
        assert_eq!(names(&paths), ["a.b", "a%2Eb", "c.d"].map(str::to_owned).map(|n| n).to_vec());
    }

    #[test]
    fn every_name_is_different_and_sayable() {
        let paths = [
            path(&[Key::dict("1")]),
            path(&[Key::DictInt(1)]),
            path(&[Key::dict("..")]),
            path(&[Key::dict("")]),
            path(&[Key::dict("a/../b")]),
            path(&[Key::dict("%2E%2E")]),
            path(&[Key::dict("x\0")]),
        ];
        let names = names(&paths);
        let distinct: HashSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| can_be_said(name, true, false)), "{names:?}");
    }
}
