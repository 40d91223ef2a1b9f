//! Casts between any two dtypes, as `numpy.ndarray.astype` does them.
//!
//! - To a float: to the nearest value, ties to even. A value that is too large becomes infinity or
//!   NaN, or the largest value if the format has neither ([`SmallFloat`]).
//! - Float to integer: towards zero. A value that does not fit becomes the low bits of the result
//!   of an x86 conversion, so NaN becomes the smallest `int32` or `int64`. The source may be a
//!   float of at most 8 bits: then infinity becomes the nearest end of the integer type, and NaN
//!   becomes 0.
//! - Integer to integer: the low bits. Complex to a real number: the cast drops the imaginary part.
//! - To bool: whether the value is not zero. A complex value is not zero if one of its parts is not
//!   zero.
//!
//! Sources of one byte use a table of 256 results if their values need decoding. Other pairs of
//! dtypes have one loop each, and the compiler makes vector instructions of the common ones.
//!
//! Checked against NumPy 2.4 and ml_dtypes 0.6 for all pairs: `fixtures/casts/make.py`.

use super::Dtype;
use super::float16::{bf16_to_f32, f16_to_f32};
use super::small_float::SmallFloat;
use crate::error::{Error, Result};

mod checked;
mod number;

pub use checked::is_same_kind;
pub use checked::{Casting, cast_checked};
use number::{Half, Number, Small};

/// Casts the elements in `src` to another dtype, into `out`. Both are little endian. Returns
/// whether all values were kept: floats up to rounding to the nearest value, other numbers exactly.
///
/// # Errors
/// `InvalidArgument` if `src` is not a whole number of elements, or if `out` does not have the
/// length of the same number of elements.
pub fn cast_bytes(src: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) -> Result<bool> {
    let count = src.len() / from.size_bytes();
    if !src.len().is_multiple_of(from.size_bytes()) || out.len() != count.saturating_mul(to.size_bytes()) {
        return Err(Error::invalid(format!("{} bytes of {from} do not fit a cast to {to}", src.len()))
            .expected(format_args!("{} bytes of room", count.saturating_mul(to.size_bytes())), out.len()));
    }
    if from == to {
        out.copy_from_slice(src);
        return Ok(true);
    }
    Ok(cast_elements(src, from, to, out))
}

fn cast_elements(src: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) -> bool {
    use Dtype as D;
    match from {
        D::Bool => cast_numbers(src, to, out, |[b]: [u8; 1]| i32::from(b != 0)),
        D::Int8 => cast_numbers(src, to, out, |b| i32::from(i8::from_le_bytes(b))),
        D::Int16 => cast_numbers(src, to, out, |b| i32::from(i16::from_le_bytes(b))),
        D::Int32 => cast_numbers(src, to, out, i32::from_le_bytes),
        D::Int64 => cast_numbers(src, to, out, i64::from_le_bytes),
        D::UInt8 => cast_numbers(src, to, out, |b| i32::from(u8::from_le_bytes(b))),
        D::UInt16 => cast_numbers(src, to, out, |b| i32::from(u16::from_le_bytes(b))),
        D::UInt32 => cast_numbers(src, to, out, |b| i64::from(u32::from_le_bytes(b))),
        D::UInt64 => cast_numbers(src, to, out, u64::from_le_bytes),
        D::BFloat16 if to == D::Float16 => convert(src, out, |b| {
            // ml_dtypes keeps only the sign of a NaN in this cast.
            let value = bf16_to_f32(u16::from_le_bytes(b));
            to_float16(if value.is_nan() { f32::NAN.copysign(value) } else { value })
        }),
        D::BFloat16 => cast_numbers(src, to, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        D::Float16 => cast_numbers(src, to, out, |b| Half(u16::from_le_bytes(b))),
        D::Float32 => cast_numbers(src, to, out, f32::from_le_bytes),
        D::Float64 => cast_numbers(src, to, out, f64::from_le_bytes),
        D::Complex64 => cast_complex(src, to, out, f32::from_le_bytes),
        D::Complex128 => cast_complex(src, to, out, f64::from_le_bytes),
        D::Int2 => cast_by_table(src, to, out, |b| i64::from((b as i8) << 6 >> 6)),
        D::Int4 => cast_by_table(src, to, out, |b| i64::from((b as i8) << 4 >> 4)),
        D::UInt2 => cast_by_table(src, to, out, |b| i64::from(b & 3)),
        D::UInt4 => cast_by_table(src, to, out, |b| i64::from(b & 15)),
        _ => {
            SmallFloat::of(from).is_none_or(|format| cast_by_table(src, to, out, |b| Small(format.decode(b))))
        }
    }
}

/// One loop for each target dtype. Returns whether all values were kept.
fn cast_numbers<N: Number, const S: usize>(
    src: &[u8],
    to: Dtype,
    out: &mut [u8],
    read: impl Fn([u8; S]) -> N,
) -> bool {
    use Dtype as D;
    /// Converts to one integer type: the bytes of the result, and whether the result is the same
    /// number.
    macro_rules! to {
        ($convert:expr, $is_same:ident) => {
            convert(src, out, |b| {
                let x = read(b);
                let to = $convert(x);
                (to.to_le_bytes(), x.$is_same(to.into()))
            })
        };
    }
    match to {
        D::Bool => to!(|x: N| u8::from(x.is_nonzero()), is_i64),
        D::Int2 => to!(|x: N| x.to_sub_byte() << 6 >> 6, is_i64),
        D::Int4 => to!(|x: N| x.to_sub_byte() << 4 >> 4, is_i64),
        D::UInt2 => to!(|x: N| x.to_sub_byte() as u8 & 3, is_i64),
        D::UInt4 => to!(|x: N| x.to_sub_byte() as u8 & 15, is_i64),
        D::Int8 => to!(N::to_i8, is_i64),
        D::UInt8 => to!(N::to_u8, is_i64),
        D::Int16 => to!(N::to_i16, is_i64),
        D::UInt16 => to!(N::to_u16, is_i64),
        D::Int32 => to!(N::to_i32, is_i64),
        D::UInt32 => to!(N::to_u32, is_i64),
        D::Int64 => to!(N::to_i64, is_i64),
        D::UInt64 => to!(N::to_u64, is_u64),
        D::BFloat16 => convert(src, out, |b| to_bfloat16(read(b))),
        D::Float16 => convert(src, out, |b| to_float16(read(b))),
        D::Float32 => convert(src, out, |b| to_float32(read(b))),
        D::Float64 => convert(src, out, |b| to_float64(read(b))),
        D::Complex64 => convert(src, out, |b| complex::<4, 8>(to_float32(read(b)), ([0; 4], true))),
        D::Complex128 => convert(src, out, |b| complex::<8, 16>(to_float64(read(b)), ([0; 8], true))),
        _ => SmallFloat::of(to).is_none_or(|format| {
            convert(src, out, |b| {
                let x = read(b);
                let to = format.encode(x.to_f32());
                ([to], x.is_kept_by_small(format, to))
            })
        }),
    }
}

fn to_bfloat16<N: Number>(x: N) -> ([u8; 2], bool) {
    let to = x.to_bf16();
    (to.to_le_bytes(), x.is_kept_by(to & 0x7f80 != 0x7f80, || bf16_to_f32(to).into()))
}

fn to_float16<N: Number>(x: N) -> ([u8; 2], bool) {
    let to = x.to_f16();
    (to.to_le_bytes(), x.is_kept_by(to & 0x7c00 != 0x7c00, || f16_to_f32(to).into()))
}

fn to_float32<N: Number>(x: N) -> ([u8; 4], bool) {
    let to = x.to_f32();
    (to.to_le_bytes(), N::IN_F32 || x.is_kept_by(to.is_finite(), || to.into()))
}

fn to_float64<N: Number>(x: N) -> ([u8; 8], bool) {
    let to = x.to_f64();
    (to.to_le_bytes(), N::IN_F64 || x.is_kept_by(to.is_finite(), || to))
}

fn complex<const P: usize, const D: usize>(re: ([u8; P], bool), im: ([u8; P], bool)) -> ([u8; D], bool) {
    let mut out = [0; D];
    let (first, second) = out.split_at_mut(P);
    first.copy_from_slice(&re.0);
    second.copy_from_slice(&im.0);
    (out, re.1 & im.1)
}

/// Casts complex numbers. `S` is the size of a part in bytes, so an element has `2 * S` bytes.
fn cast_complex<N: Number, const S: usize>(
    src: &[u8],
    to: Dtype,
    out: &mut [u8],
    read: impl Fn([u8; S]) -> N,
) -> bool {
    let pairs = src.as_chunks::<S>().0.as_chunks::<2>().0;
    let mut kept = true;
    match to {
        Dtype::Bool => {
            for (to, &[re, im]) in out.iter_mut().zip(pairs) {
                let (re, im) = (read(re), read(im));
                *to = u8::from(re.is_nonzero() || im.is_nonzero());
                kept &= re.is_i64((*to).into()) & im.is_i64(0);
            }
        }
        Dtype::Complex64 => {
            for (to, &[re, im]) in out.as_chunks_mut().0.iter_mut().zip(pairs) {
                let (both, is_kept) = complex::<4, 8>(to_float32(read(re)), to_float32(read(im)));
                (*to, kept) = (both, kept & is_kept);
            }
        }
        Dtype::Complex128 => {
            for (to, &[re, im]) in out.as_chunks_mut().0.iter_mut().zip(pairs) {
                let (both, is_kept) = complex::<8, 16>(to_float64(read(re)), to_float64(read(im)));
                (*to, kept) = (both, kept & is_kept);
            }
        }
        _ => {
            // Collect the real parts of a block, then cast them like any other float.
            let mut block = [[0; S]; BLOCK];
            let blocks = pairs.chunks(BLOCK).zip(out.chunks_mut(BLOCK * to.size_bytes()));
            for (pairs, out) in blocks {
                for (real, &[re, im]) in block.iter_mut().zip(pairs) {
                    *real = re;
                    kept &= read(im).is_i64(0);
                }
                let real = block.as_flattened();
                kept &= cast_numbers(real.get(..pairs.len() * S).unwrap_or_default(), to, out, &read);
            }
        }
    }
    kept
}

/// Number of real parts that are collected on the stack before they are cast.
const BLOCK: usize = 512;

/// Casts all 256 byte values once, then looks up each element. Fewer than 256 elements are cast one
/// by one.
fn cast_by_table<N: Number>(src: &[u8], to: Dtype, out: &mut [u8], decode: impl Fn(u8) -> N) -> bool {
    if src.len() < 256 {
        return cast_numbers(src, to, out, |[b]: [u8; 1]| decode(b));
    }
    let mut table = [0; 256 * 16];
    let patterns: [u8; 256] = std::array::from_fn(|i| i as u8);
    let size = to.size_bytes();
    let table = table.get_mut(..256 * size).unwrap_or_default();
    let mut kept = [true; 256];
    let entries = patterns.chunks(1).zip(table.chunks_mut(size));
    for (kept, (pattern, entry)) in kept.iter_mut().zip(entries) {
        *kept = cast_numbers(pattern, to, entry, |[b]: [u8; 1]| decode(b));
    }
    match size {
        1 => look_up::<1>(src, table, &kept, out),
        2 => look_up::<2>(src, table, &kept, out),
        4 => look_up::<4>(src, table, &kept, out),
        8 => look_up::<8>(src, table, &kept, out),
        _ => look_up::<16>(src, table, &kept, out),
    }
}

#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
fn look_up<const D: usize>(src: &[u8], table: &[u8], kept: &[bool; 256], out: &mut [u8]) -> bool {
    <&[[u8; D]; 256]>::try_from(table.as_chunks::<D>().0)
        .is_ok_and(|table| convert(src, out, |[b]: [u8; 1]| (table[usize::from(b)], kept[usize::from(b)])))
}

/// Returns whether all values were kept.
fn convert<const S: usize, const D: usize>(
    src: &[u8],
    out: &mut [u8],
    to: impl Fn([u8; S]) -> ([u8; D], bool),
) -> bool {
    let mut lost = 0;
    for (out, from) in out.as_chunks_mut().0.iter_mut().zip(src.as_chunks().0) {
        let (bytes, kept) = to(*from);
        *out = bytes;
        lost |= u8::from(!kept);
    }
    lost == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::DtypeClass;
    use std::io::Read;

    #[test]
    fn every_pair_casts_as_numpy_does() {
        let packed = std::fs::read(regrow_testkit::fixtures().join("casts/casts.bin")).unwrap();
        let mut golden = Vec::new();
        flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut golden).unwrap();
        let mut golden = crate::bytes::Cursor::new(&golden);
        let mut wrong = Vec::new();
        for from in Dtype::all() {
            let count = golden.u32le("count").unwrap() as usize;
            let src = golden.take(count * from.size_bytes(), "source").unwrap();
            for to in Dtype::all() {
                let expected = golden.take(count * to.size_bytes(), "target").unwrap();
                let mut found = vec![0xee; expected.len()];
                cast_bytes(src, from, to, &mut found).unwrap();
                let all = src.chunks(from.size_bytes()).zip(expected.chunks(to.size_bytes()));
                let differ: Vec<_> =
                    all.zip(found.chunks(to.size_bytes())).filter(|((_, e), f)| e != f).collect();
                if let Some(((src, expected), found)) = differ.first() {
                    let n = differ.len();
                    wrong.push(format!("{from} -> {to}: {n} of {count}, {src:x?} {expected:x?} {found:x?}"));
                }
            }
        }
        golden.finish("the last pair").unwrap();
        assert!(wrong.is_empty(), "{} pairs, source expected found:\n{}", wrong.len(), wrong.join("\n"));
    }

    /// A number of any dtype.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Value {
        Whole(i128),
        Real(f64),
    }

    /// The parts of an element. This is independent of the code of the casts, so that tests can
    /// compare both.
    fn parts(element: &[u8], dtype: Dtype) -> [Value; 2] {
        let real = |bytes: &[u8]| match bytes.len() {
            4 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            _ => f64::from_le_bytes(bytes.try_into().unwrap()),
        };
        let size = dtype.size_bytes();
        let mut wide = [0; 16];
        wide[..size].copy_from_slice(element);
        let bits = u128::from_le_bytes(wide);
        let half = |bits: u128| f64::from(half::f16::from_bits(bits as u16));
        let first = match dtype {
            Dtype::Int2 => Value::Whole(((bits as i8) << 6 >> 6).into()),
            Dtype::Int4 => Value::Whole(((bits as i8) << 4 >> 4).into()),
            Dtype::UInt2 => Value::Whole((bits & 3).cast_signed()),
            Dtype::UInt4 => Value::Whole((bits & 15).cast_signed()),
            Dtype::Float16 => Value::Real(half(bits)),
            Dtype::BFloat16 => Value::Real(half::bf16::from_bits(bits as u16).into()),
            _ => match dtype.class() {
                DtypeClass::Signed => {
                    Value::Whole(bits.cast_signed() << (128 - 8 * size) >> (128 - 8 * size))
                }
                DtypeClass::Bool | DtypeClass::Unsigned => Value::Whole(bits.cast_signed()),
                DtypeClass::Float if size == 1 => {
                    Value::Real(SmallFloat::of(dtype).unwrap().decode(element[0]).into())
                }
                _ => Value::Real(real(&element[..dtype.word_bytes()])),
            },
        };
        match dtype.class() {
            DtypeClass::Complex => [first, Value::Real(real(&element[size / 2..]))],
            _ => [first, Value::Real(0.0)],
        }
    }

    /// Whether a part is kept: floats up to rounding in `to`, other numbers exactly.
    fn is_kept(from: Value, found: Value, to: Dtype) -> bool {
        let (a, b) = match (from, found) {
            (Value::Whole(a), Value::Whole(b)) => return a == b,
            (Value::Whole(a), Value::Real(b)) => return b.is_finite() && b as i128 == a && b.fract() == 0.0,
            (Value::Real(a), Value::Whole(b)) => return a.is_finite() && a as i128 == b && a.fract() == 0.0,
            (Value::Real(a), Value::Real(b)) => (a, b),
        };
        if !a.is_finite() || !b.is_finite() {
            return a == b || a.is_nan() && b.is_nan();
        }
        // Half a step between neighbours of the result. Below the smallest normal number, the step
        // is as long as at the smallest normal number.
        let (digits, smallest) = match to {
            Dtype::Float16 => (11, -24),
            Dtype::BFloat16 => (8, -133),
            Dtype::Float32 | Dtype::Complex64 => (24, -149),
            Dtype::Float64 | Dtype::Complex128 => (53, -1074),
            _ => match SmallFloat::of(to) {
                Some(format) => (format.precision_bits() as i32, format.smallest_exponent()),
                None => return a == b,
            },
        };
        let nearer = a.abs().min(b.abs());
        let exponent = if nearer == 0.0 { smallest } else { nearer.log2().floor() as i32 - digits + 1 };
        let half = f64::from(exponent.max(smallest)).exp2() / 2.0;
        // Below a power of two the step is half as long. Beyond the largest value, half a step
        // counts as a change.
        let is_beyond = SmallFloat::of(to).is_some_and(|format| a.abs() > format.largest().into());
        if is_beyond { (a - b).abs() < half } else { (a - b).abs() <= 2.0 * half }
    }

    #[test]
    fn what_is_not_kept_is_told_for_every_pair_and_value() {
        let packed = std::fs::read(regrow_testkit::fixtures().join("casts/casts.bin")).unwrap();
        let mut golden = Vec::new();
        flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut golden).unwrap();
        let mut golden = crate::bytes::Cursor::new(&golden);
        let (mut wrong, mut lost) = (Vec::new(), 0);
        for from in Dtype::all() {
            let count = golden.u32le("count").unwrap() as usize;
            let src = golden.take(count * from.size_bytes(), "source").unwrap();
            for to in Dtype::all() {
                let cast = golden.take(count * to.size_bytes(), "target").unwrap();
                let mut room = vec![0; to.size_bytes()];
                // Tests only every eleventh of the 65,536 values of 16 bits, because a debug build
                // is slow.
                let step = if count > 1 << 12 { 11 } else { 1 };
                let pairs = src.chunks(from.size_bytes()).zip(cast.chunks(to.size_bytes()));
                for (element, becomes) in pairs.step_by(step) {
                    let (a, b) = (parts(element, from), parts(becomes, to));
                    let is_dropped = to.class() != DtypeClass::Complex && a[1] != Value::Real(0.0);
                    let kept = !is_dropped && is_kept(a[0], b[0], to) && is_kept(a[1], b[1], to);
                    lost += u64::from(!kept);
                    let told = cast_bytes(element, from, to, &mut room).unwrap();
                    let refused = cast_checked(element, from, to, &mut room).is_err();
                    if told != kept || refused == kept {
                        wrong.push(format!("{from} -> {to}: {a:?} {b:?}, told {told}"));
                    }
                }
            }
        }
        assert!(lost > 10_000, "{lost}");
        assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    }
}
