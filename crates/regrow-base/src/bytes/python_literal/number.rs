//! Numbers: from tokens to values, sums and signs, and Python's format of floats.

use super::{DIGITS_MAX, Literal, Parser, is_name_byte};
use crate::error::{Error, ErrorKind, Result};

impl Parser<'_> {
    /// Reads a number. The next character is a digit or a point.
    pub(super) fn number(&mut self) -> Result<Literal> {
        let start = self.at;
        let value = match self.rest() {
            [b'0', b'x' | b'X', ..] => self.based_int(16)?,
            [b'0', b'o' | b'O', ..] => self.based_int(8)?,
            [b'0', b'b' | b'B', ..] => self.based_int(2)?,
            _ => self.decimal()?,
        };
        if matches!(value, Literal::Int(_) | Literal::BigInt(_))
            && self.options.python2_longs
            && matches!(self.peek(), Some(b'l' | b'L'))
        {
            self.at += 1;
        }
        if self.peek().is_some_and(is_name_byte) {
            return Err(self.bad_number(start));
        }
        Ok(value)
    }

    fn based_int(&mut self, base: u32) -> Result<Literal> {
        let start = self.at;
        self.at += 2;
        if self.peek() == Some(b'_') {
            self.at += 1;
        }
        let digits = self.digits(start, |byte| char::from(byte).is_digit(base))?;
        if digits.is_empty() {
            return Err(self.bad_number(start));
        }
        let digits = digits.trim_start_matches('0');
        if let Ok(value) = i128::from_str_radix(if digits.is_empty() { "0" } else { digits }, base) {
            return Ok(Literal::Int(value));
        }
        self.check_digits(start, digits.len())?;
        Ok(Literal::BigInt(to_decimal(digits, base)))
    }

    /// Reads a decimal integer, a float or an imaginary number.
    fn decimal(&mut self) -> Result<Literal> {
        let start = self.at;
        let whole = self.decimal_digits(start)?;
        let mut text = whole.clone();
        let mut is_float = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            is_float = true;
            let fraction = self.decimal_digits(start)?;
            if whole.is_empty() && fraction.is_empty() {
                return Err(self.bad_number(start));
            }
            text.push('.');
            text.push_str(&fraction);
        }
        if let [b'e' | b'E', rest @ ..] = self.rest() {
            let sign = match rest.first() {
                Some(&sign @ (b'+' | b'-')) => Some(sign),
                _ => None,
            };
            self.at += 1 + usize::from(sign.is_some());
            is_float = true;
            let exponent = self.decimal_digits(start)?;
            if exponent.is_empty() {
                return Err(self.bad_number(start));
            }
            text.push('e');
            text.extend(sign.map(char::from));
            text.push_str(&exponent);
        }
        let float = || text.parse::<f64>().map_err(|_| self.bad_number(start));
        if matches!(self.peek(), Some(b'j' | b'J')) {
            let imaginary = float()?;
            self.at += 1;
            return Ok(Literal::Complex(0.0, imaginary));
        }
        if is_float {
            return float().map(Literal::Float);
        }
        let digits = whole.trim_start_matches('0');
        if digits.len() < whole.len() && !digits.is_empty() {
            // A leading zero means octal in Python 2 and is an error in Python 3.
            return Err(self.bad_number(start));
        }
        if digits.is_empty() {
            return Ok(Literal::Int(0));
        }
        if let Ok(value) = digits.parse() {
            return Ok(Literal::Int(value));
        }
        self.check_digits(start, digits.len())?;
        Ok(Literal::BigInt(digits.to_owned()))
    }

    fn decimal_digits(&mut self, start: usize) -> Result<String> {
        self.digits(start, |byte| byte.is_ascii_digit())
    }

    /// Reads digits with single underscores between them. Returns the digits without underscores.
    fn digits(&mut self, start: usize, is_digit: impl Fn(u8) -> bool) -> Result<String> {
        let mut digits = String::new();
        loop {
            match self.rest() {
                [byte, ..] if is_digit(*byte) => {
                    digits.push(char::from(*byte));
                    self.at += 1;
                }
                [b'_', next, ..] if is_digit(*next) && !digits.is_empty() => self.at += 1,
                [b'_', ..] => return Err(self.bad_number(start)),
                _ => return Ok(digits),
            }
        }
    }

    fn check_digits(&self, start: usize, len: usize) -> Result<()> {
        if len <= DIGITS_MAX {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Limit, "an integer has too many digits")
            .at_byte(start as u64)
            .expected(format_args!("at most {DIGITS_MAX}"), len))
    }

    fn bad_number(&self, start: usize) -> Error {
        let end = (self.at + 1).min(self.text.len());
        let text = self.text.get(start..end).unwrap_or_default();
        Error::corrupt(format!("{text:?} is not a number of Python")).at_byte(start as u64)
    }
}

/// Converts digits of any base to decimal, nine decimal digits at a time. There are at most
/// [`DIGITS_MAX`] digits.
fn to_decimal(digits: &str, base: u32) -> String {
    const GROUP: u64 = 1_000_000_000;
    // Each group holds nine decimal digits, the lowest group first.
    let mut groups: Vec<u64> = Vec::new();
    for digit in digits.chars() {
        let mut carry = u64::from(digit.to_digit(base).unwrap_or(0));
        for group in &mut groups {
            let value = *group * u64::from(base) + carry;
            *group = value % GROUP;
            carry = value / GROUP;
        }
        if carry > 0 {
            groups.push(carry);
        }
    }
    let mut groups = groups.into_iter().rev();
    let mut out = groups.next().unwrap_or(0).to_string();
    out.extend(groups.map(|group| format!("{group:09}")));
    out
}

pub(super) fn negated(value: Literal) -> Literal {
    match value {
        Literal::Int(value) => match value.checked_neg() {
            Some(value) => Literal::Int(value),
            None => Literal::BigInt(i128::MIN.unsigned_abs().to_string()),
        },
        Literal::BigInt(digits) => {
            let text = format!("-{digits}");
            text.parse().map_or(Literal::BigInt(text), Literal::Int)
        }
        Literal::Float(value) => Literal::Float(-value),
        Literal::Complex(re, im) => Literal::Complex(-re, -im),
        other => other,
    }
}

/// `left + right` or `left - right`, for a real `left` and an imaginary `right`.
pub(super) fn real_plus_imaginary(left: &Literal, right: &Literal, minus: bool) -> Option<Literal> {
    let real = match left {
        Literal::Int(value) => *value as f64,
        Literal::BigInt(digits) => digits.parse().ok().filter(|value: &f64| value.is_finite())?,
        Literal::Float(value) => *value,
        _ => return None,
    };
    let Literal::Complex(re, im) = *right else { return None };
    // Like Python, convert the real number to complex before adding; this decides the sign of zero.
    Some(match minus {
        true => Literal::Complex(real - re, 0.0 - im),
        false => Literal::Complex(real + re, 0.0 + im),
    })
}

/// The range of a NumPy integer type such as `int64` or `uint8`.
pub(super) fn numpy_int_range(name: &str) -> Option<(i128, i128)> {
    let (bits, is_unsigned) = match name.strip_prefix('u') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let bits: u32 = match bits.strip_prefix("int")? {
        "8" => 8,
        "16" => 16,
        "32" => 32,
        "64" => 64,
        _ => return None,
    };
    Some(match is_unsigned {
        true => (0, (1 << bits) - 1),
        false => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    })
}

pub(super) fn repr_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let text = short_float(value);
    if value.is_infinite() || text.contains(['.', 'e']) { text } else { format!("{text}.0") }
}

pub(super) fn repr_complex(re: f64, im: f64) -> String {
    if re == 0.0 && re.is_sign_positive() {
        return format!("{}j", short_float(im));
    }
    let sign = if im.is_sign_negative() && !im.is_nan() { "" } else { "+" };
    format!("({}{sign}{}j)", short_float(re), short_float(im))
}

/// Formats a float without the `.0` of whole numbers. Python uses an exponent below 1e-4 and from
/// 1e16 on.
fn short_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() || value == 0.0 {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
