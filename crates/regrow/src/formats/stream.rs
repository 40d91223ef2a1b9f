//! Array data on its way into a file, in C order, little endian: what every raw layout writes.

use crate::array::Array;
use crate::error::Result;
use crate::store::DirectWriter;

/// Streams an array; what is strided or deferred goes straight into the writer's own buffers, piece by piece.
pub(crate) fn write_array(out: &mut DirectWriter, array: &Array) -> Result<()> {
    match array.c_order_bytes() {
        Some(bytes) => out.write(bytes),
        None => out.write_with(array.len_bytes(), &mut |offset, piece| array.copy_c_order(offset, piece)),
    }
}
