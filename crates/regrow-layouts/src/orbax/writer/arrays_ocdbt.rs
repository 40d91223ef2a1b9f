//! Arrays in one OCDBT database, in Orbax' form.
//!
//! ```text
//! ocdbt.process_<n>/d/<hex>          chunks above 1024 bytes; each worker writes its own files.
//!                                    If one process saves alone, one of these files ends with
//!                                    the nodes of its database; otherwise the nodes have a file
//! ocdbt.process_<n>/manifest.ocdbt   the process' own database
//! d/<hex>                            nodes of the merged database: zarr documents and small chunks inline, the
//!                                    others by reference to ocdbt.process_<n>/d/<hex>
//! manifest.ocdbt                     the merged database, written last
//! ```
//!
//! Readers need only the merged database. A value is never divided, so a data file ends with the
//! value that reaches the target size. A process needs memory for its keys, about 200 bytes for
//! each, and for the buffers of the workers. The process that merges needs memory for the keys of
//! all processes.

use std::sync::Arc;

use bytes::Bytes;

use super::chunking::DATA_FILE_BYTES_DEFAULT;
use super::encode::{Encoded, PlannedArray};
use super::names::kvstore_key;
use super::workers::{self, Batch};
use crate::WriterRank;
use crate::options::OrbaxOptions;
use regrow_base::error::{Result, ResultExt};
use regrow_ocdbt::{EntryValue, OcdbtConfig, random_data_file_name, write_database};
use regrow_storage::NewFolder;
use regrow_store::FileWriter;

pub(super) fn process_folder(rank: u32) -> String {
    format!("ocdbt.process_{rank}/")
}

pub(super) type Entries = Vec<(Vec<u8>, EntryValue)>;

/// The position of the nodes of a process' database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nodes {
    /// After the data in one of the data files.
    BehindData,
    /// In a file of their own, so that process 0 can read them without the data.
    OwnFile,
}

/// The database of one process.
#[derive(Debug)]
pub(super) struct ProcessDatabase {
    /// The entries of the database. Names of data files are relative to the process' folder.
    pub(super) entries: Entries,
    /// The separate file of the nodes; `None` if a data file has them.
    pub(super) node_file: Option<String>,
}

/// Writes the arrays of this process below `item`, which is empty or a folder name that ends in
/// `/`.
pub(super) fn write_process(
    arrays: &[PlannedArray<'_>],
    writer: WriterRank,
    nodes: Nodes,
    staged: &dyn NewFolder,
    item: &str,
    options: (&OrbaxOptions, Option<u64>),
) -> Result<ProcessDatabase> {
    let (orbax, budget_bytes) = options;
    let config = OcdbtConfig::orbax();
    let worker_count = workers::worker_count(arrays, budget_bytes);
    let folder = format!("{item}{}", process_folder(writer.rank));
    let files = DataFiles {
        staged,
        folder: folder.clone(),
        inline_max_bytes: config.max_inline_value_bytes as usize,
        target_bytes: match orbax.ocdbt_target_data_file_size.unwrap_or(DATA_FILE_BYTES_DEFAULT) {
            0 => u64::MAX,
            bytes => bytes,
        },
        expected_len_bytes: workers::expected_file_len_bytes(arrays, worker_count),
        has_documents: writer.rank == 0,
    };
    let done = workers::run(arrays, worker_count, |queue| {
        let mut worker = Worker { files: &files, file: None, entries: Entries::new() };
        while let Some(batch) = queue.next() {
            worker.write(&batch)?;
        }
        Ok(worker)
    })?;

    let mut entries = Entries::new();
    let mut open = None;
    for worker in done {
        entries.extend(worker.entries);
        match (worker.file, &open) {
            (Some(file), Some(_)) => file.finish()?,
            (Some(file), None) => open = Some(file),
            (None, _) => {}
        }
    }
    let mut node_file = None;
    let manifests = if nodes == Nodes::BehindData {
        let mut file = match open {
            Some(file) => file,
            None => files.create()?,
        };
        let own = write_database(&config, entries.clone(), &file.name, file.writer.offset_bytes())?;
        file.writer.write(&own.nodes)?;
        file.finish()?;
        own.manifests
    } else {
        open.map_or(Ok(()), DataFile::finish)?;
        let name = random_data_file_name()?;
        let own = write_database(&config, entries.clone(), &name, 0)?;
        if !own.nodes.is_empty() {
            staged.write(&format!("{folder}{name}"), &own.nodes)?;
            node_file = Some(name);
        }
        own.manifests
    };
    for (name, bytes) in manifests {
        staged.write(&format!("{folder}{name}"), &bytes)?;
    }
    Ok(ProcessDatabase { entries, node_file })
}

/// Writes the merged database. The names of data files in `entries` are relative to its folder,
/// `item`.
pub(super) fn write_merged(entries: Entries, staged: &dyn NewFolder, item: &str) -> Result<()> {
    let node_file = random_data_file_name()?;
    let merged = write_database(&OcdbtConfig::orbax(), entries, &node_file, 0)?;
    staged.write(&format!("{item}{node_file}"), &merged.nodes)?;
    for (name, bytes) in merged.manifests {
        staged.write(&format!("{item}{name}"), &bytes)?;
    }
    Ok(())
}

/// The entries of a process' database. Names of data files are relative to the folder above.
pub(super) fn referred_from_above(mut entries: Entries, rank: u32) -> Entries {
    let folder: Arc<[u8]> = process_folder(rank).as_bytes().into();
    for (_, value) in &mut entries {
        if let EntryValue::Indirect { base, .. } = value {
            *base = folder.clone();
        }
    }
    entries
}

/// The destination of data files, and their target size.
struct DataFiles<'s> {
    staged: &'s dyn NewFolder,
    folder: String,
    inline_max_bytes: usize,
    target_bytes: u64,
    expected_len_bytes: u64,
    /// Whether this process writes the zarr documents.
    has_documents: bool,
}

impl DataFiles<'_> {
    fn create(&self) -> Result<DataFile> {
        let name = random_data_file_name()?;
        let expected = self.expected_len_bytes.min(self.target_bytes);
        let writer = self.staged.writer(&format!("{}{name}", self.folder), expected, 0)?;
        Ok(DataFile { relative: name.as_bytes().into(), name, writer })
    }
}

/// A data file that is being written.
struct DataFile {
    /// The name below the process' folder, and the same name in the form of entries.
    name: String,
    relative: Arc<[u8]>,
    writer: FileWriter,
}

impl DataFile {
    fn finish(self) -> Result<()> {
        self.writer.finish().map(|_| ())
    }
}

/// The state of one thread, which writes its own keys, and one file at a time.
struct Worker<'f> {
    files: &'f DataFiles<'f>,
    file: Option<DataFile>,
    entries: Entries,
}

impl Worker<'_> {
    fn write(&mut self, batch: &Batch<'_, '_>) -> Result<()> {
        let array = batch.array;
        if batch.chunks.start == 0 && self.files.has_documents {
            self.put(kvstore_key(&array.name, array.form.meta.metadata_key()), array.form.document.clone())?;
        }
        for number in batch.chunks.clone() {
            let chunk = array.chunk(number)?;
            let key = kvstore_key(&array.name, &array.form.meta.chunk_key(&chunk.index));
            match array.encode(&chunk).in_file(&key)? {
                Encoded::Value(value) => {
                    let saved = array.chunk_len_bytes().saturating_sub(value.len() as u64);
                    self.put(key, value.into())?;
                    self.files.staged.monitor().advance(saved)?;
                }
                Encoded::TooLarge => self.append(key, |file| {
                    let start = file.offset_bytes();
                    array.stream(&chunk, &mut |part| file.write(part))?;
                    file.saved(array.chunk_len_bytes().saturating_sub(file.offset_bytes() - start))
                })?,
            }
        }
        Ok(())
    }

    /// Stores a value: a small one in the node, a larger one in the file.
    fn put(&mut self, key: String, value: Bytes) -> Result<()> {
        if value.len() <= self.files.inline_max_bytes {
            self.entries.push((key.into_bytes(), EntryValue::Inline(value)));
            return Ok(());
        }
        self.append(key, |file| file.write(&value))
    }

    fn append(&mut self, key: String, write: impl FnOnce(&mut FileWriter) -> Result<()>) -> Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.files.create()?,
        };
        let offset_bytes = file.writer.offset_bytes();
        write(&mut file.writer).in_file(&key)?;
        let end_bytes = file.writer.offset_bytes();
        let value = EntryValue::Indirect {
            base: Arc::default(),
            relative: file.relative.clone(),
            offset_bytes,
            len_bytes: end_bytes - offset_bytes,
        };
        self.entries.push((key.into_bytes(), value));
        if end_bytes < self.files.target_bytes {
            self.file = Some(file);
            return Ok(());
        }
        file.finish()
    }
}
