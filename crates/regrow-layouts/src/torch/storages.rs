//! Storages: runs of bytes in a file. Each tensor is a view of a storage.
//!
//! ```text
//! storage    | 0 1 2 3 4 5 6 7 8 9 |       one checksum, or none
//! tensor           [2 3 4 5]               offset 2, shape [2,2], strides [2,1]: a slice of the map
//! its .T           [2 4 3 5]               strides [1,2]: read element by element
//! ```

use std::sync::OnceLock;

use super::file::DataFile;
use super::tensors::Tensor;
use regrow_base::bytes::zip::{Header, Method};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_store::reads::{BlobRef, BlockTable, CheckFor, Checks, Checksum, Extent, Words};
use regrow_tree::array::{Array, Dtype, Region};

const WORDS: Words = Words {
    what: |_, _| "a member of a zip archive fails its CRC-32".to_owned(),
    help: "copy the file again, or load the other leaves",
    help_if_zeros: "the data is all zeros, as after an interrupted copy: copy the file again, or load the \
        other leaves",
};

/// A run of bytes in a file.
#[derive(Debug)]
pub(super) struct Storage {
    place: Place,
    pub len_bytes: u64,
    crc32: Option<u32>,
    /// The offset of the storage and its one block, after the first look-up.
    found: OnceLock<(u64, Option<BlockTable>)>,
}

#[derive(Debug)]
enum Place {
    At(u64),
    /// Behind the header of a member; the archive begins at `base_bytes` of its file.
    Member {
        header: Header,
        end_bytes: u64,
        base_bytes: u64,
    },
}

impl Storage {
    pub fn at(offset_bytes: u64, len_bytes: u64) -> Self {
        Self { place: Place::At(offset_bytes), len_bytes, crc32: None, found: OnceLock::new() }
    }

    /// The data of a member. The archive begins at `base_bytes` of the file. The member ends at or
    /// before `end_bytes` of the archive.
    pub fn member(header: Header, end_bytes: u64, base_bytes: u64, has_checksums: bool) -> Self {
        let (len_bytes, crc32) = (header.member.len_bytes, header.member.crc32);
        Self {
            place: Place::Member { header, end_bytes, base_bytes },
            len_bytes,
            crc32: has_checksums.then_some(crc32),
            found: OnceLock::new(),
        }
    }

    pub fn order(&self) -> u64 {
        match &self.place {
            Place::At(offset_bytes) => *offset_bytes,
            Place::Member { header, base_bytes, .. } => {
                base_bytes.saturating_add(header.member.header_offset_bytes)
            }
        }
    }

    /// A range of the storage's bytes, with their checksum.
    pub fn extent<'r>(&'r self, file: &'r DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Extent<'r>> {
        let (start_bytes, table) = self.find(file)?;
        let offset_bytes = start_bytes.saturating_add(offset_bytes);
        Ok(Extent {
            blob: BlobRef::Kept(&file.blob),
            offset_bytes,
            len_bytes,
            checks: table.map(|table| Checks {
                table,
                start_bytes,
                end_bytes: start_bytes.saturating_add(self.len_bytes),
            }),
            is_viewable: true,
            working_len_bytes: None,
        })
    }

    /// Checks the whole storage, unless it has already passed.
    pub fn check(&self, file: &DataFile, purpose: CheckFor) -> Result<()> {
        self.extent(file, 0, self.len_bytes)?.check(purpose)
    }

    /// All bytes of the storage, after a check.
    pub fn read(&self, file: &DataFile) -> Result<bytes::Bytes> {
        self.check(file, CheckFor::Views)?;
        file.slice(self.find(file)?.0, self.len_bytes)
    }

    /// Reads a region of a view, in C order and little endian, after all of the storage was checked
    /// once.
    ///
    /// # Errors
    /// `Corrupt`; `InvalidArgument` if the region leaves the array.
    pub fn read_region(
        &self,
        file: &DataFile,
        tensor: &Tensor,
        big_endian: bool,
        region: &Region,
        out: &mut [u8],
    ) -> Result<()> {
        let dtype = tensor.dtype;
        if !region.is_inside(&tensor.shape) || region.shape().len_bytes(dtype)? != out.len() as u64 {
            return Err(Error::invalid(
                "the region is outside the array, or the destination has another \
                size",
            )
            .expected(&tensor.shape, region));
        }
        self.check(file, CheckFor::Views)?;
        if region.is_empty() {
            return Ok(());
        }
        // All elements lie in the storage: `tensors::tensor` has checked this.
        let (mut first, mut last) = (tensor.offset_elements, tensor.offset_elements);
        let mut strides = Vec::with_capacity(region.rank());
        for ((&start, &len), &stride) in
            region.starts().iter().zip(region.lens()).zip(&tensor.strides_elements)
        {
            first = first.saturating_add(start.saturating_mul(stride));
            last = last.saturating_add((start + len - 1).saturating_mul(stride));
            let stride = if len > 1 { stride.saturating_mul(dtype.size_bytes() as u64) } else { 0 };
            strides.push(i64::try_from(stride).unwrap_or(i64::MAX));
        }
        let size = dtype.size_bytes() as u64;
        let start = self.find(file)?.0.saturating_add(first.saturating_mul(size));
        let data = file.slice(start, (last - first + 1).saturating_mul(size))?;
        Array::with_strides(dtype, region.shape(), strides, 0, data)?.copy_c_order(0, out)?;
        if swaps(dtype, big_endian) {
            out.chunks_exact_mut(dtype.word_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    fn find(&self, file: &DataFile) -> Result<(u64, Option<&BlockTable>)> {
        if let Some((at, table)) = self.found.get() {
            return Ok((*at, table.as_ref()));
        }
        let found = self.look_up(file).in_file(file.describe())?;
        let (at, table) = self.found.get_or_init(|| found);
        Ok((*at, table.as_ref()))
    }

    fn look_up(&self, file: &DataFile) -> Result<(u64, Option<BlockTable>)> {
        let at = match &self.place {
            Place::At(offset_bytes) => *offset_bytes,
            Place::Member { header, end_bytes, base_bytes } => {
                let header_at = base_bytes.saturating_add(header.member.header_offset_bytes);
                if header.member.method != Method::Stored {
                    return Err(Error::unsupported(format!(
                        "the member {:?} of the archive is compressed",
                        header.member.name
                    ))
                    .at_byte(header_at)
                    .help(
                        "unpack the archive and save it again: torch.save and torch.load do not use \
                        compression",
                    ));
                }
                let read = |offset_bytes: u64, len_bytes| {
                    file.slice(base_bytes.saturating_add(offset_bytes), len_bytes)
                };
                let member =
                    header.clone().find_data(*end_bytes, &read).map_err(|error| error.shift(header_at))?;
                base_bytes.saturating_add(member.offset_bytes)
            }
        };
        let table = match self.crc32.filter(|_| self.len_bytes > 0) {
            Some(crc32) => {
                let range = at..at.saturating_add(self.len_bytes);
                Some(BlockTable::new(range, self.len_bytes, Checksum::Crc32, vec![crc32], WORDS)?)
            }
            None => None,
        };
        Ok((at, table))
    }
}

pub(super) fn swaps(dtype: Dtype, big_endian: bool) -> bool {
    big_endian && dtype.word_bytes() > 1
}

impl Tensor {
    /// Whether its elements lie next to each other in C order.
    pub(super) fn is_contiguous(&self) -> bool {
        let c_order = self.shape.strides_elements();
        let axes = self.shape.dims().iter().zip(&c_order).zip(&self.strides_elements);
        axes.into_iter().all(|((&dim, expected), found)| dim <= 1 || expected == found)
    }

    pub(super) fn span_len_bytes(&self) -> u64 {
        let axes = self.shape.dims().iter().zip(&self.strides_elements);
        let reach = axes.map(|(&dim, &stride)| dim.saturating_sub(1).saturating_mul(stride));
        reach.fold(1_u64, u64::saturating_add).saturating_mul(self.dtype.size_bytes() as u64)
    }
}
