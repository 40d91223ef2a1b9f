//! The exact pytree in column form: one array for each field, repeated strings once.
//!
//! The default layout stores these columns in `regrow.json`, and short columns also in the
//! `__metadata__` of the first safetensors file, so that this file alone gives the tree. Other
//! layouts that lose types store the columns in another file or member.
//!
//! ```text
//! {"version":1,
//!  "strings":["params","kernel",...]         every key and type name, once
//!  "nodes":"dDll..."                         a letter for each node in preorder (letters.rs)
//!  "key_kinds":"xss..."                      s dict text, i dict integer, x position, a attribute
//!  "keys":[0,1,...]                          s and a: into strings; i: the integer; x: 0, the position is implied
//!  "child_counts":[2,...]                    one for each container
//!  "type_names":[7,...]                      one for each N, D and C: into strings
//!  "leaves":"jjns..."                        a letter for each leaf (letters.rs)
//!  "dtypes":["float32",...], "leaf_dtypes":[0,...]
//!  "shapes":[[64,10],...],   "leaf_shapes":[0,...]
//!  "texts":["adam",...]                      one for each text leaf
//!  "key_implementations":["rbg",...]         one for each PRNG key
//!  "numpy_dtypes":["<U8",...]                one for each array of a dtype that is NumPy's alone
//!  "names":{"3":"a%2Eb"}                     stored names that are not the key path joined by dots
//!  "shardings":{"0":{...}}}                  Orbax' sharding entries
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `gather` | turns a tree into columns |
//! | `put_together` | turns columns into a tree, and checks them against each other |
//! | `letters` | the letters of nodes and leaves, in both directions |

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::sharding::Sharding;
use regrow_tree::tree::{LeafInfo, LeafKind, Tree};

mod gather;
mod letters;
mod put_together;

/// The version that this build writes, the only one so far.
pub const STRUCTURE_VERSION: u32 = 1;

/// The columns: see the module documentation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Structure {
    version: u32,
    strings: Vec<String>,
    nodes: String,
    key_kinds: String,
    keys: Vec<i64>,
    child_counts: Vec<usize>,
    type_names: Vec<usize>,
    leaves: String,
    dtypes: Vec<String>,
    leaf_dtypes: Vec<u16>,
    shapes: Vec<Vec<u64>>,
    leaf_shapes: Vec<u32>,
    texts: Vec<String>,
    key_implementations: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    numpy_dtypes: Vec<String>,
    #[serde(default)]
    names: BTreeMap<usize, String>,
    #[serde(default)]
    shardings: BTreeMap<usize, ShardingText>,
}

/// The JSON text of a sharding. All leaves with the same sharding share the text.
#[derive(Debug, Clone)]
struct ShardingText(Arc<RawValue>);

impl Serialize for ShardingText {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ShardingText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self(Arc::from(text)))
    }
}

impl ShardingText {
    fn of(sharding: &Sharding) -> Result<Self> {
        let no_json = |error| Error::invalid(format!("a sharding is not JSON: {error}"));
        serde_json::value::to_raw_value(&sharding.to_json())
            .map(|text| Self(Arc::from(text)))
            .map_err(no_json)
    }

    fn sharding(&self) -> Result<Sharding> {
        let value = serde_json::from_str(self.0.get());
        value
            .map(Sharding::from_json)
            .map_err(|error| Error::corrupt(format!("a stored sharding cannot be read: {error}")))
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.get() == other.0.get()
    }
}

/// The tree that [`Structure`] describes.
#[derive(Debug)]
pub struct Regrown {
    /// The tree. The `coding` of each leaf is empty: the caller fills it in.
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`, by its position in flatten order.
    pub texts: HashMap<usize, Arc<str>>,
}

/// The data of a leaf that [`Structure`] stores, besides its position.
#[derive(Debug)]
pub struct LeafColumns<'a> {
    /// The kind of the leaf.
    pub kind: &'a LeafKind,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// The text of a `Str` leaf.
    pub text: Arc<str>,
    /// The stored name, if it differs from the joined key path.
    pub name: Option<&'a str>,
    /// The sharding over devices.
    pub sharding: Option<&'a Sharding>,
}

impl Structure {
    /// The columns as JSON text.
    ///
    /// # Errors
    /// None in practice: JSON can store all its members.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::invalid(format!("the structure is not JSON: {error}")))
    }

    /// Parses JSON text.
    ///
    /// # Errors
    /// `Corrupt`, or `Unsupported` for a later version.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        // A later version may have other columns, so report its version before errors of the
        // columns.
        let parsed: Self = serde_json::from_str(text).map_err(|error| {
            let later =
                serde_json::from_str(text).ok().and_then(|Version { version }| check_version(version).err());
            later.unwrap_or_else(|| Error::corrupt(format!("the stored structure cannot be read: {error}")))
        })?;
        check_version(parsed.version)?;
        Ok(parsed)
    }
}

fn check_version(version: u32) -> Result<()> {
    if version == STRUCTURE_VERSION {
        return Ok(());
    }
    Err(Error::unsupported(format!("this structure has version {version}"))
        .expected(format_args!("version {STRUCTURE_VERSION}"), version)
        .help("a newer regrow wrote it: update regrow, or let Orbax or safetensors read the arrays"))
}

fn bad_columns(why: &str) -> Error {
    Error::corrupt(format!("the stored structure contradicts itself: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::tree::TreeBuilder;
    use regrow_tree::tree::{Key, NodeKind};

    fn info(kind: LeafKind, name: &str) -> LeafInfo {
        LeafInfo {
            kind,
            dtype: Dtype::BFloat16,
            shape: Shape::new(vec![3, 0]).unwrap(),
            name: Arc::from(name),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(""),
        }
    }

    fn sample() -> Tree<LeafInfo> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::DictInt(-3), NodeKind::Tuple).unwrap();
        build.leaf(Key::Index(0), info(LeafKind::JaxArray, "-3.0")).unwrap();
        build.open(Key::Index(1), NodeKind::None).unwrap();
        build.close().unwrap();
        build.leaf(Key::Index(2), info(LeafKind::Str, "renamed")).unwrap();
        build.close().unwrap();
        build.open(Key::dict("state"), NodeKind::NamedTuple(Arc::from("optax.Adam"))).unwrap();
        build.leaf(Key::attr("mu"), info(LeafKind::PrngKey(Some(Arc::from("rbg"))), "state.mu")).unwrap();
        build.open(Key::attr("nu"), NodeKind::Dict).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    }

    #[test]
    fn comes_back_exactly() {
        let tree = sample();
        let text = Structure::of(&tree, |_| Arc::from("hello")).unwrap().to_json().unwrap();
        let regrown = Structure::from_json(&text).unwrap().regrow().unwrap();
        assert_eq!(regrown.tree, tree);
        assert_eq!(regrown.texts.into_iter().collect::<Vec<_>>(), [(1, Arc::from("hello"))]);
    }

    #[test]
    fn a_later_version_is_named() {
        let text = Structure::of(&sample(), |_| Arc::from("")).unwrap().to_json().unwrap();
        let later = text.replace("\"version\":1", "\"version\":2");
        let error = Structure::from_json(&later).unwrap_err();
        assert_eq!(error.kind(), regrow_base::error::ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2"));
    }

    #[test]
    fn any_cut_or_changed_column_is_an_error_and_never_a_panic() {
        let text = Structure::of(&sample(), |_| Arc::from("hello")).unwrap().to_json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let members: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        let mut refused = 0;
        for member in &members {
            for change in [
                "[]",
                "\"\"",
                "[7]",
                "[-1]",
                "{}",
                "\"zzzzzzzzz\"",
                "[18446744073709551615]",
                "[[9223372036854775807,4]]",
            ] {
                let mut changed = value.clone();
                changed[member] = serde_json::from_str(change).unwrap();
                if changed == value {
                    continue;
                }
                if let Ok(structure) = Structure::from_json(&changed.to_string())
                    && structure.regrow().is_ok()
                {
                    // Only the two optional members may be emptied.
                    assert!(["names", "shardings"].contains(&member.as_str()), "{member} = {change}");
                } else {
                    refused += 1;
                }
            }
        }
        assert!(refused > 80, "{refused}");
    }
}
