//! Reads many small raw leaves at once. A checksummed block that several leaves share is read and
//! checked once.

use std::collections::HashMap;

use super::{Checkpoint, LeafRegion, RegionOptions};
use crate::array::{Array, Region};
use crate::reads::Source;

/// Longer leaves are read alone: most of their blocks are not shared with other leaves.
const LEN_MAX_BYTES: u64 = 256 << 10;

/// The bytes of the small leaves of one checkpoint, by position.
#[derive(Debug, Default)]
pub(super) struct SmallLeaves(HashMap<usize, Array>);

impl SmallLeaves {
    /// Reads the small raw leaves. If the read of a leaf fails, the result has no leaves: the
    /// caller then reads each leaf alone, and reports the error.
    pub fn read(checkpoint: &Checkpoint, leaves: impl Iterator<Item = usize>) -> Self {
        let wanted: Vec<LeafRegion> = leaves
            .filter_map(|leaf| {
                let info = checkpoint.tree().leaves().get(leaf)?;
                let is_raw = matches!(checkpoint.reader().source(leaf), Ok(Source::Raw(_)));
                let is_small = (1..=LEN_MAX_BYTES).contains(&info.len_bytes());
                let region = Region::whole(&info.shape);
                (is_raw && is_small).then_some(LeafRegion { leaf, region, dtype: None })
            })
            .collect();
        if wanted.len() < 2 {
            return Self::default();
        }
        let arrays = checkpoint.load_regions(&wanted, &RegionOptions::default()).unwrap_or_default();
        Self(wanted.iter().map(|want| want.leaf).zip(arrays).collect())
    }

    pub fn get(&self, leaf: usize) -> Option<&[u8]> {
        self.0.get(&leaf)?.c_order_bytes().map(|bytes| &**bytes)
    }
}
