//! The codec `zstd`: exactly one zstd frame for each chunk.
//!
//! ```text
//! 28 b5 2f fd | frame header: content size, window | blocks of at most 128 KiB | xxh64, if flagged |
//! ```
//!
//! Orbax writes level 1 in zarr v2 and level 3 in zarr v3, with the content size and without a
//! checksum. regrow reads any frame. A checksum must match, and no byte may follow the frame. Every
//! thread keeps one context for each direction, since making one costs more than a small chunk
//! does. Source: RFC 8878; zarr v3 codec `zstd`.

use std::cell::RefCell;

use ::zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer};

use super::{buffer, wrong_len};
use crate::bytes::zstd::{Zstd, is_no_memory, no_context};
use crate::error::{Error, ErrorKind, Result};
use crate::zarr::json::Members;

/// The longest decoded block of a frame.
const BLOCK_LEN_MAX_BYTES: u64 = 128 << 10;

/// The shortest stored block with content: a header of three bytes, and one byte that is repeated.
const BLOCK_STORED_LEN_MIN_BYTES: u64 = 4;

/// The longest window of zstd, as a power of two.
const WINDOW_LOG_MAX: u32 = if usize::BITS == 64 { 31 } else { 30 };

thread_local! {
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Reads the members of a codec's configuration.
pub fn from_members(members: &mut Members, default_level: i64) -> Result<Zstd> {
    let level = members.integer("level", default_level)?;
    let checksum = members.boolean("checksum", false)?;
    let zstd = i32::try_from(level).ok().and_then(|level| Zstd::new(level).ok());
    let zstd = zstd.ok_or_else(|| Error::corrupt("the level of the codec \"zstd\" is not valid"))?;
    Ok(Zstd { checksum, ..zstd })
}

/// The most bytes that `stored_len_bytes` of frames can decode to.
pub fn decoded_len_max_bytes(stored_len_bytes: u64) -> u64 {
    (stored_len_bytes / BLOCK_STORED_LEN_MIN_BYTES + 1).saturating_mul(BLOCK_LEN_MAX_BYTES)
}

/// Decodes one frame into `out`, which it must fill exactly.
pub fn decode_into(stored: &[u8], out: &mut [u8]) -> Result<()> {
    if let Some(len_bytes) = one_frame(stored)?
        && len_bytes != out.len() as u64
    {
        return Err(wrong_len(out.len() as u64, len_bytes));
    }
    let len = decompress(stored, out)?;
    if len != out.len() {
        return Err(wrong_len(out.len() as u64, len as u64));
    }
    Ok(())
}

/// Decodes one frame, whose bytes come piece by piece, into memory that the frame must fill
/// exactly. zstd finds earlier output in this memory, so a frame with any window needs no further
/// buffer.
pub struct FrameDecoder<'o> {
    context: DCtx<'static>,
    out: OutBuffer<'o, [u8]>,
    stored_len_bytes: u64,
    is_ended: bool,
}

impl<'o> FrameDecoder<'o> {
    pub fn new(out: &'o mut [u8]) -> Result<Self> {
        let mut context = DCtx::try_create().ok_or_else(no_context)?;
        for parameter in [DParameter::StableOutBuffer(true), DParameter::WindowLogMax(WINDOW_LOG_MAX)] {
            context.set_parameter(parameter).map_err(does_not_decompress)?;
        }
        Ok(Self { context, out: OutBuffer::around(out), stored_len_bytes: 0, is_ended: false })
    }

    pub fn len_bytes(&self) -> usize {
        self.out.pos()
    }

    pub fn push(&mut self, stored: &[u8]) -> Result<()> {
        let wanted = self.out.capacity() as u64;
        if self.stored_len_bytes == 0
            && let Ok(Some(len_bytes)) = zstd_safe::get_frame_content_size(stored)
            && len_bytes != wanted
        {
            return Err(wrong_len(wanted, len_bytes));
        }
        let mut input = InBuffer::around(stored);
        while input.pos() < stored.len() {
            let at = self.stored_len_bytes + input.pos() as u64;
            if self.is_ended {
                return Err(Error::corrupt("bytes follow its zstd frame").at_byte(at));
            }
            let before = (input.pos(), self.out.pos());
            let hint = self.context.decompress_stream(&mut self.out, &mut input);
            self.is_ended = hint.map_err(does_not_decompress)? == 0;
            if !self.is_ended && before == (input.pos(), self.out.pos()) {
                return Err(wrong_len(wanted, wanted.saturating_add(1)));
            }
        }
        self.stored_len_bytes += stored.len() as u64;
        Ok(())
    }

    /// Returns an error unless the frame is complete and has filled the memory.
    pub fn finish(self) -> Result<()> {
        if !self.is_ended {
            return Err(Error::corrupt("its zstd frame is cut off").at_byte(self.stored_len_bytes));
        }
        if self.out.pos() != self.out.capacity() {
            return Err(wrong_len(self.out.capacity() as u64, self.out.pos() as u64));
        }
        Ok(())
    }
}

fn does_not_decompress(code: zstd_safe::ErrorCode) -> Error {
    if is_no_memory(code) {
        return no_context();
    }
    Error::corrupt(format!("its zstd frame does not decompress: {}", zstd_safe::get_error_name(code)))
}

/// Decodes one frame to at most `max_bytes`.
pub fn decode_at_most(stored: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
    let len_bytes = match one_frame(stored)? {
        Some(len_bytes) => len_bytes,
        None => decoded_len_max_bytes(stored.len() as u64).min(max_bytes),
    };
    if len_bytes > max_bytes.min(decoded_len_max_bytes(stored.len() as u64)) {
        return Err(Error::new(ErrorKind::Limit, "a zstd frame holds more than the next codec can use")
            .expected(format_args!("at most {max_bytes} bytes"), len_bytes));
    }
    let mut out = buffer(len_bytes)?;
    let len = decompress(stored, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// Returns an error unless `stored` is exactly one frame. Returns the content size if the frame
/// states it.
fn one_frame(stored: &[u8]) -> Result<Option<u64>> {
    let frame_len = zstd_safe::find_frame_compressed_size(stored).map_err(|code| {
        Error::corrupt(format!("its bytes are not a zstd frame: {}", zstd_safe::get_error_name(code)))
    })?;
    if frame_len != stored.len() {
        return Err(Error::corrupt("bytes follow its zstd frame")
            .at_byte(frame_len as u64)
            .expected(format_args!("{frame_len} bytes"), stored.len()));
    }
    zstd_safe::get_frame_content_size(stored).map_err(|_| Error::corrupt("its zstd frame header is damaged"))
}

fn decompress(stored: &[u8], out: &mut [u8]) -> Result<usize> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let context = match kept {
            Some(context) => context,
            None => kept.insert(DCtx::try_create().ok_or_else(no_context)?),
        };
        context.decompress(out, stored).map_err(does_not_decompress)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        decode_into(stored, &mut out).map(|()| out)
    }

    #[test]
    fn reads_the_scalar_that_orbax_wrote() {
        let stored = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 8, 0x41, 0, 0, 0xd2, 4, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&stored, 8).unwrap(), 1234_i64.to_le_bytes());
        assert_eq!(Zstd::new(1).unwrap().encode(&1234_i64.to_le_bytes()).unwrap(), stored);
    }

    #[test]
    fn sizes_must_be_exact_and_frames_alone() {
        let stored = Zstd::new(3).unwrap().encode(&[7; 1000]).unwrap();
        assert_eq!(decode(&stored, 1000).unwrap(), [7; 1000]);
        let twice = [&stored[..], &stored].concat();
        let trailing = [&stored[..], &[0]].concat();
        for (bytes, len) in [
            (&stored[..], 999),
            (&stored, 1001),
            (&stored[..stored.len() - 1], 1000),
            (&twice, 2000),
            (&trailing, 1000),
            (&[], 0),
            (b"plain", 5),
        ] {
            assert_eq!(decode(bytes, len).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
        }
    }

    #[test]
    fn a_frame_without_its_size_is_read_and_still_bounded() {
        let stored = ::zstd::stream::encode_all(&[7; 100_000][..], 1).unwrap();
        assert_eq!(zstd_safe::get_frame_content_size(&stored).ok().flatten(), None);
        assert_eq!(decode(&stored, 100_000).unwrap(), vec![7; 100_000]);
        assert!(decode(&stored, 99_999).is_err());
        assert!(decode(&stored, 100_001).is_err());
        assert_eq!(decode_at_most(&stored, 100_000).unwrap().len(), 100_000);
        assert!(decode_at_most(&stored, 99_999).is_err());
    }

    #[test]
    fn a_checksum_is_verified() {
        let mut stored = Zstd { level: 3, checksum: true }.encode(&[7; 1000]).unwrap();
        assert_eq!(decode(&stored, 1000).unwrap(), [7; 1000]);
        *stored.last_mut().unwrap() ^= 1;
        assert_eq!(decode(&stored, 1000).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn the_bound_on_decoded_bytes_is_not_below_what_zstd_does() {
        let len = 10 << 20;
        let stored = Zstd::new(19).unwrap().encode(&vec![0; len]).unwrap();
        assert!(decoded_len_max_bytes(stored.len() as u64) >= len as u64, "{}", stored.len());
    }

    /// Decodes in pieces of `step` bytes.
    fn decode_in_pieces(stored: &[u8], len: usize, step: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let mut decoder = FrameDecoder::new(&mut out)?;
        stored.chunks(step).try_for_each(|piece| decoder.push(piece))?;
        decoder.finish()?;
        Ok(out)
    }

    #[test]
    fn pieces_of_any_length_give_what_the_whole_gives() {
        let noise = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8 & 63;
        let bytes: Vec<u8> = (0..600_000).map(noise).collect();
        let sealed = Zstd { level: 3, checksum: true }.encode(&bytes).unwrap();
        let unsized_frame = ::zstd::stream::encode_all(&bytes[..], 1).unwrap();
        for stored in [&sealed, &unsized_frame, &Zstd::new(-5).unwrap().encode(&bytes).unwrap()] {
            for step in [1000, 4096, 100_000, stored.len() - 1, stored.len()] {
                assert!(decode_in_pieces(stored, bytes.len(), step).unwrap() == bytes, "{step}");
                for len in [0, 1, bytes.len() - 1, bytes.len() + 1] {
                    let error = decode_in_pieces(stored, len, step).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{step} {len}");
                }
                for end in [0, 1, 5, stored.len() / 2, stored.len() - 1] {
                    let error = decode_in_pieces(&stored[..end], bytes.len(), step).unwrap_err();
                    assert_eq!(error.what(), "its zstd frame is cut off", "{step} {end}");
                }
                let trailing = [stored, &[0_u8][..]].concat();
                let error = decode_in_pieces(&trailing, bytes.len(), step).unwrap_err();
                assert_eq!(error.what(), "bytes follow its zstd frame", "{step}");
                assert_eq!(error.place().offset_bytes, Some(stored.len() as u64));
            }
        }
        let mut damaged = sealed;
        for at in (0..damaged.len()).step_by(damaged.len() / 50) {
            damaged[at] ^= 0x10;
            assert!(decode_in_pieces(&damaged, bytes.len(), 1000).is_err(), "{at}");
            damaged[at] ^= 0x10;
        }
    }

    #[test]
    fn a_frame_of_a_long_window_needs_no_more_memory() {
        // The window has 256 MiB. A decoder with its own window refuses more than 128 MiB by
        // default.
        let bytes = vec![3; 300 << 10];
        let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(28).unwrap();
        std::io::Write::write_all(&mut encoder, &bytes).unwrap();
        let stored = encoder.finish().unwrap();
        assert!(decode_in_pieces(&stored, bytes.len(), 10).unwrap() == bytes);
    }
}
