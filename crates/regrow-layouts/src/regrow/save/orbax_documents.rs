//! Writes Orbax' documents for the leaves of a plan: `_METADATA`, `_sharding` and the others.

use super::plan::Plan;
use crate::options::SaveOptions;
use crate::orbax::writer::documents::{self, DocumentSink, LeafEntry, Switches, ValueType};
use regrow_base::error::Result;
use regrow_tree::array::Dtype;
use regrow_tree::tree::{Leaf, LeafKind};

/// The documents that Orbax reads beside the arrays. `in_parts` says that the arrays are cut into
/// chunks.
pub(super) fn orbax_documents(
    plan: &Plan<'_>,
    in_parts: bool,
    options: &SaveOptions,
    sink: &mut dyn DocumentSink,
) -> Result<()> {
    let switches = Switches {
        use_ocdbt: true,
        use_zarr3: true,
        rich_types: false,
        write_sharding: true,
        write_array_metadatas: true,
        v1: false,
        beside_regrow_json: true,
        custom_metadata: options.custom_metadata.as_ref(),
        about: &options.about,
    };
    documents::documents(plan.tree, &|leaf| leaf_entry(plan, leaf, in_parts), switches, sink)
}

fn leaf_entry<'p>(plan: &'p Plan<'_>, at: usize, in_parts: bool) -> LeafEntry<'p> {
    let value_type =
        plan.leaf(at).map_or(ValueType::Placeholder, |(planned, leaf)| orbax_value_type(leaf, planned.dtype));
    let array = plan.tree.leaves().get(at).and_then(Leaf::as_array);
    let array = array.filter(|_| value_type == ValueType::JaxArray);
    let cut = |array| if in_parts { plan.chunk_shape(at, array) } else { array.shape() };
    let written = |array| if in_parts { Plan::write_shape(array) } else { array.shape() };
    LeafEntry {
        name: plan.name(at),
        path: plan.orbax_path(at),
        value_type,
        own_type: None,
        write_shape: array.map(written),
        chunk_shape: array.map(cut),
    }
}

/// The type of a leaf in Orbax' documents: the nearest type that Orbax can restore.
fn orbax_value_type(leaf: &Leaf, dtype: Dtype) -> ValueType {
    if leaf.kind.is_array() && !Plan::has_elements(leaf) {
        return ValueType::None;
    }
    match leaf.kind {
        LeafKind::Scalar if matches!(dtype, Dtype::Complex64 | Dtype::Complex128) => ValueType::NumpyArray,
        _ => ValueType::of_leaf(&leaf.kind),
    }
}
