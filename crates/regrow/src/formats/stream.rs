//! Array data on its way into a file, in C order, little endian: what every raw layout writes.

use crate::array::{Array, Dtype, cast_bytes};
use crate::error::Result;
use crate::store::DirectWriter;

/// Bytes that are cast at a time on their way to the file.
const CAST_PIECE_LEN_BYTES: usize = 1 << 20;

/// Streams an array; what is strided, deferred or to be cast goes through a small buffer, piece by piece.
pub(crate) fn write_array(out: &mut DirectWriter, array: &Array, to: Dtype) -> Result<()> {
    if array.dtype() == to {
        return match array.c_order_bytes() {
            Some(bytes) => out.write(bytes),
            None => out.write_with(array.len_bytes(), &mut |offset, piece| array.copy_c_order(offset, piece)),
        };
    }
    let mut cast = Vec::new();
    array.for_each_piece(CAST_PIECE_LEN_BYTES, |piece| {
        cast.resize(piece.len() / array.dtype().size_bytes() * to.size_bytes(), 0);
        cast_bytes(piece, array.dtype(), to, &mut cast)?;
        out.write(&cast)
    })
}
