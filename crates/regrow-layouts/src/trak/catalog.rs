//! Reads the JSON files of a folder once. The catalog has the sound files and the damaged ones.
//!
//! Only `id_*.json` directly in the folder count: a copy in a deeper folder is a backup. As in
//! TRAK, the ID inside a file counts, not the file's name. If two files hold flags of one model,
//! the file named after the model counts, and the catalog lists the other one as spare.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::documents::{Experiment, ModelFlags, read_flags, read_object};
use super::layout::{EXPERIMENTS_FILE, METADATA_FILE, id_file, id_text, model_folder_id, parse_id};
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
    /// Files with flags of models whose flags are in another file.
    pub spare: Vec<SpareFlags>,
    /// Files that cannot be used.
    pub faults: Vec<DamagedFile>,
}

/// The flags of a model in a file that does not count. TRAK takes the file that it happens to read
/// last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareFlags {
    /// The file that does not count.
    pub file: String,
    /// The model.
    pub id: i64,
    /// The flags in that file.
    pub flags: ModelFlags,
    /// The file that counts.
    pub counts: String,
}

/// A file of the folder that cannot be used, or a part of it.
#[derive(Debug)]
pub struct DamagedFile {
    /// Whose file it is.
    pub subject: Subject,
    /// The damage.
    pub error: Error,
}

/// The subject of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// `metadata.json`.
    Metadata,
    /// `experiments.json`, or a record in it.
    Experiments,
    /// The flags of a model, with the number in the name of the file if the name has one.
    Model(Option<i64>),
}

impl Catalog {
    /// Reads the JSON files of `root`. Errs only if the folder cannot be listed.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        catalog.metadata = catalog.object(root, METADATA_FILE, Subject::Metadata);
        catalog.experiments = catalog.object(root, EXPERIMENTS_FILE, Subject::Experiments);
        for (name, record) in catalog.experiments.iter().flatten() {
            if let Err(error) = Experiment::from_record(name, record) {
                let error = error.in_file(root.join(EXPERIMENTS_FILE));
                catalog.faults.push(DamagedFile { subject: Subject::Experiments, error });
            }
        }
        let mut from_file: BTreeMap<i64, String> = BTreeMap::new();
        for name in id_files(root)? {
            let models = match read_flags(&root.join(&name)) {
                Ok(models) => models,
                Err(error) => {
                    let subject = Subject::Model(id_text(&name).and_then(parse_id));
                    catalog.faults.push(DamagedFile { subject, error });
                    continue;
                }
            };
            for (id, flags) in models {
                let counts = from_file.get(&id).filter(|known| **known == id_file(id)).cloned();
                let spare = match counts {
                    Some(counts) => Some(SpareFlags { file: name.clone(), id, flags, counts }),
                    None => {
                        let before = catalog.models.insert(id, flags);
                        let file = from_file.insert(id, name.clone());
                        let spare = |(file, flags)| SpareFlags { file, id, flags, counts: name.clone() };
                        file.zip(before).map(spare)
                    }
                };
                catalog.spare.extend(spare);
            }
        }
        Ok(catalog)
    }

    /// The record of an experiment.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Corrupt` if it, or the file, cannot be used.
    pub(super) fn experiment(&self, root: &Path, name: &str) -> Result<Experiment> {
        let record = self.experiments.as_ref().and_then(|records| records.get(name));
        let missing = || Error::new(ErrorKind::NotFound, format!("experiment {name:?} does not exist"));
        let found = record.ok_or_else(missing).and_then(|record| Experiment::from_record(name, record));
        found.in_file(root.join(EXPERIMENTS_FILE))
    }

    fn object(&mut self, root: &Path, name: &str, subject: Subject) -> Option<Map<String, Value>> {
        read_object(&root.join(name)).unwrap_or_else(|error| {
            self.faults.push(DamagedFile { subject, error });
            None
        })
    }
}

/// The names of files of flags directly in `root`, sorted. An entry of such a name that is no file
/// is damage.
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
