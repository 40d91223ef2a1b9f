//! The cast of each leaf.
//!
//! The first rule that applies to a leaf decides. A rule with wildcards, or for a container,
//! applies to leaves whose dtype has the same kind as the target: bool, integer, floating, complex.
//! So a rule that casts `**` to bfloat16 leaves counters, masks and raw PRNG keys unchanged. A rule
//! that is a leaf's whole key path applies to any dtype. With `Casting::AsNumpy`, every rule
//! applies to any dtype.

use super::{LoadOptions, SaveOptions};
use regrow_tree::array::{Casting, Dtype, is_same_kind};
use regrow_tree::tree::{KeyPath, LeafKind, PathPattern};

/// A pattern, and the dtype to which matching leaves are cast.
pub type CastPattern = (PathPattern, Dtype);

impl SaveOptions {
    /// The dtype that a leaf of this kind and dtype is cast to.
    pub fn cast_for(&self, path: &KeyPath, kind: &LeafKind, dtype: Dtype) -> Option<Dtype> {
        cast_for(&self.cast, self.casting, path, kind, dtype)
    }
}

impl LoadOptions {
    /// The dtype that a leaf of this kind and dtype is cast to.
    pub fn cast_for(&self, path: &KeyPath, kind: &LeafKind, dtype: Dtype) -> Option<Dtype> {
        cast_for(&self.cast, self.casting, path, kind, dtype)
    }
}

/// The dtype that the first rule for a leaf of this kind and dtype asks for.
pub fn cast_for(
    rules: &[CastPattern],
    casting: Casting,
    path: &KeyPath,
    kind: &LeafKind,
    dtype: Dtype,
) -> Option<Dtype> {
    let is_for = |(pattern, to): &&CastPattern| {
        pattern.matches(path)
            && (casting == Casting::AsNumpy || is_same_kind(dtype, *to) || pattern.is_path_of(path))
    };
    kind.is_castable().then(|| rules.iter().find(is_for).map(|(_, to)| *to)).flatten()
}
