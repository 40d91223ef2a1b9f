//! BloscLZ, blosc's own compressor. It is similar to FastLZ. regrow only decodes it.
//!
//! ```text
//! 000n nnnn                     n+1 literal bytes follow
//! lllo oooo [l ...] o           match: length lll+2, extended by bytes while 255 if lll is 7;
//!                               distance 256*ooooo + o + 1
//! lll1 1111 [l ...] ff hh ll    match at distance 8192 + 256*hh + ll
//! ```
//!
//! The three top bits of the first byte have no meaning: a stream begins with literals. Source:
//! c-blosc `blosclz.c`.

use crate::bytes::Cursor;
use crate::error::Result;

/// The largest distance that needs no further two bytes.
const NEAR_DISTANCE_MAX: usize = 8191;
/// The length of the shortest match, minus the smallest length code (1).
const MATCH_LEN_BASE: usize = 2;
/// The length code after which more bytes of length follow.
const LONG_MATCH: usize = 7;

/// Decodes `stored` into `out`, and returns the number of bytes written.
pub(super) fn decode_into(stored: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut input = Cursor::new(stored);
    let mut filled = 0;
    let mut is_first = true;
    while !input.is_empty() {
        let control = usize::from(input.u8("a control byte")?);
        let code = if is_first { 0 } else { control >> 5 };
        let low = control & 0x1f;
        is_first = false;
        if code == 0 {
            let literals = input.take(low + 1, "literals")?;
            let room = out.get_mut(filled..).and_then(|room| room.get_mut(..literals.len()));
            room.ok_or_else(|| input.corrupt("blosclz literals pass the end of the block"))?
                .copy_from_slice(literals);
            filled += literals.len();
        } else {
            let mut len = code + MATCH_LEN_BASE;
            if code == LONG_MATCH {
                loop {
                    let more = input.u8("a match length")?;
                    len += usize::from(more);
                    if more != u8::MAX {
                        break;
                    }
                }
            }
            let mut distance = (low << 8) + usize::from(input.u8("a match distance")?);
            if distance == NEAR_DISTANCE_MAX {
                distance += usize::from(u16::from_be_bytes(input.array("a far match distance")?));
            }
            copy_match(out, filled, distance + 1, len)
                .ok_or_else(|| input.corrupt("a blosclz match is outside the block"))?;
            filled += len;
        }
    }
    Ok(filled)
}

/// Copies `len` bytes from `distance` bytes before `at`. Both runs may overlap.
fn copy_match(out: &mut [u8], at: usize, distance: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    let window = out.get_mut(from..at.checked_add(len)?)?;
    if distance >= len {
        let (source, target) = window.split_at_mut(distance);
        target.copy_from_slice(source.get(..len)?);
    } else {
        for i in distance..window.len() {
            let byte = *window.get(i - distance)?;
            *window.get_mut(i)? = byte;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let filled = decode_into(stored, &mut out)?;
        out.truncate(filled);
        Ok(out)
    }

    #[test]
    fn literals_matches_and_runs() {
        // "abc", then 3 bytes from 3 back, then a run of 7+2+1 times the last byte, then a literal.
        let stored = [2, b'a', b'b', b'c', 0x20, 2, 0xe0, 1, 0, 0, b'x'];
        assert_eq!(decode(&stored, 64).unwrap(), b"abcabcccccccccccx");
        assert_eq!(decode(&stored, 16).unwrap_err().kind(), crate::error::ErrorKind::Corrupt);
        // A far match: 8192 + 1 back.
        let mut far = Vec::new();
        for i in 0..257_u32 {
            far.push(31);
            far.extend((0..32).map(|j| (i * 32 + j) as u8 ^ (i >> 3) as u8));
        }
        far.extend([0x3f, 0xff, 0, 1]);
        let out = decode(&far, 10_000).unwrap();
        assert_eq!(out.len(), 8227);
        assert_eq!(out[8224..], out[8224 - 8193..8227 - 8193]);
    }

    #[test]
    fn matches_may_not_reach_before_the_start() {
        assert!(decode(&[0, b'a', 0x20, 1], 64).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_result(stored in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&stored, 1000);
        }
    }
}
