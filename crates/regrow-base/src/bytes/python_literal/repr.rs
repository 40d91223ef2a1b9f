//! Writes a literal like Python's `repr`.

use std::fmt::Write as _;

use super::text::{repr_bytes, repr_str};
use super::{Literal, number};

impl Literal {
    /// Python's `repr` of the value, on one line.
    pub fn repr(&self) -> String {
        let mut out = String::new();
        self.write_repr(&mut out);
        out
    }

    fn write_repr(&self, out: &mut String) {
        match self {
            Self::None => out.push_str("None"),
            Self::Ellipsis => out.push_str("Ellipsis"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(value) => {
                let _ = write!(out, "{value}");
            }
            Self::BigInt(digits) => out.push_str(digits),
            Self::Float(value) => out.push_str(&number::repr_float(*value)),
            Self::Complex(re, im) => out.push_str(&number::repr_complex(*re, *im)),
            Self::Str(value) => out.push_str(&repr_str(value)),
            Self::Bytes(value) => out.push_str(&repr_bytes(value)),
            Self::Tuple(items) => {
                let close = if items.len() == 1 { ",)" } else { ")" };
                write_items(out, "(", items, close);
            }
            Self::List(items) => write_items(out, "[", items, "]"),
            Self::Set(items) if items.is_empty() => out.push_str("set()"),
            Self::Set(items) => write_items(out, "{", items, "}"),
            Self::Dict(entries) => {
                out.push('{');
                for (i, (key, value)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    key.write_repr(out);
                    out.push_str(": ");
                    value.write_repr(out);
                }
                out.push('}');
            }
        }
    }
}

fn write_items(out: &mut String, open: &str, items: &[Literal], close: &str) {
    out.push_str(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        item.write_repr(out);
    }
    out.push_str(close);
}
