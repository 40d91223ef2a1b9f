//! Plans the contents of a file from a pytree: the record of each leaf, and the losses.

use std::sync::Arc;

use super::EquinoxOptions;
use super::order::jax_order;
use super::trailer::Trailer;
use super::writer::{Contents, RecordOut, line_of};
use crate::npy::descr::Descr;
use crate::npy::header::Header;
use crate::options::{Compression, SaveOptions};
use crate::refusals::Refusals;
use crate::structure::Structure;
use crate::{Loss, LossKind};
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree};

pub(super) fn plan(tree: &Tree<Leaf>, equinox: &EquinoxOptions, save: &SaveOptions) -> Result<Contents> {
    if matches!(save.compression, Some(Compression::Zstd(_))) {
        return Err(Error::invalid("the leaf files of Equinox are not compressed")
            .help("leave `compression` out, or save in the default layout"));
    }
    if save.custom_metadata.is_some() && !equinox.trailer {
        return Err(
            Error::invalid("metadata needs the trailer").help("pass `hyperparameters`, or keep the trailer")
        );
    }
    if save.custom_metadata.is_some() && equinox.hyperparameters.is_some() {
        return Err(Error::invalid(
            "give `metadata` or `hyperparameters`, not both: an Equinox file stores one of them",
        ));
    }
    let mut refusals = Refusals::default();
    let mut planned: Vec<Planned> = Vec::with_capacity(tree.len());
    for (path, leaf) in tree.iter() {
        planned.push(refusals.keep(&path, leaf_plan(leaf, equinox)).unwrap_or(Planned::Left));
    }
    refusals.finish("cannot be written as Equinox writes them")?;
    let mut record_of = vec![None; tree.len()];
    let (mut records, mut blobs) = (Vec::new(), Vec::new());
    for leaf in jax_order(tree) {
        match planned.get_mut(leaf).map(|slot| std::mem::replace(slot, Planned::Left)) {
            Some(Planned::Record(record)) => {
                if let Some(slot) = record_of.get_mut(leaf) {
                    *slot = Some(records.len());
                }
                records.push(*record);
            }
            Some(Planned::Blob(array)) => blobs.push((leaf, array)),
            _ => {}
        }
    }
    let trailer = match equinox.trailer {
        true => {
            let structure = structure(tree)?;
            Some((Trailer::new(structure, record_of, save.custom_metadata.clone()), blobs))
        }
        false => None,
    };
    let line = equinox.hyperparameters.as_ref().map(line_of).transpose()?.unwrap_or_default();
    if line.is_empty() && records.is_empty() && trailer.is_none() {
        return Err(Error::unsupported("a pytree without arrays and numbers makes an empty file")
            .help("keep the trailer: an empty file looks like an interrupted save"));
    }
    Ok(Contents { line, records, trailer })
}

/// The stored form of a leaf.
enum Planned {
    Record(Box<RecordOut>),
    /// Raw bytes in the trailer, because Equinox has no leaf of this kind.
    Blob(Array),
    /// No bytes: text is in the trailer's structure.
    Left,
}

fn leaf_plan(leaf: &Leaf, options: &EquinoxOptions) -> Result<Planned> {
    let array = match (&leaf.kind, &leaf.data) {
        (LeafKind::Str | LeafKind::Placeholder, _) => return Ok(Planned::Left),
        (LeafKind::Unknown(name), _) => {
            return Err(Error::unsupported(format!("a leaf of the unknown type {name} has no data")));
        }
        (LeafKind::Bytes, LeafData::Array(array)) => return Ok(Planned::Blob(array.clone())),
        (LeafKind::PrngKey(_), _) if !options.prng_keys => {
            return Err(Error::unsupported("Equinox does not write typed PRNG keys")
                .help("pass `prng_keys` to write their key data, or save jax.random.key_data(key)"));
        }
        (_, LeafData::Array(array)) => array,
        _ => return Err(Error::invalid("a leaf lacks its data")),
    };
    if let LeafKind::NumpyOther(text) = &leaf.kind {
        let header =
            Header { descr: Descr::from_text(text)?, fortran_order: false, shape: outer(array.shape()) };
        if header.data_len_bytes()? != array.len_bytes() {
            return Err(Error::invalid(format!("the bytes of an array do not fit its dtype {text}"))
                .expected(header.data_len_bytes()?, array.len_bytes()));
        }
        return Ok(Planned::Record(Box::new(RecordOut { header, array: array.clone() })));
    }
    let (array, fortran_order) = match array.transposed().filter(|_| leaf.kind == LeafKind::NumpyArray) {
        Some(transposed) if array.c_order_bytes().is_none() && transposed.c_order_bytes().is_some() => {
            (transposed, true)
        }
        _ => (array.clone(), false),
    };
    let mut shape = array.shape().dims().to_vec();
    if fortran_order {
        shape.reverse();
    }
    let descr = descr(&leaf.kind, array.dtype(), options);
    let header = Header { descr, fortran_order, shape: Shape::new(shape)? };
    Ok(Planned::Record(Box::new(RecordOut { header, array })))
}

/// The type of a record's elements. Equinox restores `<V2` as bfloat16 for a JAX leaf and for a
/// scalar. A NumPy leaf of bfloat16, and a leaf of any other dtype of ml_dtypes, needs the name of
/// the dtype.
fn descr(kind: &LeafKind, dtype: Dtype, options: &EquinoxOptions) -> Descr {
    let is_plain = options.strict || is_known(kind, dtype);
    if is_plain { Descr::as_numpy_writes(dtype) } else { Descr::named(dtype) }
}

/// Whether Equinox restores a dtype for which NumPy has no name.
fn is_known(kind: &LeafKind, dtype: Dtype) -> bool {
    dtype == Dtype::BFloat16 && *kind != LeafKind::NumpyArray
}

/// The shape without its last axis, which is the bytes of an element.
fn outer(shape: &Shape) -> Shape {
    let dims = shape.dims().split_last().map(|(_, dims)| dims.to_vec()).unwrap_or_default();
    Shape::new(dims).unwrap_or_default()
}

fn structure(tree: &Tree<Leaf>) -> Result<Structure> {
    let infos = tree.iter().map(|(path, leaf)| {
        let (dtype, shape) = match leaf.as_array() {
            Some(array) => (array.dtype(), array.shape().clone()),
            None => (Dtype::UInt8, text_shape(leaf)?),
        };
        Ok(leaf_info(leaf.kind.clone(), dtype, shape, &path).with_sharding(leaf))
    });
    let infos = tree.with_leaves(infos.collect::<Result<Vec<_>>>()?)?;
    Structure::of(&infos, |leaf| match tree.leaves().get(leaf).map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => text.clone(),
        _ => Arc::from(""),
    })
}

fn text_shape(leaf: &Leaf) -> Result<Shape> {
    match &leaf.data {
        LeafData::Text(text) => Shape::new(vec![text.len() as u64]),
        _ => Ok(Shape::scalar()),
    }
}

/// The description of a leaf in a trailer.
pub fn leaf_info(kind: LeafKind, dtype: Dtype, shape: Shape, path: &KeyPath) -> LeafInfo {
    LeafInfo {
        kind,
        dtype,
        shape,
        name: Arc::from(path.join(".")),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: Arc::from(""),
    }
}

trait WithSharding {
    fn with_sharding(self, leaf: &Leaf) -> Self;
}

impl WithSharding for LeafInfo {
    fn with_sharding(mut self, leaf: &Leaf) -> Self {
        self.sharding.clone_from(&leaf.sharding);
        self
    }
}

/// The losses of a pytree. With a trailer, these are only leaves that Equinox leaves out, and
/// dtypes that Equinox does not restore.
pub(super) fn losses(tree: &Tree<LeafInfo>, options: &EquinoxOptions) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut lose = |kind, path: KeyPath, what: &str| losses.push(Loss { kind, path, what: what.to_owned() });
    let is_list = tree.nodes().split_first().is_some_and(|(root, rest)| {
        root.kind == NodeKind::List && rest.iter().all(|node| node.kind == NodeKind::Leaf)
    });
    if !is_list && !options.trailer {
        lose(LossKind::Structure, KeyPath::root(), "the pytree comes back as a list of its leaves");
    }
    for (path, info) in tree.iter() {
        for (kind, what) in leaf_losses(info, options) {
            lose(kind, path.clone(), what);
        }
    }
    if options.trailer {
        // With a trailer, only readers other than regrow have these losses.
        losses = losses.into_iter().map(Loss::elsewhere).collect();
    }
    losses
}

fn leaf_losses(info: &LeafInfo, options: &EquinoxOptions) -> Vec<(LossKind, &'static str)> {
    let is_nameless = options.strict
        && !is_known(&info.kind, info.dtype)
        && matches!(Descr::as_numpy_writes(info.dtype), Descr::Void { .. });
    let mut losses = match &info.kind {
        LeafKind::Placeholder if options.trailer => Vec::new(),
        LeafKind::Str | LeafKind::Bytes | LeafKind::Placeholder => {
            return vec![(LossKind::Value, "Equinox leaves it out")];
        }
        _ if options.strict && Descr::is_unreadable(info.dtype) => {
            return vec![(LossKind::Value, "NumPy, and so Equinox, cannot read this dtype back")];
        }
        _ if options.trailer && !is_nameless => return Vec::new(),
        LeafKind::Scalar | LeafKind::NumpyScalar => {
            vec![(LossKind::Kind, "a number comes back as an array without axes")]
        }
        LeafKind::PrngKey(_) if options.prng_keys => {
            vec![(LossKind::Kind, "a PRNG key comes back as its key data")]
        }
        LeafKind::JaxArray => vec![(LossKind::Note, "a JAX array comes back as a NumPy array")],
        _ => Vec::new(),
    };
    if is_nameless {
        losses.push((LossKind::Value, "the dtype comes back as untyped bytes"));
    }
    losses
}
