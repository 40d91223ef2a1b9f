//! Regions of leaves, read into memory that Python has.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use regrow::array::{Dtype, Region};
use regrow::{LeafRegion, RegionOptions};

use crate::checkpoint::Checkpoint;
use crate::error::OrRaise;
use crate::memory::Destinations;
use crate::watch::{WatchIn, watched};

/// Leaf, starts, lengths, and the number of the dtype as which it is wanted.
pub type RegionIn = (usize, Vec<u64>, Vec<u64>, u8);

/// What Python wants, as the engine takes it.
pub fn to_regions(wanted: Vec<RegionIn>) -> PyResult<Vec<LeafRegion>> {
    let region = |(leaf, starts, lens, dtype): RegionIn| {
        let region = Region::new(starts, lens)?;
        Ok(LeafRegion { leaf, region, dtype: Dtype::all().nth(dtype.into()) })
    };
    wanted.into_iter().map(region).collect::<regrow::Result<_>>().or_raise()
}

/// Reads regions into arrays, one for each; says which of them were filled. Those that are not contiguous, cannot be
/// written to, or share memory with another one are left as they are, and their regions are not read.
#[pyfunction]
#[pyo3(signature = (checkpoint, wanted, outs, unverified, budget, watch))]
pub fn load_regions_into<'py>(
    py: Python<'py>,
    checkpoint: PyRef<'py, Checkpoint>,
    wanted: Vec<RegionIn>,
    outs: Vec<Bound<'py, PyUntypedArray>>,
    unverified: bool,
    budget: Option<u64>,
    watch: WatchIn,
) -> PyResult<Vec<bool>> {
    let wanted = to_regions(wanted)?;
    let mut outs = Destinations::new(outs.into_iter().map(Some).collect());
    let filled = outs.are_filled();
    let (wanted, bytes): (Vec<LeafRegion>, Vec<&mut [u8]>) =
        wanted.into_iter().zip(outs.bytes_mut()).filter_map(|(want, out)| Some((want, out?))).unzip();
    let len_bytes = bytes.iter().map(|out| out.len() as u64).fold(0, u64::saturating_add);
    let checkpoint = checkpoint.opened();
    watched(py, watch, len_bytes, |monitor| {
        checkpoint.load_regions_into(
            &wanted,
            bytes,
            &RegionOptions { unverified, budget_bytes: budget, monitor },
        )
    })?;
    Ok(filled)
}
