//! The ratio of parity to data.

use std::fmt;
use std::str::FromStr;

use regrow_base::error::{Error, Result};

const TERM_MAX: u32 = 1024;

/// Bytes of parity per bytes of data: `1/16` heals damage within any sixteenth of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParityRatio {
    parity: u32,
    data: u32,
}

impl ParityRatio {
    /// `parity` blocks for `data` blocks.
    ///
    /// # Errors
    /// `InvalidArgument` if either is 0 or above 1024, or there is more parity than data.
    pub fn new(parity: u32, data: u32) -> Result<Self> {
        if parity == 0 || parity > data || data > TERM_MAX {
            return Err(Error::invalid("the parity ratio is not valid")
                .expected("from 1/1024 to 1/1", format_args!("{parity}/{data}"))
                .help("1/16 takes a sixteenth of the checkpoint's size and heals as much"));
        }
        Ok(Self { parity, data })
    }

    /// The most data blocks of a stripe: as many as 16 parity blocks protect, but 64 to 1024.
    pub(super) fn data_blocks_max(self) -> u64 {
        (u64::from(self.data) * 16).div_ceil(u64::from(self.parity)).clamp(64, u64::from(TERM_MAX))
    }

    /// The number of parity blocks for this number of data blocks. At least two, so that even the
    /// smallest checkpoint may be damaged in two places.
    pub(super) fn parity_blocks_of(self, data_blocks: u64) -> u64 {
        (data_blocks * u64::from(self.parity)).div_ceil(u64::from(self.data)).max(2)
    }
}

impl Default for ParityRatio {
    /// The ratio 1/16.
    fn default() -> Self {
        Self { parity: 1, data: 16 }
    }
}

impl fmt::Display for ParityRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.parity, self.data)
    }
}

impl FromStr for ParityRatio {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let numbers =
            parts.and_then(|(parity, data)| Some((parity.trim().parse().ok()?, data.trim().parse().ok()?)));
        let (parity, data) = numbers.ok_or_else(|| {
            Error::invalid("the parity ratio is not valid").expected("such as 1/16", format!("{text:?}"))
        })?;
        Self::new(parity, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_read_and_written() {
        assert_eq!("1/16".parse::<ParityRatio>().unwrap(), ParityRatio::default());
        assert_eq!(" 3 / 40".parse::<ParityRatio>().unwrap().to_string(), "3/40");
        for wrong in ["", "1", "0/4", "2/1", "1/1025", "-1/4", "1/4/4", "0.1", "4294967297/4294967297"] {
            let error = wrong.parse::<ParityRatio>().unwrap_err();
            assert!(error.to_string().contains("ratio is not valid"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_stripe_has_enough_parity() {
        for (ratio, data, parity) in
            [("1/16", 256, 16), ("1/1", 64, 64), ("1/100", 1024, 11), ("1/2", 64, 32), ("3/40", 214, 17)]
        {
            let ratio: ParityRatio = ratio.parse().unwrap();
            assert_eq!((ratio.data_blocks_max(), ratio.parity_blocks_of(data)), (data, parity));
        }
        assert_eq!(ParityRatio::default().parity_blocks_of(1), 2);
    }
}
