//! A safetensors file, or several of them, or one in memory, as a checkpoint.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::layout::{Header, LENGTH_LEN_BYTES, Tensor};
use super::metadata::{self, STRUCTURE};
use super::packed::unpack_f4;
use super::parts::Parts;
use super::pytree::{self, Placed, Stored, TreeForm};
use crate::array::{Region, copy_region};
use crate::bytes::glance::{Glance, Language};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::regrow::structure::Structure;
use crate::formats::{Description, Reader};
use crate::store::{ByteRange, LocalStore, PrivateMap, Store};
use crate::tree::{LeafInfo, Tree};

/// An opened file or folder.
#[derive(Debug)]
pub(super) struct SafetensorsReader {
    description: Description,
    placed: Placed,
    store: LocalStore,
    files: Vec<DataFile>,
    /// Whether all of it is one file, or bytes in memory: the store goes on reading the file that it opened.
    is_one_file: bool,
}

/// Longer headers are read in pieces of this length.
const PIECE_LEN_BYTES: u64 = 4 << 20;

/// The files of a checkpoint as memory of this process, and where its tensors lie there.
#[derive(Debug)]
pub struct PrivateMaps {
    /// A map of each file.
    pub files: Vec<PrivateMap>,
    /// For each leaf its tensor; `None` for those without elements that can be read.
    pub tensors: Vec<Option<MappedTensor>>,
}

/// The bytes of a tensor, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedTensor {
    /// The number of its file.
    pub file: usize,
    /// Where it begins there.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

#[derive(Debug)]
struct DataFile {
    name: OsString,
    /// When it was opened.
    len_bytes: u64,
    /// All of it, if it is no file but bytes in memory.
    memory: Option<Bytes>,
}

impl SafetensorsReader {
    /// Reads the headers of all files at `path`.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; `NameCollision` if two files hold a tensor of the same name.
    pub(super) fn open(path: &Path, form: &TreeForm) -> Result<Self> {
        Self::open_files(path, form, &mut |_, _| Ok(()))
    }

    /// The same, with private maps of the files whose headers were read.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_mapped(path: &Path, form: &TreeForm) -> Result<(Self, Option<PrivateMaps>)> {
        let mut maps = Vec::new();
        let reader = Self::open_files(path, form, &mut |store, file| {
            // At once: the store closes its oldest file when it has many.
            let map = store.map_private(file.name.as_encoded_bytes())?;
            if map.as_ref().is_some_and(|map| map.len() as u64 != file.len_bytes) {
                return Err(changed(store, file));
            }
            maps.push(map);
            Ok(())
        })?;
        let tensors = reader.placed.tensors.iter();
        let place = |(file, tensor): &Stored| MappedTensor {
            file: *file,
            offset_bytes: tensor.offset_bytes,
            len_bytes: tensor.len_bytes,
        };
        let tensors = tensors.map(|stored| stored.as_ref().map(place)).collect();
        let maps: Option<Vec<_>> = maps.into_iter().collect();
        Ok((reader, maps.map(|files| PrivateMaps { files, tensors })))
    }

    fn open_files(
        path: &Path,
        form: &TreeForm,
        each: &mut dyn FnMut(&LocalStore, &DataFile) -> Result<()>,
    ) -> Result<Self> {
        let parts = Parts::find(path)?;
        let store = LocalStore::new(&parts.folder);
        let is_one_file = parts.index.is_none() && parts.folder != path;
        let mut read = Headers { is_one_file, ..Headers::default() };
        for name in parts.names {
            let file = store.describe(name.as_encoded_bytes());
            let (header, len_bytes) = read_header(&store, &name).in_file(file)?;
            let file = DataFile { name, len_bytes, memory: None };
            each(&store, &file)?;
            read.add(header, file);
        }
        match &parts.index {
            Some((file, index)) => keep_indexed(&mut read.stored, index, &read.files).in_file(file)?,
            None => refuse_equal_names(&read.stored).in_file(path)?,
        }
        let variant = match (read.files.len(), &parts.index) {
            (1, _) => "one file".to_owned(),
            (n, None) => format!("{n} files"),
            (n, Some(_)) => format!("{n} files, with an index"),
        };
        read.place(store, variant, form).in_file(path)
    }

    /// Reads the header of a file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn of_bytes(file: Bytes, form: &TreeForm) -> Result<Self> {
        let too_short = || Error::corrupt("the bytes are too few for a safetensors file").at_byte(0);
        let len_bytes = file.len() as u64;
        let (first, rest) = file.split_first_chunk::<LENGTH_LEN_BYTES>().ok_or_else(too_short)?;
        let header_len = Header::len_bytes(*first, len_bytes)? as usize;
        let header = Header::parse(rest.get(..header_len).ok_or_else(too_short)?, len_bytes)?;
        let mut read = Headers { is_one_file: true, ..Headers::default() };
        read.add(header, DataFile { name: OsString::new(), len_bytes, memory: Some(file) });
        read.place(LocalStore::new(""), "in memory".to_owned(), form)
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

    /// The tensor's bytes in the file, as a slice of the map where there can be one.
    fn stored_bytes(&self, file: &DataFile, tensor: &Tensor) -> Result<Bytes> {
        if file.memory.is_some() {
            return self.read(file, tensor.offset_bytes, tensor.len_bytes);
        }
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(file.name.as_encoded_bytes())? != Some(file.len_bytes) {
            return Err(self.changed(file));
        }
        let Some(map) = self.store.map(file.name.as_encoded_bytes())? else {
            return self.read(file, tensor.offset_bytes, tensor.len_bytes);
        };
        slice(&map, tensor.offset_bytes, tensor.len_bytes).ok_or_else(|| self.changed(file))
    }

    fn changed(&self, file: &DataFile) -> Error {
        changed(&self.store, file)
    }
}

fn changed(store: &LocalStore, file: &DataFile) -> Error {
    Error::corrupt("a safetensors file has changed since it was opened")
        .in_file(store.describe(file.name.as_encoded_bytes()))
        .help("open the checkpoint again")
}

impl Reader for SafetensorsReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        self.placed.texts.get(&leaf).cloned().ok_or_else(|| Error::invalid("the leaf is no text"))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, file, tensor) = self.leaf(leaf)?;
        if region.is_empty() {
            return Ok(());
        }
        if tensor.is_packed() {
            return unpack_f4(&self.stored_bytes(file, tensor)?, &info.shape, region, out);
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
                let bytes = self.stored_bytes(file, tensor)?;
                copy_region(size, &bytes, &info.shape, region, out, &target, &origin)
            }
        }
    }

    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        match self.placed.tensors.get(leaf) {
            Some(Some((_, tensor))) if !tensor.is_packed() => {
                let (_, file, tensor) = self.leaf(leaf)?;
                self.stored_bytes(file, tensor).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn reads_open_files(&self) -> bool {
        self.is_one_file
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let place = |leaf: usize| self.placed.tensors.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|(file, tensor)| (*file, tensor.offset_bytes)));
        order
    }
}

/// What the headers of all files say.
#[derive(Default)]
struct Headers {
    is_one_file: bool,
    files: Vec<DataFile>,
    stored: Vec<Stored>,
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
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

    fn place(self, store: LocalStore, variant: String, form: &TreeForm) -> Result<SafetensorsReader> {
        let Self { is_one_file, files, stored, metadata } = self;
        let mut description = Description {
            layout: "safetensors".to_owned(),
            variant,
            notes: vec!["safetensors files have no checksums: damage to their data goes unseen".to_owned()],
            ..Description::default()
        };
        let placed = match form {
            TreeForm::Kept => place_kept(stored, metadata.unwrap_or_default(), &mut description)?,
            TreeForm::Flat | TreeForm::Nested(_) => {
                description.custom_metadata = metadata.map(Into::into);
                match form {
                    TreeForm::Nested(separator) => pytree::nested(stored, separator)?,
                    _ => pytree::flat(stored)?,
                }
            }
        };
        Ok(SafetensorsReader { description, placed, store, files, is_one_file })
    }
}

/// The pytree that regrow kept in the metadata, or a flat dict.
fn place_kept(
    stored: Vec<Stored>,
    mut metadata: serde_json::Map<String, serde_json::Value>,
    description: &mut Description,
) -> Result<Placed> {
    let structure = metadata.shift_remove(STRUCTURE);
    let placed = match structure.as_ref().and_then(serde_json::Value::as_str).map(regrow) {
        Some(Ok(regrown)) => {
            let placed = pytree::kept(regrown, &stored)?;
            description.custom_metadata = metadata::custom(metadata);
            return Ok(placed);
        }
        Some(Err(error)) => {
            let note = format!("its pytree cannot be read, only its tensors: {}", error.what());
            description.notes.push(note);
            pytree::flat(stored)?
        }
        None => pytree::flat(stored)?,
    };
    description.custom_metadata = (!metadata.is_empty()).then_some(metadata.into());
    Ok(placed)
}

fn slice(bytes: &Bytes, offset_bytes: u64, len_bytes: u64) -> Option<Bytes> {
    let end = offset_bytes.checked_add(len_bytes).filter(|&end| end <= bytes.len() as u64)?;
    Some(bytes.slice(offset_bytes as usize..end as usize))
}

fn read_header(store: &LocalStore, name: &OsStr) -> Result<(Header, u64)> {
    let missing = || Error::corrupt("a safetensors file is missing").help("copy the whole checkpoint again");
    let key = name.as_encoded_bytes();
    let range = |offset_bytes, len_bytes| ByteRange::Span { offset_bytes, len_bytes };
    let first = store.get(key, range(0, LENGTH_LEN_BYTES as u64))?.ok_or_else(missing)?;
    // Of the file that is open now, whatever has its name.
    let file_len_bytes = store.len_bytes(key)?.ok_or_else(missing)?;
    let first = first.as_ref().try_into().map_err(|_| missing())?;
    let len_bytes = Header::len_bytes(first, file_len_bytes)?;
    let json = match len_bytes {
        // A header may say that it is as long as the limit, and be nothing.
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
    Ok((Header::parse(&json, file_len_bytes)?, file_len_bytes))
}

fn regrow(structure: &str) -> Result<crate::formats::regrow::structure::Regrown> {
    Structure::from_json(structure)?.regrow()
}

/// Leaves the tensors that the index names, and those in the files that it names for them.
fn keep_indexed(stored: &mut Vec<Stored>, index: &Index, files: &[DataFile]) -> Result<()> {
    let file_name = |file: usize| files.get(file).and_then(|file| file.name.to_str());
    stored.retain(|(file, tensor)| index.file_of(&tensor.name) == file_name(*file));
    let names: HashSet<&str> = stored.iter().map(|(_, tensor)| &*tensor.name).collect();
    match index.tensors().find(|(tensor, _)| !names.contains(tensor)) {
        Some((tensor, file)) => {
            Err(Error::corrupt(format!("tensor {tensor:?} is not in {file}, as the index says"))
                .help("the index and the files are not of the same checkpoint; copy all of them again"))
        }
        None => Ok(()),
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
