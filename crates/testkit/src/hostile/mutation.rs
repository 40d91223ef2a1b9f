//! Changes to files: changes of bytes like a fuzzer's, and changes that use the structure of
//! documents.

use super::Files;

const CHANGES_MAX: usize = 8;

/// Longest file and largest number of files after changes: tests need wrong numbers, not many
/// bytes.
const FILE_LEN_MAX_BYTES: usize = 1 << 20;
const FILES_MAX: usize = 64;

/// Numbers that parsers often handle wrongly.
const NUMBERS: [&str; 18] = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "255",
    "256",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "0.5",
];

/// Texts that parsers often handle wrongly.
const TEXTS: [&str; 16] = [
    "",
    ".",
    "..",
    "../../x",
    "/etc/hostname",
    "a/../b",
    "a//b",
    "\\u0000",
    "..\\\\x",
    "null",
    "float32",
    "bfloat16",
    "object",
    "%2e%2e",
    "c/0/0",
    "\\ud800",
];

/// Replacements for one value of a document.
const VALUES: [&str; 8] = ["null", "true", "[]", "{}", "[[]]", "\"\"", "None", "()"];

/// The remaining choices.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first)
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        let number = match end {
            0..=256 => self.byte(),
            257..=65536 => self.byte() << 8 | self.byte(),
            _ => self.byte() << 16 | self.byte() << 8 | self.byte(),
        };
        number.checked_rem(end).unwrap_or(0)
    }

    fn of<'t, T: ?Sized>(&mut self, all: &[&'t T], otherwise: &'t T) -> &'t T {
        let at = self.below(all.len());
        all.get(at).copied().unwrap_or(otherwise)
    }

    /// An offset in the bytes. Half of the offsets are near the beginning, where headers are.
    fn place(&mut self, len: usize) -> usize {
        let near = if self.byte() & 1 == 0 { len.min(512) } else { len };
        self.below(near)
    }
}

/// Changes the files according to the choices.
pub fn mutate(files: &mut Files, choices: &[u8]) {
    let mut choices = Choices(choices);
    for _ in 0..CHANGES_MAX {
        if choices.0.is_empty() || files.is_empty() {
            return;
        }
        let names: Vec<String> = files.keys().cloned().collect();
        let pick = |choices: &mut Choices<'_>| {
            let at = choices.below(names.len());
            names.get(at).cloned().unwrap_or_default()
        };
        let kind = choices.byte() % 24;
        let name = pick(&mut choices);
        match kind {
            0 => drop(files.remove(&name)),
            1 => {
                let other = pick(&mut choices);
                let (ours, theirs) = (files.get(&name).cloned(), files.get(&other).cloned());
                files.extend(ours.map(|bytes| (other, bytes)));
                files.extend(theirs.map(|bytes| (name, bytes)));
            }
            2 if files.len() < FILES_MAX => {
                let copy = match choices.byte() % 3 {
                    0 => pick(&mut choices),
                    1 => format!("{name}.copy"),
                    _ => match name.rsplit_once('/') {
                        Some((folder, _)) => format!("{folder}/x{}", choices.byte() % 4),
                        None => format!("x{}", choices.byte() % 4),
                    },
                };
                let bytes = files.get(&name).cloned();
                // A disk cannot have a file with the name of a folder, or a file below another
                // file.
                let is_possible = !files.keys().any(|known| {
                    known.starts_with(&format!("{copy}/")) || copy.starts_with(&format!("{known}/"))
                });
                files.extend(bytes.filter(|_| is_possible).map(|bytes| (copy, bytes)));
            }
            3 => {
                let other = files.get(&pick(&mut choices)).cloned().unwrap_or_default();
                let Some(bytes) = files.get_mut(&name) else { continue };
                splice(bytes, &other, &mut choices);
            }
            _ => {
                let Some(bytes) = files.get_mut(&name) else { continue };
                match kind {
                    4..=6 => set_bytes(bytes, &mut choices),
                    7..=9 => set_number(bytes, &mut choices),
                    10..=14 => write_number(bytes, &mut choices),
                    15..=17 => write_text(bytes, &mut choices),
                    18 | 19 => write_value(bytes, &mut choices),
                    20 => {
                        let at = choices.place(bytes.len());
                        bytes.truncate(at);
                    }
                    21 => {
                        let own = bytes.clone();
                        splice(bytes, &own, &mut choices);
                    }
                    22 => nest(bytes, &mut choices),
                    _ => {
                        let (at, len) = (choices.place(bytes.len()), 1 << (choices.byte() % 12));
                        bytes.drain(at..(at + len).min(bytes.len()));
                    }
                }
            }
        }
        files.values_mut().for_each(|bytes| bytes.truncate(FILE_LEN_MAX_BYTES));
    }
}

fn set_bytes(bytes: &mut [u8], choices: &mut Choices<'_>) {
    let (at, value) = (choices.place(bytes.len()), choices.byte() as u8);
    let is_flip = choices.byte() & 1 == 0;
    if let Some(byte) = bytes.get_mut(at) {
        *byte = if is_flip { *byte ^ 1 << (value % 8) } else { value };
    }
}

/// Writes a number of one to eight bytes, as binary files have them.
fn set_number(bytes: &mut [u8], choices: &mut Choices<'_>) {
    let at = choices.place(bytes.len());
    let len = 1 << (choices.byte() % 4);
    let value: u64 = match choices.byte() % 8 {
        0 => 0,
        1 => u64::MAX,
        2 => i64::MAX as u64,
        3 => 1 << (choices.byte() % 64),
        4 => choices.byte() as u64,
        5 => u64::MAX - choices.byte() as u64,
        6 => bytes.len() as u64,
        _ => i32::MAX as u64 + choices.byte() as u64,
    };
    let number = if choices.byte() & 1 == 0 {
        value.to_le_bytes()
    } else {
        value.rotate_right(8 * len as u32).to_be_bytes()
    };
    for (to, from) in bytes.iter_mut().skip(at).take(len).zip(number) {
        *to = from;
    }
}

/// Chooses a sequence of bytes of the same class, and replaces it by a text.
fn write_over(bytes: &mut Vec<u8>, choices: &mut Choices<'_>, of: impl Fn(u8) -> bool, text: &str) {
    let from = choices.place(bytes.len());
    let Some(start) =
        (from..bytes.len()).chain(0..from).find(|&at| bytes.get(at).is_some_and(|&byte| of(byte)))
    else {
        return;
    };
    let len = bytes.iter().skip(start).take_while(|&&byte| of(byte)).count();
    bytes.splice(start..start + len, text.bytes());
}

fn write_number(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let text = choices.of(&NUMBERS, "0");
    write_over(bytes, choices, |byte| byte.is_ascii_digit(), text);
}

fn write_text(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let long = "x".repeat(300);
    let text = match choices.byte() % 20 {
        19 => &*long,
        at => TEXTS.get(at).copied().unwrap_or_default(),
    };
    write_over(bytes, choices, |byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte), text);
}

/// Replaces the text between two commas, brackets or colons.
fn write_value(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let text = choices.of(&VALUES, "null");
    write_over(bytes, choices, |byte| !b",:[]{}()".contains(&byte), text);
}

/// Inserts a part of other bytes, or overwrites bytes with it.
fn splice(bytes: &mut Vec<u8>, other: &[u8], choices: &mut Choices<'_>) {
    let (from, to) = (choices.place(other.len()), choices.place(bytes.len()));
    let len = 1 << (choices.byte() % 12);
    let part = other.get(from..(from + len).min(other.len())).unwrap_or_default();
    let over = if choices.byte() & 1 == 0 { 0 } else { part.len() };
    let times = if choices.byte().is_multiple_of(16) { 64 } else { 1 };
    bytes.splice(to..(to + over).min(bytes.len()), part.repeat(times));
}

/// Inserts many nested brackets, or container markers of msgpack and pickles.
fn nest(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let at = choices.place(bytes.len());
    let open: &[u8] = choices.of(&[b"[", b"{\"a\":", b"(", b"\x91", b"\x81\xa1a", b"\x28", b"]("], b"[");
    let count = 1 << (choices.byte() % 16);
    bytes.splice(at..at, open.repeat(count));
}

#[cfg(test)]
mod tests {
    use super::super::choices;
    use super::*;

    #[test]
    fn the_same_choices_make_the_same_changes_and_most_make_one() {
        let files: Files = [
            ("a".to_owned(), b"{\"n\": [12, 7], \"name\": \"x/y\"}".to_vec()),
            ("d/b".to_owned(), vec![7; 900]),
        ]
        .into();
        let mut changed = 0;
        for seed in 0..500 {
            let mut found = [files.clone(), files.clone()];
            found.iter_mut().for_each(|files| mutate(files, &choices(seed, 24)));
            assert_eq!(found[0], found[1]);
            assert!(found[0].values().all(|bytes| bytes.len() <= FILE_LEN_MAX_BYTES));
            changed += usize::from(found[0] != files);
        }
        assert!(changed > 450, "{changed}");
    }
}
