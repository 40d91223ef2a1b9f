//! The part of zip archives that `.npz` files use: uncompressed and compressed members, zip64,
//! CRC-32.
//!
//! [`bytes::zip`](regrow_base::bytes::zip) reads the directories, also of other archives.

mod inflate;
mod writer;

pub(super) use inflate::Inflater;
pub(super) use writer::{Listed, ZipWriter};

pub(super) use regrow_base::bytes::checksum::Crc32;
use regrow_base::bytes::zip::{
    CENTRAL, END, END64, END64_LEN_BYTES, END64_LOCATOR, EXTRA_ZIP64, FLAG_UTF8, LOCAL, LOCAL_LEN_BYTES,
};
pub(super) use regrow_base::bytes::zip::{
    Directory, Member, Method, beginning_len_bytes, begins_member, find_members, read_directory,
};
use regrow_base::error::Error;

/// Extra field of padding that aligns the data, as Android's zipalign writes it.
const EXTRA_ALIGNMENT: u16 = 0xd935;

pub(super) const BAD_CRC: &str = "a member of a zip archive fails its CRC-32";

pub(super) const BAD_CRC_HELP: &str = "copy the file again, or load the other leaves";

pub(super) fn bad_crc(expected: u32, found: u32) -> Error {
    Error::corrupt(BAD_CRC)
        .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
        .help(BAD_CRC_HELP)
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
