//! A check of a long document during the read, so that a file of another kind is refused before the
//! whole file is in memory.
//!
//! A metadata file is read as a whole, and may have any length: a sparse file of a gigabyte is easy
//! to make. So a long file is read in pieces, and each piece passes a [`Glance`]. The check knows
//! the last token, and little more of the grammar:
//!
//! ```text
//! {"a": [1, 2   NUL          no document has one
//! {"a": [1, 2   1 1 1        JSON: a value follows a value
//! {"a": 1}      {            JSON: the text goes on after the end of the value
//! {"a":         more than RUN_MAX_BYTES spaces, digits or commas in a row
//! ```
//!
//! A file that passes may still not be a document. Then its parser reports this, after it has read
//! the whole file.

use crate::bytes::limits::TREE_DEPTH_MAX;
use crate::error::{Error, Result};

/// Longest sequence of spaces, of separators, or of characters of one number or word. Real files
/// have less than a tenth of that.
const RUN_MAX_BYTES: u64 = 4 << 20;

/// The language of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// JSON, including the numbers that Python adds to it.
    Json,
    /// A Python literal.
    Python,
    /// Any text.
    Text,
}

/// The kind of a byte outside of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,
    Word,
    Separator,
    Open,
    Close,
    Quote,
}

/// The kind of the last token, apart from spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Opening,
    Separator,
    Word,
    Value,
}

/// Checks the pieces of one document, in order.
#[derive(Debug)]
pub struct Glance {
    language: Language,
    at: u64,
    /// The closing quote of the current text; `None` outside of texts.
    quote: Option<u8>,
    is_escaped: bool,
    is_comment: bool,
    depth: usize,
    run: (Class, u64),
    before: Before,
}

impl Glance {
    /// Starts at the beginning of a document.
    pub fn new(language: Language) -> Self {
        Self {
            language,
            at: 0,
            quote: None,
            is_escaped: false,
            is_comment: false,
            depth: 0,
            run: (Class::Open, 0),
            before: Before::Nothing,
        }
    }

    /// Checks the next piece.
    ///
    /// # Errors
    /// `Corrupt`, with the offset, if no document of the language can begin like this.
    pub fn look(&mut self, piece: &[u8]) -> Result<()> {
        if self.language == Language::Text {
            let nul = piece.iter().position(|&byte| byte == 0);
            self.at += nul.unwrap_or(piece.len()) as u64;
            return nul.map_or(Ok(()), |_| Err(self.holds_zeros()));
        }
        for &byte in piece {
            if byte == 0 {
                return Err(self.holds_zeros());
            }
            if let Some(what) = self.step(byte) {
                return Err(Error::corrupt(format!("the document cannot be read: {what}")).at_byte(self.at));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn holds_zeros(&self) -> Error {
        Error::corrupt("the document cannot be read: it contains a zero byte").at_byte(self.at).help(
            "zeros come from a power cut or an interrupted copy: copy the file again, or restore an earlier step",
        )
    }

    fn step(&mut self, byte: u8) -> Option<&'static str> {
        if self.is_comment {
            self.is_comment = byte != b'\n';
            return None;
        }
        if let Some(quote) = self.quote {
            return self.step_in_text(byte, quote);
        }
        if byte == b'#' && self.language == Language::Python {
            self.is_comment = true;
            return None;
        }
        let Some(class) = self.class_of(byte) else { return Some("it holds bytes that are no JSON") };
        self.run = if self.run.0 == class { (class, self.run.1 + 1) } else { (class, 1) };
        let is_repeated = matches!(class, Class::Space | Class::Word | Class::Separator);
        if is_repeated && self.run.1 > RUN_MAX_BYTES {
            return Some("too much of it is spaces, or one number without end");
        }
        if class == Class::Space {
            // A space ends a number, so the next digits begin another one.
            if self.before == Before::Word {
                self.before = Before::Value;
            }
            return None;
        }
        if let Some(what) = self.misplaced(class) {
            return Some(what);
        }
        self.follow(class, byte);
        None
    }

    fn step_in_text(&mut self, byte: u8, quote: u8) -> Option<&'static str> {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            _ if byte == quote => self.quote = None,
            _ if byte < b' ' && self.language == Language::Json => {
                return Some("a text holds a control character");
            }
            _ => {}
        }
        None
    }

    /// The class of a byte outside of texts and comments; `None` if the language has no such byte.
    fn class_of(&self, byte: u8) -> Option<Class> {
        Some(match (byte, self.language) {
            (b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', _) => Class::Space,
            (b'{' | b'[', _) | (b'(', Language::Python) => Class::Open,
            (b'}' | b']', _) | (b')', Language::Python) => Class::Close,
            (b',' | b':', _) => Class::Separator,
            (b'"', _) | (b'\'', Language::Python) => Class::Quote,
            (b'!'..=b'~', _) | (_, Language::Python) => Class::Word,
            _ => return None,
        })
    }

    /// The error if this class must not follow the previous one, apart from spaces; `None` if it
    /// may.
    fn misplaced(&self, class: Class) -> Option<&'static str> {
        if self.language == Language::Json
            && let Some(what) = self.misplaced_in_json(class)
        {
            return Some(what);
        }
        match class {
            Class::Close if self.depth == 0 => Some("a bracket is closed that was not opened"),
            Class::Open if self.depth == TREE_DEPTH_MAX => Some("it is nested too deeply"),
            _ => None,
        }
    }

    fn misplaced_in_json(&self, class: Class) -> Option<&'static str> {
        let after_value = matches!(self.before, Before::Value | Before::Word);
        let is_of_word = class == Class::Word && self.before == Before::Word;
        if self.depth == 0 && after_value && !is_of_word {
            return Some("it goes on after its end");
        }
        match class {
            Class::Open | Class::Quote if after_value => Some("a value follows a value"),
            Class::Word if self.before == Before::Value => Some("a value follows a value"),
            Class::Separator if !after_value => Some("a value is missing"),
            Class::Close if self.before == Before::Separator => Some("a value is missing"),
            _ => None,
        }
    }

    fn follow(&mut self, class: Class, byte: u8) {
        self.before = match class {
            Class::Open => {
                self.depth += 1;
                Before::Opening
            }
            Class::Close => {
                self.depth -= 1;
                Before::Value
            }
            Class::Quote => {
                self.quote = Some(byte);
                Before::Value
            }
            Class::Separator => Before::Separator,
            Class::Word | Class::Space => Before::Word,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn look(language: Language, bytes: &[u8], piece_len: usize) -> Result<()> {
        let mut glance = Glance::new(language);
        bytes.chunks(piece_len).try_for_each(|piece| glance.look(piece))
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::vec((any::<String>(), inner), 0..5)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn all_valid_json_passes(value in value(), piece_len in 1..40_usize) {
            for text in [serde_json::to_vec(&value).unwrap(), serde_json::to_vec_pretty(&value).unwrap()] {
                prop_assert!(look(Language::Json, &text, piece_len).is_ok());
                let around = [b" \n\t", &text[..], b"\r\n "].concat();
                prop_assert!(look(Language::Json, &around, piece_len).is_ok());
            }
        }

        #[test]
        fn what_does_not_pass_is_no_json(bytes in prop::collection::vec(
            prop::sample::select(&b"[]{},:\" 1a\\\n\0\xc3"[..]), 0..12)
        ) {
            if look(Language::Json, &bytes, 5).is_err() {
                prop_assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_err(), "{:?}", bytes);
            }
        }
    }

    #[test]
    fn what_never_becomes_a_document_ends_early() {
        for (start, byte) in [
            ("", 0),
            ("{\"a\": [1, ", 0),
            ("{\"a", 0),
            ("{\"a\": [1, ", b' '),
            ("{\"a\": [1, ", b'1'),
            ("{\"a\": [1, ", b'['),
            ("{\"a\": [1, ", b','),
            ("{\"a\": 1}", b' '),
            ("{\"a\": 1}", b'}'),
            ("", b' '),
        ] {
            let bytes = [start.as_bytes(), &vec![byte; 5 << 20]].concat();
            for language in [Language::Json, Language::Python] {
                if (language, byte) == (Language::Python, b'}') {
                    continue;
                }
                let error = look(language, &bytes, 1 << 20).unwrap_err();
                let at = error.place().offset_bytes.unwrap();
                assert!(at <= 20 + RUN_MAX_BYTES, "{language:?} {start} {byte}: {error}");
            }
        }
        assert_eq!(look(Language::Text, b"a: 1\n\0", 3).unwrap_err().place().offset_bytes, Some(5));
    }

    #[test]
    fn pythons_numbers_and_literals_pass() {
        assert!(look(Language::Json, b"{\"a\": [NaN, -Infinity, 1e5]}\n", 4).is_ok());
        let literal = b"# made by hand\n[{'path': ('it\\'s', \"x\", 1), 'shape': (), b'a' 'b': -1.5e3,}, ]";
        assert!(look(Language::Python, literal, 3).is_ok());
        assert!(look(Language::Python, "['é中']".as_bytes(), 2).is_ok());
    }
}
