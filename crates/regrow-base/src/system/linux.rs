//! Linux' own calls. [`portable`](super) has the same functions without them.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, fadvise, fallocate, fcntl_getfl,
    fcntl_setfl, open, openat, renameat_with, statat,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use rustix::mm::{Advice, madvise};

use super::kinds::{Caching, FileId, FileState, Pattern};
use super::unix::{free_bytes, is_lacking, no_room, page_size};

/// With NONBLOCK, opening a named pipe in the folder returns at once instead of waiting for a
/// writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a file of any kind for reading. Does not wait, even for a pipe.
pub fn open_file(path: &Path, caching: Caching) -> io::Result<File> {
    Ok(retry_on_intr(|| open(path, READ | flag_of(caching), Mode::empty()))?.into())
}

fn flag_of(caching: Caching) -> OFlags {
    match caching {
        Caching::Through => OFlags::empty(),
        Caching::Past => OFlags::DIRECT,
    }
}

/// An opened folder. It stays the same folder, even if another folder takes its path.
#[derive(Debug)]
pub struct OpenFolder(OwnedFd);

impl OpenFolder {
    /// Opens the folder that is at `path` now.
    pub fn open(path: &Path) -> io::Result<Self> {
        // `O_PATH` needs only the right to pass through the folder, not the right to list its
        // names.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(retry_on_intr(|| open(path, flags, Mode::empty()))?))
    }

    /// The same as [`open_file`], for a path relative to this folder.
    pub fn open_file(&self, relative: &Path, caching: Caching) -> io::Result<File> {
        let opened = retry_on_intr(|| openat(&self.0, relative, READ | flag_of(caching), Mode::empty()))?;
        Ok(opened.into())
    }

    /// The state of a file at a path relative to this folder.
    pub fn look(&self, relative: &Path) -> io::Result<FileState> {
        let found = statat(&self.0, relative, AtFlags::empty())?;
        Ok(FileState {
            is_file: FileType::from_raw_mode(found.st_mode) == FileType::RegularFile,
            len_bytes: found.st_size.cast_unsigned(),
            id: FileId { device: found.st_dev, number: found.st_ino },
            modified: (found.st_mtime, found.st_mtime_nsec.cast_signed()),
            changed: (found.st_ctime, found.st_ctime_nsec.cast_signed()),
        })
    }
}

/// Tells the system how the program will read a file.
pub fn advise_file(file: &File, pattern: Pattern) {
    let advice = match pattern {
        Pattern::Random => rustix::fs::Advice::Random,
        Pattern::Sequential => rustix::fs::Advice::Sequential,
        Pattern::Soon => rustix::fs::Advice::WillNeed,
    };
    let _ = fadvise(file, 0, None, advice);
}

/// Tells which pages of a file are in the page cache. It asks about the pages of a map that is
/// never read, so the question brings no page into the cache.
///
/// A read that must not wait (`RWF_NOWAIT`) starts to read its page. A later check then finds the
/// page and treats the file as cached. So `has` makes such a read only after the questions.
#[derive(Debug)]
pub struct PageCache(Option<MmapRaw>);

impl PageCache {
    /// Maps the whole of `file`. The map is never read.
    pub fn of(file: &File) -> Self {
        Self(MmapOptions::new().map_raw_read_only(file).ok())
    }

    /// Whether a range of `file` is in the page cache. Asks about four of its pages, and then reads
    /// one byte without waiting. True if the kernel does not tell, because it is then best to treat
    /// the range as cached.
    pub fn has(&self, file: &File, offset: u64, len: u64) -> bool {
        let looks = [0, len / 3, len / 3 * 2, len.saturating_sub(1)].map(|at| offset.saturating_add(at));
        if looks.iter().any(|&at| self.has_page(at) == Some(false)) {
            return false;
        }
        // The kernel may hide which pages are in memory. This read may bring its page in, so it
        // comes last.
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        let looked = preadv2(file, &mut into, offset.saturating_add(len / 2), ReadWriteFlags::NOWAIT);
        !matches!(looked, Err(Errno::AGAIN))
    }

    /// Whether the page with this byte is in the page cache; `None` outside the file, or if the
    /// kernel does not tell. For users who neither own the file nor may write to it, the kernel
    /// always answers yes.
    pub fn has_page(&self, offset: u64) -> Option<bool> {
        let map = self.0.as_ref()?;
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < map.len())?;
        let page = map.as_mut_ptr().wrapping_add(offset - offset % page_size());
        let mut found = 0;
        // SAFETY: `page` is the beginning of a page of the map. The kernel answers in one byte,
        // `found`; nothing else is written or read.
        let answer = unsafe { libc::mincore(page.cast(), 1, &raw mut found) };
        (answer == 0).then_some(found & 1 != 0)
    }
}

/// Makes the next writes to a file direct, or buffered again.
pub fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Whether this error means that a file system refuses direct I/O although it accepted the flag.
pub fn refuses_direct(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Starts to write a range of a file from the page cache to the disk. The pages stay in the cache.
pub fn start_write_back(file: &File, offset: u64, len: usize) {
    if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
        // SAFETY: the call gets an open file and three numbers, and accesses no memory of ours.
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    }
}

/// Reserves disk space for a file. If the file system cannot do this, a full disk is reported by a
/// later write.
///
/// The free space is checked first. Otherwise ext4 would take all free space before it fails, and
/// for a moment the disk would be full for every process.
pub fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    if free_bytes(file).is_some_and(|free_bytes| free_bytes < len_bytes) {
        return Err(no_room());
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len_bytes)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sets the length of a file and reserves the space. Returns `false`, with nothing done, if the
/// file system cannot.
pub fn allocate(file: &File, len_bytes: u64) -> io::Result<bool> {
    unless_lacking(fallocate(file, FallocateFlags::empty(), 0, len_bytes))
}

/// Renames `from` to the unused name `to` in one step; `false` if the file system cannot, and
/// `AlreadyExists` if the name is taken.
pub fn rename_no_replace(from: &Path, to: &Path) -> io::Result<bool> {
    rename_by(from, to, RenameFlags::NOREPLACE)
}

/// Exchanges two names in one step; `false` if the file system cannot, and `NotFound` if a name
/// does not exist.
pub fn exchange(one: &Path, other: &Path) -> io::Result<bool> {
    rename_by(one, other, RenameFlags::EXCHANGE)
}

fn rename_by(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<bool> {
    unless_lacking(renameat_with(CWD, from, CWD, to, flags))
}

/// Syncs the whole file system of a folder; `false` if the system cannot.
pub fn sync_file_system(folder: &Path) -> io::Result<bool> {
    unless_lacking(rustix::fs::syncfs(File::open(folder)?))
}

fn unless_lacking(done: rustix::io::Result<()>) -> io::Result<bool> {
    match done.map_err(io::Error::from) {
        Ok(()) => Ok(true),
        Err(error) if is_lacking(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks for large pages for untouched memory. Only advice for the system.
pub fn want_large_pages(memory: &MmapMut) {
    let _ = memory.advise(memmap2::Advice::HugePage);
}

/// Makes the pages of new memory from the address `start` on in one call, instead of one by one at
/// the first access. Does not change the content. Returns `false` if the kernel (before 5.14)
/// cannot do this, or lacks the memory.
pub fn make_pages(start: usize, len_bytes: usize) -> bool {
    let before = start % page_size();
    let pages = std::ptr::without_provenance_mut(start - before);
    // SAFETY: the address goes only to the kernel. For mapped and writable memory the call makes
    // the pages and changes no byte; for other memory it fails.
    unsafe { madvise(pages, before + len_bytes, Advice::LinuxPopulateWrite) }.is_ok()
}

/// The same as [`make_pages`], for one large page with the address `start`. Returns the processor
/// time of the call.
pub fn make_large_page(start: usize, len_bytes: usize) -> Option<Duration> {
    let page = std::ptr::without_provenance_mut(start);
    // SAFETY: the address goes only to the kernel, and the advice changes no byte of a page.
    let _ = unsafe { madvise(page, len_bytes, Advice::LinuxHugepage) };
    let began = own_time();
    make_pages(start, len_bytes).then(|| own_time().saturating_sub(began))
}

/// Processor time of this thread; zero if the system does not tell.
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, and `time` is one.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    match (told, seconds, nanoseconds) {
        (0, Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_threads_own_time_goes_on_while_it_works_and_not_while_it_sleeps() {
        let (began, clock) = (own_time(), Instant::now());
        while own_time() < began + Duration::from_millis(5) {
            assert!(clock.elapsed() < Duration::from_secs(60), "it stands still");
        }
        let before = own_time();
        thread::sleep(Duration::from_millis(50));
        assert!(own_time() - before < Duration::from_millis(25));
    }
}
