//! Where the bytes of a leaf lie, and reading them: a slice of a file, or a deflated member of an archive.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::record::Record;
use super::zip::{Crc32, Inflater, Method};
use crate::array::{Region, Shape};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::store::{ByteRange, LocalStore, Store};

/// A leaf's data on disk.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// Its file, by number.
    pub file: usize,
    /// The stored bytes within the file: header and data, maybe deflated.
    pub offset_bytes: u64,
    pub stored_len_bytes: u64,
    pub method: Method,
    /// Of header and data, in archives.
    pub crc32: Option<u32>,
    /// Header and data, unpacked; a plain file may hold more behind them.
    pub len_bytes: u64,
    /// Length of the header.
    pub data_at: u64,
    pub record: Record,
}

/// The files of a checkpoint.
#[derive(Debug)]
pub(super) struct Files {
    store: LocalStore,
    files: Vec<DataFile>,
    /// The member that was unpacked last, and how far: whoever reads an array front to back unpacks it once.
    unpacking: Mutex<Option<(usize, Inflater)>>,
}

#[derive(Debug)]
struct DataFile {
    key: Vec<u8>,
    /// When it was opened.
    len_bytes: u64,
}

impl Files {
    /// None yet, all below the folder of `store`.
    pub fn new(store: LocalStore) -> Self {
        Self { store, files: Vec::new(), unpacking: Mutex::new(None) }
    }

    /// Takes in a file; gives its number and its length.
    ///
    /// # Errors
    /// What the file system says; `Corrupt` if it is not there.
    pub fn add(&mut self, key: &[u8]) -> Result<(usize, u64)> {
        let len_bytes = self.store.len_bytes(key)?.ok_or_else(|| {
            Error::corrupt("a file is missing")
                .in_file(self.store.describe(key))
                .help("copy the whole checkpoint again")
        })?;
        self.files.push(DataFile { key: key.to_owned(), len_bytes });
        Ok((self.files.len() - 1, len_bytes))
    }

    /// What a person would call the file.
    pub fn describe(&self, file: usize) -> std::path::PathBuf {
        self.store.describe(self.files.get(file).map_or(&[], |file| &file.key))
    }

    /// Reads a few bytes.
    ///
    /// # Errors
    /// `Corrupt` if the file ends before them.
    pub fn read(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let data_file = self.file(file)?;
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(&data_file.key, range)?.ok_or_else(|| self.changed(file))
    }

    /// A slice of the file's map where there can be one, else a copy.
    fn slice(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let data_file = self.file(file)?;
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(&data_file.key)? != Some(data_file.len_bytes) {
            return Err(self.changed(file));
        }
        let Some(map) = self.store.map(&data_file.key)? else {
            return self.read(file, offset_bytes, len_bytes);
        };
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= map.len() as u64 => Ok(map.slice(offset_bytes as usize..end as usize)),
            _ => Err(self.changed(file)),
        }
    }

    /// The whole leaf as a slice of the map, if its elements lie there as they are.
    ///
    /// # Errors
    /// `Corrupt` if the file has changed.
    pub fn view(&self, stored: &Stored) -> Result<Option<Bytes>> {
        if stored.method == Method::Deflated || !stored.record.is_raw() {
            return Ok(None);
        }
        self.data(stored).map(Some)
    }

    /// Checks header and data of a stored member against their CRC-32.
    ///
    /// # Errors
    /// `Corrupt` if they fail it.
    pub fn check(&self, stored: &Stored) -> Result<()> {
        let Some(expected) = stored.crc32 else { return Ok(()) };
        let bytes = self.slice(stored.file, stored.offset_bytes, stored.stored_len_bytes)?;
        let mut crc = Crc32::new();
        crc.update(&bytes);
        match crc.value() {
            found if found == expected => Ok(()),
            found => Err(bad_crc(expected, found)),
        }
        .map_err(|error| error.at_byte(0).shift(stored.offset_bytes))
        .in_file(self.describe(stored.file))
    }

    /// Reads a region of the leaf, in C order and little endian. A whole member of an archive is checked against its
    /// CRC-32; of a stored one, a part is not (that would read all of it).
    ///
    /// # Errors
    /// `Corrupt`; `InvalidArgument` if the region leaves the array.
    pub fn read_region(&self, leaf: usize, stored: &Stored, region: &Region, out: &mut [u8]) -> Result<()> {
        let record = &stored.record;
        if !region.is_inside(&record.shape) || region.shape().len_bytes(record.dtype)? != out.len() as u64 {
            return Err(Error::invalid("the region leaves the array, or the destination has another size")
                .expected(&record.shape, region));
        }
        if stored.method == Method::Deflated {
            return self
                .unpack_region(leaf, stored, region, out)
                .map_err(|error| error.shift(stored.offset_bytes))
                .in_file(self.describe(stored.file));
        }
        if region == &Region::whole(&record.shape) {
            self.check(stored)?;
        }
        let run = region.contiguous_bytes(&record.shape, record.dtype).filter(|_| record.is_c_order());
        match run {
            _ if region.is_empty() => {}
            Some((start, len_bytes)) => {
                let at = stored.offset_bytes + stored.data_at + start;
                out.copy_from_slice(&self.read(stored.file, at, len_bytes)?);
                record.to_little_endian(out);
            }
            None => record.copy_region(self.data(stored)?, region, out)?,
        }
        Ok(())
    }

    fn data(&self, stored: &Stored) -> Result<Bytes> {
        self.slice(stored.file, stored.offset_bytes + stored.data_at, stored.record.len_bytes())
    }

    /// Errors count from the member's first byte.
    fn unpack_region(&self, leaf: usize, stored: &Stored, region: &Region, out: &mut [u8]) -> Result<()> {
        let record = &stored.record;
        let deflated = self.slice(stored.file, stored.offset_bytes, stored.stored_len_bytes)?;
        let crc32 = stored.crc32.unwrap_or_default();
        if !record.is_c_order() {
            let mut inflater = Inflater::new(stored.len_bytes, crc32);
            inflater.skip_to(&deflated, stored.data_at)?;
            let mut data = allocate(record.len_bytes())?;
            inflater.read(&deflated, &mut data)?;
            return record.copy_region(data.into(), region, out);
        }
        let mut left = out;
        let mut inflater = None;
        for (start, len) in runs(&record.shape, region, record.dtype.size_bytes() as u64) {
            let at = stored.data_at + start;
            let mut now = match inflater.take() {
                Some(inflater) => inflater,
                None => self.inflater(leaf, at, stored.len_bytes, crc32),
            };
            now.skip_to(&deflated, at)?;
            let (piece, rest) =
                std::mem::take(&mut left).split_at_mut_checked(len as usize).unwrap_or_default();
            now.read(&deflated, piece)?;
            record.to_little_endian(piece);
            left = rest;
            inflater = Some(now);
        }
        if let Some(inflater) = inflater.filter(|inflater| !inflater.is_done()) {
            *self.unpacking.lock().unwrap_or_else(PoisonError::into_inner) = Some((leaf, inflater));
        }
        if region == &Region::whole(&record.shape) && region.is_empty() {
            // Nothing was read, and still there is a checksum.
            Inflater::new(stored.len_bytes, crc32).skip_to(&deflated, stored.len_bytes)?;
        }
        Ok(())
    }

    /// The one that has got near `to`, or a new one.
    fn inflater(&self, leaf: usize, to: u64, len_bytes: u64, crc32: u32) -> Inflater {
        let mut kept = self.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, inflater)) = kept.take_if(|(of, inflater)| *of == leaf && inflater.at() <= to) {
            return inflater;
        }
        Inflater::new(len_bytes, crc32)
    }

    fn file(&self, file: usize) -> Result<&DataFile> {
        self.files.get(file).ok_or_else(|| Error::invalid("there is no such file"))
    }

    fn changed(&self, file: usize) -> Error {
        Error::corrupt("a file has changed since it was opened")
            .in_file(self.describe(file))
            .help("open the checkpoint again")
    }
}

pub(super) fn bad_crc(expected: u32, found: u32) -> Error {
    Error::corrupt("a member of a zip archive fails its CRC-32")
        .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
        .help("copy the file again, or load the other leaves")
}

pub(super) fn allocate(len_bytes: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let len = usize::try_from(len_bytes).ok().filter(|&len| out.try_reserve_exact(len).is_ok());
    let len = len.ok_or_else(|| {
        Error::new(ErrorKind::Limit, format!("there is no memory for an array of {len_bytes} bytes"))
    })?;
    out.resize(len, 0);
    Ok(out)
}

/// The runs of bytes `(offset, length)` that a region takes in a C-order array, from front to back.
fn runs(shape: &Shape, region: &Region, size_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let strides = shape.strides_elements();
    let axes: Vec<(u64, u64, u64)> = region
        .starts()
        .iter()
        .zip(region.lens())
        .zip(&strides)
        .map(|((&start, &len), &stride)| (start, len, stride * size_bytes))
        .collect();
    // Trailing axes that are whole merge into one run.
    let whole = axes.iter().zip(shape.dims()).rev().take_while(|((_, len, _), dim)| len == *dim).count();
    let inner = axes.len().saturating_sub(whole + 1);
    let run: u64 = region.lens().iter().skip(inner).product::<u64>() * size_bytes;
    let first: u64 = axes.iter().map(|(start, _, stride)| start * stride).sum();
    let mut index = vec![0; inner];
    let mut next = (!region.is_empty()).then_some(first);
    std::iter::from_fn(move || {
        let now = next?;
        let mut at = now;
        next = None;
        for (count, (_, len, stride)) in index.iter_mut().zip(&axes).rev() {
            *count += 1;
            at += stride;
            if *count < *len {
                next = Some(at);
                break;
            }
            at -= stride * len;
            *count = 0;
        }
        Some((now, run))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Dtype, copy_region};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_the_region_from_front_to_back(axes in proptest::collection::vec((1_u64..4, 0_u64..3, 0_u64..3), 0..4)) {
            let shape = Shape::new(axes.iter().map(|a| a.0 + a.1 + a.2).collect::<Vec<_>>()).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.1).collect::<Vec<_>>(),
                axes.iter().map(|a| a.0).collect::<Vec<_>>(),
            ).unwrap();
            let data: Vec<u8> = (0..shape.len_bytes(Dtype::UInt16).unwrap()).map(|i| i as u8).collect();
            let target = region.shape();
            let mut expected = vec![0; target.len_bytes(Dtype::UInt16).unwrap() as usize];
            copy_region(2, &data, &shape, &region, &mut expected, &target, &vec![0; axes.len()]).unwrap();
            let mut found: Vec<u8> = Vec::new();
            let mut end = 0;
            for (start, len) in runs(&shape, &region, 2) {
                prop_assert!(start >= end);
                end = start + len;
                found.extend(&data[start as usize..end as usize]);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
