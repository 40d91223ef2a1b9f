//! The form since PyTorch 1.6: a zip archive with uncompressed members.
//!
//! ```text
//! NAME/data.pkl                the object, its tensors as calls with storages 0, 1, ...
//! NAME/byteorder               "little" or "big"; absent before PyTorch 2.1: little
//! NAME/data/0                  the bytes of storage 0, at a multiple of 64 bytes
//! NAME/version                 "3\n"
//! NAME/.format_version  NAME/.storage_alignment  NAME/.data/serialization_id      of no use here
//! NAME/constants.pkl  NAME/code/...                                               TorchScript: refused
//! ```
//!
//! Source: PyTorch `torch/serialization.py` (`_save`, `_load`),
//! `caffe2/serialize/inline_container.cc`.

use std::collections::HashMap;

use bytes::Bytes;

use super::file::DataFile;
use super::storages::Storage;
use regrow_base::bytes::zip::{find_headers, read_headers};
use regrow_base::error::{Error, ErrorKind, Result};

const PICKLE_LEN_MAX_BYTES: u64 = 1 << 30;

/// The longest member with a short text, such as `byteorder`.
const TEXT_LEN_MAX_BYTES: u64 = 64;

/// The newest format that PyTorch itself reads.
const VERSION_MAX: u64 = 10;

/// An archive in a file.
#[derive(Debug)]
pub(super) struct TorchArchive {
    /// The folder that all members are in, with its slash.
    prefix: String,
    members: HashMap<String, Storage>,
    pub has_checksums: bool,
    pub big_endian: bool,
    pub pickle: Bytes,
}

impl TorchArchive {
    /// Opens the archive in `len_bytes` of a file, from `base_bytes` on. With `salvage`, also a
    /// truncated archive.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; with the offset in the file.
    pub fn open(file: &DataFile, base_bytes: u64, len_bytes: u64, salvage: bool) -> Result<Self> {
        let read =
            |offset_bytes: u64, len_bytes| file.slice(base_bytes.saturating_add(offset_bytes), len_bytes);
        let listed = match read_headers(len_bytes, &read) {
            Err(error) if salvage && error.kind().is_damage() => find_headers(len_bytes, &read),
            listed => listed,
        };
        let listed = listed.map_err(|error| error.shift(base_bytes))?;
        let mut headers = listed.headers;
        let first = headers.first().map_or("", |header| header.member.name.as_str());
        let prefix = first.split_inclusive('/').next().filter(|part| part.ends_with('/')).unwrap_or_default();
        let prefix = prefix.to_owned();
        // PyTorch can be told to write no checksums. It then writes zeros.
        let has_checksums = headers.iter().any(|header| header.member.crc32 != 0);
        headers.sort_by_key(|header| header.member.header_offset_bytes);
        let ends: Vec<u64> = headers.iter().map(|header| header.member.header_offset_bytes).collect();
        let ends = ends.into_iter().skip(1).chain([listed.offset_bytes]);
        let mut members = HashMap::with_capacity(headers.len());
        for (header, end_bytes) in headers.into_iter().zip(ends) {
            let at = header.member.header_offset_bytes;
            let name = header.member.name.clone();
            if at.checked_add(header.len_min_bytes()).is_none_or(|end| end > end_bytes) {
                return Err(Error::corrupt(format!(
                    "the member {name:?} of a zip archive overlaps the next one"
                ))
                .at_byte(base_bytes.saturating_add(at))
                .expected(format_args!("{} bytes", header.len_min_bytes()), end_bytes.saturating_sub(at)));
            }
            let storage = Storage::member(header, end_bytes, base_bytes, has_checksums);
            if members.insert(name.clone(), storage).is_some() {
                return Err(Error::corrupt(format!("the member {name:?} is in the zip archive twice"))
                    .at_byte(base_bytes.saturating_add(at)));
            }
        }
        let mut archive = Self { prefix, members, has_checksums, big_endian: false, pickle: Bytes::new() };
        archive.read_small(file, base_bytes)?;
        Ok(archive)
    }

    fn read_small(&mut self, file: &DataFile, base_bytes: u64) -> Result<()> {
        if self.member("constants.pkl").is_some() {
            return Err(Error::unsupported("this is a TorchScript archive, which is a program with weights")
                .at_byte(base_bytes)
                .help("load it with torch.jit.load, and save its state_dict with torch.save"));
        }
        if let Some(version) = self.text(file, "version")? {
            let number = version.trim().parse::<u64>();
            if !number.is_ok_and(|number| number <= VERSION_MAX) {
                return Err(Error::unsupported("the format of the archive is not known")
                    .at_byte(base_bytes)
                    .expected(
                        format_args!("a version of at most {VERSION_MAX}"),
                        format_args!("{version:?}"),
                    ));
            }
        }
        self.big_endian = match self.text(file, "byteorder")?.as_deref() {
            None | Some("little") => false,
            Some("big") => true,
            Some(other) => {
                return Err(Error::corrupt("the byte order of the archive is not known")
                    .at_byte(base_bytes)
                    .expected("\"little\" or \"big\"", format_args!("{other:?}")));
            }
        };
        let pickle = self.member("data.pkl").ok_or_else(|| {
            Error::unsupported("the zip archive has no data.pkl: torch.save did not write it")
                .at_byte(base_bytes)
                .help("if another program wrote it, unpack it")
        })?;
        if pickle.len_bytes > PICKLE_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "the pickle of the archive is too long")
                .at_byte(pickle.order())
                .expected(format_args!("at most {PICKLE_LEN_MAX_BYTES} bytes"), pickle.len_bytes));
        }
        self.pickle = pickle.read(file)?;
        Ok(())
    }

    fn text(&self, file: &DataFile, name: &str) -> Result<Option<String>> {
        let Some(member) = self.member(name) else { return Ok(None) };
        if member.len_bytes > TEXT_LEN_MAX_BYTES {
            return Err(Error::corrupt(format!("the member {name:?} of the archive is too long"))
                .at_byte(member.order())
                .expected(format_args!("at most {TEXT_LEN_MAX_BYTES} bytes"), member.len_bytes));
        }
        Ok(Some(String::from_utf8_lossy(&member.read(file)?).into_owned()))
    }

    fn member(&self, name: &str) -> Option<&Storage> {
        self.members.get(&format!("{}{name}", self.prefix))
    }

    pub fn pickle_at(&self, file: &DataFile) -> Result<u64> {
        self.member("data.pkl").map_or(Ok(0), |member| Ok(member.extent(file, 0, 0)?.offset_bytes))
    }

    /// Takes out the storage with this key; `None` if it is missing.
    pub fn take(&mut self, key: &str) -> Option<Storage> {
        self.members.remove(&format!("{}data/{key}", self.prefix))
    }

    /// The members that were not taken out, in file order.
    pub fn into_rest(self) -> Vec<Storage> {
        let mut rest: Vec<Storage> = self.members.into_values().collect();
        rest.sort_by_key(Storage::order);
        rest
    }
}
