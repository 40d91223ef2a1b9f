//! Opens safetensors files from disk or from memory as flat dicts, as safetensors does, even if
//! regrow has stored a pytree with the tensors. With a separator, the dicts are nested. This module
//! also maps the files privately, and makes the bytes of a file without writing the file.

use std::cell::RefCell;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use regrow::array::Dtype;
use regrow::location::ToLocation;
use regrow_layouts::safetensors::{FileImage, TreeForm, layout, open_as, open_bytes, open_mapped};
use regrow_store::reads::PrivateMaps;

use crate::checkpoint::Checkpoint;
use crate::columns::StructureIn;
use crate::error::{OrRaise, released};
use crate::leaves::{LeavesIn, to_leaves};
use crate::location::LocationIn;
use crate::memory::MapBuffer;
use crate::options::{SaveIn, save_options};

/// The name that safetensors has for each dtype of the engine; `None` if it has none.
pub fn tags() -> Vec<Option<&'static str>> {
    Dtype::all().map(layout::tag_of).collect()
}

/// Opens a file of any name, an index or a folder. The result is a flat dict, or nested dicts if a
/// separator is given.
#[pyfunction]
#[pyo3(signature = (path, separator))]
pub fn safetensors_open(py: Python<'_>, path: LocationIn, separator: Option<String>) -> PyResult<Checkpoint> {
    let form = tree_form(separator);
    let opened =
        released(py, || regrow::Checkpoint::open_by(path.to_location()?, |path| open_as(path, &form)));
    opened.map(Checkpoint::new)
}

/// Maps of the files. For each leaf: the number of its map, its first byte and its length in bytes.
pub type MapsOut = (Vec<MapBuffer>, Vec<Option<(usize, u64, u64)>>);

/// Opens a file, an index or a folder as a flat dict, and maps the files privately. There are no
/// maps if the file system does not support them.
#[pyfunction]
pub fn safetensors_open_mapped(py: Python<'_>, path: LocationIn) -> PyResult<(Checkpoint, Option<MapsOut>)> {
    let (checkpoint, maps) = released(py, || {
        let maps: RefCell<Option<PrivateMaps>> = RefCell::new(None);
        let checkpoint = regrow::Checkpoint::open_by(path.to_location()?, |path| {
            let (reader, found) = open_mapped(path, &TreeForm::Flat)?;
            maps.replace(found);
            Ok(reader)
        })?;
        Ok((checkpoint, maps.into_inner()))
    })?;
    Ok((Checkpoint::new(checkpoint), maps.map(maps_out)))
}

pub fn maps_out(PrivateMaps { files, places }: PrivateMaps) -> MapsOut {
    let places = places.into_iter().map(|place| place.map(|at| (at.file, at.offset_bytes, at.len_bytes)));
    (files.into_iter().map(MapBuffer::new).collect(), places.collect())
}

/// Opens the bytes of a file without copying them.
#[pyfunction]
#[pyo3(signature = (file, separator))]
pub fn safetensors_open_bytes(
    py: Python<'_>,
    file: PyBackedBytes,
    separator: Option<String>,
) -> PyResult<Checkpoint> {
    let form = tree_form(separator);
    let reader = released(py, || open_bytes(Bytes::from_owner(file), &form))?;
    Ok(Checkpoint::new(regrow::Checkpoint::in_memory(reader)))
}

/// The bytes of the file that a save would write.
#[pyfunction]
pub fn safetensors_bytes<'py>(
    py: Python<'py>,
    structure: StructureIn<'py>,
    leaves: LeavesIn<'py>,
    options: SaveIn,
) -> PyResult<Bound<'py, PyBytes>> {
    let leaves = to_leaves(structure.tree(), &leaves)?;
    let tree = structure.tree().with_leaves(leaves).or_raise()?;
    let options = save_options(options).or_raise()?;
    let image = released(py, || FileImage::new(&tree, &options))?;
    let len = usize::try_from(image.len_bytes()).unwrap_or(usize::MAX);
    PyBytes::new_with(py, len, |out| released(py, || image.write_to(out)))
}

fn tree_form(separator: Option<String>) -> TreeForm {
    separator.map_or(TreeForm::Flat, TreeForm::Nested)
}
