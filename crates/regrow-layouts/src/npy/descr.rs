//! The description of the elements in a header: text to [`Descr`] and back.
//!
//! ```text
//! '<f4'  '>i8'  '|b1'  '<c16'            numbers: byte order, kind, bytes
//! 'bfloat16'  'float8_e4m3fn'            dtypes of ml_dtypes by name: NumPy knows them once ml_dtypes is imported
//! '<V2'  '<V1'  '<f1'                    the same as NumPy itself writes them: their names are lost
//! '|V5'                                  bytes of no type
//! '<U8'  '|S3'  '<M8[ns]'  '<f16'        text, bytes, dates, extended floats: NumPy's alone
//! [('a', '<f4'), ('b', '|u1', (2,))]     records
//! '|O'                                   Python objects, pickled: refused
//! ```
//!
//! Source: NumPy's array interface ("type strings"), `numpy.lib.format.dtype_to_descr` and
//! `descr_to_dtype`.

use regrow_base::bytes::limits::RANK_MAX;
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse, repr_str};
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, DtypeClass, Shape};

/// The longest element: NumPy stores its length in 31 bits.
const ITEM_LEN_MAX_BYTES: u64 = i32::MAX as u64;

const RECORD_DEPTH_MAX: usize = 32;

/// Dtypes of ml_dtypes that [`Dtype`] does not have, and the bytes of an element. NumPy writes the
/// complex ones as `<W4`.
const BEYOND_DTYPE: [(&str, u64); 7] =
    [("int1", 1), ("uint1", 1), ("complex32", 4), ("bcomplex32", 4), ("<W4", 4), ("|W4", 4), (">W4", 4)];

/// The type of a file's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Descr {
    /// A number that [`Dtype`] has. Dtypes of ml_dtypes are written by name.
    Number {
        /// The dtype of the elements.
        dtype: Dtype,
        /// Whether the high byte comes first.
        big_endian: bool,
    },
    /// Bytes of no type.
    Void {
        /// Bytes of an element.
        item_len_bytes: u64,
        /// `<V2` instead of `|V2`. NumPy writes this for dtypes of ml_dtypes, whose names it loses.
        is_nameless: bool,
    },
    /// A dtype that only NumPy has, as headers spell it: `<U8`, `<M8[ns]`, `[('a', '<f4')]`.
    Other {
        /// The spelling, without quotes around a type string.
        text: String,
        /// Bytes of an element.
        item_len_bytes: u64,
    },
}

impl Descr {
    /// The dtype under a name that NumPy accepts; for dtypes of ml_dtypes, their own name.
    pub fn named(dtype: Dtype) -> Self {
        Self::Number { dtype, big_endian: false }
    }

    /// The description that NumPy itself writes: a dtype of ml_dtypes loses its name.
    pub fn as_numpy_writes(dtype: Dtype) -> Self {
        if type_code(dtype).is_some() {
            return Self::named(dtype);
        }
        match dtype {
            // NumPy writes all other dtypes of ml_dtypes as untyped bytes.
            Dtype::Float8E5m2 => Self::Other { text: "<f1".to_owned(), item_len_bytes: 1 },
            _ => Self::Void { item_len_bytes: dtype.size_bytes() as u64, is_nameless: true },
        }
    }

    /// Whether NumPy cannot read what [it writes itself](Self::as_numpy_writes).
    pub(crate) fn is_unreadable(dtype: Dtype) -> bool {
        matches!(Self::as_numpy_writes(dtype), Self::Other { .. })
    }

    /// Parses the value of `descr` in a header.
    ///
    /// # Errors
    /// `Unsupported` for pickled objects and types that are not known; `Corrupt` for a value that
    /// is not a type.
    pub fn from_literal(descr: &Literal) -> Result<Self> {
        match descr {
            Literal::Str(text) => Self::from_type_string(text),
            Literal::List(fields) => {
                Ok(Self::Other { text: descr.repr(), item_len_bytes: record_len_bytes(fields)? })
            }
            _ => Err(Error::corrupt(
                "the descr of an npy header is neither a type string nor a list of fields",
            )
            .expected("such as '<f4'", descr.repr())),
        }
    }

    /// Parses the text that [`text`](Self::text) gives: a type string, or the list of a record's
    /// fields.
    ///
    /// # Errors
    /// As [`from_literal`](Self::from_literal).
    pub fn from_text(text: &str) -> Result<Self> {
        match text.starts_with('[') {
            true => Self::from_literal(&parse(text, LiteralOptions::default())?),
            false => Self::from_type_string(text),
        }
    }

    fn from_type_string(text: &str) -> Result<Self> {
        if let Ok(dtype) = text.parse() {
            return Ok(Self::named(dtype));
        }
        if let Some((_, item_len_bytes)) = BEYOND_DTYPE.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Other { text: text.to_owned(), item_len_bytes: *item_len_bytes });
        }
        let unknown = || Error::unsupported(format!("the dtype {text:?} of an npy header is not known"));
        let (order, code) = match text.strip_prefix(['<', '>', '|', '=']) {
            Some(code) => (text.as_bytes().first().copied().unwrap_or(b'|'), code),
            None => (b'=', text),
        };
        let mut chars = code.chars();
        let kind = chars.next().ok_or_else(unknown)?;
        let rest = chars.as_str();
        let other = |item_len_bytes| Self::Other { text: text.to_owned(), item_len_bytes };
        if kind == 'O' {
            return Err(pickled());
        }
        if let 'M' | 'm' = kind {
            let is_time = rest.strip_prefix('8').is_some_and(is_time_unit);
            return if is_time { Ok(other(8)) } else { Err(unknown()) };
        }
        let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        let len: u64 = rest.parse().ok().filter(|_| is_number).ok_or_else(unknown)?;
        let item_len = |each: u64| len.checked_mul(each).filter(|&len| len <= ITEM_LEN_MAX_BYTES);
        Ok(match (kind, len) {
            ('S', _) => other(item_len(1).ok_or_else(unknown)?),
            ('U', _) => other(item_len(4).ok_or_else(unknown)?),
            ('V', _) => {
                let item_len_bytes = item_len(1).ok_or_else(unknown)?;
                Self::Void { item_len_bytes, is_nameless: matches!(order, b'<' | b'>') }
            }
            ('f', 1) => Self::named(Dtype::Float8E5m2),
            ('f', 12 | 16) | ('c', 24 | 32) => other(len),
            _ => {
                let dtype = Dtype::all().find(|&dtype| type_code(dtype) == Some((kind, len)));
                let dtype = dtype.ok_or_else(unknown)?;
                Self::Number { dtype, big_endian: order == b'>' && dtype.word_bytes() > 1 }
            }
        })
    }

    /// Bytes of an element.
    pub fn item_len_bytes(&self) -> u64 {
        match self {
            Self::Number { dtype, .. } => dtype.size_bytes() as u64,
            Self::Void { item_len_bytes, .. } | Self::Other { item_len_bytes, .. } => *item_len_bytes,
        }
    }

    /// The spelling, without quotes around a type string.
    pub fn text(&self) -> String {
        match self {
            Self::Number { dtype, big_endian } => match type_code(*dtype) {
                None => dtype.name().to_owned(),
                Some((kind, 1)) => format!("|{kind}1"),
                Some((kind, len)) => format!("{}{kind}{len}", if *big_endian { '>' } else { '<' }),
            },
            Self::Void { item_len_bytes, is_nameless } => {
                format!("{}V{item_len_bytes}", if *is_nameless { '<' } else { '|' })
            }
            Self::Other { text, .. } => text.clone(),
        }
    }

    /// The spelling as a Python literal.
    pub fn repr(&self) -> String {
        let text = self.text();
        if text.starts_with('[') { text } else { repr_str(&text) }
    }
}

/// The kind and length in NumPy's type strings; `None` for dtypes of ml_dtypes.
fn type_code(dtype: Dtype) -> Option<(char, u64)> {
    let len = dtype.size_bytes() as u64;
    let is_ml_dtype = dtype.class() == DtypeClass::Float && (len == 1 || dtype == Dtype::BFloat16)
        || matches!(dtype, Dtype::Int2 | Dtype::Int4 | Dtype::UInt2 | Dtype::UInt4);
    let kind = match dtype.class() {
        _ if is_ml_dtype => return None,
        DtypeClass::Bool => 'b',
        DtypeClass::Signed => 'i',
        DtypeClass::Unsigned => 'u',
        DtypeClass::Float => 'f',
        DtypeClass::Complex => 'c',
    };
    Some((kind, len))
}

/// Whether a text is empty or a unit of time: `[ns]`, `[25s]`, `[generic]`.
fn is_time_unit(text: &str) -> bool {
    const UNITS: [&str; 15] =
        ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic"];
    let Some(unit) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
        return text.is_empty();
    };
    let unit = unit.trim_start_matches(|c: char| c.is_ascii_digit());
    UNITS.contains(&unit)
}

fn pickled() -> Error {
    Error::unsupported("the array has pickled Python objects")
        .help("regrow executes nothing from a file; save the objects as arrays, text or JSON")
}

fn record_len_bytes(fields: &[Literal]) -> Result<u64> {
    // Lists of fields, each with its number of repeats and its depth.
    let mut open = vec![(fields, 1_u64, 1_usize)];
    let mut total = 0_u64;
    while let Some((fields, times, depth)) = open.pop() {
        for field in fields {
            let (descr, repeat) = field_parts(field)?;
            let times = times
                .checked_mul(repeat)
                .filter(|&times| times <= ITEM_LEN_MAX_BYTES)
                .ok_or_else(too_long)?;
            if let Literal::List(inner) = descr {
                if depth == RECORD_DEPTH_MAX {
                    return Err(Error::unsupported(format!(
                        "records are nested deeper than {RECORD_DEPTH_MAX} levels"
                    )));
                }
                open.push((inner, times, depth + 1));
                continue;
            }
            let len = Descr::from_literal(descr)?.item_len_bytes().checked_mul(times);
            let sum = len.and_then(|len| len.checked_add(total));
            total = sum.filter(|&sum| sum <= ITEM_LEN_MAX_BYTES).ok_or_else(too_long)?;
        }
    }
    Ok(total)
}

fn too_long() -> Error {
    Error::corrupt("a record is longer than NumPy allows")
        .expected(format_args!("at most {ITEM_LEN_MAX_BYTES} bytes"), "more")
}

/// The description of a field and its number of elements, from `(name, descr)` or `(name, descr,
/// shape)`. The name may be `(title, name)`.
fn field_parts(field: &Literal) -> Result<(&Literal, u64)> {
    let bad = || {
        Error::corrupt("a field of a record is not a tuple of name, dtype and optional shape")
            .expected("such as ('a', '<f4', (2,))", field.repr())
    };
    let Literal::Tuple(parts) = field else { return Err(bad()) };
    let (name, descr, shape) = match parts.as_slice() {
        [name, descr] => (name, descr, None),
        [name, descr, shape] => (name, descr, Some(shape)),
        _ => return Err(bad()),
    };
    let is_text = |literal: &Literal| matches!(literal, Literal::Str(_));
    let is_name = match name {
        Literal::Tuple(both) => both.len() == 2 && both.iter().all(is_text),
        name => is_text(name),
    };
    if !is_name {
        return Err(bad());
    }
    let dims = match shape {
        None => Vec::new(),
        Some(dim @ Literal::Int(_)) => vec![dim],
        Some(Literal::Tuple(dims)) if dims.len() <= RANK_MAX => dims.iter().collect(),
        Some(_) => return Err(bad()),
    };
    let dims: Option<Vec<u64>> = dims
        .into_iter()
        .map(|dim| match dim {
            Literal::Int(dim) => u64::try_from(*dim).ok(),
            _ => None,
        })
        .collect();
    Ok((descr, Shape::new(dims.ok_or_else(bad)?)?.len_elements()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regrow_base::error::ErrorKind;

    #[test]
    fn elements_have_the_length_that_numpy_gives_them() {
        for (text, len) in [
            ("<f4", 4),
            (">c16", 16),
            ("|b1", 1),
            ("<U3", 12),
            ("|S0", 0),
            ("<M8", 8),
            ("<M8[μs]", 8),
            (">m8[25ns]", 8),
            ("<f16", 16),
            ("|V5", 5),
            ("int4", 1),
            ("[]", 0),
            ("[('a', '<f4'), (('title', 'b'), '|u1', (2, 3)), ('c', '<i2', 3)]", 16),
            ("[('a', [('x', '<f4'), ('y', '|u1')], (2,))]", 10),
        ] {
            let descr = Descr::from_text(text).unwrap();
            assert_eq!(descr.item_len_bytes(), len, "{text}");
            assert_eq!(Descr::from_text(&descr.text()).unwrap(), descr, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "<",
            "<f",
            "<f3",
            "<i16",
            "<q8",
            "<M8[",
            "<M8[x]",
            "<M4[s]",
            "<U-1",
            "<U+1",
            "<U9999999999",
            "|O",
            "|O8",
        ] {
            assert_eq!(Descr::from_text(text).unwrap_err().kind(), ErrorKind::Unsupported, "{text}");
        }
        for text in [
            "['<f4']",
            "[('a',)]",
            "[(1, '<f4')]",
            "[('a', '<f4', (-1,))]",
            "[('a', 4)]",
            "[('a', '|V2147483647', (2,))]",
        ] {
            assert_eq!(Descr::from_text(text).unwrap_err().kind(), ErrorKind::Corrupt, "{text}");
        }
        let deep = |levels: usize| format!("{}'<f4'{}", "[('a', ".repeat(levels), ")]".repeat(levels));
        assert!(Descr::from_text(&deep(RECORD_DEPTH_MAX)).is_ok());
        assert!(Descr::from_text(&deep(RECORD_DEPTH_MAX + 1)).is_err());
        assert!(Descr::from_text("[('a', '|O')]").unwrap_err().to_string().contains("pickled"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[<>|=]?[bifcuSUVMmOa]?[0-9]{0,12}(\\[\\PC*\\])?") {
            let _ = Descr::from_text(&text);
        }
    }
}
