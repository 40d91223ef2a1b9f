//! The OCDBT database of a save. Without compression it is made while the data files are
//! written; with compression, after the compressed chunks are written.

use super::super::manifest::uuid_text;
use super::index::{RawEntries, to_list};
use super::place::PlacedFile;
use super::plan::Plan;
use super::small_files::SmallFiles;
use crate::options::{Compression, SaveOptions};
use regrow_base::error::Result;
use regrow_ocdbt::{
    Database, Entries, EntryValue, OcdbtConfig, random_data_file_name, write_database, write_sorted,
};

/// The target length of a node of the database, decoded.
const NODE_LEN_BYTES: u32 = 2 << 20;

/// The OCDBT database, or its first entries while others are missing.
pub(super) enum Index {
    /// The entries so far: the chunks of compressed leaves are not yet written.
    Entries(Vec<(Vec<u8>, EntryValue)>),
    Database(String, Database),
    /// No database, because the tree has no array data.
    Nothing,
}

impl Index {
    pub fn new(plan: &Plan<'_>, files: &[PlacedFile], options: &SaveOptions) -> Result<Self> {
        let entries = RawEntries::new(plan, files.iter().map(|file| file.name.as_str()))?;
        if matches!(options.compression, Some(Compression::Zstd(_))) {
            return Ok(Self::Entries(to_list(&entries)));
        }
        match entries.are_in_order() {
            true => Self::of_sorted(&entries),
            false => Self::of_all(to_list(&entries)),
        }
    }

    pub fn of_sorted(entries: &impl Entries) -> Result<Self> {
        if entries.count() == 0 {
            return Ok(Self::Nothing);
        }
        let node_file = random_data_file_name()?;
        let database = write_sorted(&ocdbt_config(), entries, &node_file, 0)?;
        Ok(Self::Database(node_file, database))
    }

    pub fn of_all(entries: Vec<(Vec<u8>, EntryValue)>) -> Result<Self> {
        if entries.is_empty() {
            return Ok(Self::Nothing);
        }
        let node_file = random_data_file_name()?;
        let database = write_database(&ocdbt_config(), entries, &node_file, 0)?;
        Ok(Self::Database(node_file, database))
    }

    /// Writes the files of the database, and returns its UUID for `regrow.json`; `None` without a
    /// database.
    pub fn write(self, small: &mut SmallFiles<'_>) -> Result<Option<String>> {
        let Self::Database(node_file, database) = self else { return Ok(None) };
        small.write_whole(&node_file, &database.nodes)?;
        for (name, bytes) in &database.manifests {
            small.write_whole(name, bytes)?;
        }
        Ok(Some(uuid_text(&database.uuid)))
    }
}

/// Orbax' configuration, but with nodes that several threads can encode. Orbax' node of 100 MB
/// would be encoded by one thread, and reading one key would read all of it.
fn ocdbt_config() -> OcdbtConfig {
    OcdbtConfig { max_decoded_node_bytes: NODE_LEN_BYTES, zstd_level: Some(1), ..OcdbtConfig::orbax() }
}
