//! An array in pieces, each an archive of torch.save with one tensor.

use std::sync::{Arc, OnceLock};

use super::super::file::DataFile;
use super::super::reader::TorchReader;
use crate::Reader;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, Result};
use regrow_store::reads::Source;
use regrow_tree::array::{Dtype, Region, Shape, copy_region};
use regrow_tree::tree::LeafInfo;

/// A piece and its position.
#[derive(Debug)]
pub(super) struct Piece {
    pub region: Region,
    /// The number of its file.
    pub file: usize,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// The opened archive, after the first request.
    loaded: OnceLock<TorchReader>,
}

impl Piece {
    pub(super) fn new(region: Region, file: usize, offset_bytes: u64, len_bytes: u64) -> Self {
        Self { region, file, offset_bytes, len_bytes, loaded: OnceLock::new() }
    }

    /// The archive, which is opened once.
    ///
    /// # Errors
    /// `Corrupt` if the archive has another tensor than the index says.
    pub(super) fn loaded(&self, file: &Arc<DataFile>, dtype: Dtype) -> Result<&TorchReader> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let loaded = TorchReader::open_within(file, self.offset_bytes, self.len_bytes, false)?;
        let found = match loaded.tree().leaves() {
            [LeafInfo { dtype, shape, .. }] if loaded.tree().nodes().len() == 1 => (*dtype, shape.clone()),
            _ => (Dtype::UInt8, Shape::new([0])?),
        };
        if found != (dtype, self.region.shape()) {
            return Err(Error::corrupt("a piece of a tensor differs from the index")
                .in_file(file.describe())
                .at_byte(self.offset_bytes)
                .expected(
                    format_args!("{dtype} of shape {}", self.region.shape()),
                    format_args!("{} of shape {}", found.0, found.1),
                )
                .help("the files belong to two saves, or are damaged: copy the whole checkpoint again"));
        }
        Ok(self.loaded.get_or_init(|| loaded))
    }

    /// The position of the data.
    pub(super) fn source(&self, file: &Arc<DataFile>, dtype: Dtype) -> Result<Source<'_>> {
        self.loaded(file, dtype)?.source(0)
    }
}

/// Reads a region of an array from the pieces that it meets.
///
/// # Errors
/// `Corrupt`; `InvalidArgument` if the region leaves the array.
pub(super) fn read_region<'f>(
    pieces: &[Piece],
    file: impl Fn(usize) -> Result<&'f Arc<DataFile>>,
    info: &LeafInfo,
    region: &Region,
    out: &mut [u8],
) -> Result<()> {
    let (dtype, target) = (info.dtype, region.shape());
    if !region.is_inside(&info.shape) || target.len_bytes(dtype)? != out.len() as u64 {
        return Err(Error::invalid("the region is outside the array, or the destination has another size")
            .expected(&info.shape, region));
    }
    for piece in pieces {
        let Some(shared) = piece.region.intersect(region).filter(|shared| !shared.is_empty()) else {
            continue;
        };
        let data_file = file(piece.file)?;
        let loaded = piece.loaded(data_file, dtype)?;
        let inside = shared.relative_to(piece.region.starts())?;
        if shared == *region {
            return loaded.read_region(0, &inside, out);
        }
        let shape = shared.shape();
        let mut part = work_space(shape.len_bytes(dtype)?)?;
        loaded.read_region(0, &inside, &mut part)?;
        let to = shared.relative_to(region.starts())?;
        copy_region(dtype.size_bytes(), &part, &shape, &Region::whole(&shape), out, &target, to.starts())?;
    }
    Ok(())
}
