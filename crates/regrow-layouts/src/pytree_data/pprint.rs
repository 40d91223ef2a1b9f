//! Python's `pprint.pprint` for the values of a manifest: its line breaks at 80 columns.
//!
//! If the `repr` of a value fits into the line, it is on this line. Otherwise each item of a
//! container has its own line, indented by one more column, and text and bytes are divided into
//! literals on consecutive lines. Widths are counted in characters. Source: CPython
//! `Lib/pprint.py`, with its defaults.

use regrow_base::bytes::python_literal::{Literal, repr_str};

const WIDTH: usize = 80;

/// Bytes are cut at multiples of this.
const BYTES_STEP: usize = 4;

/// `value` as `pprint.pprint` prints it, with the newline at the end. The value is a container:
/// text alone would get parentheses.
pub(super) fn pprint(mut value: Literal) -> String {
    sort_keys(&mut value);
    let mut out = String::new();
    format(&value, 0, 0, &mut out);
    out.push('\n');
    out
}

/// Puts the keys of all dicts in order, also of those that fit on a line.
fn sort_keys(value: &mut Literal) {
    match value {
        Literal::List(items) | Literal::Tuple(items) => items.iter_mut().for_each(sort_keys),
        Literal::Dict(entries) => {
            entries.iter_mut().for_each(|(_, value)| sort_keys(value));
            entries.sort_by(|(a, _), (b, _)| match (a, b) {
                (Literal::Str(a), Literal::Str(b)) => a.cmp(b),
                // The manifest's dicts have keys of text only.
                _ => std::cmp::Ordering::Equal,
            });
        }
        _ => {}
    }
}

/// Writes `value` at `column`. After the last line, `tail` more characters must fit.
fn format(value: &Literal, column: usize, tail: usize, out: &mut String) {
    let room = WIDTH.saturating_sub(column + tail);
    if let Some(repr) = repr_within(value, room) {
        out.push_str(&repr);
        return;
    }
    match value {
        Literal::List(items) => {
            out.push('[');
            format_items(items, column + 1, tail + 1, out);
            out.push(']');
        }
        Literal::Tuple(items) => {
            let close = if items.len() == 1 { ",)" } else { ")" };
            out.push('(');
            format_items(items, column + 1, tail + close.len(), out);
            out.push_str(close);
        }
        Literal::Dict(entries) => format_dict(entries, column + 1, tail + 1, out),
        Literal::Str(text) => write_pieces(&text_pieces(text, column, tail), column, out),
        Literal::Bytes(bytes) => write_pieces(&bytes_pieces(bytes, column, tail), column, out),
        other => out.push_str(&other.repr()),
    }
}

fn format_items(items: &[Literal], column: usize, last_tail: usize, out: &mut String) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            next_line(column, out);
        }
        let tail = if at + 1 == items.len() { last_tail } else { 1 };
        format(item, column, tail, out);
    }
}

fn format_dict(entries: &[(Literal, Literal)], column: usize, last_tail: usize, out: &mut String) {
    out.push('{');
    for (at, (key, value)) in entries.iter().enumerate() {
        if at > 0 {
            next_line(column, out);
        }
        let key = key.repr();
        out.push_str(&key);
        out.push_str(": ");
        let tail = if at + 1 == entries.len() { last_tail } else { 1 };
        format(value, column + key.chars().count() + 2, tail, out);
    }
    out.push('}');
}

fn next_line(column: usize, out: &mut String) {
    out.push(',');
    new_line(column, out);
}

fn new_line(column: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', column));
}

fn write_pieces(pieces: &[String], column: usize, out: &mut String) {
    for (at, piece) in pieces.iter().enumerate() {
        if at > 0 {
            new_line(column, out);
        }
        out.push_str(piece);
    }
}

/// The `repr`, if it has at most `room` characters. A value that is certainly too long is not
/// printed.
fn repr_within(value: &Literal, room: usize) -> Option<String> {
    let at_least = match value {
        // An item has at least one character, and `, ` stands between two items.
        Literal::List(items) | Literal::Tuple(items) | Literal::Set(items) => items.len().saturating_mul(3),
        Literal::Dict(entries) => entries.len().saturating_mul(6),
        Literal::Str(text) => text.len() / 4 + 2,
        Literal::Bytes(bytes) => bytes.len() + 3,
        _ => 0,
    };
    let repr = (at_least <= room + 2).then(|| value.repr())?;
    (repr.chars().count() <= room).then_some(repr)
}

/// The literals that a text is cut into: one for each line. A line that is too long is cut further,
/// into literals of as many words as fit.
fn text_pieces(text: &str, column: usize, tail: usize) -> Vec<String> {
    let width = WIDTH.saturating_sub(column);
    let fits = |text: &str, is_last: bool| {
        let room = if is_last { width.saturating_sub(tail) } else { width };
        repr_str(text).chars().count() <= room
    };
    let lines = split_lines(text);
    let mut pieces = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_last_line = at + 1 == lines.len();
        if fits(line, is_last_line) {
            pieces.push(repr_str(line));
            continue;
        }
        let words = split_words(line);
        // The gathered words of the line: its bytes from `start` to `end`.
        let (mut start, mut end) = (0, 0);
        for (at, word) in words.iter().enumerate() {
            let candidate = line.get(start..end + word.len()).unwrap_or_default();
            if !fits(candidate, is_last_line && at + 1 == words.len()) {
                pieces.extend(line.get(start..end).filter(|piece| !piece.is_empty()).map(repr_str));
                start = end;
            }
            end += word.len();
        }
        pieces.extend(line.get(start..end).filter(|piece| !piece.is_empty()).map(repr_str));
    }
    match pieces.is_empty() {
        true => vec![repr_str(text)],
        false => pieces,
    }
}

/// `str.splitlines(keepends=True)`.
fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let (mut start, mut chars) = (0, text.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        let ends = match c {
            '\r' => {
                let _ = chars.next_if(|&(_, next)| next == '\n');
                true
            }
            '\n' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}' => true,
            _ => false,
        };
        if ends {
            let end = chars.peek().map_or(text.len(), |&(next, _)| next);
            debug_assert!(end > at);
            lines.extend(text.get(start..end));
            start = end;
        }
    }
    lines.extend(text.get(start..).filter(|rest| !rest.is_empty()));
    lines
}

/// Words, each with the white space behind it.
fn split_words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut in_space) = (0, false);
    for (at, c) in line.char_indices() {
        let space = is_space(c);
        if in_space && !space {
            words.extend(line.get(start..at));
            start = at;
        }
        in_space = space;
    }
    words.extend(line.get(start..).filter(|rest| !rest.is_empty()));
    words
}

/// `str.isspace`: Unicode's white space and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Cuts long bytes into several literals on separate lines, as Python's `pprint` does.
fn bytes_pieces(bytes: &[u8], column: usize, tail: usize) -> Vec<String> {
    let repr =
        |start: usize, end: usize| Literal::Bytes(bytes.get(start..end).unwrap_or_default().to_vec()).repr();
    if bytes.len() <= BYTES_STEP {
        return vec![repr(0, bytes.len())];
    }
    let mut width = WIDTH.saturating_sub(column);
    let last = bytes.len() / BYTES_STEP * BYTES_STEP;
    let mut pieces = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < bytes.len() {
        if end == last {
            width = width.saturating_sub(tail);
        }
        let next = (end + BYTES_STEP).min(bytes.len());
        if repr(start, next).len() > width {
            if start < end {
                pieces.push(repr(start, end));
            }
            start = end;
        }
        end = next;
    }
    pieces.push(repr(start, end));
    pieces
}

#[cfg(test)]
mod tests;
