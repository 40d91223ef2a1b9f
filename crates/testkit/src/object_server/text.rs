//! Percent escapes, globs, base64 and dates: the small text of the protocols.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Decodes `%XX` in a path segment or key. A `+` stays a plus.
pub(super) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high * 16 + low);
                    rest = after;
                }
                _ => bytes.push(b'%'),
            },
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Encodes a key for `encoding-type=url`: escapes all characters except unreserved ones and `/`.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            // A write to a string cannot fail.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// The pairs of a query string. A `+` means a space. A name without `=` has the empty value.
pub(super) fn query_pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(name), percent_decoded(&value.replace('+', "%20")))
        })
        .collect()
}

/// Whether `text` matches `pattern`. `*` matches any characters, including slashes, and `?` one
/// character. A pattern without both matches every text that contains it.
pub(super) fn glob_matches(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?']) {
        return text.contains(pattern);
    }
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut here) = (0, 0);
    // The position of the last star, and the position in the text up to which it matches.
    let mut star: Option<(usize, usize)> = None;
    while here < text.len() {
        match (pattern.get(at), star) {
            (Some('*'), _) => {
                star = Some((at, here));
                at += 1;
            }
            (Some(wanted), _) if *wanted == '?' || Some(wanted) == text.get(here) => {
                at += 1;
                here += 1;
            }
            (_, Some((star_at, reach))) => {
                star = Some((star_at, reach + 1));
                at = star_at + 1;
                here = reach + 1;
            }
            _ => return false,
        }
    }
    pattern.iter().skip(at).all(|left| *left == '*')
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let of = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = of(0) << 16 | of(1) << 8 | of(2);
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place)) & 0x3f;
            out.push(if place <= group.len() { char::from(BASE64[sextet as usize]) } else { '=' });
        }
    }
    out
}

/// A date in the form of lists: `2026-01-31T12:00:00.000Z`.
pub(super) fn iso_date(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days since 0000-03-01 of the proleptic Gregorian calendar, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let milli = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn escapes_come_back() {
        for text in ["a/params['w'].0/ü #1", "a/p%2Fq", "a b+c", "%", "100%zz"] {
            assert_eq!(percent_decoded(&percent_encoded(text)), text);
        }
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
        assert_eq!(
            query_pairs("uploads&a=b+c%2B"),
            [("uploads".into(), "".into()), ("a".into(), "b c+".into())]
        );
    }

    #[test]
    fn globs() {
        assert!(glob_matches("params", "a/params/w"));
        assert!(glob_matches("a/*/w?", "a/b/c/w0"));
        assert!(glob_matches("*", ""));
        assert!(!glob_matches("a/*", "b/a/c"));
        assert!(!glob_matches("*.json", "a.jsonl"));
        assert!(glob_matches("*aab", "aaaab"));
    }

    #[test]
    fn base64_of_the_rfc() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let coded = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(texts.map(|text| base64(text.as_bytes())), coded);
    }

    #[test]
    fn dates() {
        let at = |seconds, milli: u32| iso_date(UNIX_EPOCH + Duration::new(seconds, milli * 1_000_000));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_826_154, 7), "2000-02-29T12:09:14.007Z");
        assert_eq!(at(1_798_761_599, 999), "2026-12-31T23:59:59.999Z");
    }
}
