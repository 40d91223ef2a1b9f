//! The reader of a file as a checkpoint. For a folder of steps, it reads the file of one step.

use std::sync::Arc;

use bytes::Bytes;

use super::decode::{Data, decode, decode_front};
use super::gda::{ArraysFolder, Resolved};
use super::specs;
use super::steps::Steps;
use super::streamed::{begins_record, decode_stream};
use crate::options::OpenOptions;
use crate::pieces::copy_pieces;
use crate::whole_file::WholeFile;
use crate::{Description, Reader, Rest, Standing, refuse_step_and_item};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::reads::{self, BlobRef, Coded, Extent, Text, Unreadable};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{LeafInfo, LeafKind, Tree};
use regrow_zarr::zarr::ZarrArray;

/// An opened file.
#[derive(Debug)]
pub(super) struct FlaxReader {
    description: Description,
    tree: Tree<LeafInfo>,
    sources: Vec<Source>,
    file: WholeFile,
}

/// The source of a leaf's data.
#[derive(Debug)]
enum Source {
    /// Views of the file.
    Pieces(Vec<Bytes>),
    Zarr(ZarrArray),
    Text(Arc<str>),
    Absent,
    /// The reason why the leaf is lost, in a salvaged file.
    Lost(Error),
}

impl FlaxReader {
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`, with file, leaf and offset; `NotFound` for a missing
    /// step.
    pub(super) fn open(at: &Location, options: &OpenOptions) -> Result<Self> {
        if !at.is_folder() {
            refuse_step_and_item(at, options)?;
            return Self::open_file(at, options.salvage);
        }
        let steps = Steps::find(at, options)?;
        let picked = steps.pick(options.step, at)?;
        let mut reader = Self::open_file(&picked.at, options.salvage)?;
        let description = &mut reader.description;
        description.step = picked.whole();
        description.steps = steps.files.iter().filter_map(super::steps::StepFile::whole).collect();
        if description.steps.len() < steps.files.len() {
            let all: Vec<&str> = steps.files.iter().map(|file| file.text.as_str()).collect();
            let note = format!("some steps have fractions: {}; this is {}", all.join(", "), picked.text);
            description.notes.push(note);
        }
        if steps.prefixes.len() > 1 {
            description.items = steps.prefixes.into_iter().map(|name| (name, "steps".to_owned())).collect();
        }
        description.notes.extend(steps.notes);
        Ok(reader)
    }

    fn open_file(at: &Location, salvage: bool) -> Result<Self> {
        let file = WholeFile::of(at.clone())?;
        let is_stream = begins_record(&file.bytes);
        let decoded = match salvage {
            _ if is_stream => decode_stream(&file.bytes, salvage),
            true => decode_front(&file.bytes),
            false => decode(&file.bytes),
        };
        let decoded = decoded.in_file(at)?;
        let mut description = Description {
            layout: "flax".to_owned(),
            variant: if is_stream { "streamed msgpack" } else { "msgpack" }.to_owned(),
            notes: vec![
                "msgpack files have no checksums: regrow cannot detect damage of their data".to_owned(),
            ],
            ..Description::default()
        };
        if is_stream {
            let note = "a streamed file has no count of its leaves: if it is cut between two leaves, regrow \
                 cannot see it";
            description.notes.push(note.to_owned());
        }
        let mut reading = Reading {
            arrays: ArraysFolder::of(at),
            at,
            salvage,
            sources: Vec::with_capacity(decoded.len()),
            notes: &mut description.notes,
            failed: None,
        };
        let tree = decoded.map(|leaf| {
            let mut info = leaf.info;
            let source = reading.source(leaf.data, &mut info);
            reading.sources.push(source);
            info
        });
        let Reading { sources, failed, .. } = reading;
        match failed {
            Some((leaf, error)) => Err(error.at_leaf(&tree.path_of(leaf)).in_file(at)),
            None => Ok(Self { description, tree, sources, file }),
        }
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &Source)> {
        self.tree.leaves().get(leaf).zip(self.sources.get(leaf)).ok_or_else(|| {
            Error::invalid(
                "the leaf \
            does not exist",
            )
        })
    }

    /// The bytes of a leaf in the file, or an error if the file has shrunk.
    fn mapped<'s>(&self, pieces: &'s [Bytes]) -> Result<&'s [Bytes]> {
        self.file.check_len().map(|()| pieces)
    }
}

/// The leaves of a file that is being opened.
struct Reading<'a> {
    at: &'a Location,
    arrays: ArraysFolder,
    salvage: bool,
    sources: Vec<Source>,
    notes: &'a mut Vec<String>,
    /// The first leaf that cannot be read.
    failed: Option<(usize, Error)>,
}

impl Reading<'_> {
    fn source(&mut self, data: Data, info: &mut LeafInfo) -> Source {
        match data {
            Data::Pieces(pieces) => Source::Pieces(pieces),
            Data::Absent => Source::Absent,
            Data::Lost(why) => Source::Lost(why.in_file(self.at)),
            Data::Spec(spec) => {
                info.kind = LeafKind::Placeholder;
                match self.salvage {
                    true => Source::Lost(specs::refused(&spec)),
                    false => self.fail(specs::refused(&spec)),
                }
            }
            Data::Text(text) => self.text(text, info),
        }
    }

    /// `text` as a leaf, or the array of several processes that `text` stands for.
    fn text(&mut self, text: Arc<str>, info: &mut LeafInfo) -> Source {
        match self.arrays.resolve(&text) {
            Ok(None) => Source::Text(text),
            Ok(Some(Resolved::Array(array))) => {
                let meta = array.meta();
                info.kind = LeafKind::JaxArray;
                (info.dtype, info.shape) = (meta.dtype(), meta.shape().clone());
                info.chunk_shape = Some(meta.inner_chunk_shape().clone());
                info.coding = meta.coding().into();
                Source::Zarr(array)
            }
            Ok(Some(Resolved::Missing(place))) => {
                let note = format!("an array of several processes is missing: {place}");
                self.notes.push(note.clone());
                info.kind = LeafKind::Unknown(note.into());
                info.shape = Shape::new(vec![0]).unwrap_or_default();
                Source::Absent
            }
            Err(error) if self.salvage && error.kind().is_damage() => {
                info.kind = LeafKind::Placeholder;
                Source::Lost(error)
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: Error) -> Source {
        self.failed.get_or_insert((self.sources.len(), error));
        Source::Absent
    }
}

impl Reader for FlaxReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<reads::Source<'_>> {
        let (info, source) = self.leaf(leaf)?;
        Ok(match source {
            Source::Pieces(pieces) => match pieces.as_slice() {
                [whole] => match self.file.offset_of(whole) {
                    Some(offset_bytes) => reads::Source::Raw(Extent {
                        blob: BlobRef::Kept(&self.file),
                        offset_bytes,
                        len_bytes: whole.len() as u64,
                        checks: None,
                        is_viewable: true,
                        working_len_bytes: None,
                    }),
                    None => reads::Source::Memory(whole.clone()),
                },
                _ => reads::Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            },
            Source::Zarr(_) => reads::Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            Source::Text(text) => reads::Source::Text(Text::Known(text)),
            Source::Absent => reads::Source::Nothing,
            Source::Lost(why) => reads::Source::Unreadable(Unreadable::lost(why.duplicate())),
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, source) = self.leaf(leaf)?;
        match source {
            Source::Pieces(pieces) => copy_pieces(self.mapped(pieces)?, info.dtype, &info.shape, region, out),
            Source::Zarr(array) => array.read_region(region, out),
            Source::Text(text) => {
                let text = [Bytes::copy_from_slice(text.as_bytes())];
                copy_pieces(&text, Dtype::UInt8, &info.shape, region, out)
            }
            Source::Lost(why) => Err(why.duplicate()),
            Source::Absent => {
                Err(Error::unsupported(format!("a leaf of kind {} has no data here", info.kind.name())))
            }
        }
    }

    fn read_order(&self) -> Vec<usize> {
        (0..self.tree.len()).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::default())
    }

    fn standing(&self) -> Standing<'_> {
        Standing::default()
    }
}
