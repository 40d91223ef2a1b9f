//! Bytes from strangers: a cursor that knows its offset, varints, checksums, the limits that every
//! length meets before it becomes an allocation, the pages of that, the directories of zip
//! archives, and documents that begin with their checksum.

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
