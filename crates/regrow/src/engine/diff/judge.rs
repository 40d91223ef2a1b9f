//! Compares a pair of leaves by metadata, before any read.

use super::DiffOptions;
use super::report::LeafStatus;
use crate::tree::{BIG_INTEGER, LeafInfo, LeafKind};

/// How a pair of leaves is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// No comparison is needed: the metadata give this status.
    Known(LeafStatus),
    /// Compare two texts.
    Texts,
    /// Compare two arrays of the same shape as numbers.
    Numbers,
    /// Compare elements whose dtype the engine does not know, as bytes.
    Opaque,
    /// Data of another program, which cannot be read.
    Unknown,
}

/// How to compare two leaves, from their metadata.
pub(super) fn task(a: &LeafInfo, b: &LeafInfo) -> Task {
    use LeafKind as K;
    let other_dtype = |info: &LeafInfo| match &info.kind {
        K::NumpyOther(dtype) | K::NumpyOtherScalar(dtype) => Some(dtype.clone()),
        _ => None,
    };
    match (&a.kind, &b.kind) {
        (K::Str, K::Str) => Task::Texts,
        (K::Placeholder, K::Placeholder) => Task::Known(LeafStatus::Equal),
        (K::Unknown(a), K::Unknown(b)) if a == b && a.starts_with(BIG_INTEGER) => {
            Task::Known(LeafStatus::Equal)
        }
        (K::Unknown(a), K::Unknown(b)) if a.starts_with(BIG_INTEGER) && b.starts_with(BIG_INTEGER) => {
            Task::Known(LeafStatus::Values)
        }
        (K::Unknown(name_a), K::Unknown(name_b)) if name_a == name_b => Task::Unknown,
        _ if !a.kind.is_array() || !b.kind.is_array() => Task::Known(LeafStatus::Kind),
        _ => match (other_dtype(a), other_dtype(b)) {
            (None, None) if a.shape != b.shape => Task::Known(LeafStatus::Shape),
            (None, None) => Task::Numbers,
            (own, other) if own != other => Task::Known(LeafStatus::Dtype),
            _ if a.shape != b.shape => Task::Known(LeafStatus::Shape),
            _ => Task::Opaque,
        },
    }
}

/// The status of a pair whose elements were compared, from the number of elements that differ and
/// the number that differ by more than the tolerance.
pub(super) fn status(
    a: &LeafInfo,
    b: &LeafInfo,
    (differing, outside): (u64, u64),
    options: &DiffOptions,
) -> LeafStatus {
    if outside > 0 {
        LeafStatus::Values
    } else if a.dtype != b.dtype && !options.ignore_dtype {
        LeafStatus::Dtype
    } else if a.kind != b.kind && options.check_types {
        LeafStatus::Kind
    } else if differing > 0 {
        LeafStatus::Within
    } else {
        LeafStatus::Equal
    }
}
