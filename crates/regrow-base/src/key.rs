//! Keys and key paths.

use std::fmt;
use std::sync::Arc;

use crate::text::printable;

/// One step from a pytree node to its child. `Index(0)`, `Dict("0")` and `DictInt(0)` stay
/// different.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A text key of a dict.
    Dict(Arc<str>),
    /// An integer key of a dict.
    DictInt(i64),
    /// An index in a list or tuple, or in a custom node that was registered without keys.
    Index(usize),
    /// An attribute of a named tuple, a dataclass or a custom node.
    Attr(Arc<str>),
}

impl Key {
    /// A text key of a dict.
    #[inline]
    pub fn dict(key: impl Into<Arc<str>>) -> Self {
        Self::Dict(key.into())
    }

    /// An attribute.
    #[inline]
    pub fn attr(name: impl Into<Arc<str>>) -> Self {
        Self::Attr(name.into())
    }

    /// The text of the key without its kind: `kernel`, `0`. Different keys may have the same text,
    /// so use it only to make names.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Dict(text) | Self::Attr(text) => std::borrow::Cow::Borrowed(text),
            Self::DictInt(number) => std::borrow::Cow::Owned(number.to_string()),
            Self::Index(index) => std::borrow::Cow::Owned(index.to_string()),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// The path of a leaf: the keys from the root to the leaf. Empty for a pytree that is a single
/// leaf.
///
/// It is printed with `/` between the keys (`params/dense/0`), and as `.` for the root. The printed
/// form is for people: a key with a `/` looks like two keys, and characters that are not
/// [`printable`] are escaped. Equality compares the keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct KeyPath(Vec<Key>);

impl KeyPath {
    /// The path of the root.
    #[inline]
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// The keys, from the root down.
    #[inline]
    pub fn keys(&self) -> &[Key] {
        &self.0
    }

    /// Whether this is the root.
    #[inline]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no keys; the same as [`is_root`](Self::is_root).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a key.
    #[inline]
    pub fn push(&mut self, key: Key) {
        self.0.push(key);
    }

    /// Removes the last key and returns it; `None` at the root.
    #[inline]
    pub fn pop(&mut self) -> Option<Key> {
        self.0.pop()
    }

    /// The path of a child: this path with one more key.
    #[must_use]
    pub fn child(&self, key: Key) -> Self {
        let mut keys = Vec::with_capacity(self.0.len() + 1);
        keys.extend_from_slice(&self.0);
        keys.push(key);
        Self(keys)
    }

    /// The texts of the keys with `separator` between them. With `.` these are the names of Orbax
    /// and safetensors.
    pub fn join(&self, separator: &str) -> String {
        let mut out = String::new();
        for (i, key) in self.0.iter().enumerate() {
            if i > 0 {
                out.push_str(separator);
            }
            match key {
                Key::Dict(text) | Key::Attr(text) => out.push_str(text),
                other => out.push_str(&other.text()),
            }
        }
        out
    }
}

impl FromIterator<Key> for KeyPath {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl From<Vec<Key>> for KeyPath {
    fn from(keys: Vec<Key>) -> Self {
        Self(keys)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        for (i, key) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("/")?;
            }
            // A control character in a key must neither break the lines of a report nor control a
            // terminal.
            f.write_str(&printable(&key.text()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_kinds_are_different() {
        let keys = [Key::dict("0"), Key::DictInt(0), Key::Index(0), Key::attr("0")];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j);
            }
            assert_eq!(a.text(), "0");
        }
    }

    #[test]
    fn prints_without_control_characters() {
        let path = KeyPath::from_iter([Key::dict("a\n\u{1b}b\u{202e}"), Key::Index(3)]);
        assert_eq!(path.to_string(), "a\\n\\u{1b}b\\u{202e}/3");
        assert_eq!(path.join("."), "a\n\u{1b}b\u{202e}.3");
        assert_eq!(KeyPath::root().to_string(), ".");
    }
}
