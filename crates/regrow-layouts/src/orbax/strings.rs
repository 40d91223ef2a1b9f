//! `_strings.json`: the text leaves of a pytree, one member each.
//!
//! ```text
//! {"list.3":"s","strings.path":{"like":"v"}}        compact, members sorted, UTF-8 unescaped
//! ```
//!
//! TensorStore writes each text at the JSON pointer `"/" + param name`, without escaping the name.
//! So a `/` in a name makes a nested object, and `~0` and `~1` mean `~` and `/`. Orbax cannot save
//! a name with any other `~`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::json_text;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_zarr::zarr::json::brief;

/// Name of the file.
pub const STRINGS_FILE: &str = "_strings.json";

/// The most parts of a name: each nests one object, and JSON readers stop at 128.
const NESTING_MAX: usize = 100;

/// The texts of the document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings(BTreeMap<String, Member>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    Text(String),
    Object(Strings),
    /// A number, a list, …: nothing that Orbax writes here.
    Other,
}

impl Strings {
    /// Parses the document.
    ///
    /// # Errors
    /// `Corrupt` with the offset; the caller knows the file.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        match json_text::parse(bytes)? {
            Value::Object(members) => Ok(from_members(members)),
            other => Err(Error::corrupt("the texts of a pytree are not a JSON object")
                .at_byte(0)
                .expected("{...}", brief(&other))
                .help("copy _strings.json again, or restore an earlier step")),
        }
    }

    /// The text of the leaf with this param name.
    pub fn get(&self, param_name: &str) -> Option<&str> {
        let mut object = self;
        let mut parts = param_name.split('/').peekable();
        while let Some(part) = parts.next() {
            match object.0.get(unescape(part)?.as_ref())? {
                Member::Text(text) => return parts.peek().is_none().then_some(text.as_str()),
                Member::Object(below) => object = below,
                Member::Other => return None,
            }
        }
        None
    }

    /// The param names of all texts.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut open = vec![(String::new(), self)];
        while let Some((above, object)) = open.pop() {
            for (key, member) in &object.0 {
                let key = key.replace('~', "~0").replace('/', "~1");
                match member {
                    Member::Text(_) => names.push(format!("{above}{key}")),
                    Member::Object(below) => open.push((format!("{above}{key}/"), below)),
                    Member::Other => {}
                }
            }
        }
        names.sort_unstable();
        names
    }

    /// Adds the text of a leaf.
    ///
    /// # Errors
    /// `NameCollision` if another text has this name, or if one of the two names is a path prefix
    /// of the other; `Unsupported` for a `~` that is not a pointer escape; `Limit` for a name with
    /// too many parts.
    pub fn insert(&mut self, param_name: &str, text: impl Into<String>) -> Result<()> {
        let in_the_way = || {
            Error::new(
                ErrorKind::NameCollision,
                format!("two text leaves have the name {param_name:?} in {STRINGS_FILE}"),
            )
            .help("rename one of them: a `/` in a key nests, as in a path")
        };
        let parts: Vec<&str> = param_name.split('/').collect();
        if parts.len() > NESTING_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("the name of a text leaf has more than {NESTING_MAX} parts between slashes"),
            ));
        }
        let mut object = self;
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let key = unescape(part).ok_or_else(|| {
                Error::unsupported(format!(
                    "the name {param_name:?} of a text leaf holds a `~` Orbax cannot store"
                ))
                .help("rename the key: ~ is allowed only in ~0 (for ~) and ~1 (for /)")
            })?;
            if parts.peek().is_none() {
                if object.0.insert(key.into_owned(), Member::Text(text.into())).is_some() {
                    return Err(in_the_way());
                }
                return Ok(());
            }
            let below = object.0.entry(key.into_owned()).or_insert_with(|| Member::Object(Self::default()));
            match below {
                Member::Object(below) => object = below,
                _ => return Err(in_the_way()),
            }
        }
        Ok(())
    }

    /// Whether there is no text at all; then the file is not written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The document as TensorStore writes it.
    ///
    /// # Errors
    /// None for what [`insert`](Self::insert) accepted.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        json_text::to_compact_json(self)
    }
}

fn from_members(members: serde_json::Map<String, Value>) -> Strings {
    let read = |value| match value {
        Value::String(text) => Member::Text(text),
        Value::Object(members) => Member::Object(from_members(members)),
        _ => Member::Other,
    };
    Strings(members.into_iter().map(|(key, value)| (key, read(value))).collect())
}

/// One part of a JSON pointer as the member name it means; `None` for a `~` that is not an escape.
fn unescape(part: &str) -> Option<std::borrow::Cow<'_, str>> {
    if !part.contains('~') {
        return Some(part.into());
    }
    let mut out = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(out.into())
}

impl Serialize for Strings {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Object(object) => object.serialize(serializer),
            Self::Other => serializer.serialize_unit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_orbax_wrote() {
        let bytes =
            std::fs::read(regrow_testkit::fixtures().join("orbax/structures/ckpt/_strings.json")).unwrap();
        let read = Strings::parse(&bytes).unwrap();
        assert_eq!(read.get("strings.path/like"), Some("v"));
        assert_eq!(read.get("strings.path"), None);
        let mut ours = Strings::default();
        for name in
            ["tuple.1.0", "list.3", "strings.unicode", "strings.path/like", "strings.quote", "strings.empty"]
        {
            ours.insert(name, read.get(name).unwrap()).unwrap();
        }
        assert_eq!(ours.to_json().unwrap(), bytes);
    }

    #[test]
    fn follows_the_pointer_rule() {
        let mut strings = Strings::default();
        strings.insert("", "root").unwrap();
        strings.insert("a~1b", "one").unwrap();
        assert_eq!(strings.to_json().unwrap(), br#"{"":"root","a/b":"one"}"#);
        assert_eq!(strings.get("a~1b"), Some("one"));
        assert_eq!(strings.get(""), Some("root"));
        assert_eq!(strings.insert("x~y", "").unwrap_err().kind(), ErrorKind::Unsupported);
        strings.insert("p", "").unwrap();
        assert_eq!(strings.insert("p/q", "").unwrap_err().kind(), ErrorKind::NameCollision);
        assert_eq!(strings.insert("p", "").unwrap_err().kind(), ErrorKind::NameCollision);
        assert!(strings.insert(&"/".repeat(200), "").is_err());
        assert!(Strings::parse(b"[]").is_err());
    }
}
