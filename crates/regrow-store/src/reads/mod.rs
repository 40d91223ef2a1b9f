//! The positions of the bytes of leaves, as data, and the code that reads and checks the bytes.
//!
//! A layout gives the [`Source`] of each leaf: an [`Extent`] of a blob with its checksums, bytes in
//! memory, or data that only the layout can decode. Code that reads many leaves (a load, a
//! verification) passes all extents together. So this module can divide the extents into pieces,
//! and read them in the fastest way for the blob.
//!
//! | module | holds |
//! |---|---|
//! | `source` | the source of a leaf |
//! | `table` | the blocks of a blob, their checksums, and which of them have passed |
//! | `pieces` | extents and destinations, divided into pieces of work |
//! | `arrival` | one piece that arrives over a network |
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
pub use pass::{CheckFor, ReadOptions, check_ahead, fill};
pub use pieces::Part;
pub use source::{BlobRef, Checks, Coded, Extent, Seal, Source, Text, Unreadable};
pub use table::{Block, BlockTable, Checked, Checksum, Words};

#[cfg(test)]
mod tests;
