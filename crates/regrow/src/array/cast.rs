//! Casts between any two dtypes, as `numpy.ndarray.astype` does them.
//!
//! - To a float: to the nearest value, ties to even. What is too large becomes infinity or NaN, or the largest
//!   value where the format has neither ([`SmallFloat`]).
//! - Float to integer: towards zero; what does not fit is cut to the low bits of what an x86 conversion gives,
//!   so NaN becomes the smallest `int32` or `int64`.
//! - Integer to integer: the low bits.
//! - To bool: whether it is not zero. From complex: the imaginary part is dropped.
//!
//! Sources of one byte go through a table of 256 results when their values need decoding; the others through
//! one loop a pair, which the compiler turns into vector instructions for the usual ones.
//!
//! Checked against NumPy 2.4 and ml_dtypes 0.6 for all pairs: `fixtures/casts/make.py`.

use super::Dtype;
use super::float16::{bf16_to_f32, f16_to_f32, f16_to_f64, f32_to_bf16, f32_to_f16, f64_to_f16};
use super::small_float::SmallFloat;
use crate::error::{Error, Result};

/// Casts the elements in `src` to another dtype, into `out`. Little endian on both sides.
///
/// # Errors
/// `InvalidArgument` if `src` is no whole number of elements or `out` has not room for exactly as many.
pub fn cast_bytes(src: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) -> Result<()> {
    let count = src.len() / from.size_bytes();
    if !src.len().is_multiple_of(from.size_bytes()) || out.len() != count.saturating_mul(to.size_bytes()) {
        return Err(Error::invalid(format!("{} bytes of {from} do not cast to {to} one to one", src.len()))
            .expected(format_args!("{} bytes of room", count.saturating_mul(to.size_bytes())), out.len()));
    }
    if from == to {
        out.copy_from_slice(src);
        return Ok(());
    }
    use Dtype as D;
    match from {
        D::Bool => cast_numbers(src, to, out, |[b]: [u8; 1]| i64::from(b != 0)),
        D::Int8 => cast_numbers(src, to, out, |b| i64::from(i8::from_le_bytes(b))),
        D::Int16 => cast_numbers(src, to, out, |b| i64::from(i16::from_le_bytes(b))),
        D::Int32 => cast_numbers(src, to, out, i32::from_le_bytes),
        D::Int64 => cast_numbers(src, to, out, i64::from_le_bytes),
        D::UInt8 => cast_numbers(src, to, out, |b| i64::from(u8::from_le_bytes(b))),
        D::UInt16 => cast_numbers(src, to, out, |b| i64::from(u16::from_le_bytes(b))),
        D::UInt32 => cast_numbers(src, to, out, |b| i64::from(u32::from_le_bytes(b))),
        D::UInt64 => cast_numbers(src, to, out, u64::from_le_bytes),
        D::BFloat16 if to == D::Float16 => convert(src, out, |b| {
            // ml_dtypes keeps a NaN's sign here, and nothing else of it.
            let value = bf16_to_f32(u16::from_le_bytes(b));
            f32_to_f16(if value.is_nan() { f32::NAN.copysign(value) } else { value }).to_le_bytes()
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
            if let Some(format) = SmallFloat::of(from) {
                cast_by_table(src, to, out, |b| Small(format.decode(b)));
            }
        }
    }
    Ok(())
}

/// A number in a register, and what it becomes.
trait Number: Copy {
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_u32(self) -> u32 {
        self.to_i64() as u32
    }
    fn to_u64(self) -> u64;
    /// Its low bits become integers of 2 and 4 bits.
    fn to_sub_byte(self) -> i8 {
        self.to_i8()
    }
    fn to_i8(self) -> i8 {
        self.to_i32() as i8
    }
    fn to_u8(self) -> u8 {
        self.to_i32() as u8
    }
    fn to_i16(self) -> i16 {
        self.to_i32() as i16
    }
    fn to_u16(self) -> u16 {
        self.to_i32() as u16
    }
    /// Every narrower float but float16 is rounded from this.
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_f16(self) -> u16 {
        f32_to_f16(self.to_f32())
    }
    fn to_bf16(self) -> u16 {
        f32_to_bf16(self.to_f32())
    }
    fn is_nonzero(self) -> bool;
}

macro_rules! integer_numbers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            fn to_i32(self) -> i32 { self as i32 }
            fn to_i64(self) -> i64 { self as i64 }
            fn to_u64(self) -> u64 { self as u64 }
            fn to_f32(self) -> f32 { self as f32 }
            fn to_f64(self) -> f64 { self as f64 }
            fn is_nonzero(self) -> bool { self != 0 }
        }
    )*};
}
integer_numbers!(i32, i64, u64);

macro_rules! float_numbers {
    ($($float:ty, $to_f16:path);*) => {$(
        impl Number for $float {
            fn to_i32(self) -> i32 {
                let cut = self.trunc();
                if (-2_147_483_648.0..2_147_483_648.0).contains(&cut) { cut as i32 } else { i32::MIN }
            }
            fn to_i64(self) -> i64 {
                let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&self);
                if fits { self as i64 } else { i64::MIN }
            }
            fn to_u64(self) -> u64 {
                const TOP: $float = 9_223_372_036_854_775_808.0;
                if self >= TOP { ((self - TOP).to_i64() as u64) ^ (1 << 63) } else { self.to_i64() as u64 }
            }
            // ml_dtypes compares with the largest int32 before it cuts the fraction off.
            fn to_sub_byte(self) -> i8 { if self > i32::MAX as $float { 0 } else { self.to_i8() } }
            fn to_f32(self) -> f32 { self as f32 }
            fn to_f64(self) -> f64 { self.into() }
            fn to_f16(self) -> u16 { $to_f16(self) }
            fn is_nonzero(self) -> bool { self != 0.0 }
        }
    )*};
}
float_numbers!(f32, f32_to_f16; f64, f64_to_f16);

/// A float16, whose NaNs NumPy keeps as they are on the way to float64.
#[derive(Clone, Copy)]
struct Half(u16);

impl Number for Half {
    fn to_i32(self) -> i32 {
        self.to_f32().to_i32()
    }
    fn to_i64(self) -> i64 {
        self.to_f32().to_i64()
    }
    fn to_u64(self) -> u64 {
        self.to_f32().to_u64()
    }
    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
    fn to_f64(self) -> f64 {
        f16_to_f64(self.0)
    }
    fn is_nonzero(self) -> bool {
        self.0 & 0x7fff != 0
    }
}

/// A float of at most 8 bits: ml_dtypes bounds its infinities on the way to an integer, and makes NaN zero.
#[derive(Clone, Copy)]
struct Small(f32);

macro_rules! small_to_integers {
    ($($name:ident, $int:ident);*) => {$(
        fn $name(self) -> $int {
            if self.0.is_finite() { self.0.$name() } else { self.0 as $int }
        }
    )*};
}

impl Number for Small {
    small_to_integers!(to_i8, i8; to_u8, u8; to_i16, i16; to_u16, u16; to_i32, i32; to_u32, u32; to_i64, i64; to_u64, u64);
    fn to_f32(self) -> f32 {
        self.0
    }
    fn to_f64(self) -> f64 {
        self.0.into()
    }
    fn is_nonzero(self) -> bool {
        self.0 != 0.0
    }
}

/// One loop for each target.
fn cast_numbers<N: Number, const S: usize>(
    src: &[u8],
    to: Dtype,
    out: &mut [u8],
    read: impl Fn([u8; S]) -> N,
) {
    use Dtype as D;
    match to {
        D::Bool => convert(src, out, |b| [u8::from(read(b).is_nonzero())]),
        D::Int2 => convert(src, out, |b| [(read(b).to_sub_byte() << 6 >> 6) as u8]),
        D::Int4 => convert(src, out, |b| [(read(b).to_sub_byte() << 4 >> 4) as u8]),
        D::UInt2 => convert(src, out, |b| [read(b).to_sub_byte() as u8 & 3]),
        D::UInt4 => convert(src, out, |b| [read(b).to_sub_byte() as u8 & 15]),
        D::Int8 => convert(src, out, |b| read(b).to_i8().to_le_bytes()),
        D::UInt8 => convert(src, out, |b| [read(b).to_u8()]),
        D::Int16 => convert(src, out, |b| read(b).to_i16().to_le_bytes()),
        D::UInt16 => convert(src, out, |b| read(b).to_u16().to_le_bytes()),
        D::Int32 => convert(src, out, |b| read(b).to_i32().to_le_bytes()),
        D::UInt32 => convert(src, out, |b| read(b).to_u32().to_le_bytes()),
        D::Int64 => convert(src, out, |b| read(b).to_i64().to_le_bytes()),
        D::UInt64 => convert(src, out, |b| read(b).to_u64().to_le_bytes()),
        D::BFloat16 => convert(src, out, |b| read(b).to_bf16().to_le_bytes()),
        D::Float16 => convert(src, out, |b| read(b).to_f16().to_le_bytes()),
        D::Float32 => convert(src, out, |b| read(b).to_f32().to_le_bytes()),
        D::Float64 => convert(src, out, |b| read(b).to_f64().to_le_bytes()),
        D::Complex64 => convert(src, out, |b| complex64(read(b).to_f32(), 0.0)),
        D::Complex128 => convert(src, out, |b| complex128(read(b).to_f64(), 0.0)),
        _ => {
            if let Some(format) = SmallFloat::of(to) {
                convert(src, out, |b| [format.encode(read(b).to_f32())]);
            }
        }
    }
}

/// `S` is the size of a part, so an element is two of them.
fn cast_complex<N: Number, const S: usize>(
    src: &[u8],
    to: Dtype,
    out: &mut [u8],
    read: impl Fn([u8; S]) -> N,
) {
    let pairs = src.as_chunks::<S>().0.as_chunks::<2>().0;
    let both = pairs.iter().map(|&[re, im]| (read(re), read(im)));
    match to {
        Dtype::Bool => {
            for (to, (re, im)) in out.iter_mut().zip(both) {
                *to = u8::from(re.is_nonzero() || im.is_nonzero());
            }
        }
        Dtype::Complex64 => {
            for (to, (re, im)) in out.as_chunks_mut().0.iter_mut().zip(both) {
                *to = complex64(re.to_f32(), im.to_f32());
            }
        }
        Dtype::Complex128 => {
            for (to, (re, im)) in out.as_chunks_mut().0.iter_mut().zip(both) {
                *to = complex128(re.to_f64(), im.to_f64());
            }
        }
        _ => {
            // The real parts, a block at a time, then as any other float.
            let mut block = [[0; S]; BLOCK];
            let blocks = pairs.chunks(BLOCK).zip(out.chunks_mut(BLOCK * to.size_bytes()));
            for (pairs, out) in blocks {
                for (real, pair) in block.iter_mut().zip(pairs) {
                    *real = pair[0];
                }
                let real = block.as_flattened();
                cast_numbers(real.get(..pairs.len() * S).unwrap_or_default(), to, out, &read);
            }
        }
    }
}

/// Real parts that are gathered on the stack before they are cast.
const BLOCK: usize = 512;

/// Casts all 256 patterns once, then looks every element up.
fn cast_by_table<N: Number>(src: &[u8], to: Dtype, out: &mut [u8], decode: impl Fn(u8) -> N) {
    let mut table = [0; 256 * 16];
    let patterns: [u8; 256] = std::array::from_fn(|i| i as u8);
    let table = table.get_mut(..256 * to.size_bytes()).unwrap_or_default();
    cast_numbers(&patterns, to, table, |[b]: [u8; 1]| decode(b));
    match to.size_bytes() {
        1 => look_up::<1>(src, table, out),
        2 => look_up::<2>(src, table, out),
        4 => look_up::<4>(src, table, out),
        8 => look_up::<8>(src, table, out),
        _ => look_up::<16>(src, table, out),
    }
}

fn look_up<const D: usize>(src: &[u8], table: &[u8], out: &mut [u8]) {
    if let Ok(table) = <&[[u8; D]; 256]>::try_from(table.as_chunks::<D>().0) {
        #[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
        convert(src, out, |[b]: [u8; 1]| table[usize::from(b)]);
    }
}

fn convert<const S: usize, const D: usize>(src: &[u8], out: &mut [u8], to: impl Fn([u8; S]) -> [u8; D]) {
    for (out, from) in out.as_chunks_mut().0.iter_mut().zip(src.as_chunks().0) {
        *out = to(*from);
    }
}

fn complex64(re: f32, im: f32) -> [u8; 8] {
    let bits = u64::from(re.to_bits()) | u64::from(im.to_bits()) << 32;
    bits.to_le_bytes()
}

fn complex128(re: f64, im: f64) -> [u8; 16] {
    let bits = u128::from(re.to_bits()) | u128::from(im.to_bits()) << 64;
    bits.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
