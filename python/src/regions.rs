//! Regions of leaves that are to be read. Thousands of leaves are cut alike: they share one object.

use pyo3::prelude::*;
use regrow::LeafRegion;
use regrow::array::{Dtype, Region};

use crate::error::OrRaise;

/// Regions of a leaf.
#[pyclass(frozen, module = "regrow._native")]
pub struct Regions(Vec<Region>);

#[pymethods]
impl Regions {
    /// From where each begins, and how long it is.
    #[new]
    fn new(boxes: Vec<(Vec<u64>, Vec<u64>)>) -> PyResult<Self> {
        let region = |(starts, lens): (Vec<u64>, Vec<u64>)| Region::new(starts, lens);
        Ok(Self(boxes.into_iter().map(region).collect::<regrow::Result<_>>().or_raise()?))
    }
}

/// Leaf, the number of the dtype as which it is wanted, and what of it.
pub type RegionsIn<'py> = (usize, u8, Bound<'py, Regions>);

/// All of them, one after the other.
pub fn leaf_regions(wanted: Vec<RegionsIn<'_>>, dtype_of: impl Fn(u8) -> Option<Dtype>) -> Vec<LeafRegion> {
    let mut all = Vec::new();
    for (leaf, dtype, regions) in wanted {
        let dtype = dtype_of(dtype);
        all.extend(regions.get().0.iter().map(|region| LeafRegion { leaf, region: region.clone(), dtype }));
    }
    all
}
