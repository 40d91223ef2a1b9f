//! Changes that no Rust test detects, with reasons. They are in `explained.toml`, in the folder of
//! this crate's `Cargo.toml`.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::{Failure, Judged};

/// The reason why no Rust test notices some changes of a file: they make no difference, or another
/// check notices them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Explanation {
    /// The path of the source file below `crates/`, for example `regrow-base/src/key.rs`.
    file: String,
    /// The names of the changes without their places, because lines move.
    changes: Vec<String>,
    #[expect(dead_code, reason = "for people")]
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    explained: Vec<Explanation>,
}

/// All explanations.
pub struct Explained(Vec<Explanation>);

impl Explained {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(file.explained))
    }

    pub fn explains(&self, judged: &Judged) -> bool {
        self.0.iter().any(|explanation| {
            judged.file.ends_with(&explanation.file)
                && explanation.changes.iter().any(|change| is_named(judged, change))
        })
    }

    /// The explained changes that are not in `open`: a test notices them, or they are no longer
    /// listed.
    pub fn without_a_change<'a>(&'a self, open: &'a [&Judged]) -> impl Iterator<Item = String> + 'a {
        let pairs = self.0.iter().flat_map(|of| of.changes.iter().map(move |change| (&of.file, change)));
        pairs
            .filter(|(file, change)| {
                !open.iter().any(|judged| judged.file.ends_with(file) && is_named(judged, change))
            })
            .map(|(file, change)| format!("{file}: {change}"))
    }
}

/// The name is the place and the change: `src/file.rs:12:34: replace a with b in function`.
fn is_named(judged: &Judged, change: &str) -> bool {
    judged.name.split_once(": ").is_some_and(|(_, words)| words == change)
}
