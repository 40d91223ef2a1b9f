//! Seals: a side file with checksums of the files of a checkpoint, for layouts without checksums.
//!
//! A seal is made of files, not of leaves, so no layout knows of it. A reader of a sealed
//! checkpoint gets a storage that checks every byte of a sealed file before it returns the byte:
//!
//! ```text
//! layout     Location ── SealedStorage ── SealedStore, SealedBlob     each block is read whole and checked
//! engine     Source::Raw of the layout, with the BlockTable           the passes of `reads` check the blocks
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `document` | the file: `regrow.seal.json` |
//! | `files` | a seal in use: its place, its files, and whether the files exist |
//! | `read` | reads of whole blocks |
//! | `blob`, `store`, `storage` | values, folders and places as a layout sees them |

mod blob;
mod document;
mod files;
mod read;
mod storage;
mod store;

pub use document::{BLOCK_LEN_BYTES, Covered, FILE_NAME, SealDocument, rename_all};
pub use files::{Place, Said, Seal, SealedFile, side_files_of};
