//! A safetensors file, or a folder of them, as a checkpoint.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::layout::{Header, LENGTH_LEN_BYTES, Tensor, stored_as};
use crate::array::{Dtype, Region, Shape, copy_region};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::regrow::structure::Structure;
use crate::formats::{Description, Reader};
use crate::store::{ByteRange, LocalStore, Store};
use crate::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// How the names of safetensors files end.
const SUFFIX: &str = ".safetensors";

/// Name in `__metadata__` under which regrow keeps the exact pytree.
const STRUCTURE: &str = "regrow";

/// An opened file or folder.
#[derive(Debug)]
pub(super) struct SafetensorsReader {
    description: Description,
    tree: Tree<LeafInfo>,
    texts: HashMap<usize, Arc<str>>,
    /// For each leaf its file and tensor; `None` for leaves without data.
    tensors: Vec<Option<(usize, Tensor)>>,
    store: LocalStore,
    /// Names below the store's folder, and how long each was when it was opened.
    files: Vec<(String, u64)>,
}

/// The safetensors files at `path`: the file itself, or those in the folder, sorted.
pub(super) fn files_at(path: &Path) -> Result<Vec<PathBuf>> {
    let is_one = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX));
    if path.is_file() {
        return Ok(if is_one(path) { vec![path.to_owned()] } else { Vec::new() });
    }
    let entries = std::fs::read_dir(path).map_err(|source| Error::io("cannot list", path, source))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_one(path) && path.is_file()).collect();
    files.sort();
    Ok(files)
}

impl SafetensorsReader {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let paths = files_at(path)?;
        let folder = if path.is_file() { path.parent().unwrap_or(Path::new("")) } else { path };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let store = LocalStore::new(folder);
        let mut files = Vec::new();
        let mut found: Vec<(usize, Tensor)> = Vec::new();
        let mut structure = None;
        let mut notes = Vec::new();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (header, len_bytes) = read_header(&store, &name).in_file(&path)?;
            for (key, text) in header.metadata {
                if key == STRUCTURE && structure.is_none() {
                    structure = Some(text);
                }
            }
            found.extend(header.tensors.into_iter().map(|tensor| (files.len(), tensor)));
            files.push((name, len_bytes));
        }
        let by_name: HashMap<Arc<str>, &(usize, Tensor)> =
            found.iter().map(|entry| (entry.1.name.clone(), entry)).collect();
        if by_name.len() != found.len() {
            return Err(Error::new(
                ErrorKind::NameCollision,
                "two safetensors files hold a tensor of the same name",
            )
            .in_file(path)
            .help("open the files one at a time"));
        }
        let regrown =
            structure.map(|text| Structure::from_json(&text).and_then(|structure| structure.regrow()));
        let (tree, texts, tensors) = match regrown {
            Some(Ok(regrown)) => {
                let tensors = place(&regrown.tree, &by_name).in_file(path)?;
                (regrown.tree, regrown.texts, tensors)
            }
            other => {
                if let Some(Err(error)) = other {
                    notes.push(format!("its pytree cannot be read, only its tensors: {}", error.what()));
                }
                let (tree, tensors) = flat(&found)?;
                (tree, HashMap::new(), tensors)
            }
        };
        notes.push("safetensors files have no checksums: damage to their data goes unseen".to_owned());
        let variant = match files.len() {
            1 => "one file".to_owned(),
            n => format!("{n} files"),
        };
        let description =
            Description { layout: "safetensors".to_owned(), variant, notes, ..Description::default() };
        Ok(Self { description, tree, texts, tensors, store, files })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &str, &Tensor)> {
        let info = self.tree.leaves().get(leaf);
        let found = self.tensors.get(leaf).and_then(Option::as_ref);
        match info.zip(found).and_then(|(info, (file, tensor))| Some((info, self.files.get(*file)?, tensor)))
        {
            Some((info, (file, _), tensor)) => Ok((info, file, tensor)),
            None => Err(Error::invalid("the leaf has no elements")),
        }
    }
}

impl Reader for SafetensorsReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        self.texts.get(&leaf).cloned().ok_or_else(|| Error::invalid("the leaf is no text"))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, file, tensor) = self.leaf(leaf)?;
        let (target, origin) = (region.shape(), vec![0; region.rank()]);
        let size = info.dtype.size_bytes();
        if let Some((start, len_bytes)) = region.contiguous_bytes(&info.shape, info.dtype) {
            let range = ByteRange::Span { offset_bytes: tensor.offset_bytes + start, len_bytes };
            let bytes = self.store.get(file.as_bytes(), range)?.ok_or_else(|| gone(&self.store, file))?;
            return copy_region(size, &bytes, &target, &Region::whole(&target), out, &target, &origin);
        }
        let range = ByteRange::Span { offset_bytes: tensor.offset_bytes, len_bytes: tensor.len_bytes };
        let bytes = match self.view(leaf)? {
            Some(view) => view,
            None => self.store.get(file.as_bytes(), range)?.ok_or_else(|| gone(&self.store, file))?,
        };
        copy_region(size, &bytes, &info.shape, region, out, &target, &origin)
    }

    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        let Some(Some((file, tensor))) = self.tensors.get(leaf) else { return Ok(None) };
        let Some((name, len_bytes)) = self.files.get(*file) else { return Ok(None) };
        // A file that has shrunk since it was opened would fault where it ends.
        if self.store.len_bytes(name.as_bytes())? != Some(*len_bytes) {
            return Err(gone(&self.store, name));
        }
        let Some(map) = self.store.map(name.as_bytes())? else { return Ok(None) };
        let end = tensor.offset_bytes + tensor.len_bytes;
        if end > map.len() as u64 {
            return Err(gone(&self.store, name));
        }
        Ok(Some(map.slice(tensor.offset_bytes as usize..end as usize)))
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        let place = |leaf: usize| self.tensors.get(leaf).and_then(Option::as_ref);
        order.sort_by_key(|&leaf| place(leaf).map(|(file, tensor)| (*file, tensor.offset_bytes)));
        order
    }
}

fn gone(store: &LocalStore, file: &str) -> Error {
    Error::corrupt("a safetensors file has changed since it was opened")
        .in_file(store.describe(file.as_bytes()))
}

fn read_header(store: &LocalStore, name: &str) -> Result<(Header, u64)> {
    let missing = || Error::corrupt("a safetensors file is gone");
    let key = name.as_bytes();
    let file_len_bytes = store.len_bytes(key)?.ok_or_else(missing)?;
    let range = |offset_bytes, len_bytes| ByteRange::Span { offset_bytes, len_bytes };
    let first = store.get(key, range(0, LENGTH_LEN_BYTES as u64))?.ok_or_else(missing)?;
    let first = first.as_ref().try_into().map_err(|_| missing())?;
    let len_bytes = Header::len_bytes(first, file_len_bytes)?;
    let json = store.get(key, range(LENGTH_LEN_BYTES as u64, len_bytes))?.ok_or_else(missing)?;
    Ok((Header::parse(&json, file_len_bytes)?, file_len_bytes))
}

/// Finds the tensor of every leaf of a pytree that regrow has kept.
fn place(
    tree: &Tree<LeafInfo>,
    by_name: &HashMap<Arc<str>, &(usize, Tensor)>,
) -> Result<Vec<Option<(usize, Tensor)>>> {
    let mut tensors = Vec::with_capacity(tree.len());
    for (path, info) in tree.iter() {
        if !info.kind.is_array() {
            tensors.push(None);
            continue;
        }
        let Some((file, tensor)) = by_name.get(&info.name) else {
            return Err(Error::corrupt("the file lacks the tensor of a leaf of its pytree")
                .at_leaf(&path)
                .help("compressed leaves and other files of the checkpoint lie beside it; open the whole folder"));
        };
        let (tag, dims) = stored_as(info.dtype, &info.shape);
        let found =
            tensor.dtype.map_or_else(str::to_owned, |dtype| stored_as(dtype, &tensor.shape).0.to_owned());
        if found != tag || tensor.shape.dims() != dims {
            return Err(Error::corrupt("a tensor is not what the pytree says")
                .at_leaf(&path)
                .expected(format_args!("{tag} {dims:?}"), format_args!("{found} {}", tensor.shape)));
        }
        tensors.push(Some((*file, tensor.clone())));
    }
    Ok(tensors)
}

/// Any other file: a flat dict, by name.
#[expect(clippy::type_complexity, reason = "a tree and what goes with each of its leaves")]
fn flat(found: &[(usize, Tensor)]) -> Result<(Tree<LeafInfo>, Vec<Option<(usize, Tensor)>>)> {
    let raw: Arc<str> = Arc::from("raw");
    let mut build = TreeBuilder::new();
    let mut tensors = Vec::with_capacity(found.len());
    build.open(Key::Index(0), NodeKind::Dict)?;
    for (file, tensor) in found {
        let (kind, dtype) = match tensor.dtype {
            Ok(dtype) => (LeafKind::NumpyArray, dtype),
            Err(name) => (LeafKind::Unknown(Arc::from(format!("safetensors {name}"))), Dtype::UInt8),
        };
        let decoded = kind == LeafKind::NumpyArray;
        let shape = if decoded { tensor.shape.clone() } else { Shape::new(vec![tensor.len_bytes])? };
        let info = LeafInfo {
            kind,
            dtype,
            shape,
            name: tensor.name.clone(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: raw.clone(),
        };
        build.leaf(Key::Dict(tensor.name.clone()), info)?;
        tensors.push(decoded.then(|| (*file, tensor.clone())));
    }
    build.close()?;
    Ok((build.finish()?, tensors))
}
