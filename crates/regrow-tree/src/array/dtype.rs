//! Element types.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The type of an array's elements: every type of NumPy and ml_dtypes that a layout can store.
///
/// In memory, an element of a type below 8 bits takes one byte, as in NumPy, JAX and zarr. The
/// value is in the low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are NumPy's and ml_dtypes' own")]
pub enum Dtype {
    Bool,
    Int2,
    Int4,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt2,
    UInt4,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float4E2m1fn,
    Float6E2m3fn,
    Float6E3m2fn,
    Float8E3m4,
    Float8E4m3,
    Float8E4m3fn,
    Float8E4m3fnuz,
    Float8E4m3b11fnuz,
    Float8E5m2,
    Float8E5m2fnuz,
    Float8E8m0fnu,
    BFloat16,
    Float16,
    Float32,
    Float64,
    Complex64,
    Complex128,
}

/// The kind of number in a dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DtypeClass {
    /// true or false.
    Bool,
    /// Signed integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floating point.
    Float,
    /// Complex numbers: real part and imaginary part.
    Complex,
}

/// Each row: dtype, NumPy's name, bytes of an element, class.
const TABLE: [(Dtype, &str, usize, DtypeClass); 30] = {
    use Dtype as D;
    use DtypeClass as C;
    [
        (D::Bool, "bool", 1, C::Bool),
        (D::Int2, "int2", 1, C::Signed),
        (D::Int4, "int4", 1, C::Signed),
        (D::Int8, "int8", 1, C::Signed),
        (D::Int16, "int16", 2, C::Signed),
        (D::Int32, "int32", 4, C::Signed),
        (D::Int64, "int64", 8, C::Signed),
        (D::UInt2, "uint2", 1, C::Unsigned),
        (D::UInt4, "uint4", 1, C::Unsigned),
        (D::UInt8, "uint8", 1, C::Unsigned),
        (D::UInt16, "uint16", 2, C::Unsigned),
        (D::UInt32, "uint32", 4, C::Unsigned),
        (D::UInt64, "uint64", 8, C::Unsigned),
        (D::Float4E2m1fn, "float4_e2m1fn", 1, C::Float),
        (D::Float6E2m3fn, "float6_e2m3fn", 1, C::Float),
        (D::Float6E3m2fn, "float6_e3m2fn", 1, C::Float),
        (D::Float8E3m4, "float8_e3m4", 1, C::Float),
        (D::Float8E4m3, "float8_e4m3", 1, C::Float),
        (D::Float8E4m3fn, "float8_e4m3fn", 1, C::Float),
        (D::Float8E4m3fnuz, "float8_e4m3fnuz", 1, C::Float),
        (D::Float8E4m3b11fnuz, "float8_e4m3b11fnuz", 1, C::Float),
        (D::Float8E5m2, "float8_e5m2", 1, C::Float),
        (D::Float8E5m2fnuz, "float8_e5m2fnuz", 1, C::Float),
        (D::Float8E8m0fnu, "float8_e8m0fnu", 1, C::Float),
        (D::BFloat16, "bfloat16", 2, C::Float),
        (D::Float16, "float16", 2, C::Float),
        (D::Float32, "float32", 4, C::Float),
        (D::Float64, "float64", 8, C::Float),
        (D::Complex64, "complex64", 8, C::Complex),
        (D::Complex128, "complex128", 16, C::Complex),
    ]
};

impl Dtype {
    /// Every dtype.
    #[inline]
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name in NumPy (`dtype.name`) and zarr v3: `float32`, `bfloat16`, `float8_e4m3fn`.
    #[inline]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of an element in memory.
    #[inline]
    pub fn size_bytes(self) -> usize {
        self.row().2
    }

    /// The kind of number.
    #[inline]
    pub fn class(self) -> DtypeClass {
        self.row().3
    }

    /// Bytes of the unit whose byte order matters: the size of an element, or half of it for
    /// complex types.
    pub fn word_bytes(self) -> usize {
        match self.class() {
            DtypeClass::Complex => self.size_bytes() / 2,
            _ => self.size_bytes(),
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the table has a row for every variant, in order; a test checks it"
    )]
    fn row(self) -> &'static (Self, &'static str, usize, DtypeClass) {
        &TABLE[self as usize]
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
            Error::unsupported(format!("dtype {name:?} is not known")).help(
                "regrow stores the numeric dtypes of NumPy and ml_dtypes; convert the array to one of them",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
            assert_eq!(row.1.parse::<Dtype>().unwrap(), row.0);
        }
        assert_eq!(Dtype::all().count(), TABLE.len());
    }

    #[test]
    fn an_unknown_dtype_is_named() {
        let error = "float128".parse::<Dtype>().unwrap_err();
        assert!(error.to_string().contains("float128"));
    }
}
