//! The reader of a sealed or signed checkpoint. It uses the layout's reader. A seal adds its
//! checksums where the layout has none; a signature replaces the checksums by its digests.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::check::{Touched, first_bad, untouched_findings};
use crate::array::Region;
use crate::engine::names::names_in;
use crate::error::{Error, Result};
use crate::formats::{Description, Reader, Rest, Sparse, Standing, format_named};
use crate::reads::{BlobRef, Checked, Checks, Coded, Extent, KeyedBlob, Source, Unreadable};
use crate::seal::{Seal, SealedFile};
use crate::storage::side_files::is_name_of_side_file;
use crate::store::{Blob, Store};
use crate::tree::{LeafInfo, Tree};

/// The most files that stay open for reads without the page cache. If a checkpoint has more files,
/// each read opens its file again.
const OPEN_FILES_MAX: usize = 64;

const ADDED_SHOWN_MAX: usize = 20;

/// The reader of a sealed checkpoint.
#[derive(Debug)]
pub(super) struct SealedReader {
    reader: Box<dyn Reader>,
    description: Description,
    seal: Arc<Seal>,
    store: Arc<dyn Store>,
    /// The number of each file, by the name that errors use, which identifies a blob.
    by_name: HashMap<PathBuf, usize>,
    blobs: Vec<OnceLock<Arc<dyn Blob>>>,
    /// If the checkpoint is salvaged: errors of files that the layout reads by their paths.
    lost: HashMap<String, Error>,
}

impl SealedReader {
    /// Wraps the layout's `reader`, whose metadata the seal has already checked.
    /// If the layout reads files by their paths and a block of these files fails, the result is
    /// `Corrupt`. In a salvage, the leaves in such a file are lost instead.
    pub fn new(reader: Box<dyn Reader>, seal: Arc<Seal>, salvage: bool) -> Result<Self> {
        let folder = &seal.place.folder;
        let store = if seal.place.covers_folder { folder.opened()? } else { folder.store() };
        let names =
            seal.files.iter().enumerate().map(|(at, file)| (store.describe(file.name.as_bytes()), at));
        let (by_name, blobs) = (names.collect(), seal.files.iter().map(|_| OnceLock::new()).collect());
        let mut description = reader.description().clone();
        let files = crate::text::counted(seal.files.len(), "file", "files");
        description.notes.push(match seal.signer {
            Some(key) => format!("signed by {key}: {files}"),
            None => format!("sealed: {files}"),
        });
        let lost = HashMap::new();
        let mut sealed = Self { reader, description, seal: Arc::clone(&seal), store, by_name, blobs, lost };
        if seal.signer.is_some()
            && let Some(added) = sealed.added()?.into_iter().next()
        {
            return Err(added);
        }
        let is_read_by_path = format_named(&sealed.description.layout)
            .is_some_and(|format| format.file_names().needs_local_disk);
        if is_read_by_path {
            for (at, file) in seal.files.iter().enumerate() {
                let checked = sealed.checked(at).and_then(|file| file.map_or(Ok(()), first_bad));
                match checked {
                    Err(why) if salvage && why.kind().is_damage() => {
                        sealed.lost.insert(file.name.clone(), why);
                    }
                    checked => checked?,
                }
            }
        }
        Ok(sealed)
    }

    /// The reason why a leaf is lost, if the layout reads its file by the path. The name of the
    /// leaf is then the name of the file.
    fn lost(&self, leaf: usize) -> Option<&Error> {
        let name =
            if self.lost.is_empty() { None } else { self.tree().leaves().get(leaf).map(|info| &*info.name) };
        let is_in = |file: &str, name: &str| {
            name.strip_prefix(file).is_some_and(|at| at.is_empty() || at.starts_with('/'))
        };
        name.and_then(|name| self.lost.iter().find(|(file, _)| is_in(file, name)).map(|(_, why)| why))
    }

    /// A file without its checksums.
    fn blob(&self, at: usize) -> Result<Option<(&Arc<dyn Blob>, &SealedFile)>> {
        let Some((slot, file)) = self.blobs.get(at).zip(self.seal.files.get(at)) else { return Ok(None) };
        if let Some(blob) = slot.get() {
            return Ok(Some((blob, file)));
        }
        let changed = self.seal.said.changed;
        let key = file.name.as_bytes();
        let blob: Arc<dyn Blob> = if self.seal.files.len() > OPEN_FILES_MAX {
            Arc::new(KeyedBlob::new(Arc::clone(&self.store), key, file.len_bytes, changed))
        } else {
            let opened = self.store.open(key)?.filter(|blob| blob.len_bytes() == file.len_bytes);
            opened.ok_or_else(|| changed().in_file(self.store.describe(key)))?
        };
        Ok(Some((slot.get_or_init(|| blob), file)))
    }

    fn checked(&self, at: usize) -> Result<Option<Checked<'_>>> {
        Ok(self.blob(at)?.map(|(blob, file)| Checked { blob: &**blob, table: &file.table }))
    }

    /// An extent of a sealed file, with the checksums of the seal unless it has its own. In a
    /// signed file the digests of the signature are always used.
    fn under_seal<'r>(&'r self, extent: Extent<'r>) -> Result<Extent<'r>> {
        if extent.checks.is_some() && self.seal.signer.is_none() {
            return Ok(extent);
        }
        let Some(&at) = self.by_name.get(&extent.blob.describe()) else { return Ok(extent) };
        let Some(Checked { blob, table }) = self.checked(at)? else { return Ok(extent) };
        let start_bytes = extent.offset_bytes;
        let end_bytes = start_bytes.saturating_add(extent.len_bytes);
        let checks = Some(Checks { table, start_bytes, end_bytes });
        Ok(Extent { blob: BlobRef::Kept(blob), checks, ..extent })
    }

    fn touched(&self) -> Touched {
        let mut touched = Touched::none(&self.seal.files);
        for leaf in 0..self.tree().len() {
            let Ok(Source::Raw(extent)) = self.source(leaf) else { continue };
            if let Some(checks) = extent.checks {
                touched.add(checks);
            }
        }
        touched
    }

    /// Returns an error unless all bytes other than array data match the seal. Blocks that lie
    /// wholly within one raw leaf are checked when that leaf is read. Used if the metadata were
    /// read from unchecked bytes.
    pub fn check_structure(&self) -> Result<()> {
        let mut touched = Touched::none(&self.seal.files);
        for leaf in 0..self.tree().len() {
            let Ok(Source::Raw(extent)) = self.reader.source(leaf) else { continue };
            let Some(&at) = self.by_name.get(&extent.blob.describe()) else { continue };
            let end_bytes = extent.offset_bytes.saturating_add(extent.len_bytes);
            if let Some(file) = self.seal.files.get(at) {
                touched.add_within(at, file, extent.offset_bytes..end_bytes);
            }
        }
        untouched_findings(&touched, |at| self.checked(at))?.into_iter().next().map_or(Ok(()), Err)
    }

    /// Files that were added to the folder after it was sealed.
    fn added(&self) -> Result<Vec<Error>> {
        if !self.seal.place.covers_folder || !self.seal.place.folder.has_listings() {
            return Ok(Vec::new());
        }
        let known: std::collections::HashSet<&str> =
            self.seal.files.iter().map(|file| file.name.as_str()).collect();
        let names = names_in(&self.seal.place.folder, &*self.store)?;
        let added = names.iter().filter(|name| !is_name_of_side_file(name) && !known.contains(name.as_str()));
        let error = |name: &String| (self.seal.said.unlisted)().in_file(self.store.describe(name.as_bytes()));
        Ok(added.take(ADDED_SHOWN_MAX).map(error).collect())
    }
}

impl Reader for SealedReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        self.reader.tree()
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        if let Some(why) = self.lost(leaf) {
            return Ok(Source::Unreadable(Unreadable::lost(why.duplicate())));
        }
        Ok(match self.reader.source(leaf)? {
            Source::Raw(extent) => Source::Raw(self.under_seal(extent)?),
            Source::Coded(Coded { span: Some(span), seal, working_len_bytes }) => {
                Source::Coded(Coded { span: Some(self.under_seal(span)?), seal, working_len_bytes })
            }
            source => source,
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        self.reader.read_region(leaf, region, out)
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        self.reader.holders(leaf)
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        self.reader.sparse(leaf)
    }

    fn read_order(&self) -> Vec<usize> {
        self.reader.read_order()
    }

    fn check_rest(&self) -> Result<Rest> {
        let rest = self.reader.check_rest()?;
        let touched = self.touched();
        let found = untouched_findings(&touched, |at| self.checked(at))?;
        Ok(rest.found(found).found(self.added()?))
    }

    fn standing(&self) -> Standing<'_> {
        // The reader opens a file only when it needs the file, so the file may be replaced before
        // that.
        Standing {
            has_data_checksums: true,
            reads_open_files: false,
            signer: self.seal.signer,
            ..self.reader.standing()
        }
    }
}
