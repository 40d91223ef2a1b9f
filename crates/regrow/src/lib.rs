//! Fast, verified, atomic pytree checkpoints.
//!
//! A checkpoint is what a pytree regrows from. This crate reads and writes the layouts that its users have on
//! disk; its default layout is an Orbax checkpoint and safetensors files in one set of bytes.
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
//! let tree: Tree<Leaf> = regrow::load(&path)?;    // whatever is there, of any layout
//! assert_eq!(tree.paths()[0].to_string(), "kernel");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules: [`tree`] and [`mod@array`] hold the data model, [`bytes`] reads foreign bytes, [`store`] maps keys
//! to bytes (OCDBT among them), [`reads`] reads and checks many ranges of them at once, [`zarr`] and [`codec`] turn
//! arrays into chunks and back, [`formats`] has a folder for each layout, [`engine`] opens, saves, loads and verifies, [`monitor`] watches and stops it,
//! [`text`] makes names fit for people, [`location`] says which paths are local, and [`commit`] is the only place that
//! renames.

pub mod array;
pub mod bytes;
pub mod codec;
pub mod commit;
pub mod engine;
pub mod error;
pub mod formats;
pub mod location;
pub mod monitor;
pub mod options;
pub mod reads;
pub mod report;
pub mod storage;
pub mod store;
pub mod text;
pub mod threads;
pub mod tree;
pub mod zarr;

pub use engine::value::{load, load_into, load_into_with, load_with};
pub use engine::{
    Checkpoint, ConvertOptions, LoadOptions, OpenOptions, SaveOptions, SaveReport, VerifyOptions,
    VerifyReport, convert, open, open_with, save, save_async, save_with, verify, verify_with,
};
pub use error::{Error, ErrorKind, Place, Result};
pub use monitor::Monitor;
#[cfg(feature = "derive")]
pub use regrow_derive::Pytree;
pub use tree::{Pytree, StateDict};

#[doc(hidden)]
pub use tree::pytree::derive_support as __derive;
