//! The reader of a checkpoint: one safetensors file, several files, or a file in memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::iter::repeat;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::layout::{Header, LENGTH_LEN_BYTES, Tensor};
use super::metadata::{self, STRUCTURE};
use super::packed::unpack_f4;
use super::parts::{self, Parts};
use super::pytree::{self, Lost, Placed, Stored, TreeForm};
use crate::structure::Structure;
use crate::{Description, Reader, Rest, Standing};
use regrow_base::bytes::glance::{Glance, Language};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::reads::{
    BlobRef, Coded, Extent, KeyedBlob, MappedPlace, PrivateMaps, Source, Text, Unreadable,
};
use regrow_store::{ByteRange, MemoryStore, Store, StoreExt};
use regrow_tree::array::{Region, Shape, copy_region};
use regrow_tree::tree::{LeafInfo, Tree};

/// An opened file or folder.
#[derive(Debug)]
pub(super) struct SafetensorsReader {
    description: Description,
    placed: Placed,
    store: Arc<dyn Store>,
    files: Vec<DataFile>,
    /// Whether the checkpoint is one file on a local disk, or bytes in memory. The store then reads
    /// from the file that it opened.
    is_one_file: bool,
    /// Whether a salvage lacks the file with the stored pytree.
    has_lost_pytree: bool,
}

/// The length of the pieces in which long headers are read.
const PIECE_LEN_BYTES: u64 = 4 << 20;

#[derive(Debug)]
struct DataFile {
    name: OsString,
    /// Length of the file when it was opened.
    len_bytes: u64,
    /// The bytes, if they are in memory instead of a file.
    memory: Option<Bytes>,
}

impl SafetensorsReader {
    pub(super) fn open(at: &Location, form: &TreeForm) -> Result<Self> {
        Self::open_files(at, form, false, &mut |_, _| Ok(()))
    }

    /// Opens a checkpoint for a salvage. Leaves out unreadable files of a checkpoint of several
    /// files, and reads truncated files up to their end.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_to_salvage(at: &Location) -> Result<Self> {
        Self::open_files(at, &TreeForm::Kept, true, &mut |_, _| Ok(()))
    }

    /// Opens a checkpoint with private maps of its files.
    pub(super) fn open_mapped(at: &Location, form: &TreeForm) -> Result<(Self, Option<PrivateMaps>)> {
        let mut maps = Vec::new();
        let reader = Self::open_files(at, form, false, &mut |store, file| {
            // Map now: the store closes its oldest file when many are open.
            let map = store.map_private(file.name.as_encoded_bytes())?;
            if map.as_ref().is_some_and(|map| map.len() as u64 != file.len_bytes) {
                return Err(changed(store, file));
            }
            maps.push(map);
            Ok(())
        })?;
        let tensors = reader.placed.tensors.iter();
        let place = |(file, tensor): &Stored| MappedPlace {
            file: *file,
            offset_bytes: tensor.offset_bytes,
            len_bytes: tensor.len_bytes,
        };
        let places = tensors.map(|stored| stored.as_ref().map(place)).collect();
        let maps: Option<Vec<_>> = maps.into_iter().collect();
        Ok((reader, maps.map(|files| PrivateMaps { files, places })))
    }

    fn open_files(
        at: &Location,
        form: &TreeForm,
        salvage: bool,
        each: &mut dyn FnMut(&dyn Store, &DataFile) -> Result<()>,
    ) -> Result<Self> {
        let parts = Parts::find(at, salvage)?;
        let store = parts.folder.store();
        let is_one_file = parts.is_one_file && at.local_path().is_ok();
        let lost = salvage.then(|| Lost { at: at.describe(), tensors: BTreeMap::new() });
        let mut read = Headers { is_one_file, salvage: lost, ..Headers::default() };
        let mut unread: HashMap<OsString, Error> = HashMap::new();
        let indexed = parts.names.clone();
        for name in parts.names {
            let file = store.describe(name.as_encoded_bytes());
            let header = match salvage {
                true => read_header_alone(&*store, &name),
                false => read_header(&*store, &name),
            };
            let (header, len_bytes) = match header.in_file(file) {
                Err(why) if salvage && !is_one_file && why.kind().is_damage() => {
                    unread.insert(name, why);
                    continue;
                }
                // The shards that exist show whether the download ended early, or the index belongs
                // to another checkpoint.
                Err(why) if why.what() == MISSING && parts.index.is_some() => {
                    return Err(why.help(parts::help_for_missing(&parts.folder, &indexed)));
                }
                header => header?,
            };
            let file = DataFile { name, len_bytes, memory: None };
            each(&*store, &file)?;
            read.add(header, file);
        }
        match (&parts.index, &mut read.salvage) {
            (Some((file, index)), Some(lost)) => {
                keep_found(&mut read.stored, (file, index), &read.files, &unread, lost);
            }
            (Some((file, index)), None) => {
                keep_indexed(&mut read.stored, index, &read.files).in_file(file)?;
            }
            (None, _) => refuse_equal_names(&read.stored).in_file(at)?,
        }
        read.has_unread = !unread.is_empty();
        if let (true, Some(why)) = (read.files.is_empty(), unread.into_values().next()) {
            return Err(why);
        }
        let variant = match (read.files.len(), &parts.index) {
            (1, _) => "one file".to_owned(),
            (n, None) => format!("{n} files"),
            (n, Some(_)) => format!("{n} files, with an index"),
        };
        let mut reader = read.place(store, variant, form).in_file(at)?;
        if parts.index.is_some() && parts::has_stray_model(&parts.folder, &indexed) {
            reader.description.notes.push(format!(
                "{:?} is not in the index, so regrow does not read it",
                parts::MODEL_FILE_NAME
            ));
        }
        Ok(reader)
    }

    pub(super) fn of_bytes(file: Bytes, form: &TreeForm) -> Result<Self> {
        let too_short = || Error::corrupt("the bytes are too few for a safetensors file").at_byte(0);
        let len_bytes = file.len() as u64;
        let (first, rest) = file.split_first_chunk::<LENGTH_LEN_BYTES>().ok_or_else(too_short)?;
        let header_len = Header::len_bytes(*first, len_bytes)? as usize;
        let header = Header::parse(rest.get(..header_len).ok_or_else(too_short)?, len_bytes)?;
        let mut read = Headers { is_one_file: true, ..Headers::default() };
        read.add(header, DataFile { name: OsString::new(), len_bytes, memory: Some(file) });
        read.place(Arc::new(MemoryStore::new()), "in memory".to_owned(), form)
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &DataFile, &Tensor)> {
        let info = self.placed.tree.leaves().get(leaf);
        let stored = self.placed.tensors.get(leaf).and_then(Option::as_ref);
        info.zip(stored)
            .and_then(|(info, (file, tensor))| Some((info, self.files.get(*file)?, tensor)))
            .ok_or_else(|| Error::invalid("the leaf has no elements that can be read"))
    }

    fn read(&self, file: &DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        if let Some(memory) = &file.memory {
            return slice(memory, offset_bytes, len_bytes).ok_or_else(|| self.changed(file));
        }
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(file.name.as_encoded_bytes(), range)?.ok_or_else(|| self.changed(file))
    }

    /// Bytes of the file, as a slice of its map if there is one.
    fn stored_bytes(&self, file: &DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        match self.mapped(file, offset_bytes, len_bytes)? {
            Some(bytes) => Ok(bytes),
            None => self.read(file, offset_bytes, len_bytes),
        }
    }

    /// Bytes of the file as a slice of its map; `None` if the storage has no maps.
    fn mapped(&self, file: &DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Option<Bytes>> {
        if file.memory.is_some() {
            return self.read(file, offset_bytes, len_bytes).map(Some);
        }
        let Some(map) = self.store.map(file.name.as_encoded_bytes())? else { return Ok(None) };
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(file.name.as_encoded_bytes())? != Some(file.len_bytes) {
            return Err(self.changed(file));
        }
        slice(&map, offset_bytes, len_bytes).map(Some).ok_or_else(|| self.changed(file))
    }

    fn changed(&self, file: &DataFile) -> Error {
        changed(&*self.store, file)
    }
}

fn changed(store: &dyn Store, file: &DataFile) -> Error {
    has_changed().in_file(store.describe(file.name.as_encoded_bytes()))
}

fn has_changed() -> Error {
    Error::corrupt("a safetensors file changed after it was opened").help("open the checkpoint again")
}

impl Reader for SafetensorsReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        if let Some(why) = self.placed.lost.get(&leaf) {
            return Ok(Source::Unreadable(Unreadable::lost(why.duplicate())));
        }
        let Ok((info, file, tensor)) = self.leaf(leaf) else {
            let text = self.placed.texts.get(&leaf);
            return Ok(text.map_or(Source::Nothing, |text| Source::Text(Text::Known(text))));
        };
        if tensor.is_packed() {
            return Ok(Source::Coded(Coded::in_chunks(info.chunk_len_bytes())));
        }
        if file.memory.is_some() {
            return self.read(file, tensor.offset_bytes, tensor.len_bytes).map(Source::Memory);
        }
        let key = file.name.as_encoded_bytes();
        let blob = KeyedBlob::new(self.store.clone(), key, file.len_bytes, has_changed);
        Ok(Source::Raw(Extent {
            blob: BlobRef::Made(Box::new(blob)),
            offset_bytes: tensor.offset_bytes,
            len_bytes: tensor.len_bytes,
            checks: None,
            is_viewable: true,
            working_len_bytes: None,
        }))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        if let Some(why) = self.placed.lost.get(&leaf) {
            return Err(why.duplicate());
        }
        let (info, file, tensor) = self.leaf(leaf)?;
        if region.is_empty() {
            return Ok(());
        }
        if tensor.is_packed() {
            let packed = self.stored_bytes(file, tensor.offset_bytes, tensor.len_bytes)?;
            return unpack_f4(&packed, &info.shape, region, out);
        }
        let (target, origin) = (region.shape(), vec![0; region.rank()]);
        let size = info.dtype.size_bytes();
        match region.contiguous_bytes(&info.shape, info.dtype) {
            Some((start, len_bytes)) if file.memory.is_none() && len_bytes == out.len() as u64 => {
                self.store.read_into(file.name.as_encoded_bytes(), tensor.offset_bytes + start, out)
            }
            Some((start, len_bytes)) => {
                let bytes = self.read(file, tensor.offset_bytes + start, len_bytes)?;
                copy_region(size, &bytes, &target, &Region::whole(&target), out, &target, &origin)
            }
            None => {
                // Take the whole rows that the region touches. Without a map, only these rows are
                // read.
                let rows = rows_of(region, &info.shape)?;
                let (start, len_bytes) =
                    rows.contiguous_bytes(&info.shape, info.dtype).unwrap_or((0, tensor.len_bytes));
                let bytes = self.stored_bytes(file, tensor.offset_bytes + start, len_bytes)?;
                let within = region.relative_to(rows.starts())?;
                copy_region(size, &bytes, &rows.shape(), &within, out, &target, &origin)
            }
        }
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let (info, file, _) = self.leaf(leaf)?;
        Ok(vec![(self.store.describe(file.name.as_encoded_bytes()), info.len_bytes())])
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let place = |leaf: usize| self.placed.tensors.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|(file, tensor)| (*file, tensor.offset_bytes)));
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::default())
    }

    fn standing(&self) -> Standing<'_> {
        let has_lost_pytree = self.has_lost_pytree;
        Standing { reads_open_files: self.is_one_file, has_lost_pytree, ..Standing::default() }
    }
}

/// The contents of the headers of all files.
#[derive(Default)]
struct Headers {
    is_one_file: bool,
    files: Vec<DataFile>,
    stored: Vec<Stored>,
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    salvage: Option<Lost>,
    has_unread: bool,
}

impl Headers {
    fn add(&mut self, header: Header, file: DataFile) {
        if let Some(entries) = header.metadata {
            let metadata = self.metadata.get_or_insert_default();
            for (name, text) in entries {
                metadata.entry(name).or_insert(text.into());
            }
        }
        self.stored.extend(header.tensors.into_iter().map(|tensor| (self.files.len(), tensor)));
        self.files.push(file);
    }

    fn place(self, store: Arc<dyn Store>, variant: String, form: &TreeForm) -> Result<SafetensorsReader> {
        let Self { is_one_file, files, stored, metadata, salvage, has_unread } = self;
        let has_structure = metadata.as_ref().is_some_and(|metadata| metadata.contains_key(STRUCTURE));
        let has_lost_pytree = has_unread && !has_structure;
        let mut description = Description {
            layout: "safetensors".to_owned(),
            variant,
            notes: vec![
                "safetensors files have no checksums: regrow cannot detect damage of their data".to_owned(),
            ],
            ..Description::default()
        };
        let placed = match form {
            TreeForm::Kept => {
                place_kept(stored, metadata.unwrap_or_default(), salvage.as_ref(), &mut description)?
            }
            TreeForm::Flat | TreeForm::Nested(_) => {
                description.custom_metadata = metadata.map(Into::into);
                match form {
                    TreeForm::Nested(separator) => pytree::nested(stored, separator)?,
                    _ => pytree::flat(stored, None)?,
                }
            }
        };
        Ok(SafetensorsReader { description, placed, store, files, is_one_file, has_lost_pytree })
    }
}

/// The pytree that regrow kept in the metadata, or a flat dict.
fn place_kept(
    stored: Vec<Stored>,
    mut metadata: serde_json::Map<String, serde_json::Value>,
    salvage: Option<&Lost>,
    description: &mut Description,
) -> Result<Placed> {
    let structure = metadata.shift_remove(STRUCTURE);
    let placed = match structure.as_ref().and_then(serde_json::Value::as_str).map(regrow) {
        Some(Ok(regrown)) => {
            let placed = pytree::kept(regrown, &stored, salvage)?;
            description.custom_metadata = metadata::custom(metadata);
            return Ok(placed);
        }
        Some(Err(error)) => {
            let note = format!("its pytree cannot be read, but its tensors can: {}", error.what());
            description.notes.push(note);
            pytree::flat(stored, salvage)?
        }
        None => pytree::flat(stored, salvage)?,
    };
    description.custom_metadata = (!metadata.is_empty()).then_some(metadata.into());
    Ok(placed)
}

/// All rows, along the first axis, that `region` touches; for a region that leaves the array, all
/// rows.
fn rows_of(region: &Region, shape: &Shape) -> Result<Region> {
    if !region.is_inside(shape) {
        return Ok(Region::whole(shape));
    }
    let starts = region.starts().iter().copied().take(1).chain(repeat(0)).take(shape.rank());
    let lens = region.lens().iter().take(1).chain(shape.dims().iter().skip(1)).copied();
    Region::new(starts.collect::<Vec<_>>(), lens.collect::<Vec<_>>())
}

fn slice(bytes: &Bytes, offset_bytes: u64, len_bytes: u64) -> Option<Bytes> {
    let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= bytes.len() as u64)?;
    Some(bytes.slice(offset_bytes as usize..end as usize))
}

pub(crate) fn read_header(store: &dyn Store, name: &OsStr) -> Result<(Header, u64)> {
    let (json, file_len_bytes) = read_json(store, name)?;
    Ok((Header::parse(&json, file_len_bytes)?, file_len_bytes))
}

/// As `read_header`, for a file that may be truncated.
fn read_header_alone(store: &dyn Store, name: &OsStr) -> Result<(Header, u64)> {
    let (json, file_len_bytes) = read_json(store, name)?;
    Ok((Header::parse_alone(&json)?, file_len_bytes))
}

const MISSING: &str = "a safetensors file is missing";

/// The text of a header, and the length of its file.
fn read_json(store: &dyn Store, name: &OsStr) -> Result<(Bytes, u64)> {
    let missing = || Error::corrupt(MISSING).help("copy the whole checkpoint again");
    let key = name.as_encoded_bytes();
    let range = |offset_bytes, len_bytes| ByteRange::Span { offset_bytes, len_bytes };
    let first = store.get(key, range(0, LENGTH_LEN_BYTES as u64))?.ok_or_else(missing)?;
    // The length of the opened file, even if its name now leads to another file.
    let file_len_bytes = store.len_bytes(key)?.ok_or_else(missing)?;
    let first = first.as_ref().try_into().map_err(|_| missing())?;
    let len_bytes = Header::len_bytes(first, file_len_bytes)?;
    let json = match len_bytes {
        // The claimed length may be false: look at each piece before the next piece is read.
        PIECE_LEN_BYTES.. => {
            let (mut glance, mut json) = (Glance::new(Language::Json), Vec::new());
            for at in (0..len_bytes).step_by(PIECE_LEN_BYTES as usize) {
                let piece = range(LENGTH_LEN_BYTES as u64 + at, PIECE_LEN_BYTES.min(len_bytes - at));
                let piece = store.get(key, piece)?.ok_or_else(missing)?;
                glance.look(&piece).shift(LENGTH_LEN_BYTES as u64)?;
                json.extend_from_slice(&piece);
            }
            json.into()
        }
        _ => store.get(key, range(LENGTH_LEN_BYTES as u64, len_bytes))?.ok_or_else(missing)?,
    };
    Ok((json, file_len_bytes))
}

fn regrow(structure: &str) -> Result<crate::structure::Regrown> {
    Structure::from_json(structure)?.regrow()
}

/// Keeps only the tensors in the index, each from the file that the index gives.
fn keep_indexed(stored: &mut Vec<Stored>, index: &Index, files: &[DataFile]) -> Result<()> {
    let file_name = |file: usize| files.get(file).and_then(|file| file.name.to_str());
    stored.retain(|(file, tensor)| index.file_of(&tensor.name) == file_name(*file));
    let names: HashSet<&str> = stored.iter().map(|(_, tensor)| &*tensor.name).collect();
    match index.tensors().find(|(tensor, _)| !names.contains(tensor)) {
        Some((tensor, file)) => {
            Err(Error::corrupt(format!("the index lists tensor {tensor:?} in {file}, which lacks it"))
                .help("the index and the files belong to different checkpoints: copy all of them again"))
        }
        None => Ok(()),
    }
}

/// As `keep_indexed`, for a salvage: a tensor in the index that its file lacks is lost.
fn keep_found(
    stored: &mut Vec<Stored>,
    (index_file, index): (&Location, &Index),
    files: &[DataFile],
    unread: &HashMap<OsString, Error>,
    lost: &mut Lost,
) {
    let file_name = |file: usize| files.get(file).and_then(|file| file.name.to_str());
    stored.retain(|(file, tensor)| index.file_of(&tensor.name) == file_name(*file));
    let names: HashSet<&str> = stored.iter().map(|(_, tensor)| &*tensor.name).collect();
    for (tensor, file) in index.tensors().filter(|(tensor, _)| !names.contains(tensor)) {
        let why = unread.get(OsStr::new(file)).map_or_else(
            || {
                Error::corrupt(format!("the index lists the tensor in {file}, which lacks it"))
                    .in_file(index_file)
            },
            Error::duplicate,
        );
        lost.tensors.insert(Arc::from(tensor), why);
    }
}

fn refuse_equal_names(stored: &[Stored]) -> Result<()> {
    let mut names = HashSet::with_capacity(stored.len());
    match stored.iter().find(|(_, tensor)| !names.insert(&tensor.name)) {
        Some((_, twice)) => Err(Error::new(
            ErrorKind::NameCollision,
            format!("two safetensors files hold a tensor {:?}", twice.name),
        )
        .help("open the files one at a time")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReaderExt;
    use regrow_store::MemoryStore;
    use regrow_store::least::Least;
    use regrow_tree::array::Dtype;

    #[test]
    fn without_maps_all_is_read_and_nothing_shown() {
        let name = "every_dtype.safetensors";
        let path = regrow_testkit::fixtures().join("safetensors").join(name);
        let store = Least(MemoryStore::new());
        store.put(name.as_bytes(), std::fs::read(&path).unwrap().into()).unwrap();
        let (header, len_bytes) = read_header(&store, OsStr::new(name)).unwrap();
        let mut read = Headers::default();
        read.add(header, DataFile { name: name.into(), len_bytes, memory: None });
        let far = read.place(Arc::new(store), String::new(), &TreeForm::Kept).unwrap();
        let near = SafetensorsReader::open(&Location::local(path), &TreeForm::Kept).unwrap();
        for (leaf, info) in near.tree().leaves().iter().enumerate() {
            assert!(far.view(leaf).unwrap().is_none());
            let whole = Region::whole(&info.shape);
            // Omit the first index of each axis, so that the region has parts of rows.
            let starts: Vec<u64> = whole.lens().iter().map(|&len| len.min(1)).collect();
            let lens: Vec<u64> = whole.lens().iter().map(|&len| len.saturating_sub(1)).collect();
            for region in [whole, Region::new(starts, lens).unwrap()] {
                let len = region.shape().len_bytes(info.dtype).unwrap_or(0) as usize;
                let (mut mine, mut theirs) = (vec![1; len], vec![2; len]);
                let is_read = near.read_region(leaf, &region, &mut mine).is_ok();
                assert_eq!(far.read_region(leaf, &region, &mut theirs).is_ok(), is_read, "{}", info.name);
                assert!(!is_read || mine == theirs, "{} {region}", info.name);
            }
        }
        let outside = Region::new(vec![1, 1], vec![9, 1]).unwrap();
        let is_matrix = |info: &LeafInfo| info.shape.rank() == 2 && info.dtype == Dtype::Float32;
        let matrix = near.tree().leaves().iter().position(is_matrix).unwrap();
        assert_eq!(
            far.read_region(matrix, &outside, &mut [0; 36]).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
}
