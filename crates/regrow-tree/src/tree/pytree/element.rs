//! Numbers packed into arrays.

use super::{NodeRef, Pytree, Restore, number};
use crate::array::Dtype;
use crate::error::Result;
use crate::tree::{Key, Leaf, Scalar, TreeBuilder};

/// A plain number: the element of an array leaf.
///
/// `bool`, the integers up to 64 bits, `f32`, `f64`, `half::f16`, `half::bf16`, and with the
/// feature `num-complex` `Complex<f32>` and `Complex<f64>`.
pub trait Element: Pytree + Copy + Send + Sync + sealed::Plain + 'static {
    /// The dtype of the number.
    const DTYPE: Dtype;
}

pub(super) mod sealed {
    /// A number whose memory is its bytes, in the machine's byte order.
    pub trait Plain: bytemuck::NoUninit {
        fn packed() -> super::Packing<Self>;
    }
}

/// How several values become one array: the dtype, the additional axes of one value, and the
/// conversions to and from bytes.
#[derive(Debug)]
pub struct Packing<P> {
    pub(super) dtype: Dtype,
    /// The shape of one value: empty for a number, `[3]` for `[f32; 3]`.
    pub(super) dims: Vec<u64>,
    /// Writes all values as little-endian bytes into a slice of exactly their length.
    pub(super) encode: fn(&[P], &mut [u8]),
    pub(super) decode: fn(&[u8], &mut [P]),
    pub(super) collect: fn(&[u8], usize) -> Vec<P>,
    pub(super) zero: fn() -> P,
}

impl<P> Packing<P> {
    pub(super) fn element_count(&self) -> u64 {
        self.dims.iter().product()
    }
}

macro_rules! elements {
    ($($number:ty, $dtype:ident, $zero:expr, $size:literal, $to_le:expr, $from_le:expr, $scalar:expr;)*) => {$(
        impl Element for $number {
            const DTYPE: Dtype = Dtype::$dtype;
        }

        impl sealed::Plain for $number {
            fn packed() -> Packing<Self> {
                Packing {
                    dtype: Dtype::$dtype,
                    dims: Vec::new(),
                    encode: |values, out| {
                        for (out, value) in out.as_chunks_mut::<$size>().0.iter_mut().zip(values) {
                            *out = $to_le(*value);
                        }
                    },
                    decode: |bytes, out| {
                        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<$size>().0) {
                            *out = $from_le(*bytes);
                        }
                    },
                    collect: |bytes, _| {
                        bytes.as_chunks::<$size>().0.iter().map(|bytes| $from_le(*bytes)).collect()
                    },
                    zero: || $zero,
                }
            }
        }

        impl Pytree for $number {
            fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
                let python: fn($number) -> Option<Scalar> = $scalar;
                build.leaf(key, number::leaf(*self, python(*self)))
            }

            fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
                number::regrow(node, restore)
            }

            fn packing() -> Option<Packing<Self>> {
                Some(<Self as sealed::Plain>::packed())
            }
        }
    )*};
}

elements! {
    bool, Bool, false, 1, |v: bool| [u8::from(v)], |b: [u8; 1]| b != [0], |v| Some(Scalar::Bool(v));
    i8, Int8, 0, 1, i8::to_le_bytes, i8::from_le_bytes, |_| None;
    i16, Int16, 0, 2, i16::to_le_bytes, i16::from_le_bytes, |_| None;
    i32, Int32, 0, 4, i32::to_le_bytes, i32::from_le_bytes, |_| None;
    i64, Int64, 0, 8, i64::to_le_bytes, i64::from_le_bytes, |v| Some(Scalar::Int(v));
    u8, UInt8, 0, 1, u8::to_le_bytes, u8::from_le_bytes, |_| None;
    u16, UInt16, 0, 2, u16::to_le_bytes, u16::from_le_bytes, |_| None;
    u32, UInt32, 0, 4, u32::to_le_bytes, u32::from_le_bytes, |_| None;
    u64, UInt64, 0, 8, u64::to_le_bytes, u64::from_le_bytes, |v| Some(whole(v));
    half::f16, Float16, half::f16::ZERO, 2, half::f16::to_le_bytes, half::f16::from_le_bytes, |_| None;
    half::bf16, BFloat16, half::bf16::ZERO, 2, half::bf16::to_le_bytes, half::bf16::from_le_bytes, |_| None;
    f32, Float32, 0.0, 4, f32::to_le_bytes, f32::from_le_bytes, |_| None;
    f64, Float64, 0.0, 8, f64::to_le_bytes, f64::from_le_bytes, |v| Some(Scalar::Float(v));
}

// On 64-bit machines isize and usize have the bytes of i64 and u64. On other machines they are not
// elements: a checkpoint would depend on the machine.
#[cfg(target_pointer_width = "64")]
elements! {
    isize, Int64, 0, 8, isize::to_le_bytes, isize::from_le_bytes, |v| Some(Scalar::Int(v as i64));
    usize, UInt64, 0, 8, usize::to_le_bytes, usize::from_le_bytes, |v| Some(whole(v as u64));
}

#[cfg(feature = "num-complex")]
elements! {
    num_complex::Complex<f32>, Complex64, num_complex::Complex::new(0.0, 0.0), 8,
        |v: num_complex::Complex<f32>| {
            (u64::from(v.re.to_bits()) | u64::from(v.im.to_bits()) << 32).to_le_bytes()
        },
        |b: [u8; 8]| {
            let bits = u64::from_le_bytes(b);
            num_complex::Complex::new(f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32))
        },
        |_| None;
    num_complex::Complex<f64>, Complex128, num_complex::Complex::new(0.0, 0.0), 16,
        |v: num_complex::Complex<f64>| {
            (u128::from(v.re.to_bits()) | u128::from(v.im.to_bits()) << 64).to_le_bytes()
        },
        |b: [u8; 16]| {
            let bits = u128::from_le_bytes(b);
            num_complex::Complex::new(f64::from_bits(bits as u64), f64::from_bits((bits >> 64) as u64))
        },
        |_| None;
}

fn whole(value: u64) -> Scalar {
    i64::try_from(value).map_or(Scalar::UInt(value), Scalar::Int)
}
