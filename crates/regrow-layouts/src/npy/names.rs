//! Names of members and files: from key paths, and back to keys.
//!
//! A member of an archive can have any name, so its name is the keys joined by a separator. A file
//! cannot have every name: bytes that a file system does not allow are written as `%XX`.
//!
//! ```text
//! params / a/b / .npy   ->   params/a%2Fb/%2Enpy.npy
//! ```

use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::tree::KeyPath;

pub(crate) const SUFFIX: &str = ".npy";

/// The name of a pytree that is one leaf: NumPy's name for an array without a name.
pub(super) const ROOT_NAME: &str = "arr_0";

const FILE_NAME_LEN_MAX_BYTES: usize = 255;

/// The name of a member, without the suffix.
///
/// # Errors
/// `Unsupported` for a NUL, at which Python's zipfile would truncate the name.
pub(super) fn member_name(path: &KeyPath, separator: &str) -> Result<String> {
    if path.is_root() {
        return Ok(ROOT_NAME.to_owned());
    }
    let name = path.join(separator);
    if name.contains('\0') {
        return Err(Error::unsupported("a name in an archive cannot contain NUL").help("rename the key"));
    }
    if name.len() + SUFFIX.len() > usize::from(u16::MAX) {
        return Err(Error::unsupported("the key path is too long for an archive"));
    }
    Ok(name)
}

/// The name of a file below the folder, without the suffix: a folder for each key but the last.
///
/// # Errors
/// `Unsupported` for a key that is too long for the name of a file.
pub(super) fn file_name(path: &KeyPath) -> Result<String> {
    if path.is_root() {
        return Ok(ROOT_NAME.to_owned());
    }
    let parts: Vec<String> = path.keys().iter().map(|key| escaped(&key.text())).collect();
    let longest = parts.iter().map(String::len).max().unwrap_or(0);
    if longest + SUFFIX.len() > FILE_NAME_LEN_MAX_BYTES {
        return Err(Error::unsupported("a key is too long for the name of a file")
            .expected(format_args!("at most {} bytes", FILE_NAME_LEN_MAX_BYTES - SUFFIX.len()), longest)
            .help("save it as one .npz file, which allows longer names"));
    }
    Ok(parts.join("/"))
}

/// A key as the name of a file or folder. Different keys get different names.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    // File names cannot be empty. A name with a dot at the start is hidden, or is `..`. A folder
    // `x.npy` would look like a file.
    if key.is_empty() {
        return "%".to_owned();
    }
    let last_dot = key.len() - SUFFIX.len().min(key.len());
    let ends_like_a_file = key.to_ascii_lowercase().ends_with(SUFFIX);
    for (at, c) in key.char_indices() {
        let is_dot_to_hide = c == '.' && (at == 0 || ends_like_a_file && at == last_dot);
        if is_dot_to_hide || matches!(c, '/' | '%') || c.is_control() {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The key of a file or folder with this name. A `%` without a valid escape stays as it is.
pub(super) fn unescaped(name: &str) -> String {
    if name == "%" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                bytes.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

pub(super) fn collision(name: &str, other: &KeyPath) -> Error {
    Error::new(ErrorKind::NameCollision, format!("its name {name:?} is also that of {other}"))
        .help("rename one of the keys")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regrow_tree::tree::Key;

    #[test]
    fn names_of_files() {
        let path = |keys: &[&str]| KeyPath::from_iter(keys.iter().map(|key| Key::dict(*key)));
        assert_eq!(file_name(&path(&["params", "a/b", ".npy"])).unwrap(), "params/a%2Fb/%2Enpy");
        assert_eq!(file_name(&path(&["x.NPY", "", ".."])).unwrap(), "x%2ENPY/%/%2E.");
        assert_eq!(file_name(&KeyPath::root()).unwrap(), ROOT_NAME);
        assert!(file_name(&path(&[&"a".repeat(251)])).is_ok());
        assert!(file_name(&path(&[&"a".repeat(252)])).is_err());
        assert!(member_name(&path(&["a\0"]), "/").is_err());
        assert_eq!(unescaped("50%"), "50%");
    }

    proptest! {
        #[test]
        fn escapes_come_back(key: String) {
            let name = escaped(&key);
            prop_assert!(!name.is_empty() && !name.starts_with('.') && !name.contains('/') && !name.contains('\0'));
            prop_assert!(!name.to_ascii_lowercase().ends_with(SUFFIX));
            prop_assert_eq!(unescaped(&name), key);
        }
    }
}
