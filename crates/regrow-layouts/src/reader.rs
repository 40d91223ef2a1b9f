//! The trait that each layout implements for an opened checkpoint. It has only the functions that
//! depend on the layout; the engine does the rest.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::item_folder::ItemFolder;
use regrow_base::error::{Error, Result};
use regrow_protection::PublicKey;
use regrow_storage::location::StepFolder;
use regrow_store::reads::{CheckFor, Extent, Seal, Source, Text, Unreadable};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{LeafInfo, Tree};

/// An opened checkpoint: the metadata is in memory, the data stays on disk. A leaf is identified by
/// its position in flatten order.
pub trait Reader: Debug + Send + Sync {
    /// The layout, variant, steps, items and user metadata of the checkpoint.
    fn description(&self) -> &Description;

    /// The pytree, with the kind, dtype and shape of each leaf.
    fn tree(&self) -> &Tree<LeafInfo>;

    /// Where the data of a leaf is, and how the data is encoded. Reads no data.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such leaf; `Corrupt` if the record of its position is
    /// damaged.
    fn source(&self, leaf: usize) -> Result<Source<'_>>;

    /// Reads `region` of an array leaf into `out`, in C order, little endian. Reads only the chunks
    /// or byte ranges that the region meets, and checks every checksum that covers them. The
    /// checksum of a [`Seal`] is checked only when all parts are read, front to back.
    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()>;

    /// The files with the data of an array whose [`source`](Self::source) lists no file, each with
    /// the decoded length in bytes. Empty if the layout cannot tell. Makes one request to the
    /// storage for each chunk.
    ///
    /// # Errors
    /// Errors of the storage.
    fn holders(&self, _leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        Ok(Vec::new())
    }

    /// The stored part of an array whose shape may be much larger than its data; `None` for all
    /// other arrays. A damaged file may claim any shape, so code that reads whole arrays limits its
    /// memory by the length of the stored part.
    ///
    /// # Errors
    /// Errors of the storage.
    fn sparse(&self, _leaf: usize) -> Result<Option<Sparse>> {
        Ok(None)
    }

    /// Leaves in the order of their bytes on disk, for reading all of them.
    fn read_order(&self) -> Vec<usize>;

    /// Checks every file that is not the data of a leaf: indexes and small files.
    ///
    /// # Errors
    /// Errors of the storage.
    fn check_rest(&self) -> Result<Rest>;

    /// What a caller may rely on while other programs write the files.
    fn standing(&self) -> Standing<'_>;
}

/// The part of an array that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sparse {
    /// The elements repeat. The shape has length 1 on each axis that repeats; the number is the
    /// stored bytes.
    Repeats(Shape, u64),
    /// Only these regions are stored; all other elements have the fill value.
    Regions(Vec<Region>),
}

impl Sparse {
    /// Length of the stored elements after decoding.
    pub fn len_bytes(&self, dtype: Dtype) -> u64 {
        match self {
            Self::Repeats(_, len_bytes) => *len_bytes,
            Self::Regions(regions) => {
                let len = |region: &Region| region.shape().len_bytes(dtype).unwrap_or(u64::MAX);
                regions.iter().map(len).fold(0, u64::saturating_add)
            }
        }
    }
}

/// What a caller may rely on while other programs write the files of a checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing<'r> {
    /// Whether every byte of array data is under a checksum, so that damage is always found.
    pub has_data_checksums: bool,
    /// Whether no program writes the files in place, so that a view of a map does not change. True
    /// for folders that are committed once; false for files that another program may overwrite in
    /// place at its next save.
    pub is_never_rewritten: bool,
    /// Whether all reads use files that stay open from the start: then all data is of one
    /// checkpoint, even if another checkpoint replaces it at the path.
    pub reads_open_files: bool,
    /// The folder of the opened step, if the caller gave the path of a folder of steps.
    pub step_folder: Option<&'r StepFolder>,
    /// The key whose signature covers all data that is read, if the caller required a signature.
    pub signer: Option<PublicKey>,
    /// Whether the pytree is lost. A salvaged checkpoint then has its arrays under their stored
    /// names.
    pub has_lost_pytree: bool,
    /// Whether the tree was guessed from the names of the arrays. A template then finds leaves by
    /// their stored names, too.
    pub has_guessed_tree: bool,
    /// The items of the checkpoint; `None` if it has no items.
    pub items: Option<&'r ItemFolder>,
}

/// One problem that a check has found.
#[derive(Debug)]
pub struct Finding {
    /// The error, with the file, the expected and found values, and help.
    pub error: Error,
}

/// The result of checking all files that are not the data of a leaf.
#[derive(Debug, Default)]
pub struct Rest {
    /// The problems, each with its file.
    pub findings: Vec<Finding>,
    /// Notes that are not errors, each with its file.
    pub notes: Vec<String>,
}

impl Rest {
    /// A result with these notes and no problems.
    pub fn noted(notes: impl IntoIterator<Item = String>) -> Self {
        Self { findings: Vec::new(), notes: notes.into_iter().collect() }
    }

    /// Adds these errors to the problems.
    #[must_use]
    pub fn found(mut self, errors: impl IntoIterator<Item = Error>) -> Self {
        self.findings.extend(errors.into_iter().map(|error| Finding { error }));
        self
    }
}

/// Helper functions for every [`Reader`].
pub trait ReaderExt: Reader {
    /// The text of a leaf of kind `Str`, checked.
    ///
    /// # Errors
    /// `InvalidArgument` if the leaf is not text; `Corrupt`.
    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        match self.source(leaf)? {
            Source::Text(Text::Known(text)) => Ok(text.clone()),
            Source::Text(Text::Stored(extent)) => extent.read_text(),
            _ => Err(Error::invalid("the leaf is not text")),
        }
    }

    /// The whole leaf as a view of a read-only map, if it is stored raw and in one piece; `None`
    /// otherwise. **Not checked**: [`check_view`](Self::check_view) does that.
    ///
    /// # Errors
    /// As [`Reader::source`]; `Corrupt` if the file has changed.
    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        match self.source(leaf)? {
            Source::Raw(extent) => extent.view(),
            Source::Memory(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// The bytes from the first element of an array to the last, if they lie uncompressed in one
    /// file in native byte order. The array may be strided or have permuted axes. `None` otherwise.
    ///
    /// # Errors
    /// As [`Reader::source`].
    fn span(&self, leaf: usize) -> Result<Option<Extent<'_>>> {
        match self.source(leaf)? {
            Source::Raw(extent) => Ok(Some(extent)),
            Source::Coded(coded) => Ok(coded.span),
            _ => Ok(None),
        }
    }

    /// Checks the bytes of a view of this leaf against their stored checksums, each block once.
    ///
    /// # Errors
    /// `Corrupt`; errors of the storage.
    fn check_view(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Raw(extent) => extent.check(CheckFor::Views),
            _ => Ok(()),
        }
    }

    /// Returns an error if a leaf of kind `Unknown` has data that cannot be read. A load would
    /// otherwise drop this data silently.
    ///
    /// # Errors
    /// `Unsupported`; `Corrupt` if it is damaged.
    fn check_unknown(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Unreadable(Unreadable { why, seal, .. }) => seal.check().and(Err(why)),
            _ => Ok(()),
        }
    }

    /// Checks the checksum of a whole leaf. Call this function before reading only a part of the
    /// leaf.
    ///
    /// # Errors
    /// `Corrupt` if the data fails its checksum.
    fn check_before_part(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Coded(coded) => coded.seal.map_or(Ok(()), |seal: Box<dyn Seal + '_>| seal.check()),
            _ => Ok(()),
        }
    }
}
impl<T: Reader + ?Sized> ReaderExt for T {}

/// The description of a checkpoint, from its metadata.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// Name of the layout: `regrow`, `orbax`, `safetensors`.
    pub layout: String,
    /// The variant in words: `ocdbt, zarr v3`.
    pub variant: String,
    /// The step that was opened, for a folder of steps.
    pub step: Option<u64>,
    /// All committed steps, for a folder of steps.
    pub steps: Vec<u64>,
    /// Named parts, for a checkpoint that has them: name and kind (`pytree`, `json`, `files: a,
    /// b`).
    pub items: Vec<(String, String)>,
    /// Items that are lost or have lost a file, each with the reason. The other items can still be
    /// read.
    pub lost_items: Vec<(String, String)>,
    /// The user's own metadata, if any.
    pub custom_metadata: Option<serde_json::Value>,
    /// JSON about objects that the pytree cannot represent, for `regrow.torch`; only some layouts
    /// have it. See `docs/formats/torch-objects.md`.
    pub objects: Option<String>,
    /// Metrics saved with a step, if any.
    pub metrics: Option<serde_json::Value>,
    /// Notes for the user that are not errors: "never synced", "no checksums".
    pub notes: Vec<String>,
    /// What is missing from a checkpoint that can still be read: some saved data may be absent, or
    /// damage may go unseen. An error with [`LostFiles::Error`](crate::options::LostFiles::Error).
    pub warnings: Vec<String>,
}
