//! The readable part of a damaged database: its readable nodes, and the databases of the processes.

use std::collections::BTreeMap;

use super::files::{Listed, list};
use super::marker_files::MANIFEST_FILE;
use super::opened::Wanted;
use regrow_base::error::{Error, Result};
pub(super) use regrow_ocdbt::DATA_FOLDER;
use regrow_ocdbt::{self, OcdbtStore};
use regrow_storage::location::Location;
use regrow_store::Located;

/// The entries of a folder's database, without those below unreadable nodes, and the error of the
/// first of these nodes. If the root record is lost, returns the entries of the processes'
/// databases and the error of the record.
pub(super) fn entries_there(folder: &Location) -> Result<(regrow_ocdbt::Listed, Option<Error>)> {
    let database = OcdbtStore::open(folder.opened()?).and_then(|database| database.entries_there());
    let lost = match database {
        Err(error) if error.kind().is_damage() => error,
        database => return database,
    };
    let mut merged: BTreeMap<Vec<u8>, Located> = BTreeMap::new();
    for (_, name) in list(folder)?.iter().filter_map(process_of) {
        let database =
            OcdbtStore::open(folder.join(name).opened()?).and_then(|database| database.entries_there());
        // Keys that several processes have written, such as documents, have equal values.
        let (entries, _) = Wanted::Intact.or_lost(database)?.unwrap_or_default();
        for (key, located) in entries {
            merged.entry(key).or_insert(located);
        }
    }
    if merged.is_empty() { Err(lost) } else { Ok((merged.into_iter().collect(), Some(lost))) }
}

/// The prefix of the folder of one process' database.
pub const PROCESS_PREFIX: &str = "ocdbt.process_";

/// The number of a process and the folder name of its database; `None` for any other folder.
pub(super) fn process_of(entry: &Listed) -> Option<(u32, &str)> {
    let number = entry.name.strip_prefix(PROCESS_PREFIX)?.parse().ok()?;
    entry.is_dir.then_some((number, entry.name.as_str()))
}

const DATA_NAME_LEN: usize = 32;

/// The error for a folder that has the data files of a database but no root record; `None` for any
/// other folder. All names in the `d/` of a database are names of data files.
pub(super) fn lost_manifest(at: &Location, listed: &[Listed]) -> Result<Option<Error>> {
    let has_data = listed.iter().any(|entry| entry.is_dir && entry.name == DATA_FOLDER);
    if !has_data || listed.iter().any(|entry| entry.name == MANIFEST_FILE) {
        return Ok(None);
    }
    let files = list(&at.join(DATA_FOLDER))?;
    let is_data = |entry: &Listed| {
        !entry.is_dir
            && entry.name.len() == DATA_NAME_LEN
            && entry.name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    Ok((!files.is_empty() && files.iter().all(is_data)).then(|| {
        Error::corrupt("the database that holds the arrays has no manifest")
            .in_file(at.join(MANIFEST_FILE))
            .help("copy the whole checkpoint again, with all its files")
    }))
}
