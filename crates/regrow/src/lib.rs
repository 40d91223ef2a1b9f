//! Fast, verified, atomic pytree checkpoints.
//!
//! This crate saves and loads pytrees in the layouts that its users already have on disk. A
//! checkpoint in its default layout is an Orbax checkpoint and also safetensors files.
//!
//! ```
//! use regrow::{Pytree, tree::{Leaf, Tree}};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("step_100");
//! #[derive(Pytree)]
//! struct Model {
//!     kernel: Vec<[f32; 2]>,
//!     bias: Vec<half::bf16>,
//!     #[pytree(skip)]
//!     name: String,
//! }
//! let model = Model { kernel: vec![[0.0; 2]; 64], bias: vec![half::bf16::ONE; 64], name: "a".into() };
//!
//! regrow::save(&path, &model)?;
//! let model: Model = regrow::load(&path)?;        // every block checked, every field accounted for
//! assert_eq!(model.kernel.len(), 64);
//!
//! let checkpoint = regrow::open(&path)?;          // metadata only
//! assert_eq!(checkpoint.tree().len(), 2);
//! let tree: Tree<Leaf> = regrow::load(&path)?;    // any pytree, of any layout
//! assert_eq!(tree.paths()[0].to_string(), "kernel");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`engine`] | what users call: open, save, load, verify, convert, diff, statistics |
//! | [`manager`] | a folder of numbered steps: when to save, which steps to keep, the newest good step |
//! | [`options`], [`report`], [`monitor`] | options of calls; reports of calls; progress and stopping |
//! | [`tree`], [`mod@array`] | the data model: pytrees, and arrays with a dtype at run time |
//! | [`sharding`] | shardings of arrays on devices, the writer of each shard, and the shards that a process reads for a new sharding |
//! | [`location`] | where a checkpoint is: a path, a bucket, an archive |
//! | [`coordination`] | messages between the processes of a job |
//! | [`doctor`] | properties of the machine and the file system |
//!
//! | feature | adds |
//! |---|---|
//! | `archive`, on by default | checkpoints in a `.tar` or `.zip`, read in place |
//! | `protection`, on by default | signatures and parity |
//! | `torch`, on by default | files of PyTorch |
//! | `derive`, on by default | `#[derive(Pytree)]` for structs and enums |
//! | `ndarray` | `ndarray::Array` and `ArcArray` as leaves |
//! | `num-complex` | `num_complex::Complex` as an element |
//! | `cloud` | buckets and web servers, with a cache on the local disk: `s3://`, `gs://`, `az://`, `https://` |
//! | `portable` | for tests: the portable form of system calls, also on Linux; slower, with fewer guarantees |
//!
//! The crate is tested on Linux, and uses system calls of Linux. For macOS and Windows it has a
//! portable form of these calls; it compiles there, but was never run (`docs/limits.md`). It needs
//! little-endian machines with addresses of 64 bits.

pub mod doctor;
pub mod engine;
pub mod manager;
pub mod report;

// Modules of the internal crates, under the names by which the engine uses them.
pub(crate) use regrow_base::{bytes, system, text, threads};
pub(crate) use regrow_layouts as formats;
pub(crate) use regrow_protection::{parity, seal, signature};
pub(crate) use regrow_storage as storage;
pub(crate) use regrow_storage::local as commit;
pub(crate) use regrow_store as store;
pub(crate) use regrow_store::reads;

pub use regrow_base::{error, monitor};
pub use regrow_coordination as coordination;
pub use regrow_layouts::options;
pub use regrow_tree::{array, sharding, tree};

/// The location of a checkpoint: a storage, and a path in it.
pub mod location {
    pub use regrow_storage::StorageOptions;
    pub use regrow_storage::location::{Location, StepFolder, ToLocation, is_url, local};
}

pub use engine::value::{load, load_into, load_into_with, load_with};
pub use engine::{
    Checkpoint, ConvertOptions, CopyOptions, CopyReport, DiffOptions, DiffReport, HealedFile, LeafRegion,
    LoadOptions, OpenOptions, ParityOptions, ParityReport, ProofBy, RecoveredFile, RegionOptions,
    RemoveOptions, RemoveReport, RepairOptions, RepairReport, Salvaged, SaveOptions, SaveReport, SealOptions,
    SealReport, SignOptions, SignReport, StatisticsOptions, StatisticsReport, Verdict, VerifyOptions,
    VerifyReport, add_parity, convert, copy, diff, diff_with, list, open, open_with, remove, repair, salvage,
    save, save_async, save_with, seal, sign, statistics, statistics_with, verify, verify_with,
};
pub use error::{Error, ErrorKind, Place, Result};
pub use monitor::Monitor;
pub use parity::ParityRatio;
#[cfg(feature = "derive")]
pub use regrow_derive::Pytree;
pub use regrow_protection::{PrivateKey, PublicKey};
#[cfg(feature = "cloud")]
pub use regrow_storage::cache::{CACHE_LEN_MAX_DEFAULT_BYTES, Cache, CacheReport};
pub use tree::{Pytree, StateDict};

#[doc(hidden)]
pub use tree::pytree::derive_support as __derive;

// Runs the programs of the tutorial as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorials/rust.md")]
mod tutorial {}
