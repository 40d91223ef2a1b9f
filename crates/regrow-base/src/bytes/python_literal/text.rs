//! Text and bytes: from tokens to values, and Python's `repr` of them.

use std::fmt::Write as _;

use super::{Literal, Parser};
use crate::error::{Error, Result};
use crate::text::is_printable_in_python;

/// The meaning of the letters before a quote.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefix {
    len: usize,
    is_raw: bool,
    is_bytes: bool,
    is_formatted: bool,
}

impl Parser<'_> {
    /// The prefix of a string that begins here; `None` if no string begins here.
    pub(super) fn string_start(&self) -> Option<Prefix> {
        let rest = self.rest();
        let len = rest.iter().take(3).position(|byte| matches!(byte, b'\'' | b'"'))?;
        let mut letters = rest.get(..len)?.to_ascii_lowercase();
        letters.sort_unstable();
        let (is_raw, is_bytes, is_formatted) = match letters.as_slice() {
            b"" | b"u" => (false, false, false),
            b"r" => (true, false, false),
            b"b" => (false, true, false),
            b"br" => (true, true, false),
            b"f" | b"fr" | b"t" | b"rt" => (false, false, true),
            _ => return None,
        };
        Some(Prefix { len, is_raw, is_bytes, is_formatted })
    }

    /// Reads one string or several adjacent ones, which Python joins to one value.
    pub(super) fn strings(&mut self) -> Result<Literal> {
        let mut text = String::new();
        let mut bytes = Vec::new();
        let mut is_bytes = None;
        while let Some(prefix) = self.string_start() {
            let start = self.at;
            if prefix.is_formatted {
                return Err(Error::corrupt("a formatted string is no literal").at_byte(start as u64));
            }
            if *is_bytes.get_or_insert(prefix.is_bytes) != prefix.is_bytes {
                return Err(Error::corrupt("text and bytes stand beside each other").at_byte(start as u64));
            }
            self.at += prefix.len;
            match prefix.is_bytes {
                true => self.bytes_token(prefix, &mut bytes)?,
                false => self.text_token(prefix, &mut text)?,
            }
            self.skip();
        }
        Ok(if is_bytes == Some(true) { Literal::Bytes(bytes) } else { Literal::Str(text) })
    }

    fn text_token(&mut self, prefix: Prefix, out: &mut String) -> Result<()> {
        let start = self.at;
        let quote = self.quote();
        while let Some(c) = self.next_char(quote, start)? {
            if c != '\\' {
                out.push(c);
                continue;
            }
            let escape = self.at - 1;
            let next = self.char_after_backslash(start)?;
            if prefix.is_raw {
                out.push('\\');
                out.push(next.unwrap_or('\n'));
                continue;
            }
            let Some(next) = next else { continue };
            match next {
                'x' => out.push(self.code_point(2, escape)?),
                'u' => out.push(self.code_point(4, escape)?),
                'U' => out.push(self.code_point(8, escape)?),
                'N' => {
                    return Err(Error::unsupported("characters by name (`\\N{..}`) are not read")
                        .at_byte(escape as u64)
                        .help("write the character itself, or its number as `\\uXXXX`"));
                }
                _ => match self.simple_escape(next) {
                    Some(value) => out.extend(char::from_u32(value)),
                    // Python keeps an unknown escape as it is.
                    None => out.extend(['\\', next]),
                },
            }
        }
        Ok(())
    }

    fn bytes_token(&mut self, prefix: Prefix, out: &mut Vec<u8>) -> Result<()> {
        let start = self.at;
        let quote = self.quote();
        let only_ascii = |at: usize| Error::corrupt("bytes are written in ASCII").at_byte(at as u64);
        while let Some(c) = self.next_char(quote, start)? {
            let byte = u8::try_from(c)
                .ok()
                .filter(u8::is_ascii)
                .ok_or_else(|| only_ascii(self.at - c.len_utf8()))?;
            if byte != b'\\' {
                out.push(byte);
                continue;
            }
            let escape = self.at - 1;
            let next = self.char_after_backslash(start)?;
            if prefix.is_raw {
                out.push(b'\\');
            }
            let Some(next) = next else {
                if prefix.is_raw {
                    out.push(b'\n');
                }
                continue;
            };
            let next_byte = u8::try_from(next)
                .ok()
                .filter(u8::is_ascii)
                .ok_or_else(|| only_ascii(self.at - next.len_utf8()))?;
            if prefix.is_raw {
                out.push(next_byte);
                continue;
            }
            match next {
                'x' => out.push(self.hex(2, escape)? as u8),
                _ => match self.simple_escape(next) {
                    Some(value) => out.push((value & 0xff) as u8),
                    None => out.extend([b'\\', next_byte]),
                },
            }
        }
        Ok(())
    }

    /// Reads the opening quote. Returns the quote, and whether it is a triple quote.
    fn quote(&mut self) -> (u8, bool) {
        let quote = self.peek().unwrap_or(b'\'');
        let is_triple = self.rest().starts_with(&[quote; 3]);
        self.at += if is_triple { 3 } else { 1 };
        (quote, is_triple)
    }

    /// Reads the next character of a string; `None` after the closing quote. Every kind of line end
    /// becomes `\n`.
    fn next_char(&mut self, (quote, is_triple): (u8, bool), start: usize) -> Result<Option<char>> {
        if is_triple && self.rest().starts_with(&[quote; 3]) {
            self.at += 3;
            return Ok(None);
        }
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(c) if !is_triple && c == char::from(quote) => {
                self.at += 1;
                Ok(None)
            }
            Some('\n' | '\r') if is_triple => {
                self.end_of_line();
                Ok(Some('\n'))
            }
            Some('\n' | '\r') | None => Err(unterminated(start)),
            Some(c) => {
                self.at += c.len_utf8();
                Ok(Some(c))
            }
        }
    }

    /// Reads the character after a backslash; `None` for the end of a line.
    fn char_after_backslash(&mut self, start: usize) -> Result<Option<char>> {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => Err(unterminated(start)),
            Some('\n' | '\r') => {
                self.end_of_line();
                Ok(None)
            }
            Some(c) => {
                self.at += c.len_utf8();
                Ok(Some(c))
            }
        }
    }

    /// The value of an escape such as `\n`, `\\` or `\012`; `None` if it is not an escape.
    fn simple_escape(&mut self, after_backslash: char) -> Option<u32> {
        Some(match after_backslash {
            '\\' | '\'' | '"' => u32::from(after_backslash),
            'a' => 7,
            'b' => 8,
            't' => 9,
            'n' => 10,
            'v' => 11,
            'f' => 12,
            'r' => 13,
            '0'..='7' => {
                let mut value = u32::from(after_backslash) - u32::from('0');
                for _ in 0..2 {
                    let Some(digit @ b'0'..=b'7') = self.peek() else { break };
                    value = value * 8 + u32::from(digit - b'0');
                    self.at += 1;
                }
                value
            }
            _ => return None,
        })
    }

    fn hex(&mut self, len: usize, escape: usize) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + len);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += len;
        value.ok_or_else(|| {
            Error::corrupt(format!("an escape has fewer than {len} hexadecimal digits"))
                .at_byte(escape as u64)
        })
    }

    fn code_point(&mut self, len: usize, escape: usize) -> Result<char> {
        let value = self.hex(len, escape)?;
        char::from_u32(value).ok_or_else(|| {
            match value {
                0xd800..=0xdfff => {
                    Error::unsupported(format!("text with the lone surrogate U+{value:04X} is not read"))
                }
                _ => Error::corrupt(format!("there is no character of number {value:#x}")),
            }
            .at_byte(escape as u64)
        })
    }
}

fn unterminated(start: usize) -> Error {
    Error::corrupt("a string is not closed").at_byte(start as u64)
}

/// Python's `repr` of a str.
///
/// Characters that Python cannot print (`str.isprintable`) are escaped. regrow asks Rust's standard
/// library for them. Its table has the same Unicode categories, but perhaps of another Unicode
/// version.
pub fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            _ if is_printable_in_python(c) => out.push(c),
            _ => {
                let number = u32::from(c);
                let _ = match number {
                    0..=0xff => write!(out, "\\x{number:02x}"),
                    0x100..=0xffff => write!(out, "\\u{number:04x}"),
                    _ => write!(out, "\\U{number:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

pub(super) fn repr_bytes(bytes: &[u8]) -> String {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { b'"' } else { b'\'' };
    let mut out = String::with_capacity(bytes.len() + 3);
    out.push('b');
    out.push(char::from(quote));
    for &byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            _ if byte == quote => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push(char::from(quote));
    out
}
