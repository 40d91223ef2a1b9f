//! Writes an archive front to back.
//!
//! The writer first writes each local header with zeros for the checksum and the lengths. At the
//! end the writer fills in these numbers. So tools that read header by header, without the
//! directory, can read the file. (They could not if the numbers came after the data.) If the
//! storage can write only front to back, the writer computes the numbers first. The data of each
//! member begins at a multiple of [`ALIGNMENT_BYTES`], so that a program can use stored data in a
//! map.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::super::header::ALIGNMENT_BYTES;
use super::{
    CENTRAL, Crc32, END, END64, END64_LEN_BYTES, END64_LOCATOR, EXTRA_ALIGNMENT, EXTRA_ZIP64, FLAG_UTF8,
    LOCAL, LOCAL_LEN_BYTES, Method,
};
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_store::FileWriter;

/// Midnight of the first of January 1980: the same tree gives the same bytes.
const DATE: u16 = 1 << 5 | 1;

/// The writer of the archive, in the directory: Unix, with the zip version that has zip64.
const MADE_BY: u16 = 3 << 8 | VERSION_ZIP64;
const VERSION: u16 = 20;
const VERSION_ZIP64: u16 = 45;

/// A regular file with mode 0644.
const ATTRIBUTES: u32 = 0o100_644 << 16;

/// From this length on, a local header has the zip64 field. Deflate may lengthen the data, so this
/// is below 4 GiB.
const ZIP64_FROM_LEN_BYTES: u64 = 0xf000_0000;

const DEFLATED_PIECE_LEN_BYTES: usize = 64 << 10;

/// Whether the directory lists a member. Programs that read the directory do not see an unlisted
/// member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Listed {
    Yes,
    No,
}

/// Writes an archive: see the module documentation.
pub(in super::super) struct ZipWriter {
    out: FileWriter,
    members: Vec<Written>,
}

/// The position and checksum of a member that [`ZipWriter::add`] has added.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Added {
    /// The offset of the data.
    pub offset_bytes: u64,
    pub crc32: u32,
}

/// A written member, for the directory.
struct Written {
    name: String,
    listed: Listed,
    method: Method,
    has_zip64: bool,
    header_offset_bytes: u64,
    crc32: u32,
    stored_len_bytes: u64,
    len_bytes: u64,
}

impl ZipWriter {
    pub fn new(out: FileWriter) -> Self {
        Self { out, members: Vec::new() }
    }

    /// Adds a member of `len_bytes`, stored or deflated at a `level` from 0 to 9. `fill` passes the
    /// bytes, piece by piece, to its argument. If the storage can write only front to back, `fill`
    /// is called twice, and a deflated member is kept in memory.
    ///
    /// # Errors
    /// `Unsupported` for a name that an archive cannot have; errors of `fill` and of the disk.
    pub fn add(
        &mut self,
        name: &str,
        listed: Listed,
        level: Option<u32>,
        len_bytes: u64,
        fill: impl Fn(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<Added> {
        let name_len = u16::try_from(name.len())
            .map_err(|_| Error::new(ErrorKind::Limit, "a name is too long for a zip archive"))?;
        let has_zip64 = len_bytes >= ZIP64_FROM_LEN_BYTES;
        let method = if level.is_some() { Method::Deflated } else { Method::Stored };
        let header_offset_bytes = self.out.offset_bytes();
        let mut extra = Vec::new();
        if has_zip64 {
            extra.extend(EXTRA_ZIP64.to_le_bytes());
            extra.extend(16_u16.to_le_bytes());
            extra.extend([0; 16]);
        }
        let unpadded = header_offset_bytes + (LOCAL_LEN_BYTES + name.len() + extra.len() + 6) as u64;
        let padding = unpadded.next_multiple_of(ALIGNMENT_BYTES as u64) - unpadded;
        extra.extend(EXTRA_ALIGNMENT.to_le_bytes());
        extra.extend((2 + padding as u16).to_le_bytes());
        extra.extend((ALIGNMENT_BYTES as u16).to_le_bytes());
        extra.resize(extra.len() + padding as usize, 0);
        let mut member = Written {
            name: name.to_owned(),
            listed,
            method,
            has_zip64,
            header_offset_bytes,
            crc32: 0,
            stored_len_bytes: 0,
            len_bytes,
        };
        let mut header = LOCAL.to_vec();
        header.extend(common_header(name, method, has_zip64));
        header.extend([0; 12]);
        header.extend(name_len.to_le_bytes());
        header.extend((extra.len() as u16).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend(extra);
        let start = header_offset_bytes + header.len() as u64;
        if self.out.patches().is_some() {
            self.out.write(&header)?;
            let out = &mut self.out;
            member.crc32 = pack(level, len_bytes, &fill, &mut |piece| out.write(piece))?;
            member.stored_len_bytes = self.out.offset_bytes() - start;
        } else {
            // The header needs the checksum and lengths, so compute them first.
            let (mut packed, mut stored_len_bytes) = (Vec::new(), 0);
            member.crc32 = pack(level, len_bytes, &fill, &mut |piece| {
                stored_len_bytes += piece.len() as u64;
                if level.is_some() {
                    packed.extend_from_slice(piece);
                }
                Ok(())
            })?;
            member.stored_len_bytes = stored_len_bytes;
            for (offset_bytes, bytes) in member.local_numbers() {
                let at = (offset_bytes - header_offset_bytes) as usize;
                let place = header.get_mut(at..at + bytes.len()).unwrap_or_default();
                place.copy_from_slice(&bytes);
            }
            self.out.write(&header)?;
            let out = &mut self.out;
            match level {
                Some(_) => out.write(&packed)?,
                None if pack(None, len_bytes, &fill, &mut |piece| out.write(piece))? != member.crc32 => {
                    return Err(Error::new(ErrorKind::SourceChanged, "an array changed during its save"));
                }
                None => {}
            }
        }
        self.out.saved(len_bytes.saturating_sub(member.stored_len_bytes))?;
        let crc32 = member.crc32;
        self.members.push(member);
        Ok(Added { offset_bytes: start, crc32 })
    }

    /// Writes the directory and the end, with a comment, and fills in the local headers.
    pub fn finish(mut self, comment: &[u8]) -> Result<()> {
        let directory_at = self.out.offset_bytes();
        let mut directory = Vec::new();
        let listed = self.members.iter().filter(|member| member.listed == Listed::Yes);
        let count = listed.clone().count() as u64;
        listed.for_each(|member| member.write_central(&mut directory));
        self.out.write(&directory)?;
        let end_at = self.out.offset_bytes();
        let len_bytes = end_at - directory_at;
        let mut end = Vec::new();
        if count >= u16::MAX.into() || directory_at >= u32::MAX.into() || len_bytes >= u32::MAX.into() {
            end.extend(END64);
            end.extend((END64_LEN_BYTES as u64 - 12).to_le_bytes());
            end.extend(MADE_BY.to_le_bytes());
            end.extend(VERSION_ZIP64.to_le_bytes());
            end.extend([0; 8]);
            for number in [count, count, len_bytes, directory_at] {
                end.extend(number.to_le_bytes());
            }
            end.extend(END64_LOCATOR);
            end.extend(0_u32.to_le_bytes());
            end.extend(end_at.to_le_bytes());
            end.extend(1_u32.to_le_bytes());
        }
        end.extend(END);
        end.extend([0; 4]);
        let narrow_count = u16::try_from(count).unwrap_or(u16::MAX);
        end.extend([narrow_count.to_le_bytes(), narrow_count.to_le_bytes()].concat());
        end.extend(narrow(len_bytes).to_le_bytes());
        end.extend(narrow(directory_at).to_le_bytes());
        let comment = comment.get(..comment.len().min(u16::MAX.into())).unwrap_or_default();
        end.extend((comment.len() as u16).to_le_bytes());
        end.extend(comment);
        self.out.write(&end)?;
        if let Some(patches) = self.out.patches() {
            patches.extend(self.members.iter().flat_map(Written::local_numbers));
        }
        self.out.finish().map(drop)
    }
}

type TakePiece<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Passes the bytes of a member to `out`, deflated if there is a level, and returns their checksum.
fn pack(
    level: Option<u32>,
    len_bytes: u64,
    fill: &dyn Fn(TakePiece<'_>) -> Result<()>,
    out: TakePiece<'_>,
) -> Result<u32> {
    let mut crc = Crc32::new();
    let mut given = 0;
    let mut packer = level.map(Packer::new).transpose()?;
    fill(&mut |piece| {
        crc.update(piece);
        given += piece.len() as u64;
        match &mut packer {
            None => out(piece),
            Some(packer) => packer.pack(piece, FlushCompress::None, out),
        }
    })?;
    if let Some(mut packer) = packer {
        packer.pack(&[], FlushCompress::Finish, out)?;
    }
    if given != len_bytes {
        return Err(Error::corrupt("an array gave a wrong number of bytes").expected(len_bytes, given));
    }
    Ok(crc.value())
}

impl Written {
    /// The bytes to fill into the local header, each with its offset.
    fn local_numbers(&self) -> Vec<(u64, Vec<u8>)> {
        // Signature, version, flags, method and date come before the checksum.
        let at = self.header_offset_bytes + 14;
        let lens = match self.has_zip64 {
            true => [u32::MAX; 2],
            false => [narrow(self.stored_len_bytes), narrow(self.len_bytes)],
        };
        let mut out =
            vec![(at, [self.crc32.to_le_bytes(), lens[0].to_le_bytes(), lens[1].to_le_bytes()].concat())];
        if self.has_zip64 {
            let extra_at = self.header_offset_bytes + (LOCAL_LEN_BYTES + self.name.len() + 4) as u64;
            out.push((
                extra_at,
                [self.len_bytes.to_le_bytes(), self.stored_len_bytes.to_le_bytes()].concat(),
            ));
        }
        out
    }

    fn write_central(&self, out: &mut Vec<u8>) {
        let mut zip64 = Vec::new();
        let mut wide = |number: u64| {
            if number >= u32::MAX.into() {
                zip64.extend(number.to_le_bytes());
            }
            narrow(number)
        };
        let len = wide(self.len_bytes);
        let stored_len = wide(self.stored_len_bytes);
        let offset = wide(self.header_offset_bytes);
        out.extend(CENTRAL);
        out.extend(MADE_BY.to_le_bytes());
        out.extend(common_header(&self.name, self.method, self.has_zip64 || !zip64.is_empty()));
        out.extend([self.crc32.to_le_bytes(), stored_len.to_le_bytes(), len.to_le_bytes()].concat());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend((if zip64.is_empty() { 0 } else { zip64.len() as u16 + 4 }).to_le_bytes());
        // No comment, disk 0, no internal attributes.
        out.extend([0; 6]);
        out.extend(ATTRIBUTES.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend(self.name.as_bytes());
        if !zip64.is_empty() {
            out.extend(EXTRA_ZIP64.to_le_bytes());
            out.extend((zip64.len() as u16).to_le_bytes());
            out.extend(zip64);
        }
    }
}

/// Version, flags, method and date, which both headers of a member have.
fn common_header(name: &str, method: Method, has_zip64: bool) -> Vec<u8> {
    let version = if has_zip64 { VERSION_ZIP64 } else { VERSION };
    let flags = if name.is_ascii() { 0 } else { FLAG_UTF8 };
    let method = match method {
        Method::Stored => 0_u16,
        Method::Deflated => 8,
    };
    [version, flags, method, 0, DATE].into_iter().flat_map(u16::to_le_bytes).collect()
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A deflate encoder with its output.
struct Packer {
    compress: Compress,
    buffer: Vec<u8>,
}

impl Packer {
    fn new(level: u32) -> Result<Self> {
        let compress = Compress::new(Compression::new(level), false);
        Ok(Self { compress, buffer: work_space(DEFLATED_PIECE_LEN_BYTES as u64)? })
    }

    fn pack(
        &mut self,
        mut piece: &[u8],
        flush: FlushCompress,
        out: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            let (taken, given) = (self.compress.total_in(), self.compress.total_out());
            let status = self
                .compress
                .compress(piece, &mut self.buffer, flush)
                .map_err(|error| Error::new(ErrorKind::Io, format!("deflate failed: {error}")))?;
            let taken = (self.compress.total_in() - taken) as usize;
            let given = (self.compress.total_out() - given) as usize;
            piece = piece.get(taken..).unwrap_or_default();
            out(self.buffer.get(..given).unwrap_or_default())?;
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => piece.is_empty() && given < self.buffer.len(),
            };
            if is_done {
                return Ok(());
            }
        }
    }
}
