//! Functions for the code of `#[derive(Pytree)]`. They are not for users, and change with the
//! derive.
//!
//! There is one function for each step of a struct, a tuple and an enum. So derived code is short,
//! and has only names, positions and types.

use super::node_ref::NodeRef;
use super::restore::{RECURSION_MAX, Restore};
use super::{Pytree, TreeIndex};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, Leaf, LeafData, NodeKind, TreeBuilder};

/// Opens a container. Returns an error if types are nested deeper than a load supports.
pub fn open(build: &mut TreeBuilder<Leaf>, key: Key, kind: NodeKind) -> Result<()> {
    if build.depth() >= RECURSION_MAX {
        let what = format!("recursive types are nested deeper than {RECURSION_MAX} levels");
        return Err(Error::new(ErrorKind::Limit, what).help("keep long chains in a Vec"));
    }
    build.open(key, kind)
}

/// Opens the node of a struct.
#[inline]
pub fn open_struct(build: &mut TreeBuilder<Leaf>, key: Key, name: &str) -> Result<()> {
    open(build, key, NodeKind::Dataclass(name.into()))
}

/// Opens the node of a tuple.
#[inline]
pub fn open_tuple(build: &mut TreeBuilder<Leaf>, key: Key) -> Result<()> {
    open(build, key, NodeKind::Tuple)
}

/// Opens the dict for an enum. Its single key is the name of the variant.
#[inline]
pub fn open_variant(build: &mut TreeBuilder<Leaf>, key: Key) -> Result<()> {
    open(build, key, NodeKind::Dict)
}

/// Adds a variant without data.
#[inline]
pub fn put_unit_variant(build: &mut TreeBuilder<Leaf>, key: Key, name: &str) -> Result<()> {
    build.leaf(key, Leaf::text(name))
}

/// Adds a field.
#[inline]
pub fn put<P: Pytree>(build: &mut TreeBuilder<Leaf>, name: &str, value: &P) -> Result<()> {
    value.flatten(Key::attr(name), build)
}

/// Adds a field of a tuple, by its index.
#[inline]
pub fn put_at<P: Pytree>(build: &mut TreeBuilder<Leaf>, index: usize, value: &P) -> Result<()> {
    value.flatten(Key::Index(index), build)
}

/// Adds the children of a flattened field to the open node.
pub fn put_flattened<P: Pytree>(build: &mut TreeBuilder<Leaf>, value: &P) -> Result<()> {
    let tree = value.to_tree()?;
    let index = TreeIndex::of(&tree);
    let root = index.root();
    if *root.kind() == NodeKind::None {
        return Ok(());
    }
    if !root.has_names() {
        let kind = root.kind().name();
        return Err(Error::invalid(format!("#[pytree(flatten)] is for structs and maps, not for a {kind}")));
    }
    root.children().try_for_each(|child| put_subtree(child, Key::attr(child.key().text()), build))
}

/// Adds a copy of a subtree with another key. Its arrays are shared. Does not recurse.
pub(super) fn put_subtree(from: NodeRef<'_>, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
    let mut ends: Vec<usize> = Vec::new();
    let mut first_key = Some(key);
    for node in from.subtree() {
        while ends.last() == Some(&node.position()) {
            ends.pop();
            build.close()?;
        }
        let key = first_key.take().unwrap_or_else(|| node.key().clone());
        match node.leaf() {
            Some(leaf) => build.leaf(key, leaf.clone())?,
            None => {
                build.open(key, node.kind().clone())?;
                match node.end() == node.position() + 1 {
                    true => build.close()?,
                    false => ends.push(node.end()),
                }
            }
        }
    }
    ends.into_iter().try_for_each(|_| build.close())
}

/// Checks that the node can be a struct: its children have names, or it is empty (Orbax stores a
/// dataclass without fields as `None`).
pub fn expect_struct(node: NodeRef<'_>, name: &str, restore: &mut Restore) -> Option<()> {
    if node.has_names() || node.is_empty() {
        return Some(());
    }
    restore.wrong_kind(node, format_args!("the struct {name}"));
    None
}

/// Checks that the node can be a struct without fields.
pub fn expect_unit(node: NodeRef<'_>, name: &str, restore: &mut Restore) -> Option<()> {
    if node.is_empty() {
        return Some(());
    }
    restore.wrong_kind(node, format_args!("{name}, which has no fields"));
    None
}

/// The items of a tuple with at most `len` items; `None` for a longer tuple, or a node that is no
/// tuple. The functions for fields report missing items.
pub fn expect_tuple<'a>(
    node: NodeRef<'a>,
    len: usize,
    name: &str,
    restore: &mut Restore,
) -> Option<Vec<NodeRef<'a>>> {
    match node.items() {
        None => restore.wrong_kind(node, format_args!("{name} of {len}")),
        Some(items) if items.len() > len => {
            restore.differs("length", len, items.len());
            restore.take_all(node);
        }
        Some(items) => return Some(items),
    }
    None
}

/// Restores a field. A missing field gets its default or its absent value.
pub fn get<P: Pytree>(
    node: NodeRef<'_>,
    name: &str,
    restore: &mut Restore,
    default: Option<fn() -> P>,
) -> Option<P> {
    match node.child(name) {
        Some(child) => restore.inside(child, P::unflatten)?,
        None => {
            or_missing(default.map_or_else(P::absent, |default| Some(default())), Key::attr(name), restore)
        }
    }
}

/// Restores a field that a module converts.
pub fn get_with<R: Pytree, T, E: std::fmt::Display>(
    node: NodeRef<'_>,
    name: &str,
    restore: &mut Restore,
    from_pytree: impl FnOnce(R) -> std::result::Result<T, E>,
    default: Option<fn() -> T>,
) -> Option<T> {
    match node.child(name) {
        Some(child) => restore.inside(child, |child, restore| unflatten_with(child, restore, from_pytree))?,
        None => or_missing(default.map(|default| default()), Key::attr(name), restore),
    }
}

/// Restores a value that a module converts.
pub fn unflatten_with<R: Pytree, T, E: std::fmt::Display>(
    node: NodeRef<'_>,
    restore: &mut Restore,
    from_pytree: impl FnOnce(R) -> std::result::Result<T, E>,
) -> Option<T> {
    let made = from_pytree(R::unflatten(node, restore)?);
    made.map_err(|error| restore.differs("value", "what its module takes", error)).ok()
}

/// Restores a field of a tuple. A missing field gets its default or its absent value.
pub fn get_at<P: Pytree>(
    items: &[NodeRef<'_>],
    index: usize,
    restore: &mut Restore,
    default: Option<fn() -> P>,
) -> Option<P> {
    match items.get(index) {
        Some(&item) => restore.inside(item, P::unflatten)?,
        None => {
            or_missing(default.map_or_else(P::absent, |default| Some(default())), Key::Index(index), restore)
        }
    }
}

/// Restores a field of a tuple that a module converts.
pub fn get_at_with<R: Pytree, T, E: std::fmt::Display>(
    items: &[NodeRef<'_>],
    index: usize,
    restore: &mut Restore,
    from_pytree: impl FnOnce(R) -> std::result::Result<T, E>,
    default: Option<fn() -> T>,
) -> Option<T> {
    match items.get(index) {
        Some(&item) => restore.inside(item, |item, restore| unflatten_with(item, restore, from_pytree))?,
        None => or_missing(default.map(|default| default()), Key::Index(index), restore),
    }
}

fn or_missing<T>(absent: Option<T>, key: Key, restore: &mut Restore) -> Option<T> {
    if absent.is_none() {
        restore.missing(&key);
    }
    absent
}

/// Checks a field. A missing field is allowed if it has a default or an absent value.
pub fn check<P: Pytree>(node: NodeRef<'_>, name: &str, value: &P, optional: bool, restore: &mut Restore) {
    match node.child(name) {
        Some(child) => {
            restore.inside(child, |child, restore| value.check(child, restore));
        }
        None if optional || value.is_absent() => {}
        None => restore.missing(&Key::attr(name)),
    }
}

/// Checks a field of a tuple. A missing field is allowed if it has a default or an absent value.
pub fn check_at<P: Pytree>(
    items: &[NodeRef<'_>],
    index: usize,
    value: &P,
    optional: bool,
    restore: &mut Restore,
) {
    match items.get(index) {
        Some(&item) => {
            restore.inside(item, |item, restore| value.check(item, restore));
        }
        None if optional || value.is_absent() => {}
        None => restore.missing(&Key::Index(index)),
    }
}

/// Loads a field in place, if the node has the field.
pub fn load<P: Pytree>(node: NodeRef<'_>, name: &str, value: &mut P, restore: &mut Restore) {
    if let Some(child) = node.child(name) {
        restore.inside(child, |child, restore| value.load_into(child, restore));
    }
}

/// Loads a field of a tuple in place, if the tuple has the item.
pub fn load_at<P: Pytree>(items: &[NodeRef<'_>], index: usize, value: &mut P, restore: &mut Restore) {
    if let Some(&item) = items.get(index) {
        restore.inside(item, |item, restore| value.load_into(item, restore));
    }
}

/// Replaces a value by the restored one, if there is one.
pub fn replace<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// A variant of an enum: its stored name, and whether it has data.
pub type Variant = (&'static str, bool);

/// The variant of a node, as its index in `variants`, and the node of its data.
///
/// `"Name"` is a variant without data, `{"Name": data}` is one with data. Empty data is also
/// accepted for a variant without data.
pub fn variant<'a>(
    node: NodeRef<'a>,
    name: &str,
    variants: &[Variant],
    restore: &mut Restore,
) -> Option<(usize, Option<NodeRef<'a>>)> {
    let (text, data) = match node.leaf().map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => (text.to_string(), None),
        _ if node.has_names() && node.children().count() == 1 => {
            let data = node.children().next()?;
            (data.key().text().into_owned(), Some(data))
        }
        _ => {
            restore.wrong_kind(node, format_args!("a variant of {name}"));
            return None;
        }
    };
    let found = variants.iter().position(|(variant, _)| *variant == text);
    match (found, found.and_then(|found| variants.get(found)), data) {
        (Some(found), Some((_, true)), Some(data)) => Some((found, Some(data))),
        (Some(found), Some((_, false)), None) => Some((found, None)),
        (Some(found), Some((_, false)), Some(data)) if data.is_empty() => Some((found, None)),
        (Some(_), Some((variant, has_data)), _) => {
            restore.take_all(node);
            let (wanted, stored) = if *has_data { ("data", "its name alone") } else { ("no data", "some") };
            restore.differs("variant", format_args!("{name}::{variant} with {wanted}"), stored);
            None
        }
        _ => {
            restore.take_all(node);
            let known: Vec<&str> = variants.iter().map(|(variant, _)| *variant).collect();
            let wanted = format!("one of {} of {name}", known.join(", "));
            restore.differs("variant", wanted, format_args!("{text:?}"));
            None
        }
    }
}
