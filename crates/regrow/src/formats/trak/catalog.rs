//! What a folder says of itself: its JSON files, read once, each fault kept beside what is sound.
//!
//! Only `id_*.json` directly in the folder count: a backup somewhere below is no live data. An ID
//! inside a file counts more than the file's name, as in TRAK; where two files speak of one model,
//! the one named after it wins, and the other is remembered.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::documents::{Experiment, ModelFlags, flags_in, read_object};
use super::layout::{EXPERIMENTS_FILE, METADATA_FILE, id_file, id_text, model_folder_id, parse_id};
use crate::error::{Error, Result, ResultExt};
use crate::storage::is_desktop_file;

/// What a folder says of itself.
#[derive(Debug, Default)]
pub struct Catalog {
    /// `metadata.json`, if it is there and sound.
    pub metadata: Option<Map<String, Value>>,
    /// The registered models.
    pub models: BTreeMap<i64, ModelFlags>,
    /// `experiments.json`, if it is there and sound: the records as they stand, in their order.
    pub experiments: Option<Map<String, Value>>,
    /// Files of flags for models whose flags are in another file.
    pub spare: Vec<SpareFlags>,
    /// What is wrong, each with its file.
    pub faults: Vec<Fault>,
}

/// The flags of a model in a file that does not count. TRAK takes the file that it happens to read
/// last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareFlags {
    /// The file that does not count.
    pub file: String,
    /// The model.
    pub id: i64,
    /// What the file says.
    pub flags: ModelFlags,
    /// The file that counts.
    pub counts: String,
}

/// A file of the folder that cannot be used, or says what cannot be.
#[derive(Debug)]
pub struct Fault {
    /// What it concerns.
    pub subject: Subject,
    /// What is wrong.
    pub error: Error,
}

/// What a fault concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// `metadata.json`.
    Metadata,
    /// `experiments.json`, or a record in it.
    Experiments,
    /// The flags of a model, with its number from the name of the file if the name has one.
    Model(Option<i64>),
}

impl Catalog {
    /// Reads the JSON files of `root`.
    ///
    /// # Errors
    /// Only if the folder cannot be listed.
    pub fn read(root: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        catalog.metadata = catalog.object(root, METADATA_FILE, Subject::Metadata);
        catalog.experiments = catalog.object(root, EXPERIMENTS_FILE, Subject::Experiments);
        for (name, record) in catalog.experiments.iter().flatten() {
            if let Err(error) = Experiment::from_record(name, record) {
                let error = error.in_file(root.join(EXPERIMENTS_FILE));
                catalog.faults.push(Fault { subject: Subject::Experiments, error });
            }
        }
        let mut from_file: BTreeMap<i64, String> = BTreeMap::new();
        for name in id_files(root)? {
            let meant = id_text(&name).and_then(parse_id);
            let path = root.join(&name);
            let found =
                read_object(&path).and_then(|object| flags_in(&object.unwrap_or_default()).in_file(&path));
            let models = match found {
                Ok(models) => models,
                Err(error) => {
                    catalog.faults.push(Fault { subject: Subject::Model(meant), error });
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
    pub fn experiment(&self, root: &Path, name: &str) -> Result<Experiment> {
        let file = root.join(EXPERIMENTS_FILE);
        match self.experiments.as_ref().and_then(|records| records.get(name)) {
            Some(record) => Experiment::from_record(name, record).in_file(file),
            None => Err(Error::new(crate::ErrorKind::NotFound, format!("there is no experiment {name:?}"))
                .in_file(file)),
        }
    }

    fn object(&mut self, root: &Path, name: &str, subject: Subject) -> Option<Map<String, Value>> {
        match read_object(&root.join(name)) {
            Ok(object) => object,
            Err(error) => {
                self.faults.push(Fault { subject, error });
                None
            }
        }
    }
}

/// The names of files of flags directly in `root`, sorted; what has such a name and is no file is
/// damage.
///
/// # Errors
/// If the folder cannot be listed.
pub fn id_files(root: &Path) -> Result<Vec<String>> {
    let mut names = names_in(root)?;
    names.retain(|name| id_text(name).is_some());
    Ok(names)
}

/// The models that have a folder, registered or not.
///
/// # Errors
/// If the folder cannot be listed.
pub fn model_folders(root: &Path) -> Result<Vec<i64>> {
    let names = names_in(root)?;
    let mut ids: Vec<i64> = names.iter().filter_map(|name| model_folder_id(name)).collect();
    ids.retain(|id| root.join(id.to_string()).is_dir());
    ids.sort_unstable();
    Ok(ids)
}

/// Names in a folder, sorted, without names that are not UTF-8.
///
/// # Errors
/// If the folder cannot be listed.
pub fn names_in(folder: &Path) -> Result<Vec<String>> {
    let cannot_list = |error| Error::io("cannot list", folder, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot_list)? {
        let name = entry.map_err(cannot_list)?.file_name().into_string();
        names.extend(name.ok().filter(|name| !is_desktop_file(name)));
    }
    names.sort();
    Ok(names)
}
