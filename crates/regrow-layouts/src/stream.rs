//! Streams array data into a file, in C order and little endian, for every raw layout.

use regrow_base::error::Result;
use regrow_store::FileWriter;
use regrow_tree::array::Array;

/// Streams an array. A strided or deferred array is copied piece by piece into the writer's own
/// buffers.
pub(crate) fn write_array(out: &mut FileWriter, array: &Array) -> Result<()> {
    match array.c_order_bytes() {
        Some(bytes) => out.write_shared(bytes),
        None => out.write_with(array.len_bytes(), &mut |offset, piece| array.copy_c_order(offset, piece)),
    }
}

/// Length of the pieces in which an array in memory is passed to `show` and written. A piece fits
/// in the CPU cache.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// Streams an array, and passes its bytes to `show` on their way, front to back.
pub(crate) fn write_array_shown(
    out: &mut FileWriter,
    array: &Array,
    mut show: impl FnMut(&[u8]),
) -> Result<()> {
    match array.c_order_bytes() {
        Some(bytes) => bytes.chunks(PIECE_LEN_BYTES).try_for_each(|piece| {
            show(piece);
            out.write(piece)
        }),
        None => out.write_with(array.len_bytes(), &mut |offset, piece| {
            array.copy_c_order(offset, piece)?;
            show(piece);
            Ok(())
        }),
    }
}
