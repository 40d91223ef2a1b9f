//! Untrusted bytes: a cursor that knows its offset, varints, checksums, limits for lengths before
//! an allocation, pages of memory, directories of zip archives, Python literals, zstd frames, and
//! documents that begin with their checksum.

pub mod available;
pub mod checksum;
pub mod cursor;
pub mod glance;
pub mod hex;
pub mod limits;
pub mod pages;
pub mod python_literal;
pub mod side_document;
pub mod summed;
pub mod varint;
pub mod zip;
pub mod zstd;

pub use cursor::Cursor;
