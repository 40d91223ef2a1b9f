//! From records to a pytree: the one that the trailer tells, or a list in file order.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::LeafFile;
use super::layout::Record;
use super::trailer::Trailer;
use crate::array::{Dtype, Shape};
use crate::error::{Error, Result};
use crate::formats::npy::descr::Descr;
use crate::formats::npy::header::Header;
use crate::formats::regrow::structure::Regrown;
use crate::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// Where the data of a leaf lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a record.
    Record(usize),
    /// In the trailer: offset from its first byte, length, crc32c.
    Blob(u64, u64, u32),
    /// Text, and what has no data.
    Nowhere,
}

/// A pytree whose leaves have been found.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`.
    pub texts: HashMap<usize, Arc<str>>,
    pub places: Vec<Place>,
}

/// The pytree of a file.
///
/// # Errors
/// `Corrupt` if the trailer does not fit the records.
pub(super) fn of(file: &LeafFile) -> Result<Placed> {
    match file.trailer() {
        Some(trailer) => kept(trailer, file.records()),
        None => list(file.records()),
    }
}

/// What a record is without a word from the trailer: a NumPy array.
///
/// # Errors
/// `Limit` for a shape with too many axes.
pub fn as_leaf(header: &Header) -> Result<(LeafKind, Dtype, Shape)> {
    let other = |text: String, item_len_bytes: u64| -> Result<(LeafKind, Dtype, Shape)> {
        let mut dims = header.shape.dims().to_vec();
        dims.push(item_len_bytes);
        Ok((LeafKind::NumpyOther(Arc::from(text)), Dtype::UInt8, Shape::new(dims)?))
    };
    match &header.descr {
        Descr::Number { dtype, .. } => Ok((LeafKind::NumpyArray, *dtype, header.shape.clone())),
        // Nothing else of two bytes loses its name.
        Descr::Void { item_len_bytes: 2, is_nameless: true } => {
            Ok((LeafKind::NumpyArray, Dtype::BFloat16, header.shape.clone()))
        }
        // NumPy writes its letter, and does not read it.
        descr if descr.text().ends_with("W4") => other("|V4".to_owned(), descr.item_len_bytes()),
        descr => other(descr.text(), descr.item_len_bytes()),
    }
}

/// A list of the records.
fn list(records: &[Record]) -> Result<Placed> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::List)?;
    for (at, record) in records.iter().enumerate() {
        let (kind, dtype, shape) =
            as_leaf(&record.header).map_err(|error| error.at_byte(record.offset_bytes))?;
        let info = LeafInfo {
            kind,
            dtype,
            shape,
            name: Arc::from(at.to_string()),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: coding(&record.header),
        };
        build.leaf(Key::Index(at), info)?;
    }
    build.close()?;
    let places = (0..records.len()).map(Place::Record).collect();
    Ok(Placed { tree: build.finish()?, texts: HashMap::new(), places })
}

/// The pytree of the trailer.
fn kept(trailer: &Trailer, records: &[Record]) -> Result<Placed> {
    let Regrown { mut tree, texts } = trailer.structure.regrow()?;
    if trailer.records.len() != tree.len() {
        return Err(Error::corrupt("the trailer has places for another number of leaves")
            .expected(tree.len(), trailer.records.len()));
    }
    let mut places = Vec::with_capacity(tree.len());
    for (leaf, (path, info)) in tree.iter().enumerate() {
        let record = trailer.records.get(leaf).copied().flatten();
        let place = match (record, trailer.blobs.get(&leaf)) {
            (Some(at), None) => {
                let record = records.get(at).ok_or_else(|| {
                    Error::corrupt(format!("the trailer names record {at}, which is not there"))
                        .at_leaf(&path)
                })?;
                if !holds(&record.header, info)? {
                    return Err(Error::corrupt("a record is not what the trailer says")
                        .at_leaf(&path)
                        .at_byte(record.offset_bytes)
                        .expected(
                            format_args!("{} {}", info.dtype, info.shape),
                            format_args!("{} {}", record.header.descr.text(), record.header.shape),
                        ));
                }
                Place::Record(at)
            }
            (None, Some(&(offset, len, crc32c))) if info.len_bytes() == len => {
                Place::Blob(offset, len, crc32c)
            }
            (None, None) if !info.kind.is_array() => Place::Nowhere,
            _ => {
                return Err(Error::corrupt("the trailer has no place for the data of a leaf").at_leaf(&path));
            }
        };
        places.push(place);
    }
    for (info, place) in tree.leaves_mut().iter_mut().zip(&places) {
        info.coding = match place {
            Place::Record(at) => {
                records.get(*at).map_or_else(|| Arc::from(""), |found| coding(&found.header))
            }
            Place::Blob(..) => Arc::from("raw, in the trailer"),
            Place::Nowhere => Arc::from(""),
        };
    }
    Ok(Placed { tree, texts, places })
}

/// Whether a record can be this leaf's: as it stands, or with the name of the dtype lost.
fn holds(header: &Header, info: &LeafInfo) -> Result<bool> {
    if matches!(info.kind, LeafKind::Str | LeafKind::Placeholder | LeafKind::Unknown(_) | LeafKind::Bytes) {
        return Ok(false);
    }
    let (kind, dtype, shape) = as_leaf(header)?;
    if let (LeafKind::NumpyOther(stored), LeafKind::NumpyOther(told)) = (&kind, &info.kind) {
        return Ok(stored == told && shape == info.shape);
    }
    let is_nameless = matches!(header.descr, Descr::Void { item_len_bytes, .. }
        if item_len_bytes == info.dtype.size_bytes() as u64 && Descr::as_numpy_writes(info.dtype) == header.descr);
    let is_other = matches!(kind, LeafKind::NumpyOther(_)) || matches!(info.kind, LeafKind::NumpyOther(_));
    Ok(header.shape == info.shape && (is_nameless || !is_other && dtype == info.dtype))
}

fn coding(header: &Header) -> Arc<str> {
    let is_swapped = matches!(header.descr, Descr::Number { big_endian: true, .. });
    Arc::from(match (header.fortran_order, is_swapped) {
        (false, false) => "raw",
        (true, false) => "raw, Fortran order",
        (false, true) => "raw, big endian",
        (true, true) => "raw, big endian, Fortran order",
    })
}
