//! Losses: the parts of a tree that a load from a layout does not restore as they were.

use std::fmt;

use regrow_base::text::printable_lines;
use regrow_tree::tree::KeyPath;

/// A part of a tree that a load from a layout does not restore as it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// How much is lost.
    pub kind: LossKind,
    /// The leaf or container.
    pub path: KeyPath,
    /// How it changes, in a few words: `a tuple comes back as a dict of numbers`.
    pub what: String,
}

/// How bad a [`Loss`] is, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// The values stay, but a detail changes: the sharding, the library of an array (JAX or NumPy),
    /// or a dtype that becomes wider. Notes are reported and never refused.
    Note,
    /// A container or key comes back as another kind: tuple, named tuple, integer keys, an empty
    /// dict.
    Structure,
    /// A leaf comes back as another kind, or another dtype, with its value intact.
    Kind,
    /// A value changes or goes missing.
    Value,
}

impl LossKind {
    /// A lower-case name for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Structure => "structure",
            Self::Kind => "kind",
            Self::Value => "value",
        }
    }
}

impl Loss {
    /// The loss as it is for readers other than regrow: regrow itself restores the part exactly. A
    /// loss of kind `Kind` becomes a `Note`.
    pub(crate) fn elsewhere(self) -> Self {
        let kind = if self.kind == LossKind::Kind { LossKind::Note } else { self.kind };
        Self { kind, what: format!("{}, but for regrow", self.what), ..self }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string();
        let path = if path.is_empty() { "the root" } else { &path };
        write!(f, "{path}: {}", printable_lines(&self.what))
    }
}
