//! Floats of at most 8 bits, as ml_dtypes defines them. Each format has a description, and two
//! functions convert all formats.
//!
//! ```text
//! float8_e4m3fn   S EEEE MMM    a byte holds sign, exponent, mantissa in its low bits:
//! float6_e3m2fn   . . S EEE MM    value = (-1)^S * 2^(E-bias) * 1.M, or 2^(1-bias) * 0.M where E is 0
//! float8_e8m0fnu  EEEEEEEE      a power of two: no sign, no zero
//! ```
//!
//! The formats differ in their special values: `Ieee` formats have infinities and NaNs, `Fn`
//! formats have one NaN for each sign, `Fnuz` formats have one NaN in place of -0, `Finite` formats
//! have only numbers, and the `Scale` format has one NaN.
//!
//! Source: ml_dtypes `float8.h`, `mxfloat.h`; OCP Microscaling Formats v1.0.

use super::Dtype;

/// The special values at the top of a format's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Top {
    /// The highest exponent is for infinity and NaNs.
    Ieee,
    /// The highest pattern is NaN. There is no infinity.
    Fn,
    /// The pattern of -0 is NaN. There is no infinity.
    Fnuz,
    /// There are only numbers. A value that is too large becomes the largest number.
    Finite,
    /// There is only an exponent. The highest pattern is NaN.
    Scale,
}

/// A binary floating-point format of at most 8 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SmallFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    top: Top,
}

impl SmallFloat {
    /// The format of `dtype`; `None` if it is not a float of at most 8 bits.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        let (exponent_bits, mantissa_bits, bias, top) = match dtype {
            Dtype::Float4E2m1fn => (2, 1, 1, Top::Finite),
            Dtype::Float6E2m3fn => (2, 3, 1, Top::Finite),
            Dtype::Float6E3m2fn => (3, 2, 3, Top::Finite),
            Dtype::Float8E3m4 => (3, 4, 3, Top::Ieee),
            Dtype::Float8E4m3 => (4, 3, 7, Top::Ieee),
            Dtype::Float8E4m3fn => (4, 3, 7, Top::Fn),
            Dtype::Float8E4m3fnuz => (4, 3, 8, Top::Fnuz),
            Dtype::Float8E4m3b11fnuz => (4, 3, 11, Top::Fnuz),
            Dtype::Float8E5m2 => (5, 2, 15, Top::Ieee),
            Dtype::Float8E5m2fnuz => (5, 2, 16, Top::Fnuz),
            Dtype::Float8E8m0fnu => (8, 0, 127, Top::Scale),
            _ => return None,
        };
        Some(Self { exponent_bits, mantissa_bits, bias, top })
    }

    /// The precision in binary digits, including the leading 1.
    pub(super) fn precision_bits(self) -> u32 {
        self.mantissa_bits + 1
    }

    pub(super) fn top(self) -> Top {
        self.top
    }

    /// The exponent of the smallest positive value.
    pub(super) fn smallest_exponent(self) -> i32 {
        match self.top {
            Top::Scale => -self.bias,
            _ => 1 - self.bias - self.mantissa_bits as i32,
        }
    }

    pub(super) fn largest(self) -> f32 {
        self.decode(self.largest_code() as u8)
    }

    /// The magnitude from which on finite values are too large and do not round to a value of the
    /// format.
    pub(super) fn rounded_end(self) -> f64 {
        match self.top {
            // Other formats round too large values to infinity or NaN.
            Top::Finite => {
                let largest = f64::from(self.largest());
                let below = f64::from(self.decode(self.largest_code() as u8 - 1));
                largest + (largest - below) / 2.0
            }
            _ => f64::INFINITY,
        }
    }

    /// The value of a pattern. Exact. Bits above those of the format are ignored.
    pub(super) fn decode(self, pattern: u8) -> f32 {
        if self.top == Top::Scale {
            return match pattern {
                0xff => f32::NAN,
                0 => f32::from_bits(1 << 22), // 2^-127 is a subnormal
                exponent => f32::from_bits(u32::from(exponent) << 23),
            };
        }
        let code = u32::from(pattern) & (self.sign_bit() - 1);
        let negative = u32::from(pattern) & self.sign_bit() != 0;
        let exponent = code >> self.mantissa_bits;
        let mantissa = code & ((1 << self.mantissa_bits) - 1);
        let magnitude = match self.top {
            Top::Fnuz if negative && code == 0 => return f32::from_bits(0xffc0_0000),
            Top::Ieee | Top::Fn if code > self.largest_code() => match code == self.infinity() {
                true => f32::INFINITY,
                false => f32::NAN,
            },
            _ => {
                let quantum = exponent.max(1) as i32 - self.bias - self.mantissa_bits as i32;
                let lead = u32::from(exponent > 0) << self.mantissa_bits;
                (lead | mantissa) as f32 * power_of_two(quantum) as f32
            }
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The pattern of the nearest value, ties to even.
    pub(super) fn encode(self, value: f32) -> u8 {
        if self.top == Top::Scale {
            return encode_scale(value);
        }
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        if value.is_nan() {
            return self.nan(sign) as u8;
        }
        let magnitude = f64::from(value.abs());
        let lowest = 1 - self.bias;
        let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(lowest);
        let code = if exponent > self.bias + 1 {
            u32::MAX
        } else {
            let quanta = magnitude * power_of_two(self.mantissa_bits as i32 - exponent);
            // A carry out of the mantissa increments the exponent.
            (((exponent - lowest) as u32) << self.mantissa_bits) + quanta.round_ties_even() as u32
        };
        if code > self.largest_code() {
            return match self.top {
                Top::Ieee => sign | self.infinity(),
                Top::Finite => sign | self.largest_code(),
                _ => self.nan(sign),
            } as u8;
        }
        match self.top {
            Top::Fnuz if code == 0 => 0,
            _ => (sign | code) as u8,
        }
    }

    fn sign_bit(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// The highest pattern of a number, without sign.
    fn largest_code(self) -> u32 {
        match self.top {
            Top::Scale => 0xfe,
            Top::Ieee => self.infinity() - 1,
            Top::Fn => self.sign_bit() - 2,
            _ => self.sign_bit() - 1,
        }
    }

    fn infinity(self) -> u32 {
        match self.top {
            Top::Ieee => ((1 << self.exponent_bits) - 1) << self.mantissa_bits,
            _ => u32::MAX,
        }
    }

    /// The pattern for NaN: the quiet NaN of the same sign. In a format without NaN, a zero of the
    /// other sign.
    fn nan(self, sign: u32) -> u32 {
        match self.top {
            Top::Ieee => sign | self.infinity() | 1 << (self.mantissa_bits - 1),
            Top::Fn => sign | (self.sign_bit() - 1),
            Top::Fnuz => self.sign_bit(),
            _ => self.sign_bit() - sign,
        }
    }
}

/// The nearest power of two, ties up (subnormals: values above 2^-127 become 2^-126). NaN for
/// values that are not positive.
fn encode_scale(value: f32) -> u8 {
    const TWO_TO_MINUS_127: u32 = 1 << 22;
    let bits = value.to_bits();
    match bits {
        0 => 0xff,
        1..=TWO_TO_MINUS_127 => 0,
        0x8000_0000.. => 0xff,
        _ if bits < 1 << 23 => 1,
        _ => ((bits + (1 << 22)) >> 23).min(0xff) as u8,
    }
}

fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_encodes_to_its_own_pattern() {
        for dtype in Dtype::all() {
            let Some(format) = SmallFloat::of(dtype) else { continue };
            let patterns = match format.top() {
                Top::Scale => 256,
                _ => format.sign_bit() * 2,
            };
            for pattern in 0..patterns {
                let value = format.decode(pattern as u8);
                if !value.is_nan() {
                    assert_eq!(u32::from(format.encode(value)), pattern, "{dtype} {value}");
                }
            }
        }
    }

    #[test]
    fn the_largest_values_are_those_of_the_specifications() {
        let largest = |dtype| SmallFloat::of(dtype).unwrap().largest();
        assert_eq!(largest(Dtype::Float4E2m1fn), 6.0);
        assert_eq!(largest(Dtype::Float6E2m3fn), 7.5);
        assert_eq!(largest(Dtype::Float6E3m2fn), 28.0);
        assert_eq!(largest(Dtype::Float8E4m3fn), 448.0);
        assert_eq!(largest(Dtype::Float8E5m2), 57344.0);
    }
}
