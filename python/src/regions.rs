//! Regions of leaves to read. Thousands of leaves may have the same regions: these leaves share one
//! object.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use regrow::LeafRegion;
use regrow::array::{Dtype, Region};

use crate::checkpoint::Checkpoint;
use crate::error::OrRaise;
use crate::memory::Destinations;
use crate::options::{RegionsHowIn, region_options};
use crate::watch::{WatchIn, watched};

/// The regions to read of a leaf.
#[pyclass(frozen, module = "regrow._native")]
pub struct Regions(Vec<Region>);

#[pymethods]
impl Regions {
    /// Regions from their starts and lengths.
    #[new]
    fn new(boxes: Vec<(Vec<u64>, Vec<u64>)>) -> PyResult<Self> {
        let region = |(starts, lens): (Vec<u64>, Vec<u64>)| Region::new(starts, lens);
        Ok(Self(boxes.into_iter().map(region).collect::<regrow::Result<_>>().or_raise()?))
    }
}

/// A leaf, the number of the dtype of the result, and the regions.
pub type RegionsIn<'py> = (usize, u8, Bound<'py, Regions>);

pub fn leaf_regions(wanted: Vec<RegionsIn<'_>>) -> Vec<LeafRegion> {
    let mut all = Vec::new();
    for (leaf, dtype, regions) in wanted {
        let dtype = Dtype::all().nth(dtype.into());
        all.extend(regions.get().0.iter().map(|region| LeafRegion { leaf, region: region.clone(), dtype }));
    }
    all
}

/// Reads each region into its own array, and returns which arrays were filled. An array stays
/// unchanged, and its region is not read, if the array is not contiguous, is not writable, or
/// shares memory with another array.
#[pyfunction]
pub fn load_regions_into<'py>(
    py: Python<'py>,
    checkpoint: PyRef<'py, Checkpoint>,
    wanted: Vec<RegionsIn<'py>>,
    outs: Vec<Bound<'py, PyUntypedArray>>,
    how: RegionsHowIn,
    watch: WatchIn,
) -> PyResult<Vec<bool>> {
    let wanted = leaf_regions(wanted);
    let mut outs = Destinations::new(outs.into_iter().map(Some).collect());
    let filled = outs.are_filled();
    let (wanted, bytes): (Vec<LeafRegion>, Vec<&mut [u8]>) =
        wanted.into_iter().zip(outs.bytes_mut()).filter_map(|(want, out)| Some((want, out?))).unzip();
    let len_bytes = bytes.iter().map(|out| out.len() as u64).fold(0, u64::saturating_add);
    let (checkpoint, mut options) = (checkpoint.opened(), region_options(how));
    watched(py, watch, len_bytes, |monitor| {
        options.monitor = monitor;
        checkpoint.load_regions_into(&wanted, bytes, &options)
    })?;
    Ok(filled)
}
