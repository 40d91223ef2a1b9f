//! The distance of two elements in steps, computed from their bits. One step leads from a value of
//! the dtype to the next value.
//!
//! The magnitude of a float, read as an integer, is the number of floats between zero and it. With
//! its sign, it is a position on a line: neighbours have a distance of one, and both zeros have one
//! position. The position of an integer is the integer.
//!
//! ```text
//! float16   ... 8001  8000=0000  0001  0002 ...  3c00 (1.0)  3c01 ...     bits
//!           ...   -1       0        1     2 ...   15360     15361 ...     place
//! ```

use super::super::{Dtype, DtypeClass};

/// The difference of one pair of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// Whether the bits differ. For types below 8 bits, only the bits of the value count.
    pub differs: bool,
    /// Number of steps in the dtype from one value to the other. For complex numbers, the larger
    /// number of both parts. Not valid for NaN.
    pub ulp: u64,
}

fn value_bits(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Int2 | Dtype::UInt2 => 2,
        Dtype::Int4 | Dtype::UInt4 | Dtype::Float4E2m1fn => 4,
        Dtype::Float6E2m3fn | Dtype::Float6E3m2fn => 6,
        dtype => dtype.word_bytes() as u32 * 8,
    }
}

/// Compares elements of one dtype. `out` has one entry for each pair.
pub(super) fn compare(dtype: Dtype, a: &[u8], b: &[u8], out: &mut [Steps]) {
    let bits = value_bits(dtype);
    // Extend the sign from the width of the value to 64 bits.
    let signed = move |word: u64| ((word << (64 - bits)) as i64) >> (64 - bits);
    let magnitude = (1_u64 << (bits - 1)) - 1;
    let place = move |word: u64| {
        let distance = (word & magnitude) as i64;
        if signed(word) < 0 { -distance } else { distance }
    };
    let mask = u64::MAX >> (64 - bits);
    match dtype.class() {
        DtypeClass::Signed => each(dtype, a, b, mask, out, |a, b| signed(a).abs_diff(signed(b))),
        DtypeClass::Bool | DtypeClass::Unsigned => each(dtype, a, b, mask, out, u64::abs_diff),
        // This dtype holds only an exponent and has no sign.
        DtypeClass::Float if dtype == Dtype::Float8E8m0fnu => each(dtype, a, b, mask, out, u64::abs_diff),
        DtypeClass::Float | DtypeClass::Complex => {
            each(dtype, a, b, mask, out, |a, b| place(a).abs_diff(place(b)));
        }
    }
}

fn each(dtype: Dtype, a: &[u8], b: &[u8], mask: u64, out: &mut [Steps], ulp: impl Fn(u64, u64) -> u64) {
    let is_pair = dtype.class() == DtypeClass::Complex;
    match dtype.word_bytes() {
        1 => words(a, b, out, is_pair, mask, ulp, |[byte]: [u8; 1]| u64::from(byte)),
        2 => words(a, b, out, is_pair, mask, ulp, |bytes| u64::from(u16::from_le_bytes(bytes))),
        4 => words(a, b, out, is_pair, mask, ulp, |bytes| u64::from(u32::from_le_bytes(bytes))),
        _ => words(a, b, out, is_pair, mask, ulp, u64::from_le_bytes),
    }
}

fn words<const S: usize>(
    a: &[u8],
    b: &[u8],
    out: &mut [Steps],
    is_pair: bool,
    mask: u64,
    ulp: impl Fn(u64, u64) -> u64,
    read: impl Fn([u8; S]) -> u64,
) {
    let steps = |a: [u8; S], b: [u8; S]| {
        let (a, b) = (read(a) & mask, read(b) & mask);
        Steps { differs: a != b, ulp: ulp(a, b) }
    };
    let (a, b) = (a.as_chunks::<S>().0, b.as_chunks::<S>().0);
    if is_pair {
        let pairs = a.as_chunks::<2>().0.iter().zip(b.as_chunks::<2>().0);
        for (out, (&[a_re, a_im], &[b_re, b_im])) in out.iter_mut().zip(pairs) {
            let (re, im) = (steps(a_re, b_re), steps(a_im, b_im));
            *out = Steps { differs: re.differs || im.differs, ulp: re.ulp.max(im.ulp) };
        }
    } else {
        for (out, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
            *out = steps(a, b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dtype: Dtype, a: &[u8], b: &[u8]) -> (bool, u64) {
        let mut out = [Steps::default()];
        compare(dtype, a, b, &mut out);
        (out[0].differs, out[0].ulp)
    }

    #[test]
    fn neighbours_are_one_apart_and_zeros_are_one_place() {
        let next = 1.0_f32.next_up().to_le_bytes();
        assert_eq!(one(Dtype::Float32, &1.0_f32.to_le_bytes(), &next), (true, 1));
        let (up, down) = (f64::from_bits(1), -f64::from_bits(1));
        assert_eq!(one(Dtype::Float64, &up.to_le_bytes(), &down.to_le_bytes()), (true, 2));
        assert_eq!(one(Dtype::Float64, &0.0_f64.to_le_bytes(), &(-0.0_f64).to_le_bytes()), (true, 0));
        let far = (f64::MAX.to_le_bytes(), f64::MIN.to_le_bytes());
        assert_eq!(one(Dtype::Float64, &far.0, &far.1).1, 2 * (f64::INFINITY.to_bits() - 1));
        assert_eq!(one(Dtype::BFloat16, &0x3f80_u16.to_le_bytes(), &0x3f81_u16.to_le_bytes()), (true, 1));
        let complex = |re: f32, im: f32| [re.to_le_bytes(), im.to_le_bytes()].concat();
        assert_eq!(
            one(
                Dtype::Complex64,
                &complex(1.0, 2.0),
                &complex(1.0_f32.next_up(), 2.0_f32.next_up().next_up())
            ),
            (true, 2)
        );
    }

    #[test]
    fn integers_are_their_own_places() {
        assert_eq!(one(Dtype::Int8, &[0x80], &[0x7f]), (true, 255));
        assert_eq!(one(Dtype::UInt64, &[0; 8], &[0xff; 8]), (true, u64::MAX));
        assert_eq!(one(Dtype::Int64, &i64::MIN.to_le_bytes(), &i64::MAX.to_le_bytes()), (true, u64::MAX));
        // The bits above the value are unused.
        assert_eq!(one(Dtype::Int4, &[0xff], &[0x0f]), (false, 0));
        assert_eq!(one(Dtype::Int4, &[0x08], &[0x07]), (true, 15));
        assert_eq!(one(Dtype::Float6E3m2fn, &[0x20], &[0x41]), (true, 1));
        assert_eq!(one(Dtype::Float8E8m0fnu, &[0x7f], &[0x80]), (true, 1));
    }
}
