//! What a layout cannot hold.

use std::fmt;

use regrow_base::text::printable_lines;
use regrow_tree::tree::KeyPath;

/// Something of a tree that a layout cannot give back.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Of what kind.
    pub kind: LossKind,
    /// The leaf or container.
    pub path: KeyPath,
    /// What becomes of it, in a few words: `a tuple comes back as a dict of numbers`.
    pub what: String,
}

/// How bad a [`Loss`] is, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// Information that the data does not need: a sharding, JAX or NumPy, a wider dtype with the
    /// same values. Reported, never refused.
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
    /// The loss of readers other than regrow: the same bits in a leaf of another kind are a note.
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
