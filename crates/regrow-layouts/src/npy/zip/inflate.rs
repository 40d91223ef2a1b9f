//! Decompresses one member from front to back.

use flate2::{Decompress, FlushDecompress, Status};

use super::Crc32;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, Result};

/// The length of the pieces that are unpacked while skipping.
const SKIPPED_LEN_BYTES: usize = 64 << 10;

/// The state of unpacking one member. Its CRC-32 is checked after the last byte.
#[derive(Debug)]
pub(in super::super) struct Inflater {
    decoder: Decompress,
    crc: Crc32,
    /// The number of deflated bytes that are consumed.
    taken: usize,
    at: u64,
    len_bytes: u64,
    crc32: u32,
}

impl Inflater {
    pub fn new(len_bytes: u64, crc32: u32) -> Self {
        let decoder = Decompress::new(false);
        Self { decoder, crc: Crc32::new(), taken: 0, at: 0, len_bytes, crc32 }
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn is_done(&self) -> bool {
        self.at == self.len_bytes
    }

    /// Unpacks and skips up to byte `to`. `deflated` is always the whole stored member.
    pub fn skip_to(&mut self, deflated: &[u8], to: u64) -> Result<()> {
        let mut scratch = work_space(to.saturating_sub(self.at).min(SKIPPED_LEN_BYTES as u64))?;
        while self.at < to {
            let len = (to - self.at).min(scratch.len() as u64) as usize;
            self.read(deflated, scratch.get_mut(..len).unwrap_or_default())?;
        }
        Ok(())
    }

    pub fn read(&mut self, deflated: &[u8], out: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            let rest = out.get_mut(filled..).unwrap_or_default();
            let (got, status) = self.step(deflated, rest)?;
            filled += got;
            if got == 0 && status != Status::Ok {
                return Err(self.corrupt("a deflated member of a zip archive is cut short"));
            }
        }
        self.crc.update(out);
        self.at += out.len() as u64;
        if self.is_done() { self.finish(deflated) } else { Ok(()) }
    }

    /// Calls the decoder once, and returns the number of unpacked bytes.
    fn step(&mut self, deflated: &[u8], out: &mut [u8]) -> Result<(usize, Status)> {
        let input = deflated.get(self.taken..).unwrap_or_default();
        let (taken, given) = (self.decoder.total_in(), self.decoder.total_out());
        let status = self
            .decoder
            .decompress(input, out, FlushDecompress::None)
            .map_err(|_| self.corrupt("a member of a zip archive is not deflate data"))?;
        let taken = (self.decoder.total_in() - taken) as usize;
        let given = (self.decoder.total_out() - given) as usize;
        self.taken += taken;
        match (taken, given, status) {
            // The decoder makes no progress, and never will.
            (0, 0, Status::Ok) => Ok((0, Status::BufError)),
            _ => Ok((given, status)),
        }
    }

    fn finish(&mut self, deflated: &[u8]) -> Result<()> {
        let mut none = [0; 1];
        loop {
            match self.step(deflated, &mut none)? {
                (0, Status::StreamEnd) => break,
                (0, Status::Ok) => {}
                (0, Status::BufError) => {
                    return Err(self.corrupt("a deflated member of a zip archive has no end"));
                }
                _ => return Err(self.corrupt("a member of a zip archive is longer than the directory says")),
            }
        }
        let found = self.crc.value();
        if self.taken != deflated.len() {
            return Err(self.corrupt("bytes are left over after a deflated member of a zip archive"));
        }
        if found != self.crc32 {
            return Err(super::bad_crc(self.crc32, found));
        }
        Ok(())
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(what).at_byte(self.taken as u64)
    }
}
