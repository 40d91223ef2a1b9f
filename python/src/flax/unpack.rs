//! Converts msgpack to Python objects, like Flax' `msgpack_restore`, except that arrays are views.
//!
//! This module accepts everything that Flax accepts from its own files (for a repeated key, the
//! last value counts), and text arrays, which Flax writes but cannot read. Data that only looks
//! like an array is an error: `-1` in a shape, `nil` instead of a shape, chunks of different
//! dtypes. The error has the offset and the key path.

use std::collections::HashMap;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyList, PyString, PyTuple};
use regrow::Error;
use regrow::tree::{Key, KeyPath};
use regrow_layouts::flax::layout::{
    CHUNKED_KEY, CHUNKS_KEY, EXT_COMPLEX, EXT_NDARRAY, EXT_NUMPY_SCALAR, EXT_TIMESTAMP, SHAPE_KEY,
    StoredArray, bad_timestamp, parse_array, parse_complex, parse_timestamp, reserved_code,
};
use regrow_layouts::flax::msgpack::{DEPTH_MAX, Scanner, Token};

use super::TYPES;
use crate::memory::ReadOnly;

/// The object in `data`, as raw dicts, lists and leaves. Arrays are read-only views of `data`, and
/// keep `data` alive. Arrays in chunks are joined in new, writable memory.
#[pyfunction]
pub fn msgpack_unpack<'py>(py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let buffer = ReadOnly::new(data)?;
    let bytes = buffer.as_bytes();
    let numpy = py.import("numpy")?;
    // `frombuffer` keeps the buffer exported. An `ndarray` over the buffer itself does not, and a
    // `bytearray` could move.
    let view = match bytes.is_empty() {
        true => buffer.view(py),
        false => numpy.call_method1("frombuffer", (buffer.view(py), "u1"))?,
    };
    let mut unpacker = Unpacker {
        py,
        bytes,
        scanner: Scanner::new(bytes),
        view,
        ndarray: numpy.getattr("ndarray")?,
        concatenate: numpy.getattr("concatenate")?,
        types: py.import(TYPES)?.into_any(),
        open: Vec::new(),
        dtypes: HashMap::new(),
        keys: HashMap::new(),
    };
    unpacker.object().map_err(|failed| match failed {
        Failed::Msgpack(error) => unpacker.raise(*error),
        Failed::Python(error) => error,
    })
}

/// Damage in the bytes, still without its key path; or an exception of Python.
enum Failed {
    Msgpack(Box<Error>),
    Python(PyErr),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Msgpack(Box::new(error))
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

type Result<T> = std::result::Result<T, Failed>;

/// A container that is being read.
enum Open<'py> {
    Dict { dict: Bound<'py, PyDict>, key: Option<Bound<'py, PyAny>>, left: usize, start: u64 },
    List { list: Bound<'py, PyList>, left: usize },
}

struct Unpacker<'a, 'py> {
    py: Python<'py>,
    bytes: &'a [u8],
    scanner: Scanner<'a>,
    /// The bytes as a read-only array, which keeps them in memory at the same address.
    view: Bound<'py, PyAny>,
    ndarray: Bound<'py, PyAny>,
    concatenate: Bound<'py, PyAny>,
    types: Bound<'py, PyAny>,
    open: Vec<Open<'py>>,
    /// Dtypes by name, each with its size in bytes.
    dtypes: HashMap<&'a str, (Bound<'py, PyAny>, u64)>,
    /// Python strings by name. Names repeat in every layer of a model: equal names share one
    /// string.
    keys: HashMap<&'a str, Bound<'py, PyAny>>,
}

impl<'a, 'py> Unpacker<'a, 'py> {
    fn object(&mut self) -> Result<Bound<'py, PyAny>> {
        loop {
            if let Some(Open::Dict { key: None, left: 1.., .. }) = self.open.last() {
                self.key()?;
            }
            let Some(mut value) = self.value()? else { continue };
            // A complete value may also complete the containers around it.
            loop {
                let is_complete = match self.open.last_mut() {
                    None => {
                        self.scanner.finish("the msgpack object")?;
                        return Ok(value);
                    }
                    Some(Open::Dict { dict, key, left, .. }) => {
                        if let Some(key) = key.take() {
                            dict.set_item(key, &value)?;
                        }
                        *left = left.saturating_sub(1);
                        *left == 0
                    }
                    Some(Open::List { list, left }) => {
                        list.append(&value)?;
                        *left = left.saturating_sub(1);
                        *left == 0
                    }
                };
                if !is_complete {
                    break;
                }
                value = self.close()?;
            }
        }
    }

    fn close(&mut self) -> Result<Bound<'py, PyAny>> {
        match self.open.pop() {
            Some(Open::Dict { dict, start, .. }) => {
                let is_below_list = self.open.iter().any(|open| matches!(open, Open::List { .. }));
                if !is_below_list && dict.contains(CHUNKED_KEY)? {
                    return self.join_chunks(&dict, start);
                }
                Ok(dict.into_any())
            }
            Some(Open::List { list, .. }) => Ok(list.into_any()),
            None => Err(Error::corrupt("the msgpack is not an object").into()),
        }
    }

    fn key(&mut self) -> Result<()> {
        let at = self.scanner.offset_bytes();
        let found = match self.scanner.next()? {
            Token::Str(range) => {
                let text = self.scanner.text(&range)?;
                let py = self.py;
                self.keys.entry(text).or_insert_with(|| PyString::new(py, text).into_any()).clone()
            }
            Token::Array(_) | Token::Map(_) => {
                return Err(Error::corrupt("a key is an array or a map").at_byte(at).into());
            }
            token => self.scalar(token, at)?,
        };
        if found.hash().is_err() {
            return Err(Error::corrupt("the type of a key is not possible in a dict").at_byte(at).into());
        }
        if let Some(Open::Dict { key, .. }) = self.open.last_mut() {
            *key = Some(found);
        }
        Ok(())
    }

    /// Reads a value. Returns `None` if the value is a container with members, which is now open.
    fn value(&mut self) -> Result<Option<Bound<'py, PyAny>>> {
        let at = self.scanner.offset_bytes();
        let open = match self.scanner.next()? {
            Token::Map(0) => return Ok(Some(PyDict::new(self.py).into_any())),
            Token::Array(0) => return Ok(Some(PyList::empty(self.py).into_any())),
            Token::Map(left) => Open::Dict { dict: PyDict::new(self.py), key: None, left, start: at },
            Token::Array(left) => Open::List { list: PyList::empty(self.py), left },
            token => return self.scalar(token, at).map(Some),
        };
        if self.open.len() >= DEPTH_MAX {
            let error = Error::corrupt(format!("the msgpack is nested deeper than {DEPTH_MAX} levels"));
            return Err(error.at_byte(at).into());
        }
        self.open.push(open);
        Ok(None)
    }

    fn scalar(&mut self, token: Token, at: u64) -> Result<Bound<'py, PyAny>> {
        let py = self.py;
        Ok(match token {
            Token::Nil => py.None().into_bound(py),
            Token::Bool(value) => value.into_pyobject(py).map_err(PyErr::from)?.to_owned().into_any(),
            Token::Int(number) => number.into_pyobject(py).map_err(PyErr::from)?.into_any(),
            Token::UInt(number) => number.into_pyobject(py).map_err(PyErr::from)?.into_any(),
            Token::Float(number) => number.into_pyobject(py).map_err(PyErr::from)?.into_any(),
            Token::Str(range) => PyString::new(py, self.scanner.text(&range)?).into_any(),
            Token::Bin(range) => PyBytes::new(py, self.scanner.slice(&range)).into_any(),
            Token::Ext(code, payload) => self.ext(code, payload, at)?,
            Token::Array(_) | Token::Map(_) => return Err(Error::corrupt("a container").at_byte(at).into()),
        })
    }

    fn ext(&mut self, code: i8, payload: Range<usize>, at: u64) -> Result<Bound<'py, PyAny>> {
        match code {
            EXT_NDARRAY => self.array(payload),
            EXT_NUMPY_SCALAR => Ok(self.array(payload)?.get_item(PyTuple::empty(self.py))?),
            EXT_COMPLEX => {
                let (re, im) = parse_complex(self.bytes, payload)?;
                Ok(PyComplex::from_doubles(self.py, re, im).into_any())
            }
            EXT_TIMESTAMP => {
                let (seconds, nanoseconds) = parse_timestamp(self.scanner.slice(&payload))
                    .ok_or_else(|| bad_timestamp().at_byte(at))?;
                Ok(self.types.call_method1("Timestamp", (seconds, nanoseconds))?)
            }
            ..=-1 => Err(reserved_code(code).at_byte(at).into()),
            _ => {
                let data = PyBytes::new(self.py, self.scanner.slice(&payload));
                Ok(self.types.call_method1("ExtType", (code, data))?)
            }
        }
    }

    fn array(&mut self, payload: Range<usize>) -> Result<Bound<'py, PyAny>> {
        let StoredArray { dims, dtype_name, dtype_name_at, data } = parse_array(self.bytes, payload)?;
        let (dtype, size_bytes) = self.dtype(dtype_name, dtype_name_at)?;
        let expected = dims.iter().try_fold(size_bytes, |len, &dim| len.checked_mul(dim));
        if expected != Some(data.len() as u64) {
            let expected = expected.map_or("more than 2^64".to_owned(), |len| len.to_string());
            return Err(Error::corrupt(format!(
                "an array of shape {dims:?} and dtype {dtype_name} has another size"
            ))
            .at_byte(data.start as u64)
            .expected(format_args!("{expected} bytes"), data.len())
            .into());
        }
        let shape = PyTuple::new(self.py, dims)?;
        Ok(self.ndarray.call1((shape, dtype, &self.view, data.start))?)
    }

    fn dtype(&mut self, name: &'a str, at: u64) -> Result<(Bound<'py, PyAny>, u64)> {
        if let Some((dtype, size_bytes)) = self.dtypes.get(name) {
            return Ok((dtype.clone(), *size_bytes));
        }
        let dtype = self.types.call_method1("dtype_of", (name,))?;
        if dtype.is_none() {
            return Err(Error::corrupt(format!("dtype {name:?} is not known")).at_byte(at).into());
        }
        let size_bytes = dtype.getattr("itemsize")?.extract()?;
        self.dtypes.insert(name, (dtype.clone(), size_bytes));
        Ok((dtype, size_bytes))
    }

    /// Joins the chunks of an array, given as a map, in new memory.
    fn join_chunks(&self, dict: &Bound<'py, PyDict>, start: u64) -> Result<Bound<'py, PyAny>> {
        let broken = |what: &str| Failed::from(Error::corrupt(what.to_owned()).at_byte(start));
        let shape = numbered(dict, SHAPE_KEY)?.ok_or_else(|| broken("an array in chunks lacks its shape"))?;
        let chunks = numbered(dict, CHUNKS_KEY)?.ok_or_else(|| broken("an array in chunks lacks chunks"))?;
        let mut len_elements = 1_u64;
        for dim in &shape {
            let dim: u64 =
                dim.extract().map_err(|_| broken("the shape of a chunked array is not numbers"))?;
            len_elements = len_elements.saturating_mul(dim);
        }
        let mut found = 0_u64;
        let mut dtype: Option<Bound<'py, PyAny>> = None;
        for chunk in &chunks {
            if !chunk.is_instance(&self.ndarray)? {
                return Err(broken("a chunk of an array is not an array"));
            }
            if chunk.getattr("ndim")?.extract::<u64>()? != 1 {
                return Err(broken("a chunk of an array does not have one axis"));
            }
            let of = chunk.getattr("dtype")?;
            if !dtype.get_or_insert_with(|| of.clone()).eq(&of)? {
                return Err(broken("the chunks of an array differ in dtype"));
            }
            found = found.saturating_add(chunk.getattr("size")?.extract()?);
        }
        if chunks.is_empty() {
            return Err(broken("an array in chunks has none"));
        }
        if found != len_elements {
            let error = Error::corrupt("the chunks of an array do not fill its shape").at_byte(start);
            return Err(error.expected(format_args!("{len_elements} elements"), found).into());
        }
        let flat = self.concatenate.call1((PyList::new(self.py, chunks)?,))?;
        Ok(flat.call_method1("reshape", (PyTuple::new(self.py, shape)?,))?)
    }

    fn raise(&self, error: Error) -> PyErr {
        let path: KeyPath = self
            .open
            .iter()
            .filter_map(|open| match open {
                Open::Dict { key, .. } => {
                    let text = key.as_ref()?.str().ok()?;
                    Some(Key::dict(text.to_string_lossy().into_owned()))
                }
                Open::List { list, .. } => Some(Key::Index(list.len())),
            })
            .collect();
        let error = if path.is_root() { error } else { error.at_leaf(&path) };
        let raised = || -> PyResult<Bound<'py, PyAny>> {
            let named = PyDict::new(self.py);
            let (_, leaf, offset_bytes) = crate::error::place(&error);
            named.set_item("leaf", leaf)?;
            named.set_item("offset_bytes", offset_bytes)?;
            named.set_item("help", error.help_text())?;
            self.types.getattr("MsgpackError")?.call((error.to_string(),), Some(&named))
        };
        raised().map_or_else(|failed| failed, PyErr::from_value)
    }
}

/// The values of a dict `{"0": …, "1": …}` that is the value of `key`, in the order of their
/// numbers.
fn numbered<'py>(dict: &Bound<'py, PyDict>, key: &str) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let Some(members) = dict.get_item(key)? else { return Ok(None) };
    let Ok(members) = members.cast_into::<PyDict>() else { return Ok(None) };
    let mut values = Vec::with_capacity(members.len());
    for number in 0..members.len() {
        match members.get_item(number.to_string())? {
            Some(value) => values.push(value),
            None => return Ok(None),
        }
    }
    Ok(Some(values))
}
