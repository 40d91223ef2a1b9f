//! A copy to a local disk, which continues an interrupted copy.
//!
//! ```text
//! step_100.orbax-checkpoint-tmp-copy/                  locked while its writer lives; an interrupted copy leaves it
//!   journal                                            a line of JSON for each complete file, or beginning of a file
//!   .orbax-checkpoint-tmp-files/                       the files; this folder gets the target's name
//! ```
//! The next copy removes files that the journal does not name. The journal is removed before the
//! folder gets its final name. A folder without a journal cannot be continued, because it may be an
//! old checkpoint that an overwrite still has to remove.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;
use serde::{Deserialize, Serialize};

use super::Staged;
use super::leftovers::JOURNAL;
use super::target::Goal;
use super::temporary::split;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::local::folders::make_folders;
use crate::store::{Blob, FileSink, FileWriter, LocalStore, Store, WrittenFile, missing};
use crate::system;
use crate::{Left, Publication, TargetLock, Transfer, TransferFile, TransferOptions, no_such_file};

/// A longer journal is ignored.
const JOURNAL_LEN_MAX_BYTES: u64 = 256 << 20;

/// One line of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Line {
    name: String,
    version: String,
    /// Length of the file, or of the part of it that is written.
    len_bytes: u64,
    digest: String,
}

impl Line {
    fn hash(&self) -> Option<Hash> {
        Hash::from_hex(&self.digest).ok()
    }
}

/// One file of a copy.
#[derive(Debug)]
struct Part {
    file: TransferFile,
    /// Where the copy writes the file.
    path: PathBuf,
    /// The usable bytes of an earlier copy.
    left: Left,
}

/// A copy to a local disk that has not ended.
#[derive(Debug)]
pub(crate) struct LocalTransfer {
    staged: Staged,
    parts: Vec<Part>,
    journal: Mutex<File>,
}

impl LocalTransfer {
    /// Begins a copy, or continues an earlier one.
    pub(crate) fn begin(target: &Location, options: TransferOptions<'_>) -> Result<Self> {
        let publish = options.as_publish();
        let staged = Staged::begin(Goal::of(target, options.kind, &publish)?, &publish, true)?;
        let own = &staged.own.path;
        let lines = read_journal(own);
        let part = |(at, file): (usize, &TransferFile)| {
            let path = staged.path_of(at, &file.name)?;
            Ok(Part { left: left_of(file, &path, &lines), file: file.clone(), path })
        };
        let parts: Vec<Part> = options.files.iter().enumerate().map(part).collect::<Result<_>>()?;
        prune(own, &parts).map_err(|error| Error::io("cannot clear", own, error))?;
        let folder = &staged.files.folder;
        make_folders(folder).map_err(|error| Error::io("cannot make the folder", folder, error))?;
        let path = own.join(JOURNAL);
        let open = || -> io::Result<File> {
            let mut journal = File::options().create(true).append(true).open(&path)?;
            // A kill may have cut off the last line.
            journal.write_all(b"\n")?;
            Ok(journal)
        };
        let journal = open().map_err(|error| Error::io("cannot write", &path, error))?;
        staged.stays.store(parts.iter().any(|part| part.left != Left::Nothing), Ordering::Relaxed);
        Ok(Self { staged, parts, journal: Mutex::new(journal) })
    }

    fn part(&self, at: usize) -> Result<&Part> {
        self.parts.get(at).ok_or_else(no_such_file)
    }

    fn note(&self, at: usize, len_bytes: u64, digest: Hash) -> Result<()> {
        let file = &self.part(at)?.file;
        let line = Line {
            name: file.name.clone(),
            version: file.version.clone(),
            len_bytes,
            digest: digest.to_hex().to_string(),
        };
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal
            .write_all(&text)
            .map_err(|error| Error::io("cannot write", self.staged.own.path.join(JOURNAL), error))?;
        self.staged.stays.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The lines of the journal for each file. Lines that cannot be parsed are skipped.
pub(super) fn read_journal(folder: &Path) -> BTreeMap<String, Vec<Line>> {
    let Ok(file) = File::open(folder.join(JOURNAL)) else { return BTreeMap::new() };
    read_lines(file, JOURNAL_LEN_MAX_BYTES)
}

fn read_lines(journal: impl Read, len_max_bytes: u64) -> BTreeMap<String, Vec<Line>> {
    let mut lines: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    let mut text = Vec::new();
    if journal.take(len_max_bytes + 1).read_to_end(&mut text).is_err() || text.len() as u64 > len_max_bytes {
        return lines;
    }
    for line in text.split(|&byte| byte == b'\n') {
        if let Ok(line) = serde_json::from_slice::<Line>(line) {
            lines.entry(line.name.clone()).or_default().push(line);
        }
    }
    lines
}

pub(super) fn left_of(file: &TransferFile, path: &Path, lines: &BTreeMap<String, Vec<Line>>) -> Left {
    let Ok(found) = fs::symlink_metadata(path) else { return Left::Nothing };
    let of_version = lines.get(&file.name).into_iter().flatten().filter(|line| line.version == file.version);
    let known: Vec<(u64, Hash)> =
        of_version.filter_map(|line| Some((line.len_bytes, line.hash()?))).collect();
    if !found.is_file() || known.is_empty() {
        return Left::Nothing;
    }
    let whole = known.iter().rev().find(|(len_bytes, _)| *len_bytes == file.len_bytes);
    match whole.filter(|_| found.len() == file.len_bytes) {
        // The disk may have damaged the file, so only a read proves its digest.
        Some((_, digest)) => Left::Whole { digest: *digest, is_proven: false },
        None => {
            Left::Beginning(known.into_iter().filter(|(len_bytes, _)| *len_bytes <= found.len()).collect())
        }
    }
}

/// Removes all files that cannot be used, and folders that become empty.
fn prune(folder: &Path, parts: &[Part]) -> io::Result<()> {
    let journal = folder.join(JOURNAL);
    let of_use = parts.iter().filter(|part| part.left != Left::Nothing).map(|part| part.path.as_path());
    prune_folder(folder, &of_use.chain([journal.as_path()]).collect()).map(drop)
}

/// Removes unusable files below a folder. Returns whether any file is left.
fn prune_folder(folder: &Path, kept: &HashSet<&Path>) -> io::Result<bool> {
    let mut is_used = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        match entry.file_type()?.is_dir() {
            true if prune_folder(&path, kept)? => is_used = true,
            true => fs::remove_dir(&path)?,
            false if kept.contains(path.as_path()) => is_used = true,
            false => fs::remove_file(&path)?,
        }
    }
    Ok(is_used)
}

impl Publication for LocalTransfer {
    fn stored_bytes(&self) -> Result<u64> {
        Ok(self.parts.iter().map(|part| part.file.len_bytes).sum())
    }

    fn commit_under(self: Box<Self>, lock: Option<&TargetLock>) -> Result<()> {
        self.staged.commit_after(lock, |staged| {
            let journal = staged.own.path.join(JOURNAL);
            fs::remove_file(&journal).map_err(|error| Error::io("cannot remove", &journal, error))?;
            staged.stays.store(false, Ordering::Relaxed);
            Ok(())
        })
    }

    fn has_lock(&self) -> bool {
        false
    }

    fn made_folders(&self) -> Vec<Location> {
        self.staged.made_folders()
    }
}

impl Transfer for LocalTransfer {
    fn left(&self, at: usize) -> Left {
        self.parts.get(at).map_or(Left::Nothing, |part| part.left.clone())
    }

    fn writer(&self, at: usize, offset_bytes: u64) -> Result<FileWriter> {
        let (Part { file, path, .. }, files) = (self.part(at)?, &self.staged.files);
        if offset_bytes > 0 {
            let sink = Rest::open(path, offset_bytes, files.durable, &files.monitor)?;
            return Ok(FileWriter::new(sink));
        }
        self.discard(at)?;
        files.writer(path.clone(), file.len_bytes, 0)
    }

    fn reached(&self, at: usize, offset_bytes: u64, digest: Hash) -> Result<()> {
        self.note(at, offset_bytes, digest)
    }

    fn written(&self, at: usize) -> Result<Arc<dyn Blob>> {
        let path = &self.part(at)?.path;
        let (folder, name) = split(path)?;
        let opened = LocalStore::new(folder).open(name.as_encoded_bytes())?;
        opened.ok_or_else(|| missing(path.clone()))
    }

    fn finished(&self, at: usize, digest: Hash, _is_verified: bool) -> Result<()> {
        let Part { file, path, left } = self.part(at)?;
        // An earlier copy may have been killed before it synced the file.
        if *left != Left::Nothing {
            self.staged.files.sync_later(path.clone());
        }
        self.note(at, file.len_bytes, digest)
    }

    fn discard(&self, at: usize) -> Result<()> {
        let path = &self.part(at)?.path;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Error::io("cannot remove", path, error)),
        }
    }
}

/// A writer of the rest of a file whose beginning is already there.
#[derive(Debug)]
struct Rest {
    path: PathBuf,
    file: File,
    offset_bytes: u64,
    durable: bool,
    monitor: Monitor,
}

impl Rest {
    fn open(path: &Path, offset_bytes: u64, durable: bool, monitor: &Monitor) -> Result<Self> {
        let open = || -> io::Result<File> {
            let mut file = File::options().write(true).open(path)?;
            file.set_len(offset_bytes)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = open().map_err(|error| Error::io("cannot open", path, error))?;
        Ok(Self { path: path.to_owned(), file, offset_bytes, durable, monitor: monitor.clone() })
    }
}

impl FileSink for Rest {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let began = std::time::Instant::now();
        self.file.write_all(bytes).map_err(|error| Error::io("cannot write", &self.path, error))?;
        self.offset_bytes += bytes.len() as u64;
        self.monitor.add(Stage::Write, began.elapsed(), bytes.len() as u64);
        self.monitor.advance(bytes.len() as u64)
    }

    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut piece = [0; 16 << 10];
        let mut done = 0;
        while done < len_bytes {
            let len = (len_bytes - done).min(piece.len() as u64) as usize;
            let piece = piece.get_mut(..len).unwrap_or_default();
            fill(done, piece)?;
            self.write(piece)?;
            done += len as u64;
        }
        Ok(())
    }

    fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    fn saved(&self, len_bytes: u64) -> Result<()> {
        self.monitor.advance(len_bytes)
    }

    fn describe(&self) -> PathBuf {
        self.path.clone()
    }

    fn finish(self: Box<Self>) -> Result<WrittenFile> {
        if self.durable {
            system::sync(&self.file).map_err(|error| Error::io("cannot sync", &self.path, error))?;
        }
        Ok(WrittenFile { len_bytes: self.offset_bytes, block_crc32c: Vec::new() })
    }

    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::SYNC_LATER_LEN_MAX_BYTES;
    use super::*;
    use crate::Target;

    #[test]
    fn of_a_journal_beyond_its_bound_nothing_is_read() {
        let line = Line {
            name: "a".to_owned(),
            version: "1".to_owned(),
            len_bytes: 3,
            digest: blake3::hash(b"abc").to_hex().to_string(),
        };
        let text = [&serde_json::to_vec(&line).unwrap()[..], b"\nno line"].concat();
        let len_bytes = text.len() as u64;
        for (len_max_bytes, count) in [(len_bytes, 1), (len_bytes + 1, 1), (len_bytes - 1, 0), (0, 0)] {
            let lines = read_lines(&text[..], len_max_bytes);
            assert_eq!(lines.len(), count, "{len_max_bytes}");
            assert!(lines.values().flatten().all(|read| read.hash() == line.hash()));
        }
        // The journal is read only up to its limit, even if the input never ends.
        assert!(read_lines(io::repeat(b'x'), 1000).is_empty());
    }

    #[test]
    fn the_rest_of_a_file_goes_behind_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "beginning, and more that is not known").unwrap();
        let monitor = Monitor::new();
        let mut rest = Rest::open(&path, 9, true, &monitor).unwrap();
        assert_eq!(rest.offset_bytes(), 9);
        rest.write(b", middle").unwrap();
        assert_eq!(rest.offset_bytes(), 17);
        // The data arrives in pieces, and the last piece is shorter.
        let long: Vec<u8> = (0..40_001_u32).map(|at| at as u8).collect();
        rest.write_with(long.len() as u64, &mut |at, piece| {
            piece.copy_from_slice(&long[at as usize..at as usize + piece.len()]);
            Ok(())
        })
        .unwrap();
        assert_eq!(rest.offset_bytes(), 40_018);
        assert_eq!(rest.describe(), path);
        let _running = monitor.begin().unwrap();
        monitor.expect(9);
        rest.saved(5).unwrap();
        assert_eq!(monitor.progress().done_bytes, 5);
        assert_eq!(Box::new(rest).finish().unwrap().len_bytes, 40_018);
        assert!(fs::read(&path).unwrap() == [&b"beginning, middle"[..], &long].concat());
    }

    fn file(name: &str, len_bytes: u64) -> TransferFile {
        TransferFile { name: name.to_owned(), len_bytes, version: "1".to_owned() }
    }

    #[test]
    fn what_an_earlier_copy_has_left_is_used_if_it_is_of_this_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let lines = |lens: &[u64], version: &str| {
            let line = |&len_bytes: &u64| Line {
                name: "file".to_owned(),
                version: version.to_owned(),
                len_bytes,
                digest: blake3::hash(&len_bytes.to_le_bytes()).to_hex().to_string(),
            };
            BTreeMap::from([("file".to_owned(), lens.iter().map(line).collect::<Vec<_>>())])
        };
        let digest = |len_bytes: u64| blake3::hash(&len_bytes.to_le_bytes());
        let left = |lines| left_of(&file("file", 9), &path, &lines);
        assert_eq!(left(lines(&[9], "1")), Left::Nothing, "it is not there");
        fs::create_dir(&path).unwrap();
        assert_eq!(left(lines(&[9], "1")), Left::Nothing, "it is a folder");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, [7; 9]).unwrap();
        assert_eq!(left(BTreeMap::new()), Left::Nothing, "no line names it");
        assert_eq!(left(lines(&[9], "2")), Left::Nothing, "it is of another version");
        let whole = Left::Whole { digest: digest(9), is_proven: false };
        assert_eq!(left(lines(&[4, 9], "1")), whole);
        // Only the beginning of the file is known, or its length has changed.
        assert_eq!(left(lines(&[4], "1")), Left::Beginning(vec![(4, digest(4))]));
        fs::write(&path, [7; 6]).unwrap();
        assert_eq!(left(lines(&[4, 6, 8, 9], "1")), Left::Beginning(vec![(4, digest(4)), (6, digest(6))]));
    }

    #[test]
    fn a_copy_leaves_what_is_of_use_and_nothing_when_it_has_ended() {
        let root = tempfile::tempdir().unwrap();
        let target = Location::local(root.path().join("x"));
        let files = [file("a", 3), file("b", 3)];
        let (kind, monitor) = (Target::Folder, Monitor::new());
        let options = TransferOptions::of_files(&kind, &files, &monitor);
        let names =
            || fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let begin = || LocalTransfer::begin(&target, options).unwrap();
        drop(begin());
        assert!(names().is_empty(), "nothing was copied: {:?}", names());
        let write = |transfer: &LocalTransfer, at: usize| {
            let mut writer = transfer.writer(at, 0).unwrap();
            writer.write(b"abc").unwrap();
            writer.finish().unwrap();
            transfer.finished(at, blake3::hash(b"abc"), true).unwrap();
        };
        let first = begin();
        write(&first, 0);
        assert_eq!(first.staged.files.unsynced.lock().unwrap().len(), 1, "the commit syncs what is short");
        drop(first);
        // Complete files stay even if the next copy writes nothing. Unknown files are removed.
        let own = begin().staged.own.path.clone();
        fs::create_dir_all(own.join("empty/deep")).unwrap();
        fs::create_dir(own.join("junk")).unwrap();
        fs::write(own.join("junk/file"), b"...").unwrap();
        drop(begin());
        assert!(own.join(JOURNAL).exists() && !own.join("junk").exists() && !own.join("empty").exists());
        let second = begin();
        assert_eq!(second.left(0), Left::Whole { digest: blake3::hash(b"abc"), is_proven: false });
        assert_eq!(second.left(1), Left::Nothing);
        second.finished(0, blake3::hash(b"abc"), true).unwrap();
        write(&second, 1);
        assert_eq!(second.staged.files.unsynced.lock().unwrap().len(), 2);
        Box::new(second).commit().unwrap();
        assert_eq!(names(), ["x"]);
        assert_eq!(fs::read(root.path().join("x/b")).unwrap(), b"abc");
    }

    #[test]
    fn a_copy_that_finds_its_target_locked_can_be_continued() {
        let root = tempfile::tempdir().unwrap();
        let (monitor, files, kind) = (Monitor::new(), [file("a", 3)], Target::Folder);
        let target = Location::local(root.path().join("x"));
        let options = TransferOptions {
            wait: Some(std::time::Duration::ZERO),
            ..TransferOptions::of_files(&kind, &files, &monitor)
        };
        let transfer = LocalTransfer::begin(&target, options).unwrap();
        let mut writer = transfer.writer(0, 0).unwrap();
        writer.write(b"abc").unwrap();
        writer.finish().unwrap();
        transfer.finished(0, blake3::hash(b"abc"), true).unwrap();
        let lock = target.lock("repair", None, &monitor).unwrap();
        assert_eq!(Box::new(transfer).commit().unwrap_err().kind(), crate::error::ErrorKind::Busy);
        drop(lock);
        let again = LocalTransfer::begin(&target, options).unwrap();
        assert_ne!(again.left(0), Left::Nothing);
        Box::new(again).commit().unwrap();
        assert_eq!(fs::read(root.path().join("x/a")).unwrap(), b"abc");
    }

    #[test]
    fn long_files_are_synced_by_who_writes_them_and_short_ones_by_the_commit() {
        let root = tempfile::tempdir().unwrap();
        let target = Location::local(root.path().join("x"));
        let lens = [SYNC_LATER_LEN_MAX_BYTES - 1, SYNC_LATER_LEN_MAX_BYTES, SYNC_LATER_LEN_MAX_BYTES + 1];
        let files = [file("short", lens[0]), file("long", lens[1]), file("longer", lens[2])];
        let (kind, monitor) = (Target::Folder, Monitor::new());
        let durably = TransferOptions::of_files(&kind, &files, &monitor);
        let digest = blake3::hash(b"");
        for durable in [false, true] {
            let transfer = LocalTransfer::begin(&target, TransferOptions { durable, ..durably }).unwrap();
            for (at, file) in files.iter().enumerate() {
                let _running = monitor.begin().unwrap();
                let mut writer = transfer.writer(at, 0).unwrap();
                writer.write(&vec![7; file.len_bytes as usize]).unwrap();
                writer.finish().unwrap();
                let is_synced = monitor.stages().iter().any(|report| report.stage == Stage::Sync);
                assert_eq!(is_synced, durable && at > 0, "{} {durable}", file.name);
                transfer.finished(at, digest, true).unwrap();
            }
            let unsynced = || transfer.staged.files.unsynced.lock().unwrap().len();
            assert_eq!(unsynced(), usize::from(durable), "{durable}");
            // A missing file is not an error, but a folder with the name of the file is an error.
            transfer.discard(0).unwrap();
            transfer.discard(0).unwrap();
            fs::create_dir(&transfer.part(0).unwrap().path).unwrap();
            assert!(transfer.discard(0).is_err());
            fs::remove_dir(&transfer.part(0).unwrap().path).unwrap();
            drop(transfer);
            // The earlier copy may not have synced its files.
            let again = LocalTransfer::begin(&target, TransferOptions { durable, ..durably }).unwrap();
            assert_eq!(again.left(1), Left::Whole { digest, is_proven: false });
            again.finished(1, digest, true).unwrap();
            assert_eq!(again.staged.files.unsynced.lock().unwrap().len(), usize::from(durable), "{durable}");
            (0..files.len()).for_each(|at| again.discard(at).unwrap());
        }
    }
}
