//! A folder in an archive as a store of keys, and one member as a blob.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::index::{Place, Value, folder_prefix};
use super::{ArchiveStorage, Opened, READ_ONLY, refused};
use crate::bytes::glance::Glance;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result, ResultExt};
use crate::store::{
    Blob, ByteRange, CACHED_LEN_BYTES, EachChunk, FETCH_LEN_MAX_BYTES, Located, ReadPath, Scratch, Span,
    Store, StoreCapabilities, StoreExt, StoreMaps, StoreVersions, Suits, Version, missing, resolve_range,
};
use crate::system::name_of_bytes;
use crate::{Document, Storage};

/// Documents up to this length are read at once. Longer documents are read in pieces, and each
/// piece must look like the language of the document.
const AT_ONCE_LEN_MAX_BYTES: u64 = 4 << 20;

/// Length of each piece of a long document.
const PIECE_LEN_BYTES: u64 = 1 << 20;

/// The keys below a folder in an archive. Read only.
#[derive(Debug, Clone)]
pub(super) struct ArchiveStore {
    storage: ArchiveStorage,
    folder: PathBuf,
}

impl ArchiveStore {
    /// Makes the store; the folder need not exist.
    pub(super) fn new(storage: ArchiveStorage, folder: &Path) -> Self {
        Self { storage, folder: folder.to_owned() }
    }

    fn name_of(&self, key: &[u8]) -> Result<Vec<u8>> {
        Ok([&folder_prefix(&self.storage.key_of(&self.folder)?), key].concat())
    }

    fn find(&self, key: &[u8]) -> Result<Option<MemberBlob>> {
        let opened = self.storage.opened()?;
        let Some(value) = opened.index.value(&self.name_of(key)?) else { return Ok(None) };
        MemberBlob::of(&opened, value, self.describe(key)).map(Some)
    }

    fn need(&self, key: &[u8]) -> Result<MemberBlob> {
        self.find(key)?.ok_or_else(|| missing(self.describe(key)))
    }

    /// The first bytes of a value, at most `len_max_bytes`; `None` if the archive lacks the key.
    pub(super) fn beginning(&self, key: &[u8], len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let Some(blob) = self.find(key)? else { return Ok(None) };
        let mut bytes = work_space(blob.len_bytes.min(len_max_bytes))?;
        blob.read(0, &mut bytes, ReadPath::Cached)?;
        Ok(Some(bytes))
    }

    /// Reads a whole document. A long document is read in pieces. The read fails at the first piece
    /// that does not look like the language of the document.
    pub(super) fn document(&self, key: &[u8], document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let Some(blob) = self.find(key)? else { return Ok(None) };
        document.check_len(blob.len_bytes).in_file(&blob.name)?;
        if blob.len_bytes <= AT_ONCE_LEN_MAX_BYTES {
            return self.beginning(key, blob.len_bytes);
        }
        let mut glance = Glance::new(document.language);
        let mut bytes = Vec::new();
        let mut piece = work_space(PIECE_LEN_BYTES)?;
        while let left @ 1.. = blob.len_bytes - bytes.len() as u64 {
            let piece = piece.get_mut(..left.min(PIECE_LEN_BYTES) as usize).unwrap_or_default();
            blob.read(bytes.len() as u64, piece, ReadPath::Streamed)?;
            glance.look(piece).in_file(&blob.name)?;
            bytes.extend_from_slice(piece);
        }
        Ok(Some(bytes))
    }
}

impl Store for ArchiveStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some(blob) = self.find(key)? else { return Ok(None) };
        let part = resolve_range(range, blob.len_bytes).in_file(&blob.name)?;
        let mut bytes = work_space(part.end - part.start)?;
        blob.read(part.start, &mut bytes, ReadPath::Cached)?;
        Ok(Some(bytes.into()))
    }

    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some(blob) = self.find(key)? else { return Ok(false) };
        let part = resolve_range(range, blob.len_bytes).in_file(&blob.name)?;
        let mut scratch = Scratch::default();
        let mut at = part.start;
        while at < part.end {
            let len = (part.end - at).min(FETCH_LEN_MAX_BYTES);
            let is_local = self.storage.file.local_path().is_ok();
            let (way, step) = match blob.is_cached(at, len) && is_local {
                true => (ReadPath::Cached, CACHED_LEN_BYTES),
                false => (ReadPath::Direct, len),
            };
            let end = at + len;
            while at < end {
                let step = step.min(end - at);
                each(blob.fetch(at, step as usize, way, &mut scratch)?)?;
                at += step;
            }
        }
        Ok(true)
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (opened, start) = (self.storage.opened()?, self.name_of(b"")?);
        let whole = [start.as_slice(), prefix].concat();
        Ok(opened.index.values(&whole).filter_map(|name| Some(name.get(start.len()..)?.to_vec())).collect())
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        let opened = self.storage.opened()?;
        let Some(value) = opened.index.value(&self.name_of(key)?) else { return Ok(None) };
        opened.check_len()?;
        Ok(Some(value.len_bytes))
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        Ok(self.len_bytes(key)?.map(|len_bytes| {
            Located::At(Span { store: Arc::new(self.clone()), key: key.into(), offset_bytes: 0, len_bytes })
        }))
    }

    fn open(&self, key: &[u8]) -> Result<Option<Arc<dyn Blob>>> {
        Ok(self.find(key)?.map(|blob| Arc::new(blob) as Arc<dyn Blob>))
    }

    fn read_into(&self, key: &[u8], offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.need(key)?.read(offset_bytes, out, ReadPath::Cached)
    }

    fn read_document(&self, key: &str, document: Document<'_>) -> Result<Option<Vec<u8>>> {
        let top = Self::new(self.storage.clone(), Path::new(""));
        top.document(&self.name_of(key.as_bytes())?, document)
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.storage.describe(&self.folder.join(name_of_bytes(key)))
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { writes: Err(READ_ONLY), maps: Some(self), versions: Some(self) }
    }
}

impl StoreMaps for ArchiveStore {
    fn map(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.find(key)? {
            Some(blob) => blob.map(),
            None => Ok(None),
        }
    }

    fn is_cached(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> bool {
        match self.find(key) {
            Ok(Some(blob)) => blob.is_cached(offset_bytes, len_bytes),
            _ => true,
        }
    }
}

impl StoreVersions for ArchiveStore {
    /// The version of the archive, together with the position of the member in it.
    fn version(&self, key: &[u8]) -> Result<Option<Version>> {
        let Some(blob) = self.find(key)? else { return Ok(None) };
        let file = &self.storage.file;
        let archive = file.parent().store().version(file.name().as_encoded_bytes())?;
        Ok(archive.map(|archive| Version {
            len_bytes: blob.len_bytes,
            text: format!("{} from {} of {}", blob.len_bytes, blob.offset_bytes, archive.text),
        }))
    }
}

impl Opened {
    /// Returns an error if the length of the archive has changed: a map of a shorter file would
    /// fault.
    fn check_len(&self) -> Result<()> {
        match self.blob.has_its_length() {
            true => Ok(()),
            false => Err(Error::corrupt("the length of the archive changed after it was opened")
                .in_file(&self.name)
                .help("another program writes to it: wait until it ends, then open the archive again")),
        }
    }
}

/// One member of an archive: a range of the archive's bytes.
#[derive(Debug)]
struct MemberBlob {
    archive: Arc<Opened>,
    offset_bytes: u64,
    len_bytes: u64,
    name: PathBuf,
}

impl MemberBlob {
    fn of(archive: &Arc<Opened>, value: &Value, name: PathBuf) -> Result<Self> {
        let offset_bytes = match &value.place {
            Place::At(offset_bytes) => *offset_bytes,
            Place::Behind(header) => header.find(&*archive.blob).in_file(&archive.name)?,
            Place::Refused(what) => return Err(refused(what, name)),
        };
        Ok(Self { archive: Arc::clone(archive), offset_bytes, len_bytes: value.len_bytes, name })
    }

    /// The offset in the archive of a part of the member.
    fn place(&self, offset_bytes: u64, len_bytes: usize) -> Result<u64> {
        let span = ByteRange::Span { offset_bytes, len_bytes: len_bytes as u64 };
        resolve_range(span, self.len_bytes).in_file(&self.name)?;
        Ok(self.offset_bytes + offset_bytes)
    }
}

impl Blob for MemberBlob {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn describe(&self) -> PathBuf {
        self.name.clone()
    }

    fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()> {
        self.archive.blob.read(self.place(offset_bytes, out.len())?, out, way)
    }

    fn fetch<'s>(
        &self,
        offset_bytes: u64,
        len: usize,
        way: ReadPath,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [u8]> {
        self.archive.blob.fetch(self.place(offset_bytes, len)?, len, way, scratch)
    }

    fn stream(&self, offset_bytes: u64, len_bytes: u64, each: EachChunk<'_>) -> Result<bool> {
        let span = ByteRange::Span { offset_bytes, len_bytes };
        resolve_range(span, self.len_bytes).in_file(&self.name)?;
        self.archive.blob.stream(self.offset_bytes + offset_bytes, len_bytes, each)
    }

    fn map(&self) -> Result<Option<Bytes>> {
        let Some(map) = self.archive.blob.map()? else { return Ok(None) };
        self.archive.check_len()?;
        let (start, end) = (self.offset_bytes as usize, (self.offset_bytes + self.len_bytes) as usize);
        match end <= map.len() {
            true => Ok(Some(map.slice(start..end))),
            false => Err(missing(self.name.clone())),
        }
    }

    fn is_cached(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.archive.blob.is_cached(self.offset_bytes.saturating_add(offset_bytes), len_bytes)
    }

    fn has_its_length(&self) -> bool {
        self.archive.blob.has_its_length()
    }

    fn suits(&self) -> Suits {
        self.archive.blob.suits()
    }
}
