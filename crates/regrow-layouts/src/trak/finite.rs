//! Checks whether numbers are finite, many numbers at once.

use regrow_tree::array::Dtype;

/// The length of a piece. Each piece is checked to its end.
const PIECE_NUMBERS: usize = 1 << 12;

/// Whether all exponents are below the one that stands for infinity and NaN.
pub(super) fn is_finite(bytes: &[u8], dtype: Dtype) -> bool {
    match dtype {
        Dtype::Float16 => {
            all(bytes.as_chunks::<2>().0, |number| u16::from_le_bytes(number) & 0x7c00 != 0x7c00)
        }
        _ => all(bytes.as_chunks::<4>().0, |number| u32::from_le_bytes(number) & 0x7f80_0000 != 0x7f80_0000),
    }
}

/// As `Iterator::all`, but each piece is looked at to its end: without an early exit, processors
/// check many numbers at once.
fn all<const N: usize>(numbers: &[[u8; N]], is_sound: impl Fn([u8; N]) -> bool) -> bool {
    numbers
        .chunks(PIECE_NUMBERS)
        .all(|piece| piece.iter().fold(true, |so_far, number| so_far & is_sound(*number)))
}
