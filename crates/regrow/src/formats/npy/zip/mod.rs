//! Zip archives, as much of them as `.npz` files are: stored and deflated members, zip64, CRC-32.
//!
//! ```text
//! | local header, name, extra | data |  one for each member
//! | central header, name, extra | ...   the directory: the truth about the members
//! | zip64 end | zip64 locator |         only where 16 or 32 bits do not hold a number
//! | end: counts, offset, comment |      found from the back
//! ```
//!
//! A zip reader of our own, because a stored member is then a slice of the map like any other raw leaf, and because
//! every length meets the file before it is believed: members lie in order and never overlap (one that does is a
//! zip bomb), none grows by more than deflate can ([`DEFLATE_RATIO_MAX`]), names are data and never paths. No
//! checksum covers a name, so the local header and the directory have to agree on it.
//! Encryption, several disks and other methods are refused.
//!
//! Source: PKWARE APPNOTE 6.3, sections 4.3 to 4.5.

mod directory;
mod inflate;
mod writer;

pub(super) use directory::{Directory, beginning_len_bytes, begins_member, read_directory};
pub(super) use inflate::Inflater;
pub(super) use writer::{Listed, ZipWriter};

/// Marks of the four kinds of records.
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const END64_LOCATOR: [u8; 4] = *b"PK\x06\x07";

/// Lengths of the records without names, extras and comments.
const LOCAL_LEN_BYTES: usize = 30;
const CENTRAL_LEN_BYTES: usize = 46;
const END_LEN_BYTES: usize = 22;
const END64_LEN_BYTES: usize = 56;
const END64_LOCATOR_LEN_BYTES: usize = 20;

/// Extra field with the numbers that 32 bits do not hold.
const EXTRA_ZIP64: u16 = 1;

/// Extra field of padding that aligns the data, as Android's zipalign writes it.
const EXTRA_ALIGNMENT: u16 = 0xd935;

/// Flag: the name is UTF-8, and not IBM's code page 437.
const FLAG_UTF8: u16 = 1 << 11;

/// Flags: encrypted, a patch, strongly encrypted, masked headers.
const FLAGS_UNREADABLE: u16 = 1 | 1 << 5 | 1 << 6 | 1 << 13;

/// Most that deflate makes of a byte.
pub(super) const DEFLATE_RATIO_MAX: u64 = 1032;

/// How a member's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// As they are.
    Stored,
    /// Deflated.
    Deflated,
}

/// A CRC-32 over parts that arrive one after another.
pub(super) struct Crc32(crc_fast::Digest);

impl Crc32 {
    /// Over nothing yet.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32IsoHdlc))
    }

    /// Takes in the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all parts so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in the crate's u64")]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl std::fmt::Debug for Crc32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc32({:08x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zip_files() {
        let mut crc = Crc32::new();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.value(), 0xcbf4_3926);
    }
}
