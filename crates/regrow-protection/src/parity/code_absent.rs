//! Replaces `code` in a build without the feature `protection`: parity cannot be made or used.

use super::geometry::Geometry;
use regrow_base::error::{Error, Result};

/// An encoder of parity blocks. No value of this type exists.
#[derive(Debug)]
pub enum Encoder {}

fn absent() -> Error {
    Error::unsupported("parity needs the feature `protection`, which this build lacks")
        .help("build regrow with the feature `protection`")
}

impl Encoder {
    /// Returns an error: this build has no Reed-Solomon code.
    pub fn new(_geometry: &Geometry) -> Result<Self> {
        Err(absent())
    }

    /// Appends parity blocks.
    pub fn stripe<'b>(
        &mut self,
        _blocks: impl Iterator<Item = &'b [u8]> + Clone,
        _parity: &mut Vec<u8>,
    ) -> Result<()> {
        match *self {}
    }
}

/// Returns an error: this build has no Reed-Solomon code.
pub fn restore<'b>(
    _geometry: &Geometry,
    _data: impl Iterator<Item = (u64, &'b [u8])>,
    _parity: impl Iterator<Item = (u64, &'b [u8])>,
    _each: impl FnMut(u64, &[u8]),
) -> Result<()> {
    Err(absent())
}
