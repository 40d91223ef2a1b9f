//! The msgpack of flax and of the oldest Orbax: one object, a tree of maps and leaves.
//!
//! ```text
//! map            dict, keys text (or integers since 2026); a list of the user's is a map "0", "1", …
//! ext 1          ndarray       payload: msgpack [shape, dtype name, bytes in C order]
//! ext 2          complex       payload: msgpack [re, im]
//! ext 3          NumPy scalar  payload as of ext 1
//! {"__msgpack_chunked_array__": true, "shape": {"0": …}, "chunks": {"0": ext 1, …}}      arrays over 1 GiB
//! ```
//!
//! Arrays stay where they are in the file's bytes: decoding copies none. rmpv bounds nesting and allocation.
//! Source: flax `serialization.py`.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use rmpv::ValueRef;
use rmpv::decode::read_value_ref_with_max_depth;

use super::slot::Slot;
use crate::array::{Dtype, Shape};
use crate::error::{Error, Result, ResultExt};
use crate::tree::{Key, KeyPath, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};

const EXT_NDARRAY: i8 = 1;
const EXT_COMPLEX: i8 = 2;
const EXT_NUMPY_SCALAR: i8 = 3;
const CHUNKED_KEY: &str = "__msgpack_chunked_array__";

/// Deepest nesting that is read: rmpv's own 1024 levels can need more than the 2 MiB of a thread's stack.
const DEPTH_MAX: usize = 512;

/// What a text leaf stands for, if not for itself.
pub(super) type Resolve<'r> = dyn FnMut(&str) -> Result<Option<Slot>> + 'r;

/// Whether a file may be such a tree, by its first byte: a map.
pub(super) fn starts_like_a_map(first: u8) -> bool {
    matches!(first, 0x80..=0x8f | 0xde | 0xdf)
}

/// Decodes the file. `resolve` is asked about every text, since some stand for arrays elsewhere.
///
/// # Errors
/// `Corrupt` with file, leaf and, for broken msgpack, the offset.
pub(super) fn decode(bytes: &Bytes, file: &Path, resolve: &mut Resolve<'_>) -> Result<Tree<Slot>> {
    let value = read_one(bytes).in_file(file)?;
    let mut decoder = Decoder { bytes, path: KeyPath::root(), build: TreeBuilder::new(), resolve };
    if let Err(error) = decoder.node(Key::Index(0), &value) {
        return Err(error.at_leaf(&decoder.path).in_file(file));
    }
    decoder.build.finish()
}

/// Reads one msgpack value that must fill `bytes`.
fn read_one(bytes: &[u8]) -> Result<ValueRef<'_>> {
    let mut rest = bytes;
    let value = read_value_ref_with_max_depth(&mut rest, DEPTH_MAX).map_err(|error| {
        Error::corrupt(format!("the msgpack cannot be read: {error}"))
            .at_byte((bytes.len() - rest.len()) as u64)
            .help("the file is cut short or damaged; copy it again")
    })?;
    if !rest.is_empty() {
        return Err(Error::corrupt("bytes are left over after the msgpack object")
            .at_byte((bytes.len() - rest.len()) as u64));
    }
    Ok(value)
}

struct Decoder<'a, 'r> {
    bytes: &'a Bytes,
    /// Where we are; stays at the place of an error.
    path: KeyPath,
    build: TreeBuilder<Slot>,
    resolve: &'a mut Resolve<'r>,
}

impl Decoder<'_, '_> {
    fn node(&mut self, key: Key, value: &ValueRef<'_>) -> Result<()> {
        let name = self.path.join(".");
        let leaf = match value {
            ValueRef::Nil => {
                self.build.open(key, NodeKind::None)?;
                return self.build.close();
            }
            ValueRef::Map(members) => {
                if find(members, CHUNKED_KEY).is_none() {
                    return self.map(key, members);
                }
                self.chunked(&name, members)?
            }
            ValueRef::Array(items) => {
                self.build.open(key, NodeKind::List)?;
                for (i, item) in items.iter().enumerate() {
                    self.child(Key::Index(i), item)?;
                }
                return self.build.close();
            }
            ValueRef::Boolean(value) => Slot::scalar(&name, Scalar::Bool(*value), "msgpack"),
            ValueRef::Integer(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Slot::scalar(&name, Scalar::Int(number), "msgpack"),
                (None, number) => Slot::scalar(&name, Scalar::UInt(number.unwrap_or(u64::MAX)), "msgpack"),
            },
            ValueRef::F32(number) => Slot::scalar(&name, Scalar::Float(f64::from(*number)), "msgpack"),
            ValueRef::F64(number) => Slot::scalar(&name, Scalar::Float(*number), "msgpack"),
            ValueRef::String(text) => {
                let text = text.as_str().ok_or_else(|| Error::corrupt("a text is no UTF-8"))?;
                (self.resolve)(text)?.unwrap_or_else(|| Slot::text(&name, text))
            }
            ValueRef::Binary(bytes) => {
                let shape = Shape::new(vec![bytes.len() as u64])?;
                Slot::pieces(&name, LeafKind::Bytes, Dtype::UInt8, shape, vec![self.bytes.slice_ref(bytes)])?
            }
            ValueRef::Ext(EXT_NDARRAY, payload) => self.array(&name, LeafKind::NumpyArray, payload)?,
            ValueRef::Ext(EXT_NUMPY_SCALAR, payload) => {
                // A payload with axes comes back as an array in flax, too.
                let slot = self.array(&name, LeafKind::NumpyScalar, payload)?;
                match slot.info.shape.rank() {
                    0 => slot,
                    _ => self.array(&name, LeafKind::NumpyArray, payload)?,
                }
            }
            ValueRef::Ext(EXT_COMPLEX, payload) => match read_one(payload)? {
                ValueRef::Array(parts) => match parts.as_slice() {
                    [re, im] => Slot::scalar(&name, Scalar::Complex(number(re)?, number(im)?), "msgpack"),
                    _ => return Err(Error::corrupt("a complex number has not two parts")),
                },
                _ => return Err(Error::corrupt("a complex number has not two parts")),
            },
            ValueRef::Ext(code, _) => {
                Slot::absent(&name, LeafKind::Unknown(format!("msgpack extension {code}").into()))
            }
        };
        self.build.leaf(key, leaf)
    }

    fn child(&mut self, key: Key, value: &ValueRef<'_>) -> Result<()> {
        self.path.push(key.clone());
        self.node(key, value)?;
        self.path.pop();
        Ok(())
    }

    fn map(&mut self, key: Key, members: &[(ValueRef<'_>, ValueRef<'_>)]) -> Result<()> {
        self.build.open(key, NodeKind::Dict)?;
        let mut keys = Vec::with_capacity(members.len());
        // Of a key that is there twice, the last one counts.
        let mut last: HashMap<Key, usize> = HashMap::with_capacity(members.len());
        for (i, (key, _)) in members.iter().enumerate() {
            let key = match key {
                ValueRef::String(text) => text.as_str().map(Key::dict),
                ValueRef::Integer(number) => number.as_i64().map(Key::DictInt),
                _ => None,
            };
            let key =
                key.ok_or_else(|| Error::unsupported("a map has a key that is neither text nor an integer"))?;
            last.insert(key.clone(), i);
            keys.push(key);
        }
        for (i, (key, (_, value))) in keys.into_iter().zip(members).enumerate() {
            if last.get(&key) == Some(&i) {
                self.child(key, value)?;
            }
        }
        self.build.close()
    }

    fn array(&self, name: &str, kind: LeafKind, payload: &[u8]) -> Result<Slot> {
        let (shape, dtype, data) = self.ndarray(payload)?;
        match dtype.parse() {
            Ok(dtype) => Slot::pieces(name, kind, dtype, shape, vec![data]),
            // flax wrote texts and records that it cannot read itself; the other leaves are sound.
            Err(_) => Ok(Slot::absent(name, LeafKind::Unknown(format!("array of dtype {dtype}").into()))),
        }
    }

    /// Shape, dtype name and data of an ndarray's payload.
    fn ndarray(&self, payload: &[u8]) -> Result<(Shape, String, Bytes)> {
        let bad = || Error::corrupt("an array is not stored as shape, dtype and bytes");
        let ValueRef::Array(parts) = read_one(payload)? else { return Err(bad()) };
        let [shape, dtype, data] = parts.as_slice() else { return Err(bad()) };
        let dims: Option<Vec<u64>> =
            shape.as_array().ok_or_else(bad)?.iter().map(|dim| dim.as_u64()).collect();
        let dtype = std::str::from_utf8(raw(dtype).ok_or_else(bad)?).map_err(|_| bad())?.to_owned();
        let data = self.bytes.slice_ref(raw(data).ok_or_else(bad)?);
        Ok((Shape::new(dims.ok_or_else(bad)?)?, dtype, data))
    }

    fn chunked(&self, name: &str, members: &[(ValueRef<'_>, ValueRef<'_>)]) -> Result<Slot> {
        let broken = |what: &str| Error::corrupt(format!("an array in chunks lacks its {what}"));
        let dims: Option<Vec<u64>> = numbered(find(members, "shape"))
            .ok_or_else(|| broken("shape"))?
            .iter()
            .map(|dim| dim.as_u64())
            .collect();
        let shape = Shape::new(dims.ok_or_else(|| broken("shape"))?)?;
        let chunks = numbered(find(members, "chunks")).ok_or_else(|| broken("chunks"))?;
        let mut dtype: Option<Dtype> = None;
        let mut pieces = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let ValueRef::Ext(EXT_NDARRAY, payload) = chunk else { return Err(broken("chunks")) };
            let (_, of, data) = self.ndarray(payload)?;
            let of: Dtype = of.parse()?;
            if *dtype.get_or_insert(of) != of {
                return Err(Error::corrupt("the chunks of an array differ in dtype"));
            }
            pieces.push(data);
        }
        Slot::pieces(name, LeafKind::NumpyArray, dtype.ok_or_else(|| broken("chunks"))?, shape, pieces)
    }
}

fn number(value: &ValueRef<'_>) -> Result<f64> {
    match value {
        ValueRef::F64(number) => Ok(*number),
        ValueRef::F32(number) => Ok(f64::from(*number)),
        ValueRef::Integer(number) => number.as_f64().ok_or_else(no_number),
        _ => Err(no_number()),
    }
}

fn no_number() -> Error {
    Error::corrupt("a part of a complex number is no number")
}

/// The bytes of a text or of bytes: flax reads either as the other.
fn raw<'v>(value: &'v ValueRef<'_>) -> Option<&'v [u8]> {
    match value {
        ValueRef::Binary(bytes) => Some(bytes),
        ValueRef::String(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn find<'v, 'b>(members: &'v [(ValueRef<'b>, ValueRef<'b>)], key: &str) -> Option<&'v ValueRef<'b>> {
    members
        .iter()
        .rev()
        .find(|(name, _)| matches!(name, ValueRef::String(text) if text.as_str() == Some(key)))
        .map(|(_, value)| value)
}

/// The values of a map `"0"`, `"1"`, … in the order of their numbers.
fn numbered<'v, 'b>(value: Option<&'v ValueRef<'b>>) -> Option<Vec<&'v ValueRef<'b>>> {
    let ValueRef::Map(members) = value? else { return None };
    let mut items = Vec::with_capacity(members.len());
    for (key, value) in members {
        let ValueRef::String(text) = key else { return None };
        items.push((text.as_str()?.parse::<usize>().ok()?, value));
    }
    items.sort_unstable_by_key(|&(number, _)| number);
    items
        .iter()
        .enumerate()
        .all(|(i, &(number, _))| i == number)
        .then(|| items.into_iter().map(|(_, value)| value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::tree::LeafInfo;
    use rmpv::Value;

    fn ext(code: i8, shape: &[u64], dtype: &str, data: &[u8]) -> Value {
        let payload = Value::Array(vec![
            Value::Array(shape.iter().map(|&dim| dim.into()).collect()),
            dtype.into(),
            Value::Binary(data.to_vec()),
        ]);
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &payload).unwrap();
        Value::Ext(code, bytes)
    }

    fn read(value: &Value) -> Result<Tree<Slot>> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        decode(&bytes.into(), Path::new("checkpoint"), &mut |_| Ok(None))
    }

    fn map(members: Vec<(&str, Value)>) -> Value {
        Value::Map(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    #[test]
    fn joins_arrays_in_chunks() {
        let value = map(vec![(
            "big",
            map(vec![
                (CHUNKED_KEY, true.into()),
                ("shape", map(vec![("0", 3.into()), ("1", 1.into())])),
                (
                    "chunks",
                    map(vec![
                        ("1", ext(1, &[1], "int16", &[5, 6])),
                        ("0", ext(1, &[2], "int16", &[1, 2, 3, 4])),
                    ]),
                ),
            ]),
        )]);
        let tree = read(&value).unwrap();
        assert_eq!(tree.paths()[0].to_string(), "big");
        let slot = &tree.leaves()[0];
        let crate::formats::orbax::slot::Source::Pieces(pieces) = &slot.source else { panic!() };
        assert_eq!(pieces.concat(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(slot.info.shape.dims(), [3, 1]);
    }

    #[test]
    fn keeps_what_each_leaf_was() {
        let value = map(vec![
            ("a", ext(1, &[], "bfloat16", &[1, 2])),
            ("b", ext(3, &[], "bool", &[1])),
            ("c", Value::Ext(2, vec![0x92, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 2])),
            ("d", u64::MAX.into()),
            ("e", Value::Binary(vec![1, 2])),
            ("f", Value::Array(vec![1.5.into(), Value::Nil])),
            ("g", ext(1, &[1], "str96", &[0; 12])),
            ("h", Value::Ext(9, vec![])),
            ("a", false.into()),
        ]);
        let tree = read(&value).unwrap();
        let kinds: Vec<String> = tree
            .iter()
            .map(|(path, Slot { info: LeafInfo { kind, dtype, .. }, .. })| {
                format!("{path}:{}:{dtype}", kind.name())
            })
            .collect();
        assert_eq!(
            kinds,
            [
                "b:numpy_scalar:bool",
                "c:scalar:complex128",
                "d:scalar:uint64",
                "e:bytes:uint8",
                "f/0:scalar:float64",
                "g:unknown:uint8",
                "h:unknown:uint8",
                "a:scalar:bool"
            ]
        );
    }

    #[test]
    fn names_the_leaf_that_is_broken() {
        let error = read(&map(vec![("p", map(vec![("w", ext(1, &[3], "int16", &[0; 4]))]))])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "p/w");
        let error = read(&map(vec![("p", ext(1, &[u64::MAX, 9], "int16", &[]))])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        for bytes in [&[0x81_u8][..], &[0x80, 0x80], &[0xdf, 0xff, 0xff, 0xff, 0xff], &[0x91; 5000]] {
            let error =
                decode(&Bytes::copy_from_slice(bytes), Path::new("f"), &mut |_| Ok(None)).unwrap_err();
            assert_eq!(error.place().file.as_deref(), Some(Path::new("f")));
        }
    }
}
