//! Rebuilds lost files of an existing checkpoint: documents, database, `regrow.json`. A rebuild
//! writes no array data.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::super::manifest::{ChunkShapes, DataFile, LeafPlace, PartRecord, SmallFile, Sum, rank_of_part};
use super::super::reader::RegrowReader;
use super::database::Index;
use super::index::{RawEntries, to_list};
use super::merge::{gather, index_of_pieces, safetensors_index_of_pieces};
use super::new_manifest::NewManifest;
use super::orbax_documents::orbax_documents;
use super::plan::Plan;
use super::small_files::SmallFiles;
use super::write::safetensors_index;
use crate::options::{Compression, SaveOptions};
use crate::orbax::writer::documents::COMMIT_TEXT;
use crate::safetensors::index::INDEX_FILE_NAME;
use crate::{COMMIT_MARKERS, Reader};
use regrow_base::error::Result;
use regrow_base::monitor::Monitor;
use regrow_ocdbt::MANIFEST_KEY;
use regrow_storage::{BegunFolder, NewFolder, PublishOptions, private_memory};
use regrow_store::ReadPath;
use regrow_store::reads::{CheckFor, Source};
use regrow_tree::array::{Array, ArraySource, Region};
use regrow_tree::tree::{Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// The zstd level in the rebuilt documents of compressed pieces. A reader does not need it.
const LEVEL_TOLD: i32 = 3;

/// Rebuilt files.
pub(in super::super) struct Remade {
    pub files: Vec<(String, Vec<u8>)>,
    pub manifest: Vec<u8>,
}

/// Rebuilds the small files of an opened checkpoint that are not among the `whole` (undamaged)
/// files, and a `regrow.json` with their records. Without parts, the database of compressed leaves
/// is not rebuilt: only that database has the positions of their chunks.
///
/// # Errors
/// `Corrupt` for a damaged record of a process or a damaged small leaf; errors of a save.
pub(in super::super) fn remake(
    reader: &Arc<RegrowReader>,
    whole: &HashMap<String, SmallFile>,
    is_database_whole: bool,
) -> Result<Remade> {
    let parts: Vec<PartRecord> = reader.store().parts().cloned().collect();
    let tree = tree_of(reader, !parts.is_empty())?;
    let options = SaveOptions {
        custom_metadata: reader.description().custom_metadata.clone(),
        ..SaveOptions::default()
    };
    let plan = plan_of(reader, &tree, &options)?;
    let files: Vec<DataFile> = reader.data_files().cloned().collect();
    let scratch = scratch()?;
    let mut small = SmallFiles::new(&*scratch);
    orbax_documents(&plan, !parts.is_empty(), &options, &mut small)?;
    let new_database = match parts.is_empty() {
        true => remake_indexes(&plan, &files, !is_database_whole && !has_coded(reader), &mut small)?,
        false => remake_indexes_of_parts(reader, &plan, &parts, !is_database_whole, (&*scratch, &mut small))?,
    };
    let is_remade = |name: &str| match is_of_database(name) {
        true => new_database.is_some(),
        false => !whole.contains_key(name),
    };
    let made = small.files.into_iter().filter(|file| is_remade(&file.name));
    let made: Vec<SmallFile> =
        made.map(|file| if file.name == COMMIT_MARKERS[0] { marker() } else { file }).collect();
    let names: BTreeSet<&str> = made.iter().map(|file| file.name.as_str()).collect();
    // Lost files that were not rebuilt stay recorded: they are still lost.
    let kept = reader.store().small_records().filter(|file| {
        let is_replaced = is_of_database(&file.name) && is_remade(&file.name);
        !is_replaced && !names.contains(file.name.as_str())
    });
    let records: Vec<SmallFile> = kept.chain(&made).cloned().collect();
    let chunks = (!parts.is_empty()).then(|| plan.chunk_shapes());
    let manifest = NewManifest {
        structure: plan.structure()?,
        custom_metadata: options.custom_metadata.as_ref(),
        data_files: &files,
        files: &records,
        database_uuid: match &new_database {
            Some(database) => database.uuid.as_deref(),
            None => reader.database_uuid(),
        },
        parts: &parts,
        chunks: chunks.as_ref(),
        pieces: None,
        whole: None,
    };
    let manifest = manifest.to_json(reader.places().iter().copied())?;
    let read = |file: &SmallFile| {
        let bytes = match file.name == COMMIT_MARKERS[0] {
            true => COMMIT_TEXT.as_bytes().to_vec(),
            false => scratch.written(&file.name)?,
        };
        Ok((file.name.clone(), bytes))
    };
    Ok(Remade { files: made.iter().map(read).collect::<Result<_>>()?, manifest })
}

fn is_coded(info: &LeafInfo) -> bool {
    &*info.coding == "zstd"
}

fn has_coded(reader: &RegrowReader) -> bool {
    reader.tree().leaves().iter().any(is_coded)
}

fn is_of_database(name: &str) -> bool {
    name == MANIFEST_KEY || name.starts_with("d/")
}

/// The plan of the save that wrote the checkpoint.
fn plan_of<'t>(reader: &RegrowReader, tree: &'t Tree<Leaf>, options: &SaveOptions) -> Result<Plan<'t>> {
    let mut plan = Plan::new(tree, options)?;
    for ((planned, info), place) in plan.leaves.iter_mut().zip(reader.tree().leaves()).zip(reader.places()) {
        planned.place = match place {
            LeafPlace::Chunks if !is_coded(info) => LeafPlace::Raw { file: 0, offset_bytes: 0 },
            place => *place,
        };
    }
    for (at, info) in reader.tree().leaves().iter().enumerate() {
        plan.set_chunk_shape(at, info.chunk_shape.as_ref());
    }
    Ok(plan)
}

/// A rebuilt database.
struct NewDatabase {
    uuid: Option<String>,
}

/// Writes the index of several data files, and the database if it is wanted.
fn remake_indexes(
    plan: &Plan,
    files: &[DataFile],
    wants_database: bool,
    small: &mut SmallFiles<'_>,
) -> Result<Option<NewDatabase>> {
    // The index lists no chunks of compressed leaves, whose files have no header.
    if files.iter().filter(|file| file.data_offset > 0).count() > 1 {
        small.write_whole(INDEX_FILE_NAME, &safetensors_index(plan, files)?)?;
    }
    if !wants_database {
        return Ok(None);
    }
    let entries = RawEntries::new(plan, files.iter().map(|file| file.name.as_str()))?;
    Ok(Some(NewDatabase { uuid: Index::of_all(to_list(&entries))?.write(small)? }))
}

/// As [`remake_indexes`], from the records of the processes.
fn remake_indexes_of_parts(
    reader: &RegrowReader,
    plan: &Plan,
    parts: &[PartRecord],
    wants_database: bool,
    (scratch, small): (&dyn NewFolder, &mut SmallFiles<'_>),
) -> Result<Option<NewDatabase>> {
    for part in parts {
        scratch.write(&part.file.name, &reader.store().read_whole(&part.file)?)?;
    }
    let ranks: Vec<u32> = parts.iter().map(|part| rank_of_part(&part.file.name)).collect();
    let (_, places) = gather(plan, &ranks, scratch)?;
    if let Some(index) = safetensors_index_of_pieces(plan, &places)? {
        small.write_whole(INDEX_FILE_NAME, &index)?;
    }
    if !wants_database {
        return Ok(None);
    }
    let compression = if has_coded(reader) { Compression::Zstd(LEVEL_TOLD) } else { Compression::None };
    Ok(Some(NewDatabase { uuid: index_of_pieces(plan, &places, compression)?.write(small)? }))
}

/// The record of the commit marker. The publication in memory writes another marker.
fn marker() -> SmallFile {
    let mut sum = Sum::new();
    sum.update(COMMIT_TEXT.as_bytes());
    sum.record(COMMIT_MARKERS[0].to_owned(), COMMIT_TEXT.len() as u64)
}

/// The data found in a checkpoint that has lost its `regrow.json`.
pub(in super::super) struct Found<'a> {
    pub structure: &'a str,
    pub custom_metadata: Option<&'a serde_json::Value>,
    pub data_files: &'a [DataFile],
    pub files: &'a [SmallFile],
    pub database_uuid: Option<&'a str>,
    /// The records of the processes.
    pub parts: &'a [PartRecord],
    /// The chunk shapes of the arrays, of a checkpoint in parts.
    pub chunks: Option<&'a ChunkShapes>,
    pub places: &'a [LeafPlace],
}

pub(in super::super) fn record_again(found: Found<'_>) -> Result<Vec<u8>> {
    let manifest = NewManifest {
        structure: found.structure,
        custom_metadata: found.custom_metadata,
        data_files: found.data_files,
        files: found.files,
        database_uuid: found.database_uuid,
        parts: found.parts,
        chunks: found.chunks,
        pieces: None,
        whole: None,
    };
    manifest.to_json(found.places.iter().copied())
}

/// A folder in memory, for files that are not kept.
fn scratch() -> Result<Box<dyn BegunFolder>> {
    private_memory().join("checkpoint").publish_folder(PublishOptions::of_new(&Monitor::new()))
}

/// The tree of an opened checkpoint as input of a save. Its arrays are read on demand.
fn tree_of(reader: &Arc<RegrowReader>, are_in_parts: bool) -> Result<Tree<Leaf>> {
    let leaf = |(leaf, info): (usize, &LeafInfo)| {
        let data = match info.kind {
            LeafKind::Str => LeafData::Text(reader.texts().get(&leaf).cloned().unwrap_or_default()),
            LeafKind::Placeholder | LeafKind::Unknown(_) => LeafData::Absent,
            _ => LeafData::Array(array_of(reader, leaf, info, are_in_parts)?),
        };
        Ok(Leaf { kind: info.kind.clone(), data, sharding: info.sharding.clone() })
    };
    let leaves: Result<Vec<Leaf>> = reader.tree().leaves().iter().enumerate().map(leaf).collect();
    reader.tree().with_leaves(leaves?)
}

fn array_of(reader: &Arc<RegrowReader>, leaf: usize, info: &LeafInfo, are_in_parts: bool) -> Result<Array> {
    let written = info.write_shape.as_ref().filter(|shape| are_in_parts && **shape != info.shape);
    match written {
        Some(shape) => Array::sharded(info.dtype, info.shape.clone(), shape.clone(), Vec::new(), false),
        None => {
            let source = LeafOfReader { reader: Arc::clone(reader), leaf };
            Array::deferred(info.dtype, info.shape.clone(), Arc::new(source))
        }
    }
}

/// The array data of a leaf in the opened checkpoint, read on demand.
#[derive(Debug)]
struct LeafOfReader {
    reader: Arc<RegrowReader>,
    leaf: usize,
}

impl ArraySource for LeafOfReader {
    fn read_c_order(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        match self.reader.source(self.leaf)? {
            Source::Raw(extent) => {
                extent.check(CheckFor::Verify)?;
                extent.blob.read(extent.offset_bytes + offset_bytes, out, ReadPath::Cached)
            }
            _ => Err(regrow_base::error::Error::invalid("only raw data is read for the database")),
        }
    }

    fn read_region(&self, region: &Region, out: &mut [u8]) -> Result<()> {
        self.reader.read_region(self.leaf, region, out)
    }
}
