//! Writing a checkpoint in the default layout.
//!
//! 1. plan names, order and offsets, and what can be linked to an earlier checkpoint;
//! 2. stream the raw leaves into the safetensors file(s), copying and checksumming in one pass;
//! 3. compressed leaves, if any, go into a data file of their own;
//! 4. the database refers to both;
//! 5. Orbax' documents;
//! 6. `regrow.json` last, with a checksum for every byte of the others.

use std::sync::Arc;

use super::base::{Base, Origin};
use super::digest::Digest;
use super::index::RawEntries;
use super::manifest::{self, DataFile, LeafPlace, NewManifest, SmallFile, Sum, uuid_text};
use super::plan::{HEADER_LEN_MAX_BYTES, Plan, chunk_shape};
use super::structure::{LeafColumns, Structure};
use super::{stored_dtype, zarr_key};
use crate::array::{Array, Dtype, Region, Shape, cast_bytes, copy_region};
use crate::bytes::checksum::crc32c;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::COMMIT_MARKERS;
use crate::formats::orbax::writer::documents::{
    self, Document, DocumentSink, LeafEntry, Switches, ValueType,
};
use crate::formats::safetensors::build::HeaderBuilder;
use crate::formats::safetensors::index::{INDEX_FILE_NAME, Index as SafetensorsIndex};
use crate::formats::stream::{write_array, write_array_shown};
use crate::monitor::Monitor;
use crate::options::{BUDGET_DEFAULT_BYTES, Compression, SaveOptions};
use crate::storage::Publication;
use crate::store::ocdbt::{
    Database, Entries, EntryValue, OcdbtConfig, random_data_file_name, write_database, write_sorted,
};
use crate::store::{FileWriter, WrittenFile};
use crate::threads::{Task, pool};
use crate::tree::{Leaf, LeafData, LeafKind, Tree};
use crate::zarr::ArrayMeta;

/// What a node of the database aims at, decoded.
const NODE_LEN_BYTES: u32 = 2 << 20;

/// Documents up to this length are written at once, longer ones as they are made.
const GATHERED_LEN_MAX_BYTES: usize = 1 << 20;

/// The structure is left out of the safetensors file if it would take this much of the header.
const STRUCTURE_IN_HEADER_MAX_BYTES: usize = 24 << 20;

pub(super) fn write(tree: &Tree<Leaf>, staged: &dyn Publication, options: &SaveOptions) -> Result<()> {
    write_split(tree, staged, options, HEADER_LEN_MAX_BYTES)
}

/// Writes with as many safetensors files as keep each header below the limit.
pub(super) fn write_split(
    tree: &Tree<Leaf>,
    staged: &dyn Publication,
    options: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<()> {
    let base = options.base.as_ref().map(Base::open).transpose()?.map(|base| (base, staged.monitor()));
    let Prepared { plan, structure, heads, origins } = prepare(tree, options, header_len_max_bytes, base)?;
    let plan = &plan;
    // With many leaves the index and the documents cost as much as the data: they are made while it is written.
    let (mut data_files, index, mut small) = std::thread::scope(|scope| {
        let index = Task::begin(scope, "regrow-index", || Index::new(plan, &heads, options));
        let documents = Task::begin(scope, "regrow-documents", || {
            let mut small = SmallFiles::new(staged);
            orbax_documents(plan, options, &mut small).map(|()| small)
        });
        let data_files: Result<Vec<DataFile>> = heads
            .iter()
            .enumerate()
            .map(|(file, head)| write_file(plan, file, head, origins.get(file), staged))
            .collect();
        Ok::<_, Error>((data_files?, index.join()?, documents.join()?))
    })?;
    drop(heads);
    if data_files.len() > 1 {
        small.write_whole(INDEX_FILE_NAME, &safetensors_index(plan, &data_files)?)?;
    }
    let index = match (index, options.compression) {
        (Index::Entries(mut entries), Some(Compression::Zstd(level))) => {
            data_files.extend(write_chunks(plan, level, staged, options, &mut entries)?);
            Index::of_all(entries)?
        }
        (index, _) => index,
    };
    let mut database_uuid = None;
    if let Index::Database(node_file, database) = index {
        database_uuid = Some(uuid_text(&database.uuid));
        small.write_whole(&node_file, &database.nodes)?;
        for (name, bytes) in &database.manifests {
            small.write_whole(name, bytes)?;
        }
    }
    let manifest = NewManifest {
        structure: &structure,
        custom_metadata: options.custom_metadata.as_ref(),
        data_files: &data_files,
        files: &small.files,
        database_uuid: database_uuid.as_deref(),
    };
    let json = manifest.to_json(plan.leaves.iter().map(|leaf| leaf.place))?;
    staged.write(manifest::FILE_NAME, &json)
}

/// Says what [`write`] would refuse, and writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    options.base.as_ref().map(Base::open).transpose()?;
    let Prepared { plan, .. } = prepare(tree, options, HEADER_LEN_MAX_BYTES, None)?;
    orbax_documents(&plan, options, &mut Vec::<Document>::new())
}

/// All that is known before a byte is written.
struct Prepared<'t> {
    plan: Plan<'t>,
    structure: String,
    /// What stands before the data of each file.
    heads: Vec<Head>,
    /// Where the data of each file come from; empty if all are written.
    origins: Vec<Origin>,
}

fn prepare<'t>(
    tree: &'t Tree<Leaf>,
    options: &SaveOptions,
    header_len_max_bytes: usize,
    base: Option<(Base, &Monitor)>,
) -> Result<Prepared<'t>> {
    let mut plan = Plan::new(tree, options, header_len_max_bytes)?;
    let structure = structure_json(&plan)?;
    let origins = match base {
        Some((base, monitor)) => {
            let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
            base.reuse(&mut plan, &structure, header_len_max_bytes, budget_bytes, monitor)?
        }
        None => Vec::new(),
    };
    let mut heads = Vec::with_capacity(plan.raw_files.len());
    for file in 0..plan.raw_files.len() {
        heads.push(Head::new(&mut plan, file, &structure)?);
    }
    Ok(Prepared { plan, structure, heads, origins })
}

/// The exact pytree, as text: it stands in two files.
fn structure_json<'p>(plan: &'p Plan<'_>) -> Result<String> {
    let tree: &'p Tree<Leaf> = plan.tree;
    let columns = |at: usize, leaf: &'p Leaf| {
        let Leaf { kind, data, sharding } = leaf;
        let (shape, text) = match data {
            LeafData::Array(array) => (array.shape().clone(), Arc::default()),
            LeafData::Text(text) => (Shape::new(vec![text.len() as u64]).unwrap_or_default(), text.clone()),
            LeafData::Absent => (Shape::scalar(), Arc::default()),
        };
        let dtype = plan.leaves.get(at).map_or(Dtype::UInt8, |leaf| leaf.dtype);
        LeafColumns { kind, dtype, shape, text, name: plan.other_name(at), sharding: sharding.as_deref() }
    };
    Structure::of_columns(tree, columns)?.to_json()
}

/// What a safetensors file has before its data.
struct Head {
    name: String,
    bytes: Vec<u8>,
    /// Length of the whole file.
    file_len_bytes: u64,
}

impl Head {
    /// Also gives the leaves of the file their offsets.
    fn new(plan: &mut Plan<'_>, file: usize, structure: &str) -> Result<Self> {
        let leaves = plan.raw_files.get(file).map_or(&[][..], Vec::as_slice);
        let structure = structure_in_header(structure).filter(|_| file == 0);
        let bytes = header_bytes(plan, leaves, structure)?;
        let file_len_bytes = plan.place_raw(file, bytes.len() as u64);
        Ok(Self { name: file_name(file, plan.raw_files.len()), bytes, file_len_bytes })
    }
}

/// The structure, if it is short enough for the header of a safetensors file.
pub(super) fn structure_in_header(structure: &str) -> Option<&str> {
    Some(structure).filter(|structure| structure.len() <= STRUCTURE_IN_HEADER_MAX_BYTES)
}

/// What a safetensors file of these leaves has before their data.
pub(super) fn header_bytes(plan: &Plan<'_>, leaves: &[u32], structure: Option<&str>) -> Result<Vec<u8>> {
    let mut header = HeaderBuilder::new();
    header.metadata("format", "np");
    if let Some(structure) = structure {
        header.metadata("regrow", structure);
    }
    for &leaf in leaves {
        let leaf = leaf as usize;
        if let Some((planned, Some(array))) = plan.leaf(leaf).map(|(plan, leaf)| (plan, leaf.as_array())) {
            let added = header.tensor(plan.name(leaf), planned.dtype, array.shape());
            added.map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        }
    }
    header.finish()
}

/// The OCDBT database, or what goes into it as long as something is missing.
enum Index {
    /// Chunks of compressed leaves are still to come.
    Entries(Vec<(Vec<u8>, EntryValue)>),
    /// Name of the node file, and the database.
    Database(String, Database),
    /// A tree without array data has none.
    Nothing,
}

impl Index {
    fn new(plan: &Plan<'_>, heads: &[Head], options: &SaveOptions) -> Result<Self> {
        let entries = RawEntries::new(plan, heads.iter().map(|head| head.name.as_str()))?;
        if matches!(options.compression, Some(Compression::Zstd(_))) {
            return Ok(Self::Entries(entries.to_vec()));
        }
        if !entries.are_in_order() {
            return Self::of_all(entries.to_vec());
        }
        if entries.count() == 0 {
            return Ok(Self::Nothing);
        }
        let node_file = random_data_file_name()?;
        let database = write_sorted(&ocdbt_config(), &entries, &node_file, 0)?;
        Ok(Self::Database(node_file, database))
    }

    fn of_all(entries: Vec<(Vec<u8>, EntryValue)>) -> Result<Self> {
        if entries.is_empty() {
            return Ok(Self::Nothing);
        }
        let node_file = random_data_file_name()?;
        let database = write_database(&ocdbt_config(), entries, &node_file, 0)?;
        Ok(Self::Database(node_file, database))
    }
}

/// As Orbax has it, but in nodes of a size that several threads can work at: one of 100 MB, as Orbax writes, would
/// be encoded by one thread, and whoever reads a key reads all of its node.
fn ocdbt_config() -> OcdbtConfig {
    OcdbtConfig { max_decoded_node_bytes: NODE_LEN_BYTES, zstd_level: Some(1), ..OcdbtConfig::orbax() }
}

/// Writes files that are read whole, and remembers their checksums.
struct SmallFiles<'a> {
    staged: &'a dyn Publication,
    files: Vec<SmallFile>,
    current: Option<Current>,
}

/// A file in the making: gathered while it is small, then streamed.
struct Current {
    name: String,
    len_bytes: u64,
    sum: Sum,
    gathered: Vec<u8>,
    out: Option<FileWriter>,
}

impl<'a> SmallFiles<'a> {
    fn new(staged: &'a dyn Publication) -> Self {
        Self { staged, files: Vec::new(), current: None }
    }

    fn write_whole(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.begin(name)?;
        self.write(bytes)?;
        self.end()
    }
}

impl DocumentSink for SmallFiles<'_> {
    fn begin(&mut self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.current = Some(Current { name, len_bytes: 0, sum: Sum::new(), gathered: Vec::new(), out: None });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.current else { return Err(Error::invalid("no file was begun")) };
        file.len_bytes += bytes.len() as u64;
        file.sum.update(bytes);
        if file.out.is_none() && file.gathered.len() + bytes.len() <= GATHERED_LEN_MAX_BYTES {
            file.gathered.extend_from_slice(bytes);
            return Ok(());
        }
        let out = match &mut file.out {
            Some(out) => out,
            None => {
                let out = file.out.insert(self.staged.writer(&file.name, 0, 0)?);
                out.write(&std::mem::take(&mut file.gathered))?;
                out
            }
        };
        out.write(bytes)
    }

    fn end(&mut self) -> Result<()> {
        let is_marker = self.current.as_ref().is_some_and(|file| file.name == COMMIT_MARKERS[0]);
        if let Some(line) = self.staged.marker_line().filter(|_| is_marker) {
            // Here, for `regrow.json` has a checksum of the marker too.
            self.write(line.as_bytes())?;
        }
        let Some(file) = self.current.take() else { return Ok(()) };
        match file.out {
            Some(out) => drop(out.finish()?),
            None => self.staged.write(&file.name, &file.gathered)?,
        }
        self.files.push(file.sum.record(file.name, file.len_bytes));
        Ok(())
    }
}

fn file_name(file: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", file + 1),
    }
}

/// Links the file if the base has it, else writes it.
fn write_file(
    plan: &Plan<'_>,
    file: usize,
    head: &Head,
    origin: Option<&Origin>,
    staged: &dyn Publication,
) -> Result<DataFile> {
    match origin {
        None | Some(Origin::Written) => return write_safetensors(plan, file, head, staged, None),
        Some(Origin::Gathered) => {}
        Some(Origin::Linked(link)) => {
            if let Some(linked) = link.place(&head.name, staged)? {
                return Ok(linked);
            }
        }
    }
    let leaves = plan.raw_files.get(file).map_or(&[][..], Vec::as_slice);
    let keeps = |&leaf: &u32| {
        plan.stored_array(leaf as usize).is_some_and(|array| array.is_ok_and(|it| it.kept_len_bytes() > 0))
    };
    if leaves.iter().any(keeps) {
        let mut hasher = blake3::Hasher::new();
        let mut written = write_safetensors(plan, file, head, staged, Some(&mut hasher))?;
        written.blake3 = Some(hasher.finalize().to_hex().to_string());
        return Ok(written);
    }
    std::thread::scope(|scope| {
        let block_len_bytes = FileWriter::BLOCK_LEN_BYTES as usize;
        let digest = Task::begin(scope, "regrow-digest", move || {
            Digest::of(plan, leaves, block_len_bytes, staged.monitor())
        });
        let mut written = write_safetensors(plan, file, head, staged, None)?;
        digest.join()?.record_in(&mut written);
        Ok(written)
    })
}

/// Writes the file; a hasher is shown the bytes of its leaves on their way.
fn write_safetensors(
    plan: &Plan<'_>,
    file: usize,
    head: &Head,
    staged: &dyn Publication,
    mut hasher: Option<&mut blake3::Hasher>,
) -> Result<DataFile> {
    let data_offset = head.bytes.len() as u64;
    let mut out = staged.writer(&head.name, head.file_len_bytes, data_offset)?;
    out.write(&head.bytes)?;
    for &leaf in plan.raw_files.get(file).map_or(&[][..], Vec::as_slice) {
        let leaf = leaf as usize;
        if let Some(array) = plan.stored_array(leaf) {
            let written = array.and_then(|array| match &mut hasher {
                None => write_array(&mut out, &array),
                Some(hasher) => write_array_shown(&mut out, &array, |piece| {
                    hasher.update(piece);
                }),
            });
            written.map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        }
    }
    Ok(data_file(head.name.clone(), data_offset, crc32c(&head.bytes), out.finish()?))
}

fn data_file(name: String, data_offset: u64, head_crc32c: u32, written: WrittenFile) -> DataFile {
    DataFile {
        name,
        len_bytes: written.len_bytes,
        data_offset,
        head_crc32c,
        block_len_bytes: FileWriter::BLOCK_LEN_BYTES,
        block_crc32c: written.block_crc32c,
        blake3: None,
    }
}

/// One chunk of a compressed leaf, before it is encoded.
struct ChunkTask<'a> {
    array: &'a Array,
    leaf: usize,
    dtype: Dtype,
    meta: &'a ArrayMeta,
    index: Vec<u64>,
    region: Region,
}

/// Writes the compressed leaves as zstd chunks into one data file; adds their entries.
fn write_chunks(
    plan: &Plan<'_>,
    level: i32,
    staged: &dyn Publication,
    options: &SaveOptions,
    entries: &mut Vec<(Vec<u8>, EntryValue)>,
) -> Result<Option<DataFile>> {
    let mut arrays = Vec::new();
    for (leaf, (planned, source)) in plan.leaves.iter().zip(plan.tree.leaves()).enumerate() {
        let (LeafPlace::Chunks, LeafData::Array(array)) = (planned.place, &source.data) else { continue };
        let dtype = stored_dtype(planned.dtype);
        let chunk = chunk_shape(array.shape(), planned.dtype)?;
        let meta = ArrayMeta::v3(array.shape().clone(), dtype, chunk, Compression::Zstd(level))
            .map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        arrays.push((leaf, planned.dtype, array, meta));
    }
    if arrays.is_empty() {
        return Ok(None);
    }
    let name = random_data_file_name()?;
    let mut out = staged.writer(&name, 0, 0)?;
    let (base, relative): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(&b""[..]), Arc::from(name.as_bytes()));
    for (leaf, _, _, meta) in &arrays {
        let key = zarr_key(plan.name(*leaf), meta.metadata_key()).into_bytes();
        entries.push((key, EntryValue::Inline(meta.to_json().into())));
    }
    let tasks = arrays.iter().flat_map(|(leaf, dtype, array, meta)| {
        meta.chunk_indices(&Region::whole(meta.shape())).map(move |(index, region)| ChunkTask {
            array,
            leaf: *leaf,
            dtype: *dtype,
            meta,
            index,
            region,
        })
    });
    let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
    // A chunk is held raw and encoded at the same time.
    let cost = |task: &ChunkTask<'_>| {
        2 * task.meta.chunk_shape().len_bytes(task.meta.dtype()).unwrap_or(u64::MAX / 2)
    };
    pool::map_ordered(
        pool::thread_count(),
        tasks,
        budget_bytes,
        cost,
        |task| {
            let encoded =
                chunk_bytes(&task).and_then(|chunk| Ok((task.meta.encode_chunk(&chunk)?, chunk.len())));
            let (encoded, len_bytes) = encoded.map_err(|error| error.at_leaf(&plan.path(task.leaf)))?;
            let saved = len_bytes.saturating_sub(encoded.len()) as u64;
            Ok((zarr_key(plan.name(task.leaf), &task.meta.chunk_key(&task.index)), encoded, saved))
        },
        |(key, encoded, saved)| {
            let offset_bytes = out.offset_bytes();
            out.write(&encoded)?;
            out.saved(saved)?;
            let (base, relative, len_bytes) = (base.clone(), relative.clone(), encoded.len() as u64);
            entries
                .push((key.into_bytes(), EntryValue::Indirect { base, relative, offset_bytes, len_bytes }));
            Ok(())
        },
    )?;
    Ok(Some(data_file(name, 0, crc32c(b""), out.finish()?)))
}

/// One chunk in C order, cast, zeros beyond the array's edge.
fn chunk_bytes(task: &ChunkTask<'_>) -> Result<Vec<u8>> {
    let array = task.array;
    let to = task.dtype;
    let inside = task.region.shape();
    let mut part = work_space(inside.len_bytes(array.dtype())?)?;
    array.copy_region_c_order(&task.region, &mut part)?;
    if array.dtype() != to {
        let mut cast = work_space(inside.len_bytes(to)?)?;
        cast_bytes(&part, array.dtype(), to, &mut cast)?;
        part = cast;
    }
    let chunk_shape = task.meta.chunk_shape();
    if inside == *chunk_shape {
        return Ok(part);
    }
    let mut chunk = work_space(chunk_shape.len_bytes(to)?)?;
    let origin = vec![0; inside.rank()];
    copy_region(to.size_bytes(), &part, &inside, &Region::whole(&inside), &mut chunk, chunk_shape, &origin)?;
    Ok(chunk)
}

fn safetensors_index(plan: &Plan<'_>, files: &[DataFile]) -> Result<Vec<u8>> {
    let mut index = SafetensorsIndex::default();
    for (leaf, planned) in plan.leaves.iter().enumerate() {
        if let LeafPlace::Raw { file, .. } = planned.place
            && let Some(file) = files.get(file)
        {
            index.insert(plan.name(leaf), &file.name, planned.len_bytes);
        }
    }
    index.to_json()
}

/// What Orbax reads beside the arrays.
fn orbax_documents(plan: &Plan<'_>, options: &SaveOptions, sink: &mut dyn DocumentSink) -> Result<()> {
    let switches = Switches {
        use_ocdbt: true,
        use_zarr3: true,
        rich_types: false,
        write_sharding: true,
        write_array_metadatas: true,
        v1: false,
        beside_regrow_json: true,
        custom_metadata: options.custom_metadata.as_ref(),
    };
    documents::documents(plan.tree, &|leaf| leaf_entry(plan, leaf), switches, sink)
}

fn leaf_entry<'p>(plan: &'p Plan<'_>, at: usize) -> LeafEntry<'p> {
    let value_type =
        plan.leaf(at).map_or(ValueType::Placeholder, |(planned, leaf)| orbax_value_type(leaf, planned.dtype));
    let array = plan.tree.leaves().get(at).and_then(Leaf::as_array);
    let shape = array.map(Array::shape).filter(|_| value_type == ValueType::JaxArray);
    LeafEntry {
        name: plan.name(at),
        path: plan.orbax_path(at),
        value_type,
        write_shape: shape,
        chunk_shape: shape,
    }
}

/// What Orbax is told a leaf is: the nearest thing that it can restore.
fn orbax_value_type(leaf: &Leaf, dtype: Dtype) -> ValueType {
    if leaf.kind.is_array() && !Plan::has_elements(leaf) {
        return ValueType::None;
    }
    match leaf.kind {
        LeafKind::Scalar if matches!(dtype, Dtype::Complex64 | Dtype::Complex128) => ValueType::NumpyArray,
        _ => ValueType::of_leaf(&leaf.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Staged;
    use crate::tree::{Key, NodeKind, TreeBuilder};
    use bytes::Bytes;

    #[test]
    fn many_leaves_are_split_over_files_that_all_readers_put_together() {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for i in 0..40_u8 {
            let shape = Shape::new(vec![100]).unwrap();
            let array = Array::new(Dtype::UInt8, shape, vec![i; 100].into()).unwrap();
            build.leaf(Key::dict(format!("leaf_{i:02}")), Leaf::array(array)).unwrap();
        }
        build.close().unwrap();
        let tree = build.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step");
        let staged = Staged::create(&path, false).unwrap();
        write_split(&tree, &staged, &SaveOptions::default(), 2000).unwrap();
        staged.commit().unwrap();
        assert!(path.join("model-00001-of-00004.safetensors").is_file());
        assert!(path.join(INDEX_FILE_NAME).is_file());
        assert!(crate::verify(&path).unwrap().is_ok());
        let bytes = |tree: Tree<Leaf>| -> Vec<Bytes> {
            tree.leaves().iter().map(|leaf| leaf.as_array().unwrap().to_c_order().unwrap()).collect()
        };
        let expected = bytes(tree);
        assert_eq!(bytes(crate::load(&path).unwrap()), expected);
        std::fs::remove_file(path.join(manifest::FILE_NAME)).unwrap();
        assert_eq!(bytes(crate::load(&path).unwrap()), expected, "through the database, as Orbax reads it");
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_file() && !entry.to_string_lossy().contains("safetensors") {
                std::fs::remove_file(entry).unwrap();
            }
        }
        std::fs::remove_dir_all(path.join("d")).unwrap();
        assert_eq!(crate::open(&path).unwrap().description().layout, "safetensors");
        assert_eq!(bytes(crate::load(&path).unwrap()), expected, "through the safetensors files alone");
    }
}
