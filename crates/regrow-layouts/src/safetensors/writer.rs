//! Writes a plan: for each file its header and its tensors, front to back.
//!
//! ```text
//! X.safetensors                       one file, as a whole, or in memory: FileImage
//! folder/model.safetensors            one file in a folder
//! folder/model-00001-of-00002.safetensors
//! folder/model-00002-of-00002.safetensors
//! folder/model.safetensors.index.json
//! ```

use std::sync::Arc;

use super::SafetensorsOptions;
use super::build::HeaderBuilder;
use super::index::{INDEX_FILE_NAME, Index};
use super::metadata::{self, STRUCTURE};
use super::packed::pack_f4;
use super::parts::{MODEL_FILE_NAME, SUFFIX};
use super::plan::{Form, Plan, PlannedTensor};
use crate::options::SaveOptions;
use crate::stream::write_array;
use crate::structure::Structure;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_storage::{NewFile, NewFolder};
use regrow_store::FileWriter;
use regrow_tree::array::Array;
use regrow_tree::tree::{KeyPath, Leaf, LeafData, Tree};

/// The longest header of a file in a folder; then the next file begins. safetensors refuses headers
/// above 100 MB.
const HEADER_LEN_MAX_BYTES: usize = 64 << 20;

/// Longest pytree that goes into a header, so that the tensors still fit.
const STRUCTURE_LEN_MAX_BYTES: usize = 24 << 20;

/// The length of the pieces that are packed. It is an even number of elements, so that pairs stay
/// together.
const PIECE_LEN_BYTES: usize = 1 << 20;

/// Whether a save makes a file `at` a location. If not, it makes a folder.
pub(super) fn is_file(at: &Location, options: &SafetensorsOptions) -> bool {
    options.one_file || at.name_text().ends_with(SUFFIX)
}

/// Writes the one file of a checkpoint.
pub(super) fn write_file(tree: &Tree<Leaf>, new: &dyn NewFile, save: &SaveOptions) -> Result<()> {
    let image = FileImage::new(tree, save)?;
    let out = new.single_writer(image.len_bytes(), 0)?;
    image.encoder.write_file(out, &image.head, &image.tensors)
}

/// Writes the files of a folder.
pub(super) fn write_folder(tree: &Tree<Leaf>, staged: &dyn NewFolder, save: &SaveOptions) -> Result<()> {
    write_files(tree, staged, save, HEADER_LEN_MAX_BYTES)
}

fn write_files(
    tree: &Tree<Leaf>,
    staged: &dyn NewFolder,
    save: &SaveOptions,
    header_len_max_bytes: usize,
) -> Result<()> {
    let options = &SafetensorsOptions::of(save);
    let (encoder, files) = plan_folder(tree, save, options, header_len_max_bytes)?;
    let mut index = Index::default();
    for (at, (head, tensors)) in files.iter().enumerate() {
        let name = file_name(at, files.len());
        let out = staged.writer(&name, head.bytes.len() as u64 + head.data_len_bytes, 0)?;
        encoder.write_file(out, head, tensors)?;
        for tensor in tensors {
            index.insert(&tensor.name, &name, tensor.form.len_bytes);
        }
    }
    match files.len() {
        1 => Ok(()),
        _ => staged.write(INDEX_FILE_NAME, &index.to_json_lines()?),
    }
}

/// Returns the error that a save at `target` would return. Writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, target: &Location, save: &SaveOptions) -> Result<()> {
    let options = &SafetensorsOptions::of(save);
    match is_file(target, options) {
        true => FileImage::new(tree, save).map(drop),
        false => plan_folder(tree, save, options, HEADER_LEN_MAX_BYTES).map(drop),
    }
}

type PlannedFile = (Head, Vec<PlannedTensor>);

fn plan_folder<'a>(
    tree: &'a Tree<Leaf>,
    save: &SaveOptions,
    options: &SafetensorsOptions,
    header_len_max_bytes: usize,
) -> Result<(Encoder<'a>, Vec<PlannedFile>)> {
    let (encoder, files) = Encoder::new(tree, save, options, Some(header_len_max_bytes))?;
    let with_head = |(at, tensors): (usize, Vec<PlannedTensor>)| Ok((encoder.head(at, &tensors)?, tensors));
    let files = files.into_iter().enumerate().map(with_head).collect::<Result<_>>()?;
    Ok((encoder, files))
}

fn file_name(file: usize, count: usize) -> String {
    match count {
        1 => MODEL_FILE_NAME.to_owned(),
        _ => format!("model-{:05}-of-{count:05}{SUFFIX}", file + 1),
    }
}

/// The bytes of one safetensors file that is not written yet.
#[derive(Debug)]
pub struct FileImage<'a> {
    encoder: Encoder<'a>,
    head: Head,
    tensors: Vec<PlannedTensor>,
}

impl<'a> FileImage<'a> {
    /// Plans the file of `tree`. `save` has the options of this layout. The caller applies the
    /// casts of `save` first ([`Array::cast`]).
    ///
    /// # Errors
    /// As a save: `NameCollision`, `Unsupported`, `Limit`, `InvalidArgument`.
    pub fn new(tree: &'a Tree<Leaf>, save: &SaveOptions) -> Result<Self> {
        let (encoder, files) = Encoder::new(tree, save, &SafetensorsOptions::of(save), None)?;
        let tensors = files.into_iter().next().unwrap_or_default();
        let head = encoder.head(0, &tensors)?;
        Ok(Self { encoder, head, tensors })
    }

    /// Length of the file.
    pub fn len_bytes(&self) -> u64 {
        self.head.bytes.len() as u64 + self.head.data_len_bytes
    }

    /// Writes the file into `out`, which is exactly [`len_bytes`](Self::len_bytes) long.
    ///
    /// # Errors
    /// `InvalidArgument` if `out` has another length; for a deferred array, errors of reading.
    pub fn write_to(&self, out: &mut [u8]) -> Result<()> {
        if out.len() as u64 != self.len_bytes() {
            return Err(Error::invalid("the destination and the file differ in size")
                .expected(format_args!("{} bytes", self.len_bytes()), out.len()));
        }
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = out.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
            at += bytes.len();
            Ok(())
        };
        put(&self.head.bytes)?;
        for tensor in &self.tensors {
            let array = self.encoder.array(tensor)?;
            each_stored_piece(array, &tensor.form, &mut put).at_leaf(&self.encoder.path(tensor))?;
        }
        Ok(())
    }
}

/// The bytes of a file before its data.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    data_len_bytes: u64,
}

/// Turns planned tensors into bytes.
#[derive(Debug)]
struct Encoder<'a> {
    tree: &'a Tree<Leaf>,
    paths: Vec<KeyPath>,
    /// `__metadata__` of the first file, and of the others.
    first_metadata: Option<Vec<(String, String)>>,
    other_metadata: Option<Vec<(String, String)>>,
    alignment_bytes: usize,
}

impl<'a> Encoder<'a> {
    fn new(
        tree: &'a Tree<Leaf>,
        save: &SaveOptions,
        options: &SafetensorsOptions,
        header_len_max_bytes: Option<usize>,
    ) -> Result<(Self, Vec<Vec<PlannedTensor>>)> {
        let alignment_bytes = options.alignment_bytes()?;
        let other_metadata = metadata::entries(options, save.custom_metadata.as_ref())?;
        let Plan { infos, files } = Plan::new(tree, save, options, header_len_max_bytes)?;
        let mut first_metadata = other_metadata.clone();
        if options.structure {
            let structure =
                Structure::of(&tree.with_leaves(infos)?, |leaf| text_of(tree, leaf))?.to_json()?;
            if structure.len() > STRUCTURE_LEN_MAX_BYTES {
                let what = "the pytree is too large for the header of a safetensors file";
                return Err(Error::new(ErrorKind::Limit, what)
                    .expected(format_args!("at most {STRUCTURE_LEN_MAX_BYTES} bytes"), structure.len())
                    .help("save in the default layout, or without the structure"));
            }
            first_metadata.get_or_insert_default().push((STRUCTURE.to_owned(), structure));
        }
        let paths = tree.paths();
        Ok((Self { tree, paths, first_metadata, other_metadata, alignment_bytes }, files))
    }

    fn head(&self, file: usize, tensors: &[PlannedTensor]) -> Result<Head> {
        let mut header = HeaderBuilder::new();
        let metadata = if file == 0 { &self.first_metadata } else { &self.other_metadata };
        if let Some(entries) = metadata {
            header.some_metadata();
            for (name, text) in entries {
                header.metadata(name, text);
            }
        }
        for tensor in tensors {
            let Form { tag, dims, len_bytes } = &tensor.form;
            header.tensor_as(&tensor.name, tag, dims, *len_bytes).at_leaf(&self.path(tensor))?;
        }
        let data_len_bytes = header.data_len_bytes();
        let bytes = header.finish_aligned(self.alignment_bytes).map_err(|error| match error.kind() {
            ErrorKind::Limit => error.help("give a folder as the target: it can hold several files"),
            _ => error,
        })?;
        Ok(Head { bytes, data_len_bytes })
    }

    fn write_file(&self, mut out: FileWriter, head: &Head, tensors: &[PlannedTensor]) -> Result<()> {
        out.write(&head.bytes)?;
        for tensor in tensors {
            let array = self.array(tensor)?;
            let written = match tensor.form.is_packed() {
                true => each_stored_piece(array, &tensor.form, &mut |bytes| out.write(bytes)),
                false => write_array(&mut out, array),
            };
            written.at_leaf(&self.path(tensor))?;
        }
        out.finish().map(|_| ())
    }

    fn array(&self, tensor: &PlannedTensor) -> Result<&Array> {
        let array = self.tree.leaves().get(tensor.leaf).and_then(Leaf::as_array);
        array.ok_or_else(|| Error::invalid("a planned tensor has no array"))
    }

    fn path(&self, tensor: &PlannedTensor) -> KeyPath {
        self.paths.get(tensor.leaf).cloned().unwrap_or_default()
    }
}

fn each_stored_piece(array: &Array, form: &Form, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut packed = Vec::new();
    array.for_each_piece(PIECE_LEN_BYTES, |piece| match form.is_packed() {
        true => {
            pack_f4(piece, &mut packed);
            each(&packed)
        }
        false => each(piece),
    })
}

fn text_of(tree: &Tree<Leaf>, leaf: usize) -> Arc<str> {
    match tree.leaves().get(leaf).map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => text.clone(),
        _ => Arc::from(""),
    }
}
