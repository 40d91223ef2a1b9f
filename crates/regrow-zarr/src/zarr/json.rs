//! The JSON of zarr documents: read strictly, written the way TensorStore writes it.
//!
//! Reading differs from plain `serde_json` in two ways: a repeated member is refused (readers
//! disagree on which one counts), and [`Members`] records the members that were not read. Writing
//! is compact, members are sorted by name, and floats look like `0.0`, `1.5`, `1e+20`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::bytes::limits::ZARR_DOCUMENT_LEN_MAX_BYTES;
use crate::error::{Error, ErrorKind, Result};

/// The start of the message about a repeated member. The name follows.
const REPEATED: &str = "a JSON member is given twice: ";

/// Parses a document.
///
/// # Errors
/// `Limit` for a document that is too long, `Corrupt` for one that is not JSON, `Unsupported` for a
/// member given twice.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    if bytes.len() > ZARR_DOCUMENT_LEN_MAX_BYTES {
        return Err(Error::new(ErrorKind::Limit, "the metadata document of a zarr array is too long")
            .expected(format_args!("at most {ZARR_DOCUMENT_LEN_MAX_BYTES} bytes"), bytes.len()));
    }
    match serde_json::from_slice::<Strict>(bytes) {
        Ok(Strict(value)) => Ok(value),
        Err(error) => {
            let text = error.to_string();
            Err(match text.strip_prefix(REPEATED) {
                Some(name) => Error::unsupported(format!("{REPEATED}{name}")),
                None => Error::corrupt(format!("the metadata of a zarr array is not JSON: {text}")),
            })
        }
    }
}

/// A JSON value without repeated members.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(Value::String(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Strict(Value::Array(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Strict, A::Error> {
        let mut map = Map::new();
        while let Some((name, Strict(value))) = members.next_entry::<String, Strict>()? {
            if map.contains_key(&name) {
                return Err(serde::de::Error::custom(format_args!("{REPEATED}{name:?}")));
            }
            map.insert(name, value);
        }
        Ok(Strict(Value::Object(map)))
    }
}

/// The members of one JSON object, taken out one by one.
pub struct Members {
    map: Map<String, Value>,
    /// What the object is, for errors: `the codec "zstd"`.
    what: String,
}

impl Members {
    /// The members of `value`, which must be an object.
    pub fn of(value: Value, what: impl Into<String>) -> Result<Self> {
        let what = what.into();
        match value {
            Value::Object(map) => Ok(Self { map, what }),
            other => {
                Err(Error::corrupt(format!("{what} is not a JSON object"))
                    .expected("an object", brief(&other)))
            }
        }
    }

    /// Takes a member out; `None` if it is missing.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name)
    }

    /// Takes out a required member.
    pub fn required(&mut self, name: &str) -> Result<Value> {
        self.take(name).ok_or_else(|| Error::corrupt(format!("{} lacks the member {name:?}", self.what)))
    }

    /// Takes out a required text.
    pub fn required_text(&mut self, name: &str) -> Result<String> {
        match self.required(name)? {
            Value::String(text) => Ok(text),
            other => Err(self.bad(name, "a string", &other)),
        }
    }

    /// Takes out an integer; `default` if it is missing.
    pub fn integer(&mut self, name: &str, default: i64) -> Result<i64> {
        let Some(value) = self.take(name) else { return Ok(default) };
        integer(&value)
            .and_then(|n| i64::try_from(n).ok())
            .ok_or_else(|| self.bad(name, "an integer of 64 bits", &value))
    }

    /// Takes out a bool; `default` if it is missing.
    pub fn boolean(&mut self, name: &str, default: bool) -> Result<bool> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(self.bad(name, "true or false", &other)),
        }
    }

    /// Takes out a required list of integers from `min` to 2^63-1.
    pub fn dims(&mut self, name: &str, min: u64) -> Result<Vec<u64>> {
        let value = self.required(name)?;
        let list = value.as_array().and_then(|items| {
            let dim = |item| integer(item).filter(|&n| n >= min.into() && n <= i64::MAX.into());
            items
                .iter()
                .map(|item| dim(item).and_then(|n| u64::try_from(n).ok()))
                .collect::<Option<Vec<u64>>>()
        });
        list.ok_or_else(|| self.bad(name, &format!("a list of integers of at least {min}"), &value))
    }

    /// Returns an error if there are unread members.
    pub fn finish(self) -> Result<()> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::unsupported(format!("{} has an unknown member {name:?}", self.what))),
        }
    }

    /// Takes out all remaining members.
    pub fn take_rest(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.map)
    }

    /// An error of kind `Corrupt` about a member.
    pub fn bad(&self, name: &str, expected: &str, found: &Value) -> Error {
        Error::corrupt(format!("the member {name:?} of {} is not valid", self.what))
            .expected(expected, brief(found))
    }
}

/// The integer value of a JSON number; `None` for a fraction. `4.0` counts as 4, as in TensorStore.
pub fn integer(value: &Value) -> Option<i128> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it a float no longer says which integer it is
    let number = value.as_number()?;
    if let Some(n) = number.as_i128() {
        return Some(n);
    }
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i128)
}

/// The beginning of a value, for errors.
pub fn brief(value: &Value) -> String {
    const LEN_MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LEN_MAX_CHARS) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

/// Writes a document: compact, members sorted.
pub fn write(value: &Value) -> Vec<u8> {
    let mut out = String::new();
    write_value(value, &mut out);
    out.into_bytes()
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by_key(|(name, _)| name.as_str());
            write_list(out, '{', '}', members, |(name, value), out| {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_value(value, out);
            });
        }
        Value::Array(items) => write_list(out, '[', ']', items, write_value),
        Value::Number(number) if number.is_f64() => write_float(number.as_f64().unwrap_or_default(), out),
        other => out.push_str(&other.to_string()),
    }
}

fn write_list<T>(
    out: &mut String,
    open: char,
    close: char,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T, &mut String),
) {
    out.push(open);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(close);
}

/// Writes the shortest digits that restore the float, always with a fraction or an exponent: plain
/// from 1e-4 on and below 1e15, otherwise scientific with a sign and at least two digits in the
/// exponent.
fn write_float(value: f64, out: &mut String) {
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..15).contains(&exponent) || value == 0.0 {
        let plain = value.to_string();
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_look_as_tensorstore_writes_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.5, "1.5"),
            (f64::from(0.1_f32), "0.10000000149011612"),
            (f64::from(1e20_f32), "1.0000000200408773e+20"),
            (f64::from(1e-7_f32), "1.0000000116860974e-07"),
            (1_234_567.5, "1234567.5"),
            (1e14, "100000000000000.0"),
            (1e15, "1e+15"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.234_567_890_123_456_8e17, "1.2345678901234568e+17"),
            (-1e300, "-1e+300"),
        ] {
            assert_eq!(String::from_utf8(write(&serde_json::json!(value))).unwrap(), text);
        }
    }

    #[test]
    fn members_come_out_sorted_and_once() {
        let value = parse(b" {\"b\" : [1, 2.0, null], \"a\" : {\"d\":true,\"c\":\"x\\n\"}} ").unwrap();
        assert_eq!(write(&value), b"{\"a\":{\"c\":\"x\\n\",\"d\":true},\"b\":[1,2.0,null]}");
        let error = parse(br#"{"a":1,"b":{"shape":1,"shape":2}}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.what().contains("\"shape\""), "{error}");
    }

    #[test]
    fn refuses_what_is_too_long_too_deep_or_no_json() {
        let long = vec![b' '; ZARR_DOCUMENT_LEN_MAX_BYTES + 1];
        assert_eq!(parse(&long).unwrap_err().kind(), ErrorKind::Limit);
        let deep = vec![b'['; 100_000];
        for bytes in [&deep[..], b"", b"{", b"{}x", b"\xff", b"{\"a\":1e999}"] {
            assert_eq!(parse(bytes).unwrap_err().kind(), ErrorKind::Corrupt, "{bytes:?}");
        }
    }

    #[test]
    fn integers_are_exact() {
        for (text, value) in [
            ("4.0", Some(4)),
            ("4.5", None),
            ("18446744073709551615", Some(i128::from(u64::MAX))),
            ("-9223372036854775808", Some(i128::from(i64::MIN))),
            ("1e30", None),
            ("\"4\"", None),
            ("true", None),
        ] {
            assert_eq!(integer(&parse(text.as_bytes()).unwrap()), value, "{text}");
        }
    }
}
