//! Python's `repr` of strings and of tuples of strings.

use std::fmt::{self, Write as _};

use super::json_text::push_python_text;
use regrow_base::text::is_printable_in_python;

/// Appends Python's `repr` of a string, as it stands inside a JSON string.
pub(super) fn push_repr_in_json(out: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'"' | b'\\')) {
        out.push(b'\'');
        out.extend_from_slice(text.as_bytes());
        out.push(b'\'');
        return;
    }
    let mut repr = String::new();
    push_repr(&mut repr, text);
    let mut quoted = Vec::new();
    push_python_text(&mut quoted, &repr);
    out.extend_from_slice(quoted.get(1..quoted.len() - 1).unwrap_or_default());
}

/// Python's `repr` of a tuple of strings: `()`, `('a',)`, `('a', 'b')`.
pub fn tuple_repr<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::from("(");
    let mut count = 0;
    for key in keys {
        if count > 0 {
            out.push_str(", ");
        }
        push_repr(&mut out, key);
        count += 1;
    }
    if count == 1 {
        out.push(',');
    }
    out.push(')');
    out
}

/// Appends Python's `repr` of a string. A string with single quotes and without double quotes is in
/// double quotes; any other string is in single quotes. Unprintable characters become escapes.
fn push_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to a String cannot fail.
        let _: fmt::Result = match c {
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            _ if c == quote => write!(out, "\\{c}"),
            ' '..='~' => out.write_char(c),
            _ if is_printable_in_python(c) => out.write_char(c),
            _ if code <= 0xff => write!(out, "\\x{code:02x}"),
            _ if code <= 0xffff => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_python_does() {
        for (keys, repr) in [
            (&[][..], "()"),
            (&["a"], "('a',)"),
            (&["a", "0"], "('a', '0')"),
            (&["it's"], "(\"it's\",)"),
            (&["'\""], "('\\'\"',)"),
            (&["\n\t\r\\\u{7f}\u{1b}"], "('\\n\\t\\r\\\\\\x7f\\x1b',)"),
            (&["中é\u{301}"], "('中é\u{301}',)"),
            (&["\u{a0}\u{200b}\u{e000}\u{10ffff}"], "('\\xa0\\u200b\\ue000\\U0010ffff',)"),
            (&["\u{301}"], "('\u{301}',)"),
        ] {
            assert_eq!(tuple_repr(keys.iter().copied()), repr);
        }
    }
}
