//! The stored names of leaves, and names that are not possible.
//!
//! ```text
//! ('params', 'dense', 0)  --join with "."-->  params.dense.0      nothing is escaped
//! ```
//!
//! So different leaves may get one name (`{"a": {"b": x}, "a.b": y}`), and Orbax then keeps only
//! one of them, without an error. regrow refuses such leaves, and also names that TensorStore or
//! the file system would reject later:
//!
//! | form | refused |
//! |---|---|
//! | all | two leaves of one name; two keys of one dict with one text (`1` and `"1"`) |
//! | plain folders | components `.`, `..` or empty, NUL, `*.__lock`, over 255 bytes; the checkpoint's own files; an array below a chunk of another |
//! | a database | names with keys of over 65,535 bytes |
//! | text leaves | invalid JSON pointers: see [`Strings`](crate::orbax::strings::Strings) |
//!
//! In a database every name is an ordinary key: `..` and NUL do no harm, and Orbax stores them.
//!
//! Source: Orbax `tree_utils.get_param_names`; TensorStore `file` driver, JSON pointers (RFC 6901).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::orbax::array_metadatas::ARRAY_METADATAS_FOLDER;
use crate::orbax::checkpoint_metadata::CHECKPOINT_METADATA_FILE;
use crate::orbax::marker_files::COMMIT_SUCCESS_FILE;
use crate::orbax::metadata::METADATA_FILE;
use crate::orbax::sharding::SHARDING_FILE;
use crate::orbax::strings::STRINGS_FILE;
use crate::refusals::Refusals;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_ocdbt::KEY_LEN_MAX_BYTES;
use regrow_store::local::folders::LOCK_SUFFIX;
use regrow_tree::tree::{Key, KeyPath, Tree};
use regrow_zarr::zarr::{V2_DOCUMENT, V3_DOCUMENT};

/// The longest name of a file or folder on usual file systems.
const COMPONENT_BYTES_MAX: usize = 255;

/// The files of a checkpoint in plain folders beside its arrays.
const OWN_FILES: [&str; 6] = [
    METADATA_FILE,
    CHECKPOINT_METADATA_FILE,
    SHARDING_FILE,
    STRINGS_FILE,
    ARRAY_METADATAS_FOLDER,
    COMMIT_SUCCESS_FILE,
];

/// The stored name of the leaf at `path`, which is Orbax' param name. Empty for a tree that is one
/// leaf.
pub(crate) fn param_name(path: &KeyPath) -> String {
    path.join(".")
}

/// The key of one value of the array `name`; an array without a name adds no `/`.
pub(crate) fn kvstore_key(name: &str, zarr_key: &str) -> String {
    if name.is_empty() { zarr_key.to_owned() } else { format!("{name}/{zarr_key}") }
}

/// Refuses a name that is too long for the keys of a database. The longest key of an array is the
/// key of its farthest chunk or of its document.
pub(super) fn check_key_len(name: &str, farthest_chunk: &[u64]) -> Result<()> {
    let digits = |number: &u64| 1 + number.checked_ilog10().unwrap_or(0) as usize;
    let chunk_len = 1 + farthest_chunk.iter().map(|number| 1 + digits(number)).sum::<usize>();
    let len_max_bytes = KEY_LEN_MAX_BYTES - "/".len() - chunk_len.max(V3_DOCUMENT.len());
    if name.len() <= len_max_bytes {
        return Ok(());
    }
    Err(Error::unsupported("its name (its keys joined by dots) is too long for an OCDBT database")
        .expected(format_args!("at most {len_max_bytes} bytes"), name.len())
        .help("shorten the keys, or save in the layout regrow, which keeps keys of any length"))
}

/// Refuses each leaf with the name of an earlier leaf.
pub(crate) fn check_distinct<'a>(
    named: impl Iterator<Item = (&'a KeyPath, &'a str)>,
    refusals: &mut Refusals,
) {
    let mut seen: HashMap<&str, &KeyPath> = HashMap::new();
    for (path, name) in named {
        if let Some(first) = seen.get(name) {
            let error = Error::new(
                ErrorKind::NameCollision,
                format!("its stored name {name:?} is also that of {first}"),
            );
            refusals.add(path, error.help(RENAME));
        } else {
            seen.insert(name, path);
        }
    }
}

const RENAME: &str = "rename a key, or save in the layout regrow, which keeps both leaves";

/// Refuses dicts in which two keys have the same text: `{1: x, "1": y}` would come back as one.
pub(crate) fn check_siblings<L>(tree: &Tree<L>, refusals: &mut Refusals) {
    // For each container on the way down: children still to come, texts seen.
    let mut open: Vec<(usize, HashSet<Cow<'_, str>>)> = Vec::new();
    for (path, node) in tree.walk() {
        while open.last().is_some_and(|(left, _)| *left == 0) {
            open.pop();
        }
        if let Some((left, texts)) = open.last_mut() {
            *left -= 1;
            if !matches!(node.key, Key::Index(_)) && !texts.insert(node.key.text()) {
                let what = format!("another key of its container is also called {:?}", node.key.text());
                refusals.add(&path, Error::new(ErrorKind::NameCollision, what).help(RENAME));
            }
        }
        if node.child_count > 0 {
            open.push((node.child_count, HashSet::new()));
        }
    }
}

/// Refuses array names that are not a path below the checkpoint's folder, or that collide with
/// another array's files.
pub(crate) fn check_folders<'a>(
    arrays: impl Iterator<Item = (&'a KeyPath, &'a str)> + Clone,
    refusals: &mut Refusals,
) {
    let names: HashSet<&str> = arrays.clone().map(|(_, name)| name).collect();
    for (path, name) in arrays {
        if let Some(what) = no_folder(name).or_else(|| inside_an_array(name, &names)) {
            let error = Error::new(
                ErrorKind::NameCollision,
                format!(
                    "{name:?} cannot name a folder: \
                {what}"
                ),
            );
            refusals.add(path, error.help("rename the key, or pass `ocdbt`, which stores any name"));
        }
    }
}

fn no_folder(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return None;
    }
    if name.contains('\0') {
        return Some("it holds a NUL");
    }
    if OWN_FILES.contains(&name.split('/').next().unwrap_or_default()) {
        return Some("the checkpoint has its own file of this name");
    }
    name.split('/').find_map(|component| match component {
        "" => Some("a part between slashes is empty"),
        "." | ".." => Some("a part between slashes is . or .."),
        _ if component.ends_with(LOCK_SUFFIX) => Some("it ends as a lock file does"),
        _ if component.len() > COMPONENT_BYTES_MAX => Some("a part between slashes is longer than 255 bytes"),
        _ => None,
    })
}

/// The reason for a refusal if `name` is the path of a file that belongs to another array.
fn inside_an_array(name: &str, names: &HashSet<&str>) -> Option<&'static str> {
    let is_chunk =
        |part: &str| part.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    name.match_indices('/').find_map(|(slash, _)| {
        let (above, below) = (name.get(..slash)?, name.get(slash + 1..)?);
        let part = below.split('/').next()?;
        let meets = matches!(part, V2_DOCUMENT | V3_DOCUMENT | "c") || is_chunk(part);
        (names.contains(above) && meets).then_some("another array keeps its chunks there")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::tree::{NodeKind, TreeBuilder};

    fn path(keys: &[&str]) -> KeyPath {
        keys.iter().map(|&key| Key::dict(key)).collect()
    }

    type Named<'a> = std::slice::Iter<'a, (KeyPath, String)>;

    fn refused(names: &[&str], check: impl Fn(Named<'_>, &mut Refusals)) -> Option<String> {
        let named: Vec<(KeyPath, String)> = names.iter().map(|&n| (path(&[n]), n.to_owned())).collect();
        let mut refusals = Refusals::default();
        check(named.iter(), &mut refusals);
        refusals.finish("cannot be written as Orbax writes them").err().map(|error| error.to_string())
    }

    #[test]
    fn equal_names_are_refused() {
        let named = [(path(&["a", "b"]), "a.b"), (path(&["c"]), "c"), (path(&["a.b"]), "a.b")];
        let mut refusals = Refusals::default();
        check_distinct(named.iter().map(|(path, name)| (path, *name)), &mut refusals);
        let error = refusals.finish("cannot be written as Orbax writes them").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NameCollision);
        assert!(error.to_string().contains("a/b"), "{error}");
    }

    #[test]
    fn equal_texts_under_one_dict_are_refused() {
        let refused = |keys: &[Key]| {
            let mut build = TreeBuilder::new();
            build.open(Key::Index(0), NodeKind::Dict).unwrap();
            for key in keys {
                build.open(key.clone(), NodeKind::List).unwrap();
                build.leaf(Key::Index(0), ()).unwrap();
                build.close().unwrap();
            }
            build.close().unwrap();
            let mut refusals = Refusals::default();
            check_siblings(&build.finish().unwrap(), &mut refusals);
            refusals.finish("cannot be written as Orbax writes them").is_err()
        };
        assert!(refused(&[Key::dict("1"), Key::DictInt(1)]));
        assert!(refused(&[Key::DictInt(1), Key::dict("x"), Key::dict("1")]));
        assert!(!refused(&[Key::DictInt(1), Key::DictInt(2), Key::dict("x")]));
        assert!(!refused(&[Key::dict("a"), Key::dict("b")]));
    }

    #[test]
    fn folders_must_be_folders() {
        let folders = |names: &[&str]| {
            refused(names, |named, refusals| check_folders(named.map(|(p, n)| (p, n.as_str())), refusals))
        };
        let bad =
            ["..", "a/../b", ".", "/abs", "a//b", "a/", "/", "a\0b", "x.__lock", "_METADATA", "_sharding/x"];
        for name in bad {
            assert!(folders(&[name]).is_some(), "{name:?}");
        }
        assert!(folders(&[&"x".repeat(256)]).is_some());
        for below in [".zarray", "zarr.json", "c/0", "0", "12.3", "0.0/y"] {
            assert!(folders(&["a", &format!("a/{below}")]).is_some(), "{below}");
        }
        assert_eq!(folders(&["", "a", "a/b", "a/b/d", "a/b.0", "...", "d", "manifest.ocdbt", "b/0"]), None);
    }
}
