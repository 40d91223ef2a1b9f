//! Internals of regrow, without promises: OCDBT, the key-value store in which Orbax stores arrays.
//! A database is a folder.
//!
//! A database consists of a manifest, a copy-on-write B+tree of keys, and data files that are
//! written once:
//!
//! ```text
//! manifest.ocdbt ──> versions (newest last) ──> B+tree root ──> ... ──> leaves ──> values
//!               └──> version tree nodes ──> older versions ──> their roots
//!
//! manifest.ocdbt                     config, versions                     replaced by each commit
//! manifest.<16 hex digits>           versions, where manifests are numbered
//! d/<32 hex digits>                  | values ... | B+tree leaves ... | interior nodes ... | root |
//! ```
//!
//! Manifests and nodes carry a crc32c. The checksum also covers the keys and the small values
//! inside them. Larger values are byte ranges of data files, without a checksum: the format of the
//! value has to verify it.
//!
//! The name of a data file is any relative path, so a database may refer to data files of another
//! database below it. In Orbax each process writes a database in `ocdbt.process_*`, and the merged
//! database refers to them.
//!
//! | module | is about |
//! |---|---|
//! | `envelope`, `fields` | the frame of every structure, and the fields in it |
//! | `config`, `manifest` | the manifest, single or numbered |
//! | `table` | data file names, and which of them are safe to follow |
//! | `node` | B+tree nodes |
//! | `versions`, `arity` | the version tree, and the position of each generation |
//! | `files`, `walk`, `reader` | reading: ranges and nodes, key ranges, [`OcdbtStore`] |
//! | `entries`, `leaves`, `keys`, `split`, `writer` | writing: [`write_database`] |
//! | `rule`, `check` | the rules of the format ([`Rule`]), and the full check ([`check()`]) |
//!
//! Costs: an open reads the manifest. The first search below a node reads the whole node (with
//! Orbax's configuration, the root is one leaf with every key). Each later search is a binary
//! search.
//!
//! Source: TensorStore's `ocdbt` kvstore, format version 0, as TensorStore 0.1.86 writes it.

use regrow_base::{bytes, error, text, threads};

mod arity;
mod check;
mod config;
mod entries;
mod envelope;
mod fields;
mod files;
mod keys;
mod leaves;
mod manifest;
mod node;
mod reader;
mod rule;
mod split;
mod table;
mod versions;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

pub use check::check;
pub use config::OcdbtConfig;
pub use entries::EntryValue;
pub use entries::{Entries, FileName, ValueRef};
pub use manifest::{DATA_FOLDER, MANIFEST_KEY, is_numbered_manifest};
pub use node::KEY_LEN_MAX_BYTES;
pub use reader::Listed;
pub use reader::OcdbtStore;
pub use rule::Rule;
pub use writer::write_sorted;
pub use writer::{Database, random_data_file_name, write_database};
