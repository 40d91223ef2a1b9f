//! Builds a pytree from the records: the pytree of the trailer, or a list in file order.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::LeafFile;
use super::layout::Record;
use super::trailer::Trailer;
use crate::npy::header::Header;
use crate::npy::record::Record as Elements;
use crate::structure::Regrown;
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// The position of a leaf's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the record with this number, as these elements.
    Record(usize, Elements),
    /// In the trailer: offset from its first byte, length, crc32c.
    Blob(u64, u64, u32),
    Nowhere,
}

/// A pytree with the position of every leaf's data.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`.
    pub texts: HashMap<usize, Arc<str>>,
    pub places: Vec<Place>,
}

/// The pytree of a file. With `arrays_only`, the list of its records, even if a trailer has the
/// pytree.
pub(super) fn of(file: &LeafFile, arrays_only: bool) -> Result<Placed> {
    match file.trailer().filter(|_| !arrays_only) {
        Some(trailer) => kept(trailer, file.records()),
        None => list(file.records()),
    }
}

/// The leaf that a record is if there is no trailer: kind, dtype, shape.
///
/// # Errors
/// `Limit` for a shape with too many axes.
pub fn as_leaf(header: &Header) -> Result<(LeafKind, Dtype, Shape)> {
    elements_of(header).map(|elements| (elements.kind, elements.dtype, elements.shape))
}

fn elements_of(header: &Header) -> Result<Elements> {
    let mut elements = Elements::of(header)?;
    // NumPy writes complex32 as `W4`, but cannot read it back.
    if header.descr.text().ends_with("W4") {
        elements.kind = LeafKind::NumpyOther(Arc::from("|V4"));
    }
    Ok(elements)
}

fn list(records: &[Record]) -> Result<Placed> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::List)?;
    let mut places = Vec::with_capacity(records.len());
    for (at, record) in records.iter().enumerate() {
        let elements = elements_of(&record.header).map_err(|error| error.at_byte(record.offset_bytes))?;
        let info = LeafInfo {
            kind: elements.kind.clone(),
            dtype: elements.dtype,
            shape: elements.shape.clone(),
            name: Arc::from(at.to_string()),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: Arc::from(elements.coding(false)),
        };
        build.leaf(Key::Index(at), info)?;
        places.push(Place::Record(at, elements));
    }
    build.close()?;
    Ok(Placed { tree: build.finish()?, texts: HashMap::new(), places })
}

fn kept(trailer: &Trailer, records: &[Record]) -> Result<Placed> {
    let Regrown { mut tree, texts } = trailer.structure.regrow()?;
    if trailer.records.len() != tree.len() {
        return Err(Error::corrupt("the trailer and the pytree differ in their number of leaves")
            .expected(tree.len(), trailer.records.len()));
    }
    let mut places = Vec::with_capacity(tree.len());
    for (leaf, (path, info)) in tree.iter().enumerate() {
        let record = trailer.records.get(leaf).copied().flatten();
        let place = match (record, trailer.blobs.get(&leaf)) {
            (Some(at), None) => {
                let record = records.get(at).ok_or_else(|| {
                    Error::corrupt(format!("the trailer names record {at}, which does not exist"))
                        .at_leaf(&path)
                })?;
                let elements = match info.kind {
                    LeafKind::Bytes | LeafKind::Str | LeafKind::Placeholder | LeafKind::Unknown(_) => None,
                    _ => elements_of(&record.header)?.known_as(info, &record.header),
                };
                let Some(elements) = elements else {
                    return Err(Error::corrupt("a record differs from the trailer")
                        .at_leaf(&path)
                        .at_byte(record.offset_bytes)
                        .expected(
                            format_args!("{} {}", info.dtype, info.shape),
                            format_args!("{} {}", record.header.descr.text(), record.header.shape),
                        ));
                };
                Place::Record(at, elements)
            }
            (None, Some(&(offset, len, crc32c))) if info.len_bytes() == len => {
                Place::Blob(offset, len, crc32c)
            }
            (None, None) if !info.kind.is_array() => Place::Nowhere,
            _ => {
                return Err(Error::corrupt("the trailer lacks the data of a leaf").at_leaf(&path));
            }
        };
        places.push(place);
    }
    for (info, place) in tree.leaves_mut().iter_mut().zip(&places) {
        info.coding = match place {
            Place::Record(_, elements) => Arc::from(elements.coding(false)),
            Place::Blob(..) => Arc::from("raw, in the trailer"),
            Place::Nowhere => Arc::from(""),
        };
    }
    Ok(Placed { tree, texts, places })
}
