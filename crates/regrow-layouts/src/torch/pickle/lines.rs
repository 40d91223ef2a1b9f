//! The lines of protocol 0: numbers in decimal, texts with escapes.
//!
//! ```text
//! I42\n   I01\n (True)   L42L\n   F0.5\n   g7\n
//! Va\u000ab\n                raw-unicode-escape: Latin-1, \u and \U are escapes
//! S'a\nb'\n                  a literal of Python 2: bytes, with its escapes
//! ```
//!
//! Source: CPython `Lib/pickle.py` (`save_str`, `load_string`), `Objects/unicodeobject.c`
//! (raw-unicode-escape).

/// The value of an `I` or `L` line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Number {
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: two's complement, little endian.
    Long(Vec<u8>),
}

/// The most decimal digits of an integer.
const DIGITS_MAX: usize = 300;

pub(super) fn number(line: &[u8]) -> Option<Number> {
    match line {
        b"00" => return Some(Number::Bool(false)),
        b"01" => return Some(Number::Bool(true)),
        _ => {}
    }
    let text = std::str::from_utf8(line).ok()?;
    let text = text.strip_suffix('L').unwrap_or(text);
    if let Ok(number) = text.parse() {
        return Some(Number::Int(number));
    }
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // The magnitude, little endian, with one more byte for the sign.
    let mut out: Vec<u8> = Vec::new();
    for digit in digits.bytes() {
        let mut carry = u32::from(digit - b'0');
        for byte in &mut out {
            carry += u32::from(*byte) * 10;
            *byte = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            out.push(carry as u8);
        }
    }
    out.push(0);
    if is_negative {
        let mut carry = true;
        for byte in &mut out {
            (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
        }
    }
    Some(Number::Long(out))
}

pub(super) fn text(line: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let digits = match (byte, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                out.push(char::from(byte));
                continue;
            }
        };
        let code = std::str::from_utf8(after.get(1..=digits)?).ok()?;
        // A half of a surrogate pair is not text.
        out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        rest = after.get(digits + 1..)?;
    }
    Some(out)
}

pub(super) fn old_text(line: &[u8]) -> Option<Vec<u8>> {
    let quote = line.first().filter(|quote| matches!(quote, b'\'' | b'"'))?;
    let mut rest = line.get(1..line.len().checked_sub(1)?).filter(|_| line.last() == Some(quote))?;
    let mut out = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first()?;
        rest = after;
        out.push(match escape {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'\\' | b'\'' | b'"' => escape,
            b'x' => {
                let code = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = rest.get(2..)?;
                u8::from_str_radix(code, 16).ok()?
            }
            _ => return None,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_python() {
        for (line, is) in [
            ("01", Number::Bool(true)),
            ("00", Number::Bool(false)),
            ("-7", Number::Int(-7)),
            ("9223372036854775807L", Number::Int(i64::MAX)),
            ("18446744073709551616L", Number::Long(vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 0])),
            ("-9223372036854775809", Number::Long(vec![255, 255, 255, 255, 255, 255, 255, 127, 255])),
        ] {
            assert_eq!(number(line.as_bytes()), Some(is), "{line}");
        }
        for line in ["", "-", "L", "1.5", "0x1", &"9".repeat(DIGITS_MAX + 1)] {
            assert_eq!(number(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn texts_lose_their_escapes() {
        assert_eq!(text(b"a\\u000ab\xe9\\U0001f600").unwrap(), "a\nb\u{e9}\u{1f600}");
        assert_eq!(old_text(br#"'a\n\x80\'\\'"#).unwrap(), b"a\n\x80'\\");
        for line in [&b"\\u00"[..], b"\\ud800", b"\\uzzzz"] {
            assert_eq!(text(line), None);
        }
        for line in [&b"'"[..], b"'a", b"a", b"'\\'", b"'\\q'", b""] {
            assert_eq!(old_text(line), None);
        }
    }
}
