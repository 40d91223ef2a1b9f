//! The position of a load in the tree, and all differences that it has found, for one report at the
//! end.

use std::fmt::{Display, Write as _};

use super::node_ref::{NodeRef, TreeIndex};
use crate::array::Casting;
use crate::error::{Error, ErrorKind, Result};
use crate::text::counted;
use crate::tree::{KeyPath, Leaf, LeafKind, NodeKind, Tree};

/// Greatest nesting of recursive types. Restoring a value recurses, and the file decides how deep,
/// so the limit protects the stack.
pub(super) const RECURSION_MAX: usize = 256;

const NAMED_MAX: usize = 1000;

/// The allowed differences between a tree and the value. The default allows none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fit {
    /// Ignore leaves that have no place in the value, instead of an error.
    pub partial: bool,
    /// Cast arrays and numbers to the dtype of their field, even if floats are rounded.
    pub cast: bool,
    /// With `cast`: whether values may change by more than rounding.
    pub casting: Casting,
    /// When loading into an existing value: keep parts that the tree lacks, instead of an error.
    pub keep_missing: bool,
}

/// The state of a load: the current key path, and every difference so far.
#[derive(Debug)]
pub struct Restore {
    fit: Fit,
    path: KeyPath,
    /// Nodes that the value has used. Unused leaves are extra.
    taken: Vec<bool>,
    differences: Vec<String>,
    difference_count: usize,
    /// An error of reading. It is not a difference.
    failed: Option<Error>,
}

impl Restore {
    pub(super) fn of(index: &TreeIndex<'_>, fit: Fit) -> Self {
        Self {
            fit,
            path: KeyPath::root(),
            taken: vec![false; index.len()],
            differences: Vec::new(),
            difference_count: 0,
            failed: None,
        }
    }

    pub(super) fn root<'a, T>(
        &mut self,
        index: &'a TreeIndex<'a>,
        body: impl FnOnce(NodeRef<'a>, &mut Self) -> T,
    ) -> T {
        self.take(index.root());
        body(index.root(), self)
    }

    /// Calls `body` for a child. `None` in two cases: types are nested too deep, which is recorded
    /// as a difference, or the child is a placeholder and [`Fit::keep_missing`] keeps the old
    /// value.
    pub fn inside<'a, T>(
        &mut self,
        child: NodeRef<'a>,
        body: impl FnOnce(NodeRef<'a>, &mut Self) -> T,
    ) -> Option<T> {
        self.take(child);
        if self.fit.keep_missing && child.is_placeholder() {
            return None;
        }
        self.path.push(child.key().clone());
        let found = if self.path.len() > RECURSION_MAX {
            self.differs("depth", format_args!("at most {RECURSION_MAX} levels"), "more");
            self.take_all(child);
            None
        } else {
            Some(body(child, self))
        };
        self.path.pop();
        found
    }

    /// The allowed differences.
    #[inline]
    pub fn fit(&self) -> Fit {
        self.fit
    }

    /// The key path of the current node.
    #[inline]
    pub fn path(&self) -> &KeyPath {
        &self.path
    }

    /// Records a difference at the current path. `what` is one word: shape, dtype, kind, length,
    /// value.
    #[inline]
    pub fn differs(&mut self, what: &str, wanted: impl Display, stored: impl Display) {
        self.tell(|path| format!("{what:<9} {path}: wanted {wanted}, stored {stored}"));
    }

    /// Records that the current node lacks the child `key`.
    pub fn missing(&mut self, key: &crate::tree::Key) {
        if self.fit.keep_missing {
            return;
        }
        self.tell(|path| {
            format!("missing   {}: in the value, not in the checkpoint", path.child(key.clone()))
        });
    }

    /// Records that the node at the current path is not of the kind `wanted`. Its descendants are
    /// not reported.
    pub fn wrong_kind(&mut self, node: NodeRef<'_>, wanted: impl Display) {
        self.take_all(node);
        match node.leaf() {
            Some(leaf) if is_placeholder(leaf) => {
                self.tell(|path| format!("missing   {path}: the checkpoint has a placeholder"));
            }
            Some(leaf) => self.differs("kind", wanted, describe(leaf)),
            None => {
                let kind = node.kind();
                match kind.type_name() {
                    Some(name) => self.differs("kind", wanted, format_args!("{} {name}", kind.name())),
                    None => self.differs("kind", wanted, kind.name()),
                }
            }
        }
    }

    /// Records that the last key of the current path is not a valid key of its map.
    pub(super) fn wrong_kind_of_key(&mut self, node: NodeRef<'_>) {
        self.take_all(node);
        self.differs("key", "an integer in range", format_args!("{:?}", node.key().text()));
    }

    /// Ends the load with an error that is not a difference, such as an error of reading.
    pub fn fail(&mut self, error: Error) {
        let path = &self.path;
        self.failed.get_or_insert_with(|| error.at_leaf(path));
    }

    pub(super) fn take(&mut self, node: NodeRef<'_>) {
        if let Some(taken) = self.taken.get_mut(node.position()) {
            *taken = true;
        }
    }

    pub(super) fn take_all(&mut self, node: NodeRef<'_>) {
        if let Some(taken) = self.taken.get_mut(node.position()..node.end()) {
            taken.fill(true);
        }
    }

    pub(super) fn is_taken(&self, node: NodeRef<'_>) -> bool {
        self.taken.get(node.position()) == Some(&true)
    }

    fn tell(&mut self, line: impl FnOnce(&KeyPath) -> String) {
        self.difference_count += 1;
        if self.differences.len() < NAMED_MAX {
            self.differences.push(line(&self.path));
        }
    }

    /// Makes the report, including every leaf that was not used. The error passed to `fail` comes
    /// first.
    pub(super) fn finish(mut self, tree: &Tree<Leaf>) -> Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.fit.partial {
            let taken = tree.nodes().iter().zip(&self.taken).filter(|(node, _)| node.kind == NodeKind::Leaf);
            // A placeholder has no data to lose.
            let extra = taken.zip(tree.leaves()).map(|((_, taken), leaf)| !taken && !is_placeholder(leaf));
            // Paths are costly, so build them only if a leaf is extra.
            let extra: Vec<bool> = extra.collect();
            if extra.contains(&true) {
                for ((path, _), _) in tree.iter().zip(extra).filter(|(_, extra)| *extra) {
                    self.tell(|_| format!("extra     {path}: in the checkpoint, not in the value"));
                }
            }
        }
        if self.difference_count == 0 {
            return Ok(());
        }
        let count = self.difference_count;
        let places = counted(count, "place", "places");
        let mut what = format!("the checkpoint does not fit the value in {places}");
        for difference in &self.differences {
            // A write into a String cannot fail.
            let _ = write!(what, "\n    {difference}");
        }
        if count > self.differences.len() {
            let _ = write!(what, "\n    and {} more", count - self.differences.len());
        }
        Err(Error::new(ErrorKind::Mismatch, what).help(
            "change the type; or cast to the dtypes of the fields, load partially to skip extra leaves, or \
             mark optional fields with #[pytree(default)]",
        ))
    }
}

/// The error if a type returns no value but has reported no difference.
pub(super) fn no_value() -> Error {
    Error::new(ErrorKind::Mismatch, "a type refused the checkpoint without a reason")
        .help("its Pytree::unflatten must tell Restore what differs before it returns None")
}

/// Whether a leaf was omitted on purpose.
pub(super) fn is_placeholder(leaf: &Leaf) -> bool {
    leaf.kind == LeafKind::Placeholder
}

fn describe(leaf: &Leaf) -> String {
    match leaf.as_array() {
        Some(array) => format!("{} ({} {})", leaf.kind.name(), array.dtype(), array.shape()),
        None => leaf.kind.name().to_owned(),
    }
}
