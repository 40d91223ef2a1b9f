//! The codecs `gzip` and `zlib`: deflate in one of two wrappers, each with a checksum of the
//! content.
//!
//! ```text
//! gzip   1f 8b 08 ...  | deflate | CRC-32, length |
//! zlib   78 ..         | deflate | Adler-32 |
//! ```
//!
//! Orbax wrote `{"id":"gzip"}` for numpy leaves before April 2023. regrow reads exactly one member:
//! bytes after the member are an error. Source: RFC 1950, 1951, 1952; zarr v3 codec `gzip`.

use std::io::{BufRead, Read, Write};

use flate2::Compression;
use flate2::bufread::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};

use super::wrong_len;
use crate::error::{Error, ErrorKind, Result};
use crate::zarr::json::Members;

/// The highest compression ratio of deflate: a match of 258 bytes takes at least two bits, one for
/// its distance.
const RATIO_MAX: u64 = 1032;

/// The format around the deflate stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapper {
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Zlib,
}

impl Wrapper {
    /// The codec's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
        }
    }
}

/// The codec `gzip` or `zlib`, with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deflate {
    /// What surrounds the compressed bytes.
    pub wrapper: Wrapper,
    /// The compression level, from 0 to 9.
    pub level: u32,
}

impl Deflate {
    /// Reads the members of a codec's configuration.
    pub fn from_members(members: &mut Members, wrapper: Wrapper, default_level: i64) -> Result<Self> {
        let level = members.integer("level", default_level)?;
        let level = u32::try_from(level).ok().filter(|level| *level <= 9).ok_or_else(|| {
            Error::corrupt(format!("the codec {:?} has a level beyond its range", wrapper.name()))
                .expected("0 to 9", level)
        })?;
        Ok(Self { wrapper, level })
    }

    /// Decodes into `out`, which the content must fill exactly.
    pub fn decode_into(self, stored: &[u8], out: &mut [u8]) -> Result<()> {
        let mut rest = stored;
        {
            let mut decoder = self.decoder(&mut rest);
            let mut filled = 0;
            while let Some(room) = out.get_mut(filled..).filter(|room| !room.is_empty()) {
                match decoder.read(room).map_err(|error| self.failed(&error))? {
                    0 => return Err(wrong_len(out.len() as u64, filled as u64)),
                    n => filled += n,
                }
            }
            // A read up to the end also checks the checksum.
            if decoder.read(&mut [0]).map_err(|error| self.failed(&error))? != 0 {
                return Err(Error::corrupt("it decompresses to more than the chunk shape allows")
                    .expected(format_args!("{} bytes", out.len()), "more"));
            }
        }
        self.nothing_after(stored, rest)
    }

    /// Decodes to at most `max_bytes`.
    pub fn decode_at_most(self, stored: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        let mut rest = stored;
        let mut out = Vec::new();
        let mut limited = self.decoder(&mut rest).take(max_bytes.saturating_add(1));
        limited.read_to_end(&mut out).map_err(|error| self.failed(&error))?;
        drop(limited);
        if out.len() as u64 > max_bytes {
            return Err(Error::new(ErrorKind::Limit, "it decompresses to more than the next codec can use")
                .expected(format_args!("at most {max_bytes} bytes"), "more"));
        }
        self.nothing_after(stored, rest)?;
        Ok(out)
    }

    /// Encodes bytes as one member.
    pub fn encode(self, bytes: &[u8]) -> Result<Vec<u8>> {
        let level = Compression::new(self.level);
        match self.wrapper {
            Wrapper::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(bytes).and_then(|()| encoder.finish())
            }
            Wrapper::Zlib => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(bytes).and_then(|()| encoder.finish())
            }
        }
        .map_err(|error| Error::invalid(format!("{} does not compress: {error}", self.wrapper.name())))
    }

    fn decoder<'a>(self, rest: &'a mut impl BufRead) -> Box<dyn Read + 'a> {
        match self.wrapper {
            Wrapper::Gzip => Box::new(GzDecoder::new(rest)),
            Wrapper::Zlib => Box::new(ZlibDecoder::new(rest)),
        }
    }

    fn nothing_after(self, stored: &[u8], rest: &[u8]) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        let end = stored.len() - rest.len();
        Err(Error::corrupt(format!("bytes follow its {} stream", self.wrapper.name()))
            .at_byte(end as u64)
            .expected(format_args!("{end} bytes"), stored.len()))
    }

    fn failed(self, error: &std::io::Error) -> Error {
        Error::corrupt(format!("its {} stream does not decompress: {error}", self.wrapper.name()))
    }
}

/// The most bytes that `stored_len_bytes` can decode to.
pub fn decoded_len_max_bytes(stored_len_bytes: u64) -> u64 {
    stored_len_bytes.saturating_mul(RATIO_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Deflate; 2] =
        [Deflate { wrapper: Wrapper::Gzip, level: 1 }, Deflate { wrapper: Wrapper::Zlib, level: 6 }];

    #[test]
    fn sizes_are_exact_and_checksums_checked() {
        for codec in BOTH {
            let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i / 7) as u8).collect();
            let stored = codec.encode(&bytes).unwrap();
            let decode = |stored: &[u8], len: usize| {
                let mut out = vec![0; len];
                codec.decode_into(stored, &mut out).map(|()| out)
            };
            assert_eq!(decode(&stored, bytes.len()).unwrap(), bytes);
            assert_eq!(codec.decode_at_most(&stored, bytes.len() as u64).unwrap(), bytes);
            assert!(codec.decode_at_most(&stored, bytes.len() as u64 - 1).is_err());
            assert!(decode(&stored, bytes.len() - 1).is_err());
            assert!(decode(&stored, bytes.len() + 1).is_err());
            for cut in [0, 1, 9, stored.len() / 2, stored.len() - 1] {
                assert!(decode(&stored[..cut], bytes.len()).is_err(), "{cut}");
            }
            assert!(decode(&[&stored[..], &[0]].concat(), bytes.len()).is_err());
            let mut flipped = stored.clone();
            // gzip ends with the CRC and the length.
            let at = stored.len() - if codec.wrapper == Wrapper::Gzip { 8 } else { 4 };
            flipped[at] ^= 1;
            assert!(decode(&flipped, bytes.len()).is_err());
        }
    }

    #[test]
    fn reads_what_tensorstore_writes() {
        let zlib = [0x78, 0x01, 0x63, 0x60, 0, 0, 0, 2, 0, 1];
        let mut out = [9; 2];
        BOTH[1].decode_into(&zlib, &mut out).unwrap();
        assert_eq!(out, [0, 0]);
    }
}
