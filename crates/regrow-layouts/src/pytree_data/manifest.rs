//! The manifest: its text to [`Manifest`] and back. No I/O.
//!
//! ```text
//! [{'crc32c': (2774021365,),
//!   'dtype': '<f4',                   the element type, as NumPy's type strings say it; ml_dtypes' by name
//!   'nbytes': 24,                     without padding
//!   'offset': 0,                      from the start of the data file
//!   'path': ('layer', 'w'),           the keys from the root
//!   'regrow': {...},                  of the first entry only
//!   'shape': (2, 3)}, ...]
//! ```
//! The original reads five of the keys and ignores all others. By default regrow adds:
//!
//! | key | holds |
//! |---|---|
//! | `crc32c` | one CRC-32C for each started [`BLOCK_LEN_BYTES`] of the array's bytes |
//! | `regrow` | `crc32c`: of the manifest itself; if needed, `data`: the name of the data file, `empty`: the paths of empty dicts, `structure`: the exact pytree |
//!
//! The checksum of the manifest itself covers the `repr` of the whole list, with `0` in the place
//! of the checksum. So line breaks do not change the checksum. A manifest has all of these keys or
//! none, so damage to the name of a key is detected.

use crate::npy::descr::Descr;
use regrow_base::bytes::checksum::crc32c;
use regrow_base::bytes::limits::RANK_MAX;
use regrow_base::bytes::python_literal::{Literal, LiteralOptions, parse};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;
use regrow_tree::array::{Dtype, Shape};

use super::paths::about;
use super::pprint::pprint;

/// The longest manifest: a million arrays take about 200 MB.
pub(super) const MANIFEST_LEN_MAX_BYTES: u64 = 1 << 29;

/// The number of bytes of an array under one checksum.
pub(super) const BLOCK_LEN_BYTES: u64 = 16 << 20;

/// One array.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub path: Vec<Literal>,
    pub descr: Descr,
    /// The shape, without the axis that [`LeafKind::NumpyOther`](regrow_tree::tree::LeafKind) has
    /// for the bytes of an element.
    pub shape: Shape,
    pub len_bytes: u64,
    pub offset_bytes: u64,
    /// One checksum for each started block.
    pub crc32c: Option<Vec<u32>>,
}

/// A whole manifest.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    pub entries: Vec<Entry>,
    /// regrow's own additions; `None` if another program wrote the manifest, or they are not
    /// wanted.
    pub extra: Option<Extra>,
}

/// regrow's own additions to a manifest.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// The name of the data file; `None` for the usual name.
    pub data: Option<String>,
    pub empty: Vec<Vec<Literal>>,
    pub structure: Option<String>,
}

impl Manifest {
    /// Reads the text of a manifest. `check` compares the entries with the data file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::corrupt("the manifest is not UTF-8 text").at_byte(error.valid_up_to() as u64)
        })?;
        if text.trim().is_empty() {
            return Err(Error::corrupt("the manifest is empty")
                .help("its writer was killed; save again, or copy the file again"));
        }
        let mut literal = parse(text, LiteralOptions { numpy_ints: true, ..LiteralOptions::default() })?;
        let extra = take_extra(&mut literal)?;
        let (Literal::List(items) | Literal::Tuple(items)) = literal else {
            return Err(
                Error::corrupt("the manifest is not a list of arrays").expected("list", literal.type_name())
            );
        };
        let mut entries = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            entries.push(parse_entry(item).map_err(|error| at_entry(error, at))?);
        }
        let with_checksums = entries.iter().filter(|entry| entry.crc32c.is_some()).count();
        let expected = if extra.is_some() { entries.len() } else { 0 };
        if with_checksums != expected {
            return Err(Error::corrupt("some of the manifest's checksums are missing")
                .expected(counted(expected, "entry with crc32c", "entries with crc32c"), with_checksums));
        }
        Ok(Self { entries, extra })
    }

    /// The text, as Python's `pprint` prints it.
    pub(super) fn to_text(&self) -> String {
        let mut items: Vec<Literal> = self.entries.iter().map(entry_literal).collect();
        if let (Some(extra), Some(Literal::Dict(_))) = (&self.extra, items.first()) {
            set_extra(&mut items, extra, 0);
            let sum = crc32c(Literal::List(items.clone()).repr().as_bytes());
            set_extra(&mut items, extra, sum);
        }
        pprint(Literal::List(items))
    }
}

/// The element type of a type string, if it is one that a manifest may have.
pub(super) fn parse_dtype(text: &str) -> Result<Descr> {
    let refused = |why: &str| Error::unsupported(format!("the dtype {text:?} {why}"));
    if text.contains('O') {
        return Err(refused("has Python objects, and the file stores only their addresses"));
    }
    let descr = Descr::from_text(text).map_err(|_| refused("is not known"))?;
    match &descr {
        Descr::Void { .. } => Err(refused("is untyped bytes")),
        Descr::Other { item_len_bytes: 0, .. } => Err(refused("has elements of no size")),
        Descr::Other { text, .. } if text.starts_with('[') => Err(refused("is a record")),
        // A manifest has the name of a dtype only if NumPy has no type string for the dtype.
        Descr::Number { dtype, .. } if text.parse::<Dtype>().is_ok() && descr.text() != text => {
            Err(refused("is a name").expected(Descr::named(*dtype).text(), text))
        }
        _ => Ok(descr),
    }
}

pub(super) fn parse_path(literal: Literal) -> Result<Vec<Literal>> {
    let keys = match literal {
        Literal::Tuple(keys) => keys,
        Literal::List(keys) if !keys.is_empty() => keys,
        other => return Err(Error::corrupt("a path is not a tuple of keys").expected("tuple", other.repr())),
    };
    match keys.iter().find(|key| !is_key(key)) {
        Some(key) => Err(Error::corrupt(format!("{} cannot be a key of a dict", key.repr()))),
        None => Ok(keys),
    }
}

/// Whether the value can be a key in Python, with a `repr` that Python can read again.
fn is_key(key: &Literal) -> bool {
    match key {
        Literal::List(_) | Literal::Dict(_) | Literal::Set(_) | Literal::Ellipsis => false,
        Literal::Float(value) => value.is_finite(),
        Literal::Complex(re, im) => re.is_finite() && im.is_finite(),
        Literal::Tuple(keys) => keys.iter().all(is_key),
        _ => true,
    }
}

fn parse_entry(item: Literal) -> Result<Entry> {
    let Literal::Dict(members) = item else {
        return Err(
            Error::corrupt("an entry of the manifest is not a dict").expected("dict", item.type_name())
        );
    };
    let mut found: [Option<Literal>; KEYS.len()] = Default::default();
    for (key, value) in members {
        let Literal::Str(key) = key else { continue };
        let slot = KEYS.iter().position(|known| *known == key).and_then(|at| found.get_mut(at));
        if let Some(slot) = slot
            && slot.replace(value).is_some()
        {
            return Err(Error::corrupt(format!("an entry of the manifest has {key:?} twice")));
        }
    }
    let [path, dtype, shape, nbytes, offset, checksums] = found;
    let needed = |value: Option<Literal>, key: &str| {
        value.ok_or_else(|| Error::corrupt(format!("an entry of the manifest lacks {key:?}")))
    };
    let path = parse_path(needed(path, "path")?)?;
    let (dtype, shape) = (needed(dtype, "dtype")?, needed(shape, "shape")?);
    let (nbytes, offset) = (needed(nbytes, "nbytes")?, needed(offset, "offset")?);
    let with_path = |error: Error| about(error, &path);
    let Literal::Str(dtype) = dtype else {
        return Err(with_path(
            Error::corrupt("a dtype is not a type string").expected("such as '<f4'", dtype.repr()),
        ));
    };
    let descr = parse_dtype(&dtype).map_err(with_path)?;
    Ok(Entry {
        shape: parse_shape(shape).map_err(with_path)?,
        len_bytes: parse_size(&nbytes, "nbytes").map_err(with_path)?,
        offset_bytes: parse_size(&offset, "offset").map_err(with_path)?,
        crc32c: checksums.map(parse_checksums).transpose().map_err(with_path)?,
        descr,
        path,
    })
}

const KEYS: [&str; 6] = ["path", "dtype", "shape", "nbytes", "offset", "crc32c"];
const EXTRA_KEY: &str = "regrow";

fn parse_shape(literal: Literal) -> Result<Shape> {
    let bad = |literal: &Literal| {
        Error::corrupt("a shape is not a tuple of sizes").expected("such as (2, 3)", literal.repr())
    };
    let dims = match &literal {
        Literal::Tuple(dims) | Literal::List(dims) if dims.len() <= RANK_MAX => dims,
        other => return Err(bad(other)),
    };
    let dims: Option<Vec<u64>> = dims
        .iter()
        .map(|dim| match dim {
            Literal::Int(dim) => u64::try_from(*dim).ok().filter(|&dim| dim <= i64::MAX as u64),
            _ => None,
        })
        .collect();
    Shape::new(dims.ok_or_else(|| bad(&literal))?).map_err(|error| Error::corrupt(error.what()))
}

fn parse_size(literal: &Literal, what: &str) -> Result<u64> {
    let size = match literal {
        Literal::Int(size) => u64::try_from(*size).ok().filter(|&size| size <= i64::MAX as u64),
        _ => None,
    };
    size.ok_or_else(|| {
        Error::corrupt(format!("{what} is not a size in bytes"))
            .expected("an int of 0 or more", literal.repr())
    })
}

fn parse_checksums(literal: Literal) -> Result<Vec<u32>> {
    let sums = match &literal {
        Literal::Tuple(sums) | Literal::List(sums) => sums.iter().map(parse_u32).collect(),
        _ => None,
    };
    sums.ok_or_else(|| {
        Error::corrupt("crc32c is not a tuple of checksums").expected("a tuple of ints", literal.type_name())
    })
}

fn parse_u32(literal: &Literal) -> Option<u32> {
    match literal {
        Literal::Int(value) => u32::try_from(*value).ok(),
        _ => None,
    }
}

/// Takes regrow's record out of the first entry, and checks the manifest against it.
fn take_extra(literal: &mut Literal) -> Result<Option<Extra>> {
    let (Literal::List(items) | Literal::Tuple(items)) = &mut *literal else { return Ok(None) };
    let Some(Literal::Dict(first)) = items.first_mut() else { return Ok(None) };
    let is_extra = |(key, _): &(Literal, Literal)| matches!(key, Literal::Str(key) if key == EXTRA_KEY);
    let Some(at) = first.iter().position(is_extra) else { return Ok(None) };
    let bad = |what: &str| Error::corrupt(format!("the manifest's {EXTRA_KEY:?} cannot be read: {what}"));
    let Some((_, Literal::Dict(members))) = first.get_mut(at) else { return Err(bad("it is not a dict")) };
    let mut expected = None;
    for (key, value) in members.iter_mut() {
        if matches!(key, Literal::Str(key) if key == "crc32c") {
            expected = parse_u32(&std::mem::replace(value, Literal::Int(0)));
        }
    }
    let expected = expected.ok_or_else(|| bad("it has no checksum"))?;
    let members = std::mem::take(members);
    // Only regrow writes this record. So an unknown key shows that a newer regrow wrote the record.
    let mut extra = Extra::default();
    for (key, value) in &members {
        let Literal::Str(key) = key else { return Err(bad("a key is not text")) };
        match (key.as_str(), value) {
            ("crc32c", _) => {}
            ("data", Literal::Str(name))
                if !name.is_empty() && !name.contains(['/', '\0']) && name != ".." && name != "." =>
            {
                extra.data = Some(name.clone());
            }
            ("empty", Literal::Tuple(paths)) => {
                extra.empty = paths.iter().cloned().map(parse_path).collect::<Result<_>>()?;
            }
            ("structure", Literal::Str(json)) => extra.structure = Some(json.clone()),
            (other, _) => {
                return Err(
                    bad(&format!("{other:?} is not known")).help("a newer regrow wrote it: update regrow")
                );
            }
        }
    }
    if let Some((_, slot)) = first.get_mut(at) {
        *slot = Literal::Dict(members);
    }
    let found = crc32c(literal.repr().as_bytes());
    if found != expected {
        return Err(Error::corrupt("the manifest fails its own crc32c")
            .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
            .help("copy the manifest again; a manifest that was edited by hand must lose its 'regrow' and 'crc32c' keys"));
    }
    Ok(Some(extra))
}

fn entry_literal(entry: &Entry) -> Literal {
    let text = |key: &str| Literal::Str(key.to_owned());
    let size = |size: u64| Literal::Int(size.into());
    let mut members = vec![
        (text("dtype"), Literal::Str(entry.descr.text())),
        (text("nbytes"), size(entry.len_bytes)),
        (text("offset"), size(entry.offset_bytes)),
        (text("path"), Literal::Tuple(entry.path.clone())),
        (text("shape"), Literal::Tuple(entry.shape.dims().iter().map(|&dim| size(dim)).collect())),
    ];
    if let Some(sums) = &entry.crc32c {
        let sums = sums.iter().map(|&sum| Literal::Int(sum.into())).collect();
        members.insert(0, (text("crc32c"), Literal::Tuple(sums)));
    }
    Literal::Dict(members)
}

/// Puts regrow's record into the first entry, and replaces an earlier one.
fn set_extra(items: &mut [Literal], extra: &Extra, sum: u32) {
    let Some(Literal::Dict(first)) = items.first_mut() else { return };
    let text = |key: &str| Literal::Str(key.to_owned());
    let mut members = vec![(text("crc32c"), Literal::Int(sum.into()))];
    if let Some(data) = &extra.data {
        members.push((text("data"), text(data)));
    }
    if !extra.empty.is_empty() {
        let paths = extra.empty.iter().cloned().map(Literal::Tuple).collect();
        members.push((text("empty"), Literal::Tuple(paths)));
    }
    if let Some(structure) = &extra.structure {
        members.push((text("structure"), text(structure)));
    }
    let is_extra = |(key, _): &(Literal, Literal)| matches!(key, Literal::Str(key) if key == EXTRA_KEY);
    first.retain(|member| !is_extra(member));
    // The keys are sorted: 'regrow' is before 'shape'.
    first.insert(first.len().saturating_sub(1), (text(EXTRA_KEY), Literal::Dict(members)));
}

fn at_entry(error: Error, at: usize) -> Error {
    if error.place().leaf.is_some() || error.kind() == ErrorKind::Limit {
        return error;
    }
    let what = format!("{} (entry {at})", error.what());
    let expected = error.expected_found().map(|(expected, found)| (expected.to_owned(), found.to_owned()));
    let described = Error::new(error.kind(), what);
    match expected {
        Some((expected, found)) => described.expected(expected, found),
        None => described,
    }
}
