//! From tensors to a pytree: the one that regrow kept, or a flat dict of names.

use std::collections::HashMap;
use std::sync::Arc;

use super::layout::{Tensor, stored_as};
use super::packed::F4_BITS;
use crate::error::{Error, Result};
use crate::formats::regrow::structure::Regrown;
use crate::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// A tensor and the number of its file.
pub(super) type Stored = (usize, Tensor);

/// A pytree whose leaves have been found.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`.
    pub texts: HashMap<usize, Arc<str>>,
    /// For each leaf its tensor; `None` for those without elements that can be read.
    pub tensors: Vec<Option<Stored>>,
}

/// Finds the tensor of every leaf of a pytree that regrow kept.
///
/// # Errors
/// `Corrupt` if one is missing or of another dtype or shape.
pub(super) fn kept(regrown: Regrown, stored: &[Stored]) -> Result<Placed> {
    let by_name: HashMap<&str, &Stored> = stored.iter().map(|entry| (&*entry.1.name, entry)).collect();
    let Regrown { mut tree, texts } = regrown;
    let mut tensors = Vec::with_capacity(tree.len());
    for (path, info) in tree.iter() {
        if !info.kind.is_array() {
            tensors.push(None);
            continue;
        }
        let Some(&found) = by_name.get(&*info.name) else {
            return Err(Error::corrupt(format!("the tensor {:?} is not in the file", info.name))
                .at_leaf(&path)
                .help("other files of the checkpoint hold the leaves that are not here; open its folder"));
        };
        let (tag, dims) = stored_as(info.dtype, &info.shape);
        if found.1.tag != tag || found.1.shape.dims() != dims {
            return Err(Error::corrupt("a tensor is not what its pytree says")
                .at_leaf(&path)
                .at_byte(found.1.offset_bytes)
                .expected(
                    format_args!("{tag} {dims:?}"),
                    format_args!("{} {}", found.1.tag, found.1.shape),
                ));
        }
        tensors.push(Some(found.clone()));
    }
    let raw: Arc<str> = Arc::from("raw");
    for info in tree.leaves_mut().iter_mut().filter(|info| info.kind.is_array()) {
        info.coding = raw.clone();
    }
    Ok(Placed { tree, texts, tensors })
}

/// A flat dict of the tensors, in the order of their bytes.
pub(super) fn flat(stored: Vec<Stored>) -> Result<Placed> {
    let (raw, packed): (Arc<str>, Arc<str>) = (Arc::from("raw"), Arc::from("packed"));
    let mut build = TreeBuilder::new();
    let mut tensors = Vec::with_capacity(stored.len());
    build.open(Key::Index(0), NodeKind::Dict)?;
    for (file, tensor) in stored {
        let can_be_read = !tensor.is_packed() || tensor.element_bits == F4_BITS;
        // The bytes in memory are more than those in the file for a packed dtype; they must be countable, too.
        tensor.shape.len_bytes(tensor.dtype)?;
        let info = LeafInfo {
            kind: match can_be_read {
                true => LeafKind::NumpyArray,
                false => LeafKind::Unknown(Arc::from(format!("safetensors {}", tensor.tag))),
            },
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            name: tensor.name.clone(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: if tensor.is_packed() { packed.clone() } else { raw.clone() },
        };
        build.leaf(Key::Dict(tensor.name.clone()), info)?;
        tensors.push(can_be_read.then_some((file, tensor)));
    }
    build.close()?;
    Ok(Placed { tree: build.finish()?, texts: HashMap::new(), tensors })
}
