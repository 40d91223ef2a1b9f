//! Python literals. They are read like `ast.literal_eval`, and written like `repr`.
//!
//! The headers of npy files and the manifests of `.data` files are Python literals: text for
//! Python's own parser, without calls or names. This module reads every Python syntax for a value
//! (bases, underscores, prefixes, escapes, adjacent strings, comments, trailing commas), and never
//! evaluates code. Like Python's tokenizer, the parser stops at [`DEPTH_MAX`] brackets inside each
//! other.
//!
//! Three forms of Python are refused, because regrow cannot represent their values: lone surrogates
//! (`'\ud800'`), character names (`'\N{DASH}'`, which would need Unicode's table of names) and
//! decimal integers of more than [`DIGITS_MAX`] digits (Python refuses those too).
//!
//! Source: Python's reference, "Lexical analysis" and `ast.literal_eval`.

use crate::error::{Error, ErrorKind, Result};

mod number;
mod repr;
mod text;

pub use text::repr_str;

/// Largest number of nested brackets. Python's tokenizer has the same limit.
pub const DEPTH_MAX: usize = 200;

/// Largest number of digits of an integer. Python has this limit for decimal integers.
pub const DIGITS_MAX: usize = 4300;

/// A value that can be written as a Python literal.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `None`.
    None,
    /// `...`.
    Ellipsis,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of up to 128 bits.
    Int(i128),
    /// A larger integer, as decimal digits with an optional `-` in front.
    BigInt(String),
    /// A float.
    Float(f64),
    /// A complex number: real part, imaginary part.
    Complex(f64, f64),
    /// Text.
    Str(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tuple.
    Tuple(Vec<Literal>),
    /// A list.
    List(Vec<Literal>),
    /// A dict, as a list of its entries in order. A repeated key appears twice.
    Dict(Vec<(Literal, Literal)>),
    /// A set, as a list of its items in order.
    Set(Vec<Literal>),
}

/// Forms that are accepted in addition to those of `ast.literal_eval`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiteralOptions {
    /// The form `2L`, in which Python 2 printed long integers.
    pub python2_longs: bool,
    /// The form `np.int64(2)`, in which NumPy 2 prints its integers. The argument must be an
    /// integer in the range of the type.
    pub numpy_ints: bool,
}

/// Parses a whole text as one literal.
///
/// # Errors
/// `Corrupt` at the first byte that cannot belong to a literal; `Unsupported` for a text that
/// Python can read and `Literal` cannot represent; `Limit` for too many digits or brackets.
pub fn parse(text: &str, options: LiteralOptions) -> Result<Literal> {
    let mut parser = Parser { text, at: 0, depth: 0, options };
    if let Some(at) = text.find('\0') {
        return Err(Error::corrupt("a Python literal cannot contain NUL").at_byte(at as u64));
    }
    parser.skip_lines_before()?;
    let (first, _) = parser.expression()?;
    parser.skip();
    let value = match parser.peek() {
        // A tuple at the top needs no parentheses.
        Some(b',') => Literal::Tuple(parser.items_after(first, None)?),
        _ => first,
    };
    parser.finish()?;
    Ok(value)
}

impl Literal {
    /// The name of the value's type in Python, for errors.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Ellipsis => "ellipsis",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::BigInt(_) => "int",
            Self::Float(_) => "float",
            Self::Complex(..) => "complex",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::Tuple(_) => "tuple",
            Self::List(_) => "list",
            Self::Dict(_) => "dict",
            Self::Set(_) => "set",
        }
    }

    /// Whether Python accepts the value as a key or in a set.
    fn is_hashable(&self) -> bool {
        match self {
            Self::List(_) | Self::Dict(_) | Self::Set(_) => false,
            Self::Tuple(items) => items.iter().all(Self::is_hashable),
            _ => true,
        }
    }
}

/// The kind of an expression, which decides about signs and sums: Python accepts `-(1)`, but
/// neither `-(-1)` nor `-True`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Number,
    Signed,
    Other,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    options: LiteralOptions,
}

impl Parser<'_> {
    /// A number with an optional sign, a real number plus an imaginary one, or anything else.
    fn expression(&mut self) -> Result<(Literal, Class)> {
        let (left, class) = self.signed()?;
        self.skip();
        let Some(sign @ (b'+' | b'-')) = self.peek() else { return Ok((left, class)) };
        let sign_at = self.at;
        let malformed =
            || Error::corrupt("only a real and an imaginary number can be added").at_byte(sign_at as u64);
        if class == Class::Other {
            return Err(malformed());
        }
        self.at += 1;
        self.skip();
        let (right, Class::Number) = self.atom()? else { return Err(malformed()) };
        self.skip();
        if matches!(self.peek(), Some(b'+' | b'-')) {
            return Err(malformed());
        }
        let sum = number::real_plus_imaginary(&left, &right, sign == b'-').ok_or_else(malformed)?;
        Ok((sum, Class::Other))
    }

    fn signed(&mut self) -> Result<(Literal, Class)> {
        let Some(sign @ (b'+' | b'-')) = self.peek() else { return self.atom() };
        let sign_at = self.at;
        self.at += 1;
        self.skip();
        match self.atom()? {
            (value, Class::Number) if sign == b'+' => Ok((value, Class::Signed)),
            (value, Class::Number) => Ok((number::negated(value), Class::Signed)),
            _ => {
                Err(Error::corrupt("a sign is in front of a value that is not a number")
                    .at_byte(sign_at as u64))
            }
        }
    }

    fn atom(&mut self) -> Result<(Literal, Class)> {
        match self.peek() {
            Some(b'(') => self.parenthesis(),
            Some(b'[') => {
                self.open()?;
                let items = self.items(b']')?;
                Ok((Literal::List(items), Class::Other))
            }
            Some(b'{') => Ok((self.braces()?, Class::Other)),
            Some(b'.') if self.rest().starts_with(b"...") => {
                self.at += 3;
                Ok((Literal::Ellipsis, Class::Other))
            }
            Some(b'0'..=b'9' | b'.') => Ok((self.number()?, Class::Number)),
            _ if self.string_start().is_some() => Ok((self.strings()?, Class::Other)),
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => self.name(),
            _ => Err(self.unexpected("a value")),
        }
    }

    /// An empty tuple, a tuple, or a single expression in parentheses.
    fn parenthesis(&mut self) -> Result<(Literal, Class)> {
        self.open()?;
        if self.peek() == Some(b')') {
            self.close(b')')?;
            return Ok((Literal::Tuple(Vec::new()), Class::Other));
        }
        let (first, class) = self.expression()?;
        self.skip();
        if self.peek() == Some(b',') {
            return Ok((Literal::Tuple(self.items_after(first, Some(b')'))?), Class::Other));
        }
        self.close(b')')?;
        Ok((first, class))
    }

    fn braces(&mut self) -> Result<Literal> {
        self.open()?;
        if self.peek() == Some(b'}') {
            self.close(b'}')?;
            return Ok(Literal::Dict(Vec::new()));
        }
        let first = self.hashable()?;
        if self.peek() != Some(b':') {
            let mut items = vec![first];
            while self.comma(b'}')? {
                items.push(self.hashable()?);
            }
            return Ok(Literal::Set(items));
        }
        let mut entries = vec![(first, self.value_of_key()?)];
        while self.comma(b'}')? {
            let key = self.hashable()?;
            entries.push((key, self.value_of_key()?));
        }
        Ok(Literal::Dict(entries))
    }

    fn value_of_key(&mut self) -> Result<Literal> {
        if self.peek() != Some(b':') {
            return Err(self.unexpected("`:` after a key"));
        }
        self.at += 1;
        self.skip();
        let (value, _) = self.expression()?;
        self.skip();
        Ok(value)
    }

    fn hashable(&mut self) -> Result<Literal> {
        let start = self.at;
        let (key, _) = self.expression()?;
        if !key.is_hashable() {
            let what = format!("a {} cannot be a key or in a set", key.type_name());
            return Err(Error::corrupt(what).at_byte(start as u64));
        }
        self.skip();
        Ok(key)
    }

    /// The items up to the bracket `close`, which is also read.
    fn items(&mut self, close: u8) -> Result<Vec<Literal>> {
        if self.peek() == Some(close) {
            self.close(close)?;
            return Ok(Vec::new());
        }
        let (first, _) = self.expression()?;
        self.skip();
        self.items_after(first, Some(close))
    }

    /// All items, including `first`. Reads `close`, too. If `close` is `None`, the list ends where
    /// no comma follows, or after a comma at the end of a line.
    fn items_after(&mut self, first: Literal, close: Option<u8>) -> Result<Vec<Literal>> {
        let mut items = vec![first];
        loop {
            match close {
                Some(close) => {
                    if !self.comma(close)? {
                        return Ok(items);
                    }
                }
                None => {
                    if self.peek() != Some(b',') {
                        return Ok(items);
                    }
                    self.at += 1;
                    self.skip();
                    if matches!(self.peek(), None | Some(b'\n' | b'\r' | b'#')) {
                        return Ok(items);
                    }
                }
            }
            items.push(self.expression()?.0);
            self.skip();
        }
    }

    /// Whether another item follows. If not, reads `close`, with an optional comma before it.
    fn comma(&mut self, close: u8) -> Result<bool> {
        if self.peek() == Some(b',') {
            self.at += 1;
            self.skip();
            if self.peek() != Some(close) {
                return Ok(true);
            }
        }
        self.close(close)?;
        Ok(false)
    }

    fn open(&mut self) -> Result<()> {
        if self.depth == DEPTH_MAX {
            return Err(Error::new(ErrorKind::Limit, format!("more than {DEPTH_MAX} brackets are nested"))
                .at_byte(self.at as u64));
        }
        self.depth += 1;
        self.at += 1;
        self.skip();
        Ok(())
    }

    fn close(&mut self, close: u8) -> Result<()> {
        if self.peek() != Some(close) {
            return Err(self.unexpected(&format!("`,` or `{}`", char::from(close))));
        }
        self.depth -= 1;
        self.at += 1;
        Ok(())
    }

    /// `None`, `True`, `False` or `set()`. With the option, also `np.int64(2)`.
    fn name(&mut self) -> Result<(Literal, Class)> {
        let start = self.at;
        let len = self.rest().iter().take_while(|&&byte| is_name_byte(byte) || byte == b'.').count();
        let name = self.text.get(start..start + len).unwrap_or_default();
        self.at += len;
        let value = match name {
            "None" => Literal::None,
            "True" => Literal::Bool(true),
            "False" => Literal::Bool(false),
            "set" => {
                self.skip();
                if self.peek() != Some(b'(') {
                    return Err(self.unexpected("`()` after `set`"));
                }
                self.open()?;
                self.close(b')')?;
                Literal::Set(Vec::new())
            }
            _ => match name.strip_prefix("np.").and_then(number::numpy_int_range) {
                Some((low, high)) if self.options.numpy_ints => {
                    return self.numpy_int(name, low, high);
                }
                _ => {
                    return Err(Error::corrupt(format!("{name:?} is not a Python literal"))
                        .at_byte(start as u64)
                        .help("regrow never evaluates names and calls"));
                }
            },
        };
        Ok((value, Class::Other))
    }

    fn numpy_int(&mut self, name: &str, low: i128, high: i128) -> Result<(Literal, Class)> {
        let start = self.at;
        if self.peek() != Some(b'(') {
            return Err(self.unexpected("`(`"));
        }
        self.open()?;
        match self.signed()?.0 {
            Literal::Int(value) if (low..=high).contains(&value) => {
                self.skip();
                self.close(b')')?;
                Ok((Literal::Int(value), Class::Other))
            }
            other => Err(Error::corrupt(format!("{name} is not an integer in its range"))
                .at_byte(start as u64)
                .expected(format_args!("{low} to {high}"), other.repr())),
        }
    }

    /// Skips white space between two tokens, and a backslash before the end of a line. Between
    /// brackets also skips line ends and comments.
    fn skip(&mut self) {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\x0c') => self.at += 1,
                Some(b'\\') if matches!(self.byte(self.at + 1), Some(b'\n' | b'\r')) => {
                    self.at += 1;
                    self.end_of_line();
                }
                Some(b'\n' | b'\r' | b'#') if self.depth > 0 => self.rest_of_line(),
                _ => return,
            }
        }
    }

    /// Skips empty lines and comments before the literal. White space before the literal is an
    /// indent for Python, and an error, except on the first line.
    fn skip_lines_before(&mut self) -> Result<()> {
        let mut line = 0;
        loop {
            let line_start = self.at;
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\x0c')) {
                self.at += 1;
            }
            match self.peek() {
                Some(b'\n' | b'\r' | b'#') => self.rest_of_line(),
                // A backslash before a line end continues the line.
                Some(b'\\') if matches!(self.byte(self.at + 1), Some(b'\n' | b'\r')) => {
                    self.skip();
                    return Ok(());
                }
                Some(_) if line > 0 && self.at > line_start => return Err(self.unexpected("no indent")),
                _ => return Ok(()),
            }
            line += 1;
        }
    }

    /// Returns an error if anything except empty lines and comments is left.
    fn finish(&mut self) -> Result<()> {
        loop {
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\x0c')) {
                self.at += 1;
            }
            match self.peek() {
                None => return Ok(()),
                Some(b'\n' | b'\r' | b'#') => self.rest_of_line(),
                Some(_) => return Err(self.unexpected("the end of the literal")),
            }
        }
    }

    fn rest_of_line(&mut self) {
        self.at += self.rest().iter().take_while(|&&byte| !matches!(byte, b'\n' | b'\r')).count();
        self.end_of_line();
    }

    fn end_of_line(&mut self) {
        self.at += match self.rest() {
            [b'\r', b'\n', ..] => 2,
            [b'\r' | b'\n', ..] => 1,
            _ => 0,
        };
    }

    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn peek(&self) -> Option<u8> {
        self.byte(self.at)
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("{c:?}"),
            None => "the end of the text".to_owned(),
        };
        Error::corrupt("this is not a Python literal").at_byte(self.at as u64).expected(expected, found)
    }
}

/// Whether a byte can be part of a name. All bytes that are not ASCII count as letters.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests;
