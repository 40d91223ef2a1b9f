//! In the place of `code` in a build without the feature `protection`: no parity is made or used.

use super::geometry::Geometry;
use regrow_base::error::{Error, Result};

/// Makes parity blocks; there is none.
#[derive(Debug)]
pub enum Encoder {}

fn absent() -> Error {
    Error::unsupported("parity needs the feature `protection`, which this build lacks")
        .help("build regrow with the feature `protection`")
}

impl Encoder {
    /// Says that there is no code.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn new(_geometry: &Geometry) -> Result<Self> {
        Err(absent())
    }

    /// Appends parity blocks.
    ///
    /// # Errors
    /// None.
    pub fn stripe<'b>(
        &mut self,
        _blocks: impl Iterator<Item = &'b [u8]> + Clone,
        _parity: &mut Vec<u8>,
    ) -> Result<()> {
        match *self {}
    }
}

/// Says that there is no code.
///
/// # Errors
/// `Unsupported`.
pub fn restore<'b>(
    _geometry: &Geometry,
    _data: impl Iterator<Item = (u64, &'b [u8])>,
    _parity: impl Iterator<Item = (u64, &'b [u8])>,
    _each: impl FnMut(u64, &[u8]),
) -> Result<()> {
    Err(absent())
}
