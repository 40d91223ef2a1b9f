//! JSON as Python writes it: its spacing, its escapes, and its three numbers that JSON does not have.
//!
//! ```text
//! {"loss": NaN, "name": "\u4e2d"}        json.dumps(…): ", " and ": ", ASCII only, NaN and ±Infinity bare
//! ```
//!
//! Reading takes both this and strict JSON. A value that JSON cannot hold becomes a string: its plain name
//! ([`parse`]) or, where the caller wants the number back ([`parse_marked`]), its name behind a NUL.
//! Source: Python `json`, "Infinite and NaN number values".

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use crate::error::{Error, Result};

/// Parses a document; `NaN`, `Infinity` and `-Infinity` become strings of that text.
///
/// # Errors
/// `Corrupt` with the offset; the caller adds the file.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    parse_with(bytes, "")
}

/// As [`parse`], with a NUL in front of the strings that stand for numbers: see [`marked_number`].
pub fn parse_marked(bytes: &[u8]) -> Result<Value> {
    parse_with(bytes, "\\u0000")
}

/// The number that a string of [`parse_marked`] stands for.
pub fn marked_number(text: &str) -> Option<f64> {
    match text {
        "\0NaN" => Some(f64::NAN),
        "\0Infinity" => Some(f64::INFINITY),
        "\0-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Writes a document as `json.dumps` does.
///
/// # Errors
/// `InvalidArgument` if a map key is no string.
pub fn to_python_json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut out, PythonStyle));
    match written {
        Ok(()) => Ok(out),
        Err(error) => Err(Error::invalid(format!("a value cannot be said in JSON: {error}"))),
    }
}

/// Appends a text as `json.dumps` does.
pub(crate) fn push_python_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a text into a Vec has no way to fail.
        let _ = text.serialize(&mut Serializer::with_formatter(out, PythonStyle));
    }
}

/// Appends a text as strict JSON, what is not ASCII as it is.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing a text into a Vec has no way to fail.
        let _ = serde_json::to_writer(out, text);
    }
}

/// Whether JSON says a text as it is, in any style.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// Writes a document without any space, as TensorStore does.
///
/// # Errors
/// `InvalidArgument` if a map key is no string.
pub fn to_compact_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::invalid(format!("a value cannot be said in JSON: {error}")))
}

fn parse_with<T: DeserializeOwned>(bytes: &[u8], mark: &str) -> Result<T> {
    let first = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if let Some(quoted) = quote_numbers(bytes, mark) {
        return serde_json::from_slice(&quoted)
            .map_err(|error| Error::corrupt(format!("the JSON cannot be read: {error}")));
    }
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

/// Byte offset of a line and column as serde_json counts them (both from 1; line 0 if there is none).
fn offset_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let before: usize =
        bytes.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(bytes.len()) as u64
}

/// The document with Python's own numbers as strings; `None` if it holds none.
fn quote_numbers(bytes: &[u8], mark: &str) -> Option<Vec<u8>> {
    const NAMES: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    // Nothing is copied until there is a number: the document may be long.
    let (mut out, mut copied) = (Vec::new(), 0);
    let (mut at, mut in_string) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        let name = NAMES.iter().find(|name| !in_string && rest.starts_with(name));
        if let Some(name) = name {
            out.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
            out.push(b'"');
            out.extend_from_slice(mark.as_bytes());
            out.extend_from_slice(name);
            out.push(b'"');
            at += name.len();
            copied = at;
            continue;
        }
        // In a text, what follows a backslash is part of it.
        at += if in_string && byte == b'\\' { 2 } else { 1 };
        in_string ^= byte == b'"';
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    Some(out)
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
        assert_eq!(value, json!({"loss": "NaN", "x\"NaN": ["-Infinity", "Infinity"], "s": "NaN"}));
        let value = parse_marked(text).unwrap();
        assert!(marked_number(value["loss"].as_str().unwrap()).unwrap().is_nan());
        assert_eq!(marked_number(value["x\"NaN"][0].as_str().unwrap()), Some(f64::NEG_INFINITY));
        assert_eq!(marked_number(value["s"].as_str().unwrap()), None);
    }

    #[test]
    fn says_where_a_document_breaks() {
        let error = parse::<Value>(b"{\"a\": 1,\n \"b\"").unwrap_err();
        assert!(error.place().offset_bytes.unwrap() >= 11, "{error}");
        let error = parse::<Value>(&[0; 40]).unwrap_err();
        assert!(error.help_text().unwrap().contains("power cut"));
    }
}
