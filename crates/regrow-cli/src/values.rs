//! Prints the elements of an array: in NumPy's form for people, as nested lists for JSON.
//!
//! Like NumPy, a float has the fewest digits that give the same number in its own dtype: `0.1` for
//! the nearest bfloat16, not `0.10009766` as float32 would need. An array of more than
//! [`SUMMARY_FROM_ELEMENTS`] elements shows only its edges. An array without elements prints as
//! `[]` in any shape. JSON shows the empty lists of such an array, or only `[]` if there are more
//! than [`EMPTY_LISTS_MAX`] empty lists.

use std::io::Write;

use bytes::Bytes;
use regrow::Error;
use regrow::array::{Array, Dtype, DtypeClass, cast_bytes};

/// The same as NumPy's `threshold`.
const SUMMARY_FROM_ELEMENTS: u64 = 1000;

/// The same as NumPy's `edgeitems`.
const EDGE_ELEMENTS: u64 = 3;

/// The most empty lists that JSON shows for an array without elements. A shape alone can require
/// any number of empty lists.
const EMPTY_LISTS_MAX: u64 = 1000;

/// Writes the array as nested brackets, with a line feed. With `full` no element is left out.
pub fn write_text(out: &mut impl Write, array: &Array, full: bool) -> Result<(), crate::exit::Failure> {
    let elements = Elements::new(array)?;
    let summarise = !full && array.shape().len_elements() > SUMMARY_FROM_ELEMENTS;
    let mut shown = Vec::new();
    // NumPy prints one pair of brackets for an array without elements.
    let dims = extents(array.shape().dims(), 0);
    collect(dims, 0, summarise, &mut |at| match at {
        At::Element(index) => {
            shown.push(elements.text(index)?);
            Ok(())
        }
        _ => Ok(()),
    })?;
    let width = shown.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let mut shown = shown.into_iter();
    // `ended` counts the lists that have ended: the next gap has as many newlines.
    let (mut depth, mut ended, mut first) = (0_usize, 0_usize, true);
    collect(dims, 0, summarise, &mut |at| {
        if matches!(at, At::Open | At::Element(_) | At::Gap) && !first {
            match ended {
                0 if matches!(at, At::Gap | At::Element(_)) && depth == array.shape().rank() => {
                    write!(out, " ")?
                }
                0 => write!(out, "\n{:depth$}", "")?,
                lists => write!(out, "{}{:depth$}", "\n".repeat(lists), "")?,
            }
        }
        match at {
            At::Open => {
                write!(out, "[")?;
                depth += 1;
                (ended, first) = (0, true);
            }
            At::Close => {
                write!(out, "]")?;
                depth -= 1;
                ended += 1;
                first = false;
            }
            At::Gap => {
                write!(out, "...")?;
                first = false;
            }
            At::Element(_) => {
                write!(out, "{:>width$}", shown.next().unwrap_or_default())?;
                (ended, first) = (0, false);
            }
        }
        Ok(())
    })?;
    writeln!(out)?;
    Ok(())
}

/// Writes the array as nested JSON lists; a scalar as one value.
pub fn write_json(out: &mut impl Write, array: &Array) -> Result<(), crate::exit::Failure> {
    let elements = Elements::new(array)?;
    let mut first = true;
    collect(extents(array.shape().dims(), EMPTY_LISTS_MAX), 0, false, &mut |at| {
        if matches!(at, At::Open | At::Element(_)) && !first {
            write!(out, ",")?;
        }
        match at {
            At::Open => write!(out, "[")?,
            At::Close => write!(out, "]")?,
            At::Gap => {}
            At::Element(index) => write!(out, "{}", elements.json(index)?)?,
        }
        first = matches!(at, At::Open);
        Ok(())
    })
}

/// The dimensions to walk. For an array without elements: up to the first 0, or only that 0 if
/// there would be more than `lists_max` empty lists.
fn extents(dims: &[u64], lists_max: u64) -> &[u64] {
    let Some(zero) = dims.iter().position(|&dim| dim == 0) else { return dims };
    let leading = dims.get(..zero).unwrap_or_default();
    let lists = leading.iter().try_fold(1_u64, |lists, &dim| lists.checked_mul(dim));
    match lists {
        Some(lists) if lists <= lists_max => dims.get(..=zero).unwrap_or_default(),
        _ => &[0],
    }
}

/// An event in a walk over an array.
#[derive(Debug, Clone, Copy)]
enum At {
    Open,
    Close,
    /// Elements that a summary leaves out.
    Gap,
    Element(u64),
}

/// Walks an array of shape `dims`. The recursion is as deep as the rank, which is limited.
fn collect(
    dims: &[u64],
    base: u64,
    summarise: bool,
    visit: &mut impl FnMut(At) -> Result<(), crate::exit::Failure>,
) -> Result<(), crate::exit::Failure> {
    let Some((&dim, inner)) = dims.split_first() else { return visit(At::Element(base)) };
    let stride: u64 = inner.iter().product();
    visit(At::Open)?;
    let mut index = 0;
    while index < dim {
        if summarise && index == EDGE_ELEMENTS && dim > 2 * EDGE_ELEMENTS {
            visit(At::Gap)?;
            index = dim - EDGE_ELEMENTS;
        }
        collect(inner, base + index * stride, summarise, visit)?;
        index += 1;
    }
    visit(At::Close)
}

/// The elements of an array, one at a time.
struct Elements {
    dtype: Dtype,
    bytes: Bytes,
}

/// An element in the widest type of its class.
enum Value {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    /// The digits of the number, or `nan`, `inf`, `-inf`.
    Float(String),
    Complex(String, String),
}

impl Elements {
    fn new(array: &Array) -> Result<Self, Error> {
        Ok(Self { dtype: array.dtype(), bytes: array.to_c_order()? })
    }

    fn value(&self, index: u64) -> Result<Value, Error> {
        let size = self.dtype.size_bytes();
        let start = usize::try_from(index).unwrap_or(usize::MAX).saturating_mul(size);
        let element = self.bytes.get(start..start.saturating_add(size)).unwrap_or_default();
        Ok(match self.dtype.class() {
            DtypeClass::Bool => Value::Bool(element.iter().any(|byte| *byte != 0)),
            DtypeClass::Signed => Value::Signed(i64::from_le_bytes(wide(element, self.dtype, Dtype::Int64)?)),
            DtypeClass::Unsigned => {
                Value::Unsigned(u64::from_le_bytes(wide(element, self.dtype, Dtype::UInt64)?))
            }
            DtypeClass::Float => Value::Float(digits(element, self.dtype)?),
            DtypeClass::Complex => {
                let part = if self.dtype == Dtype::Complex64 { Dtype::Float32 } else { Dtype::Float64 };
                let (real, imaginary) = element.split_at(size / 2);
                Value::Complex(digits(real, part)?, digits(imaginary, part)?)
            }
        })
    }

    fn text(&self, index: u64) -> Result<String, Error> {
        Ok(match self.value(index)? {
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            Value::Signed(number) => number.to_string(),
            Value::Unsigned(number) => number.to_string(),
            Value::Float(digits) => digits,
            Value::Complex(real, imaginary) if imaginary.starts_with('-') => format!("{real}{imaginary}j"),
            Value::Complex(real, imaginary) => format!("{real}+{imaginary}j"),
        })
    }

    fn json(&self, index: u64) -> Result<String, Error> {
        let float = |digits: String| match digits.as_str() {
            "nan" => "\"NaN\"".to_owned(),
            "inf" => "\"Infinity\"".to_owned(),
            "-inf" => "\"-Infinity\"".to_owned(),
            _ => digits,
        };
        Ok(match self.value(index)? {
            Value::Bool(truth) => truth.to_string(),
            Value::Signed(number) => number.to_string(),
            Value::Unsigned(number) => number.to_string(),
            Value::Float(digits) => float(digits),
            Value::Complex(real, imaginary) => format!("[{},{}]", float(real), float(imaginary)),
        })
    }
}

fn wide(element: &[u8], from: Dtype, to: Dtype) -> Result<[u8; 8], Error> {
    let mut out = [0; 8];
    cast_bytes(element, from, to, &mut out)?;
    Ok(out)
}

/// The fewest digits that identify this number in `dtype`.
fn digits(element: &[u8], dtype: Dtype) -> Result<String, Error> {
    let value = f64::from_le_bytes(wide(element, dtype, Dtype::Float64)?);
    if value.is_nan() {
        return Ok("nan".to_owned());
    }
    if value.is_infinite() {
        return Ok(if value > 0.0 { "inf" } else { "-inf" }.to_owned());
    }
    if dtype == Dtype::Float64 {
        return Ok(format!("{value:?}"));
    }
    if dtype == Dtype::Float32 {
        return Ok(format!("{:?}", value as f32));
    }
    let mut back = [0; 2];
    let back = back.get_mut(..element.len()).unwrap_or_default();
    for precision in 0..9 {
        let short: f64 = format!("{value:.precision$e}").parse().unwrap_or(f64::NAN);
        cast_bytes(&short.to_le_bytes(), Dtype::Float64, dtype, back)?;
        if *back == *element {
            return Ok(format!("{short:?}"));
        }
    }
    Ok(format!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow::array::Shape;

    fn array(dtype: Dtype, dims: &[u64], data: Vec<u8>) -> Array {
        Array::new(dtype, Shape::new(dims).unwrap(), data.into()).unwrap()
    }

    fn text(array: &Array) -> String {
        let mut out = Vec::new();
        write_text(&mut out, array, false).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn json(array: &Array) -> String {
        let mut out = Vec::new();
        write_json(&mut out, array).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn nests_as_numpy_does() {
        let cube = array(Dtype::Int8, &[2, 2, 2], vec![0, 1, 2, 3, 4, 5, 6, 0xf9]);
        assert_eq!(text(&cube), "[[[ 0  1]\n  [ 2  3]]\n\n [[ 4  5]\n  [ 6 -7]]]\n");
        assert_eq!(json(&cube), "[[[0,1],[2,3]],[[4,5],[6,-7]]]");
        assert_eq!(text(&array(Dtype::Bool, &[], vec![1])), "True\n");
        assert_eq!(json(&array(Dtype::Bool, &[], vec![1])), "true");
        assert_eq!(text(&array(Dtype::Int8, &[0], vec![])), "[]\n");
        let nested = ("[[],[]]", "[[[],[],[]],[[],[],[]]]");
        let cases: [(&[u64], &str); 7] = [
            (&[2, 0], nested.0),
            (&[2, 0, 1 << 40], nested.0),
            (&[2, 3, 0], nested.1),
            (&[0, 2], "[]"),
            (&[1001, 0], "[]"),
            (&[1 << 31, 0], "[]"),
            (&[1 << 40, 0, 1 << 20], "[]"),
        ];
        for (dims, expected) in cases {
            assert_eq!(text(&array(Dtype::Int8, dims, vec![])), "[]\n");
            assert_eq!(json(&array(Dtype::Int8, dims, vec![])), expected);
        }
    }

    #[test]
    fn shows_large_arrays_by_their_edges() {
        let line = array(Dtype::UInt8, &[1001], vec![7; 1001]);
        assert_eq!(text(&line), "[7 7 7 ... 7 7 7]\n");
        let square = text(&array(Dtype::UInt8, &[40, 40], vec![1; 1600]));
        assert_eq!(square.lines().count(), 7);
        assert_eq!(square.lines().nth(3), Some(" ..."));
        let mut full = Vec::new();
        write_text(&mut full, &line, true).unwrap();
        assert_eq!(full.len(), 2 * 1001 + 2);
    }

    #[test]
    fn shows_the_fewest_digits_that_mean_the_same() {
        let bf16: Vec<u8> =
            [0x3dcd_u16, 0x3f80, 0x7fc0, 0xff80].iter().flat_map(|v| v.to_le_bytes()).collect();
        let bf16 = array(Dtype::BFloat16, &[4], bf16);
        assert_eq!(text(&bf16), "[ 0.1  1.0  nan -inf]\n");
        assert_eq!(json(&bf16), "[0.1,1.0,\"NaN\",\"-Infinity\"]");
        let f32s: Vec<u8> = [0.1_f32, -1e-20].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(json(&array(Dtype::Float32, &[2], f32s)), "[0.1,-1e-20]");
        let complex: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let complex = array(Dtype::Complex64, &[], complex);
        assert_eq!(text(&complex), "1.5-2.0j\n");
        assert_eq!(json(&complex), "[1.5,-2.0]");
    }
}
