//! Reads the JSON files of a store once: `metadata.json`, `experiments.json` and the files
//! `id_<ID>.json`. The catalog has the content of sound files, and an error for each damaged file.
//!
//! An `id_*.json` in a deeper folder is a backup, and is not read. A file `id_<ID>.json` has the
//! flags of model `<ID>`. A file that names another model is damaged: if two files named one model,
//! TRAK would use the flags from the file that it reads last.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::documents::{Experiment, ModelFlags, read_flags, read_object};
use super::layout::{EXPERIMENTS_FILE, METADATA_FILE, id_text, model_folder_id};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::is_desktop_file;

/// The content of a folder's JSON files.
#[derive(Debug, Default)]
pub struct Catalog {
    /// `metadata.json`, if it is there and sound.
    pub metadata: Option<Map<String, Value>>,
    /// The registered models.
    pub models: BTreeMap<i64, ModelFlags>,
    /// `experiments.json`, if it is there and sound: the records in their order.
    pub experiments: Option<Map<String, Value>>,
    /// Files that cannot be used.
    pub faults: Vec<DamagedFile>,
}

/// A file of the folder that cannot be used, in whole or in part.
#[derive(Debug)]
pub struct DamagedFile {
    /// The name of the file.
    pub file: String,
    /// The damage.
    pub error: Error,
}

impl Catalog {
    /// Reads the JSON files of `root`. Errs only if the folder cannot be listed.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        catalog.metadata = catalog.keep(METADATA_FILE, read_object(&root.join(METADATA_FILE))).flatten();
        let records = catalog.keep(EXPERIMENTS_FILE, read_object(&root.join(EXPERIMENTS_FILE))).flatten();
        for (name, record) in records.iter().flatten() {
            let record = Experiment::from_record(name, record).in_file(root.join(EXPERIMENTS_FILE));
            catalog.keep(EXPERIMENTS_FILE, record);
        }
        catalog.experiments = records;
        for file in id_files(root)? {
            let flags = catalog.keep(&file, read_flags(root, &file));
            catalog.models.extend(flags);
        }
        Ok(catalog)
    }

    /// The record of an experiment.
    pub(super) fn experiment(&self, root: &Path, name: &str) -> Result<Experiment> {
        let record = self.experiments.as_ref().and_then(|records| records.get(name));
        let missing = || Error::new(ErrorKind::NotFound, format!("experiment {name:?} does not exist"));
        let found = record.ok_or_else(missing).and_then(|record| Experiment::from_record(name, record));
        found.in_file(root.join(EXPERIMENTS_FILE))
    }

    fn keep<T>(&mut self, file: &str, read: Result<T>) -> Option<T> {
        let fault = |error| DamagedFile { file: file.to_owned(), error };
        read.map_err(|error| self.faults.push(fault(error))).ok()
    }
}

/// The names of files of flags directly in `root`, sorted. The list also has entries with such
/// names that are not files: they are damage.
pub(super) fn id_files(root: &Path) -> Result<Vec<String>> {
    let mut names = names_in(root)?;
    names.retain(|name| id_text(name).is_some());
    Ok(names)
}

/// The models that have a folder, registered or not.
pub(super) fn model_folders(root: &Path) -> Result<Vec<i64>> {
    let names = names_in(root)?;
    let mut ids: Vec<i64> = names.iter().filter_map(|name| model_folder_id(name)).collect();
    ids.retain(|id| root.join(id.to_string()).is_dir());
    ids.sort_unstable();
    Ok(ids)
}

/// Names in a folder, sorted, without names that are not UTF-8.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>> {
    let cannot_list = |error| Error::io("cannot list", folder, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot_list)? {
        let name = entry.map_err(cannot_list)?.file_name().into_string();
        names.extend(name.ok().filter(|name| !is_desktop_file(name)));
    }
    names.sort();
    Ok(names)
}
