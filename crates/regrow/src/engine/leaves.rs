//! Reading one leaf of an opened checkpoint, or a part of one.

use bytes::Bytes;

use super::Checkpoint;
use crate::array::{Array, Region};
use crate::bytes::limits::allocate;
use crate::error::{Error, Result};
use crate::formats::ReaderExt;
use crate::reads::{CheckFor, Source};
use crate::tree::{Leaf, LeafData, LeafInfo, LeafKind};

impl Checkpoint {
    /// Reads and checks one leaf. Returns a view of a map of the file if the leaf is stored raw,
    /// and if either the file has no other writers or
    /// [`OpenOptions::mapped`](crate::OpenOptions::mapped) is set.
    ///
    /// # Errors
    /// `Corrupt` with file, leaf and offset.
    pub fn read(&self, leaf: usize) -> Result<Leaf> {
        let info = self.info(leaf)?;
        self.at_leaf(leaf, self.unless_replaced(self.read_leaf(leaf, info)))
    }

    /// Reads a hyper-rectangle of one leaf. Reads only the chunks or byte ranges that the region
    /// meets.
    ///
    /// # Errors
    /// `InvalidArgument` if the leaf is not an array or the region exceeds its shape; `Corrupt` as
    /// for [`read`](Self::read).
    pub fn region(&self, leaf: usize, region: &Region) -> Result<Array> {
        self.at_leaf(leaf, self.read_region(leaf, self.info(leaf)?, region))
    }

    fn read_region(&self, leaf: usize, info: &LeafInfo, region: &Region) -> Result<Array> {
        if !info.kind.is_array() {
            return Err(Error::invalid(format!("a leaf of kind {} has no elements", info.kind.name()))
                .help("read it whole; only arrays have slices"));
        }
        if !region.is_inside(&info.shape) {
            return Err(Error::invalid("the region is outside the array").expected(&info.shape, region));
        }
        let len_bytes = region.shape().len_bytes(info.dtype)?;
        if *region != Region::whole(&info.shape) {
            self.unless_replaced(self.reader().check_before_part(leaf))?;
        }
        let mut out = allocate(len_bytes)?;
        self.unless_replaced(self.reader().read_region(leaf, region, &mut out))?;
        Array::new(info.dtype, region.shape(), out.into())
    }

    /// Reads one whole array leaf into `out`, in C order. `out` must be as long as the leaf.
    ///
    /// # Errors
    /// `InvalidArgument` if `out` has another length; `Corrupt`. After an error `out` may be partly
    /// written.
    pub fn read_into(&self, leaf: usize, out: &mut [u8]) -> Result<()> {
        let info = self.info(leaf)?;
        if !info.kind.is_array() || info.len_bytes() != out.len() as u64 {
            return Err(Error::invalid("the destination and the leaf differ in size")
                .expected(format_args!("{} bytes", info.len_bytes()), out.len())
                .at_leaf(&self.key_path(leaf)?));
        }
        let read = self.unless_replaced(self.reader().read_region(leaf, &Region::whole(&info.shape), out));
        self.at_leaf(leaf, read)
    }

    fn read_leaf(&self, leaf: usize, info: &LeafInfo) -> Result<Leaf> {
        let data = match info.kind {
            LeafKind::Str => LeafData::Text(self.reader().read_text(leaf)?),
            LeafKind::Placeholder => LeafData::Absent,
            LeafKind::Unknown(_) => {
                self.reader().check_unknown(leaf)?;
                LeafData::Absent
            }
            _ => LeafData::Array(Array::new(info.dtype, info.shape.clone(), self.read_array(leaf, info)?)?),
        };
        Ok(Leaf { kind: info.kind.clone(), data, sharding: info.sharding.clone() })
    }

    fn read_array(&self, leaf: usize, info: &LeafInfo) -> Result<Bytes> {
        match self.reader().source(leaf)? {
            Source::Memory(bytes) if self.has_views() => return Ok(bytes),
            Source::Raw(extent) => {
                if let Some(view) = if self.has_views() { extent.view()? } else { None } {
                    return extent.check(CheckFor::Views).map(|()| view);
                }
                if let Some(read) = self.read_blocks(leaf, &extent)? {
                    return Ok(read.into());
                }
            }
            _ => {}
        }
        let mut out = allocate(info.len_bytes())?;
        self.reader().read_region(leaf, &Region::whole(&info.shape), &mut out)?;
        Ok(out.into())
    }

    fn at_leaf<T>(&self, leaf: usize, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.at_leaf(&self.tree().path_of(leaf)))
    }
}
