//! Key paths as JSON pointers, for records of objects.

use regrow_tree::tree::{Key, KeyPath};

/// A key path as text, distinct for every leaf of a tree: a JSON pointer, with `~2` before text
/// that would read as an integer.
pub fn pointer(path: &KeyPath) -> String {
    let mut out = String::new();
    for key in path.keys() {
        out.push('/');
        match key {
            Key::DictInt(number) => out.push_str(&number.to_string()),
            Key::Index(at) => out.push_str(&at.to_string()),
            Key::Dict(text) | Key::Attr(text) => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    out.push_str("~2");
                }
                out.push_str(&text.replace('~', "~0").replace('/', "~1"));
            }
        }
    }
    out
}
