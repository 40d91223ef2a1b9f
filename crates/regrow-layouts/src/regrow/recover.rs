//! Files of a checkpoint in the default layout that can be made from its other files.
//!
//! ```text
//! documents, database     from regrow.json, which has the pytree and the position of each leaf
//! regrow.json             from a replica, if the caller gives one; otherwise from the headers of the
//!                         safetensors files or the records of the processes, and Orbax' documents
//! ```
//!
//! Without a replica, a new `regrow.json` has checksums of the present files, which may already be
//! damaged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::manifest::{self, ChunkShapes, DataFile, LeafPlace, Manifest, PartRecord, SmallFile};
use super::reader::RegrowReader;
use super::save::{self, Remade};
use super::small_file::summed_as_it_is;
use super::{Regrow, lost_manifest};
use crate::options::OpenOptions;
use crate::orbax::Orbax;
use crate::orbax::array_metadatas::ARRAY_METADATAS_FOLDER;
use crate::orbax::checkpoint_metadata::CHECKPOINT_METADATA_FILE;
use crate::orbax::marker_files::COMMIT_SUCCESS_FILE;
use crate::orbax::metadata::{METADATA_FILE, TreeMetadata};
use crate::orbax::sharding::SHARDING_FILE;
use crate::orbax::strings::STRINGS_FILE;
use crate::safetensors::index::{INDEX_FILE_NAME, INDEX_SUFFIX};
use crate::safetensors::{SUFFIX, read_header};
use crate::structure::Structure;
use crate::{Counterpart, Format, Reader, ReaderExt, RecoveredFile, Recovery, SummedFile};
use regrow_base::bytes::checksum::crc32c;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_ocdbt::{DATA_FOLDER, MANIFEST_KEY, OcdbtStore};
use regrow_storage::location::Location;
use regrow_storage::side_files::is_name_of_side_file;
use regrow_store::reads::Source;
use regrow_store::{FileWriter, Located, ReadPath, Store, StoreExt};
use regrow_tree::tree::{LeafInfo, LeafKind, Tree};

const PIECE_LEN_BYTES: u64 = 4 << 20;

/// The name of the pytree in the metadata of a safetensors file.
const STRUCTURE: &str = "regrow";

impl Recovery for Regrow {
    fn recover(&self, at: &Location, other: Option<&Location>) -> Result<Vec<RecoveredFile>> {
        if !at.is_folder() {
            return Ok(Vec::new());
        }
        let lost = match at.join(manifest::FILE_NAME).is_file() {
            true => match RegrowReader::open(at) {
                Ok(reader) => return documents(Arc::new(reader)),
                Err(error) if error.kind() == ErrorKind::Corrupt => true,
                Err(error) => return Err(error),
            },
            false => is_lost(at)?,
        };
        if !lost {
            return Ok(Vec::new());
        }
        match other {
            // A rebuilt `regrow.json` would have the checksums of the present, perhaps damaged
            // files. So if a replica is given but does not match, return an error.
            Some(other) => match record_of_replica(at, other)? {
                Some(file) => Ok(vec![file]),
                None => Err(Error::corrupt(
                    "regrow.json is lost, and the other checkpoint comes from \
                    another save",
                )
                .in_file(at.join(manifest::FILE_NAME))
                .help(
                    "give a copy of this checkpoint; without another checkpoint, `repair` rebuilds \
                        regrow.json from the headers",
                )),
            },
            None => record(at),
        }
    }

    fn summed_files(&self, at: &Location) -> Result<Option<Vec<SummedFile>>> {
        if !at.join(manifest::FILE_NAME).is_file() {
            return Ok(None);
        }
        match RegrowReader::open(at) {
            Ok(reader) => {
                let mut files = reader.store().summed_files()?;
                // `regrow.json` has just passed its own checksum.
                let own = at.store().get_text_key(manifest::FILE_NAME)?;
                files.extend(own.map(|bytes| summed_as_it_is(manifest::FILE_NAME, &bytes)).transpose()?);
                Ok(Some(files))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn counterpart(&self, at: &Location, other: &Location) -> Result<Option<Box<dyn Counterpart>>> {
        let open = |at: &Location| match at.join(manifest::FILE_NAME).is_file() {
            true => RegrowReader::open(at).ok(),
            false => None,
        };
        Ok(open(at).zip(open(other)).map(|(own, other)| Box::new(SameLeaves::of(&own, other)) as Box<_>))
    }
}

/// The leaves of this checkpoint that another checkpoint has under the same names.
struct SameLeaves {
    /// For each data file, its leaves in the order of their bytes: offset, length, and the leaf's
    /// number in `other`.
    files: HashMap<String, Vec<(u64, u64, usize)>>,
    other: RegrowReader,
}

impl SameLeaves {
    fn of(own: &RegrowReader, other: RegrowReader) -> Self {
        let theirs = other.tree().leaves().iter().enumerate();
        let theirs: HashMap<&str, (usize, &LeafInfo)> =
            theirs.map(|(at, info)| (&*info.name, (at, info))).collect();
        let names: Vec<&str> = own.data_files().map(|file| file.name.as_str()).collect();
        let mut files: HashMap<String, Vec<(u64, u64, usize)>> = HashMap::new();
        for (info, place) in own.tree().leaves().iter().zip(own.places()) {
            let LeafPlace::Raw { file, offset_bytes } = *place else { continue };
            let Some((&(at, same), name)) = theirs.get(&*info.name).zip(names.get(file)) else { continue };
            if same.dtype == info.dtype && same.shape == info.shape && info.len_bytes() > 0 {
                files.entry((*name).to_owned()).or_default().push((offset_bytes, info.len_bytes(), at));
            }
        }
        files.values_mut().for_each(|leaves| leaves.sort_unstable());
        Self { files, other }
    }
}

impl Counterpart for SameLeaves {
    fn read(&self, file: &str, offset_bytes: u64, out: &mut [u8]) -> Result<bool> {
        let Some(leaves) = self.files.get(file) else { return Ok(false) };
        let end = offset_bytes + out.len() as u64;
        let first = leaves.partition_point(|(start, len, _)| start + len <= offset_bytes);
        let mut at = offset_bytes;
        for &(start, len, leaf) in leaves.get(first..).unwrap_or_default() {
            if at >= end {
                break;
            }
            // Bytes between leaves are padding.
            if start > at {
                return Ok(false);
            }
            let to = (start + len).min(end);
            let part = out.get_mut((at - offset_bytes) as usize..(to - offset_bytes) as usize);
            let Some(part) = part else { return Ok(false) };
            let Source::Raw(extent) = self.other.source(leaf)? else { return Ok(false) };
            match extent.blob.read(extent.offset_bytes + (at - start), part, ReadPath::Cached) {
                Ok(()) => at = to,
                Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(at == end)
    }
}

/// The `regrow.json` of a replica, if both checkpoints are copies of the same save: every save
/// writes another database. If the database is damaged, too, equal array data prove it.
fn record_of_replica(at: &Location, other: &Location) -> Result<Option<RecoveredFile>> {
    let Ok(theirs) = RegrowReader::open(other) else { return Ok(None) };
    let store = at.opened()?;
    let is_whole = |file: &SummedFile| match store.open(file.name.as_bytes())? {
        Some(blob) => file.is_whole(&*blob),
        None => Ok(false),
    };
    let small: HashSet<&str> = theirs.store().small_records().map(|record| record.name.as_str()).collect();
    let files = theirs.store().summed_files()?;
    let mut is_same = false;
    for database in files.iter().filter(|file| file.name == MANIFEST_KEY) {
        is_same |= is_whole(database)?;
    }
    let mut data = files.iter().filter(|file| !small.contains(file.name.as_str())).peekable();
    let mut has_same_data = !is_same && data.peek().is_some();
    for file in data.filter(|_| !is_same) {
        has_same_data = has_same_data && is_whole(file)?;
    }
    if !is_same && !has_same_data {
        return Ok(None);
    }
    let bytes = bytes_of(&*other.opened()?, manifest::FILE_NAME)?;
    let how = format!("taken from {}, which is of the same save", other.describe().display());
    Ok(Some(RecoveredFile { name: manifest::FILE_NAME.to_owned(), bytes, how, is_guess: false }))
}

/// Whether a folder had a `regrow.json` that is gone.
fn is_lost(at: &Location) -> Result<bool> {
    if lost_manifest(at, false)?.is_none() {
        return Ok(false);
    }
    // Other programs also write files named like data files. A data file of regrow has the pytree
    // in its header, or Orbax' metadata refer to `regrow.json`.
    let is_said = Orbax.open(at, &OpenOptions::default());
    let is_said =
        is_said.is_ok_and(|view| view.description().warnings.iter().any(|it| it == super::MANIFEST_LOST));
    let store = at.opened()?;
    let names = names_in(&*store)?;
    let has_structure = |name: &&String| {
        let header = read_header(&*store, name.as_ref());
        header.is_ok_and(|(header, _)| header.metadata.iter().flatten().any(|(key, _)| key == STRUCTURE))
    };
    let parts = names.iter().any(|name| manifest::is_part_name(name));
    let beside = names.iter().any(|name| is_document(name) && !name.ends_with(INDEX_SUFFIX));
    let mut files = names.iter().filter(|name| is_data_file(name));
    Ok(is_said || parts || beside && files.any(|name| has_structure(&name)))
}

fn is_data_file(name: &str) -> bool {
    !name.contains('/') && name.ends_with(SUFFIX)
}

/// The names of all files below the folder, without side files and `regrow.json`.
fn names_in(store: &dyn Store) -> Result<BTreeSet<String>> {
    let names = store.list(b"")?.into_iter().filter_map(|key| String::from_utf8(key).ok());
    Ok(names.filter(|name| !is_name_of_side_file(name) && name != manifest::FILE_NAME).collect())
}

/// Rebuilds documents and the database from `regrow.json`, if they differ from their records.
/// Rebuilds `regrow.json`, too, if a rebuilt file needs a new record.
fn documents(reader: Arc<RegrowReader>) -> Result<Vec<RecoveredFile>> {
    let mut whole: HashMap<String, SmallFile> = HashMap::new();
    let mut recorded: HashMap<&str, &SmallFile> = HashMap::new();
    for record in reader.store().small_records() {
        recorded.insert(&record.name, record);
        if reader.store().is_whole(record)? {
            whole.insert(record.name.clone(), record.clone());
        }
    }
    let leaves = reader.tree().leaves();
    let has_arrays = leaves.iter().any(|info| info.kind.is_array() && !info.shape.is_empty());
    let needed = [
        (METADATA_FILE, true),
        (CHECKPOINT_METADATA_FILE, true),
        (COMMIT_SUCCESS_FILE, true),
        (MANIFEST_KEY, has_arrays),
        (STRINGS_FILE, leaves.iter().any(|info| info.kind == LeafKind::Str)),
        (SHARDING_FILE, leaves.iter().any(|info| info.kind == LeafKind::JaxArray)),
    ];
    let has_record = needed.iter().all(|(name, is_needed)| !is_needed || recorded.contains_key(name));
    if whole.len() == recorded.len() && has_record {
        return Ok(Vec::new());
    }
    // The files of the database have other names in each save, and only its manifest lists them.
    let mut in_database = recorded.keys().filter(|name| is_in_database(name));
    let is_database_whole =
        !has_arrays || whole.contains_key(MANIFEST_KEY) && in_database.all(|name| whole.contains_key(*name));
    let Remade { files, manifest } = save::remake(&reader, &whole, is_database_whole)?;
    if files.is_empty() {
        return Ok(Vec::new());
    }
    // A file with the recorded bytes needs no new record: a signature over the old record still
    // fits.
    let is_recorded = |(name, bytes): &(String, Vec<u8>)| {
        recorded.get(name.as_str()).is_some_and(|record| **record == SmallFile::of_bytes(name.clone(), bytes))
    };
    let is_same = has_record && files.iter().all(is_recorded);
    let recovered = |(name, bytes): (String, Vec<u8>)| {
        let how = match name.as_str() {
            MANIFEST_KEY => "rebuilt from regrow.json, which has the position of each leaf",
            CHECKPOINT_METADATA_FILE => {
                "rebuilt; its times are those of the repair, and your metadata in \
                it is lost"
            }
            _ => "rebuilt from regrow.json, which has the pytree",
        };
        RecoveredFile { name, bytes, how: how.to_owned(), is_guess: false }
    };
    let mut files: Vec<RecoveredFile> = files.into_iter().map(recovered).collect();
    if !is_same {
        files.push(RecoveredFile {
            name: manifest::FILE_NAME.to_owned(),
            bytes: manifest,
            how: "records the rebuilt files".to_owned(),
            is_guess: false,
        });
    }
    Ok(files)
}

fn record(at: &Location) -> Result<Vec<RecoveredFile>> {
    let store = at.opened()?;
    let mut names = names_in(&*store)?;
    let Parts { records: parts, whole, chunks } = Parts::read(&*store, &mut names)?;
    let mut data = DataFiles::default();
    for name in names.iter().filter(|name| is_data_file(name)) {
        data.add(&*store, name).in_file(at.join(name))?;
    }
    data.add_chunks(&store)?;
    // In a save by several processes, the header of a data file has the pytree of its pieces.
    let known = whole.or_else(|| data.structure.take().filter(|_| parts.is_empty()));
    let guessed = if known.is_none() { ", its pytree from Orbax' documents" } else { "" };
    let structure = match known {
        Some(structure) => structure,
        None if parts.is_empty() => structure_of(&*Orbax.open(at, &OpenOptions::default())?)?,
        None => {
            return Err(Error::corrupt("regrow.json is lost, and no record of a process has the pytree")
                .in_file(at.join(manifest::FILE_NAME))
                .help("copy the checkpoint again; its files open as safetensors"));
        }
    };
    let tree = Structure::from_json(&structure)?.regrow()?.tree;
    let places = data.places(&tree, !parts.is_empty()).in_file(at)?;
    let known: HashSet<&str> = data.files.iter().map(|file| file.name.as_str()).collect();
    let database = OcdbtStore::open(Arc::clone(&store)).and_then(|it| it.entries().map(|_| it)).ok();
    // A database that cannot be read counts as missing: it is rebuilt if possible.
    let is_of_broken = |name: &str| database.is_none() && (name == MANIFEST_KEY || is_in_database(name));
    let is_one = |name: &&String| !known.contains(name.as_str()) && is_document(name) && !is_of_broken(name);
    let sum_of = |name: &String| Ok(SmallFile::of_bytes(name.clone(), &bytes_of(&*store, name)?));
    let small: Vec<SmallFile> = names.iter().filter(is_one).map(sum_of).collect::<Result<_>>()?;
    let database_uuid = database.map(|it| manifest::uuid_text(&it.uuid()));
    let metadata = bytes_of(&*store, METADATA_FILE).and_then(|bytes| TreeMetadata::parse(&bytes)).ok();
    let gone = if metadata.is_none() { "; your own metadata is lost" } else { "" };
    let of = match parts.is_empty() {
        true => "rebuilt from the headers of the safetensors files",
        false => "rebuilt from the records of the processes",
    };
    let bytes = save::record_again(save::Found {
        structure: &structure,
        custom_metadata: metadata.and_then(|metadata| metadata.custom_metadata).as_ref(),
        data_files: &data.files,
        files: &small,
        database_uuid: database_uuid.as_deref(),
        parts: &parts,
        chunks: chunks.as_ref(),
        places: &places,
    })?;
    let how = format!("{of}{guessed}{gone}; its checksums are of the files as they are now");
    Ok(vec![RecoveredFile { name: manifest::FILE_NAME.to_owned(), bytes, how, is_guess: true }])
}

fn is_in_database(name: &str) -> bool {
    name.split_once('/').is_some_and(|(top, _)| top == DATA_FOLDER)
}

fn is_document(name: &str) -> bool {
    const DOCUMENTS: [&str; 7] = [
        METADATA_FILE,
        CHECKPOINT_METADATA_FILE,
        SHARDING_FILE,
        STRINGS_FILE,
        COMMIT_SUCCESS_FILE,
        MANIFEST_KEY,
        INDEX_FILE_NAME,
    ];
    let top = name.split_once('/').map(|(top, _)| top);
    DOCUMENTS.contains(&name) || top == Some(ARRAY_METADATAS_FOLDER) || top == Some(DATA_FOLDER)
}

/// The records of all processes of a checkpoint in parts.
#[derive(Default)]
struct Parts {
    /// The records, sorted by rank.
    records: Vec<PartRecord>,
    /// The pytree, and the chunk shapes of its arrays, from the first record.
    whole: Option<String>,
    chunks: Option<ChunkShapes>,
}

impl Parts {
    fn read(store: &dyn Store, names: &mut BTreeSet<String>) -> Result<Self> {
        let mut of_parts: Vec<String> =
            names.iter().filter(|name| manifest::is_record_name(name)).cloned().collect();
        of_parts.sort_by_key(|name| manifest::rank_of_part(name));
        let mut parts = Self::default();
        for name in of_parts {
            let bytes = bytes_of(store, &name)?;
            let place = || store.describe(name.as_bytes());
            let part = Manifest::parse(&bytes).in_file(place())?;
            part.check_names().in_file(place())?;
            if parts.whole.is_none() {
                parts.whole = part.whole.map(|whole| whole.to_json()).transpose()?;
                parts.chunks = part.chunks;
            }
            let data_files: Vec<String> = part.data_files.into_iter().map(|file| file.name).collect();
            names.retain(|known| *known != name && !data_files.contains(known));
            parts.records.push(PartRecord { file: SmallFile::of_bytes(name, &bytes), data_files });
        }
        Ok(parts)
    }
}

fn structure_of(view: &dyn Reader) -> Result<String> {
    let texts: HashMap<usize, Arc<str>> =
        (0..view.tree().len()).filter_map(|leaf| Some((leaf, view.read_text(leaf).ok()?))).collect();
    Structure::of(view.tree(), |leaf| texts.get(&leaf).cloned().unwrap_or_default())?.to_json()
}

/// The data files with the contents of their headers.
#[derive(Default)]
struct DataFiles {
    files: Vec<DataFile>,
    tensors: HashMap<String, (LeafPlace, u64)>,
    /// The pytree, from the first header that has it.
    structure: Option<String>,
}

impl DataFiles {
    fn add(&mut self, store: &dyn Store, name: &str) -> Result<()> {
        let (header, _) = read_header(store, name.as_ref())?;
        for tensor in &header.tensors {
            let place = LeafPlace::Raw { file: self.files.len(), offset_bytes: tensor.offset_bytes };
            if self.tensors.insert(tensor.name.to_string(), (place, tensor.len_bytes)).is_some() {
                return Err(foreign(format!("two of the safetensors files have a tensor {:?}", tensor.name)));
            }
        }
        let structure = header.metadata.into_iter().flatten().find(|(key, _)| key == STRUCTURE);
        if let (Some(known), Some((_, other))) = (&self.structure, &structure)
            && known != other
        {
            return Err(foreign("the safetensors files belong to several pytrees".to_owned()));
        }
        self.structure = self.structure.take().or(structure.map(|(_, text)| text));
        self.files.push(record_of(store, name, header.data_offset)?);
        Ok(())
    }

    /// Adds the files to which the database refers and that have no header: chunks of compressed
    /// leaves.
    fn add_chunks(&mut self, store: &Arc<dyn Store>) -> Result<()> {
        let Ok(database) = OcdbtStore::open(Arc::clone(store)) else { return Ok(()) };
        let Ok(entries) = database.entries() else { return Ok(()) };
        let spans = entries.into_iter().filter_map(|(_, located)| match located {
            Located::At(span) => String::from_utf8(span.key.to_vec()).ok(),
            Located::Inline(_) => None,
        });
        let files: BTreeSet<String> = spans.filter(|name| is_in_database(name)).collect();
        for name in files {
            self.files.push(record_of(&**store, &name, 0)?);
        }
        Ok(())
    }

    fn places(&self, tree: &Tree<LeafInfo>, are_in_parts: bool) -> Result<Vec<LeafPlace>> {
        let place = |info: &LeafInfo| match self.tensors.get(&*info.name) {
            _ if !info.kind.is_array() => Ok(LeafPlace::Nowhere),
            Some((_, len_bytes)) if !are_in_parts && *len_bytes != info.len_bytes() => {
                Err(foreign(format!("the tensor {:?} and its leaf differ in length", info.name)))
            }
            Some((place, _)) if !are_in_parts => Ok(*place),
            _ => Ok(LeafPlace::Chunks),
        };
        tree.leaves().iter().map(place).collect()
    }
}

fn foreign(what: String) -> Error {
    Error::corrupt(what)
        .help("the folder has a file of another checkpoint: move it elsewhere, and repair again")
}

/// The record of a data file, from its present bytes.
fn record_of(store: &dyn Store, name: &str, data_offset: u64) -> Result<DataFile> {
    let blob = store.open(name.as_bytes())?.ok_or_else(|| gone(store, name))?;
    let len_bytes = blob.len_bytes();
    let mut head = work_space(data_offset)?;
    blob.read(0, &mut head, ReadPath::Cached)?;
    let block_len_bytes = FileWriter::BLOCK_LEN_BYTES;
    let mut block_crc32c = Vec::new();
    let mut at = data_offset;
    while at < len_bytes {
        let mut piece =
            work_space((len_bytes - at).min(PIECE_LEN_BYTES / block_len_bytes * block_len_bytes))?;
        blob.read(at, &mut piece, ReadPath::Cached)?;
        block_crc32c.extend(piece.chunks(block_len_bytes as usize).map(crc32c));
        at += piece.len() as u64;
    }
    let (name, head_crc32c) = (name.to_owned(), crc32c(&head));
    Ok(DataFile { name, len_bytes, data_offset, head_crc32c, block_len_bytes, block_crc32c, blake3: None })
}

fn bytes_of(store: &dyn Store, name: &str) -> Result<Vec<u8>> {
    let blob = store.open(name.as_bytes())?.ok_or_else(|| gone(store, name))?;
    let mut bytes = work_space(blob.len_bytes())?;
    blob.read(0, &mut bytes, ReadPath::Cached)?;
    Ok(bytes)
}

fn gone(store: &dyn Store, name: &str) -> Error {
    Error::corrupt("a file of the checkpoint was removed during the repair")
        .in_file(store.describe(name.as_bytes()))
}
