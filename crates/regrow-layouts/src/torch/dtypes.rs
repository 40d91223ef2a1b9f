//! PyTorch's names of dtypes and storages, and the dtypes of regrow.

use regrow_tree::array::Dtype;

/// The type of elements that a dtype of PyTorch means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Known(Dtype),
    /// A dtype that no layout has: quantised numbers, numbers shorter than a byte, bits without a
    /// type.
    Other {
        /// The bytes of an element in a storage.
        size_bytes: u64,
    },
}

impl Element {
    pub(super) fn size_bytes(self) -> u64 {
        match self {
            Self::Known(dtype) => dtype.size_bytes() as u64,
            Self::Other { size_bytes } => size_bytes,
        }
    }
}

/// PyTorch's old classes of storages, each with the dtype of its elements.
const STORAGES: [(&str, Element); 17] = {
    use Dtype as D;
    use Element::{Known, Other};
    [
        ("DoubleStorage", Known(D::Float64)),
        ("FloatStorage", Known(D::Float32)),
        ("HalfStorage", Known(D::Float16)),
        ("BFloat16Storage", Known(D::BFloat16)),
        ("LongStorage", Known(D::Int64)),
        ("IntStorage", Known(D::Int32)),
        ("ShortStorage", Known(D::Int16)),
        ("CharStorage", Known(D::Int8)),
        ("ByteStorage", Known(D::UInt8)),
        ("BoolStorage", Known(D::Bool)),
        ("ComplexDoubleStorage", Known(D::Complex128)),
        ("ComplexFloatStorage", Known(D::Complex64)),
        ("QInt32Storage", Other { size_bytes: 4 }),
        ("QInt8Storage", Other { size_bytes: 1 }),
        ("QUInt8Storage", Other { size_bytes: 1 }),
        ("QUInt4x2Storage", Other { size_bytes: 1 }),
        ("QUInt2x4Storage", Other { size_bytes: 1 }),
    ]
};

/// The storage without a dtype: bytes. Each tensor has its own dtype.
pub(super) const UNTYPED: &str = "UntypedStorage";

/// The modules with classes of storages.
pub(super) const STORAGE_MODULES: [&str; 3] = ["torch", "torch.cuda", "torch.storage"];

/// The elements of a class of storages, by its name; `None` for another class.
pub(super) fn of_storage(class: &str) -> Option<Element> {
    if class == UNTYPED {
        return Some(Element::Known(Dtype::UInt8));
    }
    STORAGES.iter().find(|(name, _)| *name == class).map(|(_, element)| *element)
}

/// The dtype `torch.<name>`; `None` for a name that this build does not know.
pub(super) fn of_name(name: &str) -> Option<Element> {
    use Dtype as D;
    Some(Element::Known(match name {
        "float32" | "float" => D::Float32,
        "float64" | "double" => D::Float64,
        "float16" | "half" => D::Float16,
        "bfloat16" => D::BFloat16,
        "int8" => D::Int8,
        "int16" | "short" => D::Int16,
        "int32" | "int" => D::Int32,
        "int64" | "long" => D::Int64,
        "uint8" => D::UInt8,
        "uint16" => D::UInt16,
        "uint32" => D::UInt32,
        "uint64" => D::UInt64,
        "bool" => D::Bool,
        "complex64" | "cfloat" => D::Complex64,
        "complex128" | "cdouble" => D::Complex128,
        "float8_e4m3fn" => D::Float8E4m3fn,
        "float8_e5m2" => D::Float8E5m2,
        "float8_e4m3fnuz" => D::Float8E4m3fnuz,
        "float8_e5m2fnuz" => D::Float8E5m2fnuz,
        "float8_e8m0fnu" => D::Float8E8m0fnu,
        "complex32" | "chalf" | "qint32" => return Some(Element::Other { size_bytes: 4 }),
        "bits16" => return Some(Element::Other { size_bytes: 2 }),
        "float4_e2m1fn_x2" | "qint8" | "quint8" | "quint4x2" | "quint2x4" | "bits8" | "bits4x2"
        | "bits2x4" | "bits1x8" | "int1" | "int2" | "int3" | "int4" | "int5" | "int6" | "int7" | "uint1"
        | "uint2" | "uint3" | "uint4" | "uint5" | "uint6" | "uint7" => {
            return Some(Element::Other { size_bytes: 1 });
        }
        _ => return None,
    }))
}
