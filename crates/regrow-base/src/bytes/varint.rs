//! Unsigned LEB128 numbers, lowest bits first, as OCDBT writes them. [`Cursor`](super::Cursor)
//! reads them.

/// Appends `value` in the fewest bytes possible.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Cursor;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back(value: u64) {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            let mut input = Cursor::new(&out);
            prop_assert_eq!(input.varint("value").unwrap(), value);
            prop_assert!(input.is_empty());
        }
    }
}
