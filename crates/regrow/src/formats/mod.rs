//! The layouts, a folder each on one floor plan (`mod` the story, `layout` the bytes, `reader`, `writer`),
//! and the one list of them.
//!
//! Formats know bytes: they turn a folder into a tree of [`LeafInfo`] and leaves into byte ranges of files.
//! Threads, budgets and templates are the engine's; renaming is [`commit`](crate::commit)'s.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::ffi::OsStr;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use crate::array::{Array, ArraySource, Region};
use crate::error::{Error, ErrorKind, Result};
use crate::location::{Location, StepFolder};
use crate::monitor::Monitor;
use crate::options::{Layout, OpenOptions, SaveOptions};
use crate::report::Finding;
use crate::storage::Publication;
use crate::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

pub mod equinox;
pub mod flax;
mod loss;
pub mod npy;
pub mod orbax;
pub(crate) mod pieces;
mod preview;
pub mod pytree_data;
pub(crate) mod refusals;
pub mod regrow;
pub mod safetensors;
pub(crate) mod stream;
pub(crate) mod suggestions;
pub mod trak;

pub use crate::storage::{Target, UNCOMMITTED_MARK};
pub use loss::{Loss, LossKind};
pub use preview::Preview;

/// Every layout this build reads, in the order in which they are tried: the more particular first.
pub fn builtin_formats() -> [&'static dyn Format; 8] {
    [
        &regrow::Regrow,
        &trak::Trak,
        &orbax::Orbax,
        &safetensors::Safetensors,
        &pytree_data::PytreeData,
        &npy::Npy,
        &equinox::Equinox,
        &flax::Flax,
    ]
}

impl Layout {
    /// The layout's name.
    pub fn name(&self) -> &'static str {
        self.format().name()
    }

    /// Who writes it.
    pub fn format(&self) -> &'static dyn Format {
        match self {
            Self::Regrow => &regrow::Regrow,
            Self::Orbax(_) => &orbax::Orbax,
            Self::Flax(_) => &flax::Flax,
            Self::Equinox(_) => &equinox::Equinox,
            Self::PytreeData(_) => &pytree_data::PytreeData,
            Self::Trak(_) => &trak::Trak,
            Self::Safetensors(_) => &safetensors::Safetensors,
            Self::Npy(_) => &npy::Npy,
        }
    }
}

/// One layout.
pub trait Format: Debug + Sync {
    /// Its name in `layout=`, in reports and in `Description`.
    fn name(&self) -> &'static str;

    /// Whether what is `at` a location (a file or a folder that exists) looks like this layout. Looks at names and first bytes only.
    ///
    /// # Errors
    /// What the file system says; `Uncommitted` for a save that never ended.
    fn recognise(&self, at: &Location) -> Result<bool>;

    /// Whether the name alone makes a file one of this layout: `x.msgpack`. A name that other programs use for their own
    /// files does not.
    fn claims_name(&self, _name: &OsStr) -> bool {
        false
    }

    /// Whether a file of this name and beginning, which has not been written yet, would be [recognised](Self::recognise).
    fn recognise_preview(&self, name: &OsStr, _sketch: &Preview) -> bool {
        self.claims_name(name)
    }

    /// The beginning of the file that [`write`](Self::write) would make of `tree`, without its array data. A dry run shows
    /// it to all layouts to see which of them would recognise the file. Layouts whose files are recognised by their names
    /// alone give nothing.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    fn preview(&self, _tree: &Tree<Leaf>, _options: &SaveOptions) -> Result<Preview> {
        Ok(Preview::default())
    }

    /// How the names of this layout's files end, if files of other names are recognised by their content: a save refuses
    /// another name when the content would not tell.
    fn suffix(&self) -> Option<&'static str> {
        None
    }

    /// Reads the metadata of the checkpoint `at` a location, no array data.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`, each with file and offset.
    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>>;

    /// Whether [`open`](Self::open) knows [`OpenOptions::bare`].
    fn opens_bare(&self) -> bool {
        false
    }

    /// What kind of thing [`write`](Self::write) makes `at` a location.
    fn target(&self, _at: &Location, _options: &SaveOptions) -> Target {
        Target::Folder
    }

    /// What of `tree` would come back from this layout as something else, or not at all: everything that
    /// [`write`](Self::write) does not refuse, but a later load could not restore. `convert` refuses it unless
    /// told otherwise.
    fn losses(&self, _tree: &Tree<LeafInfo>, _options: &SaveOptions) -> Vec<Loss> {
        Vec::new()
    }

    /// What becomes of a text leaf for what it says; `None` if it comes back. Part of [`losses`](Self::losses),
    /// which knows no values.
    fn text_loss(&self, _text: &str) -> Option<(LossKind, String)> {
        None
    }

    /// Why this layout cannot write such a leaf, whatever the rest of the tree; `None` if it can. `convert` puts
    /// what comes nearest in its place, if it was told that it may.
    fn refusal(&self, _leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        None
    }

    /// Whether a checkpoint's own metadata (any JSON) has a place in this layout.
    fn holds_metadata(&self, _options: &SaveOptions) -> bool {
        false
    }

    /// Says all that [`write`](Self::write) would refuse of `tree`, saved at `target`: the plan that `write` begins
    /// with, and nothing after it. Reads no array data but that of numbers, and writes nothing.
    ///
    /// # Errors
    /// Those of `write`, but for what the disk says.
    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()>;

    /// Adds all files of a checkpoint to a publication; the caller commits. The leaves have been cast as
    /// `options` ask, but for the layouts regrow and orbax, which keep what they know of the original.
    ///
    /// # Errors
    /// `NameCollision` or `Unsupported` for a leaf that the layout cannot hold, `StorageFull` and its like.
    fn write(&self, tree: &Tree<Leaf>, publication: &dyn Publication, options: &SaveOptions) -> Result<()>;
}

/// A tree of one leaf like this one, without its data: what a writer refuses of it, it refuses of that leaf.
pub(crate) fn without_data(leaf: &LeafInfo) -> Result<Tree<Leaf>> {
    let data = match leaf.kind {
        LeafKind::Str => LeafData::Text(Arc::from("")),
        LeafKind::Placeholder | LeafKind::Unknown(_) => LeafData::Absent,
        _ => LeafData::Array(Array::deferred(leaf.dtype, leaf.shape.clone(), Arc::new(Zeros))?),
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    build.leaf(Key::dict("leaf"), Leaf { kind: leaf.kind.clone(), data, sharding: None })?;
    build.close()?;
    build.finish()
}

/// Stands for data that nobody reads.
#[derive(Debug)]
struct Zeros;

impl ArraySource for Zeros {
    fn read_c_order(&self, _offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }

    fn read_region(&self, _region: &Region, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
}

/// Refuses a folder that is still being written, or whose writer was killed.
pub(crate) fn refuse_uncommitted(at: &Location) -> Result<()> {
    let name = at.name_text();
    if !name.contains(UNCOMMITTED_MARK) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Uncommitted, "this checkpoint was never committed")
        .in_file(at)
        .help("it is being written now, or its writer was killed; open an earlier one, and save again"))
}

/// In a bucket a checkpoint of Orbax or regrow is committed when one of these is in its folder: Orbax' marker, or the
/// pointer that regrow puts there while it replaces a checkpoint.
pub(crate) const COMMIT_MARKERS: [&str; 2] = ["commit_success.txt", "regrow-moved.json"];

/// Refuses a folder in a bucket that has no marker, of a layout that always writes one.
pub(crate) fn refuse_unmarked(at: &Location) -> Result<()> {
    if !at.commits_by_marker() || COMMIT_MARKERS.iter().any(|marker| at.join(marker).is_file()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Uncommitted, "this checkpoint was never committed: its marker is not there")
        .in_file(at)
        .expected(COMMIT_MARKERS[0], "no such object")
        .help(
            "it is being written now, or its writer was killed; if you copied it here from a disk, put an empty \
             commit_success.txt beside its files",
        ))
}

/// Refuses a step or an item where a layout has neither.
pub(crate) fn refuse_step_and_item(at: &Location, options: &OpenOptions) -> Result<()> {
    let asked = match (options.step, &options.item) {
        (Some(step), _) => format!("step {step}"),
        (None, Some(item)) => format!("item {item:?}"),
        (None, None) => return Ok(()),
    };
    Err(Error::new(ErrorKind::NotFound, format!("there is no {asked}: this is a single checkpoint"))
        .in_file(at)
        .help("leave the step and the item out, or open the folder that holds the steps"))
}

/// What to do where a pytree that is kept beside the arrays is damaged.
pub(crate) const BARE_HELP: &str =
    "copy it again; opened `bare` (`--bare`), it is its arrays alone, by name or in their order";

/// An opened checkpoint: metadata in memory, data on disk. Leaves go by their position in flatten order.
pub trait Reader: Debug + Send + Sync {
    /// What the checkpoint says of itself.
    fn description(&self) -> &Description;

    /// The structure, with what is known of each leaf.
    fn tree(&self) -> &Tree<LeafInfo>;

    /// The text of a leaf of kind `Str`.
    fn read_text(&self, leaf: usize) -> Result<Arc<str>>;

    /// Reads `region` of an array leaf into `out`, in C order, little endian; touches only the chunks or byte
    /// ranges that the region meets, and checks all that is checkable of them.
    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()>;

    /// Memory that [`read_region`](Self::read_region) takes beside `out`, at most, for a band of so many bytes: a chunk
    /// stored and decoded, where the layout cuts arrays; else a copy.
    fn working_len_bytes(&self, leaf: usize, band_len_bytes: u64) -> u64 {
        let Some(info) = self.tree().leaves().get(leaf) else { return 0 };
        let chunk = info.chunk_shape.as_ref().map(|shape| shape.len_bytes(info.dtype).unwrap_or(u64::MAX));
        chunk.map_or(band_len_bytes, |chunk| chunk.saturating_mul(2))
    }

    /// The whole leaf as a view of a read-only map, if it is stored raw and in one piece; `None` otherwise.
    /// **Not checked**: [`check_view`](Self::check_view) does that.
    fn view(&self, _leaf: usize) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Whether memory has the bytes of this leaf's view already. Where it has not, it is faster to read them past the
    /// page cache than to fill that for a view.
    fn is_cached(&self, _leaf: usize) -> bool {
        true
    }

    /// Checks the bytes that a view of this leaf shows against their stored checksums, each block once.
    fn check_view(&self, _leaf: usize) -> Result<()> {
        Ok(())
    }

    /// The same for those who want no view: a disk that cannot be read is an error here, where a map would fault.
    ///
    /// # Errors
    /// As for `check_view`; what the disk says.
    fn check_data(&self, leaf: usize) -> Result<()> {
        self.check_view(leaf)
    }

    /// Checks the blocks of all these leaves at once, as fast as it can be done, so that [`check_view`](Self::check_view)
    /// of each finds them checked. What fails is left for that to find. True if `monitor` was told of all their bytes.
    ///
    /// # Errors
    /// `Cancelled`.
    fn check_ahead(&self, _leaves: &[usize], _ahead: CheckFor, _monitor: &Monitor) -> Result<bool> {
        Ok(false)
    }

    /// Reads whole array leaves into memory of the caller, in C order: those that lie raw in files whose blocks are
    /// under checksums, which are checked unless `unverified`; tells `monitor`. Gives back the others, untouched.
    ///
    /// An error names file and offset; what is filled by then is not told.
    fn read_raw<'a>(
        &self,
        leaves: Vec<(usize, &'a mut [u8])>,
        _unverified: bool,
        _monitor: &Monitor,
    ) -> Result<Vec<(usize, &'a mut [u8])>> {
        Ok(leaves)
    }

    /// To be called before a part of this leaf is read alone. In layouts in which one checksum covers the whole leaf this
    /// checks it, once; [`read_region`](Self::read_region) does so only when all parts are read, front to back.
    ///
    /// # Errors
    /// `Corrupt`.
    fn check_before_part(&self, _leaf: usize) -> Result<()> {
        Ok(())
    }

    /// Errs if a leaf of kind `Unknown` has data that cannot be read, which a load without an error would lose.
    ///
    /// # Errors
    /// `Unsupported`; `Corrupt` if it is damaged.
    fn check_unknown(&self, _leaf: usize) -> Result<()> {
        Ok(())
    }

    /// Leaves in the order in which their bytes lie on disk, for reading them all.
    fn read_order(&self) -> Vec<usize> {
        (0..self.tree().len()).collect()
    }

    /// Checks everything that is not a leaf's data (indexes, small files): what is wrong, each with its place.
    fn check_files(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// What [`check_files`](Self::check_files) cannot call wrong and somebody should know of, each with its place.
    fn check_notes(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Whether damage to array data is sure to be noticed: every data byte is under a checksum.
    fn has_data_checksums(&self) -> bool {
        false
    }

    /// Whether nobody writes into the files in place: then a view of a map stays what it is. True of folders that are
    /// committed once and for all; the files of other programs are overwritten by whoever saves again.
    fn is_never_rewritten(&self) -> bool {
        false
    }

    /// The folder of the step that was opened, if the path is that of a folder of steps.
    fn step_folder(&self) -> Option<&StepFolder> {
        None
    }

    /// Whether all that is read comes from files that have been open since this was opened: then it is of one
    /// checkpoint, whatever happens to the path.
    fn reads_open_files(&self) -> bool {
        false
    }
}

/// Why blocks are checked before anybody has asked for their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFor {
    /// Views of the map will be handed out: their pages are wanted in memory.
    Views,
    /// Nobody wants the bytes: the page cache is left as it is.
    Verify,
}

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
    /// Named parts, for a checkpoint that has them: name and kind (`pytree`, `json`, `files: a, b`).
    pub items: Vec<(String, String)>,
    /// The user's own metadata, if any.
    pub custom_metadata: Option<serde_json::Value>,
    /// Metrics saved with a step, if any.
    pub metrics: Option<serde_json::Value>,
    /// What a reader should be told, though it is no error: "never synced", "no checksums".
    pub notes: Vec<String>,
    /// What is missing of a checkpoint that can still be read: it may not be all that was saved, or damage to it may go
    /// unseen. An error for those who open it [strictly](OpenOptions::strict).
    pub warnings: Vec<String>,
}
