//! TensorStore specs in msgpack: a dict or a JSON text with the location of an array, instead of
//! the array.
//!
//! ```text
//! {"driver": "zarr", "dtype": "float32",                      the driver of the array
//!  "kvstore": {"driver": "file", "path": "target.w/"},        the path below the file's folder
//!  "metadata": {"shape": [4, 3], "chunks": [4, 3], …}}        the expected shape
//! ```
//!
//! T5X writes such specs. In them, the drivers `file`, `gfile` and `gcs` (with any bucket) mean the
//! folder of the file. A spec with other content is an error: if the reader took the spec for a
//! plain dict, the array would be lost.
//!
//! Source: t5x `checkpoints.py`; TensorStore 0.1.86, drivers `zarr` and `zarr3`.

use serde_json::{Map, Value};

use regrow_base::error::{Error, Result};
use regrow_base::text::brief;

pub(super) const DRIVER: &str = "driver";
pub(super) const KVSTORE: &str = "kvstore";
/// The member that a driver on top of another array has instead of a location.
pub(super) const BASE: &str = "base";

const DRIVERS: [&str; 2] = ["zarr", "zarr3"];
/// Drivers of locations that mean the folder of the file.
const PLACES: [&str; 3] = ["file", "gfile", "gcs"];
/// Members of a spec that do not change the values.
const MEMBERS: [&str; 7] =
    [DRIVER, KVSTORE, "dtype", "metadata", "path", "recheck_cached_data", "recheck_cached_metadata"];

/// The array that a spec describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArraySpec {
    pub name: String,
    /// The location in the spec, as text for errors.
    pub place: String,
    pub dtype: Option<String>,
    pub dims: Option<Vec<u64>>,
}

impl ArraySpec {
    pub fn parse(spec: &Value) -> Result<Self> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let driver = text(spec.get(DRIVER)).unwrap_or_default();
        if !DRIVERS.contains(&driver.as_str()) {
            return Err(unknown("it opens an array of another kind", &DRIVERS.join(" or "), &driver));
        }
        if let Some(Value::String(url)) = spec.get(KVSTORE) {
            return Err(unknown("it names its own path", "a path below the folder of the file", url));
        }
        let place_driver = text(spec.pointer("/kvstore/driver")).unwrap_or_default();
        if !PLACES.contains(&place_driver.as_str()) {
            return Err(unknown(
                "its array is in another kind of storage",
                &PLACES.join(", "),
                &place_driver,
            ));
        }
        let members = spec.as_object().into_iter().flat_map(Map::keys);
        if let Some(other) = members.into_iter().find(|member| !MEMBERS.contains(&member.as_str())) {
            return Err(unknown("it has an unknown member", &MEMBERS.join(", "), other));
        }
        // TensorStore before 0.1.14 writes the path beside `kvstore`, not in it.
        let path = text(spec.pointer("/kvstore/path")).or_else(|| text(spec.get("path")));
        let path = path.ok_or_else(|| Error::corrupt("a TensorStore spec has no path"))?;
        let name = path.trim_end_matches('/');
        let place = match text(spec.pointer("/kvstore/bucket")) {
            Some(bucket) => format!("gs://{bucket}/{path}"),
            None => path.clone(),
        };
        if name.is_empty() || name.starts_with('/') {
            return Err(unknown("its path is outside the folder of the file", "target.w", &place));
        }
        let dims = spec.pointer("/metadata/shape").map(|shape| {
            let dims = match shape {
                Value::Array(dims) => dims.iter().map(Value::as_u64).collect(),
                // Flax writes some lists as dicts of their positions.
                Value::Object(dims) => {
                    (0..dims.len()).map(|at| dims.get(&at.to_string())?.as_u64()).collect()
                }
                _ => None,
            };
            dims.ok_or_else(|| Error::corrupt("the shape in a TensorStore spec is not a list of numbers"))
        });
        Ok(Self { name: name.to_owned(), place, dtype: text(spec.get("dtype")), dims: dims.transpose()? })
    }

    pub fn is_missing(&self, why: &Error) -> Error {
        let what =
            format!("the array of a leaf is missing: a TensorStore spec puts it at {}", brief(&self.place));
        let error =
            Error::corrupt(what).help("copy the folders of the arrays into the folder of the msgpack file");
        match why.place().file.clone() {
            Some(file) => error.in_file(file),
            None => error,
        }
    }
}

pub(super) fn unknown(why: &str, expected: &str, found: &str) -> Error {
    Error::unsupported(format!("a leaf is a TensorStore spec of an array, and {why}"))
        .expected(expected, format_args!("{:?}", brief(found)))
        .help("load it with TensorStore (ts.open), and save the arrays with regrow.save")
}

pub(super) fn refused(spec: &Value) -> Error {
    match ArraySpec::parse(spec) {
        Err(error) => error,
        Ok(spec) => Error::unsupported(format!(
            "a leaf is a TensorStore spec of the array at {}, not an array",
            brief(&spec.place)
        ))
        .help("open the T5X file `checkpoint`, or its folder"),
    }
}

/// A text that is a spec in JSON.
pub(super) fn in_text(text: &str) -> Option<Value> {
    let may_be =
        text.starts_with('{') && text.contains(DRIVER) && (text.contains(KVSTORE) || text.contains(BASE));
    let value: Value = if may_be { serde_json::from_str(text).ok()? } else { return None };
    let is_spec = value.get(DRIVER).is_some_and(Value::is_string)
        && (value.get(KVSTORE).is_some() || value.get(BASE).is_some());
    is_spec.then_some(value)
}
