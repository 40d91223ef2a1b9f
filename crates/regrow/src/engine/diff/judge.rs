//! Decides from the metadata how a pair of leaves is compared. After the comparison, decides the
//! status of the pair.

use super::DiffOptions;
use super::report::LeafStatus;
use crate::tree::{BIG_INTEGER, LeafInfo, LeafKind};

/// How a pair of leaves is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// No comparison is needed: the metadata give this status.
    Known(LeafStatus),
    Texts,
    /// Compare two arrays of the same shape as numbers.
    Numbers,
    /// Compare elements whose dtype the engine does not know, as bytes.
    Opaque,
    /// Data of another program, which cannot be read.
    Unknown,
}

pub(super) fn task(a: &LeafInfo, b: &LeafInfo) -> Task {
    use LeafKind as K;
    match (&a.kind, &b.kind) {
        (K::Str, K::Str) => Task::Texts,
        (K::Placeholder, K::Placeholder) => Task::Known(LeafStatus::Equal),
        (K::Unknown(a), K::Unknown(b)) if a.starts_with(BIG_INTEGER) && b.starts_with(BIG_INTEGER) => {
            Task::Known(if a == b { LeafStatus::Equal } else { LeafStatus::Values })
        }
        (K::Unknown(name_a), K::Unknown(name_b)) if name_a == name_b => Task::Unknown,
        (kind_a, kind_b) if kind_a.is_array() && kind_b.is_array() => array_task(a, b),
        _ => Task::Known(LeafStatus::Kind),
    }
}

fn array_task(a: &LeafInfo, b: &LeafInfo) -> Task {
    let other_dtype = |info: &LeafInfo| match &info.kind {
        LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => Some(dtype.clone()),
        _ => None,
    };
    let other = other_dtype(a);
    if other != other_dtype(b) {
        return Task::Known(LeafStatus::Dtype);
    }
    match (a.shape == b.shape, other) {
        (false, _) => Task::Known(LeafStatus::Shape),
        (true, None) => Task::Numbers,
        (true, Some(_)) => Task::Opaque,
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
