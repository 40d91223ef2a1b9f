//! Where bytes of leaves are, as data, and the one way in which they are read and checked.
//!
//! A layout says of each leaf what its [`Source`] is: an [`Extent`] of a blob with the checksums
//! over it, bytes that are in memory, or something that only the layout decodes. Code that reads
//! many of them (a load, a verification) hands the extents over together, so that they are cut into
//! pieces and read as the blob is read fastest.
//!
//! | module | holds |
//! |---|---|
//! | `source` | what a layout says of a leaf |
//! | `table` | the blocks of a blob, their checksums, and which of them have passed |
//! | `pieces` | extents and destinations, cut into pieces of work |
//! | `arrival` | one piece as its bytes come over a network |
//! | `pass` | many pieces at once: checked, or read into the caller's memory |
//! | `keyed` | a value of a store as a blob |
//! | `maps` | files as memory of this process |

mod arrival;
mod keyed;
mod maps;
mod pass;
mod pieces;
mod source;
mod table;

pub use keyed::KeyedBlob;
pub use maps::{MappedPlace, PrivateMaps};
pub use pass::{CheckFor, Checked, ReadOptions, check_ahead, fill};
pub use pieces::Part;
pub use source::{BlobRef, Checks, Coded, Extent, Seal, Source, Text, Unreadable};
pub use table::{Block, BlockTable, Checksum, Words};

#[cfg(test)]
mod tests;
