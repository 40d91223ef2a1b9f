//! Files of a checkpoint that can be made from its other files.
//!
//! ```text
//! manifest.ocdbt         from the databases of the processes: ocdbt.process_<n>/manifest.ocdbt
//! _METADATA              from another step of the same tree, or from the names of the arrays
//! _CHECKPOINT_METADATA   from the folders beside it; if it is damaged, or missing in the v1 layout
//! regrow.items.json      from a replica, if all files agree with its record
//! commit_success.txt     in a bucket, if _CHECKPOINT_METADATA has a commit time and all items exist
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Orbax;
use super::arrays::{names_of_folders, names_of_keys};
use super::bare;
use super::checkpoint_metadata::{
    CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers, PYTREE_HANDLER, V1_METRICS_HANDLER,
    V1_PYTREE_HANDLER,
};
use super::entry::Entry;
use super::files::{Listed, list, read_small};
use super::left::{PROCESS_PREFIX, process_of};
use super::marker_files::{COMMIT_SUCCESS_FILE, MANIFEST_FILE, V1_MARKER_FILE};
use super::metadata::{METADATA_FILE, TreeMetadata};
use super::open::{deleted_item, missing_item};
use super::steps::TMP_MARK;
use super::strings::{STRINGS_FILE, Strings};
use super::structure;
use super::writer::documents::COMMIT_TEXT;
use crate::items_record::{self, ItemsRecord};
use crate::{RecoveredFile, Recovery, SummedFile, is_marked, regrow};
use regrow_base::bytes::side_document::now_unix_ns;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::counted;
use regrow_ocdbt::{EntryValue, OcdbtConfig, OcdbtStore, random_data_file_name, write_database};
use regrow_storage::location::Location;
use regrow_store::Located;

/// The bytes at the start of a file that are read to see whether the file is all zeros.
const GLANCE_LEN_BYTES: u64 = 4096;

const METRICS: &str = "metrics";

impl Recovery for Orbax {
    fn recover(&self, at: &Location, other: Option<&Location>) -> Result<Vec<RecoveredFile>> {
        if !at.is_folder() {
            return Ok(Vec::new());
        }
        let folder = Folder { at, listed: list(at)? };
        // The default layout rebuilds its own files better.
        if folder.has(regrow::manifest::FILE_NAME) || folder.is_beside_regrow_json() {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        // A folder of items is not a pytree. Its items may have any names and contents.
        if !folder.has_items() {
            let entries = folder.database(&mut files)?;
            folder.metadata(entries.as_deref(), other, &mut files)?;
        }
        folder.checkpoint_metadata(&mut files)?;
        folder.items_record(other, &mut files)?;
        folder.marker(&mut files)?;
        Ok(files)
    }

    fn summed_files(&self, at: &Location) -> Result<Option<Vec<SummedFile>>> {
        match ItemsRecord::of(at) {
            Ok(record) => record.map(|record| record.summed_files()).transpose(),
            Err(error) if error.kind().is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The folder of a checkpoint, or of an item.
struct Folder<'a> {
    at: &'a Location,
    listed: Vec<Listed>,
}

impl Folder<'_> {
    fn has(&self, file: &str) -> bool {
        self.listed.iter().any(|entry| !entry.is_dir && entry.name == file)
    }

    fn has_items(&self) -> bool {
        let about = || read_small(&self.at.join(CHECKPOINT_METADATA_FILE)).ok().flatten();
        let about = || about().and_then(|bytes| CheckpointMetadata::parse(&bytes).ok());
        self.has(items_record::FILE_NAME)
            || about().is_some_and(|about| matches!(about.item_handlers, ItemHandlers::Many(_)))
    }

    fn is_beside_regrow_json(&self) -> bool {
        self.read_metadata(self.at).is_ok_and(|metadata| metadata.is_some_and(|it| it.beside_regrow_json))
    }

    fn read_metadata(&self, at: &Location) -> Result<Option<TreeMetadata>> {
        read_small(&at.join(METADATA_FILE))?.map(|bytes| TreeMetadata::parse(&bytes)).transpose()
    }

    /// The keys of the database, if there is one. If its root record is lost, rebuilds the record
    /// from the databases of the processes.
    fn database(&self, files: &mut Vec<RecoveredFile>) -> Result<Option<Vec<Vec<u8>>>> {
        let mut processes: Vec<(u32, &str)> = self.listed.iter().filter_map(process_of).collect();
        processes.sort_unstable();
        if !self.has(MANIFEST_FILE) && processes.is_empty() {
            return Ok(None);
        }
        let opened = OcdbtStore::open(self.at.opened()?).and_then(|database| database.entries());
        match opened {
            Ok(entries) => return Ok(Some(entries.into_iter().map(|(key, _)| key).collect())),
            Err(error) if processes.is_empty() || !is_lost(&error) => return Err(error),
            Err(_) => {}
        }
        // If a database is missing, its chunks are missing, too. Readers would read them as zeros
        // if the checkpoint leaves out chunks of zeros.
        if let Some((missing, _)) = (0..).zip(&processes).find(|(at, (number, _))| at != number) {
            return Err(Error::corrupt("the database of a process is missing")
                .in_file(self.at.join(format!("{PROCESS_PREFIX}{missing}")))
                .help("copy the checkpoint again, with all its folders"));
        }
        let mut merged: BTreeMap<Vec<u8>, EntryValue> = BTreeMap::new();
        for (_, name) in &processes {
            let folder = self.at.join(name);
            let entries = OcdbtStore::open(folder.opened()?).and_then(|database| database.entries());
            let base: Arc<[u8]> = Arc::from(format!("{name}/").as_bytes());
            for (key, located) in entries.in_file(&folder)? {
                // Keys that several processes have written, such as documents, have equal values.
                merged.entry(key).or_insert_with(|| below(&base, located));
            }
        }
        let keys = merged.keys().cloned().collect();
        let node_file = random_data_file_name()?;
        let database = write_database(&OcdbtConfig::orbax(), merged.into_iter().collect(), &node_file, 0)?;
        let how = format!(
            "rebuilt from the {}",
            counted(processes.len(), "database that a process wrote", "databases that the processes wrote")
        );
        let nodes = Some((node_file, database.nodes)).filter(|(_, nodes)| !nodes.is_empty());
        let made = nodes.into_iter().chain(database.manifests);
        files.extend(made.map(|(name, bytes)| RecoveredFile {
            name,
            bytes,
            how: how.clone(),
            is_guess: false,
        }));
        Ok(Some(keys))
    }

    fn metadata(
        &self,
        keys: Option<&[Vec<u8>]>,
        other: Option<&Location>,
        files: &mut Vec<RecoveredFile>,
    ) -> Result<()> {
        match self.read_metadata(self.at) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            Err(error) if is_lost(&error) => {}
            Err(error) => return Err(error),
        }
        let (names, use_zarr3) = match keys {
            Some(keys) => names_of_keys(keys.iter().map(Vec::as_slice)),
            None => names_of_folders(self.at, &self.listed),
        };
        if names.is_empty() {
            return Ok(());
        }
        let name = METADATA_FILE.to_owned();
        let theirs = |other| Some((metadata_of(other, &names, keys.is_some())?, other.describe()));
        if let Some((bytes, from)) = other.and_then(theirs) {
            let how = format!(
                "taken from {}, which has arrays of the same names, without its own metadata",
                from.display()
            );
            files.push(RecoveredFile { name, bytes, how, is_guess: true });
            return Ok(());
        }
        let mut metadata = TreeMetadata {
            use_ocdbt: Some(keys.is_some()),
            use_zarr3,
            store_array_data_equal_to_fill_value: true,
            ..TreeMetadata::of_names(names.iter())
        };
        let texts = self.names_of_texts()?;
        metadata.add_texts(texts.iter().filter(|name| !names.contains(*name)));
        // Do not replace a damaged file, which can be repaired by hand. Do not guess if the
        // checkpoint opens without the file.
        if !self.is_gone(METADATA_FILE)? || !bare::had_metadata(self.at, &self.listed) {
            return Ok(());
        }
        structure::build(&metadata).in_file(self.at.join(METADATA_FILE))?;
        let how = "rebuilt from the names of the arrays and texts: lists and tuples became dicts, numbers \
            and JAX arrays became NumPy arrays, and empty containers are lost"
            .to_owned();
        files.push(RecoveredFile { name, bytes: metadata.to_json()?, how, is_guess: true });
        Ok(())
    }

    fn names_of_texts(&self) -> Result<Vec<String>> {
        match read_small(&self.at.join(STRINGS_FILE))?.map(|bytes| Strings::parse(&bytes)).transpose() {
            Ok(strings) => Ok(strings.map(|strings| strings.names()).unwrap_or_default()),
            // A damaged document gives no names.
            Err(error) if is_lost(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether nothing is left of a file: no file, or zeros that were never written.
    fn is_gone(&self, file: &str) -> Result<bool> {
        let bytes = self.at.join(file).read_beginning(GLANCE_LEN_BYTES)?;
        Ok(bytes.is_none_or(|bytes| bytes.iter().all(|&byte| byte == 0)))
    }

    /// Rebuilds a damaged `_CHECKPOINT_METADATA`, because all readers read it first. Rebuilds a
    /// missing file only in the v1 layout: the v1 API cannot open a checkpoint without it.
    fn checkpoint_metadata(&self, files: &mut Vec<RecoveredFile>) -> Result<()> {
        let is_v1 = self.has(V1_MARKER_FILE);
        let read = read_small(&self.at.join(CHECKPOINT_METADATA_FILE))
            .and_then(|bytes| bytes.map(|bytes| CheckpointMetadata::parse(&bytes)).transpose());
        match read {
            Ok(Some(_)) => return Ok(()),
            // Checkpoints of old versions have no such file.
            Ok(None) if !is_v1 => return Ok(()),
            Ok(None) => {}
            Err(error) if is_lost(&error) => {}
            Err(error) => return Err(error),
        }
        let item_handlers = match is_v1 || !self.has(METADATA_FILE) {
            true => ItemHandlers::Many(self.listed.iter().filter_map(|entry| self.item(entry)).collect()),
            false => ItemHandlers::One(PYTREE_HANDLER.to_owned()),
        };
        let now = Some(now_unix_ns());
        let metadata = CheckpointMetadata {
            item_handlers,
            init_timestamp_nsecs: now,
            commit_timestamp_nsecs: now,
            ..CheckpointMetadata::default()
        };
        files.push(RecoveredFile {
            name: CHECKPOINT_METADATA_FILE.to_owned(),
            bytes: metadata.to_json()?,
            how: "rebuilt from the existing items; its times are those of the repair, and your metadata in \
                it is lost"
                .to_owned(),
            is_guess: true,
        });
        Ok(())
    }

    /// Copies the record of the items from a replica, if it is lost here.
    fn items_record(&self, other: Option<&Location>, files: &mut Vec<RecoveredFile>) -> Result<()> {
        let Some(other) = other else { return Ok(()) };
        match ItemsRecord::of(self.at) {
            Ok(None) => {
                let marker = read_small(&self.at.join(COMMIT_SUCCESS_FILE)).ok().flatten();
                if !marker.is_some_and(|marker| items_record::is_noted(&marker)) {
                    return Ok(());
                }
            }
            Ok(Some(_)) => return Ok(()),
            Err(error) if is_lost(&error) => {}
            Err(error) => return Err(error),
        }
        let name = items_record::FILE_NAME.to_owned();
        let Ok(Some(bytes)) = read_small(&other.join(&name)) else { return Ok(()) };
        let Ok(theirs) = ItemsRecord::parse(&bytes) else { return Ok(()) };
        let store = self.at.opened()?;
        for file in &theirs.files {
            if ItemsRecord::look(&*store, file)?.is_some() {
                return Ok(());
            }
        }
        let how = format!("taken from {}: it fits all files", other.describe().display());
        files.push(RecoveredFile { name, bytes, how, is_guess: false });
        Ok(())
    }

    fn item(&self, entry: &Listed) -> Option<(String, Option<String>)> {
        if !entry.is_dir || entry.name.contains(TMP_MARK) {
            return None;
        }
        let handler = match entry.name.as_str() {
            METRICS => Some(V1_METRICS_HANDLER),
            name => self.at.join(name).join(METADATA_FILE).is_file().then_some(V1_PYTREE_HANDLER),
        };
        Some((entry.name.clone(), handler.map(str::to_owned)))
    }

    /// An item that is missing. The checkpoint must not count as complete without it.
    fn missing_item(&self, metadata: &CheckpointMetadata) -> Result<Option<String>> {
        let ItemHandlers::Many(handlers) = &metadata.item_handlers else { return Ok(None) };
        let deleted = deleted_item(self.at)?;
        let is_there = |item: &String| self.listed.iter().any(|entry| entry.is_dir && entry.name == *item);
        let mut items = handlers.iter().map(|(item, _)| item);
        Ok(items.find(|item| !is_there(item) && deleted.as_ref() != Some(item)).cloned())
    }

    fn marker(&self, files: &mut Vec<RecoveredFile>) -> Result<()> {
        if !self.at.commits_by_marker() || is_marked(self.at)? {
            return Ok(());
        }
        let Some(bytes) = read_small(&self.at.join(CHECKPOINT_METADATA_FILE))? else { return Ok(()) };
        let metadata = CheckpointMetadata::parse(&bytes).ok();
        // Orbax sets this time after it has written all other files.
        if let Some(metadata) = metadata.filter(|metadata| metadata.commit_timestamp_nsecs.is_some()) {
            match self.missing_item(&metadata)? {
                None => {}
                // Rebuild the other files first.
                Some(_) if !files.is_empty() => return Ok(()),
                Some(item) => return Err(missing_item(self.at, &item)),
            }
            files.push(RecoveredFile {
                name: COMMIT_SUCCESS_FILE.to_owned(),
                bytes: COMMIT_TEXT.as_bytes().to_vec(),
                how: format!("{CHECKPOINT_METADATA_FILE} says when the checkpoint was committed"),
                is_guess: false,
            });
        }
        Ok(())
    }
}

/// A value of the database in the folder `base`, as a database in the folder above refers to it.
fn below(base: &Arc<[u8]>, located: Located) -> EntryValue {
    match located {
        Located::Inline(bytes) => EntryValue::Inline(bytes),
        Located::At(span) => EntryValue::Indirect {
            base: Arc::clone(base),
            relative: span.key,
            offset_bytes: span.offset_bytes,
            len_bytes: span.len_bytes,
        },
    }
}

/// Whether an error means that a file is damaged or missing, and not only that access is denied.
fn is_lost(error: &Error) -> bool {
    error.kind().is_of_content() || error.kind() == ErrorKind::NotFound
}

/// The `_METADATA` of a replica or another step, if it describes the same arrays.
fn metadata_of(other: &Location, names: &BTreeSet<String>, use_ocdbt: bool) -> Option<Vec<u8>> {
    let bytes = read_small(&other.join(METADATA_FILE)).ok()??;
    let theirs = TreeMetadata::parse(&bytes).ok()?;
    let stored = theirs.entries.iter().filter(|entry| {
        let is_elsewhere = matches!(entry.value_type.as_str(), "string" | "placeholder");
        !is_elsewhere && !entry.skip_deserialize
    });
    let is_same = stored.map(Entry::param_name).collect::<BTreeSet<_>>() == *names
        && theirs.use_ocdbt.unwrap_or(use_ocdbt) == use_ocdbt
        && !theirs.beside_regrow_json;
    // Leave out the user's metadata, which belongs to the other step.
    match theirs.custom_metadata {
        _ if !is_same => None,
        None => Some(bytes),
        Some(_) => TreeMetadata { custom_metadata: None, ..theirs }.to_json().ok(),
    }
}
