//! Leaf handlers: leaves of a program's own types, saved in a form that every layout can hold.
//!
//! A handler turns a leaf of its type into a pytree, under a name that stays the same when the type
//! moves to another module. In a saved tree such a leaf is a dict with two keys, in every layout:
//!
//! ```text
//! {"__leaf_type__": "acme.Tokenizer", "state": {...}}
//! ```
//!
//! There is no global registry: [`LeafRegistry::encode`] and [`decode`](LeafRegistry::decode) use
//! only the handlers of their registry. Python's `regrow.LeafRegistry` reads and writes the same
//! form.

use std::any::{Any, TypeId, type_name};
use std::fmt::Debug;

use super::{Key, KeyPath, Leaf, LeafData, Node, NodeKind, Tree, TreeBuilder, end_of};
use crate::error::{Error, ErrorKind, Result, ResultExt};

/// The key of the type's name.
pub const TYPE_KEY: &str = "__leaf_type__";

/// The key of the state.
pub const STATE_KEY: &str = "state";

/// Saves and restores leaves of the type `T`.
pub trait LeafHandler<T>: Send + Sync {
    /// The name of the type in files. It must never change, and need not be the name of the Rust
    /// type.
    fn type_name(&self) -> &str;

    /// Converts the leaf to a pytree. Use only dicts if possible, because every layout keeps dicts
    /// as they are.
    ///
    /// # Errors
    /// The reason why this leaf cannot be saved.
    fn save(&self, leaf: &T) -> Result<Tree<Leaf>>;

    /// Restores the leaf from the pytree that the layout returns.
    ///
    /// # Errors
    /// The reason why the state cannot be restored to a leaf.
    fn restore(&self, state: &Tree<Leaf>) -> Result<T>;
}

/// A leaf of a program: a known leaf, or one of the program's own types.
#[derive(Debug)]
pub enum AnyLeaf {
    /// A leaf that regrow knows.
    Known(Leaf),
    /// A leaf of one of the program's own types.
    Own(Box<dyn Any + Send + Sync>),
}

impl AnyLeaf {
    /// A leaf of the program's own type.
    #[inline]
    pub fn own(leaf: impl Any + Send + Sync) -> Self {
        Self::Own(Box::new(leaf))
    }

    /// The leaf as a `T`; `None` if it is not of this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match self {
            Self::Own(leaf) => leaf.downcast_ref(),
            Self::Known(_) => None,
        }
    }
}

/// Maps types to handlers.
#[derive(Default)]
pub struct LeafRegistry {
    entries: Vec<Entry>,
}

struct Entry {
    id: TypeId,
    rust_name: &'static str,
    handler: Box<dyn Erased>,
}

/// A handler whose type is known only at run time.
trait Erased: Send + Sync {
    fn type_name(&self) -> &str;
    fn save(&self, leaf: &(dyn Any + Send + Sync)) -> Result<Tree<Leaf>>;
    fn restore(&self, state: &Tree<Leaf>) -> Result<Box<dyn Any + Send + Sync>>;
}

struct Typed<T, H>(H, std::marker::PhantomData<fn(T)>);

impl<T: Any + Send + Sync, H: LeafHandler<T>> Erased for Typed<T, H> {
    fn type_name(&self) -> &str {
        self.0.type_name()
    }

    fn save(&self, leaf: &(dyn Any + Send + Sync)) -> Result<Tree<Leaf>> {
        match leaf.downcast_ref::<T>() {
            Some(leaf) => self.0.save(leaf),
            None => Err(Error::invalid(format!("a leaf is not a {}", type_name::<T>()))),
        }
    }

    fn restore(&self, state: &Tree<Leaf>) -> Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(self.0.restore(state)?))
    }
}

impl LeafRegistry {
    /// A registry without handlers.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for the type `T`.
    ///
    /// # Errors
    /// `AlreadyExists` if the type or the type name already has a handler. Use
    /// [`replace`](Self::replace) in this case.
    pub fn add<T: Any + Send + Sync>(&mut self, handler: impl LeafHandler<T> + 'static) -> Result<()> {
        let new = Self::entry(handler);
        let name = new.handler.type_name();
        if let Some(old) = self.entries.iter().find(|old| old.id == new.id || old.handler.type_name() == name)
        {
            let what = if old.id == new.id { new.rust_name } else { name };
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{what:?} already has a leaf handler"))
                .expected("a new type and a new type name", format_args!("that of {}", old.rust_name))
                .help("replace() replaces the old one"));
        }
        self.entries.push(new);
        Ok(())
    }

    /// Adds a handler for the type `T`, and removes handlers for the same type or type name.
    /// Returns the type names of the removed handlers.
    pub fn replace<T: Any + Send + Sync>(&mut self, handler: impl LeafHandler<T> + 'static) -> Vec<String> {
        let new = Self::entry(handler);
        let mut replaced = Vec::new();
        self.entries.retain(|old| {
            let keep = old.id != new.id && old.handler.type_name() != new.handler.type_name();
            if !keep {
                replaced.push(old.handler.type_name().to_owned());
            }
            keep
        });
        self.entries.push(new);
        replaced
    }

    fn entry<T: Any + Send + Sync>(handler: impl LeafHandler<T> + 'static) -> Entry {
        let handler = Box::new(Typed::<T, _>(handler, std::marker::PhantomData));
        Entry { id: TypeId::of::<T>(), rust_name: type_name::<T>(), handler }
    }

    /// Whether a type name has a handler.
    #[inline]
    pub fn has(&self, type_name: &str) -> bool {
        self.named(type_name).is_some()
    }

    /// All type names, in the order of their handlers.
    #[inline]
    pub fn type_names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.handler.type_name())
    }

    fn named(&self, type_name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.handler.type_name() == type_name)
    }

    /// Replaces the leaves of the program's own types by their pytrees. Every layout can save the
    /// result.
    ///
    /// # Errors
    /// `Unsupported` with the key path of a leaf whose type has no handler; errors of handlers.
    pub fn encode(&self, tree: &Tree<AnyLeaf>) -> Result<Tree<Leaf>> {
        let mut build = TreeBuilder::new();
        let mut leaves = tree.leaves().iter();
        let mut paths = tree.paths().into_iter();
        replay(tree.nodes(), &mut build, |key, build| {
            let (Some(leaf), Some(path)) = (leaves.next(), paths.next()) else { return Ok(()) };
            match leaf {
                AnyLeaf::Known(leaf) => build.leaf(key, leaf.clone()),
                AnyLeaf::Own(leaf) => self.encode_own(leaf.as_ref(), key, build).at_leaf(&path),
            }
        })?;
        build.finish()
    }

    fn encode_own(
        &self,
        leaf: &(dyn Any + Send + Sync),
        key: Key,
        build: &mut TreeBuilder<Leaf>,
    ) -> Result<()> {
        let Some(entry) = self.entries.iter().find(|entry| entry.id == leaf.type_id()) else {
            return Err(Error::unsupported("the type of a leaf has no handler").help(self.there_are()));
        };
        let state = entry.handler.save(leaf)?;
        build.open(key, NodeKind::Dict)?;
        build.leaf(Key::dict(TYPE_KEY), Leaf::text(entry.handler.type_name()))?;
        let mut leaves = state.leaves().iter();
        let mut is_root = true;
        replay(state.nodes(), build, |key, build| {
            let key = if std::mem::take(&mut is_root) && state.nodes().len() == 1 {
                Key::dict(STATE_KEY)
            } else {
                key
            };
            leaves.next().map_or(Ok(()), |leaf| build.leaf(key, leaf.clone()))
        })?;
        build.close()
    }

    /// Restores the leaves of the program's own types.
    ///
    /// # Errors
    /// `Unsupported` with the key path of a leaf whose type name has no handler; errors of
    /// handlers.
    pub fn decode(&self, tree: &Tree<Leaf>) -> Result<Tree<AnyLeaf>> {
        let nodes = tree.nodes();
        let paths: Vec<KeyPath> = tree.walk().map(|(path, _)| path).collect();
        let mut build = TreeBuilder::new();
        // For each open container, how many children still follow.
        let mut open: Vec<usize> = Vec::new();
        let (mut at, mut leaf) = (0, 0);
        while let Some(node) = nodes.get(at) {
            while open.last() == Some(&0) {
                open.pop();
                build.close()?;
            }
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            let path = paths.get(at).cloned().unwrap_or_default();
            if let Some((type_name, end)) = handled(tree, at, leaf) {
                let Some(entry) = self.named(&type_name) else {
                    return Err(Error::unsupported(format!("no handler for the leaf type {type_name:?}"))
                        .at_leaf(&path)
                        .help(self.there_are()));
                };
                let (state, leaf_count) = subtree(tree, at + 2, leaf + 1)?;
                build.leaf(node.key.clone(), AnyLeaf::Own(entry.handler.restore(&state).at_leaf(&path)?))?;
                (at, leaf) = (end, leaf + 1 + leaf_count);
                continue;
            }
            match node.kind {
                NodeKind::Leaf => {
                    if let Some(known) = tree.leaves().get(leaf) {
                        build.leaf(node.key.clone(), AnyLeaf::Known(known.clone()))?;
                    }
                    leaf += 1;
                }
                _ => {
                    build.open(node.key.clone(), node.kind.clone())?;
                    open.push(node.child_count);
                }
            }
            at += 1;
        }
        for _ in open {
            build.close()?;
        }
        build.finish()
    }

    fn there_are(&self) -> String {
        let names: Vec<&str> = self.type_names().collect();
        format!("the registry has {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    }
}

impl Debug for LeafRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.type_names()).finish()
    }
}

/// Builds the same containers again, and calls `leaf` for each leaf. If `build` has an open
/// container, the root gets the key of a state.
fn replay<L>(
    nodes: &[Node],
    build: &mut TreeBuilder<L>,
    mut leaf: impl FnMut(Key, &mut TreeBuilder<L>) -> Result<()>,
) -> Result<()> {
    let is_below = build.depth() > 0;
    let mut open: Vec<usize> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
            build.close()?;
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let key = if at == 0 && is_below { Key::dict(STATE_KEY) } else { node.key.clone() };
        match node.kind {
            NodeKind::Leaf => leaf(key, build)?,
            _ => {
                build.open(key, node.kind.clone())?;
                open.push(node.child_count);
            }
        }
    }
    for _ in open {
        build.close()?;
    }
    Ok(())
}

/// The type name of a handled leaf that begins at node `at`, and the index of the node after it;
/// `None` if no handled leaf begins there.
fn handled(tree: &Tree<Leaf>, at: usize, leaf: usize) -> Option<(String, usize)> {
    let nodes = tree.nodes();
    let is_named = |at: usize, name: &str| nodes.get(at).is_some_and(|node| *node.key.text() == *name);
    let node = nodes.get(at).filter(|node| node.child_count == 2)?;
    if !matches!(node.kind, NodeKind::Dict) || !is_named(at + 1, TYPE_KEY) || !is_named(at + 2, STATE_KEY) {
        return None;
    }
    match &tree.leaves().get(leaf)?.data {
        LeafData::Text(name) if matches!(nodes.get(at + 1)?.kind, NodeKind::Leaf) => {
            Some((name.to_string(), end_of(nodes, at)))
        }
        _ => None,
    }
}

/// The subtree of a node, and its number of leaves. `leaf` is the index of its first leaf.
fn subtree(tree: &Tree<Leaf>, at: usize, leaf: usize) -> Result<(Tree<Leaf>, usize)> {
    let nodes = tree.nodes().get(at..end_of(tree.nodes(), at)).unwrap_or_default();
    let mut build = TreeBuilder::new();
    let mut next = leaf;
    replay(nodes, &mut build, |key, build| {
        let leaf = tree.leaves().get(next);
        next += 1;
        leaf.map_or(Ok(()), |leaf| build.leaf(key, leaf.clone()))
    })?;
    Ok((build.finish()?, next - leaf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Scalar;

    #[derive(Debug, PartialEq)]
    struct Fraction(i64, i64);

    struct FractionHandler(&'static str);

    impl LeafHandler<Fraction> for FractionHandler {
        fn type_name(&self) -> &str {
            self.0
        }

        fn save(&self, leaf: &Fraction) -> Result<Tree<Leaf>> {
            let mut build = TreeBuilder::new();
            build.open(Key::Index(0), NodeKind::Dict)?;
            build.leaf(Key::dict("numerator"), Leaf::scalar(Scalar::Int(leaf.0)))?;
            build.leaf(Key::dict("denominator"), Leaf::scalar(Scalar::Int(leaf.1)))?;
            build.close()?;
            build.finish()
        }

        fn restore(&self, state: &Tree<Leaf>) -> Result<Fraction> {
            let mut numbers = state.leaves().iter().map(|leaf| {
                let bytes = leaf.as_array().and_then(|array| array.to_c_order().ok())?;
                Some(i64::from_le_bytes(bytes.as_ref().try_into().ok()?))
            });
            match (numbers.next().flatten(), numbers.next().flatten()) {
                (Some(a), Some(b)) => Ok(Fraction(a, b)),
                _ => Err(Error::invalid("a fraction needs two numbers")),
            }
        }
    }

    #[derive(Debug, PartialEq)]
    struct Word(String);

    struct WordHandler;

    impl LeafHandler<Word> for WordHandler {
        fn type_name(&self) -> &str {
            "word"
        }

        fn save(&self, leaf: &Word) -> Result<Tree<Leaf>> {
            Ok(Tree::single(Leaf::text(leaf.0.as_str())))
        }

        fn restore(&self, state: &Tree<Leaf>) -> Result<Word> {
            match state.leaves().first().map(|leaf| &leaf.data) {
                Some(LeafData::Text(text)) => Ok(Word(text.to_string())),
                _ => Err(Error::invalid("a word needs a text")),
            }
        }
    }

    fn registry() -> LeafRegistry {
        let mut registry = LeafRegistry::new();
        registry.add(FractionHandler("fraction")).unwrap();
        registry.add(WordHandler).unwrap();
        registry
    }

    fn tree() -> Tree<AnyLeaf> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::List).unwrap();
        build.leaf(Key::Index(0), AnyLeaf::own(Fraction(1, 3))).unwrap();
        build.leaf(Key::Index(1), AnyLeaf::Known(Leaf::text("known"))).unwrap();
        build.open(Key::Index(2), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("w"), AnyLeaf::own(Word("hello".into()))).unwrap();
        build.close().unwrap();
        build.open(Key::Index(3), NodeKind::None).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    }

    #[test]
    fn own_leaves_come_back_from_their_states() {
        let encoded = registry().encode(&tree()).unwrap();
        let paths: Vec<String> = encoded.paths().iter().map(ToString::to_string).collect();
        assert_eq!(
            paths,
            [
                "0/__leaf_type__",
                "0/state/numerator",
                "0/state/denominator",
                "1",
                "2/w/__leaf_type__",
                "2/w/state"
            ]
        );
        let back = registry().decode(&encoded).unwrap();
        let leaves: Vec<(String, &AnyLeaf)> =
            back.iter().map(|(path, leaf)| (path.to_string(), leaf)).collect();
        assert_eq!(leaves.iter().map(|leaf| leaf.0.as_str()).collect::<Vec<_>>(), ["0", "1", "2/w"]);
        assert_eq!(leaves[0].1.downcast_ref::<Fraction>(), Some(&Fraction(1, 3)));
        assert_eq!(leaves[2].1.downcast_ref::<Word>(), Some(&Word("hello".into())));
        assert!(matches!(leaves[1].1, AnyLeaf::Known(_)));
        assert_eq!(back.nodes().len(), tree().nodes().len());
    }

    #[test]
    fn a_root_may_be_an_own_leaf() {
        let encoded = registry().encode(&Tree::single(AnyLeaf::own(Word("x".into())))).unwrap();
        let back = registry().decode(&encoded).unwrap();
        assert_eq!(back.leaves()[0].downcast_ref::<Word>(), Some(&Word("x".into())));
    }

    #[test]
    fn duplicates_and_unknown_types_are_refused() {
        let mut registry = registry();
        let error = registry.add(FractionHandler("other")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("Fraction"), "{error}");
        struct Third;
        struct ThirdHandler;
        impl LeafHandler<Third> for ThirdHandler {
            fn type_name(&self) -> &str {
                "word"
            }
            fn save(&self, _: &Third) -> Result<Tree<Leaf>> {
                Ok(Tree::single(Leaf::text("")))
            }
            fn restore(&self, _: &Tree<Leaf>) -> Result<Third> {
                Ok(Third)
            }
        }
        assert!(registry.add(ThirdHandler).unwrap_err().to_string().contains("\"word\""));
        assert_eq!(registry.replace(FractionHandler("ratio")), ["fraction"]);
        assert!(registry.has("ratio") && !registry.has("fraction"));

        let error = LeafRegistry::new().encode(&tree()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "0");
        let encoded = self::registry().encode(&tree()).unwrap();
        let error = registry.decode(&encoded).unwrap_err();
        assert!(
            error.to_string().contains("\"fraction\"") && error.to_string().contains("word, ratio"),
            "{error}"
        );
    }
}
