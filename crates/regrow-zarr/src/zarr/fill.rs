//! Fill values: the value of elements without a stored chunk.
//!
//! In memory a fill value is the bytes of one element. In documents each dtype has its own form:
//!
//! | dtype | v2 | v3 |
//! |---|---|---|
//! | any | `null`: none; reads as zero | |
//! | bool | `true`, `false` | same |
//! | integers | an integer in range | same |
//! | floats | a number, `"NaN"`, `"Infinity"`, `"-Infinity"` | also any bits: `"0x7fc00001"` |
//! | complex | `[re,im]`, each as a float | same |
//! | float4_e2m1fn | base64 of its one byte | as floats |
//!
//! A number that a float dtype cannot hold exactly is rounded to the nearest, ties to even. regrow
//! refuses two forms that TensorStore reads in its own way: hex strings in v2, and numbers other
//! than 0 for float8_e8m0fnu. Source: zarr v3 core, "Fill value list"; TensorStore 0.1.86 as
//! observed.

use half::{bf16, f16};
use serde_json::{Number, Value, json};

use super::json::{brief, integer};
use crate::array::{Dtype, DtypeClass};
use crate::error::{Error, Result};

/// The sign, exponent and mantissa of a float of one or half a byte.
struct SmallFloat {
    dtype: Dtype,
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    specials: Specials,
    nan: u8,
}

/// The codes of a small float that are not finite numbers.
#[derive(Clone, Copy, PartialEq)]
enum Specials {
    /// The highest exponent, as in IEEE 754: infinity, then NaNs.
    Ieee,
    /// All bits but the sign set: NaN. No infinity.
    AllOnesIsNan,
    /// Minus zero is the only NaN. No infinity.
    MinusZeroIsNan,
    /// All codes are finite numbers.
    Finite,
}

const SMALL_FLOATS: [SmallFloat; 7] = [
    small(Dtype::Float8E3m4, 3, 4, 3, Specials::Ieee, 0x78),
    small(Dtype::Float8E4m3fn, 4, 3, 7, Specials::AllOnesIsNan, 0x7f),
    small(Dtype::Float8E4m3fnuz, 4, 3, 8, Specials::MinusZeroIsNan, 0x80),
    small(Dtype::Float8E4m3b11fnuz, 4, 3, 11, Specials::MinusZeroIsNan, 0x80),
    small(Dtype::Float8E5m2, 5, 2, 15, Specials::Ieee, 0x7e),
    small(Dtype::Float8E5m2fnuz, 5, 2, 16, Specials::MinusZeroIsNan, 0x80),
    small(Dtype::Float4E2m1fn, 2, 1, 1, Specials::Finite, 0),
];

const fn small(
    dtype: Dtype,
    exponent: u32,
    mantissa: u32,
    bias: i32,
    specials: Specials,
    nan: u8,
) -> SmallFloat {
    SmallFloat { dtype, exponent_bits: exponent, mantissa_bits: mantissa, bias, specials, nan }
}

/// The version of zarr, which decides the form of fill values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// zarr v2, which has no form for bits.
    V2,
    /// zarr v3.
    V3,
}

/// The bytes of one element, little endian, for a fill value other than `null`.
///
/// # Errors
/// `Corrupt` if the value does not fit the dtype, `Unsupported` for forms that different readers
/// understand differently.
pub fn parse(value: &Value, dtype: Dtype, spelling: Spelling) -> Result<Vec<u8>> {
    let size = dtype.size_bytes();
    match dtype.class() {
        DtypeClass::Bool => match value {
            Value::Bool(flag) => Ok(vec![u8::from(*flag)]),
            other => Err(bad(other, dtype)),
        },
        DtypeClass::Signed | DtypeClass::Unsigned => {
            let number = integer(value)
                .filter(|n| integer_range(dtype).contains(n))
                .ok_or_else(|| bad(value, dtype))?;
            let mut bytes = number.to_le_bytes().get(..size).unwrap_or_default().to_vec();
            crate::codec::bytes_codec::clear_unused_bits(dtype, &mut bytes);
            Ok(bytes)
        }
        DtypeClass::Float if dtype == Dtype::Float4E2m1fn && spelling == Spelling::V2 => {
            let text = value.as_str().ok_or_else(|| bad(value, dtype))?;
            base64_of_one_byte(text).map(|byte| vec![byte & 0x0f]).ok_or_else(|| bad(value, dtype))
        }
        DtypeClass::Float => parse_float(value, dtype, spelling),
        DtypeClass::Complex => match value.as_array().map(Vec::as_slice) {
            Some([re, im]) => {
                let part = if dtype == Dtype::Complex64 { Dtype::Float32 } else { Dtype::Float64 };
                Ok([parse_float(re, part, spelling)?, parse_float(im, part, spelling)?].concat())
            }
            _ => Err(bad(value, dtype)),
        },
    }
}

/// The JSON form of one element, as TensorStore writes it.
pub fn spell(bytes: &[u8], dtype: Dtype, spelling: Spelling) -> Value {
    let mut wide = [0_u8; 16];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    let bits = u128::from_le_bytes(wide);
    match dtype.class() {
        DtypeClass::Bool => json!(bits != 0),
        DtypeClass::Unsigned => json!(bits as u64),
        DtypeClass::Signed => {
            let unused = 128 - value_bits(dtype);
            json!((((bits << unused) as i128) >> unused) as i64)
        }
        DtypeClass::Float if dtype == Dtype::Float4E2m1fn && spelling == Spelling::V2 => {
            json!(base64_from_one_byte(bits as u8))
        }
        DtypeClass::Float => spell_float(bits as u64, dtype),
        DtypeClass::Complex => {
            let part = if dtype == Dtype::Complex64 { Dtype::Float32 } else { Dtype::Float64 };
            let half = part.size_bytes() * 8;
            let mask = u64::MAX >> (64 - half);
            json!([spell_float(bits as u64 & mask, part), spell_float((bits >> half) as u64 & mask, part)])
        }
    }
}

fn parse_float(value: &Value, dtype: Dtype, spelling: Spelling) -> Result<Vec<u8>> {
    let size = dtype.size_bytes();
    let special = |which: f64| {
        encode(which, dtype).ok_or_else(|| {
            Error::unsupported(format!("dtype {dtype} cannot hold the fill value {}", brief(value)))
        })
    };
    let bits = match value {
        Value::Number(number) => special(number.as_f64().ok_or_else(|| bad(value, dtype))?)?,
        Value::String(text) => match (text.as_str(), text.strip_prefix("0x")) {
            ("NaN", _) => special(f64::NAN)?,
            ("Infinity", _) => special(f64::INFINITY)?,
            ("-Infinity", _) => special(f64::NEG_INFINITY)?,
            (_, Some(digits)) if spelling == Spelling::V3 => {
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let bits = u64::from_str_radix(digits, 16).ok().filter(|_| plain);
                bits.filter(|bits| value_bits(dtype) == 64 || bits >> value_bits(dtype) == 0)
                    .ok_or_else(|| bad(value, dtype))?
            }
            (_, _) if spelling == Spelling::V2 => {
                return Err(Error::unsupported(format!("the fill value {} of zarr v2", brief(value)))
                    .help("readers disagree on what it means; write the fill value as a number"));
            }
            _ => return Err(bad(value, dtype)),
        },
        other => return Err(bad(other, dtype)),
    };
    Ok(bits.to_le_bytes().get(..size).unwrap_or_default().to_vec())
}

fn spell_float(bits: u64, dtype: Dtype) -> Value {
    let number = decode(bits, dtype);
    match number {
        Some(number) if number.is_finite() => Number::from_f64(number).map_or(Value::Null, Value::Number),
        Some(number) if number.is_infinite() => json!(if number > 0.0 { "Infinity" } else { "-Infinity" }),
        Some(_) if encode(f64::NAN, dtype) == Some(bits) => json!("NaN"),
        _ => json!(format!("{bits:#0width$x}", width = 2 + 2 * dtype.size_bytes())),
    }
}

/// The bits of the value of `dtype` nearest to `value`; `None` if there is none.
fn encode(value: f64, dtype: Dtype) -> Option<u64> {
    if value.is_nan() {
        // Every machine gets the same NaN: quiet, with the sign and the other bits zero.
        return match dtype {
            Dtype::Float16 => Some(0x7e00),
            Dtype::BFloat16 => Some(0x7fc0),
            Dtype::Float32 => Some(0x7fc0_0000),
            Dtype::Float64 => Some(0x7ff8_0000_0000_0000),
            Dtype::Float8E8m0fnu => Some(0xff),
            Dtype::Float4E2m1fn => None,
            _ => small_float(dtype).map(|float| float.nan.into()),
        };
    }
    match dtype {
        Dtype::Float16 => Some(f16::from_f64(value).to_bits().into()),
        Dtype::BFloat16 => Some(bf16::from_f64(value).to_bits().into()),
        Dtype::Float32 => Some((value as f32).to_bits().into()),
        Dtype::Float64 => Some(value.to_bits()),
        Dtype::Float8E8m0fnu => (value == 0.0).then_some(0),
        _ => small_float(dtype)?.nearest(value).map(u64::from),
    }
}

/// The value of bits; `None` if regrow writes the bits themselves.
fn decode(bits: u64, dtype: Dtype) -> Option<f64> {
    match dtype {
        Dtype::Float16 => Some(f16::from_bits(bits as u16).to_f64()),
        Dtype::BFloat16 => Some(bf16::from_bits(bits as u16).to_f64()),
        Dtype::Float32 => Some(f32::from_bits(bits as u32).into()),
        Dtype::Float64 => Some(f64::from_bits(bits)),
        Dtype::Float8E8m0fnu => match bits {
            0 => Some(0.0),
            0xff => Some(f64::NAN),
            _ => None,
        },
        _ => Some(small_float(dtype)?.value(bits as u8)),
    }
}

fn small_float(dtype: Dtype) -> Option<&'static SmallFloat> {
    SMALL_FLOATS.iter().find(|float| float.dtype == dtype)
}

impl SmallFloat {
    fn sign_bit(&self) -> u8 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    fn value(&self, code: u8) -> f64 {
        let sign = if code & self.sign_bit() != 0 { -1.0 } else { 1.0 };
        let magnitude = code & (self.sign_bit() - 1);
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = magnitude >> self.mantissa_bits;
        let top = (1 << self.exponent_bits) - 1;
        match self.specials {
            Specials::Ieee if exponent == top && mantissa == 0 => return sign * f64::INFINITY,
            Specials::Ieee if exponent == top => return f64::NAN,
            Specials::AllOnesIsNan if magnitude == self.sign_bit() - 1 => return f64::NAN,
            Specials::MinusZeroIsNan if code == self.sign_bit() => return f64::NAN,
            _ => {}
        }
        let hidden = if exponent == 0 { 0 } else { 1 << self.mantissa_bits };
        let scale = i32::from(exponent.max(1)) - self.bias - self.mantissa_bits as i32;
        sign * f64::from(mantissa + hidden) * f64::from(scale).exp2()
    }

    /// The nearest code, ties to the even one; `None` beyond the largest value.
    fn nearest(&self, value: f64) -> Option<u8> {
        let codes = || 0..=(self.sign_bit() - 1) | self.sign_bit();
        if value.is_infinite() || value == 0.0 {
            let same = |code: &u8| self.value(*code) == value;
            let signed = |code: &u8| self.value(*code).is_sign_negative() == value.is_sign_negative();
            return codes().find(|code| same(code) && signed(code)).or_else(|| codes().find(same));
        }
        let finite = || codes().filter(|&code| self.value(code).is_finite());
        let largest = finite().map(|code| self.value(code)).fold(0.0, f64::max);
        if value.abs() > largest {
            return None;
        }
        let near = |code: &u8| ((self.value(*code) - value).abs(), code & 1);
        finite().min_by(|a, b| near(a).partial_cmp(&near(b)).unwrap_or(std::cmp::Ordering::Equal))
    }
}

/// The number of used bits in an element: fewer than its length for the sub-byte types.
fn value_bits(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Int2 | Dtype::UInt2 => 2,
        Dtype::Int4 | Dtype::UInt4 | Dtype::Float4E2m1fn => 4,
        Dtype::Float6E2m3fn | Dtype::Float6E3m2fn => 6,
        _ => dtype.size_bytes() * 8,
    }
}

fn integer_range(dtype: Dtype) -> std::ops::RangeInclusive<i128> {
    let bits = value_bits(dtype);
    match dtype.class() {
        DtypeClass::Signed => -(1 << (bits - 1))..=(1 << (bits - 1)) - 1,
        _ => 0..=(1 << bits) - 1,
    }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64_of_one_byte(text: &str) -> Option<u8> {
    let &[high, low, b'=', b'='] = text.as_bytes() else { return None };
    let digit = |byte| BASE64.iter().position(|&letter| letter == byte);
    Some((digit(high)? << 2 | digit(low)? >> 4) as u8)
}

fn base64_from_one_byte(byte: u8) -> String {
    let letter = |digit: u8| BASE64.get(usize::from(digit & 0x3f)).copied().map_or('A', char::from);
    format!("{}{}==", letter(byte >> 2), letter(byte << 4))
}

fn bad(value: &Value, dtype: Dtype) -> Error {
    Error::corrupt("the fill value of a zarr array is not valid")
        .expected(format_args!("a value of dtype {dtype}"), brief(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn v3(dtype: Dtype, value: Value) -> Result<Vec<u8>> {
        parse(&value, dtype, Spelling::V3)
    }

    /// Each row was read and written by TensorStore 0.1.86: value given, bytes of the element,
    /// value written.
    #[test]
    fn agrees_with_tensorstore() {
        use Dtype as D;
        for (dtype, given, bytes, written) in [
            (D::Float32, json!(1e20), &[0xec, 0x78, 0xad, 0x60][..], json!(1.0000000200408773e20)),
            (D::Float32, json!("NaN"), &[0, 0, 0xc0, 0x7f], json!("NaN")),
            (D::Float32, json!("0x7fc00001"), &[1, 0, 0xc0, 0x7f], json!("0x7fc00001")),
            (D::Float32, json!(5), &[0, 0, 0xa0, 0x40], json!(5.0)),
            (D::Float32, json!("0x7"), &[7, 0, 0, 0], json!(9.80908925027372e-45)),
            (D::Float16, json!("0x7e01"), &[1, 0x7e], json!("0x7e01")),
            (D::Int32, json!(4.0), &[4, 0, 0, 0], json!(4)),
            (D::Float4E2m1fn, json!("0x7"), &[7], json!(6.0)),
            (D::Float4E2m1fn, json!(1.5), &[3], json!(1.5)),
            (D::Float8E4m3fn, json!(0.1), &[0x1d], json!(0.1015625)),
            (D::Float8E5m2, json!("Infinity"), &[0x7c], json!("Infinity")),
            (
                D::Complex64,
                json!(["0x7fc00001", 1]),
                &[1, 0, 0xc0, 0x7f, 0, 0, 0x80, 0x3f],
                json!(["0x7fc00001", 1.0]),
            ),
            (D::Int4, json!(-8), &[8], json!(-8)),
            (D::Int2, json!(-1), &[3], json!(-1)),
            (D::UInt64, json!(u64::MAX), &[0xff; 8], json!(u64::MAX)),
            (D::Int64, json!(i64::MIN), &[0, 0, 0, 0, 0, 0, 0, 0x80], json!(i64::MIN)),
            (D::Bool, json!(true), &[1], json!(true)),
            (D::BFloat16, json!(1.5), &[0xc0, 0x3f], json!(1.5)),
            (D::Float8E8m0fnu, json!(0.0), &[0], json!(0.0)),
            (D::Float8E8m0fnu, json!("NaN"), &[0xff], json!("NaN")),
        ] {
            assert_eq!(v3(dtype, given.clone()).unwrap(), bytes, "{dtype} {given}");
            assert_eq!(spell(bytes, dtype, Spelling::V3), written, "{dtype} {given}");
        }
        assert_eq!(parse(&json!("Bw=="), Dtype::Float4E2m1fn, Spelling::V2).unwrap(), [7]);
        assert_eq!(spell(&[7], Dtype::Float4E2m1fn, Spelling::V2), json!("Bw=="));
    }

    #[test]
    fn refuses_other_spellings_with_the_right_kind() {
        use Dtype as D;
        use ErrorKind::{Corrupt, Unsupported};
        for (dtype, value, spelling, kind) in [
            (D::Bool, json!(1), Spelling::V3, Corrupt),
            (D::Int8, json!(128), Spelling::V3, Corrupt),
            (D::Int4, json!(8), Spelling::V3, Corrupt),
            (D::UInt8, json!(-1), Spelling::V3, Corrupt),
            (D::Int32, json!("4"), Spelling::V3, Corrupt),
            (D::Int32, json!(4.5), Spelling::V2, Corrupt),
            (D::Float32, json!("-0x1"), Spelling::V3, Corrupt),
            (D::Float32, json!("0x+7"), Spelling::V3, Corrupt),
            (D::Float32, json!("0x"), Spelling::V3, Corrupt),
            (D::Float32, json!("0x100000000"), Spelling::V3, Corrupt),
            (D::Float32, json!("nan"), Spelling::V3, Corrupt),
            (D::Float32, json!(null), Spelling::V3, Corrupt),
            (D::Float32, json!("0x7fc00001"), Spelling::V2, Unsupported),
            (D::Float4E2m1fn, json!(1.5), Spelling::V2, Corrupt),
            (D::Float4E2m1fn, json!("NaN"), Spelling::V3, Unsupported),
            (D::Float8E4m3fn, json!("Infinity"), Spelling::V3, Unsupported),
            (D::Float8E8m0fnu, json!(1.0), Spelling::V3, Unsupported),
            (D::Complex64, json!(1.0), Spelling::V3, Corrupt),
        ] {
            assert_eq!(parse(&value, dtype, spelling).unwrap_err().kind(), kind, "{dtype} {value}");
        }
    }

    /// Largest and smallest positive values as ml_dtypes states them.
    #[test]
    fn small_floats_are_those_of_ml_dtypes() {
        use Dtype as D;
        for (dtype, largest, smallest, one) in [
            (D::Float8E3m4, 15.5, (-6_f64).exp2(), 0x30),
            (D::Float8E4m3fn, 448.0, (-9_f64).exp2(), 0x38),
            (D::Float8E4m3fnuz, 240.0, (-10_f64).exp2(), 0x40),
            (D::Float8E4m3b11fnuz, 30.0, (-13_f64).exp2(), 0x58),
            (D::Float8E5m2, 57344.0, (-16_f64).exp2(), 0x3c),
            (D::Float8E5m2fnuz, 57344.0, (-17_f64).exp2(), 0x40),
            (D::Float4E2m1fn, 6.0, 0.5, 2),
        ] {
            let float = small_float(dtype).unwrap();
            let values: Vec<f64> = (0..float.sign_bit()).map(|code| float.value(code)).collect();
            assert_eq!(
                values.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max),
                largest,
                "{dtype}"
            );
            assert_eq!(float.value(1), smallest, "{dtype}");
            assert_eq!(float.nearest(1.0), Some(one), "{dtype}");
            for code in 0..=float.sign_bit() | (float.sign_bit() - 1) {
                let value = float.value(code);
                if !value.is_nan() {
                    assert_eq!(float.nearest(value), Some(code), "{dtype} {code:x}");
                }
            }
        }
    }
}
