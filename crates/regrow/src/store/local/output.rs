//! A file that takes whole buffers: by direct I/O where it can, buffered where that is refused.
//!
//! The flag is set on the open file when the first buffer comes, so that small files never need it, and taken off
//! again if the file system accepts it and then refuses the write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::monitor::Monitor;
use crate::store::buffer::{ALIGN_BYTES, Buffer, SMALL_LEN_BYTES};

/// The file, and how it takes its bytes.
pub(super) struct Output {
    pub(super) file: File,
    pub(super) mode: Mode,
    monitor: Monitor,
    /// How far writes have reached, padding included.
    pub(super) len_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Untried,
    Direct,
    Buffered,
}

impl Output {
    pub(super) fn new(file: File) -> Self {
        Self { file, mode: Mode::Untried, monitor: Monitor::new(), len_bytes: 0 }
    }

    /// Tells the monitor which way the bytes take.
    pub(super) fn watched(&mut self, monitor: Monitor) {
        self.monitor = monitor;
    }

    /// Writes the first `len` bytes of `buffer`; direct writes are padded with zeros to whole device blocks.
    pub(super) fn write(&mut self, buffer: &mut Buffer, len: usize, offset: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.mode == Mode::Untried {
            self.mode = match set_direct(&self.file, true) {
                Ok(()) => Mode::Direct,
                Err(refusal) => {
                    self.monitor.refused_direct(refusal.raw_os_error());
                    Mode::Buffered
                }
            };
        }
        if self.mode == Mode::Direct {
            let padded = len.next_multiple_of(ALIGN_BYTES);
            buffer.bytes_mut().get_mut(len..padded).unwrap_or_default().fill(0);
            match self.write_all(buffer, padded, offset) {
                // Some file systems take the flag and then refuse the write, or want another alignment.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    set_direct(&self.file, false)?;
                    self.mode = Mode::Buffered;
                    self.monitor.refused_direct(Errno::INVAL.raw_os_error());
                }
                other => {
                    self.monitor.went_direct();
                    return other;
                }
            }
        }
        self.write_all(buffer, len, offset)?;
        if let Some(len) = std::num::NonZeroU64::new(len as u64) {
            // Starts write-back of these pages now, as sync_file_range would; it drops none that are not on disk.
            let _ = fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
        Ok(())
    }

    pub(super) fn write_all(&mut self, buffer: &Buffer, len: usize, offset: u64) -> io::Result<()> {
        let bytes = buffer.bytes().get(..len).ok_or(io::ErrorKind::InvalidInput)?;
        self.file.write_all_at(bytes, offset)?;
        self.len_bytes = self.len_bytes.max(offset + len as u64);
        Ok(())
    }
}

pub(super) fn set_direct(file: &File, direct: bool) -> rustix::io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    fcntl_setfl(file, flags)
}

/// Reserves disk space; file systems that cannot are left to fail later.
///
/// Free space is asked for first: ext4 would otherwise take all there is before it says that it is not enough,
/// and for that moment the disk would be full for everybody.
pub(super) fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    if len_bytes < SMALL_LEN_BYTES as u64 {
        return Ok(());
    }
    if let Ok(disk) = rustix::fs::fstatvfs(file) {
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if disk.f_blocks > 0 && free_bytes < len_bytes {
            return Err(Errno::NOSPC.into());
        }
    }
    match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len_bytes)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
        _ => Ok(()),
    }
}
