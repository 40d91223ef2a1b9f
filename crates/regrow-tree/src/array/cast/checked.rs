//! The leaves that a cast applies to, and the error for a value that the cast would change beyond
//! rounding.

use super::cast_bytes;
use crate::array::{Dtype, DtypeClass};
use crate::error::{Error, Result};

/// How a cast treats values that it would change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Casting {
    /// A value that changes beyond rounding is an error. A pattern applies to leaves with the same
    /// kind of dtype as the target (bool, integer, floating, complex). A pattern that is the whole
    /// key path of a leaf applies to leaves of any kind.
    #[default]
    Checked,
    /// As `Checked`, but values may change as in [`cast_bytes`], because the caller allows it.
    Lossy,
    /// A pattern applies to all leaves that it matches, and values change as in [`cast_bytes`]. The
    /// drop-in functions use this.
    AsNumpy,
}

impl Casting {
    /// Casts elements as [`cast_bytes`] does.
    ///
    /// # Errors
    /// The same as for [`cast_checked`], if values are checked.
    pub fn cast(self, src: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Checked => cast_checked(src, from, to, out),
            Self::Lossy | Self::AsNumpy => cast_bytes(src, from, to, out).map(drop),
        }
    }
}

/// Whether both dtypes are of the same kind: bool, integer, floating or complex.
pub fn is_same_kind(one: Dtype, other: Dtype) -> bool {
    let kind = |dtype: Dtype| match dtype.class() {
        DtypeClass::Unsigned => DtypeClass::Signed,
        class => class,
    };
    kind(one) == kind(other)
}

/// Casts elements like [`cast_bytes`]. Returns an error if a value changes by more than rounding.
///
/// # Errors
/// `Unsupported` with the first value that changes, and its result; `InvalidArgument` as for
/// [`cast_bytes`].
pub fn cast_checked(src: &[u8], from: Dtype, to: Dtype, out: &mut [u8]) -> Result<()> {
    if cast_bytes(src, from, to, out)? {
        return Ok(());
    }
    let pairs = src.chunks(from.size_bytes()).zip(out.chunks_mut(to.size_bytes()));
    for (src, out) in pairs {
        if !cast_bytes(src, from, to, out)? {
            let (value, becomes) = (shown(src, from)?, shown(out, to)?);
            let what = format!("a cast from {from} to {to} would change {value} to {becomes}");
            return Err(Error::unsupported(what).help(
                "choose a dtype that holds the value, leave the leaf out of the cast, or pass `lossy` to allow the loss",
            ));
        }
    }
    Ok(())
}

fn shown(element: &[u8], dtype: Dtype) -> Result<String> {
    fn wide<const D: usize>(element: &[u8], from: Dtype, to: Dtype) -> Result<[u8; D]> {
        let mut out = [0; D];
        cast_bytes(element, from, to, &mut out)?;
        Ok(out)
    }
    Ok(match dtype.class() {
        DtypeClass::Bool => (element != [0]).to_string(),
        DtypeClass::Signed => i64::from_le_bytes(wide(element, dtype, Dtype::Int64)?).to_string(),
        DtypeClass::Unsigned => u64::from_le_bytes(wide(element, dtype, Dtype::UInt64)?).to_string(),
        // `{:?}` prints an exponent for numbers that would have many zeros.
        DtypeClass::Float => format!("{:?}", f64::from_le_bytes(wide(element, dtype, Dtype::Float64)?)),
        DtypeClass::Complex => {
            let parts: [u8; 16] = wide(element, dtype, Dtype::Complex128)?;
            let [re, im] = [0, 8].map(|at| parts.get(at..).and_then(|part| part.first_chunk()).copied());
            let [re, im] = [re, im].map(|part| f64::from_le_bytes(part.unwrap_or_default()));
            format!("{re:?}{im:+?}j")
        }
    })
}
