//! Tests the calls of a file system with small files in a temporary folder, and removes the folder.
//!
//! Saves or loads use each [`Ability`] if the file system has it. [`Ability::without`] describes
//! the cost of a missing one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};

use super::leftovers::{Lock, OwnFolder, lock, remove, sweep};
use crate::error::{Error, Result};
use crate::system::{self, Caching, RecordLock};

/// Offsets, lengths and memory of direct I/O are multiples of this.
const BLOCK_LEN_BYTES: usize = 4096;

/// What a file system may be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// Writes past the page cache.
    DirectWrites,
    /// Reads past the page cache.
    DirectReads,
    /// Reserving disk space before a write.
    Reserve,
    /// Renaming to an unused name in one step.
    RenameNew,
    /// Exchanging the names of two folders in one step.
    Exchange,
    /// A second name for the same file.
    HardLinks,
    /// Locks of folders. They distinguish a running writer from a killed one.
    FolderLocks,
    /// Locks of files. With them a folder of steps has only one writer.
    FileLocks,
    /// Syncing the data of a file to the disk.
    Sync,
    /// Syncing a folder, so that the names in it are on the disk.
    FolderSync,
    /// Mapping a file into memory.
    Maps,
    /// Changing the mode of a file.
    Modes,
}

impl Ability {
    /// The name of the ability in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::DirectWrites => "direct writes",
            Self::DirectReads => "direct reads",
            Self::Reserve => "reserving space",
            Self::RenameNew => "renames without replacing",
            Self::Exchange => "exchange of two folders",
            Self::HardLinks => "hard links",
            Self::FolderLocks => "locks of folders",
            Self::FileLocks => "locks of files",
            Self::Sync => "syncs of files",
            Self::FolderSync => "syncs of folders",
            Self::Maps => "maps of files",
            Self::Modes => "changes of modes",
        }
    }

    /// The consequence if the file system lacks the ability.
    pub fn without(self) -> &'static str {
        match self {
            Self::DirectWrites => {
                "large files are written through the page cache: slower, and they displace its content"
            }
            Self::DirectReads => "reads go through the page cache: slower for large files",
            Self::Reserve => "a save finds a full disk late",
            Self::RenameNew => "a file that another program makes in the moment of a commit may be replaced",
            Self::Exchange => {
                "during an overwrite the path is empty for a moment; if the save is killed then, the next \
                 save restores the old checkpoint"
            }
            Self::HardLinks => "`base=` and kept files are copied instead of linked",
            Self::FolderLocks => {
                "temporary files of killed saves stay; do not save to one path from two processes"
            }
            Self::FileLocks => "two writers of one folder of steps cannot exclude each other",
            Self::Sync => "no checkpoint is known to survive a power cut",
            Self::FolderSync => "a power cut right after a save may lose the new checkpoint",
            Self::Maps => "loads copy into memory; TRAK stores cannot be written there",
            Self::Modes => {
                "after an overwrite fewer users may read the checkpoint; an overwrite that more users \
                 could read fails"
            }
        }
    }
}

/// Each ability, and whether the file system of `folder` has it.
///
/// # Errors
/// Errors of the file system if a file cannot be made in the folder, or if the disk is full or
/// broken.
pub fn probe(folder: &Path) -> Result<Vec<(Ability, bool)>> {
    let name = OsStr::new("regrow-doctor");
    // A killed probe may have left its folder.
    sweep(folder, name);
    let own = OwnFolder::make(folder, name, true, false)?;
    let found = try_all(&own.path).map_err(|error| Error::io("cannot try the file system", folder, error));
    remove(&own.path);
    found
}

fn try_all(folder: &Path) -> io::Result<Vec<(Ability, bool)>> {
    let at = |name: &str| folder.join(name);
    let new_file = |name: &str| File::options().read(true).write(true).create_new(true).open(at(name));
    let mut plain = new_file("plain")?;
    plain.write_all(&[1; BLOCK_LEN_BYTES])?;
    ["one", "other"].iter().try_for_each(|name| fs::create_dir(at(name)))?;
    let direct = || -> io::Result<File> {
        let file = new_file("direct")?;
        system::set_direct(&file, true).map(|()| file)
    };
    let mut block = MmapMut::map_anon(BLOCK_LEN_BYTES)?;

    let tried = [
        (Ability::DirectWrites, direct().and_then(|mut file| file.write_all(&block))),
        (
            Ability::DirectReads,
            system::open_file(&at("plain"), Caching::Past)
                .and_then(|mut file| io::Read::read_exact(&mut file, &mut block)),
        ),
        (Ability::Reserve, system::allocate(&plain, 1 << 16).and_then(done)),
        (Ability::HardLinks, fs::hard_link(at("plain"), at("link"))),
        (Ability::FileLocks, system::lock_record(&plain).and_then(|found| done(found == RecordLock::Ours))),
        (Ability::FolderLocks, has_folder_locks(&at("one"))),
        (Ability::Exchange, system::exchange(&at("one"), &at("other")).and_then(done)),
        (Ability::RenameNew, system::rename_no_replace(&at("plain"), &at("named")).and_then(done)),
        (Ability::Sync, system::sync(&plain)),
        (Ability::FolderSync, system::sync_folder(folder).and_then(done)),
        (Ability::Maps, MmapOptions::new().map_raw_read_only(&plain).map(drop)),
        (Ability::Modes, has_modes(&at("mode"))),
    ];
    tried.into_iter().map(|(ability, tried)| Ok((ability, is_there(tried)?))).collect()
}

/// Turns `false` into an error: the system has reported that it cannot do this.
fn done(can: bool) -> io::Result<()> {
    if can { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Whether modes can be changed. Some file systems refuse every change, and some ignore it.
fn has_modes(file: &Path) -> io::Result<()> {
    const MODE: u32 = 0o640;
    fs::write(file, b"")?;
    system::set_mode(file, MODE)?;
    done(system::mode_of(&fs::metadata(file)?) & 0o777 == MODE)
}

fn has_folder_locks(folder: &Path) -> io::Result<()> {
    match lock(folder)? {
        Lock::Ours(_) => Ok(()),
        Lock::Theirs | Lock::Unlockable(_) => done(false),
    }
}

/// Whether the ability exists. A full disk or quota is returned as an error, because it says
/// nothing about the ability.
fn is_there(tried: io::Result<()>) -> io::Result<bool> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match tried {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => Err(error),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_disk_can_lock_link_and_sync_and_nothing_is_left_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let found = probe(folder.path()).unwrap();
        let needed =
            [Ability::FolderLocks, Ability::HardLinks, Ability::Sync, Ability::FileLocks, Ability::Maps];
        for ability in needed.into_iter().chain([Ability::Modes, Ability::FolderSync]) {
            assert!(found.contains(&(ability, true)), "{ability:?} in {found:?}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_the_system_cannot_do_is_missing() {
        done(true).unwrap();
        assert_eq!(done(false).unwrap_err().kind(), io::ErrorKind::Unsupported);
        let folder = tempfile::tempdir().unwrap();
        has_folder_locks(folder.path()).unwrap();
        let Lock::Ours(_held) = lock(folder.path()).unwrap() else { panic!("no other process has it") };
        assert_eq!(has_folder_locks(folder.path()).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn each_ability_is_told_in_words_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<Ability> =
            probe(folder.path()).unwrap().into_iter().map(|(ability, _)| ability).collect();
        let words: std::collections::HashSet<&str> =
            all.iter().flat_map(|ability| [ability.name(), ability.without()]).collect();
        assert_eq!(words.len(), 2 * all.len());
        assert!(words.iter().all(|word| word.contains(' ')), "{words:?}");
    }

    #[test]
    fn what_fails_is_missing_unless_the_disk_is_full() {
        assert!(is_there(Ok(())).unwrap());
        assert!(!is_there(Err(io::ErrorKind::Unsupported.into())).unwrap());
        is_there(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
    }
}
