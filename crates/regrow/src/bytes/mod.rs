//! Bytes from strangers: a cursor that knows its offset, varints, checksums, and the limits that every
//! length meets before it becomes an allocation.

pub mod checksum;
pub mod cursor;
pub mod limits;
pub mod python_literal;
pub mod varint;

pub use cursor::Cursor;
