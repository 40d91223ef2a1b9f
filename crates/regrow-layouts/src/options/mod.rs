//! The options of a caller: for an open, a verify, a load and a save. The default of each field
//! suits most programs. The other files of this folder have the options of single layouts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use regrow_base::monitor::Monitor;
use regrow_coordination::Job;
use regrow_protection::PublicKey;
use regrow_protection::parity::ParityRatio;
use regrow_storage::location::Location;
use regrow_tree::array::{Casting, Dtype, Shape};
use regrow_tree::tree::{PathPattern, Tree};

mod casts;
mod equinox;
mod flax;
pub(crate) mod list;
mod npy;
mod pytree_data;
mod regrow;
mod safetensors;
pub mod suffixes;
pub mod trak;

pub use casts::{CastPattern, cast_for};
pub use equinox::EquinoxOptions;
pub use flax::{CHUNK_LEN_MAX_BYTES, FlaxOptions};
pub use list::Layout;
pub use npy::{Form, NpyOptions};
pub use pytree_data::{DATA_SUFFIX, MANIFEST_SUFFIX, PytreeDataOptions};
pub use regrow::{DataFormat, RegrowOptions};
pub use regrow_zarr::codec::Compression;
pub use safetensors::{ByteSize, LENGTH_LEN_BYTES, SafetensorsOptions};
pub use suffixes::refuse_folder_named_like_a_file;
pub use trak::TrakOptions;

/// Extra memory of a save or a load where the caller sets no budget.
pub const BUDGET_DEFAULT_BYTES: u64 = 64 << 20;

/// How to open a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The step to open in a folder of steps; the newest committed one if `None`.
    pub step: Option<u64>,
    /// The item to open in a checkpoint of several; all of them, as a dict, if `None` and there is
    /// more than one.
    pub item: Option<String>,
    /// What to do with a checkpoint that has lost files without which it can still be read.
    pub lost_files: LostFiles,
    /// Open npy, npz and Equinox files as plain arrays, without the pytree stored with them: npy
    /// and npz by name, Equinox in order. For files whose pytree is damaged. Other layouts refuse
    /// this option.
    pub arrays_only: bool,
    /// Open arrays by their names if their tree is lost, such as in an Orbax checkpoint without its
    /// `_METADATA`. The caller's template then gives the tree. `load_with` sets this option if it
    /// has a template.
    pub by_names: bool,
    /// Leaves are read as views of a map, also of files that other programs write into in place:
    /// then the numbers change with the file, and a file that is cut short ends the program by a
    /// signal.
    pub mapped: bool,
    /// Ignore the seal, for a checkpoint that was changed on purpose after it was sealed.
    pub ignore_seal: bool,
    /// Also open a checkpoint that has lost files under its seal, or whose seal is unreadable;
    /// remaining checksums are still checked. For `salvage`, which reports the
    /// losses. Damage to files signed by trusted keys is found when they are read.
    pub salvage: bool,
    /// Open only checkpoints that one of these keys has signed: the digest of
    /// every block is checked before a byte of it is returned, now and in later reads, and seals
    /// are ignored. Empty means that no signature is required.
    pub trusted_keys: Vec<PublicKey>,
}

/// What to do with a checkpoint that has lost files without which it can still be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LostFiles {
    /// Open it with a [warning](crate::Description::warnings).
    #[default]
    Warn,
    /// Fail with the warning's text.
    Error,
}

/// How to verify.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// How to open.
    pub open: OpenOptions,
    /// Watches the work, and can cancel it.
    pub monitor: Monitor,
}

/// How to load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// How to open.
    pub open: OpenOptions,
    /// Load only leaves that match one of these; all leaves if empty. Other leaves vanish from
    /// dicts, and become placeholders in sequences.
    pub only: Vec<PathPattern>,
    /// Casts: the first pattern that applies to a leaf decides ([`Casting`]). A pattern that
    /// applies to no leaf is an error, except `**`.
    pub cast: Vec<(PathPattern, Dtype)>,
    /// What the casts may do to values.
    pub casting: Casting,
    /// The template to restore into. It is strict: all mismatches of name, shape and dtype are one
    /// error.
    pub template: Option<Tree<TemplateLeaf>>,
    /// Ignore stored leaves that the template or the Rust value lacks, instead of an error.
    pub partial: bool,
    /// Into a Rust value: cast arrays and numbers to the dtypes of its fields, also where that
    /// rounds floats.
    pub cast_to_fields: bool,
    /// Leaves, by their positions in the checkpoint, that come without data: their parts are read
    /// by `load_regions`.
    pub unread: Vec<usize>,
    /// Do not check data against checksums. Never the default.
    pub unverified: bool,
    /// Return views of a map for every raw leaf, even if the page cache lacks the leaf: slower at
    /// first, but the system can reclaim the memory. Otherwise such leaves are read into memory if
    /// they take at most half of the available memory.
    ///
    /// With this option, a load also makes views of files that other programs write in place.
    /// Without it, a load reads such files into memory. [`OpenOptions::mapped`] names the risk, and
    /// asks for the same in every load.
    pub mapped: bool,
    /// Extra memory beyond the result itself, in bytes; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Watches the load, and stops it.
    pub monitor: Monitor,
}

/// How to load regions of leaves.
#[derive(Debug, Clone, Default)]
pub struct RegionOptions {
    /// What casts to the dtypes of regions may do to values.
    pub casting: Casting,
    /// Do not check data against checksums. Never the default.
    pub unverified: bool,
    /// Extra memory beyond the result itself, in bytes; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Watches the load, and stops it.
    pub monitor: Monitor,
}

/// How to save.
#[derive(Debug, Clone, Default)]
pub struct SaveOptions {
    /// Which layout to write.
    pub layout: Layout,
    /// Replace an existing checkpoint, in one step if the system can. Refused are a file that is
    /// not a checkpoint, a file of a checkpoint's folder, and a folder that also has a user's own
    /// files.
    pub overwrite: bool,
    /// With `overwrite`, replace a folder with a user's own files in it, and keep these files. On a
    /// disk, only saves of items can do so (`ItemsOptions::keeps_others`).
    pub keeps_others: bool,
    /// With `overwrite`, also replace a file that is not a checkpoint, or that is part of a
    /// checkpoint. Functions with the interface of another library set this option. Applies to
    /// files only, never to folders. A link is replaced itself: its target, such as a file in the
    /// Hub's cache that other folders share, stays.
    pub replace_any_file: bool,
    /// Put a seal on the checkpoint. The default layout has the same checksums
    /// without one.
    pub seal: bool,
    /// Write parity of this amount beside the checkpoint. The save computes the parity of a folder
    /// on a disk from contiguous arrays in memory, and reads all other files again.
    pub parity: Option<ParityRatio>,
    /// Skip syncing to disk: faster, and a power cut may cost the checkpoint.
    pub not_durable: bool,
    /// Write through the page cache, so that the next load finds the files in memory. The save
    /// takes longer, and the system needs memory for the files. Buckets ignore this option.
    pub keep_cached: bool,
    /// Casts: the first pattern that applies to a leaf decides ([`Casting`]). A pattern that
    /// applies to no leaf is an error, except `**`.
    pub cast: Vec<(PathPattern, Dtype)>,
    /// What the casts may do to values. Unless casts are [checked](Casting::Checked), the save also
    /// accepts leaves that the layout's tool does not read back as they were;
    /// `SaveReport::losses` names them.
    pub casting: Casting,
    /// Compression of array data; the layout's own default if `None`.
    pub compression: Option<Compression>,
    /// The user's own metadata: any JSON value.
    pub custom_metadata: Option<serde_json::Value>,
    /// Metadata of the checkpoint beside the pytree's own metadata (layouts regrow and orbax).
    pub about: AboutCheckpoint,
    /// An earlier checkpoint: unchanged data files are hard-linked instead of written, and
    /// unchanged leaves are gathered so that the next save can link them. Changes are found by
    /// comparing bytes or digests. Default layout without compression only; the base may be removed
    /// afterwards.
    pub base: Option<Location>,
    /// With `base`: link files with an unchanged digest without reading them. Otherwise their
    /// blocks are checked first, on disks, and damaged files are written again.
    pub trust_base: bool,
    /// Extra memory, in bytes; 64 MiB if `None`.
    pub budget_bytes: Option<u64>,
    /// Watches the save, and stops it.
    pub monitor: Monitor,
    /// How long the save waits for another process that changes the target, before it fails with
    /// `Busy`; a minute if `None`.
    pub wait: Option<Duration>,
    /// The job whose processes save together. Each process calls the save with the same tree and
    /// options, and writes the shards that it holds. `None`: this process saves alone.
    pub job: Option<Job>,
}

/// The entries of `_CHECKPOINT_METADATA` for a checkpoint that is one pytree, for Orbax' readers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AboutCheckpoint {
    /// The handler with which Orbax reads the checkpoint, as the full name of a class; the handler
    /// of pytrees if `None`.
    pub handler: Option<String>,
    /// The checkpoint's own metadata; [`SaveOptions::custom_metadata`] is the pytree's.
    pub custom_metadata: serde_json::Map<String, serde_json::Value>,
}

impl Default for Layout {
    fn default() -> Self {
        Self::Regrow(RegrowOptions::default())
    }
}

/// The requirements of a template for a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateLeaf {
    /// The dtype that the leaf must have; any if `None`.
    pub dtype: Option<Dtype>,
    /// The shape that the leaf must have; any if `None`.
    pub shape: Option<Shape>,
    /// Not to be read (`...` in Python).
    pub skip: bool,
}

/// Orbax' own storage knobs, under Orbax' names.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrbaxOptions {
    /// One database instead of a folder for each array.
    pub ocdbt: bool,
    /// zarr v3 instead of v2.
    pub zarr3: bool,
    /// Cut chunks down to at most this many bytes (greedy, divisors only).
    pub chunk_byte_size: Option<u64>,
    /// Cut these axes first, with `chunk_byte_size`.
    pub shard_axes: Vec<usize>,
    /// The outer chunk (zarr v3: the shard); must divide each array's shape, or that of its shards.
    pub write_chunk_shape: Option<Shape>,
    /// The inner chunk (zarr v3 only); must divide the outer.
    pub read_chunk_shape: Option<Shape>,
    /// Begin a new data file when a data file has reached this size (2 GiB if `None`).
    pub ocdbt_target_data_file_size: Option<u64>,
    /// Tuples and named tuples kept in `_METADATA` (`value_metadata_tree`).
    pub rich_types: bool,
    /// Write `_sharding`.
    pub write_sharding: bool,
    /// Write `array_metadatas/process_<n>`.
    pub write_array_metadatas: bool,
    /// The v1 API's folder: marker file, pytree in `state/`.
    pub v1: bool,
    /// Per-leaf overrides of chunking; the first pattern that matches decides. A list of pairs in
    /// JSON.
    pub per_leaf: Vec<(PathPattern, LeafChunking)>,
    /// The types of some leaves in `_METADATA`, by their stored names (`params.dense.kernel`), for
    /// the user's own type handlers. A placeholder with a name here has its data in files beside
    /// the tree, which the handler writes; an array is stored as usual.
    pub value_types: BTreeMap<String, String>,
}

/// Chunking of some leaves. It replaces the chunking of [`OrbaxOptions`] or [`RegrowOptions`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeafChunking {
    /// As [`OrbaxOptions::chunk_byte_size`].
    pub chunk_byte_size: Option<u64>,
    /// As [`OrbaxOptions::shard_axes`].
    pub shard_axes: Vec<usize>,
    /// As [`OrbaxOptions::write_chunk_shape`].
    pub write_chunk_shape: Option<Shape>,
    /// As [`OrbaxOptions::read_chunk_shape`]; of the layout orbax alone.
    pub read_chunk_shape: Option<Shape>,
}

impl Default for OrbaxOptions {
    /// Orbax' own defaults (v0): OCDBT, zarr v2.
    fn default() -> Self {
        Self {
            ocdbt: true,
            zarr3: false,
            chunk_byte_size: None,
            shard_axes: Vec::new(),
            write_chunk_shape: None,
            read_chunk_shape: None,
            ocdbt_target_data_file_size: None,
            rich_types: false,
            write_sharding: true,
            write_array_metadatas: true,
            v1: false,
            per_leaf: Vec::new(),
            value_types: BTreeMap::new(),
        }
    }
}
