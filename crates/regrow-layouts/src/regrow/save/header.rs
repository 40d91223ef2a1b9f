//! Builds the header of a safetensors file from the plan of its leaves.

use super::plan::Plan;
use crate::safetensors::build::HeaderBuilder;
use regrow_base::error::Result;

/// The longest structure that the header of a safetensors file has.
const STRUCTURE_IN_HEADER_MAX_BYTES: usize = 24 << 20;

pub(super) fn structure_in_header(structure: &str) -> Option<&str> {
    Some(structure).filter(|structure| structure.len() <= STRUCTURE_IN_HEADER_MAX_BYTES)
}

pub(super) fn header_bytes(plan: &Plan<'_>, leaves: &[u32], structure: Option<&str>) -> Result<Vec<u8>> {
    let mut header = HeaderBuilder::new();
    header.metadata("format", plan.data_format.name());
    if let Some(structure) = structure {
        header.metadata("regrow", structure);
    }
    for &leaf in leaves {
        let leaf = leaf as usize;
        if let Some((planned, Some(array))) = plan.leaf(leaf).map(|(plan, leaf)| (plan, leaf.as_array())) {
            let added = header.tensor(plan.name(leaf), planned.dtype, array.shape());
            added.map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        }
    }
    header.finish()
}
