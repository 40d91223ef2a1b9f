//! Bytes from strangers: a cursor that knows its offset, varints, checksums, the limits that every
//! length meets before it becomes an allocation, the pages of that, the directories of zip
//! archives, and documents that begin with their checksum.

pub(crate) mod available;
pub mod checksum;
pub mod cursor;
pub(crate) mod glance;
pub(crate) mod hex;
pub mod limits;
pub(crate) mod pages;
pub mod python_literal;
pub(crate) mod side_document;
pub(crate) mod summed;
pub mod varint;
pub(crate) mod zip;

pub use cursor::Cursor;
