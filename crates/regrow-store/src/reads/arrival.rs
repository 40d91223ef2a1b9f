//! Bytes that arrive over a network: checked and copied to their destination while they are in the
//! processor's cache.
//!
//! ```text
//! chunks     ---1---|------2------|----3----        the answer arrives in chunks of any length
//! blocks     | checked | checked | checked |        a block is checked when its last byte arrives
//! parts       ##1##  ####2####  3 4   #5#           a byte is copied when it arrives
//! ```
//! So one request can serve any number of leaves without an intermediate buffer.

use super::pieces::Part;
use super::table::{Checked, Running};
use crate::bytes::pages::FreshPages;
use crate::error::Result;

/// A piece of whole blocks. Some of its bytes have arrived.
pub(super) struct Arrival<'p, 'f, 'a> {
    checked: Checked<'f>,
    parts: std::slice::IterMut<'p, Part<'a>>,
    part: Option<(&'p mut Part<'a>, FreshPages)>,
    at: u64,
    verified: bool,
    running: Option<Running<'f>>,
    /// Whether the bytes are only checked, not copied. Then the blocks after a bad block are
    /// checked, too.
    is_check: bool,
    failed: Result<()>,
}

impl<'p, 'f, 'a> Arrival<'p, 'f, 'a> {
    /// Starts to receive whole blocks from byte `start` on, for these parts, in order.
    pub fn of(checked: Checked<'f>, start: u64, parts: &'p mut [Part<'a>], verified: bool) -> Self {
        let is_check = parts.is_empty();
        let mut new = Self {
            checked,
            parts: parts.iter_mut(),
            part: None,
            at: start,
            verified,
            running: None,
            is_check,
            failed: Ok(()),
        };
        new.next_part();
        new
    }

    /// Checks and copies the next bytes. If the bytes are only checked, `finish` returns the error
    /// of a bad block.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let block = self.checked.table.block_at(self.at);
            let len = (block.end - self.at).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(len as usize);
            if self.verified {
                let done = self.check(now);
                if self.is_check {
                    let failed = std::mem::replace(&mut self.failed, Ok(()));
                    self.failed = failed.and(done);
                } else {
                    done?;
                }
            }
            self.copy(now);
            self.at += len;
            bytes = later;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        self.failed
    }

    fn check(&mut self, bytes: &[u8]) -> Result<()> {
        let Checked { blob, table } = self.checked;
        let block = table.block_at(self.at);
        if bytes.len() == block.len_bytes() {
            return table.check(blob, block, bytes);
        }
        let mut running = self.running.take().unwrap_or_else(|| table.begin(block));
        running.update(bytes);
        if self.at + bytes.len() as u64 == block.end {
            return running.finish(blob);
        }
        self.running = Some(running);
        Ok(())
    }

    fn copy(&mut self, bytes: &[u8]) {
        let (start, end) = (self.at, self.at + bytes.len() as u64);
        while let Some((part, pages)) = &mut self.part {
            let (from, to) = (part.offset_bytes.max(start), part.end().min(end));
            if from < to {
                let source = bytes.get((from - start) as usize..(to - start) as usize);
                let target = (from - part.offset_bytes) as usize..(to - part.offset_bytes) as usize;
                pages.make_to(target.end);
                if let Some((target, source)) = part.out.get_mut(target).zip(source) {
                    target.copy_from_slice(source);
                }
            }
            if part.end() > end {
                return;
            }
            self.next_part();
        }
    }

    fn next_part(&mut self) {
        self.part = self.parts.next().map(|part| {
            let pages = FreshPages::of(part.out);
            (part, pages)
        });
    }
}
