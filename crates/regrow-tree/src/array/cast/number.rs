//! Numbers in registers: their conversion to every dtype, and whether the result keeps the number.
//! A float as the result keeps an integer exactly, and a float up to rounding.

use super::super::float16::{f16_to_f32, f16_to_f64, f32_to_bf16, f32_to_f16, f64_to_f16};
use super::super::small_float::SmallFloat;

/// A number in a register, and its conversions.
pub(super) trait Number: Copy {
    /// `IN_F32`: whether every value of the type is also a float32. `IN_F64`: whether every value
    /// is also a float64.
    const IN_F32: bool = true;
    const IN_F64: bool = true;
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_u32(self) -> u32 {
        self.to_i64() as u32
    }
    fn to_u64(self) -> u64;
    /// The integer whose low bits become integers of 2 and 4 bits.
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
    /// The float32 from which every narrower float except float16 is rounded.
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_f16(self) -> u16 {
        f32_to_f16(self.to_f32())
    }
    fn to_bf16(self) -> u16 {
        f32_to_bf16(self.to_f32())
    }
    fn is_nonzero(self) -> bool;
    /// Whether `to`, the integer after the cast, is the same number.
    fn is_i64(self, to: i64) -> bool;
    fn is_u64(self, to: u64) -> bool;
    /// Whether a float keeps this number: an integer exactly, a float up to rounding.
    fn is_kept_by(self, is_finite: bool, value: impl FnOnce() -> f64) -> bool;
    /// Whether a float of at most 8 bits keeps this number: an integer exactly, a float up to
    /// rounding.
    fn is_kept_by_small(self, format: SmallFloat, pattern: u8) -> bool;
}

macro_rules! integer_numbers {
    ($($int:ty, $in_f64:literal);*) => {$(
        impl Number for $int {
            const IN_F32: bool = false;
            const IN_F64: bool = $in_f64;
            fn to_i32(self) -> i32 { self as i32 }
            fn to_i64(self) -> i64 { self as i64 }
            fn to_u64(self) -> u64 { self as u64 }
            fn to_f32(self) -> f32 { self as f32 }
            fn to_f64(self) -> f64 { self as f64 }
            fn is_nonzero(self) -> bool { self != 0 }
            fn is_i64(self, to: i64) -> bool { i128::from(self) == i128::from(to) }
            fn is_u64(self, to: u64) -> bool { i128::from(self) == i128::from(to) }
            fn is_kept_by(self, is_finite: bool, value: impl FnOnce() -> f64) -> bool {
                let value = value();
                if Self::IN_F64 {
                    return value == self as f64;
                }
                // A cast to an integer saturates at the ends of its range, so check the range
                // first.
                is_finite && value < Self::MAX as f64 + 1.0 && value as Self == self
            }
            fn is_kept_by_small(self, format: SmallFloat, pattern: u8) -> bool {
                let value = format.decode(pattern);
                self.is_kept_by(value.is_finite(), || value.into())
            }
        }
    )*};
}
integer_numbers!(i32, true; i64, false; u64, false);

macro_rules! float_numbers {
    ($($float:ty, $in_f32:literal, $to_f16:path);*) => {$(
        impl Number for $float {
            const IN_F32: bool = $in_f32;
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
            // ml_dtypes compares with the largest int32 before it drops the fraction.
            fn to_sub_byte(self) -> i8 { if self > i32::MAX as $float { 0 } else { self.to_i8() } }
            fn to_f32(self) -> f32 { self as f32 }
            fn to_f64(self) -> f64 { self.into() }
            fn to_f16(self) -> u16 { $to_f16(self) }
            fn is_nonzero(self) -> bool { self != 0.0 }
            // A number that lost its fraction or did not fit differs after the cast back.
            fn is_i64(self, to: i64) -> bool { to as $float == self }
            fn is_u64(self, to: u64) -> bool { to as $float == self }
            // NaN and infinity survive in a float that has both.
            fn is_kept_by(self, is_finite: bool, _: impl FnOnce() -> f64) -> bool {
                is_finite || !self.is_finite()
            }
            fn is_kept_by_small(self, format: SmallFloat, pattern: u8) -> bool {
                let (from, to) = (f64::from(self), f64::from(format.decode(pattern)));
                match from.is_nan() {
                    true => to.is_nan(),
                    false => from == to || to.is_finite() && from.abs() < format.rounded_end(),
                }
            }
        }
    )*};
}
float_numbers!(f32, true, f32_to_f16; f64, false, f64_to_f16);

/// Implements the checks for floats whose values are all float32 values.
macro_rules! kept_as_f32 {
    () => {
        fn is_i64(self, to: i64) -> bool {
            self.to_f32().is_i64(to)
        }
        fn is_u64(self, to: u64) -> bool {
            self.to_f32().is_u64(to)
        }
        fn is_kept_by(self, is_finite: bool, value: impl FnOnce() -> f64) -> bool {
            self.to_f32().is_kept_by(is_finite, value)
        }
        fn is_kept_by_small(self, format: SmallFloat, pattern: u8) -> bool {
            self.to_f32().is_kept_by_small(format, pattern)
        }
    };
}

/// A float16. NumPy keeps the bits of its NaNs in a cast to float64.
#[derive(Clone, Copy)]
pub(super) struct Half(pub u16);

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
    kept_as_f32!();
}

/// A float of at most 8 bits. In a cast to an integer, ml_dtypes limits infinities and turns NaN
/// into zero.
#[derive(Clone, Copy)]
pub(super) struct Small(pub f32);

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
    kept_as_f32!();
}
