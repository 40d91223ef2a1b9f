//! Arrays of other users of TensorStore, without Orbax' documents: one folder for each zarr array,
//! or all arrays in a database.
//!
//! ```text
//! params.w/.zarray  params.w/0.0  …       Orbax before July 2023; JAX' array_serialization; big_vision (`params~w`)
//! model/w/.zarray  …  metadata.json       Levanter: {"step": 3, "timestamp": "…", "is_temporary": false}
//! manifest.ocdbt  d/                      a database with keys such as model/w/zarr.json
//! ```
//!
//! The names of the arrays, split at dots, slashes or `~`, give a tree of dicts. Such a checkpoint
//! has no marker. So every file below the folder must belong to an array, except notes (`.md`,
//! `.txt`), hidden files, Levanter's `metadata.json`, and Orbax' `_sharding` and `_strings.json`. A
//! folder above several checkpoints, or a home folder with an array somewhere, also has arrays
//! below it, but is not a checkpoint.
//!
//! Source: orbax' `legacy` readers; JAX 0.10 `jax/experimental/array_serialization`; Levanter
//! `checkpoint.py`; big_vision `utils.py`.

use serde_json::Value;

use super::array_metadatas::ARRAY_METADATAS_FOLDER;
use super::arrays::{Arrays, DOCUMENTS};
use super::checkpoint_metadata::CHECKPOINT_METADATA_FILE;
use super::files::{Listed, read_small};
use super::json_text;
use super::left::{DATA_FOLDER, PROCESS_PREFIX, process_of};
use super::marker_files::{AGGREGATE_FILE, MANIFEST_FILE, V1_MARKER_FILE};
use super::metadata::{METADATA_FILE, TreeMetadata};
use super::opened::{Opened, Wanted};
use super::sharding::SHARDING_FILE;
use super::steps::TMP_MARK;
use super::strings::STRINGS_FILE;
use super::structure;
use crate::checkpoint_markers;
use crate::suggestions;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::Entry;
use regrow_storage::location::Location;
use regrow_tree::tree::LeafKind;
use regrow_zarr::zarr::Missing;

/// Documents of Orbax that may lie beside the arrays. Orbax writes them beside a `_METADATA`.
const BESIDE: [&str; 2] = [SHARDING_FILE, STRINGS_FILE];
/// The ends of the names of notes that may lie beside the arrays.
const BESIDE_SUFFIXES: [&str; 2] = [".md", ".txt"];

/// Levanter's description of a checkpoint, in a file beside the arrays.
const LEVANTER_FILE: &str = "metadata.json";
const LEVANTER_MEMBERS: [&str; 2] = ["step", "timestamp"];

/// The prefixes of T5X' array names. The file `checkpoint` has the tree of T5X, and the leaves that
/// are not arrays.
const T5X_PREFIXES: [&str; 2] = ["target.", "state."];

const JAX_PROCESS_PREFIX: &str = "process_";

const GUESSED: &str = "the metadata is missing: the tree comes from the names of the arrays, with dicts \
    only, and missing arrays are not noticed";

/// # Errors
/// `Corrupt` with file and leaf; `NotACheckpoint`, with the checkpoints below, if some file does
/// not belong to an array.
pub(super) fn open(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let found = Walk::whole().run(folder)?;
    if let Some(foreign) = found.foreign.as_ref().filter(|_| wanted.is_strict()) {
        return Err(refused(folder, foreign));
    }
    if let Some(lost) = found.lost.as_ref().filter(|_| wanted.is_strict()) {
        return Err(Error::corrupt("the metadata of an array is missing, but its chunks exist")
            .in_file(folder.join(lost))
            .help("copy the whole checkpoint again"));
    }
    let is_of_process = |below: &&String| below.split('/').any(|name| name.starts_with(PROCESS_PREFIX));
    if let Some(part) = found.databases.iter().find(is_of_process).filter(|_| wanted.is_strict()) {
        return Err(Error::corrupt("the database of one process exists, but the joined database is missing")
            .in_file(place_of(folder, part))
            .help("copy the whole checkpoint again; or load the rest with `salvage`"));
    }
    let mut places = Vec::new();
    let mut names: Vec<String> = Vec::new();
    if !found.names.is_empty() {
        places.push((
            String::new(),
            Arrays::in_folders(folder, false, Missing::Fill, wanted)?,
            found.names.len(),
        ));
        names.clone_from(&found.names);
    }
    for below in &found.databases {
        let at = place_of(folder, below);
        let arrays = Arrays::in_database(&at, false, Missing::Fill, wanted)?;
        let (own, foreign) = arrays.names();
        if let Some(key) = foreign.filter(|_| wanted.is_strict()) {
            return Err(foreign_key(&at, &key));
        }
        let above = if below.is_empty() { String::new() } else { format!("{below}/") };
        names.extend(own.iter().map(|name| format!("{above}{name}").trim_end_matches('/').to_owned()));
        places.push((above, arrays, names.len()));
    }
    let is_of_t5x = |name: &String| T5X_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let has_params = names.iter().any(|name| name.starts_with(T5X_PREFIXES[0]));
    if wanted == Wanted::Whole && has_params && names.iter().all(is_of_t5x) {
        return Err(lost_its_msgpack(folder));
    }
    let mut metadata = TreeMetadata::of_paths(names.iter());
    let mut tree = structure::build(&metadata);
    if tree.as_ref().map_or(true, |tree| tree.len() < names.len()) {
        // One name is a prefix of another, so no tree of dicts can have both.
        metadata = TreeMetadata::of_whole_names(names.iter());
        tree = structure::build(&metadata);
    }
    let tree = tree?.try_map(|_, &position| {
        let place = places.iter_mut().find(|(.., end)| position < *end);
        let (Some(name), Some((above, arrays, _))) = (names.get(position), place) else {
            return Err(Error::corrupt("an array has no name").in_file(folder));
        };
        let own = name.strip_prefix(above.as_str()).unwrap_or_default();
        let mut slot = arrays.leaf(own, LeafKind::NumpyArray)?;
        slot.info.name = name.as_str().into();
        Ok(slot)
    })?;
    let levanter = levanter(folder, wanted)?;
    let kept = if found.databases.is_empty() { "folders" } else { "ocdbt" };
    let by = if levanter.is_some() { "levanter: " } else { "" };
    Ok(Opened {
        custom_metadata: levanter,
        warnings: vec![GUESSED.to_owned()],
        databases: found.databases.iter().map(|below| place_of(folder, below)).collect(),
        is_guessed: true,
        ..Opened::new(tree, &format!("{by}{kept}, no metadata"))
    })
}

fn place_of(folder: &Location, below: &str) -> Location {
    if below.is_empty() { folder.clone() } else { folder.join(below) }
}

/// Whether a folder is a database of arrays that was never an Orbax checkpoint. An Orbax checkpoint
/// that has lost its `_METADATA` is not such a database.
pub(super) fn is_database(at: &Location, listed: &[Listed]) -> bool {
    at.has_listings()
        && has(listed, MANIFEST_FILE)
        && !has(listed, AGGREGATE_FILE)
        && !had_metadata(at, listed)
}

/// Whether the names in a folder show that it has or had a `_METADATA`. Bare arrays and old
/// checkpoints never had a `_METADATA`.
pub(super) fn had_metadata(at: &Location, listed: &[Listed]) -> bool {
    const BESIDE: [&str; 5] =
        [METADATA_FILE, CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, SHARDING_FILE, STRINGS_FILE];
    let is_part = |entry: &Listed| {
        entry.is_dir && (entry.name == ARRAY_METADATAS_FOLDER || process_of(entry).is_some())
    };
    !has(listed, AGGREGATE_FILE)
        && (BESIDE.iter().any(|file| has(listed, file))
            || listed.iter().any(is_part)
            || at.parent().join(CHECKPOINT_METADATA_FILE).is_file())
}

fn has(listed: &[Listed], file: &str) -> bool {
    listed.iter().any(|entry| !entry.is_dir && entry.name == file)
}

fn levanter(folder: &Location, wanted: Wanted) -> Result<Option<Value>> {
    let file = folder.join(LEVANTER_FILE);
    let read =
        read_small(&file).and_then(|bytes| bytes.map(|bytes| json_text::parse::<Value>(&bytes)).transpose());
    match wanted.or_lost(read.in_file(&file))? {
        Ok(Some(said)) if LEVANTER_MEMBERS.iter().all(|member| said.get(member).is_some()) => Ok(Some(said)),
        Ok(Some(_)) if wanted.is_strict() => Err(refused(folder, LEVANTER_FILE)),
        _ => Ok(None),
    }
}

fn foreign_key(folder: &Location, key: &str) -> Error {
    Error::unsupported("this database has zarr arrays and other keys")
        .in_file(folder.join(format!("{MANIFEST_FILE}:{key}")))
        .expected("only keys of zarr arrays, because there is no metadata", key)
        .help("read it with TensorStore, and save its arrays with regrow.save")
}

fn lost_its_msgpack(folder: &Location) -> Error {
    Error::corrupt("the T5X file with the tree and the small leaves is missing")
        .in_file(folder.join(AGGREGATE_FILE))
        .help("copy the whole checkpoint again; the arrays load into a `template`, or with `salvage`")
}

/// Whether only arrays lie below the folder. The search is limited, and stops at the first other
/// file.
pub(super) fn are_in(folder: &Location) -> Result<bool> {
    let found = Walk::look().run(folder)?;
    Ok(found.foreign.is_none() && !(found.names.is_empty() && found.databases.is_empty()))
}

/// The names of all arrays below a folder; other files are ignored.
pub(super) fn names_below(folder: &Location) -> Result<Vec<String>> {
    Ok(Walk { stops_at_foreign: false, ..Walk::whole() }.run(folder)?.names)
}

fn refused(folder: &Location, foreign: &str) -> Error {
    let what = "this folder has zarr arrays, but also other files: it is not a checkpoint";
    Error::new(ErrorKind::NotACheckpoint, what)
        .in_file(folder)
        .expected("only arrays, because there is no metadata", foreign)
        .help(
            suggestions::checkpoints_in(folder)
                .unwrap_or_else(|| "give a folder that has only arrays".to_owned()),
        )
}

/// A search for arrays, with its limits.
struct Walk {
    folders_max: usize,
    entries_max: usize,
    /// Whether to search the folders of chunks, too: other arrays may lie among them.
    into_arrays: bool,
    stops_at_foreign: bool,
}

#[derive(Default)]
struct Found {
    names: Vec<String>,
    databases: Vec<String>,
    /// The path, below the folder, of the missing document of an array with chunks.
    lost: Option<String>,
    /// The path, below the folder, of the first file that belongs to no array.
    foreign: Option<String>,
}

impl Walk {
    fn look() -> Self {
        Self { folders_max: 1000, entries_max: 20_000, into_arrays: false, stops_at_foreign: true }
    }

    fn whole() -> Self {
        Self { folders_max: 1 << 20, entries_max: usize::MAX, into_arrays: true, stops_at_foreign: true }
    }

    fn run(&self, folder: &Location) -> Result<Found> {
        let mut found = Found::default();
        let mut open =
            vec![Open { at: folder.clone(), name: String::new(), in_array: false, is_database: false }];
        let (mut folders, mut entries_left) = (0, self.entries_max);
        while let Some(mut folder) = open.pop() {
            folders += 1;
            if folders > self.folders_max {
                break;
            }
            if folder.is_array() {
                found.names.push(folder.name.clone());
                folder.in_array = true;
                if !self.into_arrays {
                    continue;
                }
            }
            let listed = match folder.at.entries() {
                Ok(listed) => listed,
                // The walk skips an unreadable subfolder. If the subfolder is an array, its name is
                // already noted, and a read of the array reports the error.
                Err(_) if !folder.name.is_empty() => continue,
                Err(error) => return Err(error),
            };
            folder.is_database = !folder.in_array && has_manifest(&listed);
            found.note_folder(&folder, &listed);
            let looked_at = listed.get(..entries_left).unwrap_or(&listed);
            entries_left -= looked_at.len();
            self.take_entries(&folder, looked_at, &mut open, &mut found);
            if found.foreign.is_some() {
                return Ok(found);
            }
        }
        found.names.sort_unstable();
        found.databases.sort_unstable();
        Ok(found)
    }

    /// Adds the subfolders of a folder to `open`. Notes a lost document or a foreign file.
    fn take_entries(&self, folder: &Open, listed: &[Entry], open: &mut Vec<Open>, found: &mut Found) {
        let in_array = folder.in_array;
        for entry in listed {
            // Names that are not UTF-8 are left out: Orbax writes none.
            let Some(own) = entry.name.to_str() else { continue };
            if folder.is_database && is_of_database(own, entry.is_folder()) {
                continue;
            }
            if entry.is_folder() {
                if !entry.is_link && !own.contains(TMP_MARK) {
                    let at = folder.at.join(own);
                    open.push(Open { at, name: folder.below(own), in_array, is_database: false });
                }
            } else if !in_array && !folder.name.is_empty() && is_chunk(own) {
                found.lost.get_or_insert_with(|| document_above(&folder.name));
            } else if self.stops_at_foreign && is_foreign(&folder.name, own, in_array) {
                found.foreign = Some(folder.below(own));
                return;
            }
        }
    }
}

/// A folder that the walk has still to look into.
struct Open {
    at: Location,
    /// The path of the folder below the first folder of the walk.
    name: String,
    in_array: bool,
    is_database: bool,
}

impl Open {
    fn is_array(&self) -> bool {
        !self.name.is_empty() && DOCUMENTS.iter().any(|document| self.at.join(document).is_file())
    }

    fn below(&self, own: &str) -> String {
        if self.name.is_empty() { own.to_owned() } else { format!("{}/{own}", self.name) }
    }
}

fn has_manifest(listed: &[Entry]) -> bool {
    listed.iter().any(|entry| entry.name == MANIFEST_FILE && entry.is_file())
}

impl Found {
    fn note_folder(&mut self, folder: &Open, listed: &[Entry]) {
        if folder.is_database {
            self.databases.push(folder.name.clone());
        }
        // An array whose chunks are all zeros has no file but its document, so an empty folder may
        // be an array that has lost its document.
        if listed.is_empty() && !folder.in_array && !folder.name.is_empty() {
            self.lost.get_or_insert_with(|| document_above(&folder.name));
        }
    }
}

/// Whether a file is named like a chunk: `0`, `3.1`.
fn is_chunk(file: &str) -> bool {
    file.starts_with(|c: char| c.is_ascii_digit())
        && file.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The document of the array that has chunks in this folder.
fn document_above(folder: &str) -> String {
    let [v2, v3] = DOCUMENTS;
    match folder.split_once("/c/").map(|(array, _)| array).or_else(|| folder.strip_suffix("/c")) {
        Some(array) => format!("{array}/{v3}"),
        None => format!("{folder}/{v2}"),
    }
}

/// Whether a name in the folder of a database belongs to the database: its records, its data, and
/// the folders of single processes.
fn is_of_database(name: &str, is_folder: bool) -> bool {
    match is_folder {
        true => {
            name == DATA_FOLDER || name.starts_with(PROCESS_PREFIX) || name.starts_with(JAX_PROCESS_PREFIX)
        }
        false => name.starts_with("manifest."),
    }
}

/// Whether a file belongs to no array. Among the chunks of an array, only the marker of another
/// checkpoint is certain to belong to no array.
fn is_foreign(folder: &str, file: &str, in_array: bool) -> bool {
    if in_array {
        return checkpoint_markers().contains(&file);
    }
    let is_beside = BESIDE.contains(&file) || BESIDE_SUFFIXES.iter().any(|suffix| file.ends_with(suffix));
    let is_array = DOCUMENTS.contains(&file) || file.starts_with('.');
    let is_levanter = folder.is_empty() && file == LEVANTER_FILE;
    !(is_beside || is_array || is_levanter || folder == ARRAY_METADATAS_FOLDER)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn put(root: &Path, names: &[&str]) {
        for name in names {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        }
    }

    #[test]
    fn everything_below_is_of_an_array() {
        let bare = [
            "a.b/.zarray",
            "a.b/0.0",
            "c/d/.zarray",
            "c/d/0/1",
            "c/d/e/.zarray",
            "f/zarr.json",
            "f/c/0",
            "README.md",
            ".DS_Store",
            "_sharding",
            "array_metadatas/process_0",
        ];
        let root = tempfile::tempdir().unwrap();
        let at = Location::local(root.path());
        put(root.path(), &bare);
        assert!(are_in(&at).unwrap());
        assert_eq!(Walk::whole().run(&at).unwrap().names, ["a.b", "c/d", "c/d/e", "f"]);
        for foreign in ["plot.png", "c/regrow.json", "other/run/checkpoint", "w.safetensors"] {
            put(root.path(), &[foreign]);
            assert!(!are_in(&at).unwrap(), "{foreign}");
            assert_eq!(open(&at, Wanted::Whole).unwrap_err().kind(), ErrorKind::NotACheckpoint, "{foreign}");
            fs::remove_file(root.path().join(foreign)).unwrap();
        }
        // `are_in` does not search the chunks of arrays, but `open` does.
        put(root.path(), &["c/d/run/_METADATA"]);
        assert!(are_in(&at).unwrap());
        let error = open(&at, Wanted::Whole).unwrap_err();
        assert_eq!(error.expected_found().unwrap().1, "c/d/run/_METADATA");
        assert!(error.help_text().unwrap().contains("\"c/d/run\""));
    }

    #[test]
    fn a_look_ends() {
        let root = tempfile::tempdir().unwrap();
        let at = Location::local(root.path());
        put(root.path(), &["a/.zarray", "a/0", "b/.zarray", "b/0"]);
        let few = Walk { folders_max: 2, ..Walk::look() };
        assert_eq!(few.run(&at).unwrap().names.len(), 1);
        let none = Walk { entries_max: 0, ..Walk::look() };
        assert!(none.run(&at).unwrap().names.is_empty());
    }
}
