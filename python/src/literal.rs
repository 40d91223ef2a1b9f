//! Converts Python literals in a file (dtypes of records, paths of dicts) to Python objects. The
//! engine parses them, so that no content of a file reaches Python's own compiler.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyInt, PyList, PySet, PyTuple};
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse};

use crate::error::OrRaise;

/// The value of a literal, like `ast.literal_eval`.
#[pyfunction]
pub fn literal<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    to_python(py, &parse(text, LiteralOptions::default()).or_raise()?)
}

/// Converts a literal. The recursion is limited, because the parser limits the depth.
fn to_python<'py>(py: Python<'py>, literal: &Literal) -> PyResult<Bound<'py, PyAny>> {
    let all = |items: &[Literal]| items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>();
    Ok(match literal {
        Literal::None => py.None().into_bound(py),
        Literal::Ellipsis => py.Ellipsis().into_bound(py),
        Literal::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Literal::Int(value) => value.into_pyobject(py)?.into_any(),
        Literal::BigInt(digits) => py.get_type::<PyInt>().call1((digits,))?,
        Literal::Float(value) => value.into_pyobject(py)?.into_any(),
        Literal::Complex(real, imaginary) => PyComplex::from_doubles(py, *real, *imaginary).into_any(),
        Literal::Str(text) => text.into_pyobject(py)?.into_any(),
        Literal::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Literal::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
        Literal::List(items) => PyList::new(py, all(items)?)?.into_any(),
        Literal::Set(items) => PySet::new(py, all(items)?)?.into_any(),
        Literal::Dict(entries) => {
            let made = PyDict::new(py);
            for (key, value) in entries {
                made.set_item(to_python(py, key)?, to_python(py, value)?)?;
            }
            made.into_any()
        }
    })
}
