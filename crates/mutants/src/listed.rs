//! The changes, as `cargo mutants --list --json` writes them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Failure;

/// One change of one place of the source.
#[derive(Debug, Clone, Deserialize)]
pub struct Mutant {
    /// Relative to the repository.
    pub file: PathBuf,
    pub span: Span,
    pub genre: Genre,
    /// The new text at this place.
    pub replacement: String,
    /// The place and the change, in words.
    pub name: String,
}

/// Lines and columns from one on, in characters.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Span {
    pub start: LineColumn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub struct LineColumn {
    pub line: usize,
    pub column: usize,
}

/// The kind of the changed code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub enum Genre {
    /// The body of a function.
    FnValue,
    BinaryOperator,
    UnaryOperator,
    /// The condition of an arm.
    MatchArmGuard,
    MatchArm,
    /// A field beside `..base`.
    StructField,
}

impl Mutant {
    /// Reads the list, in its order: the index is the number by which a change is switched on.
    pub fn read_all(list: &Path, only: &[String]) -> Result<Vec<Self>, Failure> {
        let all: Vec<Self> = serde_json::from_str(&fs::read_to_string(list)?)?;
        let is_wanted = |mutant: &Self| {
            only.is_empty() || only.iter().any(|part| mutant.file.to_string_lossy().contains(part))
        };
        Ok(all.into_iter().filter(is_wanted).collect())
    }
}
