//! Recognises PyTorch's files and other pickles by their first bytes, under any name. Pickles of
//! protocol 0 and 1 begin like text, so for them the name must match, too.

use std::ffi::OsStr;

use super::pickle::is_opcode;
use regrow_base::bytes::zip::first_member;
use regrow_base::error::Result;
use regrow_storage::Found;
use regrow_storage::location::{Location, suffix_of};

/// The number in the first pickle of the legacy form: ten bytes, the lowest first.
pub(super) const MAGIC: [u8; 10] = *b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

const ZIP_BEGINNING: [u8; 4] = *b"PK\x03\x04";

/// The number of bytes read: the header and the name of a zip archive's first member.
const FIRST_LEN_BYTES: u64 = 30 + 512;

/// The first opcodes of the legacy form: PROTO, perhaps a FRAME, then LONG1 of ten bytes.
const PROTO: u8 = 0x80;
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;
const LONG1_OF_TEN: [u8; 2] = [0x8a, MAGIC.len() as u8];
const MAGIC_AT_MAX: usize = 13;

/// The form of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Zip,
    Legacy,
    /// A pickle without a sign that PyTorch wrote it.
    Pickle,
    /// The tar archive of PyTorch before 0.1.10.
    Tar,
}

/// The form of the file `at` a location; `None` for a file of another program.
pub(super) fn form_of(at: &Location) -> Result<Option<Form>> {
    if !matches!(at.look(), Ok(Some(Found::File { .. }))) {
        return Ok(None);
    }
    let first = at.read_beginning(FIRST_LEN_BYTES)?.unwrap_or_default();
    Ok(form_of_beginning(&first, suffix_of(at.name()).as_deref()))
}

/// Whether a file with these first bytes is a file of PyTorch, or another pickle of protocol 2 or
/// later.
pub fn is_one_by_content(first: &[u8]) -> bool {
    form_of_beginning(first, None).is_some()
}

/// Whether the file `at` a location is a pickle of an unknown program. Its owner may not think of
/// it as a checkpoint.
pub fn is_plain_pickle(at: &Location) -> bool {
    matches!(form_of(at), Ok(Some(Form::Pickle)))
}

/// Whether files with this name are usually PyTorch's files or other pickles.
pub fn is_named_so(name: &OsStr) -> bool {
    let suffix = suffix_of(name);
    names_torch(suffix.as_deref()) || names_pickle(suffix.as_deref())
}

fn names_torch(suffix: Option<&str>) -> bool {
    matches!(suffix, Some("pt" | "pth"))
}

fn names_pickle(suffix: Option<&str>) -> bool {
    matches!(suffix, Some("pkl" | "pickle"))
}

fn form_of_beginning(first: &[u8], suffix: Option<&str>) -> Option<Form> {
    if first.starts_with(&ZIP_BEGINNING) {
        return (names_torch(suffix) || first_member(first).is_some_and(|name| name.ends_with(b"/data.pkl")))
            .then_some(Form::Zip);
    }
    if first.first() == Some(&PROTO) && first.get(1).is_some_and(|protocol| PROTOCOLS.contains(protocol)) {
        let magic = [LONG1_OF_TEN.as_slice(), &MAGIC].concat();
        let near = first.get(..MAGIC_AT_MAX + magic.len()).unwrap_or(first);
        let is_legacy = near.windows(magic.len()).any(|window| window == magic);
        let is_pickle =
            names_torch(suffix) || names_pickle(suffix) || first.get(2).is_some_and(|&op| is_opcode(op));
        return if is_legacy { Some(Form::Legacy) } else { is_pickle.then_some(Form::Pickle) };
    }
    if names_pickle(suffix) && first.first().is_some_and(|&op| is_opcode(op)) {
        return Some(Form::Pickle);
    }
    let is_tar = first.get(257..262) == Some(b"ustar")
        && [b"sys_info\0".as_slice(), b"pickle\0", b"storages\0", b"tensors\0"]
            .iter()
            .any(|name| first.starts_with(name));
    is_tar.then_some(Form::Tar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_files_are_left_to_others() {
        let zip = |name: &str| {
            let mut out = ZIP_BEGINNING.to_vec();
            out.resize(26, 0);
            out.extend((name.len() as u16).to_le_bytes());
            out.extend([0, 0]);
            out.extend(name.as_bytes());
            out
        };
        let legacy = [b"\x80\x02\x8a\x0a".as_slice(), &MAGIC, b"."].concat();
        let framed = [b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0a".as_slice(), &MAGIC, b"."].concat();
        let mut tar = vec![0; 512];
        tar[..8].copy_from_slice(b"sys_info");
        tar[257..262].copy_from_slice(b"ustar");
        for (first, anywhere, as_pt) in [
            (zip("model/data.pkl"), Some(Form::Zip), Some(Form::Zip)),
            (zip("x.npy"), None, Some(Form::Zip)),
            (legacy, Some(Form::Legacy), Some(Form::Legacy)),
            (framed, Some(Form::Legacy), Some(Form::Legacy)),
            (b"\x80\x04}.".to_vec(), Some(Form::Pickle), Some(Form::Pickle)),
            (b"\x80\x04".to_vec(), None, Some(Form::Pickle)),
            (b"\x80\x04\xff".to_vec(), None, Some(Form::Pickle)),
            (b"\x80".to_vec(), None, None),
            (tar, Some(Form::Tar), Some(Form::Tar)),
            (b"PK\x03\x04".to_vec(), None, Some(Form::Zip)),
            (b"(dp0\n.".to_vec(), None, None),
            (Vec::new(), None, None),
        ] {
            assert_eq!(form_of_beginning(&first, None), anywhere, "{first:?}");
            assert_eq!(form_of_beginning(&first, Some("pt")), as_pt, "{first:?}");
        }
        assert_eq!(form_of_beginning(b"(dp0\n.", Some("pkl")), Some(Form::Pickle));
        assert_eq!(form_of_beginning(b"<html>", Some("pkl")), None);
    }
}
