//! PyTorch's files, read only: both forms of torch.save, and folders of
//! torch.distributed.checkpoint.
//!
//! ```text
//! x.pt       data.pkl | byteorder | data/0 | data/1 | ... | version | directory        zip, since 1.6
//! x.pt       magic | version | sys_info | object | keys | len, data | len, data | ...   legacy
//! step/      .metadata  __0_0.distcp  __1_0.distcp                                      dcp
//! ```
//!
//! The object is a pickle, and a pickle is a program. regrow reads it as data. Plain containers
//! become containers of the pytree. Numbers, texts, bytes, tensors, NumPy arrays, and names of
//! PyTorch such as dtypes become leaves. Any other value is a leaf of kind `Unknown` with its name
//! (class, key path, offset), and is never constructed; the other leaves can be read. A tensor is a
//! view of a storage. Storages are uncompressed in the file, so a contiguous tensor is a slice of
//! the map.
//!
//! | module | holds |
//! |---|---|
//! | `pickle` | opcodes to values; nothing is called |
//! | `dtypes`, `tensors`, `numpy`, `objects` | the meaning of values: the supported names |
//! | `tree`, `record`, `pointer` | values to a pytree, and the record of its Python objects |
//! | `file`, `storages` | the positions of the data |
//! | `archive`, `legacy` | the two forms |
//! | `detect`, `reader` | all of it as a checkpoint |
//! | `dcp` | a folder of pieces as a checkpoint |
//!
//! Source: PyTorch 2.8 `torch/serialization.py`, `torch/_utils.py`, `torch/_tensor.py`.

#[cfg(feature = "torch")]
use super::joined::Joined;
use super::joined::Names;
use super::{Features, Fidelity, FileNames, Format, Loss, Reader, WriteAs};
use crate::options::{OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
#[cfg(feature = "torch")]
use regrow_tree::tree::KeyPath;
use regrow_tree::tree::{Leaf, LeafInfo, Tree};

#[cfg(feature = "torch")]
mod archive;
mod dcp;
mod detect;
#[cfg(feature = "torch")]
mod dtypes;
#[cfg(feature = "torch")]
mod file;
#[cfg(feature = "torch")]
mod legacy;
#[cfg(feature = "torch")]
mod numpy;
#[cfg(feature = "torch")]
mod objects;
#[cfg_attr(not(feature = "torch"), allow(dead_code))]
mod pickle;
mod pointer;
#[cfg(feature = "torch")]
mod reader;
#[cfg(feature = "torch")]
mod record;
#[cfg(feature = "torch")]
mod storages;
#[cfg(feature = "torch")]
pub mod tensors;
#[cfg(feature = "torch")]
pub mod tree;

pub use dcp::INDEX as DCP_INDEX;
pub(crate) use detect::{is_named_so, is_one_by_content};
pub use pointer::pointer;

/// The names of the files of a model that transformers has split.
const INDEXED: Names = Names { index: "pytorch_model.bin.index.json", suffix: ".bin", nests: false };

/// The files of torch.save and torch.distributed.checkpoint. regrow only reads them.
#[derive(Debug)]
pub struct Torch;

impl Format for Torch {
    fn name(&self) -> &'static str {
        "torch"
    }

    fn file_names(&self) -> FileNames {
        FileNames {
            may_be_anothers: Some(detect::is_plain_pickle),
            looked_for: &["pt files", "PyTorch's .metadata"],
            ..FileNames::NONE
        }
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        Ok(dcp::is_one(at) || INDEXED.find(at)?.is_some() || detect::form_of(at)?.is_some())
    }

    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
        super::refuse_arrays_only(self, at, options)?;
        super::refuse_uncommitted(at)?;
        super::refuse_step_and_item(at, options)?;
        read(at, options)
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::File(|_tree, _new, _options| Err(read_only()))
    }

    fn check(&self, _tree: &Tree<Leaf>, _target: &Location, _options: &SaveOptions) -> Result<()> {
        Err(read_only())
    }
}

impl Fidelity for Torch {
    fn losses(&self, _tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], _options: &SaveOptions) -> Vec<Loss> {
        Vec::new()
    }

    fn refusal(&self, _leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        Some(read_only())
    }

    fn features<'o>(&self, _options: &'o SaveOptions) -> Features<'o> {
        Features::default()
    }
}

/// A build without the feature `torch` recognises PyTorch's files, so that the error can name the
/// feature.
#[cfg(not(feature = "torch"))]
fn read(at: &Location, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
    Err(Error::unsupported("this is a file of PyTorch; this build lacks the feature `torch`")
        .in_file(at)
        .help("build regrow with the feature `torch`"))
}

#[cfg(feature = "torch")]
fn read(at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
    if let Some(index) = INDEXED.find(at)? {
        return open_indexed(&index, options.salvage);
    }
    if at.is_folder() {
        return Ok(Box::new(dcp::DcpReader::open(at, options.salvage)?));
    }
    let form = detect::form_of(at)?.ok_or_else(|| no_file_of_torch(at))?;
    Ok(Box::new(reader::TorchReader::open(at, form, options.salvage)?))
}

/// Opens the files of an index. The record of objects covers all files.
#[cfg(feature = "torch")]
fn open_indexed(index: &Location, salvage: bool) -> Result<Box<dyn Reader>> {
    let (mut objects, mut storages) = (record::Record::default(), 0);
    let joined = Joined::open(index, INDEXED, salvage, |part| {
        let form = detect::form_of(part)?.ok_or_else(|| no_file_of_torch(part))?;
        let reader = reader::TorchReader::open(part, form, salvage)?;
        let (own, count) = reader.objects();
        objects.add_below(&KeyPath::root(), own, storages);
        storages += count;
        Ok(Box::new(reader))
    })?;
    Ok(Box::new(joined.with_objects(objects.to_text())))
}

#[cfg(feature = "torch")]
fn no_file_of_torch(at: &Location) -> Error {
    Error::corrupt("torch.save did not write this file")
        .in_file(at)
        .expected("a zip archive or a pickle", "something else")
}

fn read_only() -> Error {
    Error::unsupported("regrow reads files of PyTorch, but does not write them")
        .help("save in the default layout, or as safetensors, which PyTorch programs can read")
}

#[cfg(test)]
#[cfg(feature = "torch")]
mod fixture_tests;
