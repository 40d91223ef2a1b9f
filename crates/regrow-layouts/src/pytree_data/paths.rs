//! The path of an array: Python literals in the manifest, keys in a pytree.

use regrow_base::bytes::python_literal::Literal;
use regrow_base::error::Error;
use regrow_tree::tree::{Key, KeyPath};

/// The key for a literal of a path. A literal that a [`Key`] cannot hold becomes the text of its
/// `repr`.
pub(super) fn key_of(literal: &Literal) -> Key {
    match literal {
        Literal::Str(text) => Key::dict(text.as_str()),
        Literal::Int(number) => match i64::try_from(*number) {
            Ok(number) => Key::DictInt(number),
            Err(_) => Key::dict(number.to_string()),
        },
        other => Key::dict(other.repr()),
    }
}

/// The literals of a key path, which the original library loads as keys.
pub(super) fn literals_of(path: &KeyPath) -> Vec<Literal> {
    let literal = |key: &Key| match key {
        Key::Dict(text) | Key::Attr(text) => Literal::Str(text.to_string()),
        Key::DictInt(number) => Literal::Int((*number).into()),
        Key::Index(at) => Literal::Int(*at as i128),
    };
    path.keys().iter().map(literal).collect()
}

/// A text that is equal for keys that Python considers equal: `1`, `True`, `1.0` and `1+0j`.
pub(super) fn identity(key: &Literal) -> String {
    match key {
        Literal::Bool(value) => u8::from(*value).to_string(),
        Literal::Float(value) if value.fract() == 0.0 => {
            let digits = format!("{value:.0}");
            if digits == "-0" { "0".to_owned() } else { digits }
        }
        Literal::Complex(re, im) if *im == 0.0 => identity(&Literal::Float(*re)),
        Literal::Tuple(keys) => format!("({})", keys.iter().map(identity).collect::<Vec<_>>().join(",")),
        other => other.repr(),
    }
}

/// A path as a Python tuple, which is the leaf's stored name and its name in errors.
pub(super) fn path_text(path: &[Literal]) -> String {
    Literal::Tuple(path.to_vec()).repr()
}

pub(super) fn about(error: Error, path: &[Literal]) -> Error {
    error.at_leaf(&KeyPath::from_iter(path.iter().map(key_of)))
}
