//! Makes the index of a checkpoint of several files from their headers.

use std::collections::BTreeMap;

use super::Safetensors;
use super::index::{INDEX_SUFFIX, Index};
use super::parts::shard_of;
use super::reader::read_header;
use crate::{RecoveredFile, Recovery};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{ErrorKind, Result, ResultExt};
use regrow_base::text::counted;
use regrow_storage::Entry;
use regrow_storage::location::Location;

impl Recovery for Safetensors {
    fn recover(&self, at: &Location, _other: Option<&Location>) -> Result<Vec<RecoveredFile>> {
        if !at.is_folder() || !at.has_listings() {
            return Ok(Vec::new());
        }
        let entries = at.entries()?.into_iter().filter(Entry::is_file);
        let names: Vec<String> = entries.filter_map(|entry| entry.name.into_string().ok()).collect();
        let mut shards: BTreeMap<(&str, u64), BTreeMap<u64, &str>> = BTreeMap::new();
        for name in &names {
            if let Some((prefix, number, count)) = shard_of(name) {
                shards.entry((prefix, count)).or_default().insert(number, name);
            }
        }
        let mut files = Vec::new();
        for ((prefix, count), shards) in shards {
            let name = format!("{prefix}{INDEX_SUFFIX}");
            let is_complete = count > 1 && shards.keys().copied().eq(1..=count);
            if is_complete && !is_index(&at.join(&name))? {
                let how = format!("of the headers of {}", counted(shards.len(), "file", "files"));
                files.push(RecoveredFile {
                    name,
                    bytes: index_of(at, shards.values().copied())?,
                    how,
                    is_guess: false,
                });
            }
        }
        Ok(files)
    }
}

/// Whether a file is an index that can be read.
fn is_index(at: &Location) -> Result<bool> {
    let read = at.read_document("the index of safetensors files", Language::Json, JSON_LEN_MAX_BYTES);
    match read.and_then(|json| json.map(|json| Index::parse(&json)).transpose()) {
        Ok(index) => Ok(index.is_some()),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit) => Ok(false),
        Err(error) => Err(error),
    }
}

fn index_of<'n>(folder: &Location, names: impl Iterator<Item = &'n str>) -> Result<Vec<u8>> {
    let store = folder.opened()?;
    let mut index = Index::default();
    for name in names {
        let (header, _) = read_header(&*store, name.as_ref()).in_file(folder.join(name))?;
        for tensor in &header.tensors {
            index.insert(&tensor.name, name, tensor.len_bytes);
        }
    }
    index.to_json_lines()
}
