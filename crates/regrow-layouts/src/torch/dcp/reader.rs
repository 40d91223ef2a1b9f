//! The reader of a folder of `torch.distributed.checkpoint`.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::file::DataFile;
use super::super::pickle::Pickle;
use super::super::reader::TorchReader;
use super::super::record::Record;
use super::metadata::{Content, Entry, Place, entries};
use super::pieces::{self, Piece};
use super::{INDEX, SUFFIX};
use crate::{Description, Reader, Rest, Standing, path_tree};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::counted;
use regrow_storage::location::Location;
use regrow_store::reads::{Coded, Seal, Source, Unreadable};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

const INDEX_LEN_MAX_BYTES: u64 = 1 << 30;

/// An opened folder.
#[derive(Debug)]
pub(in super::super) struct DcpReader {
    description: Description,
    tree: Tree<LeafInfo>,
    leaves: Vec<Leaf>,
    files: Vec<Arc<DataFile>>,
    /// The objects that are not tensors.
    objects: Vec<TorchReader>,
}

/// The position of a leaf's data.
#[derive(Debug)]
enum Leaf {
    Pieces(Vec<Piece>),
    /// The number of an object, and the number of a leaf in it.
    Object(usize, usize),
    Refused(Error),
    /// The reason why the leaf is lost, in a salvage.
    Lost(Error),
}

impl DcpReader {
    /// Opens the folder `at` a location: reads its index, and the objects that are not tensors.
    /// With `salvage`, files may be missing or truncated.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; with file, leaf and offset.
    pub(in super::super) fn open(at: &Location, salvage: bool) -> Result<Self> {
        let index = DataFile::open(&at.join(INDEX))?;
        if index.len_bytes > INDEX_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "the index of the folder is too long")
                .in_file(index.describe())
                .expected(format_args!("at most {INDEX_LEN_MAX_BYTES} bytes"), index.len_bytes));
        }
        let bytes = index.slice(0, index.len_bytes)?;
        let pickle = Pickle::read(&bytes).in_file(index.describe())?;
        let entries = entries(&pickle).in_file(index.describe())?;
        let mut opening = Opening {
            at,
            files: Vec::new(),
            by_name: HashMap::new(),
            objects: Vec::new(),
            record: Record::default(),
            storages: 0,
            count_of_pieces: 0,
            salvage,
        };
        let paths: Vec<KeyPath> = entries.iter().map(|entry| entry.path.clone()).collect();
        let paths: Vec<&KeyPath> = paths.iter().collect();
        let mut entries: Vec<_> = entries.into_iter().map(Some).collect();
        let build = path_tree::build(&paths, |build, key, number| {
            match entries.get_mut(number).and_then(Option::take) {
                Some(entry) => opening.entry(build, key, entry, &index),
                None => Ok(()),
            }
        });
        let built = build.in_file(index.describe())?.finish()?;
        let (mut infos, mut leaves) = (Vec::with_capacity(built.len()), Vec::with_capacity(built.len()));
        let structure = built.with_leaves(vec![(); built.len()])?;
        for (info, leaf) in built.into_leaves() {
            infos.push(info);
            leaves.push(leaf);
        }
        let tree = structure.with_leaves(infos)?;
        let Opening { files, objects, record, count_of_pieces, .. } = opening;
        let variant = format!(
            "dcp, {} in {}",
            counted(count_of_pieces, "piece", "pieces"),
            counted(files.len(), "file", "files")
        );
        let mut notes: Vec<String> =
            objects.iter().flat_map(|object| object.description().notes.clone()).take(20).collect();
        notes.push("the index has no checksum: regrow may not detect damage of it".to_owned());
        let description = Description {
            layout: "torch".to_owned(),
            variant,
            notes,
            objects: record.to_text(),
            ..Description::default()
        };
        Ok(Self { description, tree, leaves, files, objects })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &Leaf)> {
        self.tree.leaves().get(leaf).zip(self.leaves.get(leaf)).ok_or_else(|| {
            Error::invalid(
                "the leaf \
            does not exist",
            )
        })
    }

    fn file(&self, number: usize) -> Result<&Arc<DataFile>> {
        self.files.get(number).ok_or_else(|| Error::invalid("the file does not exist"))
    }

    fn object(&self, number: usize) -> Result<&TorchReader> {
        self.objects.get(number).ok_or_else(|| Error::invalid("the object does not exist"))
    }
}

/// The state while a folder is being opened.
struct Opening<'a> {
    at: &'a Location,
    files: Vec<Arc<DataFile>>,
    by_name: HashMap<String, usize>,
    objects: Vec<TorchReader>,
    /// The record of all objects that the tree cannot represent.
    record: Record,
    /// The number of storages in that record.
    storages: usize,
    count_of_pieces: usize,
    salvage: bool,
}

impl Opening<'_> {
    /// Adds a leaf, or the pytree of an object.
    fn entry(
        &mut self,
        build: &mut TreeBuilder<(LeafInfo, Leaf)>,
        key: Key,
        entry: Entry,
        index: &DataFile,
    ) -> Result<()> {
        let without_data =
            |kind| Ok::<_, Error>(info(&entry.name, kind, Dtype::UInt8, Shape::new([0])?, None));
        let leaf = match entry.content {
            Content::Object(place) => match self.open_object(&place) {
                Err(why) if self.salvage && why.kind().is_damage() => {
                    (without_data(LeafKind::Placeholder)?, Leaf::Lost(why))
                }
                object => {
                    let object = object.at_leaf(&entry.path)?;
                    return self.object(build, key, (&entry.name, &entry.path), object);
                }
            },
            Content::Tensor { dtype, shape, pieces } => {
                self.count_of_pieces += pieces.len();
                let first = pieces.first().map(|(region, _)| region.shape());
                let chunk_shape = first.filter(|_| pieces.len() > 1);
                let pieces = pieces.into_iter().map(|(region, place)| self.piece(region, &place));
                let leaf = match pieces.collect::<Result<Vec<_>>>() {
                    Err(why) if self.salvage && why.kind().is_damage() => Leaf::Lost(why),
                    pieces => Leaf::Pieces(pieces.at_leaf(&entry.path)?),
                };
                (info(&entry.name, LeafKind::NumpyArray, dtype, shape, chunk_shape), leaf)
            }
            Content::Refused(why) => {
                let why = why.at_leaf(&entry.path).in_file(index.describe());
                (without_data(LeafKind::Unknown("torch.Tensor".into()))?, Leaf::Refused(why))
            }
        };
        build.leaf(key, leaf)
    }

    /// The number of the file with these bytes. Opens the file if it is not yet open.
    fn file(&mut self, place: &Place) -> Result<usize> {
        let number = match self.by_name.get(&place.file) {
            Some(&known) => known,
            None => {
                self.files.push(Arc::new(DataFile::in_store(self.at.store(), place.file.as_bytes())?));
                self.by_name.insert(place.file.clone(), self.files.len() - 1);
                self.files.len() - 1
            }
        };
        let len_bytes = self.files.get(number).map_or(0, |file| file.len_bytes);
        match place.offset_bytes.checked_add(place.len_bytes) {
            Some(end) if end <= len_bytes => Ok(number),
            _ => Err(Error::corrupt(format!("a file of pieces (*{SUFFIX}) is too short for the index"))
                .in_file(self.at.join(&place.file))
                .at_byte(len_bytes)
                .expected(
                    format_args!("{} bytes from byte {} on", place.len_bytes, place.offset_bytes),
                    format_args!("{len_bytes} bytes"),
                )
                .help("it was cut short; copy it again")),
        }
    }

    fn piece(&mut self, region: Region, place: &Place) -> Result<Piece> {
        Ok(Piece::new(region, self.file(place)?, place.offset_bytes, place.len_bytes))
    }

    fn open_object(&mut self, place: &Place) -> Result<TorchReader> {
        let number = self.file(place)?;
        let file = self.files.get(number).ok_or_else(|| Error::invalid("the file does not exist"))?;
        TorchReader::open_within(file, place.offset_bytes, place.len_bytes, false)
    }

    fn object(
        &mut self,
        build: &mut TreeBuilder<(LeafInfo, Leaf)>,
        key: Key,
        (name, path): (&str, &KeyPath),
        object: TorchReader,
    ) -> Result<()> {
        let mut open: Vec<usize> = Vec::new();
        let mut key = Some(key);
        let mut leaves = object.tree().leaves().iter().enumerate();
        for node in object.tree().nodes() {
            let key = key.take().unwrap_or_else(|| node.key.clone());
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            if node.kind == NodeKind::Leaf {
                let Some((leaf, info)) = leaves.next() else { break };
                let own = if info.name.is_empty() { "" } else { "." };
                let info = LeafInfo { name: format!("{name}{own}{}", info.name).into(), ..info.clone() };
                build.leaf(key, (info, Leaf::Object(self.objects.len(), leaf)))?;
            } else {
                build.open(key, node.kind.clone())?;
                open.push(node.child_count);
            }
            while open.last() == Some(&0) {
                open.pop();
                build.close()?;
            }
        }
        let (record, storages) = object.objects();
        self.record.add_below(path, record, self.storages);
        self.storages += storages;
        self.objects.push(object);
        Ok(())
    }
}

fn info(name: &str, kind: LeafKind, dtype: Dtype, shape: Shape, chunk_shape: Option<Shape>) -> LeafInfo {
    LeafInfo {
        kind,
        dtype,
        shape,
        name: name.into(),
        chunk_shape,
        write_shape: None,
        sharding: None,
        coding: "raw".into(),
    }
}

impl Reader for DcpReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let (info, leaf) = self.leaf(leaf)?;
        match leaf {
            Leaf::Pieces(pieces) => match pieces.as_slice() {
                [whole] if whole.region == Region::whole(&info.shape) => {
                    whole.source(self.file(whole.file)?, info.dtype)
                }
                _ => Ok(Source::Coded(Coded::in_chunks(info.chunk_len_bytes()))),
            },
            Leaf::Object(object, leaf) => self.object(*object)?.source(*leaf),
            Leaf::Refused(why) => {
                let (why, seal) = (why.duplicate(), Box::new(InIndex));
                Ok(Source::Unreadable(Unreadable { why, seal, is_sound: true }))
            }
            Leaf::Lost(why) => Ok(Source::Unreadable(Unreadable::lost(why.duplicate()))),
        }
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, leaf) = self.leaf(leaf)?;
        match leaf {
            Leaf::Pieces(pieces) => {
                pieces::read_region(pieces, |number| self.file(number), info, region, out)
            }
            Leaf::Object(object, leaf) => self.object(*object)?.read_region(*leaf, region, out),
            Leaf::Refused(why) | Leaf::Lost(why) => Err(why.duplicate()),
        }
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.leaves.get(leaf) {
            Some(Leaf::Pieces(pieces)) => pieces.first().map(|piece| (piece.file, piece.offset_bytes)),
            _ => None,
        });
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        let mut findings = Vec::new();
        for object in &self.objects {
            findings.extend(object.check_rest()?.findings);
        }
        for (leaf, info) in self.leaves.iter().zip(self.tree.leaves()) {
            let Leaf::Pieces(pieces) = leaf else { continue };
            for piece in pieces {
                let file = self.file(piece.file)?;
                // The check of the leaf reports a piece that cannot be opened.
                if let Ok(loaded) = piece.loaded(file, info.dtype) {
                    findings.extend(loaded.check_rest()?.findings);
                }
            }
        }
        Ok(Rest { findings, notes: Vec::new() })
    }

    /// No checksum covers the index.
    fn standing(&self) -> Standing<'_> {
        Standing::default()
    }
}

/// The seal of values in the index, which were read when the folder was opened.
#[derive(Debug)]
struct InIndex;

impl Seal for InIndex {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}
