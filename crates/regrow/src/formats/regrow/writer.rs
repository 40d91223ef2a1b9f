//! Writing a checkpoint in the default layout.
//!
//! 1. plan names, order and offsets;
//! 2. stream the raw leaves into the safetensors file(s), copying and checksumming in one pass;
//! 3. compressed leaves, if any, go into a data file of their own;
//! 4. the database refers to both;
//! 5. Orbax' documents;
//! 6. `regrow.json` last, with a checksum for every byte of the others.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::manifest::{self, DataFile, LeafPlace, Manifest, SmallFile};
use super::plan::{HEADER_LEN_MAX_BYTES, LeafPlan, Plan, chunk_shape};
use super::structure::Structure;
use super::{stored_dtype, zarr_key};
use crate::array::{Array, Dtype, Region, Shape, cast_bytes, copy_region};
use crate::bytes::checksum::crc32c;
use crate::commit::Staged;
use crate::engine::{BUDGET_DEFAULT_BYTES, Compression, SaveOptions, pool};
use crate::error::{Error, Result, ResultExt};
use crate::formats::orbax::writer::documents::{self, LeafEntry, Switches, ValueType};
use crate::formats::safetensors::build::HeaderBuilder;
use crate::formats::safetensors::index::{INDEX_FILE_NAME, Index as SafetensorsIndex};
use crate::formats::stream::write_array;
use crate::store::ocdbt::{Database, EntryValue, OcdbtConfig, random_data_file_name, write_database};
use crate::store::{DirectWriter, WrittenFile};
use crate::tree::{Leaf, LeafData, LeafKind, Tree};
use crate::zarr::ArrayMeta;

/// Values up to this size also stand inside the database's nodes, where Orbax reads them without another seek.
const INLINE_LEN_MAX_BYTES: u64 = 128;

/// The structure is left out of the safetensors file if it would take this much of the header.
const STRUCTURE_IN_HEADER_MAX_BYTES: usize = 24 << 20;

pub(super) fn write(tree: &Tree<Leaf>, staged: &Staged, options: &SaveOptions) -> Result<()> {
    write_split(tree, staged, options, HEADER_LEN_MAX_BYTES)
}

/// Writes with as many safetensors files as keep each header below the limit.
fn write_split(
    tree: &Tree<Leaf>,
    staged: &Staged,
    options: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<()> {
    let (plan, structure, heads) = prepare(tree, options, header_len_max_bytes)?;
    let plan = &plan;
    // With many leaves the index and the documents cost as much as the data: they are made while it is written.
    let (mut data_files, index, documents) = std::thread::scope(|scope| {
        let index =
            scope.spawn(|| raw_entries(tree, plan, &heads).and_then(|entries| Index::new(entries, options)));
        let documents = scope.spawn(|| orbax_documents(tree, plan, options));
        let data_files: Result<Vec<DataFile>> = heads
            .iter()
            .enumerate()
            .map(|(file, head)| write_safetensors(tree, plan, file, head, staged))
            .collect();
        Ok::<_, Error>((data_files?, join(index)?, join(documents)?))
    })?;
    let places: Vec<LeafPlace> = plan.leaves.iter().map(|leaf| leaf.place).collect();
    let mut manifest = Manifest::new(structure, options.custom_metadata.clone(), &places);
    let mut small = Small { staged, files: Vec::new() };
    if data_files.len() > 1 {
        small.write(INDEX_FILE_NAME, &safetensors_index(plan, &data_files)?)?;
    }
    let index = match (index, options.compression) {
        (Index::Entries(mut entries), Some(Compression::Zstd(level))) => {
            data_files.extend(write_chunks(tree, plan, level, staged, options, &mut entries)?);
            Index::of_all(entries)?
        }
        (index, _) => index,
    };
    if let Index::Database(node_file, database) = index {
        small.write(&node_file, &database.nodes)?;
        for (name, bytes) in &database.manifests {
            small.write(name, bytes)?;
        }
    }
    for (name, bytes) in documents {
        small.write(&name, &bytes)?;
    }
    manifest.data_files = data_files;
    manifest.files = small.files;
    staged.write(manifest::FILE_NAME, &manifest.to_json()?)
}

/// Says what [`write`] would refuse, and writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<()> {
    let (plan, ..) = prepare(tree, options, HEADER_LEN_MAX_BYTES)?;
    orbax_documents(tree, &plan, options).map(drop)
}

/// Names, structure and what stands before the data of each file.
fn prepare(
    tree: &Tree<Leaf>,
    options: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<(Plan, Structure, Vec<Head>)> {
    let mut plan = Plan::new(tree, options, header_len_max_bytes)?;
    let infos = tree.with_leaves(plan.leaves.iter().map(|leaf| leaf.info.clone()).collect())?;
    let structure = Structure::of(&infos, |leaf| text_of(tree, leaf))?;
    let mut heads = Vec::with_capacity(plan.raw_files.len());
    for file in 0..plan.raw_files.len() {
        heads.push(Head::new(&mut plan, file, &structure)?);
    }
    Ok((plan, structure, heads))
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
    fn new(plan: &mut Plan, file: usize, structure: &Structure) -> Result<Self> {
        let mut header = HeaderBuilder::new();
        header.metadata("format", "np");
        if file == 0 {
            let structure = structure.to_json()?;
            if structure.len() <= STRUCTURE_IN_HEADER_MAX_BYTES {
                header.metadata("regrow", &structure);
            }
        }
        for leaf in plan.raw_leaves(file) {
            header.tensor(leaf.name(), leaf.info.dtype, &leaf.info.shape).at_leaf(&leaf.path)?;
        }
        let bytes = header.finish()?;
        let file_len_bytes = plan.place_raw(file, bytes.len() as u64);
        Ok(Self { name: file_name(file, plan.raw_files.len()), bytes, file_len_bytes })
    }
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
    fn new(entries: Vec<(Vec<u8>, EntryValue)>, options: &SaveOptions) -> Result<Self> {
        match options.compression {
            Some(Compression::Zstd(_)) => Ok(Self::Entries(entries)),
            Some(Compression::None) | None => Self::of_all(entries),
        }
    }

    fn of_all(entries: Vec<(Vec<u8>, EntryValue)>) -> Result<Self> {
        if entries.is_empty() {
            return Ok(Self::Nothing);
        }
        let node_file = random_data_file_name()?;
        let database = write_database(&OcdbtConfig::orbax(), entries, &node_file, 0)?;
        Ok(Self::Database(node_file, database))
    }
}

/// Writes files that are read whole, and remembers their checksums.
struct Small<'a> {
    staged: &'a Staged,
    files: Vec<SmallFile>,
}

impl Small<'_> {
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.staged.write(name, bytes)?;
        let file = SmallFile { name: name.to_owned(), len_bytes: bytes.len() as u64, crc32c: crc32c(bytes) };
        self.files.push(file);
        Ok(())
    }
}

fn text_of(tree: &Tree<Leaf>, leaf: usize) -> Arc<str> {
    match tree.leaves().get(leaf).map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => text.clone(),
        _ => Arc::from(""),
    }
}

fn file_name(file: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", file + 1),
    }
}

fn write_safetensors(
    tree: &Tree<Leaf>,
    plan: &Plan,
    file: usize,
    head: &Head,
    staged: &Staged,
) -> Result<DataFile> {
    let data_offset = head.bytes.len() as u64;
    let mut out = staged.writer(&head.name, head.file_len_bytes, data_offset)?;
    out.write(&head.bytes)?;
    for &leaf in plan.raw_files.get(file).map_or(&[][..], Vec::as_slice) {
        if let (Some(leaf), Some(LeafData::Array(array))) =
            (plan.leaves.get(leaf), tree.leaves().get(leaf).map(|leaf| &leaf.data))
        {
            let written = array.cast(leaf.info.dtype).and_then(|array| write_array(&mut out, &array));
            written.at_leaf(&leaf.path)?;
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
        block_len_bytes: DirectWriter::BLOCK_LEN_BYTES,
        block_crc32c: written.block_crc32c,
    }
}

/// The zarr documents, made once for each dtype and shape.
#[derive(Default)]
struct Documents(HashMap<(Dtype, Shape), Bytes>);

impl Documents {
    fn raw(&mut self, dtype: Dtype, shape: &Shape) -> Result<Bytes> {
        let dtype = stored_dtype(dtype);
        if let Some(json) = self.0.get(&(dtype, shape.clone())) {
            return Ok(json.clone());
        }
        let json = Bytes::from(ArrayMeta::v3_raw(shape.clone(), dtype)?.to_json());
        self.0.insert((dtype, shape.clone()), json.clone());
        Ok(json)
    }
}

/// The database's entries for raw leaves: a document inline, the one chunk by reference (or inline, if tiny).
fn raw_entries(tree: &Tree<Leaf>, plan: &Plan, files: &[Head]) -> Result<Vec<(Vec<u8>, EntryValue)>> {
    let mut documents = Documents::default();
    let mut entries = Vec::with_capacity(2 * plan.leaves.len());
    let names: Vec<Arc<[u8]>> = files.iter().map(|file| Arc::from(file.name.as_bytes())).collect();
    let base: Arc<[u8]> = Arc::from(&b""[..]);
    for (plan, leaf) in plan.leaves.iter().zip(tree.leaves()) {
        let LeafPlace::Raw { file, offset_bytes } = plan.place else { continue };
        let (Some(relative), LeafData::Array(array), true) =
            (names.get(file), &leaf.data, plan.has_elements())
        else {
            continue;
        };
        let json = documents.raw(plan.info.dtype, &plan.info.shape).at_leaf(&plan.path)?;
        entries.push((zarr_key(plan.name(), "zarr.json").into_bytes(), EntryValue::Inline(json)));
        let len_bytes = plan.info.len_bytes();
        let value = if len_bytes <= INLINE_LEN_MAX_BYTES && array.dtype() == plan.info.dtype {
            EntryValue::Inline(array.to_c_order().at_leaf(&plan.path)?)
        } else {
            EntryValue::Indirect { base: base.clone(), relative: relative.clone(), offset_bytes, len_bytes }
        };
        let chunk = format!("c{}", "/0".repeat(plan.info.shape.rank()));
        entries.push((zarr_key(plan.name(), &chunk).into_bytes(), value));
    }
    Ok(entries)
}

/// One chunk of a compressed leaf, before it is encoded.
struct ChunkTask<'a> {
    array: &'a Array,
    leaf: &'a LeafPlan,
    meta: &'a ArrayMeta,
    index: Vec<u64>,
    region: Region,
}

/// Writes the compressed leaves as zstd chunks into one data file; adds their entries.
fn write_chunks(
    tree: &Tree<Leaf>,
    plan: &Plan,
    level: i32,
    staged: &Staged,
    options: &SaveOptions,
    entries: &mut Vec<(Vec<u8>, EntryValue)>,
) -> Result<Option<DataFile>> {
    let mut arrays = Vec::new();
    for (leaf, source) in plan.leaves.iter().zip(tree.leaves()) {
        let (LeafPlace::Chunks, LeafData::Array(array)) = (leaf.place, &source.data) else { continue };
        let dtype = stored_dtype(leaf.info.dtype);
        let chunk = chunk_shape(&leaf.info.shape, leaf.info.dtype)?;
        let meta = ArrayMeta::v3(leaf.info.shape.clone(), dtype, chunk, Compression::Zstd(level))
            .at_leaf(&leaf.path)?;
        arrays.push((leaf, array, meta));
    }
    if arrays.is_empty() {
        return Ok(None);
    }
    let name = random_data_file_name()?;
    let mut out = staged.writer(&name, 0, 0)?;
    let (base, relative): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(&b""[..]), Arc::from(name.as_bytes()));
    for (leaf, _, meta) in &arrays {
        let key = zarr_key(leaf.name(), meta.metadata_key()).into_bytes();
        entries.push((key, EntryValue::Inline(meta.to_json().into())));
    }
    let tasks = arrays.iter().flat_map(|(leaf, array, meta)| {
        meta.chunk_indices(&Region::whole(meta.shape())).map(move |(index, region)| ChunkTask {
            array,
            leaf,
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
            let chunk = chunk_bytes(&task).at_leaf(&task.leaf.path)?;
            let encoded = task.meta.encode_chunk(&chunk).at_leaf(&task.leaf.path)?;
            let saved = chunk.len().saturating_sub(encoded.len()) as u64;
            Ok((zarr_key(task.leaf.name(), &task.meta.chunk_key(&task.index)), encoded, saved))
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
    let to = task.leaf.info.dtype;
    let inside = task.region.shape();
    let mut part = vec![0; inside.len_bytes(array.dtype())? as usize];
    array.copy_region_c_order(&task.region, &mut part)?;
    if array.dtype() != to {
        let mut cast = vec![0; inside.len_bytes(to)? as usize];
        cast_bytes(&part, array.dtype(), to, &mut cast)?;
        part = cast;
    }
    let chunk_shape = task.meta.chunk_shape();
    if inside == *chunk_shape {
        return Ok(part);
    }
    let mut chunk = vec![0; chunk_shape.len_bytes(to)? as usize];
    let origin = vec![0; inside.rank()];
    copy_region(to.size_bytes(), &part, &inside, &Region::whole(&inside), &mut chunk, chunk_shape, &origin)?;
    Ok(chunk)
}

fn safetensors_index(plan: &Plan, files: &[DataFile]) -> Result<Vec<u8>> {
    let mut index = SafetensorsIndex::default();
    for leaf in &plan.leaves {
        if let LeafPlace::Raw { file, .. } = leaf.place
            && let Some(file) = files.get(file)
        {
            index.insert(leaf.name(), &file.name, leaf.info.len_bytes());
        }
    }
    index.to_json()
}

/// What Orbax reads beside the arrays.
fn orbax_documents(tree: &Tree<Leaf>, plan: &Plan, options: &SaveOptions) -> Result<Vec<(String, Vec<u8>)>> {
    let entries: Vec<LeafEntry> = plan.leaves.iter().map(leaf_entry).collect();
    let switches = Switches {
        use_ocdbt: true,
        use_zarr3: true,
        rich_types: false,
        write_sharding: true,
        write_array_metadatas: true,
        v1: false,
        custom_metadata: options.custom_metadata.as_ref(),
    };
    documents::documents(tree, &entries, switches)
}

fn leaf_entry(leaf: &LeafPlan) -> LeafEntry {
    let value_type = orbax_value_type(leaf);
    let shape = (value_type == ValueType::JaxArray).then(|| leaf.info.shape.clone());
    LeafEntry {
        name: leaf.info.name.clone(),
        path: (leaf.orbax_path != leaf.path).then(|| leaf.orbax_path.clone()),
        value_type,
        write_shape: shape.clone(),
        chunk_shape: shape,
    }
}

/// What Orbax is told a leaf is: the nearest thing that it can restore.
fn orbax_value_type(leaf: &LeafPlan) -> ValueType {
    let info = &leaf.info;
    if info.kind.is_array() && !leaf.has_elements() {
        return ValueType::None;
    }
    match info.kind {
        LeafKind::Scalar if matches!(info.dtype, Dtype::Complex64 | Dtype::Complex128) => {
            ValueType::NumpyArray
        }
        _ => ValueType::of_leaf(&info.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Key, NodeKind, TreeBuilder};

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
