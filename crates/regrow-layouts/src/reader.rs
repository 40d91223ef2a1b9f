//! The interface of a layout for an opened checkpoint. It has only functions that depend on the
//! layout; the engine does the rest.

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

/// An opened checkpoint: metadata in memory, data on disk. Leaves go by their position in flatten
/// order.
pub trait Reader: Debug + Send + Sync {
    /// What the checkpoint says of itself.
    fn description(&self) -> &Description;

    /// The structure, with what is known of each leaf.
    fn tree(&self) -> &Tree<LeafInfo>;

    /// Where the data of a leaf is, and how it is coded. Reads none of it.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such leaf; `Corrupt` if what says where it is, is damaged.
    fn source(&self, leaf: usize) -> Result<Source<'_>>;

    /// Reads `region` of an array leaf into `out`, in C order, little endian; touches only the
    /// chunks or byte ranges that the region meets, and checks all that is checkable of them. What
    /// a [`Seal`] vouches for is checked only when all parts are read, front to back.
    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()>;

    /// The files with the data of an array whose [`source`](Self::source) names none, each with how
    /// many bytes of it, decoded; none where that cannot be told. Looks at the storage, once a
    /// chunk.
    ///
    /// # Errors
    /// Errors of the storage.
    fn holders(&self, _leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        Ok(Vec::new())
    }

    /// What of an array is stored, where its shape may claim much more than is there; `None` for
    /// all others. A file may claim any shape: what reads whole arrays is bound by this.
    ///
    /// # Errors
    /// Errors of the storage.
    fn sparse(&self, _leaf: usize) -> Result<Option<Sparse>> {
        Ok(None)
    }

    /// Leaves in the order in which their bytes lie on disk, for reading them all.
    fn read_order(&self) -> Vec<usize>;

    /// Checks everything that is not a leaf's data: indexes, small files.
    ///
    /// # Errors
    /// Errors of the storage.
    fn check_rest(&self) -> Result<Rest>;

    /// The guarantees about the files, with other writers.
    fn standing(&self) -> Standing<'_>;
}

/// What of an array is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sparse {
    /// Its elements repeat: those of this shape, with 1 for each axis that repeats, are all that
    /// there are. They lie in so many bytes.
    Repeats(Shape, u64),
    /// Only these regions; all else has the fill value.
    Regions(Vec<Region>),
}

impl Sparse {
    /// Bytes that are stored, decoded.
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

/// The guarantees about the files of a checkpoint, with other writers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing<'r> {
    /// Whether damage to array data is sure to be noticed: every data byte is under a checksum.
    pub has_data_checksums: bool,
    /// Whether the files are never written in place: then a view of a map does not change. True for
    /// folders that are committed once; other programs overwrite their files at the next save.
    pub is_never_rewritten: bool,
    /// Whether all reads come from files that have been open since this was opened: then the data
    /// is of one checkpoint, even if the path changes.
    pub reads_open_files: bool,
    /// The folder of the step that was opened, if the path is that of a folder of steps.
    pub step_folder: Option<&'r StepFolder>,
    /// The key by whose signature all that is read is proved, if the caller asked for one.
    pub signer: Option<PublicKey>,
    /// Whether the pytree is lost, if the checkpoint is salvaged: the arrays are there by their
    /// names.
    pub has_lost_pytree: bool,
    /// Whether the tree was made of the names of arrays: a template finds its leaves by their
    /// names, too.
    pub has_guessed_tree: bool,
    /// The items, of a checkpoint that has some.
    pub items: Option<&'r ItemFolder>,
}

/// One thing that is wrong.
#[derive(Debug)]
pub struct Finding {
    /// What, where, expected and found, what to do.
    pub error: Error,
}

/// What was found of everything that is not a leaf's data.
#[derive(Debug, Default)]
pub struct Rest {
    /// What is wrong, each with its place.
    pub findings: Vec<Finding>,
    /// Notes that are not errors, each with its place.
    pub notes: Vec<String>,
}

impl Rest {
    /// Nothing wrong, and these notes.
    pub fn noted(notes: impl IntoIterator<Item = String>) -> Self {
        Self { findings: Vec::new(), notes: notes.into_iter().collect() }
    }

    /// With what is wrong.
    #[must_use]
    pub fn found(mut self, errors: impl IntoIterator<Item = Error>) -> Self {
        self.findings.extend(errors.into_iter().map(|error| Finding { error }));
        self
    }
}

/// Comfort for callers.
pub trait ReaderExt: Reader {
    /// The text of a leaf of kind `Str`, checked.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not text; `Corrupt`.
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

    /// The bytes from the first element of an array to the last, where they lie in a blob as
    /// numbers of this machine, also with gaps or in another order of axes; `None` if they do not.
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

    /// Checks the bytes that a view of this leaf shows against their stored checksums, each block
    /// once.
    ///
    /// # Errors
    /// `Corrupt`; errors of the storage.
    fn check_view(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Raw(extent) => extent.check(CheckFor::Views),
            _ => Ok(()),
        }
    }

    /// Returns an error if a leaf of kind `Unknown` has data that cannot be read, which a load
    /// without an error would lose.
    ///
    /// # Errors
    /// `Unsupported`; `Corrupt` if it is damaged.
    fn check_unknown(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Unreadable(Unreadable { why, seal, .. }) => seal.check().and(Err(why)),
            _ => Ok(()),
        }
    }

    /// To be called before a part of this leaf is read alone.
    ///
    /// # Errors
    /// `Corrupt` if what is under one checksum fails it.
    fn check_before_part(&self, leaf: usize) -> Result<()> {
        match self.source(leaf)? {
            Source::Coded(coded) => coded.seal.map_or(Ok(()), |seal: Box<dyn Seal + '_>| seal.check()),
            _ => Ok(()),
        }
    }
}
impl<T: Reader + ?Sized> ReaderExt for T {}

/// What a checkpoint says of itself.
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
    /// Items that are lost, or have lost a file: why, of each. Of the rest they are not errors.
    pub lost_items: Vec<(String, String)>,
    /// The user's own metadata, if any.
    pub custom_metadata: Option<serde_json::Value>,
    /// What `regrow.torch` is to know of objects that the pytree cannot tell, of layouts that have
    /// such: JSON, as `docs/formats/torch-objects.md` has it.
    pub objects: Option<String>,
    /// Metrics saved with a step, if any.
    pub metrics: Option<serde_json::Value>,
    /// What a reader should be told, though it is not an error: "never synced", "no checksums".
    pub notes: Vec<String>,
    /// What is missing of a checkpoint that can still be read: it may not be all that was saved, or
    /// damage to it may go unseen. An error with
    /// [`LostFiles::Error`](crate::options::LostFiles::Error).
    pub warnings: Vec<String>,
}
