//! Decides from two dtypes whether a cast keeps every value exactly.

use super::float16::bf16_to_f32;
use super::small_float::{SmallFloat, Top};
use super::{Dtype, DtypeClass};

/// Whether every value of `from` is also a value of `to`, including infinities, NaN and -0.
///
/// ```
/// use regrow_tree::array::{Dtype, is_lossless};
/// assert!(is_lossless(Dtype::BFloat16, Dtype::Float32));
/// assert!(!is_lossless(Dtype::BFloat16, Dtype::Float16));
/// assert!(!is_lossless(Dtype::Int64, Dtype::Float64));
/// ```
pub fn is_lossless(from: Dtype, to: Dtype) -> bool {
    let (a, b) = (Extent::of(from), Extent::of(to));
    from == to
        || a.has & !b.has == 0
            && a.precision_bits <= b.precision_bits
            && a.smallest_exponent >= b.smallest_exponent
            && a.largest <= b.largest
}

/// The values of a dtype. They are the multiples of 2^`smallest_exponent` up to `largest` with at
/// most `precision_bits` significant bits.
struct Extent {
    precision_bits: u32,
    smallest_exponent: i32,
    /// The largest magnitude: for signed integers, the magnitude of the smallest value.
    largest: f64,
    has: u8,
}

const ZERO: u8 = 1;
const SIGN: u8 = 2;
const MINUS_ZERO: u8 = 4;
const NAN: u8 = 8;
const INFINITY: u8 = 16;
const IMAGINARY: u8 = 32;

impl Extent {
    fn of(dtype: Dtype) -> Self {
        const FLOAT: u8 = ZERO | SIGN | MINUS_ZERO | NAN | INFINITY;
        let float = |precision_bits, smallest_exponent, largest| {
            let imaginary = if dtype.class() == DtypeClass::Complex { IMAGINARY } else { 0 };
            Self { precision_bits, smallest_exponent, largest, has: FLOAT | imaginary }
        };
        match dtype {
            Dtype::Bool => integer(1, 0),
            Dtype::Int2 => integer(1, SIGN),
            Dtype::Int4 => integer(3, SIGN),
            Dtype::UInt2 => integer(2, 0),
            Dtype::UInt4 => integer(4, 0),
            Dtype::Float16 => float(11, -24, 65504.0),
            Dtype::BFloat16 => float(8, -133, bf16_to_f32(0x7f7f).into()),
            Dtype::Float32 | Dtype::Complex64 => float(24, -149, f32::MAX.into()),
            Dtype::Float64 | Dtype::Complex128 => float(53, -1074, f64::MAX),
            _ => match SmallFloat::of(dtype) {
                Some(format) => Self {
                    precision_bits: format.precision_bits(),
                    smallest_exponent: format.smallest_exponent(),
                    largest: format.largest().into(),
                    has: match format.top() {
                        Top::Ieee => FLOAT,
                        Top::Fn => FLOAT - INFINITY,
                        Top::Fnuz => ZERO | SIGN | NAN,
                        Top::Finite => ZERO | SIGN | MINUS_ZERO,
                        Top::Scale => NAN,
                    },
                },
                None if dtype.class() == DtypeClass::Signed => {
                    integer(dtype.size_bytes() as u32 * 8 - 1, SIGN)
                }
                None => integer(dtype.size_bytes() as u32 * 8, 0),
            },
        }
    }
}

fn integer(precision_bits: u32, sign: u8) -> Extent {
    let above = f64::from(precision_bits).exp2();
    let largest = if sign == 0 { above - 1.0 } else { above };
    Extent { precision_bits, smallest_exponent: 0, largest, has: ZERO | sign }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::cast_bytes;

    fn doubles(src: &[u8], from: Dtype) -> Vec<f64> {
        let mut out = vec![0; src.len() / from.size_bytes() * 8];
        cast_bytes(src, from, Dtype::Float64, &mut out).unwrap();
        out.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn agrees_with_the_casts_of_all_values() {
        // Only types with so few values that the test can try all of them. These values are all
        // float64 values, too.
        for from in Dtype::all().filter(|from| from.size_bytes() <= 2) {
            let src: Vec<u8> = match from.size_bytes() {
                1 if from == Dtype::Bool => vec![0, 1],
                1 => (0..=u8::MAX).collect(),
                _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
            };
            for to in Dtype::all() {
                let mut cast = vec![0; src.len() / from.size_bytes() * to.size_bytes()];
                cast_bytes(&src, from, to, &mut cast).unwrap();
                let all = doubles(&src, from).into_iter().zip(doubles(&cast, to));
                let kept =
                    all.into_iter().all(|(a, b)| (a.is_nan() && b.is_nan()) || a.to_bits() == b.to_bits());
                assert_eq!(is_lossless(from, to), kept, "{from} -> {to}");
            }
        }
    }

    #[test]
    fn wide_types_are_compared_by_their_bounds() {
        use Dtype as D;
        for (from, to, lossless) in [
            (D::Int32, D::Float64, true),
            (D::Int32, D::Float32, false),
            (D::UInt32, D::Int64, true),
            (D::UInt64, D::Int64, false),
            (D::Int64, D::UInt64, false),
            (D::Float32, D::Complex64, true),
            (D::Float64, D::Complex64, false),
            (D::Complex64, D::Complex128, true),
            (D::Complex64, D::Float64, false),
            (D::Float64, D::Float32, false),
        ] {
            assert_eq!(is_lossless(from, to), lossless, "{from} -> {to}");
        }
    }
}
