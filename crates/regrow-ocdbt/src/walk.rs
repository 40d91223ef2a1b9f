//! Key ranges: which children of a node can hold keys of a range, and the walk through them in key
//! order.
//!
//! All bounds are relative to the present node, like its keys. For a child that omits a prefix
//! there are three cases: the bound also drops this prefix, or it excludes no key, or it excludes
//! the whole child.

use std::ops::Range;

use crate::bytes::limits::OCDBT_NODES_MAX;
use crate::error::{Error, Result};

use super::files::Files;
use super::node::{Node, NodeRef};
use super::rule::Rule;
use super::versions::Version;

/// Bounds on the relative keys of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bounds<'k> {
    pub(super) from: &'k [u8],
    /// The end of the wanted keys, exclusive; `None` for no end.
    pub(super) to: Option<&'k [u8]>,
    /// The first key that the node may have, as its parent states.
    pub(super) min_key: &'k [u8],
    /// The end of the keys that the node may have: the first key of the next sibling of the node,
    /// or of the next sibling of a node above it.
    pub(super) limit: Option<&'k [u8]>,
}

impl<'k> Bounds<'k> {
    pub(super) const ALL: Self = Self { from: b"", to: None, min_key: b"", limit: None };

    /// The bounds for a child whose keys all begin with `common`, without that prefix; `None` if no
    /// key of the child is wanted.
    pub(super) fn below(self, common: &[u8]) -> Option<Self> {
        let from = match self.from.strip_prefix(common) {
            Some(rest) => rest,
            None if self.from < common => b"",
            None => return None,
        };
        let to = match self.to {
            None => None,
            Some(to) => match to.strip_prefix(common) {
                Some(b"") => return None,
                Some(rest) => Some(rest),
                None if to > common => None,
                None => return None,
            },
        };
        // The keys of a parent are in order, so `min_key` and `limit` never exclude a whole child.
        let min_key = self.min_key.strip_prefix(common).unwrap_or_default();
        let limit = self.limit.and_then(|limit| limit.strip_prefix(common));
        Some(Self { from, to, min_key, limit })
    }
}

/// The first key after all keys that begin with `prefix`; `None` if there is no such key.
pub(super) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

/// The function that a walk calls for each leaf: it gets the prefix K of the leaf's keys, the leaf,
/// and the wanted entries.
pub(super) type Visit<'v> = dyn FnMut(&[u8], &Node, Range<usize>) -> Result<()> + 'v;

/// One pass through a version in key order.
pub(super) struct Walk<'w, 'v> {
    files: &'w Files,
    visit: &'w mut Visit<'v>,
    /// The place for the error of the first unreadable node, if the walk skips these nodes.
    damage: Option<&'w mut Option<Error>>,
    prefix: Vec<u8>,
    nodes: u64,
}

impl<'w, 'v> Walk<'w, 'v> {
    pub(super) fn run(
        files: &'w Files,
        version: &Version,
        wanted: Bounds<'_>,
        damage: Option<&'w mut Option<Error>>,
        visit: &'w mut Visit<'v>,
    ) -> Result<()> {
        let Some(root) = &version.root else { return Ok(()) };
        let mut walk = Self { files, visit, damage, prefix: Vec::new(), nodes: 0 };
        walk.node(root, version.root_height, wanted)
    }

    fn node(&mut self, reference: &NodeRef, height: u8, bounds: Bounds<'_>) -> Result<()> {
        self.nodes += 1;
        if self.nodes > OCDBT_NODES_MAX {
            let error = Rule::Limit.error("the database has too many B+tree nodes");
            return Err(error.expected(format_args!("at most {OCDBT_NODES_MAX}"), "more"));
        }
        let node = self.files.node(reference, height, bounds.min_key, self.prefix.len()).and_then(|node| {
            check_limit(&node, bounds.limit).map_err(|error| self.files.blame(reference, error))?;
            Ok(node)
        });
        let node = match (node, &mut self.damage) {
            (Err(error), Some(damage)) if error.kind().is_damage() => {
                damage.get_or_insert(error);
                return Ok(());
            }
            (node, _) => node?,
        };
        let end = bounds.to.map_or(node.len(), |to| node.count_below(to));
        if height == 0 {
            let start = node.count_below(bounds.from);
            return if start < end { (self.visit)(&self.prefix, &node, start..end) } else { Ok(()) };
        }
        let start = node.count_up_to(bounds.from).saturating_sub(1);
        for i in start..end {
            let Some(child) = node.child(i) else { break };
            let limit = if i + 1 < node.len() { Some(node.key(i + 1)) } else { bounds.limit };
            let bounds = Bounds { min_key: child.key, limit, ..bounds };
            let Some(bounds) = bounds.below(child.common) else { continue };
            let prefix_len = self.prefix.len();
            self.prefix.extend_from_slice(child.common);
            self.node(&child.reference, height - 1, bounds)?;
            self.prefix.truncate(prefix_len);
        }
        Ok(())
    }
}

/// Returns an error if the keys of `node` reach into its next sibling.
pub(super) fn check_limit(node: &Node, limit: Option<&[u8]>) -> Result<()> {
    match limit {
        Some(limit) if node.last_key() >= limit => Err(Rule::Ref
            .error("the last key of a B+tree node reaches into its next sibling")
            .expected(format_args!("below {}", limit.escape_ascii()), node.last_key().escape_ascii())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_successor_of_a_prefix() {
        assert_eq!(prefix_end(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    proptest! {
        /// The relative bounds include a relative key exactly if the bounds include the whole key.
        #[test]
        fn bounds_below_a_prefix_want_the_same_keys(
            from in "[ab]{0,3}", to in proptest::option::of("[ab]{1,3}"),
            common in "[ab]{0,3}", rest in "[ab]{0,3}",
        ) {
            let bounds = Bounds { from: from.as_bytes(), to: to.as_deref().map(str::as_bytes), ..Bounds::ALL };
            let wants = |bounds: Bounds<'_>, key: &str| {
                key.as_bytes() >= bounds.from && bounds.to.is_none_or(|to| key.as_bytes() < to)
            };
            let key = format!("{common}{rest}");
            let below = bounds.below(common.as_bytes()).is_some_and(|bounds| wants(bounds, &rest));
            prop_assert_eq!(below, wants(bounds, &key));
        }
    }
}
