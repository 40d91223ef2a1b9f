//! `Vec<P>`, `[P; N]`, `Arc<[T]>`: one array if [`Pytree::packing`] says so, otherwise a list of
//! nodes.
//!
//! ```text
//! Vec<f32>        float32 [n]          Vec<[f32; 3]>    float32 [n,3]
//! [[i8; 4]; 2]    int8 [2,4]           Vec<Vec<f32>>    a list of arrays
//! Vec<Layer>      a list of Layers     [Layer; 2]       a list of two
//! ```

use std::sync::Arc;

use bytes::Bytes;

use super::element::{Element, Packing};
use super::number::is_numeric;
use super::{NodeRef, Pytree, Restore};
use crate::array::{Array, Dtype, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, Leaf, LeafKind, NodeKind, TreeBuilder};

/// Largest number of values without elements (`[f32; 0]`). They need no bytes, so a file could
/// contain any number of them.
const EMPTY_VALUES_MAX: u64 = 1 << 20;

impl<P: Pytree> Pytree for Vec<P> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        flatten_slice(self, key, build)
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let Some(packing) = P::packing() else {
            let items = list_of(node, restore)?;
            let values: Vec<Option<P>> =
                items.into_iter().map(|item| restore.inside(item, P::unflatten)?).collect();
            return values.into_iter().collect();
        };
        let stored = Packed::of(node, &packing, None, restore)?;
        Some((packing.collect)(&stored.bytes, stored.count))
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_slice(self, node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        load_into_slice(self, node, restore);
    }
}

impl<P: Pytree, const N: usize> Pytree for [P; N] {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        flatten_slice(self, key, build)
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let Some(packing) = P::packing() else {
            let items = list_of(node, restore)?;
            if items.len() != N {
                restore.differs("length", N, items.len());
                restore.take_all(node);
                return None;
            }
            let values: Vec<Option<P>> =
                items.into_iter().map(|item| restore.inside(item, P::unflatten)?).collect();
            return values.into_iter().collect::<Option<Vec<P>>>()?.try_into().ok();
        };
        let stored = Packed::of(node, &packing, Some(N), restore)?;
        let mut out = std::array::from_fn(|_| (packing.zero)());
        (packing.decode)(&stored.bytes, &mut out);
        Some(out)
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_slice(self, node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        load_into_slice(self, node, restore);
    }

    fn packing() -> Option<Packing<Self>> {
        let inner = P::packing()?;
        let mut dims = vec![N as u64];
        dims.extend(inner.dims);
        Some(Packing {
            dtype: inner.dtype,
            dims,
            encode: |values, out| {
                if let Some(inner) = P::packing() {
                    (inner.encode)(values.as_flattened(), out);
                }
            },
            decode: |bytes, out| {
                if let Some(inner) = P::packing() {
                    (inner.decode)(bytes, out.as_flattened_mut());
                }
            },
            collect: |bytes, count| {
                let Some(inner) = P::packing() else { return Vec::new() };
                let mut values: Vec<Self> =
                    (0..count).map(|_| std::array::from_fn(|_| (inner.zero)())).collect();
                (inner.decode)(bytes, values.as_flattened_mut());
                values
            },
            // This function is called only if P has a `packing`, so P can make a zero.
            zero: || std::array::from_fn(|_| zero_of::<P>()),
        })
    }
}

#[expect(clippy::expect_used, reason = "called through a Packing that was made from P's")]
fn zero_of<P: Pytree>() -> P {
    let packing = P::packing().expect("a type that packs once packs always");
    (packing.zero)()
}

/// The data is shared: the tree contains the slice itself, so a save makes no copy.
impl<T: Element> Pytree for Arc<[T]> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        let shape = Shape::new(vec![self.len() as u64])?;
        build.leaf(key, Leaf::array(Array::new(T::DTYPE, shape, shared_bytes(Arc::clone(self)))?))
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        Vec::unflatten(node, restore).map(Self::from)
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_slice(self, node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        match Self::get_mut(self) {
            Some(values) => load_into_slice(values, node, restore),
            None => *self = Self::unflatten(node, restore).unwrap_or_else(|| Self::clone(self)),
        }
    }
}

/// The bytes of shared numbers. No copy on little-endian machines.
pub(super) fn shared_bytes<T: Element, O: AsRef<[T]> + Send + 'static>(owner: O) -> Bytes {
    struct Owner<T, O>(O, std::marker::PhantomData<fn() -> T>);
    impl<T: Element, O: AsRef<[T]>> AsRef<[u8]> for Owner<T, O> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(self.0.as_ref())
        }
    }
    if cfg!(target_endian = "little") {
        return Bytes::from_owner(Owner(owner, std::marker::PhantomData));
    }
    let mut out = vec![0; std::mem::size_of_val(owner.as_ref())];
    (T::packed().encode)(owner.as_ref(), &mut out);
    out.into()
}

fn flatten_slice<P: Pytree>(values: &[P], key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
    if let Some(packing) = P::packing() {
        let mut dims = vec![values.len() as u64];
        dims.extend(&packing.dims);
        return build.leaf(key, Leaf::array(pack(&packing, values, Shape::new(dims)?)?));
    }
    super::derive_support::open(build, key, NodeKind::List)?;
    for (i, value) in values.iter().enumerate() {
        value.flatten(Key::Index(i), build)?;
    }
    build.close()
}

/// Copies the values into an array. This is the only copy of a save.
pub(super) fn pack<P>(packing: &Packing<P>, values: &[P], shape: Shape) -> Result<Array> {
    let mut bytes = zeros(shape.len_bytes(packing.dtype)?)?;
    (packing.encode)(values, &mut bytes);
    Array::new(packing.dtype, shape, bytes.into())
}

pub(super) fn zeros(len_bytes: u64) -> Result<Vec<u8>> {
    let no_memory = || Error::new(ErrorKind::Limit, "there is no memory for a copy of an array");
    let len = usize::try_from(len_bytes).map_err(|_| no_memory())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| no_memory())?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn check_slice<P: Pytree>(values: &[P], node: NodeRef<'_>, restore: &mut Restore) {
    if let Some(packing) = P::packing() {
        let _ = Packed::of(node, &packing, Some(values.len()), restore);
        return;
    }
    let Some(items) = list_of(node, restore) else { return };
    if items.len() != values.len() {
        restore.differs("length", values.len(), items.len());
        restore.take_all(node);
        return;
    }
    for (value, item) in values.iter().zip(items) {
        restore.inside(item, |item, restore| value.check(item, restore));
    }
}

fn load_into_slice<P: Pytree>(values: &mut [P], node: NodeRef<'_>, restore: &mut Restore) {
    if let Some(packing) = P::packing() {
        if let Some(stored) = Packed::of(node, &packing, Some(values.len()), restore) {
            (packing.decode)(&stored.bytes, values);
        }
        return;
    }
    let Some(items) = list_of(node, restore) else { return };
    for (value, item) in values.iter_mut().zip(items) {
        restore.inside(item, |item, restore| value.load_into(item, restore));
    }
}

/// The children of a list, or of a dict that replaces a list in a layout that has only dicts.
fn list_of<'a>(node: NodeRef<'a>, restore: &mut Restore) -> Option<Vec<NodeRef<'a>>> {
    let items = node.items();
    if items.is_none() {
        restore.wrong_kind(node, "a list");
    }
    items
}

/// The bytes of an array leaf that has the dtype and shape of packed values.
struct Packed {
    /// The bytes in little endian and C order, after a requested cast.
    bytes: Bytes,
    count: usize,
}

impl Packed {
    fn of<P>(
        node: NodeRef<'_>,
        packing: &Packing<P>,
        count: Option<usize>,
        restore: &mut Restore,
    ) -> Option<Self> {
        let array = array_of(node, packing.dtype, restore)?;
        let dims = array.shape().dims();
        let fits = match dims.split_first() {
            Some((&first, rest)) => rest == packing.dims && count.is_none_or(|count| first == count as u64),
            None => false,
        };
        let claimed = dims.first().copied().unwrap_or(0);
        if !fits || (packing.element_count() == 0 && claimed > EMPTY_VALUES_MAX) {
            restore.differs("shape", Wanted { first: count, rest: &packing.dims }, array.shape());
            return None;
        }
        let bytes = bytes_of(array, packing.dtype, restore)?;
        Some(Self { bytes, count: usize::try_from(claimed).ok()? })
    }
}

/// The array of a leaf of numbers, if its dtype is `dtype` or can be cast to it.
pub(super) fn array_of<'a>(node: NodeRef<'a>, dtype: Dtype, restore: &mut Restore) -> Option<&'a Array> {
    let is_array = |leaf: &&Leaf| is_numeric(&leaf.kind) || leaf.kind == LeafKind::Bytes;
    let Some(array) = node.leaf().filter(is_array).and_then(Leaf::as_array) else {
        restore.wrong_kind(node, format_args!("an array ({dtype})"));
        return None;
    };
    if array.dtype() != dtype && !restore.fit().cast {
        restore.differs("dtype", dtype, array.dtype());
        return None;
    }
    Some(array)
}

/// The bytes of an array in C order, cast to `dtype`. No copy if the array already has this order
/// and this dtype in memory.
pub(super) fn bytes_of(array: &Array, dtype: Dtype, restore: &mut Restore) -> Option<Bytes> {
    let read = || {
        let bytes = array.to_c_order()?;
        if array.dtype() == dtype {
            return Ok(bytes);
        }
        let mut cast = zeros(array.shape().len_bytes(dtype)?)?;
        restore.fit().casting.cast(&bytes, array.dtype(), dtype, &mut cast)?;
        Ok(cast.into())
    };
    read().map_err(|error| restore.fail(error)).ok()
}

/// A shape whose first axis may have any length: `[n,3]`.
struct Wanted<'a> {
    first: Option<usize>,
    rest: &'a [u64],
}

impl std::fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first {
            Some(first) => write!(f, "[{first}")?,
            None => f.write_str("[n")?,
        }
        self.rest.iter().try_for_each(|dim| write!(f, ",{dim}"))?;
        f.write_str("]")
    }
}
