//! Distinguishes the files of a checkpoint from a user's files in its folder.
//!
//! An overwrite removes the whole folder. So it first searches the top of the folder for files that
//! no layout writes: notes, a tokenizer, logs. Any such file prevents the overwrite. It looks into
//! a subfolder only until its kind is known, and does not search subfolders of the checkpoint.
//!
//! Names of arrays prove little: `lora.safetensors` and `embeddings.npy` are a user's own files,
//! except if the checkpoint lists them.

use std::collections::HashSet;

use serde::Deserialize;

use super::CHECKPOINT_MARKERS;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::Result;
use crate::formats::orbax::json_text;
use crate::location::Location;
use crate::parity;
use crate::seal;
use crate::seal::{DAMAGED_PREFIX, is_name_of_side_file};
use crate::signature;
use crate::storage::{Entry, Found, UNCOMMITTED_MARK};
use crate::store::StoreExt;
use crate::store::local::folders::LOCK_SUFFIX;

/// Files that Orbax, TensorStore and regrow write at the top of a checkpoint, besides the markers.
const FILES: [&str; 9] = [
    "regrow.items.json",
    "_sharding",
    "_strings.json",
    "commit_success.txt",
    "checkpoint",
    seal::FILE_NAME,
    signature::FILE_NAME,
    parity::FILE_NAME,
    parity::BLOCKS_FILE_NAME,
];

/// In it a line says which names lie in a checkpoint whose files only a handler of its own knows.
const MARKER: &str = "commit_success.txt";

/// How that line begins; a list of names in JSON follows.
const FILES_LINE: &str = "regrow files ";

/// More than this is not noted: the marker stays a small file. Such a checkpoint is not
/// overwritten.
const FILES_LINE_LEN_MAX_BYTES: usize = 1 << 19;

/// By what the name of the handler of a JSON document ends, and the file that Orbax' own has.
const JSON_HANDLER: &str = ".JsonCheckpointHandler";
const JSON_FILE: &str = "metadata";

/// What says that npy files belong to the checkpoint.
const NPY_MARKER: &str = "regrow-structure.json";

/// What says which safetensors files and whether a database belong to it.
const REGROW_MARKER: &str = "regrow.json";

/// Orbax' document of the pytree, and the member of it by which regrow says that `regrow.json` is
/// beside it.
const METADATA_FILE: &str = "_METADATA";
const BESIDE_REGROW_JSON: &str = "\"beside_regrow_json\"";

/// The folder of an OCDBT database, and its root.
const DATABASE_FOLDER: &str = "d";
const DATABASE_ROOT: &str = "manifest.ocdbt";

/// A folder of Orbax.
const METADATAS_FOLDER: &str = "array_metadatas";

/// How the names of folders of OCDBT databases of several processes begin.
const FOLDER_PREFIX: &str = "ocdbt.process_";

/// How the numbered manifests of an OCDBT database begin.
const MANIFEST_PREFIX: &str = "manifest.";

/// How npy files end.
const NPY_SUFFIX: &str = ".npy";

/// Names that a network file system gives to files that were removed while they were open.
const REMOVED_PREFIX: &str = ".nfs";

/// A folder with one of these is an array, or a group of them.
const ARRAY_DOCUMENTS: [&str; 3] = [".zarray", "zarr.json", ".zgroup"];

/// How far down the array of a leaf may lie whose name has slashes in it.
const DEPTH_MAX: usize = 8;

/// Most of `_CHECKPOINT_METADATA` that is read to know the names of a checkpoint's items.
const METADATA_LEN_MAX_BYTES: u64 = 1 << 20;

/// The document that names the handlers.
const CHECKPOINT_METADATA_FILE: &str = "_CHECKPOINT_METADATA";

/// How many are named in an error.
const SHOWN_MAX: usize = 5;

/// Whether this is the temporary name of a seal, a signature or parity, which a killed writer may
/// leave. Folders staged by a save do not count: such a folder may be the only copy of a step.
pub(super) fn is_on_its_way(name: &str) -> bool {
    let is_staged = || name.split_once(UNCOMMITTED_MARK).is_some_and(|(of, _)| is_name_of_side_file(of));
    name.starts_with('.') && name.ends_with(LOCK_SUFFIX) || is_staged()
}

/// Names in the checkpoint folder that are no part of the checkpoint, a few of them.
///
/// # Errors
/// What the storage says.
pub(crate) fn strangers_in(folder: &Location) -> Result<Vec<String>> {
    let strangers = look_for_strangers(folder, SHOWN_MAX)?;
    match strangers.is_empty() {
        true => Ok(strangers),
        // Looks again: another writer may have put a checkpoint there in between, and the earlier
        // answer does not cover its files.
        false => look_for_strangers(folder, SHOWN_MAX),
    }
}

/// All of them.
///
/// # Errors
/// What the storage says.
pub(super) fn all_strangers_in(folder: &Location) -> Result<Vec<String>> {
    look_for_strangers(folder, usize::MAX)
}

fn look_for_strangers(folder: &Location, count_max: usize) -> Result<Vec<String>> {
    let mut strangers = Vec::new();
    let (mut items, mut noted) = (None, None);
    let own = Own::of(folder);
    for entry in folder.entries()? {
        let name = entry.name.to_string_lossy().into_owned();
        if name.starts_with(REMOVED_PREFIX) || name.contains(UNCOMMITTED_MARK) {
            continue;
        }
        let belongs = match is_real_folder(&entry) {
            true => {
                own.has_folder(&name)
                    || items.get_or_insert_with(|| item_names(folder)).contains(&name)
                    || is_part(&folder.join(&entry.name), own.has_npy, DEPTH_MAX)?
            }
            false => own.has_file(&name),
        };
        if !belongs && !noted.get_or_insert_with(|| names_of_handler(folder)).contains(&name) {
            strangers.push(name);
        }
        if strangers.len() > count_max {
            break;
        }
    }
    strangers.sort();
    Ok(strangers)
}

/// Whether a name is a folder itself, and no link to one.
fn is_real_folder(entry: &Entry) -> bool {
    entry.is_folder() && !entry.is_link
}

/// The whole of a short file; `None` if there is none, or a longer one.
fn read_short(file: &Location, len_max_bytes: u64) -> Option<Vec<u8>> {
    match file.look() {
        Ok(Some(Found::File { len_bytes })) if len_bytes <= len_max_bytes => {}
        _ => return None,
    }
    let found = file.parent().store().get_whole(file.name().as_encoded_bytes());
    found.ok().flatten().map(Into::into)
}

/// What the checkpoint in a folder says of the names in it.
struct Own {
    /// What `regrow.json` lists: the first step of each path. `None` without one that can be read.
    recorded: Option<HashSet<String>>,
    /// Whether `regrow.json` is there at all, or was.
    is_regrow: bool,
    has_npy: bool,
    has_database: bool,
}

/// Whether Orbax' own document says that there was a `regrow.json` beside it.
fn has_lost_its_record(folder: &Location) -> bool {
    let text = read_short(&folder.join(METADATA_FILE), JSON_LEN_MAX_BYTES).unwrap_or_default();
    text.windows(BESIDE_REGROW_JSON.len()).any(|part| part == BESIDE_REGROW_JSON.as_bytes())
}

impl Own {
    fn of(folder: &Location) -> Self {
        let has = |name: &str| folder.join(name).is_file();
        let recorded = recorded_names(folder);
        let has_database = match &recorded {
            Some(_) => has(DATABASE_ROOT),
            // Its root may be what is lost. A folder of npy files never had one.
            None => CHECKPOINT_MARKERS.iter().any(|&marker| marker != NPY_MARKER && has(marker)),
        };
        let is_regrow = has(REGROW_MARKER) || has_lost_its_record(folder);
        Self { recorded, is_regrow, has_npy: has(NPY_MARKER), has_database }
    }

    fn has_file(&self, name: &str) -> bool {
        let is_numbered_manifest = name
            .strip_prefix(MANIFEST_PREFIX)
            .is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let is_of_arrays = match &self.recorded {
            Some(recorded) => recorded.contains(name),
            // Then its own kind of name has to be enough.
            None => self.is_regrow && (is_data_file_of_regrow(name) || is_part_of_regrow(name)),
        };
        CHECKPOINT_MARKERS.contains(&name)
            || FILES.contains(&name)
            || is_numbered_manifest
            || is_of_arrays
            || name.ends_with(LOCK_SUFFIX)
            || name.starts_with(DAMAGED_PREFIX)
            || self.has_npy && name.ends_with(NPY_SUFFIX)
    }

    fn has_folder(&self, name: &str) -> bool {
        let is_recorded = || self.recorded.as_ref().is_some_and(|recorded| recorded.contains(name));
        name == METADATAS_FOLDER
            || name.starts_with(FOLDER_PREFIX)
            || name == DATABASE_FOLDER && self.has_database
            || is_recorded()
    }
}

/// Whether regrow gives such a name to the record of what one process has written, or to what it
/// has compressed: `regrow.process_0.json`, `regrow.process_0.zstd`.
fn is_part_of_regrow(name: &str) -> bool {
    let Some(name) = name.strip_prefix("regrow.process_") else { return false };
    [".json", ".zstd"].into_iter().filter_map(|suffix| name.strip_suffix(suffix)).any(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether regrow gives such a name to a file of arrays: `model.safetensors`,
/// `model-00001-of-00002.safetensors`, and `model-00001-of-00002-2.safetensors` for the second file
/// of a process.
fn is_data_file_of_regrow(name: &str) -> bool {
    let stem = name.strip_suffix(".safetensors").and_then(|name| name.strip_prefix("model"));
    stem.is_some_and(|rest| {
        let numbers = rest.strip_prefix('-').and_then(|rest| rest.split_once("-of-"));
        rest.is_empty() || numbers.is_some_and(|(at, count)| is_number(at) && count.split('-').all(is_number))
    })
}

/// The names at the top of the folder that its `regrow.json` lists; `None` without one that can be
/// read.
fn recorded_names(folder: &Location) -> Option<HashSet<String>> {
    #[derive(Deserialize)]
    struct Listed {
        name: String,
    }
    #[derive(Deserialize)]
    struct Lists {
        data_files: Vec<Listed>,
        files: Vec<Listed>,
        #[serde(default)]
        parts: Vec<Part>,
    }
    #[derive(Deserialize)]
    struct Part {
        name: String,
        data_files: Vec<String>,
    }
    let text = read_short(&folder.join(REGROW_MARKER), JSON_LEN_MAX_BYTES)?;
    let Lists { data_files, files, parts } = serde_json::from_slice(&text).ok()?;
    let listed = data_files.iter().chain(&files).map(|listed| &listed.name);
    let of_parts = parts.iter().flat_map(|part| part.data_files.iter().chain([&part.name]));
    let top = |name: &String| name.split('/').next().unwrap_or_default().to_owned();
    Some(listed.chain(of_parts).map(top).collect())
}

/// Whether a folder is an item, an array, a folder of arrays of a long name, or has nothing in it
/// that could be lost.
fn is_part(folder: &Location, has_npy: bool, depth: usize) -> Result<bool> {
    let has = |name: &&str| folder.join(name).is_file();
    if ARRAY_DOCUMENTS.iter().chain(&CHECKPOINT_MARKERS).any(has) {
        return Ok(true);
    }
    for entry in folder.entries()? {
        // Orbax' JSON items: `metrics/metrics`, `config/metadata`.
        let is_document = || entry.name == folder.name() || entry.name == "metadata";
        let is_npy = || has_npy && entry.name.to_string_lossy().ends_with(NPY_SUFFIX);
        let belongs = match is_real_folder(&entry) {
            true => depth > 0 && is_part(&folder.join(&entry.name), has_npy, depth - 1)?,
            false => entry.is_file() && !entry.is_link && (is_document() || is_npy()),
        };
        if !belongs {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The line of a commit marker that says which names belong to a checkpoint of files; nothing if
/// they are too many.
pub(crate) fn note_of_files(names: &[String]) -> String {
    let list = serde_json::json!(names).to_string();
    match list.len() > FILES_LINE_LEN_MAX_BYTES {
        true => String::new(),
        false => format!("\n{FILES_LINE}{list}\n"),
    }
}

/// The names that the marker of a checkpoint notes; `None` if it notes none.
pub(crate) fn noted_files(folder: &Location) -> Option<Vec<String>> {
    let marker = read_short(&folder.join(MARKER), METADATA_LEN_MAX_BYTES)?;
    let text = String::from_utf8(marker).ok()?;
    text.lines().find_map(|line| serde_json::from_str(line.strip_prefix(FILES_LINE)?).ok())
}

/// The names of what the handler of the whole checkpoint has written, as far as the checkpoint says
/// so.
fn names_of_handler(folder: &Location) -> Vec<String> {
    let mut names = noted_files(folder).unwrap_or_default();
    let is_json =
        |handler: &serde_json::Value| handler.as_str().is_some_and(|name| name.ends_with(JSON_HANDLER));
    if handlers_in(folder).as_ref().is_some_and(is_json) {
        names.push(JSON_FILE.to_owned());
    }
    names
}

/// The names of the items that the checkpoint itself lists.
fn item_names(folder: &Location) -> Vec<String> {
    let handlers = handlers_in(folder);
    let items = handlers.as_ref().and_then(serde_json::Value::as_object);
    items.map(|items| items.keys().cloned().collect()).unwrap_or_default()
}

/// What the checkpoint says of its handlers.
fn handlers_in(folder: &Location) -> Option<serde_json::Value> {
    let text = read_short(&folder.join(CHECKPOINT_METADATA_FILE), METADATA_LEN_MAX_BYTES)?;
    // As Python writes it: metrics may be NaN.
    let mut document: serde_json::Value = json_text::parse(&text).ok()?;
    document.get_mut("item_handlers").map(serde_json::Value::take)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_on_its_way_is_told_by_its_name() {
        let seal = crate::seal::FILE_NAME;
        for (name, is_one) in [
            (".0123.__lock".to_owned(), true),
            ("0123.__lock".to_owned(), false),
            (".0123".to_owned(), false),
            (format!("{seal}{UNCOMMITTED_MARK}-0"), true),
            (format!("100{UNCOMMITTED_MARK}-0"), false),
            (seal.to_owned(), false),
        ] {
            assert_eq!(is_on_its_way(&name), is_one, "{name}");
        }
    }

    #[test]
    fn what_is_beside_a_checkpoint_is_told_from_what_is_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("_METADATA", "{\"tree_metadata\": {}, \"what\": \"an Orbax checkpoint\"}");
        for own in ["manifest.0123456789abcdef", ".nfs0001", "x.orbax-checkpoint-tmp-7"] {
            put(own, "...");
        }
        let strangers = || strangers_in(&Location::local(folder.path())).unwrap();
        assert_eq!(strangers(), Vec::<String>::new());
        for stranger in ["manifest.0123", "manifest.not_hexadecimal_", "model.safetensors", "a.npy"] {
            put(stranger, "...");
            assert_eq!(strangers(), [stranger]);
            fs::remove_file(folder.path().join(stranger)).unwrap();
        }
        // Beside a `regrow.json` that is lost, a data file of regrow is one of its own.
        put("_METADATA", "{\"custom_metadata\": {\"beside_regrow_json\": true}}");
        put("model.safetensors", "...");
        assert_eq!(strangers(), Vec::<String>::new());
    }

    /// An overwrite removes every file that regrow would take for its own without a record.
    #[test]
    fn names_of_regrow_are_told_from_those_that_look_like_them() {
        for name in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00001-of-00002-2.safetensors",
            "model-00001-of-00002-2-3.safetensors",
        ] {
            assert!(is_data_file_of_regrow(name), "{name}");
        }
        for name in [
            "models.safetensors",
            "model-.safetensors",
            "model-1.safetensors",
            "model-a-of-00002.safetensors",
            "model-00001-of-b.safetensors",
            "model-00001-of-00002-x.safetensors",
            "model-00001-of-.safetensors",
            "model--of-00002.safetensors",
            "model-00001-of-00002-.safetensors",
            "model-1a-of-2.safetensors",
            "model.safetensors.bak",
            "my-model.safetensors",
        ] {
            assert!(!is_data_file_of_regrow(name), "{name}");
        }
        for name in ["regrow.process_0.json", "regrow.process_12.zstd"] {
            assert!(is_part_of_regrow(name), "{name}");
        }
        for name in [
            "regrow.process_.json",
            "regrow.process_a.json",
            "regrow.process_1a.json",
            "regrow.process_0.txt",
            "regrow.process_0",
            "regrow.process.json",
        ] {
            assert!(!is_part_of_regrow(name), "{name}");
        }
    }

    fn part(folder: &Path, has_npy: bool) -> bool {
        is_part(&Location::local(folder), has_npy, DEPTH_MAX).unwrap()
    }

    #[test]
    fn a_folder_belongs_only_if_all_in_it_does() {
        let root = tempfile::tempdir().unwrap();
        let folder = |files: &[&str]| {
            let folder = root.path().join(format!("case{}", fs::read_dir(root.path()).unwrap().count()));
            fs::create_dir(&folder).unwrap();
            for file in files {
                fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
                fs::write(folder.join(file), "x").unwrap();
            }
            folder
        };
        assert!(part(&folder(&[]), false));
        assert!(part(&folder(&["metadata"]), false));
        let named = folder(&[]);
        fs::write(named.join(named.file_name().unwrap()), "x").unwrap();
        assert!(part(&named, false));
        assert!(part(&folder(&[".zarray", "thesis.txt"]), false));
        assert!(part(&folder(&["a.npy", "b/c.npy"]), true));
        for (files, has_npy) in [
            (&["thesis.txt"][..], false),
            (&["metadata", "thesis.txt"], false),
            (&["a.npy"], false),
            (&["a.npy", "thesis.txt"], true),
            (&["a/b/thesis.txt"], true),
        ] {
            assert!(!part(&folder(files), has_npy), "{files:?} {has_npy}");
        }
        let linked = folder(&[]);
        std::os::unix::fs::symlink("/etc/hostname", linked.join("metadata")).unwrap();
        assert!(!part(&linked, false));
        let linked = folder(&[]);
        std::os::unix::fs::symlink("/tmp", linked.join("inner")).unwrap();
        assert!(!part(&linked, false));
        // As deep as is looked, and one deeper.
        for (depth, belongs) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
            let top = folder(&[]);
            fs::create_dir_all(top.join(vec!["a"; depth].join("/"))).unwrap();
            assert_eq!(part(&top, false), belongs, "{depth}");
        }
    }

    #[test]
    fn the_number_of_named_strangers_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        for (count, named) in [(0, 0), (SHOWN_MAX, SHOWN_MAX), (SHOWN_MAX + 9, SHOWN_MAX + 1)] {
            let folder = root.path().join(count.to_string());
            fs::create_dir(&folder).unwrap();
            (0..count).for_each(|at| fs::write(folder.join(format!("{at}.txt")), "x").unwrap());
            assert_eq!(strangers_in(&Location::local(&folder)).unwrap().len(), named);
        }
    }

    #[test]
    fn long_documents_and_long_lists_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let file = Location::local(root.path().join("x"));
        assert_eq!(read_short(&file, 10), None);
        for (len, is_read) in [(10, true), (11, false)] {
            fs::write(root.path().join("x"), vec![b'x'; len]).unwrap();
            assert_eq!(read_short(&file, 10).is_some(), is_read, "{len}");
        }
        let list = |len: usize| vec!["x".repeat(len - r#"[""]"#.len())];
        for (len, is_noted) in [
            (100, true),
            (FILES_LINE_LEN_MAX_BYTES, true),
            (FILES_LINE_LEN_MAX_BYTES + 1, false),
            (FILES_LINE_LEN_MAX_BYTES + 100, false),
        ] {
            assert_eq!(!note_of_files(&list(len)).is_empty(), is_noted, "{len}");
        }
    }
}
