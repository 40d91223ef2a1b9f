//! `ndarray`'s arrays as leaves, of any dimension and memory layout.

use ndarray::{ArcArray, Array as NdArray, ArrayD, ArrayRef, Dimension, IxDyn};

use super::element::Element;
use super::{NodeRef, Pytree, Restore, sequence};
use crate::array::{Array, Shape};
use crate::error::Result;
use crate::tree::{Key, Leaf, TreeBuilder};

impl<T: Element, D: Dimension> Pytree for NdArray<T, D> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        build.leaf(key, Leaf::array(copied(self)?))
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let array = sequence::array_of(node, T::DTYPE, restore)?;
        let bytes = sequence::bytes_of(array, T::DTYPE, restore)?;
        let dims = array.shape().dims().iter().map(|&dim| usize::try_from(dim).ok());
        let dims = IxDyn(&dims.collect::<Option<Vec<usize>>>()?);
        let values = (T::packed().collect)(&bytes, 0);
        let made = ArrayD::from_shape_vec(dims, values).and_then(ArrayD::into_dimensionality::<D>);
        match made {
            Ok(made) => Some(made),
            Err(_) => {
                let axes = D::NDIM.map_or_else(|| "any".to_owned(), |axes| axes.to_string());
                restore.differs("shape", format_args!("{axes} axes"), array.shape());
                None
            }
        }
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_shape::<T, D>(self, node, restore);
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        let Some(array) = sequence::array_of(node, T::DTYPE, restore) else { return };
        let Some(bytes) = sequence::bytes_of(array, T::DTYPE, restore) else { return };
        match self.as_slice_mut() {
            Some(values) => (T::packed().decode)(&bytes, values),
            None => {
                let values = (T::packed().collect)(&bytes, 0);
                for (place, value) in self.iter_mut().zip(values) {
                    *place = value;
                }
            }
        }
    }
}

/// In C order the data is shared, so a save makes no copy.
impl<T: Element, D: Dimension + Send + Sync + 'static> Pytree for ArcArray<T, D> {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        struct Shared<T, D: Dimension>(ArcArray<T, D>);
        impl<T: Element, D: Dimension> AsRef<[T]> for Shared<T, D> {
            fn as_ref(&self) -> &[T] {
                self.0.as_slice().unwrap_or_default()
            }
        }
        let array = match self.as_slice() {
            Some(_) => {
                Array::new(T::DTYPE, shape_of(self.shape())?, sequence::shared_bytes(Shared(self.clone())))?
            }
            None => copied(self)?,
        };
        build.leaf(key, Leaf::array(array))
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        NdArray::unflatten(node, restore).map(NdArray::into_shared)
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        check_shape::<T, D>(self, node, restore);
    }
}

fn shape_of(dims: &[usize]) -> Result<Shape> {
    Shape::new(dims.iter().map(|&dim| dim as u64).collect::<Vec<_>>())
}

/// Copies the elements in C order, from any memory layout. This is the only copy of a save.
fn copied<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<Array> {
    let (packing, shape) = (T::packed(), shape_of(array.shape())?);
    if let Some(values) = array.as_slice() {
        return sequence::pack(&packing, values, shape);
    }
    let mut bytes = sequence::zeros(shape.len_bytes(T::DTYPE)?)?;
    for (out, value) in bytes.chunks_exact_mut(T::DTYPE.size_bytes()).zip(array) {
        (packing.encode)(std::slice::from_ref(value), out);
    }
    Array::new(T::DTYPE, shape, bytes.into())
}

fn check_shape<T: Element, D: Dimension>(own: &ArrayRef<T, D>, node: NodeRef<'_>, restore: &mut Restore) {
    let Some(array) = sequence::array_of(node, T::DTYPE, restore) else { return };
    let same = own.shape().iter().map(|&dim| dim as u64).eq(array.shape().dims().iter().copied());
    if !same {
        restore.differs("shape", format_args!("{:?}", own.shape()), array.shape());
    }
}
