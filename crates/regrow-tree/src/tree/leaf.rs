//! Leaves: their description ([`LeafInfo`]), and the leaf with its data ([`Leaf`]).

use std::borrow::Cow;
use std::sync::Arc;

use crate::array::{Array, Dtype, Shape};
use crate::sharding::Sharding;

/// The kind of a leaf in the program that saved it. A load restores the same kind.
///
/// Everything except [`Str`](Self::Str), [`Placeholder`](Self::Placeholder) and
/// [`Unknown`](Self::Unknown) is stored as an array. Scalars have the shape `[]`. Bytes are `uint8`
/// of shape `[length]`. A PRNG key is stored as its `uint32` key data. An array of a dtype outside
/// [`Dtype`] is stored as `uint8`, with one more axis for the bytes of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LeafKind {
    /// A NumPy array.
    NumpyArray,
    /// A NumPy scalar such as `np.float32(1)`.
    NumpyScalar,
    /// A NumPy array whose dtype is not in [`Dtype`] (text, dates, records, void, extended floats).
    /// The text is the dtype as in npy headers: `<U8`, `<M8[ns]`, `[('a', '<f4'), ('b',
    /// '|u1')]`.
    NumpyOther(Arc<str>),
    /// A NumPy scalar whose dtype is not in [`Dtype`]: `ml_dtypes.int1(1)`,
    /// `np.datetime64("2020")`. Only Flax' msgpack distinguishes it from an array without axes. All
    /// other layouts refuse it.
    NumpyOtherScalar(Arc<str>),
    /// A JAX array.
    JaxArray,
    /// A typed PRNG key, with the name of its implementation, if known (`threefry2x32`, `rbg`).
    PrngKey(Option<Arc<str>>),
    /// A Python bool, int, float or complex; the dtype shows which.
    Scalar,
    /// Text.
    Str,
    /// Bytes.
    Bytes,
    /// A leaf that was omitted on purpose (the Python literal `...`).
    Placeholder,
    /// A leaf of a user's own type handler. regrow knows its type name, but never decodes it.
    Unknown(Arc<str>),
}

/// A JSON document can have an integer beyond 64 bits. Such a leaf has the kind
/// `LeafKind::Unknown`; its type name is this text, followed by the digits.
pub const BIG_INTEGER: &str = "int ";

impl LeafKind {
    /// A lower-case name for tables and JSON, for example `jax_array` or `scalar`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NumpyArray => "numpy_array",
            Self::NumpyScalar => "numpy_scalar",
            Self::NumpyOther(_) => "numpy_other",
            Self::NumpyOtherScalar(_) => "numpy_other_scalar",
            Self::JaxArray => "jax_array",
            Self::PrngKey(_) => "prng_key",
            Self::Scalar => "scalar",
            Self::Str => "str",
            Self::Bytes => "bytes",
            Self::Placeholder => "placeholder",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Whether requested casts apply. They apply to arrays and NumPy scalars. For users, bytes,
    /// PRNG keys and Python's own numbers are not arrays, so casts do not change them.
    #[inline]
    pub fn is_castable(&self) -> bool {
        matches!(self, Self::JaxArray | Self::NumpyArray | Self::NumpyScalar)
    }

    /// Whether the leaf has array data.
    #[inline]
    pub fn is_array(&self) -> bool {
        !matches!(self, Self::Str | Self::Placeholder | Self::Unknown(_))
    }
}

/// The description of a leaf. It needs no access to the data.
#[derive(Debug, Clone, PartialEq)]
pub struct LeafInfo {
    /// The kind of the leaf.
    pub kind: LeafKind,
    /// The type of the elements; `uint8` for text.
    pub dtype: Dtype,
    /// The shape. For a text, the length of its UTF-8 in bytes.
    pub shape: Shape,
    /// The name with which the leaf is stored (`params.dense.kernel`).
    pub name: Arc<str>,
    /// The shape of the chunks, if the layout divides the array. Each chunk is decoded alone.
    pub chunk_shape: Option<Shape>,
    /// The shape of one shard as it was written (for `jax.Array` leaves of Orbax).
    pub write_shape: Option<Shape>,
    /// The sharding of the array when it was saved. A read does not need it.
    pub sharding: Option<Arc<Sharding>>,
    /// The encoding of the bytes, for people: `raw`, `zstd`, `sharding_indexed(zstd)`.
    pub coding: Arc<str>,
}

impl LeafInfo {
    /// The length of a decoded chunk in bytes; `None` for a leaf without chunks.
    pub fn chunk_len_bytes(&self) -> Option<u64> {
        self.chunk_shape.as_ref().map(|shape| shape.len_bytes(self.dtype).unwrap_or(u64::MAX))
    }

    /// A leaf without data: a placeholder, or a leaf that its layout does not decode.
    pub fn without_data(kind: LeafKind, name: &str, coding: &str) -> Self {
        Self {
            kind,
            dtype: Dtype::UInt8,
            shape: Shape::new(vec![0]).unwrap_or_default(),
            name: name.into(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: coding.into(),
        }
    }

    /// The length of the decoded leaf in bytes; `u64::MAX` if it overflows.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.shape.len_bytes(self.dtype).unwrap_or(u64::MAX)
    }

    /// Whether the leaf has data: a placeholder and a leaf of an unknown type have none.
    #[inline]
    pub fn has_data(&self) -> bool {
        !matches!(self.kind, LeafKind::Placeholder | LeafKind::Unknown(_))
    }

    /// The length of the decoded leaf in bytes; 0 for a leaf without data.
    #[inline]
    pub fn data_len_bytes(&self) -> u64 {
        if self.has_data() { self.len_bytes() } else { 0 }
    }

    /// The dtype for a table: `float32`, `str`, `key<threefry2x32>`, `unknown<posix.system>`; `-`
    /// for a placeholder.
    pub fn dtype_text(&self) -> Cow<'_, str> {
        match &self.kind {
            LeafKind::Str => "str".into(),
            LeafKind::PrngKey(Some(implementation)) => format!("key<{implementation}>").into(),
            LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => (&**dtype).into(),
            LeafKind::Placeholder => "-".into(),
            LeafKind::Unknown(type_name) => format!("unknown<{type_name}>").into(),
            _ => self.dtype.name().into(),
        }
    }

    /// The shape of a device's part when the array was saved; if parts differ, the longest. `None`
    /// if no sharding is recorded, or the sharding does not match the array.
    #[inline]
    pub fn shard_shape(&self) -> Option<Shape> {
        self.sharding.as_ref()?.shard_shape(&self.shape).ok()
    }
}

/// A Python number, or a NumPy number that is not an array.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A bool.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An integer of at least 2^63.
    UInt(u64),
    /// A float.
    Float(f64),
    /// A complex number: real part and imaginary part.
    Complex(f64, f64),
}

impl Scalar {
    /// The dtype that Orbax uses for the number, and the little-endian bytes of the element.
    pub fn to_element(self) -> (Dtype, Vec<u8>) {
        match self {
            Self::Bool(v) => (Dtype::Bool, vec![u8::from(v)]),
            Self::Int(v) => (Dtype::Int64, v.to_le_bytes().to_vec()),
            Self::UInt(v) => (Dtype::UInt64, v.to_le_bytes().to_vec()),
            Self::Float(v) => (Dtype::Float64, v.to_le_bytes().to_vec()),
            Self::Complex(re, im) => (Dtype::Complex128, [re.to_le_bytes(), im.to_le_bytes()].concat()),
        }
    }
}

/// A leaf with its data.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// The kind of the leaf.
    pub kind: LeafKind,
    /// The data of the leaf.
    pub data: LeafData,
    /// The sharding of the array, which a restore may use.
    pub sharding: Option<Arc<Sharding>>,
}

/// The data of a leaf.
#[derive(Debug, Clone)]
pub enum LeafData {
    /// An array (scalars with shape `[]`).
    Array(Array),
    /// Text.
    Text(Arc<str>),
    /// No data: a placeholder, or a leaf of an unknown type.
    Absent,
}

impl Leaf {
    /// A leaf with a NumPy array.
    #[inline]
    pub fn array(array: Array) -> Self {
        Self { kind: LeafKind::NumpyArray, data: LeafData::Array(array), sharding: None }
    }

    /// A text leaf.
    #[inline]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self { kind: LeafKind::Str, data: LeafData::Text(text.into()), sharding: None }
    }

    /// A leaf with a Python scalar, as a 0-d array of the dtype that Orbax uses for it.
    pub fn scalar(value: Scalar) -> Self {
        let (dtype, bytes) = value.to_element();
        Self {
            kind: LeafKind::Scalar,
            data: LeafData::Array(Array::from_parts(dtype, Shape::scalar(), bytes.into())),
            sharding: None,
        }
    }

    /// The array of the leaf; `None` if it has none.
    pub fn as_array(&self) -> Option<&Array> {
        match &self.data {
            LeafData::Array(array) => Some(array),
            _ => None,
        }
    }
}
