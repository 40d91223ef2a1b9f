//! One array of a store: an npy file of fixed size whose rows are written in place.
//!
//! ```text
//! | npy 1.0 header, 128 bytes for usual shapes | row 0 | row 1 | ...   C order, little endian
//! ```
//!
//! The file is complete, with zeros reserved on disk, before it gets its name. So no process sees a
//! short file, and a full disk shows when a model is registered and not hours later. Opening
//! compares header and length with the store's parameters. Only `repair` pads a short file.
//!
//! Rows are written by `pwrite`, which can fail with an error. A write to a map would kill the
//! process if another process has cut the file.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::finite::is_finite;
use super::layout::{ArraySpec, Slot};
use crate::npy::descr::Descr;
use crate::npy::header::{Header, PREFIX_LEN_BYTES};
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::system::{FileExt, allocate};
use regrow_storage::local::NewFile;
use regrow_store::local::regular::open_regular;

/// Bytes that are read at a time.
const PIECE_LEN_BYTES: u64 = 1 << 20;

const SYNC_HELP: &str =
    "rows since the last sync are not marked as done: start the program again when the disk works";
const REPAIR_HELP: &str = "`repair` restores the file and marks the lost rows as not done";

/// An open array.
#[derive(Debug)]
pub struct ArrayFile {
    path: PathBuf,
    file: File,
    spec: ArraySpec,
    data_offset_bytes: u64,
    data_len_bytes: u64,
    failed: SyncFailed,
}

/// Whether a sync of any array of a store has failed. Clones share this state.
///
/// If a disk cannot write a page, only one sync fails. The kernel then treats the page as written:
/// the next sync succeeds, although the disk has the old bytes. So after a failed sync the store
/// takes no row, mark or flag until it is opened again.
#[derive(Debug, Clone, Default)]
pub(super) struct SyncFailed(Arc<AtomicBool>);

impl SyncFailed {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self, path: &Path) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Io, "a sync of this store failed before")
                .in_file(path)
                .help(SYNC_HELP)),
        }
    }
}

/// The state of an array's file, as far as repair can mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Whole,
    Missing,
    /// No header can be read.
    Headless,
    /// The file ends before its data does. `first_lost` is the first row that is not complete.
    Cut {
        by_bytes: u64,
        first_lost: u64,
    },
    /// Bytes follow the data.
    Longer {
        by_bytes: u64,
    },
}

impl Condition {
    /// The state of the array's file.
    ///
    /// # Errors
    /// What repair cannot mend: a sound array of another dtype or shape, a file that cannot be
    /// read.
    pub(super) fn of(root: &Path, slot: &Slot) -> Result<Self> {
        let array = match ArrayFile::open_of_any_len(&slot.path(root), &slot.spec, false) {
            Ok(array) => array,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Missing),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Self::Headless),
            Err(error) => return Err(error.help("`repair` cannot know which of the two is right")),
        };
        let (found, expected) = array.len()?;
        Ok(if found > expected {
            Self::Longer { by_bytes: found - expected }
        } else if found < expected {
            let data = found.saturating_sub(array.data_offset_bytes);
            let first_lost = data / slot.spec.row_len_bytes().max(1);
            Self::Cut { by_bytes: expected - found, first_lost }
        } else {
            Self::Whole
        })
    }

    /// The first row that is lost.
    pub(super) fn first_lost(self) -> Option<u64> {
        match self {
            Self::Missing | Self::Headless => Some(0),
            Self::Cut { first_lost, .. } => Some(first_lost),
            Self::Whole | Self::Longer { .. } => None,
        }
    }
}

impl ArrayFile {
    /// Makes the file in `folder`, all zeros, reserved on disk. The caller holds the store's lock.
    ///
    /// # Errors
    /// `AlreadyExists` if the file exists and `replace` is false; `StorageFull`.
    pub(super) fn create(folder: &Path, name: &str, spec: &ArraySpec, replace: bool) -> Result<()> {
        Self::prepare(folder, name, spec)?.give_name(name, replace)
    }

    /// As [`create`](Self::create), without giving the file its name.
    pub(super) fn prepare(folder: &Path, name: &str, spec: &ArraySpec) -> Result<NewFile> {
        let header = Header::for_array(spec.dtype, spec.shape()?, true).to_bytes();
        let new = NewFile::create(folder)?;
        let len = header.len() as u64 + spec.len_bytes()?;
        let written = new.file().write_all_at(&header, 0).and_then(|()| reserve(new.file(), len));
        written.map_err(|error| Error::io("cannot make an array of", folder.join(name), error))?;
        Ok(new)
    }

    /// Opens the file, whose dtype, shape and length must be those of `spec`.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if header or length are wrong; `Mismatch` if it is a sound array of
    /// another dtype or shape.
    pub(super) fn open(path: &Path, spec: &ArraySpec, writable: bool) -> Result<Self> {
        let array = Self::open_of_any_len(path, spec, writable)?;
        array.check_len()?;
        Ok(array)
    }

    /// As [`open`](Self::open), for a file of any length.
    pub(super) fn open_of_any_len(path: &Path, spec: &ArraySpec, writable: bool) -> Result<Self> {
        let file = open_regular(path, writable).map_err(with_help)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "an array of the store is missing")
                .in_file(path)
                .expected(spec, "no file")
        })?;
        let (found, data_offset_bytes) = read_spec(&file).in_file(path).map_err(with_help)?;
        if found != *spec {
            return Err(Error::new(ErrorKind::Mismatch, "an array differs from the parameters of the store")
                .in_file(path)
                .expected(spec, found)
                .help("open the store with its own parameters"));
        }
        let (path, data_len_bytes) = (path.to_owned(), spec.len_bytes()?);
        Ok(Self { path, file, spec: found, data_offset_bytes, data_len_bytes, failed: SyncFailed::default() })
    }

    /// The same array, with the sync state that all arrays of its store share.
    #[must_use]
    pub(super) fn of_store(mut self, failed: &SyncFailed) -> Self {
        self.failed = failed.clone();
        self
    }

    /// Dtype and shape in the header of a file of any length.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if it is not an npy file; `Unsupported` for an npy file that no store
    /// has.
    pub(super) fn spec_of(path: &Path) -> Result<ArraySpec> {
        let file = open_regular(path, false)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "an array of the store is missing").in_file(path)
        })?;
        Ok(read_spec(&file).in_file(path)?.0)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its dtype and shape.
    pub fn spec(&self) -> &ArraySpec {
        &self.spec
    }

    /// The offset of the data in the file.
    pub fn data_offset_bytes(&self) -> u64 {
        self.data_offset_bytes
    }

    /// The length of the file, and the length that its header says.
    fn len(&self) -> Result<(u64, u64)> {
        let found = self.file.metadata().map_err(|error| Error::io("cannot look at", &self.path, error))?;
        Ok((found.len(), self.data_offset_bytes + self.data_len_bytes))
    }

    /// Errs with `Corrupt` unless the file is exactly as long as its header says.
    pub(super) fn check_len(&self) -> Result<()> {
        let (found, expected) = self.len()?;
        if found == expected {
            return Ok(());
        }
        let what = if found < expected { "an array is cut off" } else { "an array has bytes after its data" };
        Err(Error::corrupt(what)
            .in_file(&self.path)
            .expected(format_args!("{expected} bytes"), found)
            .help(REPAIR_HELP))
    }

    /// Gives the file of an array with a sound header the length that the header says.
    pub(super) fn mend_len(path: &Path, spec: &ArraySpec) -> Result<()> {
        let array = Self::open_of_any_len(path, spec, true)?;
        let len = array.data_offset_bytes + array.data_len_bytes;
        let mended = array.file.set_len(len).and_then(|()| regrow_base::system::sync(&array.file));
        mended.map_err(|error| Error::io("cannot repair", path, error))
    }

    /// Writes one row after another of `data` to `rows`; neighbours go in one write.
    ///
    /// # Errors
    /// `InvalidArgument` if a row is not there or `data` has another size, before anything is
    /// written; `Corrupt` if the file was truncated in between; `StorageFull`, `Io` with some rows
    /// written.
    pub fn write_rows(&self, rows: &[u64], data: &[u8]) -> Result<()> {
        self.check_synced()?;
        self.write(rows, data)
    }

    /// Errs if an earlier sync of the store failed.
    pub(super) fn check_synced(&self) -> Result<()> {
        self.failed.refuse(&self.path)
    }

    fn write(&self, rows: &[u64], data: &[u8]) -> Result<()> {
        let row_len = self.spec.row_len_bytes();
        self.check_rows(rows)?;
        if (rows.len() as u64).checked_mul(row_len) != Some(data.len() as u64) {
            return Err(Error::invalid("the rows and the data differ in size").in_file(&self.path).expected(
                format_args!("{} rows of {row_len} bytes", rows.len()),
                format_args!("{} bytes", data.len()),
            ));
        }
        self.check_len()?;
        let mut data = data;
        for (first, count) in runs(rows) {
            // `count * row_len` is at most the length of `data`: the check above compares them.
            let (now, rest) = data.split_at_checked((count * row_len) as usize).unwrap_or((data, &[]));
            let written = self.file.write_all_at(now, self.data_offset_bytes + first * row_len);
            written.map_err(|error| Error::io("cannot write rows of", &self.path, error))?;
            data = rest;
        }
        Ok(())
    }

    /// Errs with `InvalidArgument` for a row that is not there.
    pub(super) fn check_rows(&self, rows: &[u64]) -> Result<()> {
        match rows.iter().find(|&&row| row >= self.spec.rows) {
            Some(row) => Err(Error::invalid("the row does not exist")
                .in_file(&self.path)
                .expected(format_args!("a row below {}", self.spec.rows), row)),
            None => Ok(()),
        }
    }

    /// The first of `rows` whose values, in `data`, hold NaN or an infinity.
    pub fn first_non_finite(&self, rows: &[u64], data: &[u8]) -> Option<u64> {
        let (dtype, row_len) = (self.spec.dtype, self.spec.row_len_bytes() as usize);
        if row_len == 0 || is_finite(data, dtype) {
            return None;
        }
        let values = rows.iter().zip(data.chunks_exact(row_len));
        values.filter(|(_, bytes)| !is_finite(bytes, dtype)).map(|(&row, _)| row).next()
    }

    /// Reads whole rows from `first` on, as many as `out` holds.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not there; `Corrupt` if the file was truncated in between.
    pub fn read_rows(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let start = first.checked_mul(self.spec.row_len_bytes());
        match start.filter(|start| start.saturating_add(out.len() as u64) <= self.data_len_bytes) {
            Some(start) => self.read_data(start, out),
            None => Err(Error::invalid("the rows do not exist").in_file(&self.path)),
        }
    }

    /// Reads bytes of the data from `offset_bytes` on.
    pub(super) fn read_data(&self, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        let start = self.data_offset_bytes.saturating_add(offset_bytes);
        self.file.read_exact_at(out, start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self
                .check_len()
                .err()
                .unwrap_or_else(|| Error::corrupt("an array changed while it was read").in_file(&self.path)),
            _ => Error::io("cannot read", &self.path, error),
        })
    }

    /// Waits until all writes, of any kind, would survive a power cut.
    ///
    /// # Errors
    /// Errors of the disk; an error if an earlier sync of the store failed.
    pub fn sync(&self) -> Result<()> {
        self.check_synced()?;
        self.file.sync_data().map_err(|error| {
            self.failed.set();
            Error::io("cannot sync", &self.path, error).help(SYNC_HELP)
        })
    }

    /// Calls `each` with the bytes of each row. Does not call `each` for an array without columns.
    pub(super) fn for_each_row(&self, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let (rows, row_len) = (self.spec.rows, self.spec.row_len_bytes());
        if row_len == 0 {
            return Ok(());
        }
        let at_once = (PIECE_LEN_BYTES / row_len).max(1).min(rows);
        let mut buffer = work_space(at_once * row_len)?;
        let mut first = 0;
        while first < rows {
            let count = at_once.min(rows - first);
            let now = buffer.get_mut(..(count * row_len) as usize).unwrap_or_default();
            self.read_rows(first, now)?;
            (first..).zip(now.chunks_exact(row_len as usize)).for_each(|(row, bytes)| each(row, bytes));
            first += count;
        }
        Ok(())
    }

    /// Calls `each` with the number of each row of a mask.
    pub(super) fn for_each_number(&self, mut each: impl FnMut(u64, i32)) -> Result<()> {
        self.for_each_row(|row, bytes| {
            each(row, bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes)))
        })
    }

    /// The rows, among `rows`, whose number in a mask is not 0.
    pub(super) fn marked(&self, rows: &[u64]) -> Result<Vec<u64>> {
        let mut marked = Vec::new();
        for (first, count) in runs(rows) {
            let mut buffer = work_space(count * self.spec.row_len_bytes())?;
            self.read_rows(first, &mut buffer)?;
            let (numbers, _) = buffer.as_chunks::<4>();
            marked
                .extend((first..).zip(numbers).filter(|(_, number)| **number != [0; 4]).map(|(row, _)| row));
        }
        Ok(marked)
    }

    /// Sets rows of a mask.
    pub(super) fn set_marks(&self, rows: &[u64], mark: i32) -> Result<()> {
        self.write_rows(rows, &mark.to_le_bytes().repeat(rows.len()))
    }

    /// Sets rows of a mask on disk, to 1 or to 0. If the sync fails, the rows that changed show
    /// their old marks again: the disk may have either, and no later sync would write the new ones.
    pub(super) fn set_marks_on_disk(&self, rows: &[u64], mark: i32) -> Result<()> {
        let marked: HashSet<u64> = self.marked(rows)?.into_iter().collect();
        let changed: Vec<u64> =
            rows.iter().copied().filter(|row| marked.contains(row) != (mark == 1)).collect();
        self.set_marks(rows, mark)?;
        self.sync().inspect_err(|_| {
            let _ = self.write(&changed, &(1 - mark).to_le_bytes().repeat(changed.len()));
        })
    }

    /// Sets the numbers of lost rows of a mask to 0, and syncs the file. Returns the number of
    /// removed marks.
    pub(super) fn clear_marks(&self, is_lost: impl Fn(u64) -> bool) -> Result<u64> {
        let mut marked = Vec::new();
        self.for_each_number(|row, number| marked.extend((number != 0 && is_lost(row)).then_some(row)))?;
        self.set_marks(&marked, 0)?;
        self.sync()?;
        Ok(marked.len() as u64)
    }

    /// How many rows of a mask are 1.
    pub(super) fn count_marked(&self) -> Result<u64> {
        let mut count = 0;
        self.for_each_number(|_, number| count += u64::from(number == 1))?;
        Ok(count)
    }
}

/// Adds the advice to repair to the error of a damaged array.
fn with_help(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => error.help(REPAIR_HELP),
        _ => error,
    }
}

/// Rows as runs of neighbours: first row and number of rows.
fn runs(rows: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    rows.chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .filter_map(|run| Some((*run.first()?, run.len() as u64)))
}

/// Gives a file its length, and reserves the room on disk where the file system can.
fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    if allocate(file, len_bytes)? { Ok(()) } else { file.set_len(len_bytes) }
}

fn read_spec(file: &File) -> Result<(ArraySpec, u64)> {
    let mut prefix = Vec::new();
    let cannot_read = |error: io::Error| Error::new(ErrorKind::Io, format!("cannot read: {error}"));
    read_up_to(file, PREFIX_LEN_BYTES, &mut prefix).map_err(cannot_read)?;
    if prefix.is_empty() {
        return Err(Error::corrupt("an array's file is empty").expected("an npy header", "0 bytes"));
    }
    let len = Header::len_bytes(&prefix)?;
    read_up_to(file, len, &mut prefix).map_err(cannot_read)?;
    let (header, len) = Header::parse(&prefix)?;
    match (&header.descr, header.shape.dims()) {
        (Descr::Number { dtype, big_endian: false }, &[rows, columns]) if !header.fortran_order => {
            Ok((ArraySpec { dtype: *dtype, rows, columns }, len as u64))
        }
        _ => Err(Error::unsupported("an array of a TRAK store is little endian, in C order, with two axes")
            .expected("such an array", format_args!("{} of shape {}", header.descr.text(), header.shape))
            .help("TRAK did not write it: move it away, or write it again as TRAK does")),
    }
}

/// Extends `out` to the first `len` bytes of the file, or to all bytes if the file is shorter.
fn read_up_to(file: &File, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
    let start = out.len();
    let longest = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    out.resize(len.min(longest).max(start), 0);
    file.read_exact_at(out.get_mut(start..).unwrap_or_default(), start as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::array::Dtype;

    const SPEC: ArraySpec = ArraySpec { dtype: Dtype::UInt8, rows: 5, columns: 2 };

    #[test]
    fn rows_land_where_they_belong() {
        let folder = tempfile::tempdir().unwrap();
        ArrayFile::create(folder.path(), "a", &SPEC, false).unwrap();
        let array = ArrayFile::open(&folder.path().join("a"), &SPEC, true).unwrap();
        array.write_rows(&[4, 0, 1], &[40, 41, 1, 2, 11, 12]).unwrap();
        let mut all = [9; 10];
        array.read_rows(0, &mut all).unwrap();
        assert_eq!(all, [1, 2, 11, 12, 0, 0, 0, 0, 40, 41]);
        for (rows, data) in
            [(&[5][..], &[1, 2][..]), (&[0], &[1]), (&[0, 1], &[1, 2]), (&[u64::MAX], &[1, 2])]
        {
            assert_eq!(array.write_rows(rows, data).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert!(array.read_rows(4, &mut [0; 4]).is_err() && array.read_rows(u64::MAX, &mut [0; 2]).is_err());
        let error = ArrayFile::create(folder.path(), "a", &SPEC, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_file_that_is_cut_or_grown_is_never_read_nor_padded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for len in [0, 5, 50, 128, 137, 139] {
            ArrayFile::create(folder.path(), "a", &SPEC, true).unwrap();
            let open = ArrayFile::open(&path, &SPEC, true).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            let error = ArrayFile::open(&path, &SPEC, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
            assert_eq!(error.place().file.as_deref(), Some(&*path));
            let error = open.write_rows(&[4], &[1, 2]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        }
        let missing = ArrayFile::open(&folder.path().join("b"), &SPEC, false).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        ArrayFile::create(folder.path(), "a", &SPEC, true).unwrap();
        let other = ArrayFile::open(&path, &ArraySpec { rows: 6, ..SPEC }, false).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Mismatch);
    }

    #[test]
    fn an_impossible_size_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let spec = ArraySpec { rows: 1 << 61, ..SPEC };
        ArrayFile::create(folder.path(), "a", &spec, false).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
