//! Globs over key paths.

use globset::{GlobBuilder, GlobMatcher};

use super::KeyPath;
use crate::error::{Error, Result};
use crate::text::{is_printable, printable};

/// A glob over printed key paths: `params/**`, `*/kernel`, `layers/[0-3]/w`.
///
/// `*` and `?` match within one key, `**` matches any number of keys. A pattern for a container
/// matches all leaves below it, so `params` matches every leaf that `params/**` matches.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern {
    matcher: GlobMatcher,
    below: GlobMatcher,
    text: String,
    printed: String,
    /// Whether the pattern has no wildcards.
    is_plain: bool,
}

impl TryFrom<String> for PathPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(&text)
    }
}

impl PathPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// `InvalidArgument` with the reason, for example an open bracket.
    pub fn new(text: &str) -> Result<Self> {
        let build = |glob: &str| {
            GlobBuilder::new(glob)
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map(|glob| glob.compile_matcher())
        };
        // Patterns match printed paths. So an unprintable character of a pattern becomes its
        // escape, which is matched literally.
        let glob = text.chars().map(|c| match is_printable(c) {
            true => c.to_string(),
            false => c.escape_default().flat_map(|part| ['\\', part]).collect(),
        });
        let glob: String = glob.collect();
        match (build(&glob), build(&format!("{glob}/**"))) {
            (Ok(matcher), Ok(below)) => {
                let printed = printable(text).into_owned();
                Ok(Self { matcher, below, printed, is_plain: is_plain(text), text: text.to_owned() })
            }
            (Err(error), _) | (_, Err(error)) => {
                Err(Error::invalid(format!("{text:?} is not a pattern: {}", error.kind()))
                    .help("use * within a key, ** across keys, and \\ in front of a literal character"))
            }
        }
    }

    /// Whether the pattern matches the leaf at `path`.
    pub fn matches(&self, path: &KeyPath) -> bool {
        let text = path.to_string();
        self.matcher.is_match(&text) || self.below.is_match(&text) || text == self.printed
    }

    /// Whether the pattern is exactly this path: its text is the path, or it has no wildcards and
    /// matches the path.
    pub fn is_path_of(&self, path: &KeyPath) -> bool {
        let text = path.to_string();
        text == self.printed || self.is_plain && self.matcher.is_match(&text)
    }

    /// The pattern as it was written.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Whether a glob has no special characters except backslashes.
fn is_plain(glob: &str) -> bool {
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '*' | '?' | '[' | '{' => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Key;

    fn path(text: &str) -> KeyPath {
        text.split('/').map(Key::dict).collect()
    }

    #[test]
    fn stars_stay_within_a_key() {
        let all = PathPattern::new("params/**").unwrap();
        assert!(all.matches(&path("params/dense/kernel")));
        assert!(!all.matches(&path("opt/params")));
        let one = PathPattern::new("*/kernel").unwrap();
        assert!(one.matches(&path("a/kernel")));
        assert!(!one.matches(&path("a/b/kernel")));
        assert!(PathPattern::new("params").unwrap().matches(&path("params/a/b")));
        assert!(!PathPattern::new("params").unwrap().matches(&path("params2/a")));
        assert!(PathPattern::new("a[").is_err());
        assert!(PathPattern::new("**").unwrap().matches(&KeyPath::root()));
    }
}
