//! Text for people: names from files without control characters, and numbers with their nouns.
//!
//! A file may name a leaf `kernel<U+202E>`, and a terminal then prints the rest of the line from
//! right to left. So every text that comes from a file or a path passes [`printable`] or
//! [`printable_lines`] on its way to a person. Programs get the text itself: `--json` writes it
//! with JSON's own escapes.
//!
//! ```
//! use regrow_base::text::{counted, printable};
//! assert_eq!(printable("a\u{202e}b\n"), r"a\u{202e}b\n");
//! assert_eq!(counted(1, "leaf", "leaves"), "1 leaf");
//! ```

use std::borrow::Cow;
use std::fmt;

/// Whether a character can be printed as it is: it is not in Unicode's categories Cc, Cf, Cn, Co,
/// Cs, Zl and Zp, and is not a letter without a shape.
///
/// Spaces of any width and combining marks are printed, because names in many scripts need them.
pub fn is_printable(c: char) -> bool {
    let is_line_end = matches!(c, '\u{2028}' | '\u{2029}');
    let is_space = c.is_whitespace() && !c.is_control() && !is_line_end;
    // Unicode counts these four fillers as letters, but they print as blanks.
    let is_filler = matches!(c, '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}');
    is_space || is_printable_in_python(c) && !is_filler
}

/// Python's `str.isprintable`: the character is a space, or is not in Unicode's categories Cc, Cf,
/// Cn, Co, Cs, Zl, Zp and Zs.
pub fn is_printable_in_python(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // `str::escape_debug` escapes these characters, and marks that would join the character before
    // them. The letter `x` prevents the second case.
    let mut text = [b'x'; 5];
    let end = 1 + c.len_utf8();
    if let Some(rest) = text.get_mut(1..) {
        c.encode_utf8(rest);
    }
    let text = text.get(..end).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
    text.escape_debug().nth(1) == Some(c)
}

/// The text with all characters that are not [printable](is_printable) as escapes: `\n`,
/// `\u{202e}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable)
}

/// The same as [`printable`], for a text of several lines: line feeds stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || is_printable(c))
}

fn escaped(text: &str, is_shown: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Most text is plain ASCII, and bytes are faster to check than characters.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || text.chars().all(&is_shown) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_shown(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    Cow::Owned(out)
}

/// Longest text that [`brief`] returns unchanged, in characters.
const BRIEF_LEN_MAX_CHARS: usize = 400;

/// The text, or the beginning and the length of a very long text. Keys can have any length, but
/// messages must be short.
pub fn brief(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(BRIEF_LEN_MAX_CHARS) {
        Some((at, _)) => {
            let len = text.chars().count();
            Cow::Owned(format!("{}... ({len} characters)", text.get(..at).unwrap_or_default()))
        }
        None => Cow::Borrowed(text),
    }
}

/// A number with its noun: `1 leaf`, `2 leaves`.
pub fn counted(count: impl TryInto<u64> + fmt::Display, one: &str, many: &str) -> String {
    let text = format!("{count} {many}");
    if matches!(count.try_into(), Ok(1)) { format!("1 {one}") } else { text }
}

/// A length with a unit for people: `512 B`, `1.5 MiB`.
pub fn format_bytes(len_bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = len_bytes as f64;
    let mut name = "B";
    for unit in UNITS {
        // 1023.95 would round to 1024.0 in print.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        name = unit;
    }
    if name == "B" { format!("{len_bytes} B") } else { format!("{value:.1} {name}") }
}

/// A report shows a speed only for at least this many bytes.
const SPEED_MIN_BYTES: u64 = 1 << 20;

/// A time for people: `1.250 s`, `4.2 ms`.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 0.1 => format!("{seconds:.3} s"),
        _ if seconds >= 0.000_05 => format!("{:.1} ms", seconds * 1e3),
        _ => "<0.1 ms".to_owned(),
    }
}

/// A speed for people: `2.15 GB/s`; `None` for few bytes, because their speed means nothing.
pub fn format_speed(bytes: u64, gb_per_s: f64) -> Option<String> {
    (bytes >= SPEED_MIN_BYTES && gb_per_s > 0.0).then(|| format!("{gb_per_s:.2} GB/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_speeds_read_well() {
        let times = [12.5, 0.1, 0.0999, 0.000_05, 0.0].map(format_seconds);
        assert_eq!(times, ["12.500 s", "0.100 s", "99.9 ms", "0.1 ms", "<0.1 ms"]);
        assert_eq!(format_speed(1 << 20, 2.153).as_deref(), Some("2.15 GB/s"));
        assert_eq!(format_speed((1 << 20) - 1, 2.153), None);
        assert_eq!(format_speed(1 << 20, 0.0), None);
    }

    #[test]
    fn sizes_read_well() {
        let sizes = [0, 1023, 1024, 1536, 1_048_575, 1_048_576, u64::MAX].map(format_bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "16.0 EiB"]);
    }

    #[test]
    fn what_steers_or_hides_is_escaped() {
        for c in "\0\t\n\u{1b}\u{7f}\u{85}\u{9f}\u{ad}\u{61c}\u{180e}\u{200b}\u{200e}\u{2028}\u{2029}\u{202e}\u{2060}\
                  \u{2066}\u{2069}\u{3164}\u{e000}\u{feff}\u{fff9}\u{ffff}\u{e0001}\u{e007f}\u{10ffff}"
            .chars()
        {
            assert!(!is_printable(c), "{c:?}");
            assert_eq!(printable(&c.to_string()), c.escape_default().to_string());
        }
        for text in [
            "a b~",
            "é",
            "e\u{301}",
            "\u{301}",
            "中文",
            "नमस्ते",
            "שלום",
            "🎉",
            "a\u{a0}b\u{3000}c",
            "\\n",
            "'\"",
        ] {
            assert!(matches!(printable(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(printable("a\nb\u{202e}"), "a\\nb\\u{202e}");
        assert_eq!(printable_lines("a\nb\u{202e}"), "a\nb\\u{202e}");
    }

    #[test]
    fn long_texts_become_brief() {
        assert!(matches!(brief(&"é".repeat(400)), Cow::Borrowed(_)));
        assert_eq!(brief(&"é".repeat(401)), format!("{}... (401 characters)", "é".repeat(400)));
    }

    #[test]
    fn one_is_one() {
        let texts = [0, 1, 2].map(|count| counted(count, "leaf", "leaves"));
        assert_eq!(texts, ["0 leaves", "1 leaf", "2 leaves"]);
    }
}
