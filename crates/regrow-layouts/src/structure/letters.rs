//! The letters of nodes and leaves: the letter of each kind, and the kind of each letter.

use std::slice::Iter;
use std::sync::Arc;

use super::bad_columns;
use regrow_base::error::{Error, Result};
use regrow_tree::tree::{LeafKind, NodeKind};

pub(super) fn node_letter(kind: &NodeKind) -> char {
    match kind {
        NodeKind::Leaf => 'l',
        NodeKind::None => 'n',
        NodeKind::Dict => 'd',
        NodeKind::OrderedDict => 'o',
        NodeKind::DefaultDict => 'f',
        NodeKind::List => 'L',
        NodeKind::Tuple => 't',
        NodeKind::NamedTuple(_) => 'N',
        NodeKind::Dataclass(_) => 'D',
        NodeKind::Custom(_) => 'C',
    }
}

/// The node of a letter; `type_name` gives the next name of a type.
pub(super) fn node_kind(letter: u8, type_name: &mut impl FnMut() -> Result<Arc<str>>) -> Result<NodeKind> {
    Ok(match letter {
        b'l' => NodeKind::Leaf,
        b'n' => NodeKind::None,
        b'd' => NodeKind::Dict,
        b'o' => NodeKind::OrderedDict,
        b'f' => NodeKind::DefaultDict,
        b'L' => NodeKind::List,
        b't' => NodeKind::Tuple,
        b'N' => NodeKind::NamedTuple(type_name()?),
        b'D' => NodeKind::Dataclass(type_name()?),
        b'C' => NodeKind::Custom(type_name()?),
        other => return Err(bad_columns(&format!("{:?} is not a kind of node", char::from(other)))),
    })
}

pub(super) fn leaf_letter(kind: &LeafKind) -> Result<char> {
    Ok(match kind {
        LeafKind::NumpyArray => 'a',
        LeafKind::NumpyScalar => 'n',
        LeafKind::JaxArray => 'j',
        LeafKind::Scalar => 's',
        LeafKind::Str => 't',
        LeafKind::Bytes => 'b',
        LeafKind::Placeholder => '.',
        LeafKind::NumpyOther(_) | LeafKind::NumpyOtherScalar(_) => 'v',
        LeafKind::PrngKey(_) => 'k',
        LeafKind::Unknown(name) => {
            return Err(Error::unsupported(format!("a leaf of the unknown type {name:?} cannot be stored")));
        }
    })
}

/// The leaf of a letter; the iterators give the next name of NumPy's own dtypes and of a key's
/// implementation.
pub(super) fn leaf_kind(
    letter: u8,
    numpy_dtypes: &mut Iter<'_, String>,
    key_implementations: &mut Iter<'_, Option<String>>,
) -> Result<LeafKind> {
    Ok(match letter {
        b'a' => LeafKind::NumpyArray,
        b'n' => LeafKind::NumpyScalar,
        b'j' => LeafKind::JaxArray,
        b's' => LeafKind::Scalar,
        b't' => LeafKind::Str,
        b'b' => LeafKind::Bytes,
        b'.' => LeafKind::Placeholder,
        b'v' => match numpy_dtypes.next() {
            Some(dtype) => LeafKind::NumpyOther(Arc::from(dtype.as_str())),
            None => return Err(bad_columns("numpy_dtypes is too short")),
        },
        b'k' => match key_implementations.next() {
            Some(name) => LeafKind::PrngKey(name.as_deref().map(Arc::from)),
            None => return Err(bad_columns("key_implementations is too short")),
        },
        other => return Err(bad_columns(&format!("{:?} is not a kind of leaf", char::from(other)))),
    })
}
