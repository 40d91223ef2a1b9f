//! A file that takes whole buffers: by direct I/O if possible, otherwise buffered. Buffered writes
//! leave the file in the page cache, so a caller can also ask for them.
//!
//! The first write sets the flag for direct I/O on the open file, so small files never get it. If
//! the file system accepts the flag but refuses the write, the flag is removed.

use std::fs::File;
use std::io;

use crate::buffer::{ALIGN_BYTES, Buffer, SMALL_LEN_BYTES};
use crate::monitor::Monitor;
use crate::system::{self, FileExt, refuses_direct, set_direct, start_write_back};

/// An open file that is being written, and whether it uses direct I/O.
pub(super) struct Output {
    pub(super) file: File,
    pub(super) mode: Mode,
    monitor: Monitor,
    /// The offset after the last write, including padding.
    pub(super) len_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Untried,
    Direct,
    Buffered,
}

impl Output {
    pub(super) fn new(file: File, keep_cached: bool) -> Self {
        let mode = if keep_cached { Mode::Buffered } else { Mode::Untried };
        Self { file, mode, monitor: Monitor::new(), len_bytes: 0 }
    }

    pub(super) fn watched(&mut self, monitor: Monitor) {
        self.monitor = monitor;
    }

    /// Writes the first `len` bytes of `buffer`. Direct writes are padded with zeros to whole
    /// device blocks.
    pub(super) fn write(&mut self, buffer: &mut Buffer, len: usize, offset: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.mode == Mode::Untried {
            self.mode = match set_direct(&self.file, true) {
                Ok(()) => Mode::Direct,
                Err(refusal) => {
                    self.monitor.refused_direct(os_error(&refusal));
                    Mode::Buffered
                }
            };
        }
        if self.mode == Mode::Direct {
            let padded = len.next_multiple_of(ALIGN_BYTES);
            buffer.bytes_mut().get_mut(len..padded).unwrap_or_default().fill(0);
            match self.write_all(buffer, padded, offset) {
                // Some file systems accept the flag, but then refuse the write or need another
                // alignment.
                Err(error) if refuses_direct(&error) => {
                    set_direct(&self.file, false)?;
                    self.mode = Mode::Buffered;
                    self.monitor.refused_direct(os_error(&error));
                }
                other => {
                    self.monitor.went_direct();
                    return other;
                }
            }
        }
        self.write_all(buffer, len, offset)?;
        start_write_back(&self.file, offset, len);
        Ok(())
    }

    pub(super) fn write_all(&mut self, buffer: &Buffer, len: usize, offset: u64) -> io::Result<()> {
        let bytes = buffer.bytes().get(..len).ok_or(io::ErrorKind::InvalidInput)?;
        self.file.write_all_at(bytes, offset)?;
        self.len_bytes = self.len_bytes.max(offset + len as u64);
        Ok(())
    }
}

fn os_error(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_default()
}

/// Reserves disk space for a file that is not small. If the file system cannot do this, a full disk
/// is reported by a later write.
pub(super) fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    if len_bytes < SMALL_LEN_BYTES as u64 { Ok(()) } else { system::reserve(file, len_bytes) }
}
