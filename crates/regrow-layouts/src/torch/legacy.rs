//! The form before PyTorch 1.6: pickles one after another, then the storages.
//!
//! ```text
//! | pickle: 0x1950a86a20f9469cfc6c | pickle: 1001 | pickle: {"little_endian": True, ...} |
//! | pickle: the object | pickle: the keys of its storages, as a list |
//! | u64le elements | data | u64le elements | data | ...      in the order of that list; no checksums
//! ```
//!
//! Source: PyTorch `torch/serialization.py` (`_legacy_save`, `_legacy_load`).

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::detect::MAGIC;
use super::file::DataFile;
use super::pickle::{Pickle, Value};
use super::storages::Storage;
use super::tensors::{self, StorageRef};
use regrow_base::bytes::Cursor;
use regrow_base::error::{Error, ErrorKind, Result};

const PROTOCOL_VERSION: i64 = 1001;

/// The number of bytes read first without a map. It grows fourfold each time the pickles need more.
const HEAD_LEN_BYTES: u64 = 1 << 20;

/// The longest pickles that are read, in total.
const PICKLES_LEN_MAX_BYTES: u64 = 1 << 30;

/// A file of this form.
#[derive(Debug)]
pub(super) struct Legacy {
    /// The pickle of the object, and its offset.
    pub pickle: Bytes,
    pub pickle_at: u64,
    pub big_endian: bool,
    pub storages: HashMap<String, Storage>,
    /// The offset of the end of the last storage.
    pub end_bytes: u64,
}

impl Legacy {
    /// Opens a file. With `salvage`, also a file that is truncated after its pickles.
    pub fn open(file: &DataFile, salvage: bool) -> Result<Self> {
        if let Some(map) = file.map()? {
            return Self::read(&map.slice(..file.len_bytes as usize), file, salvage);
        }
        let mut len = HEAD_LEN_BYTES.min(file.len_bytes);
        loop {
            let head = file.slice(0, len)?;
            let read = Self::read(&head, file, salvage);
            let is_all = len == file.len_bytes || len >= PICKLES_LEN_MAX_BYTES;
            let ends_inside = |error: &Error| error.kind() == ErrorKind::Corrupt && !is_all;
            match read {
                // The pickles may continue, so read more of the file.
                Err(error) if ends_inside(&error) => len = len.saturating_mul(4).min(file.len_bytes),
                read => return read,
            }
        }
    }

    fn read(head: &Bytes, file: &DataFile, salvage: bool) -> Result<Self> {
        let mut at = 0;
        let mut next = |what: &str| {
            let rest = head.get(at..).unwrap_or_default();
            let pickle = Pickle::read(rest).map_err(|error| {
                let error = error.shift(at as u64);
                match error.kind() {
                    ErrorKind::Corrupt => error.help(format!(
                        "this is read for {what}; the file was cut short or damaged: copy it again"
                    )),
                    _ => error,
                }
            })?;
            let found = (pickle, at);
            at += found.0.len_bytes();
            Ok::<_, Error>(found)
        };
        let (magic, _) = next("the magic number")?;
        if !matches!(magic.value(magic.root()), &Value::Long(span) if magic.span(span) == MAGIC) {
            return Err(Error::corrupt("the file does not begin with PyTorch's magic number").at_byte(0));
        }
        let (protocol, protocol_at) = next("the version")?;
        if protocol.int(protocol.root()) != Some(PROTOCOL_VERSION) {
            return Err(Error::unsupported("the version of the file is not known")
                .at_byte(protocol_at as u64)
                .expected(PROTOCOL_VERSION, format_args!("{:?}", protocol.value(protocol.root()))));
        }
        let (system, system_at) = next("the byte order")?;
        let big_endian = is_big_endian(&system).ok_or_else(|| {
            Error::corrupt("the byte order of the file is missing").at_byte(system_at as u64)
        })?;
        let (object, object_at) = next("the object")?;
        let (keys, keys_at) = next("the keys of the storages")?;
        let pickle = head.slice(object_at..object_at.saturating_add(object.len_bytes()));
        let claims = claims(&object).map_err(|error| error.shift(object_at as u64))?;
        let list = keys.sequence(keys.root()).ok_or_else(|| {
            Error::corrupt("the keys of the storages are not a list").at_byte(keys_at as u64)
        })?;
        let mut storages = HashMap::with_capacity(list.len());
        let mut data_at = keys_at.saturating_add(keys.len_bytes()) as u64;
        for &key_id in list {
            let storage = || {
                let bad = |what: &str| Error::corrupt(what).at_byte(data_at);
                let key = keys.text(key_id).ok_or_else(|| bad("the key of a storage is not text"))?;
                let claim = claims.get(key).ok_or_else(|| bad("the file has a storage without a tensor"))?;
                let count = Cursor::new(&file.slice(data_at, size_of::<u64>() as u64)?)
                    .u64le("a number of elements")?;
                let len_bytes =
                    claim.len_bytes().filter(|_| count == claim.len_elements).ok_or_else(|| {
                        bad("the length of a storage differs from its tensors")
                            .expected(claim.len_elements, count)
                    })?;
                let start = data_at.saturating_add(size_of::<u64>() as u64);
                let end = start.saturating_add(len_bytes);
                if end > file.len_bytes {
                    return Err(bad("the file ends inside a storage")
                        .expected(format_args!("{end} bytes"), file.len_bytes)
                        .help("it was cut short; copy it again"));
                }
                Ok((key, Storage::at(start, len_bytes), end))
            };
            let (key, storage, end) = match storage() {
                // The offset of the next storage is unknown, so stop here.
                Err(error) if salvage && error.kind().is_damage() => break,
                storage => storage?,
            };
            if storages.insert(key.to_owned(), storage).is_some() {
                return Err(Error::corrupt("the key of a storage occurs twice").at_byte(data_at));
            }
            data_at = end;
        }
        Ok(Self { pickle, pickle_at: object_at as u64, big_endian, storages, end_bytes: data_at })
    }
}

fn is_big_endian(system: &Pickle<'_>) -> Option<bool> {
    let Value::Dict(pairs) = system.value(system.root()) else { return None };
    let of_order = |&(key, value): &(_, _)| match (system.text(key), system.value(value)) {
        (Some("little_endian"), Value::Bool(is_little)) => Some(!is_little),
        _ => None,
    };
    pairs.iter().find_map(of_order)
}

/// The storages that the object's tensors are views of, by their keys.
fn claims<'p>(object: &'p Pickle<'_>) -> Result<BTreeMap<&'p str, StorageRef<'p>>> {
    let mut claims: BTreeMap<&str, StorageRef<'_>> = BTreeMap::new();
    for (id, value) in object.values() {
        if !matches!(value, Value::Persistent(_)) {
            continue;
        }
        let claim = tensors::storage(object, id)?;
        let known = claims.entry(claim.key).or_insert_with(|| claim.clone());
        if known.len_bytes() != claim.len_bytes() {
            return Err(object.corrupt(id, "two tensors give different lengths for one storage").expected(
                format_args!("{:?} bytes", known.len_bytes()),
                format_args!("{:?}", claim.len_bytes()),
            ));
        }
    }
    Ok(claims)
}
