//! The directory of zip archives, also of zip64: the names and positions of their members.
//!
//! ```text
//! | local header, name, extra | data |  one for each member
//! | central header, name, extra | ...   the directory: the truth about the members
//! | zip64 end | zip64 locator |         only where 16 or 32 bits do not hold a number
//! | end: counts, offset, comment |      found from the back
//! ```
//!
//! This is a zip reader of our own: a stored member becomes a slice of the memory map, and every
//! name and length is checked before it is used. The reader refuses archives that break a rule:
//!
//! - members never overlap: an archive with overlapping members may be a zip bomb;
//! - no member grows by more than deflate can (`DEFLATE_RATIO_MAX`);
//! - the local header and the directory agree on each name, since no checksum covers it;
//! - names are data, never paths;
//! - encryption, several disks and other methods are refused.
//!
//! [`read_directory`] reads the header of every member as well. [`read_headers`] reads a header
//! only when its member is needed, which saves requests to a bucket. [`find_members`] and
//! [`find_headers`] need no directory, for archives that have lost it.
//!
//! Source: PKWARE APPNOTE 6.3, sections 4.3 to 4.5.

mod directory;
mod found;

pub use directory::{
    Directory, Header, Member, beginning_len_bytes, begins_member, first_member, read_directory, read_headers,
};
pub use found::{find_headers, find_members};

/// First bytes of the header before a member.
pub const LOCAL: [u8; 4] = *b"PK\x03\x04";
/// First bytes of an entry of the central directory.
pub const CENTRAL: [u8; 4] = *b"PK\x01\x02";
/// First bytes of the record that ends an archive.
pub const END: [u8; 4] = *b"PK\x05\x06";
/// First bytes of the same record with lengths of 64 bits.
pub const END64: [u8; 4] = *b"PK\x06\x06";
/// First bytes of the record with the offset of the 64-bit end record.
pub const END64_LOCATOR: [u8; 4] = *b"PK\x06\x07";

/// Length of the header before a member, without name and extra field. `CENTRAL_LEN_BYTES` is the
/// length of an entry of the directory without them.
pub const LOCAL_LEN_BYTES: usize = 30;
const CENTRAL_LEN_BYTES: usize = 46;
const END_LEN_BYTES: usize = 22;
/// Length of the end record with 64-bit lengths, without extra data.
pub const END64_LEN_BYTES: usize = 56;
const END64_LOCATOR_LEN_BYTES: usize = 20;

/// The extra field with numbers that do not fit into 32 bits.
pub const EXTRA_ZIP64: u16 = 1;

/// Flag: the name is UTF-8, and not IBM's code page 437.
pub const FLAG_UTF8: u16 = 1 << 11;

/// Flags: encrypted, a patch, strongly encrypted, masked headers.
const FLAGS_UNREADABLE: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;

/// Largest number of bytes that deflate can make from one byte.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// The compression of a member's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Not compressed.
    Stored,
    /// Deflated.
    Deflated,
}
