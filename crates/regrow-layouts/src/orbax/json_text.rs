//! JSON in Python's form: its spacing, its escapes, and three numbers that JSON does not have.
//!
//! ```text
//! {"loss": NaN, "name": "\u4e2d"}        json.dumps(…): ", " and ": ", ASCII only, NaN and ±Infinity bare
//! ```
//!
//! `parse` reads this form and strict JSON. [`Value`] cannot hold these three numbers, nor integers
//! beyond 64 bits. `parse` turns such a number into a *marked* string: a NUL and the text of the
//! number. Writing turns a marked string back into the number, so that every digit stays. Source:
//! Python `json`, "Infinite and NaN number values".

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use regrow_base::error::{Error, Result};

/// The longest number that is kept digit for digit; Python reads no longer integers, either.
const NUMBER_LEN_MAX_BYTES: usize = 4300;

/// Parses a document.
///
/// # Errors
/// `Corrupt` with the offset; the caller adds the file.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let marked = mark(bytes);
    let first = match serde_json::from_slice(marked.as_deref().unwrap_or(bytes)) {
        Ok(value) => return Ok(value),
        Err(error) if marked.is_some() => {
            return Err(Error::corrupt(format!("the JSON cannot be read: {error}")));
        }
        Err(error) => error,
    };
    let mut error = Error::corrupt(format!("the JSON cannot be read: {first}")).at_byte(offset_of(
        bytes,
        first.line(),
        first.column(),
    ));
    if bytes.iter().all(|&byte| byte == 0) {
        error = error.help(
            "the file is empty or all zeros, as after a power cut: Orbax does not sync its JSON files; restore an earlier step",
        );
    } else {
        error = error.help("the file was cut short or damaged: copy it again, or restore an earlier step");
    }
    Err(error)
}

/// A string of a parsed document: a text, or a marked number.
#[derive(Debug, PartialEq)]
pub(crate) enum Marked<'a> {
    Text(&'a str),
    Float(f64),
    /// An integer beyond 64 bits, in decimal.
    Int(&'a str),
}

impl<'a> Marked<'a> {
    pub fn of(text: &'a str) -> Self {
        match text.strip_prefix('\0') {
            None => Self::Text(text),
            Some("NaN") => Self::Float(f64::NAN),
            Some("Infinity") => Self::Float(f64::INFINITY),
            Some("-Infinity") => Self::Float(f64::NEG_INFINITY),
            Some(digits) if is_beyond_value(digits.as_bytes()) => Self::Int(digits),
            Some(_) => Self::Text(text),
        }
    }
}

/// A value as a float; `None` for a value that is not a number.
pub fn number(value: &Value) -> Option<f64> {
    match value.as_str().map(Marked::of) {
        Some(Marked::Float(number)) => Some(number),
        Some(Marked::Int(digits)) => digits.parse().ok(),
        Some(Marked::Text(_)) => None,
        None => value.as_f64(),
    }
}

/// Writes a document without spaces. Numbers that strict JSON lacks have Python's form.
pub fn to_text(value: &Value) -> String {
    let text = value.to_string();
    unmark(text.as_bytes()).map_or(text, |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes a document as `json.dumps` does.
///
/// # Errors
/// `InvalidArgument` if a map key is not a string.
pub fn to_python_json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, PythonStyle));
    match written {
        Ok(()) => Ok(unmark(&out).unwrap_or(out)),
        Err(error) => Err(Error::invalid(format!("a value has no JSON form: {error}"))),
    }
}

/// Appends a text as `json.dumps` does.
pub(crate) fn push_python_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a text into a Vec cannot fail.
        let _ = text.serialize(&mut Serializer::with_formatter(out, PythonStyle));
    }
}

/// Appends a text as strict JSON. Characters beyond ASCII stay as they are.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a text into a Vec cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}

/// Whether a text needs no escapes in any style of JSON.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// Writes a document without any space, as TensorStore does.
///
/// # Errors
/// `InvalidArgument` if a map key is not a string.
pub fn to_compact_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::invalid(format!("a value has no JSON form: {error}")))
}

/// Byte offset of a line and column as serde_json counts them (both from 1; line 0 if there is
/// none).
fn offset_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let before: usize =
        bytes.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(bytes.len()) as u64
}

/// The first bytes of a marked string.
const MARK: &[u8] = b"\"\\u0000";

/// The document with marked strings instead of numbers that a [`Value`] cannot hold; `None` if it
/// has no such number.
fn mark(bytes: &[u8]) -> Option<Vec<u8>> {
    rewrite(bytes, |piece| is_beyond_value(piece).then(|| [MARK, piece, b"\""].concat()))
}

fn unmark(bytes: &[u8]) -> Option<Vec<u8>> {
    rewrite(bytes, |piece| {
        let number = piece.strip_prefix(MARK)?.strip_suffix(b"\"")?;
        is_beyond_value(number).then(|| number.to_vec())
    })
}

/// The document after `change` on each of its strings and words; `None` if nothing changes.
fn rewrite(bytes: &[u8], change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    // Nothing is copied until something changes: the document may be long.
    let (mut out, mut copied, mut at) = (Vec::new(), 0, 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let piece = rest.get(..piece_len(rest)).unwrap_or(rest);
        if let Some(changed) = change(piece) {
            out.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
            out.extend_from_slice(&changed);
            copied = at + piece.len();
        }
        at += piece.len();
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    Some(out)
}

/// The length of the string, the word or the other byte at the beginning.
fn piece_len(bytes: &[u8]) -> usize {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
    if bytes.first() != Some(&b'"') {
        return bytes.iter().take_while(|byte| is_word(byte)).count().max(1);
    }
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            // The character after a backslash is part of the text.
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Whether a word is a number that a [`Value`] cannot hold exactly.
fn is_beyond_value(word: &[u8]) -> bool {
    if matches!(word, b"NaN" | b"Infinity" | b"-Infinity") {
        return true;
    }
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    let is_integer = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let is_long =
        is_integer && (19..=NUMBER_LEN_MAX_BYTES).contains(&digits.len()) && !digits.starts_with(b"0");
    let text = std::str::from_utf8(word).unwrap_or_default();
    is_long && text.parse::<i64>().is_err() && text.parse::<u64>().is_err()
}

/// `json.dumps` with its defaults: `ensure_ascii=True`, separators `", "` and `": "`.
struct PythonStyle;

impl Formatter for PythonStyle {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        for c in text.chars() {
            if matches!(c, ' '..='~') {
                out.write_all(&[c as u8])?;
            } else {
                let mut units = [0_u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        match escape {
            CharEscape::Quote => out.write_all(b"\\\""),
            CharEscape::ReverseSolidus => out.write_all(b"\\\\"),
            CharEscape::Solidus => out.write_all(b"/"),
            CharEscape::Backspace => out.write_all(b"\\b"),
            CharEscape::FormFeed => out.write_all(b"\\f"),
            CharEscape::LineFeed => out.write_all(b"\\n"),
            CharEscape::CarriageReturn => out.write_all(b"\\r"),
            CharEscape::Tab => out.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(out, "\\u{byte:04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn writes_as_python_does() {
        let value = json!({"a": [1, 2.5, null], "中\u{1F600}\u{7f}": "q\"\n\u{1}"});
        assert_eq!(
            String::from_utf8(to_python_json(&value).unwrap()).unwrap(),
            r#"{"a": [1, 2.5, null], "\u4e2d\ud83d\ude00\u007f": "q\"\n\u0001"}"#
        );
    }

    #[test]
    fn reads_the_numbers_json_does_not_have() {
        let text = br#"{"loss": NaN, "x\"NaN": [-Infinity, Infinity], "s": "NaN"}"#;
        let value: Value = parse(text).unwrap();
        assert!(matches!(Marked::of(value["loss"].as_str().unwrap()), Marked::Float(x) if x.is_nan()));
        assert_eq!(Marked::of(value["x\"NaN"][0].as_str().unwrap()), Marked::Float(f64::NEG_INFINITY));
        assert_eq!(Marked::of(value["s"].as_str().unwrap()), Marked::Text("NaN"));
        assert_eq!(to_python_json(&value).unwrap(), text);
    }

    #[test]
    fn integers_of_any_length_come_back_to_the_digit() {
        let long = "9".repeat(400);
        for digits in [
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "-9223372036854775809",
            "340282366920938463463374607431768211456",
            &long,
        ] {
            let text = format!("{{\"a\": [{digits}, \"{digits}\", 0.5], \"{digits}\": -1}}");
            let value: Value = parse(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(to_python_json(&value).unwrap()).unwrap(), text);
            assert_eq!(to_text(&value), text.replace(": ", ":").replace(", ", ","));
            // Strict JSON keeps the marked value.
            let kept: Value = serde_json::from_str(&value.to_string()).unwrap();
            assert_eq!(to_text(&kept), to_text(&value));
        }
    }

    #[test]
    fn says_where_a_document_breaks() {
        let error = parse::<Value>(b"{\"a\": 1,\n \"b\"").unwrap_err();
        assert!(error.place().offset_bytes.unwrap() >= 11, "{error}");
        let error = parse::<Value>(&[0; 40]).unwrap_err();
        assert!(error.help_text().unwrap().contains("power cut"));
    }
}
