//! Names of dtypes, in both directions: a file has only NumPy's `dtype.name`.
//!
//! | name | here |
//! |---|---|
//! | those of [`Dtype`] | that dtype |
//! | `float128`, `complex256`, `datetime64[ns]`, `timedelta64`, `complex32`, `bcomplex32`, `int1`, `uint1` | [`Elements::Other`] |
//! | `str96`, `bytes40`, `void24`: text, bytes, void and records; the number is the bits of an element | the same, read only: Flax writes them and cannot read them |
//!
//! Flax writes no other names (such as `>f4`, `i2,i2`, `object`).

use regrow_tree::array::Dtype;

/// Extended floats, by name and by NumPy's code.
const EXTENDED: [(&str, &str, u64); 2] = [("float128", "<f16", 16), ("complex256", "<c32", 32)];

/// Dtypes of ml_dtypes that `Dtype` lacks. NumPy knows them by their names alone.
const NAMED: [(&str, u64); 4] = [("complex32", 4), ("bcomplex32", 4), ("int1", 1), ("uint1", 1)];

const TIMES: [(&str, &str); 2] = [("datetime64", "<M8"), ("timedelta64", "<m8")];
const TIME_LEN_BYTES: u64 = 8;

/// Dtypes with a length: name, NumPy's code, and bits of the code's unit.
const UNREADABLE: [(&str, &str, u64); 3] = [("str", "<U", 32), ("bytes", "|S", 8), ("void", "|V", 8)];

/// The type of an array's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Elements {
    Known(Dtype),
    /// A dtype that only NumPy has: its spelling in npy headers, and the bytes of an element.
    Other(String, u64),
}

/// The type of elements that a dtype name in a file means; `None` for an unknown name.
pub(crate) fn from_name(name: &str) -> Option<Elements> {
    if let Ok(dtype) = name.parse() {
        return Some(Elements::Known(dtype));
    }
    if let Some((_, code, size)) = EXTENDED.iter().find(|row| row.0 == name) {
        return Some(Elements::Other((*code).to_owned(), *size));
    }
    if let Some((name, size)) = NAMED.iter().find(|row| row.0 == name) {
        return Some(Elements::Other((*name).to_owned(), *size));
    }
    for (prefix, code) in TIMES {
        if let Some(unit) = name.strip_prefix(prefix)
            && is_unit(unit)
        {
            return Some(Elements::Other(format!("{code}{unit}"), TIME_LEN_BYTES));
        }
    }
    for (prefix, code, unit_bits) in UNREADABLE {
        let bits = name.strip_prefix(prefix).filter(|digits| !digits.starts_with(['0', '+']));
        if let Some(bits) = bits.and_then(|digits| digits.parse::<u32>().ok()).map(u64::from)
            && bits % unit_bits == 0
        {
            return Some(Elements::Other(format!("{code}{}", bits / unit_bits), bits / 8));
        }
    }
    None
}

/// The name of a dtype that only NumPy has, and whether its bytes are big-endian; `None` for a
/// dtype that Flax could not read back.
pub(crate) fn to_name(descr: &str) -> Option<(String, bool)> {
    if let Some((name, _)) = NAMED.iter().find(|row| row.0 == descr) {
        return Some(((*name).to_owned(), false));
    }
    let (is_big, code) = match descr.split_at_checked(1)? {
        ("<" | "=" | "|", code) => (false, code),
        (">", code) => (true, code),
        _ => (false, descr),
    };
    let bare = |code: &'static str| code.trim_start_matches('<');
    if let Some((name, ..)) = EXTENDED.iter().find(|row| bare(row.1) == code) {
        return Some(((*name).to_owned(), is_big));
    }
    TIMES.iter().find_map(|(name, time)| {
        let unit = code.strip_prefix(bare(time))?;
        is_unit(unit).then(|| (format!("{name}{unit}"), is_big))
    })
}

/// The length of the words whose byte order matters, for the dtypes that [`to_name`] knows.
pub(crate) fn word_bytes(size_bytes: usize) -> usize {
    if size_bytes == 32 { 16 } else { size_bytes }
}

fn is_unit(text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else { return false };
    let unit = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    matches!(
        unit,
        "Y" | "M" | "W" | "D" | "h" | "m" | "s" | "ms" | "us" | "\u{3bc}s" | "ns" | "ps" | "fs" | "as"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in [
            "float128",
            "complex256",
            "datetime64",
            "datetime64[ns]",
            "timedelta64[25s]",
            "complex32",
            "bcomplex32",
            "uint1",
        ] {
            let Some(Elements::Other(descr, _)) = from_name(name) else { panic!("{name}") };
            assert_eq!(to_name(&descr), Some((name.to_owned(), false)));
        }
        assert_eq!(to_name(">M8[us]"), Some(("datetime64[us]".to_owned(), true)));
        for dtype in Dtype::all() {
            assert_eq!(from_name(dtype.name()), Some(Elements::Known(dtype)));
        }
    }

    #[test]
    fn text_is_read_and_never_written() {
        for (name, descr, size) in [("str96", "<U3", 12), ("bytes24", "|S3", 3), ("void48", "|V6", 6)] {
            assert_eq!(from_name(name), Some(Elements::Other(descr.to_owned(), size)));
            assert_eq!(to_name(descr), None);
        }
        assert_eq!(to_name("[('a', '<f4')]"), None);
        assert_eq!(to_name(""), None);
    }

    #[test]
    fn what_only_numpy_would_take_is_no_name() {
        for name in [
            ">f4",
            "i2,i2",
            "object",
            "O",
            "float33",
            "str95",
            "str",
            "str0",
            "bytes9",
            "void+8",
            "datetime64[ns",
            "datetime64[x]",
            "",
            "datetime64ns",
        ] {
            assert_eq!(from_name(name), None, "{name}");
        }
    }
}
