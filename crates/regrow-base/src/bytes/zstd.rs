//! Compression to zstd frames, for chunks of arrays and for the nodes of databases.
//!
//! Every thread keeps one context, since making one costs more than a small chunk does.
//! Source: RFC 8878.

use std::cell::RefCell;

use ::zstd::zstd_safe::{self, CCtx, CParameter};

use crate::error::{Error, ErrorKind, Result};

/// The text of zstd's error if it gets no memory. The binding has no code for this error.
const NO_MEMORY: &str = "Allocation error : not enough memory";

const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;

thread_local! {
    static COMPRESSOR: RefCell<Option<(Zstd, CCtx<'static>)>> = const { RefCell::new(None) };
}

/// The settings of the compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zstd {
    /// The level, from -131072 to 22.
    pub level: i32,
    /// Whether each frame ends with a checksum of its content.
    pub checksum: bool,
}

impl Zstd {
    /// Checks the level, and makes the settings.
    pub fn new(level: i32) -> Result<Self> {
        if !LEVELS.contains(&level) {
            return Err(Error::invalid(format!("zstd has no level {level}"))
                .expected(format_args!("{} to {}", LEVELS.start(), LEVELS.end()), level));
        }
        Ok(Self { level, checksum: false })
    }

    /// Compresses `bytes` to one frame, which contains the content size.
    /// The whole input is encoded in one call, which cannot be cancelled. With the input in steps,
    /// zstd 1.5.7 chooses other blocks, because it looks at the next 128 KiB. The output would then
    /// differ at every level.
    pub fn encode(self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let len_max = zstd_safe::compress_bound(bytes.len());
        out.try_reserve_exact(len_max).map_err(|_| no_memory(len_max))?;
        COMPRESSOR.with_borrow_mut(|kept| {
            let (_, context) = match kept {
                Some(kept) if kept.0 == self => kept,
                _ => kept.insert((self, self.context()?)),
            };
            context.compress2(&mut out, bytes).map_err(does_not_compress)
        })?;
        Ok(out)
    }

    fn context(self) -> Result<CCtx<'static>> {
        let mut context = CCtx::try_create().ok_or_else(no_context)?;
        for parameter in [CParameter::CompressionLevel(self.level), CParameter::ChecksumFlag(self.checksum)] {
            context.set_parameter(parameter).map_err(does_not_compress)?;
        }
        Ok(context)
    }
}

fn does_not_compress(code: zstd_safe::ErrorCode) -> Error {
    if is_no_memory(code) {
        return no_context();
    }
    Error::invalid(format!("zstd does not compress: {}", zstd_safe::get_error_name(code)))
}

/// The error if there is no memory for a context.
///
/// A context allocates more memory at its first use, depending on the level and the length.
pub fn no_context() -> Error {
    Error::new(ErrorKind::Limit, "there is no memory for zstd to work in")
        .help("free some memory, or save at a lower level or without compression")
}

/// Whether this is the error that zstd gets no memory.
#[inline]
pub fn is_no_memory(code: zstd_safe::ErrorCode) -> bool {
    zstd_safe::get_error_name(code) == NO_MEMORY
}

fn no_memory(len_bytes: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("there is no memory for a chunk of {len_bytes} bytes"))
        .help("free some memory, or read fewer leaves or slices")
}
