//! Plans the name and the header of every leaf, before the first write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::descr::Descr;
use super::header::Header;
use super::names::{collision, file_name, member_name};
use crate::options::{Compression, SaveOptions};
use crate::options::{Form, NpyOptions};
use crate::refusals::Refusals;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Array, Dtype, Shape};
use regrow_tree::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// One array to be written.
#[derive(Debug)]
pub(super) struct Planned<'a> {
    pub name: Arc<str>,
    pub header: Header,
    pub data: Data<'a>,
}

/// The source of an array's elements.
#[derive(Debug)]
pub(super) enum Data<'a> {
    Array(&'a Array),
    /// A text, as four bytes for each code point.
    Text(&'a str),
}

/// The plan of a save.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub infos: Vec<LeafInfo>,
    /// The arrays to write, in flatten order, without leaves that have no data.
    pub arrays: Vec<Planned<'a>>,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// `NameCollision` or `Unsupported` with all leaves that cannot be stored; `InvalidArgument`
    /// for options that contradict each other or the tree.
    pub fn new(tree: &'a Tree<Leaf>, form: Form, options: &NpyOptions, save: &SaveOptions) -> Result<Self> {
        check_options(form, options, save)?;
        if let Some(path) = tree.first_equal_keys() {
            let what = "two children of one container have the same key";
            return Err(Error::new(ErrorKind::NameCollision, what).at_leaf(&path));
        }
        if form == Form::Npy && tree.nodes().len() != 1 {
            return Err(Error::unsupported("an .npy file stores one array, but the tree has containers")
                .help("give the target a name that ends in .npz, or without a suffix for a folder"));
        }
        let (mut infos, mut arrays) = (Vec::with_capacity(tree.len()), Vec::with_capacity(tree.len()));
        let mut refusals = Refusals::default();
        let mut taken: HashMap<Arc<str>, KeyPath> = HashMap::with_capacity(tree.len());
        for (path, leaf) in tree.iter() {
            let name = match form {
                Form::Npz => member_name(&path, &options.separator),
                Form::Npy | Form::Folder => file_name(&path),
            };
            let Some(name) = refusals.keep(&path, name).map(Arc::<str>::from) else { continue };
            let Some(planned) = refusals.keep(&path, planned(name.clone(), leaf, options, form)) else {
                continue;
            };
            if planned.is_some() {
                match taken.entry(name.clone()) {
                    Entry::Occupied(first) => refusals.add(&path, collision(&name, first.get())),
                    Entry::Vacant(free) => {
                        free.insert(path.clone());
                    }
                }
            }
            infos.push(LeafInfo {
                kind: leaf.kind.clone(),
                dtype: leaf.as_array().map_or(Dtype::UInt8, Array::dtype),
                shape: match &leaf.data {
                    LeafData::Array(array) => array.shape().clone(),
                    LeafData::Text(text) => Shape::new(vec![text.len() as u64])?,
                    LeafData::Absent => Shape::scalar(),
                },
                name,
                chunk_shape: None,
                write_shape: None,
                sharding: leaf.sharding.clone(),
                coding: Arc::from(""),
            });
            arrays.extend(planned);
        }
        refusals.finish("cannot be written to npy files like this")?;
        if form == Form::Npy && arrays.is_empty() {
            return Err(Error::unsupported("an .npy file stores one array, but the tree has none")
                .help("give the target a name that ends in .npz, or without a suffix for a folder"));
        }
        Ok(Self { infos, arrays })
    }
}

impl Planned<'_> {
    /// Passes the bytes of the whole npy file to `each`, front to back.
    ///
    /// # Errors
    /// Errors of `each`; errors of reading a deferred array.
    pub fn for_each_piece(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        each(&self.header.to_bytes())?;
        match self.data {
            Data::Text(text) => {
                let elements: Vec<u8> = text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
                each(&elements)?;
                // An empty text is stored as one NUL.
                if elements.is_empty() { each(&[0; 4]) } else { Ok(()) }
            }
            Data::Array(array) => array.for_each_piece(PIECE_LEN_BYTES, each),
        }
    }

    pub fn len_bytes(&self) -> Result<u64> {
        Ok(self.header.data_len_bytes()?.saturating_add(self.header.to_bytes().len() as u64))
    }
}

const PIECE_LEN_BYTES: usize = 1 << 20;

fn check_options(form: Form, options: &NpyOptions, save: &SaveOptions) -> Result<()> {
    if options.compress.is_some() && form != Form::Npz {
        return Err(Error::invalid("`compress` is for archives: .npy files are never compressed")
            .help("give the target a name that ends in .npz, or pass `form`"));
    }
    if matches!(save.compression, Some(Compression::Zstd(_))) {
        return Err(Error::invalid("npy files and archives cannot be compressed with zstd")
            .help("pass `compress` to deflate an archive, or save in the default layout"));
    }
    if save.custom_metadata.is_some() && (form == Form::Npy || !options.structure) {
        return Err(Error::invalid("a file of arrays alone cannot store metadata")
            .help("save as .npz or as a folder, and pass `structure`"));
    }
    if options.separator.is_empty() || options.separator.contains('\0') {
        return Err(Error::invalid("`separator` must not be empty or contain NUL"));
    }
    Ok(())
}

/// Plans the array of a leaf; `None` for a leaf without data, which only the sidecar records.
fn planned<'a>(
    name: Arc<str>,
    leaf: &'a Leaf,
    options: &NpyOptions,
    form: Form,
) -> Result<Option<Planned<'a>>> {
    let (header, data) = match (&leaf.kind, &leaf.data) {
        (LeafKind::Unknown(name), _) => {
            return Err(Error::unsupported(format!("a leaf of the unknown type {name:?} has no data"))
                .help("leave it out"));
        }
        (LeafKind::NumpyOther(text), LeafData::Array(array)) => {
            (header_of_other(text, array)?, Data::Array(array))
        }
        (_, LeafData::Array(array)) => {
            let header = Header::for_array(array.dtype(), array.shape().clone(), options.named_dtypes);
            (header, Data::Array(array))
        }
        (_, LeafData::Text(text)) => (header_of_text(text)?, Data::Text(text)),
        (_, LeafData::Absent) if options.structure && form != Form::Npy => return Ok(None),
        (_, LeafData::Absent) => {
            return Err(Error::unsupported(format!("a leaf of kind {} has no data", leaf.kind.name()))
                .help("keep the structure, which can store it, or leave it out"));
        }
    };
    Ok(Some(Planned { name, header, data }))
}

/// The header of an array of a dtype that only NumPy has. The array's last axis is the bytes of an
/// element.
fn header_of_other(text: &str, array: &Array) -> Result<Header> {
    let descr = Descr::from_text(text)?;
    match array.shape().dims().split_last() {
        Some((&item_len_bytes, dims))
            if array.dtype() == Dtype::UInt8 && item_len_bytes == descr.item_len_bytes() =>
        {
            Ok(Header { descr, fortran_order: false, shape: Shape::new(dims)? })
        }
        _ => {
            Err(Error::invalid("the last axis of an array of a NumPy-only dtype is the bytes of an element")
                .expected(format_args!("{} bytes", descr.item_len_bytes()), array.shape()))
        }
    }
}

/// The header of a 0-d array of text. NumPy has no empty text: it fills up with NULs, and removes
/// them when it reads.
fn header_of_text(text: &str) -> Result<Header> {
    let len = text.chars().count().max(1);
    Ok(Header { descr: Descr::from_text(&format!("<U{len}"))?, fortran_order: false, shape: Shape::scalar() })
}
