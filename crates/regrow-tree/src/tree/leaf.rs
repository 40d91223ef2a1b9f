//! Leaves: their description ([`LeafInfo`]), and the leaf with its data ([`Leaf`]).

use std::borrow::Cow;
use std::sync::Arc;

use crate::array::{Array, Dtype, Shape};
use crate::sharding::Sharding;

/// What a leaf was in the program that saved it, so that it comes back as that.
///
/// Everything but [`Str`](Self::Str), [`Placeholder`](Self::Placeholder) and
/// [`Unknown`](Self::Unknown) is stored as an array: scalars with shape `[]`, bytes as `uint8` of
/// shape `[length]`, a PRNG key as its `uint32` key data, an array of a dtype outside [`Dtype`] as
/// `uint8` with an axis more, the bytes of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LeafKind {
    /// A NumPy array.
    NumpyArray,
    /// A NumPy scalar such as `np.float32(1)`.
    NumpyScalar,
    /// A NumPy array of a dtype that is no [`Dtype`] (text, dates, records, void, extended floats),
    /// with that dtype as npy headers spell it: `<U8`, `<M8[ns]`, `[('a', '<f4'), ('b', '|u1')]`.
    NumpyOther(Arc<str>),
    /// A NumPy scalar of such a dtype: `ml_dtypes.int1(1)`, `np.datetime64("2020")`. Only Flax'
    /// msgpack tells it from an array without axes, so every other layout refuses it.
    NumpyOtherScalar(Arc<str>),
    /// A JAX array.
    JaxArray,
    /// A typed PRNG key, with the name of its implementation where it is known (`threefry2x32`,
    /// `rbg`).
    PrngKey(Option<Arc<str>>),
    /// A Python bool, int, float or complex; its dtype tells which.
    Scalar,
    /// Text.
    Str,
    /// Bytes.
    Bytes,
    /// A leaf that was left out on purpose (the Python literal `...`).
    Placeholder,
    /// A leaf of a user's own type handler: named, never decoded.
    Unknown(Arc<str>),
}

/// How the name of the unknown type of an integer beyond 64 bits begins; its digits follow. JSON
/// documents have such.
pub const BIG_INTEGER: &str = "int ";

impl LeafKind {
    /// A lower-case name for tables and JSON: `jax_array`, `scalar`, ...
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

    /// Whether casts that are asked for apply: to arrays and NumPy scalars. Bytes, PRNG keys and
    /// Python's own numbers are no arrays to their users, and stay as they are.
    #[inline]
    pub fn is_castable(&self) -> bool {
        matches!(self, Self::JaxArray | Self::NumpyArray | Self::NumpyScalar)
    }

    /// Whether the leaf has array data behind it.
    #[inline]
    pub fn is_array(&self) -> bool {
        !matches!(self, Self::Str | Self::Placeholder | Self::Unknown(_))
    }
}

/// Facts about a leaf that need no access to its data.
#[derive(Debug, Clone, PartialEq)]
pub struct LeafInfo {
    /// What the leaf is.
    pub kind: LeafKind,
    /// The type of its elements; `uint8` for text.
    pub dtype: Dtype,
    /// The shape; for text the length of its UTF-8 in bytes.
    pub shape: Shape,
    /// The name it is stored under (`params.dense.kernel`).
    pub name: Arc<str>,
    /// Shape of the smallest piece that is stored and decoded alone, where the layout cuts arrays.
    pub chunk_shape: Option<Shape>,
    /// Shape of one piece as it was written (of Orbax's `jax.Array` leaves).
    pub write_shape: Option<Shape>,
    /// How the array lay on devices when it was saved: advice, never needed to read.
    pub sharding: Option<Arc<Sharding>>,
    /// How its bytes are coded, for people: `raw`, `zstd`, `sharding_indexed(zstd)`.
    pub coding: Arc<str>,
}

impl LeafInfo {
    /// The bytes of a chunk, decoded; `None` for a leaf without chunks.
    pub fn chunk_len_bytes(&self) -> Option<u64> {
        self.chunk_shape.as_ref().map(|shape| shape.len_bytes(self.dtype).unwrap_or(u64::MAX))
    }

    /// A leaf that has no data of its own: a placeholder, or what its layout does not decode.
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

    /// Bytes of the decoded leaf; saturates for shapes that no memory could hold.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.shape.len_bytes(self.dtype).unwrap_or(u64::MAX)
    }

    /// Whether the leaf has data: a placeholder and a leaf of an unknown type have none.
    #[inline]
    pub fn has_data(&self) -> bool {
        !matches!(self.kind, LeafKind::Placeholder | LeafKind::Unknown(_))
    }

    /// Bytes of the decoded leaf; 0 for a leaf without data.
    #[inline]
    pub fn data_len_bytes(&self) -> u64 {
        if self.has_data() { self.len_bytes() } else { 0 }
    }

    /// The dtype in a table: `float32`, `str`, `key<threefry2x32>`, `unknown<posix.system>`, `-`
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

    /// The part of the array that a device held when it was saved, the longest if they differ;
    /// `None` if that is not recorded, or what is recorded does not fit the array.
    #[inline]
    pub fn shard_shape(&self) -> Option<Shape> {
        self.sharding.as_ref()?.shard_shape(&self.shape).ok()
    }
}

/// A Python or NumPy number that is no array.
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
    /// A complex number: real part, imaginary part.
    Complex(f64, f64),
}

impl Scalar {
    /// The dtype that Orbax would give it, and the one element's bytes, little endian.
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
    /// What the leaf is.
    pub kind: LeafKind,
    /// Its data.
    pub data: LeafData,
    /// How the array lies on devices: advice for a restore.
    pub sharding: Option<Arc<Sharding>>,
}

/// The data of a leaf.
#[derive(Debug, Clone)]
pub enum LeafData {
    /// An array (scalars with shape `[]`).
    Array(Array),
    /// Text.
    Text(Arc<str>),
    /// Nothing: a placeholder, or a leaf of an unknown kind.
    Absent,
}

impl Leaf {
    /// A NumPy-kind array leaf.
    #[inline]
    pub fn array(array: Array) -> Self {
        Self { kind: LeafKind::NumpyArray, data: LeafData::Array(array), sharding: None }
    }

    /// A text leaf.
    #[inline]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self { kind: LeafKind::Str, data: LeafData::Text(text.into()), sharding: None }
    }

    /// A Python scalar, as a 0-d array of the dtype that Orbax would give it.
    pub fn scalar(value: Scalar) -> Self {
        let (dtype, bytes) = value.to_element();
        Self {
            kind: LeafKind::Scalar,
            data: LeafData::Array(Array::from_parts(dtype, Shape::scalar(), bytes.into())),
            sharding: None,
        }
    }

    /// The array behind the leaf, if there is one.
    pub fn as_array(&self) -> Option<&Array> {
        match &self.data {
            LeafData::Array(array) => Some(array),
            _ => None,
        }
    }
}
