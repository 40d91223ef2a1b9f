//! A safetensors file, or several of them, as a checkpoint.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::index::Index;
use super::layout::{Header, LENGTH_LEN_BYTES, Tensor};
use super::packed::unpack_f4;
use super::parts::Parts;
use super::pytree::{self, Placed, Stored};
use crate::array::{Region, copy_region};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::regrow::structure::Structure;
use crate::formats::{Description, Reader};
use crate::store::{ByteRange, LocalStore, Store};
use crate::tree::{LeafInfo, Tree};

/// Name in `__metadata__` under which regrow keeps the exact pytree.
const STRUCTURE: &str = "regrow";

/// An opened file or folder.
#[derive(Debug)]
pub(super) struct SafetensorsReader {
    description: Description,
    placed: Placed,
    store: LocalStore,
    files: Vec<DataFile>,
}

#[derive(Debug)]
struct DataFile {
    name: String,
    /// When it was opened.
    len_bytes: u64,
}

impl SafetensorsReader {
    /// Reads the headers of all files at `path`.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; `NameCollision` if two files hold a tensor of the same name.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let parts = Parts::find(path)?;
        let store = LocalStore::new(&parts.folder);
        let mut files: Vec<DataFile> = Vec::with_capacity(parts.names.len());
        let mut stored: Vec<Stored> = Vec::new();
        let mut metadata = serde_json::Map::new();
        for name in parts.names {
            let file = store.describe(name.as_bytes());
            let (header, len_bytes) = read_header(&store, &name).in_file(file)?;
            for (key, text) in header.metadata {
                metadata.entry(key).or_insert(text.into());
            }
            stored.extend(header.tensors.into_iter().map(|tensor| (files.len(), tensor)));
            files.push(DataFile { name, len_bytes });
        }
        match &parts.index {
            Some((file, index)) => keep_indexed(&mut stored, index, &files).in_file(file)?,
            None => refuse_equal_names(&stored).in_file(path)?,
        }
        let mut description = Description {
            layout: "safetensors".to_owned(),
            variant: match (files.len(), &parts.index) {
                (1, _) => "one file".to_owned(),
                (n, None) => format!("{n} files"),
                (n, Some(_)) => format!("{n} files, with an index"),
            },
            notes: vec!["safetensors files have no checksums: damage to their data goes unseen".to_owned()],
            ..Description::default()
        };
        let structure = metadata.shift_remove(STRUCTURE);
        let placed = match structure.as_ref().and_then(serde_json::Value::as_str).map(regrow) {
            Some(Ok(regrown)) => pytree::kept(regrown, &stored).in_file(path)?,
            other => {
                if let Some(Err(error)) = other {
                    let note = format!("its pytree cannot be read, only its tensors: {}", error.what());
                    description.notes.push(note);
                }
                pytree::flat(stored).in_file(path)?
            }
        };
        description.custom_metadata = (!metadata.is_empty()).then_some(metadata.into());
        Ok(Self { description, placed, store, files })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &DataFile, &Tensor)> {
        let info = self.placed.tree.leaves().get(leaf);
        let stored = self.placed.tensors.get(leaf).and_then(Option::as_ref);
        info.zip(stored)
            .and_then(|(info, (file, tensor))| Some((info, self.files.get(*file)?, tensor)))
            .ok_or_else(|| Error::invalid("the leaf has no elements that can be read"))
    }

    fn read(&self, file: &DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(file.name.as_bytes(), range)?.ok_or_else(|| self.changed(file))
    }

    /// The tensor's bytes in the file, as a slice of the map where there can be one.
    fn stored_bytes(&self, file: &DataFile, tensor: &Tensor) -> Result<Bytes> {
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(file.name.as_bytes())? != Some(file.len_bytes) {
            return Err(self.changed(file));
        }
        let Some(map) = self.store.map(file.name.as_bytes())? else {
            return self.read(file, tensor.offset_bytes, tensor.len_bytes);
        };
        let end = tensor.offset_bytes + tensor.len_bytes;
        if end > map.len() as u64 {
            return Err(self.changed(file));
        }
        Ok(map.slice(tensor.offset_bytes as usize..end as usize))
    }

    fn changed(&self, file: &DataFile) -> Error {
        Error::corrupt("a safetensors file has changed since it was opened")
            .in_file(self.store.describe(file.name.as_bytes()))
            .help("open the checkpoint again")
    }
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

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let place = |leaf: usize| self.placed.tensors.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|(file, tensor)| (*file, tensor.offset_bytes)));
        order
    }
}

fn read_header(store: &LocalStore, name: &str) -> Result<(Header, u64)> {
    let missing = || Error::corrupt("a safetensors file is missing").help("copy the whole checkpoint again");
    let key = name.as_bytes();
    let file_len_bytes = store.len_bytes(key)?.ok_or_else(missing)?;
    let range = |offset_bytes, len_bytes| ByteRange::Span { offset_bytes, len_bytes };
    let first = store.get(key, range(0, LENGTH_LEN_BYTES as u64))?.ok_or_else(missing)?;
    let first = first.as_ref().try_into().map_err(|_| missing())?;
    let len_bytes = Header::len_bytes(first, file_len_bytes)?;
    let json = store.get(key, range(LENGTH_LEN_BYTES as u64, len_bytes))?.ok_or_else(missing)?;
    Ok((Header::parse(&json, file_len_bytes)?, file_len_bytes))
}

fn regrow(structure: &str) -> Result<crate::formats::regrow::structure::Regrown> {
    Structure::from_json(structure)?.regrow()
}

/// Leaves the tensors that the index names, and those in the files that it names for them.
fn keep_indexed(stored: &mut Vec<Stored>, index: &Index, files: &[DataFile]) -> Result<()> {
    let file_name = |file: usize| files.get(file).map(|file| file.name.as_str());
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
